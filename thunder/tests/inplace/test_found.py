"""Programs that the generator has found wrong, shrunk: each stays right under every rewrite and through Dynamo."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import UnsupportedOpError
from thunder.tests.inplace.harness import REWRITES, every_rewrite
from thunder.tests.inplace.programs import GeneratedProgram
from thunder.tests.inplace.test_generated import assert_equal, direct, run_both

# name: (which inputs, lines of `f(x, y, z)`)
FOUND = {
    "a tracked view and one made in a custom forward": (
        1,
        "v0 = z[1:]; v1 = ScatterRows.apply(v0); v1.index_add_(0, torch.tensor([0]), v0[:1]); return v1",
    ),
    "backward that only None leads to": (0, "v0 = WritesInput.apply(x, x); v1 = WritesSaved.apply(x, v0); return v1"),
    "equal functions, both returned": (0, "a = ScaleInPlace.apply(x); b = ScaleInPlace.apply(x); return b, a"),
    "views of one base, written before the second is read": (3, "v0 = y.sin(); y.add_(z); v6 = x.sin(); return v6"),
    "identity of a written input": (2, "z.add_(x); v5 = Identity.apply(z); return v5"),
    "backward reads and writes what was written since": (0, "v3 = WritesInput.apply(x, y); y.add_(x); return v3"),
    "backward writes memory whose views are gone": (
        0,
        "torch._C._set_grad_enabled(False); x[..., 0] = x[..., 0]; torch._C._set_grad_enabled(True); "
        "v1 = WritesInput.apply(x, x); return v1",
    ),
    "backward writes a result passed on": (0, "v0 = Identity.apply(x); v3 = WritesInput.apply(x, v0); return v3"),
    "out= that is not contiguous": (2, "v1 = x.sin(); torch.add(x, x, out=y); return v1"),
    "mark_dirty on a view": (2, "v0 = z[0]; v1 = Dirty.apply(v0); return v1"),
    "written input that a gradient reads": (0, "y.add_(x); v3 = y.sin(); return v3"),
    "view written in no_grad": (1, "v = x[0]; torch.no_grad()(v.mul_)(2); return v.sin()"),
    "view of an input written in no_grad": (0, "v = x[0]; torch.no_grad()(x.add_)(1); return v.sin()"),
    "detached view overwritten": (1, "v = x.detach(); v.add_(z); v.zero_(); return v.sin()"),
    "random numbers in the order of memory": (
        2,
        "y.index_add_(0, torch.tensor([0]), x[:1]); y.bernoulli_(0.5); return x.sin()",
    ),
    "random numbers into out=": (2, "v = torch.add(y, y, out=x); x.bernoulli_(0.5); return v"),
    "dropout of a transposed value": (5, "v0 = y.sin(); v0.t_().mul_(2); x.add_(x); return F.dropout(v0, 0.5)"),
    "overlapping view of what is written": (1, "v2 = x.as_strided((2, 2), (1, 1)); x.add_(x); return v2.sin()"),
    "expanded view of what is written": (1, "v2 = x.expand(2, *x.shape); x.add_(x); return v2.sin()"),
    "strided view of a transposed copy": (
        1,
        "v1 = x.t().clone(); v2 = v1.as_strided((2, 2), (1, 3)); v1.add_(v1); return v2.sin()",
    ),
    "overlapping view written with itself": (0, "v1 = y.as_strided((2, 2), (1, 1)); v1.add_(v1); return x.sin()"),
    "view of a detached view that is written": (0, "v3 = x.detach(); v5 = v3[0]; v3.add_(x); return v5.sin()"),
    "detached view with a history, its base written": (1, "v1 = x.detach(); v1.add_(x); x.add_(x); return v1"),
    "backward writes a value whose view is returned": (
        0,
        "v0 = x.sin(); v1 = v0[0]; v2 = WritesInput.apply(x, v0); return v2, v1",
    ),
    "item of fewer dimensions than its value": (2, "v1 = z[1:]; x.add_(x); v3 = x.sin(); x[0] = v1; return v3"),
    "view of a copy of what is written": (
        0,
        "v0 = y[[0, 0]]; y.add_(x); v3 = v0[0]; y.add_(x); v0.add_(x); return v3",
    ),
    "backward writes a part from unbind": (0, "a, b, c = x.unbind(-1); v = WritesInput.apply(x, a); return v"),
    "written, read, and one argument of many memories": (3, "v = x.sin(); v.addcmul_(v, z); return x.sin()"),
    "overlapping view written with another name of it": (
        0,
        "v = y.as_strided((2, 2), (1, 1)); w = v.view(v.shape); w.add_(v); return w",
    ),
    "overlapping view written with one of other memory": (
        0,
        "v = y.as_strided((2, 2), (1, 1)); w = (y * 2).as_strided((2, 2), (1, 1)); v.add_(w); return v, w",
    ),
    "identity of what has no gradient": (0, "v = Identity.apply(y); return v, y"),
    "identity in no_grad": (0, "with torch.no_grad(): v = Identity.apply(x); return v, x"),
    "identity in no_grad, written": (1, "with torch.no_grad(): v = Identity.apply(x); v.add_(x); return v, x"),
    "identity of what has no gradient, written": (0, "v = Identity.apply(y); v.add_(x); return v"),
    "identity of a row": (2, "v = y[1:]; x.add_(x); w = Identity.apply(v); return w"),
    "copied from another dtype into a transposed value": (
        2,
        "v = y.sin(); v.add_(x); v.copy_(z.float()); return v",
    ),
    "gradient reads an input whose neighbour is written": (3, "v = y.sin(); x.add_(x); v.mul_(z); return v"),
    "gradient reads an input of shared memory that is written": (3, "v = y.sin(); y.add_(1); return v * z"),
    "row of a detached view": (1, "v0 = x.detach(); v0.select(0, 0).mul_(x.select(0, 0)); return v0,"),
    "views of a detached view, written in turn": (
        1,
        "v0 = x.detach(); w = v0.view(-1); w[1:].add_(z.sum()); u = v0.t(); u.mul_(z.sum()); return v0, u, w",
    ),
    "view of a detached view, and its base": (
        1,
        "v0 = x.detach(); w = v0.view(-1); w[1:].add_(z.sum()); x.mul_(2); return v0, w, x.sin()",
    ),
    "detached row of a detached view": (
        1,
        "v0 = x.detach(); w = v0[0].detach(); w[1:].add_(z.sum()); v0[1].mul_(z); return v0, w, x.sin()",
    ),
    "row of a detached row": (1, "v0 = x.detach()[0]; v0.mul_(z); v0[1:].zero_(); return v0"),
    "views of a detached view, base written between": (
        1,
        "v0 = x.detach(); w = v0.view(-1); w[1:].add_(z.sum()); u = v0.t(); x.mul_(2); u.mul_(z.sum()); "
        "x[0].mul_(z); return v0, w, u, x",
    ),
    "row of a detached view, in and out of no_grad": (
        1,
        "v0 = x.detach(); with torch.no_grad(): v0[0].mul_(3); v0[0].mul_(z); "
        "with torch.no_grad(): v0[1].mul_(3); return v0, x.sin()",
    ),
    "two detached views, one in the other": (
        1,
        "a = y.detach(); b = a[0].detach(); a.mul_(x); b.mul_(z); a[1].mul_(z); return a, b, y",
    ),
    "copied before it is written": (2, "x.copy_(y); y.sigmoid_(); return z"),
}
# Calls that read only the shape or dtype of `x`, which a write has made tracked, or have no gradient.
_UNTRACKED = (
    "z.expand_as(x)", "z.view_as(x)", "z.reshape_as(x)", "z.type_as(x)", "z.sum_to_size(x.shape)", "torch.rand_like(x)",
    "torch.randn_like(x)", "torch.empty_like(x).zero_()", "x.new_zeros(3)", "torch.full_like(x, 0.5)", "x.isnan()",
    "torch.bernoulli(x.clamp(0, 1))", "x.argmax()", "x.sign()", "torch.floor(x)", "z.index_select(0, x.argmax(0))",
    "torch.where(x > z, z, 2 * z)", "z.copy_(x)", "z.masked_fill_(x > 0, 1)", "z.new_empty(x.shape).fill_(1)",
)  # fmt: skip
FOUND |= {f"what reads no value of x: {call}": (5, f"x.add_(y); v = {call}; return v") for call in _UNTRACKED}


def program(name: str) -> GeneratedProgram:
    return _program(*FOUND[name])


def _program(inputs: int, lines: str) -> GeneratedProgram:
    return GeneratedProgram("def f(x, y, z):\n    " + "\n    ".join(lines.split("; ")) + "\n", inputs)


@every_rewrite
@pytest.mark.parametrize("name", list(FOUND))
def test_found(name: str, rewrite: str) -> None:
    found = program(name)
    assert_equal(found, *run_both(found, direct(rewrite)))


@pytest.mark.parametrize("name", list(FOUND))
def test_found_through_dynamo(name: str) -> None:
    def compile(fn: Any) -> Any:
        torch._dynamo.reset()
        return thunder.jit(fn)

    found = program(name)
    assert_equal(found, *run_both(found, compile, through_dynamo=True))


# name: (which inputs, lines of `f(x, y, z)`, what the error says)
REFUSED = {
    "mark_dirty on a folded view": (1, "v = x.unfold(1, 2, 1); return Dirty.apply(v), x", "element more than once"),
    "shape of an input under another name": (
        1,
        "v = x.to(torch.float64); x.add_(y); v.transpose_(0, -1); return v",
        "shape or strides of an input",
    ),
}


@every_rewrite
@pytest.mark.parametrize("name", list(REFUSED))
def test_refused(name: str, rewrite: str) -> None:
    inputs, lines, text = REFUSED[name]
    found = _program(inputs, lines)
    with pytest.raises(UnsupportedOpError, match=text):
        direct(rewrite)(found.function())(*found.arguments(1))
    with pytest.raises(UnsupportedOpError, match=text):
        thunder.jit(found.function(), **REWRITES[rewrite])(*found.arguments(1))
