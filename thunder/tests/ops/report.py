"""The share of torch's operator samples that pass, printed and written to docs/operators.md.

`python -m thunder.tests.ops.report [SAMPLES [COLUMN ...]]`: at most SAMPLES (2) an entry and column; all columns but
"jit", unless some are named.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from thunder.core.symbol import OpTags
from thunder.core.transforms.rules import find_rule, grad_rule
from thunder.extend import get_executor
from thunder.tests.ops.columns import COLUMNS, entries
from thunder.tests.ops.harness import copies, quiet
from thunder.tests.ops.known_failures import reason_for
from thunder.tests.ops.recorder import compile_call
from thunder.tests.ops.suite import Result, run
from thunder.torch.registry import symbol_for

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "operators.md"
_DTYPES = ("float64", "bfloat16", "int64", "bool", "complex64")
_NOT_PASSED = ("failed", "refused")


def _callable_of(name: str) -> object:
    """The torch function that an entry is about, found by its name; the entry's own callable where there is none."""
    value: object = torch
    for part in entries()[name].name.split("."):
        value = getattr(value, part, None)
    return value if callable(value) else entries()[name].op


def _kind(name: str) -> str:
    """Whether the operation has a hand-written declaration, and a hand-written gradient."""
    sym = symbol_for(_callable_of(name))
    own = "automatic" if sym.has_tag(OpTags.AUTO_REGISTERED) else "hand-written"
    return own + (", own gradient" if find_rule(sym) is not None or grad_rule(sym) is not None else "")


def executors_of(name: str) -> list[str]:
    """The executors, of those that come with thunder, that take the first sample, or all that it is made of.

    Empty where it cannot be captured.
    """
    call = next((call for _, call in COLUMNS["forward"](entries()[name], 1)), None)
    if call is None:
        return []
    try:
        with quiet(), torch.random.fork_rng(devices=()):
            graph, _ = compile_call(call.fn, *copies((call.args, call.kwargs)))
    except Exception:
        return []
    (program,) = graph.programs.values()
    nodes = [n for n in program.traces[0].bound_symbols if n.sym.torch_fn is not None]
    fusers = [get_executor("torchcompile"), get_executor("sdpa")]
    return ["torch", *(e.name for e in fusers if nodes and all(e.can_execute_or_fuse(n) for n in nodes))]


def shares(results: Iterable[Result]) -> dict[str, tuple[int, int]]:
    """For each column: samples that pass, samples that count."""
    passed: Counter = Counter()
    counted: Counter = Counter()
    for r in results:
        if r.outcome.is_counted:
            counted[r.column] += 1
            passed[r.column] += r.outcome.status == "passed"
    return {c: (passed[c], counted[c]) for c in COLUMNS if counted[c]}


def _share(passed: int, counted: int) -> str:
    return f"{100 * passed / counted:.2f} %"


def _cell(results: Sequence[Result], column: str) -> str:
    counted = [r for r in results if r.column == column and r.outcome.is_counted]
    if not counted:
        return ""
    passed = sum(r.outcome.status == "passed" for r in counted)
    return "yes" if passed == len(counted) else "no" if passed == 0 else f"{passed} of {len(counted)}"


def _page(results: Sequence[Result], limit: int) -> str:
    version = torch.__version__.split("+")[0]
    lines = [
        *("---", "orphan: true", "---", ""),
        "# Operators",
        "",
        f"Written by `make ops-report`: torch {version}, CPU, at most {limit} samples an entry of",
        "torch's own `op_db` and column. A sample passes if values, dtype, shape, strides, memory shared, arguments",
        "written (and gradients) are those of eager. Samples that eager refuses do not count. An operation is",
        "hand-written, or registered automatically when it is first met.",
        "",
        "| column | samples | pass | share |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {c} | {n} | {p} | {_share(p, n)} |" for c, (p, n) in shares(results).items()]
    lines += ["", "## What does not pass", "", "| operation | columns | reason |", "| --- | --- | --- |"]
    failed: dict[str, list[Result]] = {}
    by_name: dict[str, list[Result]] = {}
    for r in results:
        by_name.setdefault(r.name, []).append(r)
        if r.outcome.status in _NOT_PASSED:
            failed.setdefault(r.name, []).append(r)
    for name, bad in sorted(failed.items()):
        columns = ", ".join(dict.fromkeys(r.column for r in bad))
        reasons = dict.fromkeys(reason_for(name, r.column) or f"not explained yet: {r.outcome.kind}" for r in bad)
        lines.append(f"| `{name}` | {columns} | {'; '.join(reasons)} |")
    lines += ["", "## Every operation", ""]
    lines.append("| operation | declared | executors | forward | dtypes besides float32 | gradient | in-place | out= |")
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, own in sorted(by_name.items()):
        dtypes = ", ".join(c for c in _DTYPES if _cell(own, c) == "yes")
        forward, *others = (_cell(own, c) for c in ("forward", "gradient", "in-place", "out"))
        cells = (f"`{name}`", _kind(name), ", ".join(executors_of(name)), forward, dtypes, *others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _results(name: str, columns: Sequence[str], limit: int) -> list[Result]:
    return list(run([name], columns, limit))


def main(arguments: Sequence[str]) -> None:
    """Runs the suite and writes the page."""
    limit = int(arguments[0]) if arguments else 2
    columns = tuple(arguments[1:]) or tuple(c for c in COLUMNS if c != "jit")
    torch.set_num_threads(1)
    processes: dict[str, Any] = {"mp_context": multiprocessing.get_context("spawn"), "max_workers": os.cpu_count()}
    with ProcessPoolExecutor(initializer=torch.set_num_threads, initargs=(1,), **processes) as pool:
        groups = pool.map(partial(_results, columns=columns, limit=limit), sorted(entries()))
        results = [r for group in groups for r in group]
    for column, (passed, counted) in shares(results).items():
        sys.stdout.write(f"{column:18} {passed:6} of {counted:6}  {_share(passed, counted)}\n")
    for r in results:
        if r.outcome.status in _NOT_PASSED and reason_for(r.name, r.column) is None:
            what = f"{r.outcome.status} ({r.outcome.kind})"
            text = r.outcome.message.partition("\n")[0][:120]
            sys.stdout.write(f"  {r.name}, {r.column}, sample {r.sample}: {what} {text}\n")
    _PAGE.write_text(_page(results, limit))


if __name__ == "__main__":
    main(sys.argv[1:])
