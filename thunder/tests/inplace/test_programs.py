"""In-place programs by kind: what is written, through what, and who looks at it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.errors import UnsupportedOpError
from thunder.tests.inplace.harness import REWRITES, check, check_module, every_rewrite, observe

Program = tuple[Callable, Callable]


def plain(*shapes: tuple) -> Callable:
    return lambda: tuple(torch.rand(s) for s in shapes)


def tracked(*shapes: tuple) -> Callable:
    """The first input is a leaf that requires grad."""
    return lambda: tuple(torch.rand(s).requires_grad_(n == 0) for n, s in enumerate(shapes))


def non_leaf(*shapes: tuple) -> Callable:
    """The first input requires grad and may be written to."""
    return lambda: tuple(
        torch.rand(s, requires_grad=True) * 1 if n == 0 else torch.rand(s) for n, s in enumerate(shapes)
    )


def lines(source: str, make: Callable) -> Program:
    """A program from its body; the arguments are called x, y and z."""
    body = "".join(f"    {line.strip()}\n" for line in source.strip().splitlines())
    space: dict[str, Any] = {"torch": torch, "F": F}
    for parameters in ("x", "x, y", "x, y, z"):
        if len(parameters.split(", ")) == len(make()):
            exec(f"def f({parameters}):\n{body}", space)
    return space["f"], make


def slices(*, overlap: bool) -> Callable:
    def make() -> tuple:
        base = torch.rand(4, 3)
        return (base[:3], base[1:]) if overlap else (base[:2], base[2:])

    return make


def same_twice() -> tuple:
    x = torch.rand(2, 3)
    return x, x


A, B = (2, 3), (3,)
PROGRAMS: dict[str, Program] = {
    "augmented assignment": lines("y = x * 2; y += 1; y -= x; y *= y.sum(); y /= 3; return y", tracked(A)),
    "augmented integer assignment": lines(
        "x += 1; x //= 2; x %= 3; x |= 4; x &= 6; x ^= 1; x <<= 1; x >>= 1; return x",
        lambda: (torch.arange(6),),
    ),
    "input": lines("x.add_(1); return x * 2", plain(A)),
    "input returned": lines("x.add_(1); return x", plain(A)),
    "input written and nothing returned": lines("x.mul_(2)", plain(A)),
    "non-leaf input with gradient": lines("x.mul_(y); return x.sin()", non_leaf(A, B)),
    "gradient flows into a buffer": lines("y.add_(x); return y * 2", tracked(A, A)),
    "gradient into a part of a buffer": lines("y[0] = x; return y.sin()", tracked(B, A)),
    "leaf in no_grad": lines("with torch.no_grad(): x.add_(1)\nreturn x * 2", tracked(A)),
    "non-leaf in no_grad": lines("y = x * 2\nwith torch.no_grad(): y.zero_()\nreturn y + x", tracked(A)),
    "data": lines("x.data.add_(1); return x * 2", tracked(A)),
    "detach": lines("y = x + 0; y.detach().mul_(3); return y * 2", tracked(A)),
    "detached view written with a gradient": lines("v = y.detach(); v += x; return v", tracked(A, A)),
    "view": lines("y = x * 1; v = y[0]; v.zero_(); return y, v", tracked(A)),
    "view of a view": lines("y = x * 1; y.t()[1].unsqueeze(0).mul_(2); return y", tracked(A)),
    "view of an input": lines("x[0].add_(1); return x, x[0]", plain(A)),
    "write before and after a view": lines("x.add_(1); v = x[1]; x.mul_(2); v.add_(3); return v, x", plain(A)),
    "overlapping views": lines("a = x[:2]; b = x[1:]; a.add_(1); b.mul_(2); a.sub_(b[0]); return a, b", plain((3, 2))),
    "permuted": lines("x.permute(1, 0).copy_(y); return x", plain(A, (3, 2))),
    "expanded": lines("y = x.expand(4, 3); x.add_(1); return y", plain(B)),
    "unfolded": lines("y = x * 1; y.unfold(0, 2, 2).mul_(2); return y", tracked((6,))),
    "folded over itself": lines("x.unfold(0, 2, 1).fill_(0.5); return x", plain((6,))),
    "as_strided": lines("x.as_strided((2,), (2,)).add_(1); return x", plain(A)),
    "diagonal": lines("x.diagonal().zero_(); return x", plain((3, 3))),
    "view as another dtype": lines("x.view(torch.int32).zero_(); return x", plain(A)),
    "real and imaginary parts": lines(
        "x.real.mul_(2); x.imag.add_(1); torch.view_as_real(x)[..., 0].sub_(1); return x",
        lambda: (torch.rand(3, dtype=torch.complex64),),
    ),
    "split": lines("a, b = (x * 1).split(1); c = a * 2; return a, b, c", tracked(A)),
    "split outputs of an input": lines("a, b = x.split(1); a.mul_(2); b.add_(a); return x", plain(A)),
    "chunk": lines("a, b = x.chunk(2, 1); b.zero_(); return x, a", plain((2, 4))),
    "unbind": lines("for row in x.unbind(0): row.mul_(2)\nreturn x", plain(A)),
    "loop": lines("for i in range(3): x[:, i].add_(i); y[i] = x[:, i].sum()\nreturn x, y", plain(A, B)),
    "write that no one reads": lines("y = x * 2; z = y * 1; z.add_(1); return y", tracked(A)),
    "item": lines("x[0, 1] = 5; x[1] = y; x[:, 0] = 7; x[..., -1] += 1; return x", plain(A, B)),
    "item by mask": lines("y = x * 1; y[x > 0.5] = 0.25; y[y < 0.1] = y.sum(); return y", tracked(A)),
    "item by index": lines("y = x * 1; y[[1, 0]] = x[[0, 1]] * 2; y[torch.tensor([0])] += 1; return y", tracked(A)),
    "item by index and slice": lines("x[torch.tensor([0, 1]), 1:] = y[:2]; x[None, 0] = 1; return x", plain(A, B)),
    "item with a step": lines("x[::2] = y[::2]; return x", plain((4,), (4,))),
    "out": lines("torch.add(x, y, out=z); torch.mul(z, 2, out=z); return z", plain(A, A, A)),
    "out, result kept": lines("r = torch.sin(x, out=y); r.add_(1); return r, y", plain(A, A)),
    "out is a view": lines("torch.sum(x, 0, out=y[0]); return y", plain(A, (2, 3))),
    "inplace=True": lines(
        "y = x - 0.5; F.relu(y, inplace=True); F.leaky_relu(y, 0.1, inplace=True); return y",
        tracked(A),
    ),
    "copy between dtypes": lines("x.copy_(y.double()); y.copy_(x.half()); return x, y", plain(A, A)),
    "copy with broadcasting": lines("y = torch.zeros(4, 3); y.copy_(x); return y", tracked(B)),
    "copy of a number": lines("x[0].copy_(torch.tensor(3)); return x", plain(A)),
    "copy into another order": lines("y.copy_(x); return y.view(-1)", plain(A, A)),
    "random": lines(
        "x.uniform_(); y = torch.empty_like(x).normal_(); x[0].bernoulli_(0.5); return x + y, F.dropout(x)",
        plain(A),
    ),
    "random with a gradient": lines("y = x * 1; y[0].uniform_(); return y", tracked(A)),
    "cache": lines("y[2:4] = x; return y[:4].sum(0), y", tracked(A, (5, 3))),
    "cache by index_copy_": lines("y.index_copy_(0, torch.tensor([3, 1]), x); return y * 2", plain(A, (5, 3))),
    "scatter": lines("y = x * 1; y.scatter_add_(0, torch.zeros(1, 3, dtype=torch.long), x[1:]); return y", tracked(A)),
    "same tensor twice": lines("x.add_(1); y.mul_(2); return x + y, y", same_twice),
    "disjoint slices": lines(
        "x[0].add_(1); y[1].mul_(2); v = x[1]; y.add_(1); return x, y[0], v",
        slices(overlap=False),
    ),
    "overlapping slices": lines("x[1].add_(1); y[0].mul_(2); return x, y[0]", slices(overlap=True)),
    "outputs alias inputs": lines("return x, x[0], x.t(), x.view(-1), x", plain(A)),
    "outputs alias each other": lines("y = x * 2; return y, y[0], y, y.t()", tracked(A)),
    "output is a detached output": lines("y = x * 2; return y, y.detach()", tracked(A)),
    "overwritten with a gradient": lines("y = x * 2; y.zero_(); return y, x * 1", tracked(A)),
    "input overwritten": lines("x.zero_(); return x + 1", non_leaf(A)),
    "shape in place": lines("y = x * 2; y.t_(); y.mul_(2); y.unsqueeze_(0); y.squeeze_(); return y, y[0]", tracked(A)),
    "batch_norm statistics": lines("return F.batch_norm(x, y, z, training=True, momentum=0.5)", tracked((4, 3), B, B)),
    "values that a gradient needs": lines("v = x * y; y.detach(); return v", tracked(B, B)),
}


@every_rewrite
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str, rewrite: str) -> None:
    fn, make = PROGRAMS[name]
    check(fn, make, **REWRITES[rewrite])


@every_rewrite
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program_in_fused_regions(name: str, rewrite: str, uncompiled_regions: None) -> None:
    fn, make = PROGRAMS[name]
    check(fn, make, executors=["torchcompile"], **REWRITES[rewrite])


class Counter(torch.nn.Module):
    """Writes a buffer, a part of one, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(4, 3))
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.cache[1:3] = x.detach()
        with torch.no_grad():
            self.weight.mul_(1.5)
        return x * self.weight / self.n + self.cache.sum()


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu_(self.norm(x) * 2)


@every_rewrite
@pytest.mark.parametrize("module", [Counter, Normalized])
def test_module(module: Any, rewrite: str) -> None:
    check_module(module, tracked((2, 3)), calls=3, **REWRITES[rewrite])


def test_inputs_that_overlap_only_in_some_calls() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b

    compiled = thunder.jit(f)
    for make in (plain(A, A), same_twice, plain(A, A)):
        torch.manual_seed(0)
        want = observe(f, make())
        torch.manual_seed(0)
        got = observe(compiled, make())
        assert all(torch.equal(g, w) for g, w in zip(got.outputs, want.outputs, strict=True))
        assert all(torch.equal(g, w) for g, w in zip(got.inputs_after_forward, want.inputs_after_forward, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        "x.add_(1); return x",
        "x[0].mul_(2); return x",
        "y = x.expand(2, 2, 3) * 1; z = x.expand(2, 2, 3); z.add_(1); return y",
    ],
)
def test_what_eager_refuses(source: str) -> None:
    fn, make = lines(source, tracked(A))
    want = observe(fn, make())
    assert want.error is not None
    assert observe(thunder.jit(fn), make()).error == want.error


@every_rewrite
def test_overlapping_inputs_written_in_no_grad_are_refused(rewrite: str) -> None:
    """Eager gives them histories of their own, which no program over one base has."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a.mul_(2)
        return a.sin().sum() + b.cos().sum()

    base = torch.rand(4, requires_grad=True) * 1
    with pytest.raises(UnsupportedOpError, match="share in part"):
        thunder.jit(f, **REWRITES[rewrite])(base[:3], base[1:])
