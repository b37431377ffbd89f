"""What a compiled callable remembers: its settings (`CompileData`) and what happened (`CompileStats`)."""

from __future__ import annotations

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
    """Counters, the traces of the program that ran last, and times in nanoseconds."""

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

    @property
    def cache_hits(self) -> int:
        return self.calls - self.cache_misses

    @property
    def interpreter_cache(self) -> list[Any]:
        """The compiled programs, oldest first."""
        return self.programs

    @property
    def last_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.traces

    @property
    def last_backward_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.backward_traces

    @property
    def last_prologue_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.prologue_traces

    @property
    def last_epilogue_traces(self) -> list[TraceCtx]:
        return [] if self.last_program is None else self.last_program.epilogue_traces

    @property
    def phase_times(self) -> dict[str, int]:
        """Nanoseconds of each phase of the last program's compilation."""
        return {} if self.last_program is None else dict(self.last_program.phase_ns)

    def last_trace_construction_time(self) -> int:
        """Nanoseconds of the last compilation, capture included."""
        return self.last_trace_host_stop - self.last_trace_host_start
