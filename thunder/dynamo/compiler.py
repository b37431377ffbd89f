"""`ThunderCompiler`, a backend for torch.compile, and `thunderfx`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.log import get_logger
from thunder.core.options import SHARP_EDGES_OPTIONS, CompileOptions, resolve_cache_option, resolve_sharp_edges_option
from thunder.core.torch_compat import dynamo_compat
from thunder.core.trace import TraceCtx
from thunder.core.transform_base import Transform
from thunder.dynamo.pieces import PieceCompiler, SplitProgram, ThunderPiece
from thunder.dynamo.repro import write_reproducers
from thunder.dynamo.utils import CompilerType, SubgraphInfo, get_split_reasons_string, input_to_example_input_meta
from thunder.extend.registry import resolve_executors
from thunder.frontend.capture import CaptureSettings
from thunder.frontend.records import CompileData

_log = get_logger("split")

FALLBACKS = ("auto", "inductor", "eager")
_JIT_KEYWORDS = frozenset(
    {"langctx", "executors", "sharp_edges", "cache", "disable_torch_autograd", "transforms", "debug_options"}
)
_TORCH_COMPILE_KEYWORDS = frozenset(inspect.signature(torch.compile).parameters) - {"model", "backend", "disable"}


class ThunderCompiler:
    """A backend for `torch.compile`: thunder runs what it can of each graph, eager or Inductor the rest.

    Args:
        fallback: who runs what thunder cannot: "eager", "inductor", or "auto" (Inductor for pieces that are large).
        thunder_options: keywords of `thunder.jit`, compile options among them. `fusion_type` is "dataflow" by default.

    Attributes:
        thunder_options: as given, with the defaults.
        subgraph_infos: what became of each graph so far, in the order of compilation.

    Raises:
        TypeError: an option is not known or has the wrong type.
        ValueError: an option's value is not allowed.
    """

    def __init__(self, *, fallback: str = "auto", **thunder_options: Any) -> None:
        if fallback not in FALLBACKS:
            raise ThunderValueError(f"fallback must be one of {', '.join(FALLBACKS)}, but got {fallback!r}")
        dynamo_compat().watch_custom_functions()
        self.fallback = fallback
        self.thunder_options = {"fusion_type": "dataflow", "thunderfx_disable_split_autograd": True, **thunder_options}
        jit_options = {k: v for k, v in self.thunder_options.items() if k in _JIT_KEYWORDS}
        compile_options = {k: v for k, v in self.thunder_options.items() if k not in _JIT_KEYWORDS}
        options = CompileOptions.from_kwargs(compile_options)
        sharp_edges = resolve_sharp_edges_option(jit_options.get("sharp_edges"))
        if sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW:
            raise ThunderValueError("sharp_edges is for thunder.jit: a backend is not told what torch.compile guards")
        transforms = tuple(jit_options.get("transforms") or ())
        for t in transforms:
            if not isinstance(t, Transform):
                raise ThunderValueError(f"transforms must be Transform instances, not {t!r} of type {type(t).__name__}")
        self._data = CompileData(
            fn=self,
            executors_list=resolve_executors(jit_options.get("executors")),
            cache_option=resolve_cache_option(jit_options.get("cache")),
            sharp_edges=sharp_edges,
            disable_torch_autograd_support=bool(jit_options.get("disable_torch_autograd", False)),
            langctx=jit_options.get("langctx"),
            debug_options=jit_options.get("debug_options"),
            compile_options=compile_options,
            options=options,
            transforms=transforms,
        )
        self._settings = CaptureSettings(
            options=options,
            executors=self._data.executors_list,
            transforms=transforms,
            disable_torch_autograd=self._data.disable_torch_autograd_support,
        )
        self.subgraph_infos: list[SubgraphInfo] = []

    def __call__(self, gm: fx.GraphModule, sample_args: Sequence[Any]) -> Callable:
        """Compiles one graph; called by Dynamo."""
        program = PieceCompiler(gm, sample_args, self._settings, self._data, self.fallback).compile()
        info = _describe(gm, program)
        self.subgraph_infos.append(info)
        if info.split_reasons:
            _log.debug("graph %d: %s", len(self.subgraph_infos) - 1, get_split_reasons_string(info))
        return program.entry

    def save_reproducer_to_folder(
        self, reproducer_folder: str | os.PathLike, use_pytest_benchmark: bool = False, serialize_inputs: bool = False
    ) -> None:
        """Writes a script for each piece that thunder runs: `graphI_thunder_J_repro.py`, or `..._benchmark.py`.

        Args:
            reproducer_folder: made if it is not there.
            use_pytest_benchmark: the script compares the piece's speed with eager's instead of running it once.
            serialize_inputs: inputs with the same values at each run of the script, stored beside it.

        Raises: TypeError if nothing has been compiled yet.
        """
        if not self.subgraph_infos:
            raise ThunderTypeError(f"{self} has not been called yet, so there is nothing to reproduce")
        write_reproducers(
            self.subgraph_infos,
            reproducer_folder,
            self.thunder_options,
            benchmark=use_pytest_benchmark,
            serialize=serialize_inputs,
        )


def _describe(gm: fx.GraphModule, program: SplitProgram) -> SubgraphInfo:
    thunder = [p for p in program.pieces if program.compiled[p].compiler is CompilerType.THUNDER]
    return SubgraphInfo(
        original_graph_module=gm,
        original_split_graph_module=program.original,
        split_graph_module=program.split,
        thunder_compiled_fns=[program.compiled[p].compiled_fn for p in thunder],
        thunder_compiled_fns_example_inputs=[[input_to_example_input_meta(e) for e in p.examples] for p in thunder],
        submodule_to_compiled_functions={p.module: program.compiled[p] for p in program.pieces if p.module is not None},
        split_reasons=list(program.reasons.values()),
    )


class ThunderFXCompiledObject:
    """A function or module compiled by `thunderfx`; called as the original is. Its attributes are the original's."""

    def __init__(self, backend: ThunderCompiler, func: Callable):
        self._backend = backend
        self._func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("_func", "_backend"):
            raise AttributeError(name)
        return getattr(self._func, name)

    def _pieces(self) -> list[ThunderPiece]:
        infos = self._backend.subgraph_infos
        if not infos:
            raise ThunderTypeError("the compiled object has not been called yet, so it has no traces")
        return [fn for info in infos for fn in info.thunder_compiled_fns or ()]

    @property
    def last_traces(self) -> list[TraceCtx]:
        """The final forward trace of each piece that thunder runs. TypeError before the first call."""
        return [fn._lc_cs.last_traces[-1] for fn in self._pieces()]

    @property
    def last_backward_traces(self) -> list[TraceCtx]:
        """The final backward trace of each piece that has one. TypeError before the first call."""
        return [fn._lc_cs.last_backward_traces[-1] for fn in self._pieces() if fn._lc_cs.last_backward_traces]


def get_torch_compile_kwargs(**kwargs: Any) -> dict[str, Any]:
    """The keywords that `torch.compile` takes."""
    return {k: v for k, v in kwargs.items() if k in _TORCH_COMPILE_KEYWORDS}


def get_thunder_jit_kwargs(**kwargs: Any) -> dict[str, Any]:
    """The keywords that `torch.compile` does not take."""
    return {k: v for k, v in kwargs.items() if k not in _TORCH_COMPILE_KEYWORDS}


def thunderfx(fn: Callable, /, **kwargs: Any) -> ThunderFXCompiledObject:
    """Compiles a function or module with Dynamo in front and thunder behind; graph breaks are allowed.

    Args:
        kwargs: keywords of `torch.compile` (such as `dynamic`, `fullgraph`) go there, all others to `ThunderCompiler`.

    Raises: as `ThunderCompiler`; TypeError where `fn` is not callable.
    """
    if not callable(fn):
        raise ThunderTypeError(f"thunderfx takes a function or a module, not {fn!r} of type {type(fn).__name__}")
    backend = ThunderCompiler(**get_thunder_jit_kwargs(**kwargs))
    return ThunderFXCompiledObject(backend, torch.compile(fn, backend=backend, **get_torch_compile_kwargs(**kwargs)))


def thunder_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None
) -> Callable:
    """What `torch.compile(model, backend="thunder", options={...})` calls. `options`: those of `ThunderCompiler`.

    Raises: ThunderValueError where a `mode` other than "default" is asked for.
    """
    if mode not in (None, "default"):
        raise ThunderValueError(f'the backend "thunder" has no mode {mode!r}')
    return ThunderCompiler(**(options or {}))(gm, example_inputs)
