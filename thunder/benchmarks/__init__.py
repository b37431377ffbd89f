"""Benchmarks: `python -m thunder.benchmarks` compares eager, torch.compile and thunder side by side.

`Benchmark` and `run_benchmark` are for workloads of your own.
"""

from thunder.benchmarks.benchmark import (
    Benchmark,
    BenchmarkArg,
    BenchmarkRunStatistics,
    ModelBenchmark,
    benchmarks,
    describe_benchmark,
    list_benchmarks,
    median_ns,
    run_benchmark,
)

__all__ = [
    "Benchmark", "BenchmarkArg", "BenchmarkRunStatistics", "ModelBenchmark", "benchmarks", "describe_benchmark",
    "list_benchmarks", "median_ns", "run_benchmark",
]  # fmt: skip
