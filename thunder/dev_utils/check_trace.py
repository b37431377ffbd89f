"""The verifier as a function and as a list that checks what is put into it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder.core.trace import TraceCtx
from thunder.core.verify import verify

CHECK_VERSION = 3


def check_trace(trace: TraceCtx, *, version: int = CHECK_VERSION) -> None:
    """Raises TraceVerificationError (an AssertionError) unless a trace is valid at any stage of the pipeline.

    Args:
        version: 1 and 2 check structure; 3 also metadata, decompositions, origins and the printed source.
    """
    verify(trace, pass_name="check_trace", stage="captured", level=2 if version >= 3 else 1)


class CheckedListOfTraces(list):
    """A list of traces, each checked as it is added."""

    def __init__(self, traces: Iterable[TraceCtx] = ()):
        super().__init__()
        self.extend(traces)

    def append(self, trace: TraceCtx) -> None:
        """Adds a trace. Raises as `check_trace` does."""
        check_trace(trace)
        super().append(trace)

    def extend(self, traces: Iterable[TraceCtx]) -> None:
        """Adds traces. Raises as `check_trace` does; those before the invalid one have been added."""
        for trace in traces:
            self.append(trace)


__all__: list[Any] = ["CHECK_VERSION", "CheckedListOfTraces", "check_trace"]
