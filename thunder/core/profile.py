"""Marks for profilers around the phases of a compilation and around a user's own code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function

from thunder.core.options import env


def profiling_enabled() -> bool:
    """Whether marks are made: `THUNDER_ANNOTATE_TRACES=1`."""
    return env("THUNDER_ANNOTATE_TRACES")


@contextmanager
def add_markers(msg: str) -> Iterator[None]:
    """A range called `msg` in torch's profile, and in the tools that it feeds, around the block, where marks are made.

    Raises: ValueError if `msg` has more than one line.
    """
    if "\n" in msg:
        raise ValueError(f"the name of a range in a profile is one line, not {msg!r}")
    if not profiling_enabled():
        yield
        return
    with record_function(msg):
        yield


annotate_for_profile = add_markers
"""The same, also as a decorator of functions and methods."""
