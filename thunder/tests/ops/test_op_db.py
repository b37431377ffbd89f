"""torch's op_db: values, metadata, memory, writes and gradients of every operation, against eager."""

from __future__ import annotations

import pytest

from thunder.tests.ops.columns import COLUMNS, entries
from thunder.tests.ops.known_failures import ANY, KNOWN_FAILURES, reason_for
from thunder.tests.ops.suite import Result, groups, is_full, run, tier

pytestmark = pytest.mark.ops

_GROUP = 2 if is_full() else 10


def _problem(result: Result) -> str | None:
    """What is wrong with a result: a failure that nobody expects, or a success where a failure is expected."""
    outcome, reason = result.outcome, reason_for(result.name, result.column)
    where = f"{result.name}, {result.column}, sample {result.sample}"
    if not outcome.is_counted or outcome.status == "passed":
        return None
    return None if reason else f"{where}: {outcome.status} ({outcome.kind}) {outcome.message[:400]}"


def _stale(results: list[Result]) -> list[str]:
    """Failures that are expected of a whole entry and column, where every sample passes."""
    by_key: dict[tuple[str, str], set[str]] = {}
    for r in results:
        if r.outcome.is_counted:
            by_key.setdefault((r.name, r.column), set()).add(r.outcome.status)
    listed = {(f.name, f.column) for f in KNOWN_FAILURES if f.column != ANY and f.every_sample}
    passing = [key for key, statuses in by_key.items() if key in listed and statuses == {"passed"}]
    return [f"{name}, {column}: passes, though it is listed in known_failures" for name, column in passing]


@pytest.mark.parametrize("names", groups(_GROUP), ids=lambda names: names[0])
def test_operations(names: list[str]) -> None:
    columns, limit = tier()
    results = list(run(names, columns, limit))
    problems = [p for r in results if (p := _problem(r)) is not None] + _stale(results)
    assert not problems, "\n".join(problems)


def test_table_of_known_failures_names_what_exists() -> None:
    for failure in KNOWN_FAILURES:
        assert failure.name in entries(), failure
        assert failure.column == ANY or failure.column in COLUMNS, failure
        assert failure.reason


def test_each_entry_has_a_unique_name() -> None:
    assert len(entries()) > 650
