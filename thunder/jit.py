"""`thunder.jit`: a function or module, compiled."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder.core.compile_data import compile_data_and_stats
from thunder.core.errors import OpaqueRegionError, ThunderRuntimeError, ThunderTypeError, ThunderValueError
from thunder.core.log import get_logger
from thunder.core.options import (
    CACHE_OPTIONS,
    SHARP_EDGES_OPTIONS,
    CompileOptions,
    DebugOptions,
    env,
    resolve_cache_option,
    resolve_sharp_edges_option,
)
from thunder.core.torch_compat import dynamo_compat
from thunder.core.tracing import is_tracing
from thunder.core.transform_base import Transform
from thunder.dynamo.pieces import PieceCompiler
from thunder.extend.executor import Executor
from thunder.extend.registry import resolve_executors
from thunder.frontend.capture import CaptureSettings, CompiledGraph
from thunder.frontend.direct import DirectCapture, needs_direct_capture
from thunder.frontend.failures import (
    check_arguments,
    guard_reasons,
    is_capture_failure,
    program_error,
    raise_user_error,
)
from thunder.frontend.module import ThunderModule, remember_thunder_module
from thunder.frontend.records import CompileData, CompileStats
from thunder.frontend.sharp_edges import report, sharp_edges_of
from thunder.frontend.status import StatusLine
from thunder.pipeline import Program
from thunder.torch.value_reading import stand_in_for

_cache_log = get_logger("cache")
_recompile_log = get_logger("recompiles")
_split_log = get_logger("split")


@dataclass(frozen=True)
class JitSettings:
    """The arguments of one `jit` call, to be used again for copies."""

    langctx: Any = None
    executors: Any = None
    sharp_edges: SHARP_EDGES_OPTIONS = SHARP_EDGES_OPTIONS.ALLOW
    cache: CACHE_OPTIONS = CACHE_OPTIONS.CONSTANT_VALUES
    disable_torch_autograd: bool = False
    transforms: tuple = ()
    debug_options: DebugOptions | None = None
    compile_options: dict[str, Any] = field(default_factory=dict)

    def compile(self, fn: Callable) -> Callable:
        """`jit(fn)` with these settings."""
        return jit(
            fn,
            langctx=self.langctx,
            executors=self.executors,
            sharp_edges=self.sharp_edges,
            cache=self.cache,
            disable_torch_autograd=self.disable_torch_autograd,
            transforms=list(self.transforms),
            debug_options=self.debug_options,
            **self.compile_options,
        )

    def without_state(self) -> JitSettings:
        """The settings in a form that pickles: executors by name."""
        names = None if self.executors is None else [e.name if isinstance(e, Executor) else e for e in self.executors]
        return replace(self, executors=names)


class _Compiled:
    """The state behind a compiled callable: Dynamo's entry point, counters, settings."""

    def __init__(self, fn: Callable, target: Callable, settings: JitSettings):
        self.fn, self.target, self.settings = fn, target, settings
        self.options = CompileOptions.from_kwargs(settings.compile_options)
        self.data = CompileData(
            fn=fn,
            executors_list=resolve_executors(settings.executors),
            cache_option=settings.cache,
            sharp_edges=settings.sharp_edges,
            disable_torch_autograd_support=settings.disable_torch_autograd,
            langctx=settings.langctx,
            debug_options=settings.debug_options,
            compile_options=dict(settings.compile_options),
            options=self.options,
            transforms=settings.transforms,
            is_module=isinstance(fn, torch.nn.Module),
        )
        self.stats = CompileStats()
        self.capture = CaptureSettings(
            options=self.options,
            executors=self.data.executors_list,
            transforms=settings.transforms,
            disable_torch_autograd=settings.disable_torch_autograd,
            argument_names=_argument_names(fn),
            on_compile=self._compiled,
            on_run=self._ran,
        )
        self.direct: DirectCapture | None = None
        self._call = threading.local()
        self.entries: dict[tuple, Callable] = {(): self._make_entry()}

    @property
    def name(self) -> str:
        """What to call the callable in messages."""
        return getattr(self.fn, "__name__", None) or type(self.fn).__name__

    def _make_entry(self) -> Callable:
        return dynamo_compat().compile_with_dynamo(
            self.target,
            backend=_Backend(self.capture, self.data),
            dynamic=self.settings.cache is CACHE_OPTIONS.SYMBOLIC_VALUES,
            guard_filter=self._guard_filter(),
            around=self._capturing,
            guard_failed=self._guard_failed,
        )

    def _guard_filter(self) -> Callable | None:
        is_unguarded = self.settings.cache is CACHE_OPTIONS.SAME_INPUT
        if self.settings.sharp_edges is SHARP_EDGES_OPTIONS.ALLOW:
            return _no_guards if is_unguarded else None

        def inspected(guards: Sequence[Any]) -> list[bool]:
            self._call.sharp_edges = sharp_edges_of(guards, self.target)
            return [not is_unguarded] * len(guards)

        return inspected

    # What Dynamo and the backend report

    def _capturing(self, capture: Callable[[], Any]) -> Any:
        """One attempt of Dynamo at a program, and all that follows until it can run."""
        self._call.failed_guards, self._call.program, self._call.sharp_edges = [], None, []
        start = self._call.capture_start = time.perf_counter_ns()
        current = compile_data_and_stats(self.data, self.stats)
        with dynamo_compat().capture_setting(stand_in_for), StatusLine(f"compiling {self.name}"), current:
            try:
                result = capture()
            except Exception:
                self._call.missed = True
                raise
        if getattr(result, "guarded_code", result) is None:  # a frame that Dynamo leaves to Python
            return result
        self._call.missed = True
        report(self._call.sharp_edges, self.settings.sharp_edges, self.name)
        stop = time.perf_counter_ns()
        if (program := self._call.program) is not None:
            capture_ns = stop - start - sum(program.phase_ns.values())
            program.phase_ns = {"capture": capture_ns, **program.phase_ns}
        self.stats.last_trace_tracing_start, self.stats.last_trace_tracing_stop = start, stop
        _cache_log.debug("%s: compiled in %.1f ms", self.name, (stop - start) / 1e6)
        if failed := self._call.failed_guards:
            self.stats.last_compile_reasons = {f"program {n}": reasons for n, reasons in enumerate(failed)}
            lines = "".join(f"\n  program {n}: {'; '.join(reasons)}" for n, reasons in enumerate(failed))
            _recompile_log.debug("%s is compiled again, since this call fits none of its programs:%s", self.name, lines)
        return result

    def _guard_failed(self, reason: str) -> None:
        self._call.failed_guards.append(guard_reasons(reason))

    def _compiled(self, graph: CompiledGraph, program: Program) -> None:
        self._call.missed, self._call.program = True, program
        self.stats.programs.append(program)
        self.stats.last_program = program

    def _ran(self, program: Program) -> None:
        self.stats.last_program = program

    # Calls

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """One call of the compiled callable."""
        if is_tracing():
            return self.fn(*args, **kwargs)
        state = self._call
        state.missed = False
        if self.settings.cache is CACHE_OPTIONS.NO_CACHING:
            self.entries, self.direct = {(): self._make_entry()}, None
        shared = _shared_arguments(args, kwargs)
        entry = self.entries.get(shared) or self.entries.setdefault(shared, self._make_entry())
        try:
            try:
                if self.direct is not None:
                    return self.direct(*args, **kwargs)
                return entry(*args, **kwargs)
            except Exception as e:
                if not is_capture_failure(e):
                    if (error := program_error(e)) is None:
                        raise
                    raise error from e
                failure = e
            return self._failed(failure, args, kwargs)
        finally:
            self.stats.count(state.missed)
            if state.missed:
                self.stats.last_trace_host_start = getattr(state, "capture_start", -1)
                self.stats.last_trace_host_stop = time.perf_counter_ns()

    def _failed(self, e: BaseException, args: tuple, kwargs: dict) -> Any:
        if needs_direct_capture(e):
            self.direct = DirectCapture(self.target, self.capture, self.settings.sharp_edges)
            return self.direct(*args, **kwargs)
        if self.data.is_module:
            check_arguments(self.fn.forward, args, kwargs)
        return raise_user_error(e, self.target, args, kwargs)


def _argument_names(fn: Callable) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward, which is compiled through `*args`."""
    if not isinstance(fn, torch.nn.Module):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(fn.forward).parameters.values() if p.kind in kinds)


class _Backend:
    """What Dynamo calls with each captured graph.

    Regions that only torch can run (torch.func transforms, torch.cond and its kin) run in eager between compiled
    pieces.
    """

    def __init__(self, settings: CaptureSettings, data: CompileData):
        self.settings, self.data = settings, data

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable:
        try:
            return CompiledGraph(gm, self.settings, example_inputs).as_function()
        except OpaqueRegionError as e:
            _split_log.debug("the program runs in pieces: %s", e)
        return PieceCompiler(gm, example_inputs, self.settings, self.data, "eager").compile().entry


_COMPARED_BY_DYNAMO = frozenset(
    {torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None), torch.dtype, torch.device}
)

_CONTAINERS = frozenset({list, tuple, dict})


def _shared_arguments(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Which arguments, and values in containers among them, are one object: pairs of positions, the first ones first.

    Dynamo guards the identity of tensors. Of other objects it does not, so each such pattern has programs of its own.
    """
    if len(args) == 1 and not kwargs and type(args[0]) in _COMPARED_BY_DYNAMO:
        return ()
    objects: list[int] = []
    _collect_objects((*args, *kwargs.values()) if kwargs else args, objects, set())
    if len(objects) < 2 or len(set(objects)) == len(objects):
        return ()
    first: dict[int, int] = {}
    positions = [(first.setdefault(v, n), n) for n, v in enumerate(objects)]
    return tuple(pair for pair in positions if pair[0] != pair[1])


def _collect_objects(values: Iterable[Any], found: list[int], entered: set[int]) -> None:
    """Identities of what Dynamo does not compare, in a fixed order; of tuples only what they hold."""
    for v in values:
        kind = type(v)
        if kind in _COMPARED_BY_DYNAMO:
            continue
        if kind is not tuple:
            found.append(id(v))
        if kind in _CONTAINERS and id(v) not in entered:
            entered.add(id(v))
            _collect_objects(v.values() if kind is dict else v, found, entered)


def _no_guards(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)


def _check_arguments(fn: Any, transforms: Any, debug_options: Any) -> None:
    if not callable(fn):
        raise ThunderTypeError(f"thunder.jit takes a function or a module, not {fn!r} of type {type(fn).__name__}")
    if isinstance(fn, torch.nn.parallel.DistributedDataParallel):
        raise ThunderTypeError("compile the module first, then wrap it: DistributedDataParallel(thunder.jit(module))")
    if debug_options is not None and not isinstance(debug_options, DebugOptions):
        raise ThunderTypeError(f"debug_options must be an instance of DebugOptions, not {debug_options!r}")
    if transforms is not None and not isinstance(transforms, list | tuple):
        raise ThunderTypeError(f"transforms must be a list of Transform instances, not {transforms!r}")
    for t in transforms or ():
        if not isinstance(t, Transform):
            raise ThunderValueError(f"transforms must be Transform instances, not {t!r} of type {type(t).__name__}")


def jit(
    fn: Callable,
    /,
    *,
    langctx: Any = None,
    executors: Sequence[Executor | str] | None = None,
    sharp_edges: SHARP_EDGES_OPTIONS | str | None = None,
    cache: CACHE_OPTIONS | str | None = None,
    disable_torch_autograd: bool = False,
    transforms: list[Transform] | None = None,
    debug_options: DebugOptions | None = None,
    **compile_options: Any,
) -> Callable:
    """Compiles a function or module; the result is called as `fn` is.

    Args:
        fn: a callable, or an nn.Module, for which the result is a ThunderModule.
        executors: executors or their names, first one asked first; None for the default ones.
        sharp_edges: what to do where a program is compiled for a value (number, string, dtype, ...) of a global or a
            closure: "allow" (default; the value is guarded), "warn", or "error", which raises JITSharpEdgeError.
        cache: "constant values" (default): a program per input metadata and Python values. "symbolic values": sizes and
            ints may vary. "same input": compiled once, nothing checked again. "no caching": compiled at each call.
        disable_torch_autograd: outputs carry no gradient.
        transforms: applied in order.
        compile_options: see `thunder.core.options.option_docs()`; an unknown name is a TypeError.

    Raises:
        TypeError: `fn` is not callable, or an option is not known.
        ValueError: an executor, cache mode or transform is not valid.
    """
    _check_arguments(fn, transforms, debug_options)
    settings = JitSettings(
        langctx,
        executors,
        resolve_sharp_edges_option(sharp_edges),
        resolve_cache_option(cache if cache is not None else CACHE_OPTIONS.CONSTANT_VALUES),
        disable_torch_autograd,
        tuple(transforms or ()),
        debug_options,
        compile_options,
    )
    if isinstance(fn, torch.nn.Module):
        return _jit_module(fn, settings)
    # A compiled function is compiled from its source again, so its own cache plays no part.
    compiled = getattr(fn, "_lc_compiled", None)
    return _jit_function(fn if compiled is None else compiled.fn, settings)


def _jit_function(fn: Callable, settings: JitSettings) -> Callable:
    compiled = _Compiled(fn, fn, settings)
    if env("THUNDER_DISABLE"):
        return fn

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return compiled.call(*args, **kwargs)

    functools.update_wrapper(wrapper, fn)
    _attach(wrapper, compiled)
    wrapper._torchdynamo_inline = fn  # type: ignore[attr-defined]
    return wrapper


def _jit_module(model: torch.nn.Module, settings: JitSettings) -> ThunderModule:
    original = model._model if isinstance(model, ThunderModule) else model

    def call_module(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    compiled = _Compiled(original, call_module, settings)
    module = ThunderModule(original, original if env("THUNDER_DISABLE") else compiled.call)
    _attach(module, compiled)
    remember_thunder_module(module)
    for transform in settings.transforms:
        transform.transform_module(module)
    return module


def _attach(target: Any, compiled: _Compiled) -> None:
    target._lc_cd = compiled.data
    target._lc_cs = compiled.stats
    target._lc_transforms = list(compiled.settings.transforms)
    target._lc_settings = compiled.settings
    target._lc_compiled = compiled


def add_transform(cfn: Any, *, transform: Any, disable_torch_autograd_support: bool = False) -> Callable:
    """What `cfn` was compiled from, compiled with the same settings and one transform more, applied last.

    Args:
        cfn: a result of `jit`. It stays as it is.
        transform: a Transform, or several.
        disable_torch_autograd_support: outputs of the new one carry no gradient.

    Raises:
        RuntimeError: `cfn` is not compiled by thunder.
        ValueError: `transform` is no Transform.
    """
    compiled = getattr(cfn, "_lc_compiled", None)
    if compiled is None:
        raise ThunderRuntimeError(f"{cfn} is not compiled by thunder.jit")
    added = transform if isinstance(transform, list | tuple) else (transform,)
    settings = replace(
        compiled.settings,
        transforms=(*compiled.settings.transforms, *added),
        disable_torch_autograd=compiled.settings.disable_torch_autograd or disable_torch_autograd_support,
    )
    return settings.compile(compiled.fn)
