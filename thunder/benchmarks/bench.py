"""Runs the measurements: which process measures what, in which order, with which caches."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thunder.__about__ import __version__
from thunder.benchmarks.peers import THUNDER


@dataclass(frozen=True)
class Plan:
    """What is measured.

    models, peers: names as in `models` and `peers`.
    first_repeats: processes per model and peer that measure the first step.
    steady_repeats: rounds of warm steps.
    timeout_s: for one process; a peer that needs longer is reported so.
    """

    models: Sequence[str]
    peers: Sequence[str]
    first_repeats: int = 3
    steady_repeats: int = 15
    device: str = "cpu"
    threads: int | None = None
    timeout_s: float = 1200.0


Report = Callable[[str], None]


def run(plan: Plan, report: Report = lambda line: None) -> dict[str, Any]:
    """All measurements of a plan; `report` gets a line per step taken.

    The repetitions go over all peers in turn, so that a change of the machine's speed meets every one of them.
    """
    results: dict[str, Any] = {"environment": environment(plan), "models": {}}
    report("call overhead")
    results["overhead"] = _in_process({"kind": "overhead", "peers": list(plan.peers), "repeats": plan.steady_repeats}, plan)
    for model in plan.models:
        with tempfile.TemporaryDirectory(prefix="thunder-bench-") as folder:
            results["models"][model] = _measure_model(model, plan, Path(folder), report)
    return results


def _measure_model(model: str, plan: Plan, folder: Path, report: Report) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in plan.peers}
    for repeat in range(plan.first_repeats):
        for peer in plan.peers:
            report(f"{model}: first step, {peer} ({repeat + 1}/{plan.first_repeats})")
            cache = folder / f"{peer}-{repeat}"
            found[peer].append(_in_process({"kind": "first", "model": model, "peer": peer}, plan, cache))
    report(f"{model}: warm steps and memory")
    working = [peer for peer in plan.peers if "error" not in found[peer][-1]]
    job = {"kind": "steady", "model": model, "peers": working, "repeats": plan.steady_repeats}
    steady = _in_process(job, plan, folder / "steady")
    return {"first": {peer: _middle(runs) for peer, runs in found.items()}, "steady": steady}


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median first step, and the range of all."""
    failed = [run for run in runs if "error" in run]
    if failed:
        return failed[0]
    times = [run["first_s"] for run in runs]
    middle = statistics.median_low(times)
    chosen = next(run for run in runs if run["first_s"] == middle)
    return {**chosen, "fastest_s": min(times), "slowest_s": max(times)}


def _in_process(job: dict[str, Any], plan: Plan, cache: Path | None = None) -> dict[str, Any]:
    """The result of a job in a new process, whose compilers' caches are in `cache`, or in a new folder of its own."""
    with tempfile.TemporaryDirectory(prefix="thunder-bench-") as folder:
        cache = cache or Path(folder) / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        job_path, result_path = Path(folder) / "job.json", Path(folder) / "result.json"
        job_path.write_text(json.dumps({**job, "device": plan.device, "threads": plan.threads}))
        command = [sys.executable, "-m", "thunder.benchmarks.worker", str(job_path), str(result_path)]
        settings = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "THUNDER_CACHE_DIR": str(cache / "thunder"),
            "THUNDER_CHECKS": "0",
        }
        try:
            done = subprocess.run(
                command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=plan.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {plan.timeout_s:.0f} s"}
        if done.returncode != 0:
            return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        return json.loads(result_path.read_text())


def environment(plan: Plan) -> dict[str, Any]:
    """Versions and sizes of the machine that the numbers depend on."""
    return {
        "thunder": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": plan.threads or torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if plan.device == "cuda" else plan.device,
        "first_repeats": plan.first_repeats,
        "steady_repeats": plan.steady_repeats,
    }


def phase_shares(results: dict[str, Any], model: str) -> dict[str, float] | None:
    """Seconds of each of thunder's phases for a model, Dynamo's capture with the first run as the remainder."""
    first = results["models"][model]["first"].get(THUNDER)
    if first is None or "error" in first:
        return None
    phases = dict(first["phases_s"])
    phases["capture, guards, first run"] = first["first_s"] - sum(phases.values()) - first["second_s"]
    phases["one step"] = first["second_s"]
    return phases
