"""Compilation is linear in the length of the program: shown by counting calls, which no clock disturbs."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import pytest
import torch

import thunder
from thunder.benchmarks.measure import make_step

pytestmark = pytest.mark.integration

PACKAGE = str(Path(thunder.__file__).parent)
# Architecture §8: 8 → 64 layers at most 8.8 ×, that is 1.1 × the growth in depth.
ALLOWED = 1.1


def _calls(model: str) -> dict[str, int]:
    """How often each function of this package is called in the first step of a model, by file, line and name."""
    torch._dynamo.reset()
    step = make_step(model, "thunder")
    profiler = cProfile.Profile()
    profiler.enable()
    step()
    profiler.disable()
    counted: dict[str, int] = {}
    for (file, line, name), (_, calls, *_) in pstats.Stats(profiler).stats.items():
        if file.startswith(PACKAGE) and "benchmarks" not in file:
            counted[f"{Path(file).relative_to(PACKAGE)}:{line} {name}"] = calls
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("kind, shallow, deep", [("mlp", 4, 32), ("llama", 1, 4)])
def test_calls_grow_no_faster_than_depth(kind: str, shallow: int, deep: int) -> None:
    _calls(f"{kind}:1")  # fills the tables that later compilations share
    few, many = _calls(f"{kind}:{shallow}"), _calls(f"{kind}:{deep}")
    growth = ALLOWED * deep / shallow
    assert sum(many.values()) <= growth * sum(few.values())
    # Functions called a few times per layer at most are left to the sum: their counts are mostly constants. One layer
    # may do without what all others do (nothing before the first one needs a gradient).
    faster = {
        name: (few.get(name, 0), calls)
        for name, calls in many.items()
        if calls > 4 * deep and calls > growth * max(few.get(name, 0), shallow) * (1 + 1 / shallow)
    }
    assert not faster, f"calls at {shallow} and at {deep} layers: {faster}"
