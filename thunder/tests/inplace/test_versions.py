"""Writes that eager's backward refuses are refused by the compiled backward, and only those."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.tests.inplace.harness import check, observe
from thunder.tests.inplace.test_functions import Exp


def leaf() -> tuple:
    return (torch.rand(3, 4, requires_grad=True),)


def saved_result(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.add_(1)
    return y


def saved_argument(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y * y
    y.zero_()
    return z


def saved_view(x: torch.Tensor) -> torch.Tensor:
    y = x.sigmoid()
    y[0].mul_(2)
    return y


def saved_by_function(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = Exp.apply(y)
    z.mul_(2)
    return z


def detached(x: torch.Tensor) -> torch.Tensor:
    y = x.tanh()
    y.detach().mul_(2)
    return y


def saved_input(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = x * buffer
    buffer.add_(1)
    return y


@pytest.mark.parametrize("fn", [saved_result, saved_argument, saved_view, saved_by_function, detached])
def test_backward_is_refused(fn: object) -> None:
    want = observe(fn, leaf())
    assert want.error == ("backward", RuntimeError)
    got = observe(thunder.jit(fn), leaf())
    assert got.error == want.error
    assert "modified by an inplace operation" in got.message


def test_written_input_that_a_gradient_needs() -> None:
    check(saved_input, lambda: (torch.rand(3, requires_grad=True), torch.rand(3)))


def test_only_the_outputs_that_eager_refuses() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = x.exp()
        y.add_(1)
        return y, x.sin()

    x = torch.rand(3, requires_grad=True)
    bad, good = thunder.jit(f)(x)
    good.sum().backward()
    assert torch.allclose(x.grad, x.detach().cos())
    bad, good = thunder.jit(f)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (bad + good).sum().backward()


def test_harmless_writes_are_not_refused() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = x * 2
        y.add_(1)
        z = y.exp()
        y.mul_(2)
        return y.sum(), z

    check(f, leaf)


def test_no_check_without_gradient() -> None:
    check(saved_result, lambda: (torch.rand(3),))


def test_write_after_the_call() -> None:
    def run(f: object) -> None:
        x = torch.rand(3, requires_grad=True)
        scale = torch.rand(3)
        out = f(x, scale)
        scale.add_(1)
        out.sum().backward()

    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale

    for fn in (f, thunder.jit(f)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(fn)
