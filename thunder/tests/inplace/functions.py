"""Custom autograd functions that programs of these tests call; their backwards write to what they can reach."""

from __future__ import annotations

from typing import Any

import torch


class ScaleInPlace(torch.autograd.Function):
    """Backward writes to a product of its gradient."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (a,) = ctx.saved_tensors
        r = g * a.cos()
        r.mul_(3).add_(g)
        return r


class WritesSaved(torch.autograd.Function):
    """Backward writes to an intermediate that forward kept on ctx."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.kept = a * b
        return ctx.kept.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        ctx.kept.mul_(0.5)
        return (g * ctx.kept).sum_to_size(g.shape), None


class WritesInput(torch.autograd.Function):
    """Backward writes to an input that forward kept on ctx, and returns it."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.b = b
        return a + b.sum()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        with torch.no_grad():
            ctx.b.detach().mul_(1.5)
        return g * ctx.b.sum(), None


class Dirty(torch.autograd.Function):
    """Forward writes to its input and says so."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


class Identity(torch.autograd.Function):
    """Gives its input back; the gradient is doubled."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g + g


class TwoOutputs(torch.autograd.Function):
    """One output with gradient, one without; both are kept."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple:
        first, second = a * b, a > b
        ctx.mark_non_differentiable(second)
        ctx.save_for_backward(first, second, a)
        return first, second

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: torch.Tensor) -> tuple:
        first, second, a = ctx.saved_tensors
        r = g.clone()
        r[second] = 0.25
        r.add_(first)
        return r.sum_to_size(a.shape), (g * a)


class ScatterRows(torch.autograd.Function):
    """Backward adds its gradient into a tensor of zeros, row by row."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.shape = a.shape
        return a[:1].clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        zeros = g.new_zeros(ctx.shape)
        zeros.index_add_(0, torch.zeros(1, dtype=torch.long), g)
        zeros[-1:].add_(g)
        return zeros


class Nested(torch.autograd.Function):
    """Forward and backward call other functions."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        out = ScaleInPlace.apply(a)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (out,) = ctx.saved_tensors
        return Identity.apply(g) * out
