"""All tests of this folder run with the verifier at its strictest."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _strict_and_fresh(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("THUNDER_CHECKS", "2")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/inplace/" in str(item.path):
            item.add_marker(pytest.mark.inplace)
