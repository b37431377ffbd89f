"""All tests of this folder run with the verifier at its strictest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from thunder.executors import region_program
from thunder.executors.inductorex import region_table
from thunder.tests.fusers import uncompiled


@pytest.fixture(autouse=True)
def _strict_and_fresh(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("THUNDER_CHECKS", "2")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def uncompiled_regions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Regions of the `torchcompile` executor run as they are, which takes no C++ compiler."""
    region_table.clear()
    monkeypatch.setenv("THUNDER_CACHE_DIR", "none")
    monkeypatch.setattr(region_program, "compile_with_inductor", uncompiled)
    yield
    region_table.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/inplace/" in str(item.path):
            item.add_marker(pytest.mark.inplace)
