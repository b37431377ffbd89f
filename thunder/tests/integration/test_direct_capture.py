"""Programs that are captured directly follow what changes around them, as those that Dynamo guards do."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

pytestmark = pytest.mark.integration

SCALE = 2.0
SETTINGS = {"bias": [1.0, 2.0]}


class Double(torch.autograd.Function):
    """Captured directly, since it is told about missing gradients."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return a * SCALE

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * SCALE


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.norm = nn.BatchNorm1d(3)
        self.factor = 2.0
        self.table = {"shift": 1.0}
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Double.apply(layer(x))
        return self.norm(x) * self.factor + self.table["shift"] + self.offset


def _set(**values: Any) -> Callable[[nn.Module], None]:
    return lambda m: [setattr(m, k, v) for k, v in values.items()] and None


MODULE_CHANGES: dict[str, Callable[[Any], Any]] = {
    "eval": lambda m: m.eval(),
    "attribute": _set(factor=5.0),
    "container": lambda m: m.table.update(shift=9.0),
    "buffer rebound": lambda m: setattr(m, "offset", torch.ones(3)),
    "parameter rebound": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.ones(3, 3))),
    "parameter written": lambda m: m.layers[1].weight.data.mul_(3),
    "parameter frozen": lambda m: m.layers[0].requires_grad_(False),
    "layer replaced": lambda m: m.layers.__setitem__(0, nn.Linear(3, 3, bias=False)),
    "layer appended": lambda m: m.layers.append(nn.Linear(3, 3)),
    "forward of a layer": lambda m: setattr(m.layers[0], "forward", lambda x: x + 7),
}


@pytest.mark.parametrize("change", list(MODULE_CHANGES))
def test_module_changes(change: str) -> None:
    torch.manual_seed(0)
    module = Net()
    compiled = thunder.jit(module)
    x = torch.rand(4, 3)
    compiled(x)
    MODULE_CHANGES[change](module)
    compiled.train(module.training)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    got = compiled(x)
    module.load_state_dict(state)
    torch.testing.assert_close(got, module(x))
    assert got.requires_grad


def vars_of(self: Any, **attributes: Any) -> None:
    vars(self).update(attributes)


def global_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 7.0)


def global_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "bias", [1.0, 5.0])


def default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("change", [global_number, global_container, default_dtype])
def test_changes_outside(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Double.apply(x) + SETTINGS["bias"][1] + torch.ones(3)

    compiled = thunder.jit(f)
    x = torch.rand(3, requires_grad=True)
    compiled(x)
    try:
        change(monkeypatch)
        got, want = compiled(x), f(x)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))


def test_a_global_that_only_shares_its_name_with_an_attribute_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings:
        scale_of_s = 2.0

    def f(x: torch.Tensor, s: Any) -> torch.Tensor:
        return Double.apply(x) * s.scale_of_s

    module_globals = f.__globals__
    assert "scale_of_s" in f.__code__.co_names
    compiled = thunder.jit(f)
    s, x = Settings(), torch.rand(3, requires_grad=True)
    for value in (1.0, 2.0):
        monkeypatch.setitem(module_globals, "scale_of_s", value)
        torch.testing.assert_close(compiled(x, s), f(x, s))
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("kind", [types.SimpleNamespace, type("Settings", (), {"__init__": vars_of})])
def test_attributes_of_arguments(kind: type) -> None:
    def f(x: torch.Tensor, s: Any) -> torch.Tensor:
        return Double.apply(x) * s.scale + s.bias

    compiled = thunder.jit(f)
    s, x = kind(scale=2.0, bias=torch.ones(3)), torch.rand(3, requires_grad=True)
    changes: list[dict[str, Any]] = [{}, {"scale": 3.0}, {"bias": torch.zeros(1)}, {}]
    for change in changes:
        vars(s).update(change)
        torch.testing.assert_close(compiled(x, s), f(x, s))
    assert thunder.cache_misses(compiled) == 3


def test_arguments_that_are_equal_by_value_are_compared_by_value() -> None:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        scale: float
        shifts: tuple[float, ...]

    def f(x: torch.Tensor, s: Settings) -> torch.Tensor:
        return Double.apply(x) * s.scale + s.shifts[0]

    compiled = thunder.jit(f)
    x = torch.rand(3, requires_grad=True)
    for scale in (2.0, 3.0, 2.0, 3.0):
        s = Settings(scale, (scale, 1.0))
        torch.testing.assert_close(compiled(x, s), f(x, s))
    assert thunder.cache_misses(compiled) == 2


def test_closures_partials_and_methods() -> None:
    class Holder:
        def __init__(self) -> None:
            self.k = 1.0

        def method(self, x: torch.Tensor, n: float) -> torch.Tensor:
            return Double.apply(x) * self.k * n * box[0]

    box, holder, x = [1.0], Holder(), torch.rand(3, requires_grad=True)
    fn = functools.partial(holder.method, n=3.0)
    compiled = thunder.jit(fn)
    for k, b in [(1.0, 1.0), (2.0, 1.0), (2.0, 4.0), (1.0, 1.0)]:
        holder.k, box[0] = k, b
        torch.testing.assert_close(compiled(x), fn(x))
    assert thunder.cache_misses(compiled) == 3


def test_autocast_and_inference_mode() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Double.apply(x @ x)

    compiled, x = thunder.jit(f), torch.rand(3, 3, requires_grad=True)
    assert compiled(x).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype is torch.bfloat16
    with torch.inference_mode():
        assert compiled(x).is_inference()
    with torch.no_grad():
        assert not compiled(x).requires_grad


def test_nothing_changed_compiles_nothing() -> None:
    compiled, x = thunder.jit(Net()), torch.rand(4, 3)
    for _ in range(3):
        compiled(x).sum().backward()
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 2
