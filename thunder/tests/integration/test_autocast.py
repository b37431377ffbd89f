"""Autocast around and inside compiled programs: dtypes, values and gradients as in eager."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder

HALF = [torch.bfloat16, torch.float16]


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def assert_same_under(context: Any, fn: Any, *inputs: torch.Tensor, compiled: Any = None) -> Any:
    """Value, dtype and gradients of the compiled function are eager's."""
    compiled = compiled or thunder.jit(fn)
    results = []
    for f in (compiled, fn):
        copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        with context():
            out = f(*copies)
        out.float().square().sum().backward()
        results.append((out, [t.grad for t in copies]))
    (got, got_grads), (expected, expected_grads) = results
    assert got.dtype is expected.dtype
    torch.testing.assert_close(got, expected)
    for g, e in zip(got_grads, expected_grads, strict=True):
        assert (g is None) == (e is None)
        if e is not None:
            assert g.dtype is e.dtype
            torch.testing.assert_close(g, e)
    return compiled


def on(dtype: torch.dtype) -> Any:
    return lambda: torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "fn",
    [
        lambda a, w: a @ w,
        lambda a, w: F.linear(a, w.T),
        lambda a, w: (a @ w).softmax(-1),
        lambda a, w: (a @ w).relu() * 2 + a.sum(),
        lambda a, w: torch.cat([a @ w, a[:, :2]], 1),
        lambda a, w: F.layer_norm(a @ w, (5,)),
        lambda a, w: F.cross_entropy(a @ w, torch.tensor([0, 1, 2])),
        lambda a, w: torch.einsum("ij,jk->ik", a, w).exp(),
        lambda a, w: (a.double() @ w.double()) + 1,
        lambda a, w: torch.addmm(torch.ones(5), a, w),
        lambda a, w: (a @ w).log_softmax(-1).to(torch.float32),
    ],
    ids=["matmul", "linear", "softmax", "mixed", "cat", "norm", "loss", "einsum", "double", "addmm", "to"],
)
def test_around_the_call(fn, dtype):
    assert_same_under(on(dtype), fn, leaf(3, 4), leaf(4, 5, seed=1))


@pytest.mark.parametrize("dtype", HALF)
def test_inside_the_function(dtype):
    def fn(a, w):
        before = a @ w
        with torch.autocast("cpu", dtype=dtype):
            inner = a @ w
            with torch.autocast("cpu", enabled=False):
                exact = inner.float() @ torch.ones(5, 5)
        return before + inner + exact

    assert_same_under(contextlib.nullcontext, fn, leaf(3, 4), leaf(4, 5, seed=1))


def test_decorator():
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def fn(a, w):
        return a @ w

    assert_same_under(contextlib.nullcontext, fn, leaf(3, 4), leaf(4, 5, seed=1))


def test_on_off_on():
    fn = lambda a, w: (a @ w).tanh()  # noqa: E731
    compiled = thunder.jit(fn)
    for context in (contextlib.nullcontext, on(torch.bfloat16), contextlib.nullcontext, on(torch.bfloat16)):
        assert_same_under(context, fn, leaf(3, 4), leaf(4, 5, seed=1), compiled=compiled)
    assert thunder.cache_misses(compiled) == 2


def test_disabled_region_inside_an_enabled_one():
    def fn(a, w):
        with torch.autocast("cpu", enabled=False):
            return a @ w

    assert_same_under(on(torch.bfloat16), fn, leaf(3, 4), leaf(4, 5, seed=1))


def test_state_after_the_call():
    compiled = thunder.jit(lambda a, w: a @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(leaf(3, 4), leaf(4, 5))
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x, y):
        h = F.gelu(self.norm(self.conv(x))).mean(-1)
        return F.cross_entropy(self.out(h), y)


@pytest.mark.parametrize("where", ["around", "inside backward too"])
def test_training_step_of_a_module(where):
    torch.manual_seed(0)
    eager = Net()
    compiled = thunder.jit(copy.deepcopy(eager))
    x, y = torch.randn(5, 2, 8), torch.tensor([0, 1, 2, 0, 1])
    losses = []
    for m in (eager, compiled):
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        trail = []
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = m(x, y)
                if where != "around":
                    loss.backward()
            if where == "around":
                loss.backward()
            opt.step()
            trail.append(loss.detach())
        losses.append(torch.stack(trail))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=1e-2)
    assert thunder.cache_misses(compiled) == 1
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert q.dtype is torch.float32
        assert q.grad.dtype is torch.float32
        torch.testing.assert_close(q, p, rtol=2e-2, atol=2e-2)


def test_with_no_grad():
    fn = lambda a, w: a @ w  # noqa: E731
    compiled = thunder.jit(fn)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(leaf(3, 4), leaf(4, 5))
        assert out.dtype is torch.bfloat16
        assert not out.requires_grad
        torch.testing.assert_close(out, fn(leaf(3, 4), leaf(4, 5)))


def test_in_place_and_views():
    def fn(a, w):
        h = a @ w
        h.mul_(2)
        h[0] = h[1] + 1
        return h.T

    assert_same_under(on(torch.bfloat16), fn, leaf(3, 4), leaf(4, 5, seed=1))


def test_attention():
    def fn(q, k):
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    assert_same_under(on(torch.bfloat16), fn, leaf(1, 2, 4, 8), leaf(1, 2, 4, 8, seed=1))


def test_inputs_in_lower_precision():
    fn = lambda a, w: a @ w + 1  # noqa: E731
    assert_same_under(on(torch.bfloat16), fn, leaf(3, 4, dtype=torch.bfloat16), leaf(4, 5, seed=1))
