"""One measurement in a process of its own: `python -m thunder.benchmarks.worker JOB.json RESULT.json`.

A job is `{"kind": "first" | "steady" | "overhead", "threads": int | None, "device": str, ...}` with the arguments of
the function of that kind in `measure`. A failure is a result, too: `{"error": text}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from thunder.benchmarks.measure import first_step, overhead, steady_steps

KINDS: dict[str, Callable[..., Any]] = {"first": first_step, "steady": steady_steps, "overhead": overhead}


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a job."""
    arguments = dict(job)
    measurement = KINDS[arguments.pop("kind")]
    threads = arguments.pop("threads")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return measurement(**arguments)
    except Exception as e:  # One peer that fails must not end the whole run: the table shows what happened.
        return {"error": f"{type(e).__name__}: {e}"}


def main(arguments: list[str]) -> int:
    job_path, result_path = map(Path, arguments)
    result_path.write_text(json.dumps(run_job(json.loads(job_path.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
