"""What a compiled callable remembers: its settings (`CompileData`) and what happened (`CompileStats`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunder.core.options import CACHE_OPTIONS, SHARP_EDGES_OPTIONS, CompileOptions, DebugOptions
from thunder.core.trace import TraceCtx


@dataclass
class CompileData:
    """Settings of one `thunder.jit`."""

    fn: Callable
    executors_list: Sequence[Any] = ()
    cache_option: CACHE_OPTIONS = CACHE_OPTIONS.CONSTANT_VALUES
    sharp_edges: SHARP_EDGES_OPTIONS = SHARP_EDGES_OPTIONS.ALLOW
    disable_torch_autograd_support: bool = False
    langctx: Any = None
    debug_options: DebugOptions | None = None
    compile_options: dict[str, Any] = field(default_factory=dict)
    options: CompileOptions = field(default_factory=CompileOptions)
    transforms: Sequence[Any] = ()
    is_module: bool = False
    using_jit: bool = True


class CompileStats:
    """Counters, the traces of the program that ran last, and times in nanoseconds.

    calls: finished calls, those that raised included. cache_misses: calls for which no program was at hand.
    last_compile_reasons: what did not fit, by program, the last time that one was missing.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.cache_misses = 0
        self.last_program: Any = None
        self.last_compile_reasons: dict[str, list[str]] = {}
        self.last_interpreter_log: list[Any] = []
        self.last_interpreted_instructions: list[Any] = []
        self.programs: list[Any] = []
        self.last_trace_host_start = -1
        self.last_trace_host_stop = -1
        self.last_trace_tracing_start = -1
        self.last_trace_tracing_stop = -1
        self._lock = threading.Lock()

    def count(self, missed: bool) -> None:
        """Notes the end of one call."""
        with self._lock:
            self.calls += 1
            self.cache_misses += missed

    @property
    def cache_hits(self) -> int:
        return self.calls - self.cache_misses

    @property
    def interpreter_cache(self) -> list[Any]:
        """The compiled programs, oldest first."""
        return self.programs

    @property
    def cache(self) -> list[Any]:
        """The compiled programs, oldest first."""
        return self.programs

    @property
    def last_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.traces

    @property
    def last_computation(self) -> TraceCtx | None:
        """The trace that ran last, or None."""
        return self.last_traces[-1] if self.last_traces else None

    @property
    def last_backward_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.backward_traces

    @property
    def last_prologue_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.prologue_traces

    @property
    def last_prologue(self) -> TraceCtx | None:
        """What the program that ran last unpacks and checks, or None."""
        return self.last_prologue_traces[-1] if self.last_prologue_traces else None

    @property
    def last_epilogue_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.epilogue_traces

    @property
    def phase_times(self) -> dict[str, int]:
        """Nanoseconds of each phase of the last program's compilation, in order: "capture", "lowering", each pass."""
        return {} if self.last_program is None else dict(self.last_program.phase_ns)

    def last_trace_construction_time(self) -> int:
        """Nanoseconds of the last call that compiled, from call to result."""
        return self.last_trace_host_stop - self.last_trace_host_start

    def last_trace_tracing_time(self) -> int:
        """Nanoseconds of the last compilation: capture, passes and generation of code."""
        return self.last_trace_tracing_stop - self.last_trace_tracing_start

    def last_prologue_transformation_time(self) -> int:
        """Nanoseconds that the passes of the last compilation took."""
        return sum(ns for phase, ns in self.phase_times.items() if phase != "capture")
