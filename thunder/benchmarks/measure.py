"""The measurements, each made in the process that calls them: first step, steady step, call overhead and memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from thunder.benchmarks.models import Workload, make
from thunder.benchmarks.peers import EAGER, PEERS
from thunder.introspection import compile_stats


@dataclass(frozen=True)
class Step:
    """One forward and backward of a compiled workload, gradients dropped beforehand."""

    compiled: Callable
    workload: Workload

    def __call__(self) -> Tensor:
        for p in self.workload.model.parameters():
            p.grad = None
        loss = self.workload.loss(self.compiled(*self.workload.batch))
        loss.backward()
        return loss.detach()


def _wait(workload: Workload) -> None:
    if workload.batch[0].is_cuda:
        torch.cuda.synchronize()


def make_step(model: str, peer: str, device: str = "cpu") -> Step:
    """The step of a model under a peer; nothing is compiled yet."""
    workload = make(model, device)
    return Step(PEERS[peer].compiler(workload.model), workload)


def _timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    _wait(step.workload)
    return time.perf_counter() - start


def first_step(model: str, peer: str, device: str = "cpu") -> dict[str, Any]:
    """Seconds to the first result, in a process that has compiled nothing yet.

    Returns: `setup_s`, the same for a module of one operation, which pays for imports and tables made on first use;
    `first_s`, the first forward and backward of the model after that; `second_s`, the one after; for thunder
    `phases_s`, the seconds of each of its phases, and `nodes`, the lines of the captured, forward and backward
    programs.
    """
    setup_s = _timed(make_step("tiny:1", peer, device))
    step = make_step(model, peer, device)
    gc.collect()
    first_s = _timed(step)
    result: dict[str, Any] = {"setup_s": setup_s, "first_s": first_s, "second_s": _timed(step)}
    stats = compile_stats(step.compiled)
    if stats is not None:
        result["phases_s"] = {phase: ns / 1e9 for phase, ns in stats.phase_times.items()}
        result["nodes"] = {
            "captured": len(stats.last_traces[0].bound_symbols),
            "forward": len(stats.last_traces[-1].bound_symbols),
            "backward": len(stats.last_backward_traces[-1].bound_symbols) if stats.last_backward_traces else 0,
        }
    return result


def _assert_same_gradients(expected: Step, actual: Step, peer: str) -> None:
    """What is timed must be right: raises AssertionError where the gradients are not those of eager."""
    theirs = dict(actual.workload.model.named_parameters())
    for name, p in expected.workload.model.named_parameters():
        torch.testing.assert_close(
            theirs[name].grad, p.grad, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{peer}: gradient of {name}: {m}"
        )


def steady_steps(model: str, peers: Sequence[str], repeats: int, device: str = "cpu") -> dict[str, dict[str, Any]]:
    """Seconds of warm steps and bytes of memory, all peers in one process and in turn, so that drifts meet all alike.

    Returns: per peer `step_s` (median), `fastest_s`, `ratio` (median over the rounds of the peer's time to eager's in
    the same round) and what `memory` gives.
    Raises:
        AssertionError: a peer's loss or gradients are not those of eager.
    """
    steps = {peer: make_step(model, peer, device) for peer in peers}
    reference = make_step(model, EAGER, device)
    expected = reference()
    for peer, step in steps.items():
        torch.testing.assert_close(step(), expected, rtol=1e-3, atol=1e-4)
        _assert_same_gradients(reference, step, peer)
        for _ in range(2):
            step()
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    calls = _calls_per_round(reference)
    for _ in range(repeats):
        for peer, step in steps.items():
            gc.collect()
            start = time.perf_counter()
            for _ in range(calls):
                step()
            _wait(step.workload)
            times[peer].append((time.perf_counter() - start) / calls)
    base = times.get(EAGER, next(iter(times.values())))
    return {
        peer: {
            "step_s": statistics.median(measured),
            "fastest_s": min(measured),
            "ratio": statistics.median(m / b for m, b in zip(measured, base)),
            **memory(steps[peer]),
        }
        for peer, measured in times.items()
    }


def _calls_per_round(step: Step, wanted_s: float = 0.05) -> int:
    """How many steps to time at once, so that a round takes some 50 ms."""
    return max(1, min(100, round(wanted_s / max(_timed(step), 1e-6))))


def overhead(peers: Sequence[str], repeats: int, device: str = "cpu", calls: int = 1000) -> dict[str, dict[str, float]]:
    """Microseconds per warm call of a function of two operations on four numbers.

    Returns: per peer `no_grad_us`, without autograd, `forward_us`, with it, and `step_us`, with backward. Each is the
    least of the rounds' means: nothing makes a call faster than it is.
    """
    steps = {peer: make_step("tiny:1", peer, device) for peer in peers}
    found: dict[str, dict[str, float]] = {peer: {} for peer in peers}

    def forward(step: Step) -> Callable[[], Any]:
        return lambda: step.compiled(*step.workload.batch)

    kinds = (("no_grad_us", False, forward), ("forward_us", True, forward), ("step_us", True, _itself))
    for label, grad, made in kinds:
        with torch.set_grad_enabled(grad):
            for step in steps.values():
                for _ in range(20):
                    made(step)()
            for _ in range(repeats):
                for peer, step in steps.items():
                    elapsed_us = _mean_s(made(step), calls) * 1e6
                    found[peer][label] = min(elapsed_us, found[peer].get(label, elapsed_us))
    return found


def _itself(step: Step) -> Step:
    return step


def _mean_s(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


# Memory


def memory(step: Step) -> dict[str, int]:
    """`saved_bytes`: what forward keeps for backward beyond parameters, buffers and inputs. `peak_bytes`: the most that
    is alive during a step beyond what was alive before it, gradients included."""
    return {"saved_bytes": saved_bytes(step), "peak_bytes": peak_bytes(step)}


def _storage(t: Tensor) -> tuple[int, int]:
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def saved_bytes(step: Step) -> int:
    """Bytes of the distinct storages that one forward saves, without those of parameters, buffers and inputs."""
    workload = step.workload
    known = [*workload.model.parameters(), *workload.model.buffers(), *workload.batch]
    inputs = {_storage(t)[0] for t in known}
    saved: dict[int, int] = {}
    # Held until the sum is made: memory that is freed and given out again would count once.
    alive: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        pointer, size = _storage(t)
        saved[pointer] = size
        alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = step.compiled(*workload.batch)
    # AOTAutograd hands some tensors to backward without telling autograd.
    for node in _graph_nodes(result.grad_fn):
        for t in getattr(node, "_tensors_no_vc_check", None) or ():
            pack(t)
    return sum(size for pointer, size in saved.items() if pointer not in inputs)


def _graph_nodes(root: Any) -> list[Any]:
    """All nodes of an autograd graph."""
    seen: dict[Any, None] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting.extend(n for n, _ in node.next_functions)
    return list(seen)


def peak_bytes(step: Step) -> int:
    """The most bytes that a step has allocated at one time and not given back."""
    step()
    workload = step.workload
    for p in workload.model.parameters():
        p.grad = None
    if workload.batch[0].is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    # Public views of the profile give sums per operation; the peak needs every single allocation in order.
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak

