"""Benchmarks as classes: what a user writes to time a workload of their own with any way to compile.

    class Softmax(Benchmark):
        name, description, args = "softmax", "softmax over rows", (BenchmarkArg("rows", "how many"),)

        def __init__(self, rows: int = 128): ...
        def make_batch(self): return [torch.randn(self.rows, 64)], {}
        def fn(self): return lambda x: x.softmax(-1)

    statistics = run_benchmark(Softmax(), thunder.jit)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from thunder.benchmarks.models import MODELS, Workload, make
from thunder.core.pytree import tree_flatten


@dataclass(frozen=True)
class BenchmarkArg:
    """An argument of a benchmark's constructor."""

    name: str
    description: str


class Benchmark:
    """A callable and batches for it. A subclass with a `name` of its own is found by `list_benchmarks`."""

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    args: ClassVar[tuple[BenchmarkArg, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            benchmarks.append(cls)

    def __init__(self) -> None:
        self.devices: list[str] = ["cpu"]

    def make_batch(self) -> tuple[list, dict]:
        """New positional and keyword arguments for the callable."""
        raise NotImplementedError(f"{type(self).__name__}.make_batch")

    def fn(self, *args: Any, **kwargs: Any) -> Callable:
        """The callable to compile, new at each call."""
        raise NotImplementedError(f"{type(self).__name__}.fn")

    def postprocess_for_backward(self, out: Any) -> Any:
        """The tensor of a result that backward starts from; None for a benchmark without backward."""
        tensors = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.requires_grad]
        return tensors[0] if tensors else None


# The classes that `list_benchmarks` shows, in the order of their definition.
benchmarks: list[type[Benchmark]] = []


@dataclass(frozen=True)
class BenchmarkRunStatistics:
    """Nanoseconds of one iteration: the call, and the call with backward."""

    total_time: int
    start_time: int
    stop_time: int
    host_stop_time: int
    called_backward: bool


class ModelBenchmark(Benchmark):
    """A network of `python -m thunder.benchmarks`."""

    name = "model"
    description = "a network of the command line's tables, forward and backward"
    args = (
        BenchmarkArg("model", f"a name, with a number of layers if wanted ('llama:4'), of {', '.join(MODELS)}"),
        BenchmarkArg("device", "where parameters and batch are"),
    )

    def __init__(self, model: str = "mlp", device: str = "cpu"):
        super().__init__()
        self.model, self.devices = model, [device]
        self._workload: Workload = make(model, device)

    def make_batch(self) -> tuple[list, dict]:
        return list(self._workload.batch), {}

    def fn(self) -> Callable:
        return self._workload.model

    def postprocess_for_backward(self, out: Any) -> Any:
        return self._workload.loss(out)


def list_benchmarks(use_classname: bool = True) -> None:
    """Prints name and description of each benchmark; the class's name with `use_classname`."""
    for cls in benchmarks:
        print(f"{cls.__name__ if use_classname else cls.name}: {cls.description}")


def describe_benchmark(benchmark: type[Benchmark]) -> None:
    """Prints what a benchmark is and the arguments of its constructor."""
    lines = [f"{benchmark.name}: {benchmark.description}", *(f"  {a.name}: {a.description}" for a in benchmark.args)]
    print("\n".join(lines))


def run_benchmark(
    benchmark: Benchmark,
    constructor: Callable[[Callable], Callable],
    *,
    warmup_iters: int = 10,
    benchmark_iters: int = 20,
) -> Sequence[BenchmarkRunStatistics]:
    """Times a benchmark's callable as `constructor` compiles it.

    Args:
        constructor: from the callable to a compiled one, for example `thunder.jit`.
        warmup_iters: iterations that are run first and are not part of the result; the first of them compiles.
        benchmark_iters: iterations that are timed, at least 1.
    Returns: one entry per timed iteration; `median_ns` sums them up.
    """
    fn = constructor(benchmark.fn())
    for _ in range(warmup_iters):
        _iteration(benchmark, fn)
    return [_iteration(benchmark, fn) for _ in range(benchmark_iters)]


def median_ns(runs: Sequence[BenchmarkRunStatistics]) -> float:
    """The median of the iterations' total times."""
    return statistics.median(run.total_time for run in runs)


def _wait(devices: Sequence[str]) -> None:
    if any(str(d).startswith("cuda") for d in devices):
        torch.cuda.synchronize()


def _iteration(benchmark: Benchmark, fn: Callable) -> BenchmarkRunStatistics:
    args, kwargs = benchmark.make_batch()
    if isinstance(fn, torch.nn.Module):
        fn.zero_grad(set_to_none=True)
    _wait(benchmark.devices)
    start = time.perf_counter_ns()
    out = benchmark.postprocess_for_backward(fn(*args, **kwargs))
    called_backward = isinstance(out, Tensor) and out.requires_grad
    if called_backward:
        out.backward(torch.ones_like(out))
    host_stop = time.perf_counter_ns()
    _wait(benchmark.devices)
    stop = time.perf_counter_ns()
    return BenchmarkRunStatistics(stop - start, start, stop, host_stop, called_backward)
