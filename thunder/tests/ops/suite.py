"""Runs columns of the operator suite, in the fast tier of `make test` or the full one of `make test-ops`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thunder.tests.ops.columns import COLUMNS, entries
from thunder.tests.ops.harness import Outcome, check

# The fast tier: one sample an operation, forward and gradient.
FAST_COLUMNS = ("forward", "gradient")
FAST_SAMPLES = 1
FULL_SAMPLES = 10


@dataclass(frozen=True)
class Result:
    """The outcome of one sample: entry, column, number of the sample among all that the entry has."""

    name: str
    column: str
    sample: int
    outcome: Outcome


def is_full() -> bool:
    """Whether the full tier is asked for (THUNDER_OPS_TIER=full)."""
    return os.environ.get("THUNDER_OPS_TIER", "fast") == "full"


def tier() -> tuple[tuple[str, ...], int]:
    """The columns of the tier asked for, and the most samples that an entry contributes to each."""
    return (tuple(COLUMNS), FULL_SAMPLES) if is_full() else (FAST_COLUMNS, FAST_SAMPLES)


def run(names: Sequence[str], columns: Sequence[str], limit: int) -> Iterator[Result]:
    """The results of entries, one by one."""
    for name in names:
        for column in columns:
            for sample, call in COLUMNS[column](entries()[name], limit):
                yield Result(name, column, sample, check(call))


def groups(size: int) -> list[list[str]]:
    """The names of all entries, in groups that take a few seconds each."""
    names = sorted(entries())
    return [names[n : n + size] for n in range(0, len(names), size)]
