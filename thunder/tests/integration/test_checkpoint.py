"""torch.utils.checkpoint inside and around compiled programs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder


class Block(nn.Module):
    def __init__(self, width: int = 4, p: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.down(self.up(x).tanh()))


class Net(nn.Module):
    def __init__(self, use_reentrant: bool | None, p: float = 0.0):
        super().__init__()
        self.blocks = nn.ModuleList([Block(p=p) for _ in range(3)])
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.use_reentrant is None else checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


def step(model: nn.Module, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    out = model(x)
    out.square().sum().backward()
    return out


def assert_same(eager: nn.Module, compiled: nn.Module, x: torch.Tensor) -> None:
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.testing.assert_close(step(compiled, a), step(eager, b))
    torch.testing.assert_close(a.grad, b.grad)
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


def saved_intermediates(compiled: Any) -> int:
    """How many tensors the last forward saves, its inputs left out."""
    trace = thunder.last_traces(compiled)[-1]
    inputs = {p.name for p in trace.args}
    return sum(p.name not in inputs for p in trace.bound_symbols[-1].args[1])


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_checkpointed_blocks(use_reentrant, p):
    torch.manual_seed(0)
    eager = Net(use_reentrant, p)
    compiled = thunder.jit(copy.deepcopy(eager))
    assert_same(eager, compiled, torch.randn(3, 4))


def test_less_is_saved():
    x = torch.randn(3, 4)
    counts = []
    for use_reentrant in (None, False):
        compiled = thunder.jit(Net(use_reentrant))
        step(compiled, x)
        counts.append(saved_intermediates(compiled))
    assert counts[1] < counts[0]


def test_recomputation_is_in_the_backward_trace():
    compiled = thunder.jit(Net(False))
    step(compiled, torch.randn(3, 4))
    forward, backward = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    assert len([b for b in forward.bound_symbols if b.sym.name == "tanh"]) == 3
    assert len([b for b in backward.bound_symbols if b.sym.name == "tanh"]) == 3


def test_functions_with_keywords_and_several_results():
    def part(a, b, *, scale):
        return (a * b).sin() * scale, a.exp(), 3

    def fn(a, b):
        first, second, n = checkpoint(part, a, b, use_reentrant=False, scale=2.0)
        return (first * second).sum() * n

    grads = []
    for f in (fn, thunder.jit(fn)):
        a, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        f(a, b).backward()
        grads.append((a.grad, b.grad))
    torch.testing.assert_close(grads[1], grads[0])


def test_nested():
    def inner(a):
        return a.sin().exp()

    def outer(a):
        return checkpoint(inner, a, use_reentrant=False).cos() * a

    def fn(a):
        return checkpoint(outer, a, use_reentrant=False).sum()

    grads = []
    for f in (fn, thunder.jit(fn)):
        a = torch.linspace(0, 1, 4, requires_grad=True)
        f(a).backward()
        grads.append(a.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_without_gradients():
    model = Net(False)
    compiled = thunder.jit(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_around_a_compiled_module(use_reentrant):
    torch.manual_seed(0)
    eager = nn.Sequential(Block(p=0.5), Block())
    compiled = copy.deepcopy(eager)
    fast = thunder.jit(compiled)

    def around(model, params):
        x = torch.ones(2, 4, requires_grad=True)
        torch.manual_seed(3)
        checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        return [x.grad, *(p.grad for p in params)]

    torch.testing.assert_close(around(fast, compiled.parameters()), around(eager, eager.parameters()))


def test_random_state_after_checkpointed_dropout():
    states = []
    for make in (lambda m: m, thunder.jit):
        torch.manual_seed(0)
        model = make(Net(False, 0.5))
        torch.manual_seed(1)
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        states.append(torch.rand(3))
    torch.testing.assert_close(states[1], states[0])


def test_with_autocast():
    torch.manual_seed(0)
    eager = Net(False)
    compiled = thunder.jit(copy.deepcopy(eager))
    x = torch.randn(3, 4)
    grads = []
    for m in (eager, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(x)
        out.float().sum().backward()
        grads.append([p.grad for p in m.parameters()])
    torch.testing.assert_close(grads[1], grads[0], rtol=2e-2, atol=2e-2)
