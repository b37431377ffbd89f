"""Reports on a program: its graphs, how thunder splits them, and scripts that reproduce each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx

from thunder.core.errors import ThunderValueError
from thunder.core.torch_compat import FakeTensor, fake_mode_of_tracing
from thunder.core.trace import TraceCtx
from thunder.dynamo.compiler import ThunderCompiler, ThunderFXCompiledObject
from thunder.dynamo.pieces import ThunderPiece
from thunder.dynamo.repro import write_script
from thunder.dynamo.splitter import body_nodes
from thunder.dynamo.utils import (
    ExampleInputMetaData,
    example_input_meta_to_input,
    get_split_reasons_string,
    input_to_example_input_meta,
)
from thunder.frontend.lowering import example_value


class FXGraphReport:
    """One graph.

    Attributes:
        graph, graph_name: the graph module and its name in file names.
        example_input_meta: metadata of the inputs that it was captured with.
        ops: the operations that it calls, most frequent first.
    """

    def __init__(self, graph: fx.GraphModule, graph_name: str, example_input_meta: Sequence[ExampleInputMetaData]):
        self.graph = graph
        self.graph_name = graph_name
        self.example_input_meta = list(example_input_meta)
        counted = Counter(n.target if isinstance(n.target, str) else str(n.target) for n in body_nodes(graph))
        self.ops = [name for name, _ in counted.most_common()]

    def __str__(self) -> str:
        count = len(body_nodes(self.graph))
        return f"<{type(self).__name__} {self.graph_name}: {count} operations: {', '.join(self.ops)}>"

    def make_example_inputs(self) -> list[Any]:
        """Random inputs like those at capture."""
        return [example_input_meta_to_input(m) for m in self.example_input_meta]

    def write_repro(
        self,
        folder: str | os.PathLike,
        executor: str,
        *,
        file_name: str | None = None,
        use_benchmark: bool = False,
        serialize_inputs: bool = False,
        extra_comment_str: str = "",
        thunder_options: dict[str, Any] | None = None,
    ) -> Path:
        """Writes a script that runs the graph; gives its path.

        Args:
            executor: "eager", "thunder" or "inductor".
            use_benchmark: the script compares speed with eager's instead of running the graph once.
            serialize_inputs: the inputs have the same values at each run of the script.
        Raises: ThunderValueError where the graph calls something that cannot be imported.
        """
        suffix = "benchmark" if use_benchmark else "repro"
        return write_script(
            folder, file_name or f"{self.graph_name}_{executor}_{suffix}.py", self.graph, self.example_input_meta,
            executor=executor, benchmark=use_benchmark, serialize=serialize_inputs, comment=extra_comment_str,
            thunder_options=thunder_options,
        )  # fmt: skip

    def write_eager_repro(
        self, folder: str | os.PathLike, use_benchmark: bool = False, serialize_inputs: bool = False
    ) -> Path:
        """`write_repro` for the graph as it is."""
        return self.write_repro(folder, "eager", use_benchmark=use_benchmark, serialize_inputs=serialize_inputs)

    def write_thunder_repro(
        self, folder: str | os.PathLike, use_benchmark: bool = False, serialize_inputs: bool = False
    ) -> Path:
        """`write_repro` for `thunder.jit`."""
        return self.write_repro(folder, "thunder", use_benchmark=use_benchmark, serialize_inputs=serialize_inputs)

    def write_inductor_repro(
        self, folder: str | os.PathLike, use_benchmark: bool = False, serialize_inputs: bool = False
    ) -> Path:
        """`write_repro` for Inductor."""
        return self.write_repro(folder, "inductor", use_benchmark=use_benchmark, serialize_inputs=serialize_inputs)


class FXReport:
    """All graphs of a program, in the order in which Dynamo made them."""

    def __init__(self, graphs: Sequence[FXGraphReport]):
        self.fx_graph_reports = list(graphs)

    def __str__(self) -> str:
        return "\n".join([f"{len(self.fx_graph_reports)} graphs:", *(f"  {r}" for r in self.fx_graph_reports)])


def _metas_of(gm: fx.GraphModule) -> list[Any]:
    return [input_to_example_input_meta(example_value(n)) for n in gm.graph.nodes if n.op == "placeholder"]


def fx_report(fn: Callable, **torch_compile_kwargs: Any) -> Callable[..., FXReport]:
    """A function that runs `fn` once on its arguments, eagerly under Dynamo, and reports the graphs found.

    Raises: ThunderValueError for something compiled already.
    """
    if isinstance(fn, ThunderFXCompiledObject) or hasattr(fn, "_lc_cd"):
        raise ThunderValueError(f"fx_report takes what is not compiled yet, not {fn}")

    def reported(*args: Any, **kwargs: Any) -> FXReport:
        graphs: list[FXGraphReport] = []

        def collect(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable:
            metas = [input_to_example_input_meta(e) for e in example_inputs]
            graphs.append(FXGraphReport(gm, f"graph{len(graphs)}", metas))
            return gm.forward

        torch.compile(fn, backend=collect, **torch_compile_kwargs)(*args, **kwargs)
        return FXReport(graphs)

    return reported


class ThunderSplitGraphReport(FXGraphReport):
    """A piece that thunder runs.

    Attributes:
        compiled_fn: the compiled piece.
        split_reason: why its graph was split, as text.
        fwd_trc, bwd_trc: final traces; `bwd_trc` is None without backward.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        graph_name: str,
        compiled_fn: ThunderPiece,
        thunder_options: dict[str, Any],
        split_reason: str,
    ):
        super().__init__(graph, graph_name, _metas_of(graph))
        self.compiled_fn = compiled_fn
        self.thunder_options = thunder_options
        self.split_reason = split_reason
        stats = compiled_fn._lc_cs
        self.fwd_trc: TraceCtx = stats.last_traces[-1]
        self.bwd_trc: TraceCtx | None = stats.last_backward_traces[-1] if stats.last_backward_traces else None

    def write_thunder_repro(
        self, folder: str | os.PathLike, use_benchmark: bool = False, serialize_inputs: bool = False
    ) -> Path:
        """`write_repro` for `thunder.jit` with the options that the piece was compiled with."""
        return self.write_repro(
            folder, "thunder", use_benchmark=use_benchmark, serialize_inputs=serialize_inputs,
            thunder_options=self.thunder_options, extra_comment_str=self.split_reason,
        )  # fmt: skip


class ThunderFXGraphReport(FXGraphReport):
    """A graph and the pieces of it that thunder runs."""

    def __init__(self, report: FXGraphReport, split_reason: str, subgraph_reports: Sequence[ThunderSplitGraphReport]):
        super().__init__(report.graph, report.graph_name, report.example_input_meta)
        self.split_reason = split_reason
        self.subgraph_reports = list(subgraph_reports)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), self.split_reason, *(f"  {r}" for r in self.subgraph_reports)])


def analyze_thunder_splits(report: FXGraphReport, **thunder_options: Any) -> ThunderFXGraphReport:
    """How thunder splits a graph with the given options of `ThunderCompiler`. Nothing is run."""
    backend = ThunderCompiler(**thunder_options)
    examples = [example_value(n) for n in report.graph.graph.nodes if n.op == "placeholder"]
    mode = next((e.fake_mode for e in examples if isinstance(e, FakeTensor)), None)
    with nullcontext() if mode is None else fake_mode_of_tracing(mode):
        backend(report.graph, examples)
    pieces: list[ThunderSplitGraphReport] = []
    reasons = []
    for info in backend.subgraph_infos:
        reason = get_split_reasons_string(info)
        reasons.append(reason)
        for gm, compiled in info.submodule_to_compiled_functions.items():
            if isinstance(compiled.compiled_fn, ThunderPiece):
                name = f"{report.graph_name}_thunder_{len(pieces)}"
                pieces.append(ThunderSplitGraphReport(gm, name, compiled.compiled_fn, backend.thunder_options, reason))
    return ThunderFXGraphReport(report, "".join(reasons), pieces)
