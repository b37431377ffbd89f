"""What every test runs under: full checks, one thread, seeded generators, fresh caches, unchanged global state."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator

import numpy
import pytest
import torch

from thunder.core.origin import Origin, current_origin
from thunder.core.tracing import get_tracectx, is_grad_enabled

# All of these are read when they are needed, and by child processes when they start.
_SCRATCH = tempfile.TemporaryDirectory(prefix="thunder-tests-")
os.environ.setdefault("THUNDER_CHECKS", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(_SCRATCH.name, "inductor"))
os.environ.setdefault("THUNDER_CACHE_DIR", os.path.join(_SCRATCH.name, "thunder"))
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def global_state() -> dict[str, object]:
    """What a test may change only for as long as it runs."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch._C._is_any_autocast_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "number of threads": torch.get_num_threads(),
        "torch function modes": torch.overrides._len_torch_function_stack(),
        "THUNDER_CHECKS": os.environ.get("THUNDER_CHECKS"),
        "current trace": get_tracectx(),
        "traced grad mode": is_grad_enabled(),
        "current origin": current_origin() == Origin(),
    }


@pytest.fixture(autouse=True)
def unchanged_global_state() -> Iterator[None]:
    """Fails a test that leaves the process other than it found it."""
    before = global_state()
    yield
    changed = {name: (before[name], now) for name, now in global_state().items() if now != before[name]}
    assert not changed, f"the test has changed global state (before, after): {changed}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers for a test, whatever ran before it."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_capture() -> Iterator[None]:
    """No compiled code of one test is met by another."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Ids without addresses, so that every worker collects the same tests."""
    if isinstance(val, str | int | float | bool | complex | type(None)):
        return None
    if " at 0x" not in repr(val):
        return None
    return getattr(val, "__name__", type(val).__name__)
