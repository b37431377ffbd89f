"""What a pass is, and what runs one: timing, history, verification and logging live here and in no pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from thunder.core.compile_data import compile_options
from thunder.core.log import get_logger
from thunder.core.options import CompileOptions, env
from thunder.core.origin import origin
from thunder.core.trace import TraceCtx, TraceProvenance
from thunder.core.verify import verify

_log = get_logger("passes")


@dataclass
class PassContext:
    """What passes may read: options and executors. `history` collects the traces made, `phase_ns` the time of each."""

    options: CompileOptions = field(default_factory=CompileOptions)
    executors: Sequence[Any] = ()
    history: list[TraceCtx] = field(default_factory=list)
    phase_ns: dict[str, int] = field(default_factory=dict)
    observers: Sequence[Callable[[str, TraceCtx], None]] = ()
    check_level: int | None = None


@dataclass(frozen=True)
class Pass:
    """A rewrite: trace in, new trace out. The input trace is never changed."""

    name: ClassVar[str] = "pass"
    title: ClassVar[str] = ""
    stage: ClassVar[str] = "functional"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        raise NotImplementedError


@dataclass(frozen=True)
class FunctionPass(Pass):
    """A pass made of a function."""

    fn: Callable[[TraceCtx, PassContext], TraceCtx] = lambda trace, ctx: trace
    label: str = "pass"
    after: str = "functional"


def run_pass(p: Pass, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
    """Applies one pass: timed, recorded in the history, verified when checks are on."""
    label = getattr(p, "label", None) or p.name
    disabled = env("THUNDER_DISABLE_PASS")
    if label in disabled:
        return trace
    start = time.perf_counter_ns()
    with origin(pass_name=label), compile_options(ctx.options):
        new = p.fn(trace, ctx) if isinstance(p, FunctionPass) else p.apply(trace, ctx)
    elapsed = time.perf_counter_ns() - start
    ctx.phase_ns[label] = ctx.phase_ns.get(label, 0) + elapsed
    if new is trace:
        return trace
    title = p.title or label
    new.set_provenance(TraceProvenance(f"{title} (took {elapsed // 1_000_000} milliseconds)"))
    new.mark_complete()
    ctx.history.append(new)
    _log.debug("%s: %d -> %d nodes in %.2f ms", label, len(trace.bound_symbols), len(new.bound_symbols), elapsed / 1e6)
    level = env("THUNDER_CHECKS") if ctx.check_level is None else ctx.check_level
    if level:
        verify(new, pass_name=label, stage=getattr(p, "after", p.stage), level=level, before=trace)
    for observer in ctx.observers:
        observer(label, new)
    return new


def run_passes(passes: Sequence[Pass], trace: TraceCtx, ctx: PassContext) -> TraceCtx:
    """Applies passes in order."""
    for p in passes:
        trace = run_pass(p, trace, ctx)
    return trace
