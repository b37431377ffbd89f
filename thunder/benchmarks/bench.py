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
from thunder.benchmarks.peers import INDUCTOR, PEERS, THUNDER, THUNDER_FUSED


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


@dataclass(frozen=True)
class Caches:
    """The folders in which compilers keep what they made."""

    inductor: Path
    thunder: Path

    @classmethod
    def below(cls, folder: Path) -> Caches:
        """Caches of their own in a folder."""
        return cls(folder / "inductor", folder / "thunder")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name the folders, which are made where they are missing."""
        for folder in (self.inductor, self.thunder):
            folder.mkdir(parents=True, exist_ok=True)
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.inductor),
            "TRITON_CACHE_DIR": str(self.inductor / "triton"),
            "THUNDER_CACHE_DIR": str(self.thunder),
        }


Report = Callable[[str], None]


def _keep_nothing(results: dict[str, Any]) -> None:
    return None


def run(
    plan: Plan, report: Report = lambda line: None, keep: Callable[[dict[str, Any]], None] = _keep_nothing
) -> dict[str, Any]:
    """All measurements of a plan; `report` gets a line per step taken, `keep` the results so far after each model.

    The repetitions go over all peers in turn, so that a change of the machine's speed meets every one of them.
    """
    results: dict[str, Any] = {"environment": environment(plan), "models": {}}
    report("call overhead")
    job = {"kind": "overhead", "peers": list(plan.peers), "repeats": plan.steady_repeats}
    results["overhead"] = _in_process(job, plan)
    for model in plan.models:
        with tempfile.TemporaryDirectory(prefix="thunder-bench-") as folder:
            results["models"][model] = _measure_model(model, plan, Path(folder), report)
        keep(results)
    return results


def _measure_model(model: str, plan: Plan, folder: Path, report: Report) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in plan.peers}
    for repeat in range(plan.first_repeats):
        for peer in plan.peers:
            report(f"{model}: first step, {peer} ({repeat + 1}/{plan.first_repeats})")
            job = {"kind": "first", "model": model, "peer": peer}
            caches = Caches.below(folder / f"{peer}-{repeat}")
            run = _in_process(job, plan, caches)
            if PEERS[peer].compiles_kernels and "error" not in run:
                again = _in_process(job, plan, caches)  # what the first process left is on disk
                run = {**run, "warm_disk": again} if "error" not in again else again
            found[peer].append(run)
    report(f"{model}: warm steps and memory")
    working = [peer for peer in plan.peers if "error" not in found[peer][-1]]
    job = {"kind": "steady", "model": model, "peers": working, "repeats": plan.steady_repeats}
    # Warm steps need no cold compiler: each peer finds what its last first step left.
    last = plan.first_repeats - 1
    caches = Caches(folder / f"{INDUCTOR}-{last}" / "inductor", folder / f"{THUNDER_FUSED}-{last}" / "thunder")
    steady = _in_process(job, plan, caches)
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


def _in_process(job: dict[str, Any], plan: Plan, caches: Caches | None = None) -> dict[str, Any]:
    """The result of a job in a new process; without `caches` its compilers start with empty ones."""
    with tempfile.TemporaryDirectory(prefix="thunder-bench-") as folder:
        caches = caches or Caches.below(Path(folder))
        job_path, result_path = Path(folder) / "job.json", Path(folder) / "result.json"
        job_path.write_text(json.dumps({**job, "device": plan.device, "threads": plan.threads}))
        command = [sys.executable, "-m", "thunder.benchmarks.worker", str(job_path), str(result_path)]
        variables = {**os.environ, **caches.variables, "THUNDER_CHECKS": "0"}
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=plan.timeout_s, check=False
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
