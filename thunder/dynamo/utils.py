"""What is reported about a graph from Dynamo: its pieces, who runs them, and why it was split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from thunder.core.sizes import SYMBOLIC_TYPES, hint
from thunder.frontend.lowering import example_value
from thunder.torch.fakes import contiguous_strides


class CompilerType(Enum):
    """Who runs a piece of a graph."""

    THUNDER = auto()
    TORCH_INDUCTOR = auto()
    EAGER = auto()


@dataclass(frozen=True)
class CompiledFunction:
    """A compiled piece."""

    compiled_fn: Callable
    compiler: CompilerType


class SplitReasonType(Enum):
    """Why thunder does not run a node.

    UNSUPPORTED_NODE: it stands in a region (of torch.func, autocast, ...) that cannot be cut, or is no call.
    MISSING_OP_SUPPORT: thunder has no rule for the operation.
    EXCEPTION_PROXY_THUNDER_OP: its arguments or its result cannot be represented in a trace.
    EXCEPTION_META_THUNDER_OP: compiling it failed after it had been lowered.
    """

    UNSUPPORTED_NODE = auto()
    MISSING_OP_SUPPORT = auto()
    EXCEPTION_PROXY_THUNDER_OP = auto()
    EXCEPTION_META_THUNDER_OP = auto()


@dataclass(frozen=True)
class SplitReason:
    """Why one node is not run by thunder. `exception`: the text of the error met, if any; `node`: the node's name."""

    reason_type: SplitReasonType
    info: str | None
    exception: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.reason_type.name}: {self.info}"]
        return "\n  ".join(lines + (self.exception.splitlines() if self.exception else []))


@dataclass(frozen=True)
class ExampleInputMetaData:
    """Metadata from which an input can be made again. Sizes and strides are those at capture."""

    requires_grad: bool
    layout: torch.layout
    device: str | torch.device
    dtype: torch.dtype
    shape: list[int]
    storage_shape: list[int]
    strides: list[int]
    is_contiguous: bool
    min_val: int | None = field(default=None, compare=False, hash=False)
    max_val: int | None = field(default=None, compare=False, hash=False)
    offset: int = 0

    def stride(self) -> list[int]:
        return self.strides

    def storage_offset(self) -> int:
        return self.offset


@dataclass(frozen=True)
class SubgraphInfo:
    """One graph from Dynamo.

    original_graph_module: as it came.
    original_split_graph_module: calls a submodule for each piece, each of them a graph module.
    split_graph_module: the same with compiled pieces.
    thunder_compiled_fns, thunder_compiled_fns_example_inputs: the pieces that thunder runs, and their inputs' metadata.
    submodule_to_compiled_functions: piece to compiled piece.
    split_reasons: one for each node that thunder does not run.
    """

    original_graph_module: fx.GraphModule
    original_split_graph_module: fx.GraphModule | None
    split_graph_module: fx.GraphModule | None
    thunder_compiled_fns: list[Callable] | None
    thunder_compiled_fns_example_inputs: list[list[Any]] | None
    submodule_to_compiled_functions: dict[fx.GraphModule, CompiledFunction]
    split_reasons: list[SplitReason] | None = None


def _ints(values: Sequence[Any]) -> list[int]:
    """Sizes as ints; one that depends on data, which capture knows nothing of, counts as 1."""
    return [1 if (value := hint(v)) is None else int(value) for v in values]


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    """Whether elements lie in row-major order. Asked of numbers: a symbolic tensor would guard on the answer."""
    wanted = contiguous_strides(tuple(shape))
    return 0 in shape or all(n == 1 or s == w for n, s, w in zip(shape, strides, wanted, strict=True))


def input_to_example_input_meta(x: Any) -> Any:
    """A tensor's metadata, in tuples and lists too; a symbolic number as its value at capture; others as they are."""
    if isinstance(x, list | tuple):
        return type(x)(input_to_example_input_meta(v) for v in x)
    if isinstance(x, SYMBOLIC_TYPES):
        return hint(x)
    if not isinstance(x, torch.Tensor):
        return x
    shape, strides = _ints(x.shape), _ints(x.stride())
    extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return ExampleInputMetaData(
        requires_grad=x.requires_grad,
        layout=x.layout,
        device=str(x.device),
        dtype=x.dtype,
        shape=shape,
        storage_shape=[extent],
        strides=strides,
        is_contiguous=_is_contiguous(shape, strides),
    )


def example_input_meta_to_input(meta: Any) -> Any:
    """An input with the given metadata: standard normal where floating point, else small non-negative integers."""
    if isinstance(meta, list | tuple):
        return type(meta)(example_input_meta_to_input(m) for m in meta)
    if not isinstance(meta, ExampleInputMetaData):
        return meta
    size = meta.storage_shape[0]
    if meta.dtype.is_floating_point or meta.dtype.is_complex:
        storage = torch.randn(size, device=meta.device, dtype=torch.promote_types(meta.dtype, torch.float32)).to(
            meta.dtype
        )
    else:
        low, high = meta.min_val or 0, 2 if meta.max_val is None else meta.max_val + 1
        storage = torch.randint(low, high, (size,), device=meta.device).to(meta.dtype)
    return torch.as_strided(storage, meta.shape, meta.strides).requires_grad_(meta.requires_grad)


def has_symbolic_input(gm: fx.GraphModule) -> bool:
    """Whether sizes or numbers of the graph's inputs vary between calls."""

    def is_symbolic(x: Any) -> bool:
        if isinstance(x, torch.Tensor):
            return any(isinstance(s, torch.SymInt) for s in x.shape)
        return isinstance(x, SYMBOLIC_TYPES)

    return any(n.op == "placeholder" and is_symbolic(example_value(n)) for n in gm.graph.nodes)


def get_split_reasons_string(subgraph_info: SubgraphInfo) -> str:
    """The split reasons of a graph, numbered, as text."""
    reasons = subgraph_info.split_reasons or []
    if not reasons:
        return "The original graph is not split, and is entirely run by Thunder.\n"
    lines = ["The original graph is split, because Thunder does not run these nodes:"]
    lines += [f"  {n}. {reason}" for n, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n"


def get_thunder_module_names(subgraph_info: SubgraphInfo) -> list[str]:
    """Names of the pieces that thunder runs, in order."""
    split = subgraph_info.original_split_graph_module
    assert split is not None
    table = subgraph_info.submodule_to_compiled_functions
    return [n for n, m in split.named_children() if m in table and table[m].compiler is CompilerType.THUNDER]
