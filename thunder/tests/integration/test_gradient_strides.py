"""Gradients of any strides: those that reach a compiled backward, and those of values that were written in place."""

from __future__ import annotations

import pytest
import torch

import thunder


def _permuted_mean(o):
    return (o * torch.ones(1, dtype=o.dtype)).transpose(0, -1).sum(0).mean()


@pytest.mark.parametrize(
    "module, shape",
    [
        (torch.nn.GroupNorm(3, 6), (2, 6, 4)),
        (torch.nn.InstanceNorm1d(6, affine=True), (2, 6, 4)),
        (torch.nn.LayerNorm(4), (2, 6, 4)),
        (torch.nn.Conv1d(6, 3, 2), (2, 6, 4)),
        (torch.nn.Linear(4, 2), (2, 6, 4)),
        (torch.nn.Upsample(scale_factor=2, mode="linear"), (2, 6, 4)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, torch.nn.Module) else None,
)
@pytest.mark.parametrize("reduce", [torch.sum, _permuted_mean])
def test_cotangents_of_any_strides(module, shape, reduce):
    """`sum()` sends an expanded gradient; kernels that want a contiguous one must get it."""
    module = module.double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def gradients(fn):
        module.zero_grad()
        x.grad = None
        reduce(fn(x)).backward()
        return [x.grad.clone(), *(p.grad.clone() for p in module.parameters())]

    torch.testing.assert_close(gradients(thunder.jit(module)), gradients(module))


def test_written_values_of_any_strides():
    """What an in-place op leaves keeps the strides of its input, which a kernel may not want."""

    def f(x, w):
        y = x.t() * 1
        y = y.t().contiguous().t()
        y.mul_(2)
        return torch.nn.functional.group_norm(y[None].transpose(1, 2), 2, w)

    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    got = torch.autograd.grad(thunder.jit(f)(x, w).exp().sum(), (x, w))
    torch.testing.assert_close(got, torch.autograd.grad(f(x, w).exp().sum(), (x, w)))
