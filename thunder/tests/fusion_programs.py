"""Programs that show whether fusion keeps values, gradients, writes and random numbers, compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder


class Block(torch.nn.Module):
    """A transformer block with causal attention written out."""

    def __init__(self, width: int = 8, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * shape[-1] ** -0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ScatterInBackward(torch.autograd.Function):
    """Twice the input; its backward adds into a new tensor by an in-place scatter and writes to a saved one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        scale = torch.full_like(x, 2.0)
        ctx.save_for_backward(index, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        index, scale = ctx.saved_tensors
        out = torch.zeros_like(g)
        out.scatter_add_(0, index, g * scale)
        scale.mul_(0.5)
        out.add_(scale)
        return out.sin(), None


class Written(torch.nn.Module):
    """A custom function between in-place operations, on a buffer and on an intermediate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(4, 4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight).tanh()
        self.count.add_(y.detach().sum(0))
        y = ScatterInBackward.apply(y, torch.tensor([[1, 0, 3, 2]] * 4))
        y = y * self.count
        y[0] = y[1].exp()
        y.mul_(self.weight)
        return (y + 1) * self.count


class Checkpointed(torch.nn.Module):
    """A recomputed layer between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return self.second(x.sin().mul(2)).tanh() + x

        return checkpoint(inner, self.first(x).exp(), use_reentrant=False).cos()


class Dropped(torch.nn.Module):
    """Random operations, some of whose neighbours may be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x * self.weight, 0.5).exp() + torch.rand_like(x)
        return F.dropout(y.sin() * 2, 0.3) * x


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))


PROGRAMS: dict[str, tuple[Callable[[], torch.nn.Module], Sequence[int]]] = {
    "mlp": (mlp, (4, 4)),
    "block": (Block, (2, 3, 8)),
    "written": (Written, (4, 4)),
    "checkpointed": (Checkpointed, (4, 4)),
    "dropped": (Dropped, (4, 4)),
}


def outcome(model: torch.nn.Module, call: Callable, shape: Sequence[int]) -> dict[str, torch.Tensor]:
    """The result of one training step, the gradients and the buffers after it."""
    torch.manual_seed(1)
    x = torch.rand(shape).requires_grad_()
    torch.manual_seed(2)
    y = call(x)
    (y * y).sum().backward()
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters()}
    return {"result": y.detach(), "x.grad": x.grad, **gradients, **dict(model.named_buffers())}


def check_program(name: str, **options: Any) -> Any:
    """Compares a program under `thunder.jit(..., **options)` with eager; returns the compiled module."""
    make, shape = PROGRAMS[name]
    torch.manual_seed(0)
    expected_model = make()
    torch.manual_seed(0)
    model = make()
    expected = outcome(expected_model, expected_model, shape)
    compiled = thunder.jit(model, **options)
    actual = outcome(model, compiled, shape)
    assert actual.keys() == expected.keys()
    for what, value in expected.items():
        torch.testing.assert_close(actual[what], value, msg=lambda m, what=what: f"{what}: {m}")
    return compiled
