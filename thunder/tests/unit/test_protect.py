"""Backward reads what the values were, whatever forward writes over them."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.passes import PassContext
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.transforms.protect import ProtectOverwritten, may_be_view
from thunder.core.verify import verify
from thunder.tests.unit.traces import make_trace, mul, node_of, sin
from thunder.torch.registry import symbol_for


def protect(fn, written=()):
    joint = joint_trace(make_trace(fn, requires_grad=True))
    with origin(pass_name="protect_overwritten"):
        new = ProtectOverwritten(frozenset(written)).apply(joint, PassContext())
    verify(new, stage="joint", level=2, before=joint)
    return joint, new


def test_nothing_is_cloned_without_writes():
    joint, new = protect(lambda x, y: (mul(sin(x), y),))
    assert new is joint


def test_an_input_that_the_epilogue_writes_is_cloned_once():
    _, new = protect(lambda x, y: (mul(sin(x), y),), written={"x"})
    clones = [n for n in new.bound_symbols if n.sym.name == "clone"]
    assert [(n.args[0].name, n.output.name) for n in clones] == [("x", "x_saved")]
    cos = node_of(new, "cos")
    assert cos.args[0].name == "x_saved"
    assert node_of(new, "sin").args[0].name == "x"
    assert not clones[0].is_backward
    assert clones[0].origin.passes


def test_what_backward_does_not_read_is_not_cloned():
    joint, new = protect(lambda x, y: (mul(sin(x), 2),), written={"y"})
    assert new is joint


def test_a_written_value_is_read_through_a_clone():
    def program(x, y):
        h = sin(x)
        out = mul(h, y)
        prims.copy_(mul(y, 3), h)
        return (out,)

    _, new = protect(program)
    assert [n.args[0].name for n in new.bound_symbols if n.sym.name == "clone"] == ["t0"]


@pytest.mark.parametrize(
    "fn, expected",
    [
        (torch.reshape, True), (torch.Tensor.contiguous, True), (torch.ops.aten.t.default, True),
        (torch.ops.aten.mul.Tensor, False), (torch.sin, False),
    ],
)  # fmt: skip
def test_what_may_be_a_view(fn, expected):
    trace = make_trace(lambda x, y: sin(x))
    node = symbol_for(fn).bind(trace.args[0], output=node_of(trace, "sin").output)
    assert may_be_view(node) == expected


@pytest.mark.parametrize(
    "write", [lambda x: x.mul_(3), lambda x: x[0].zero_(), lambda x: x.t().add_(1)], ids=["itself", "row", "view"]
)
def test_a_write_over_what_backward_needs_is_refused_as_in_eager(write):
    def program(x, w):
        out = (x * w).tanh()
        with torch.no_grad():
            write(x)
        return out

    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    for fn in (program, thunder.jit(program)):
        given, expected = x.clone(), x.clone()
        out = fn(given, w)
        torch.testing.assert_close(out, (x * w).tanh())
        write(expected)
        torch.testing.assert_close(given, expected)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(out.sum(), w)


def test_a_write_over_a_value_that_the_program_has_cloned():
    def program(x, w):
        out = (x.clone() * w).tanh()
        x.mul_(3)
        return out

    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    given, expected = x.clone(), x.clone()
    grads = [torch.autograd.grad(fn(t, w).sum(), w) for fn, t in ((program, expected), (thunder.jit(program), given))]
    torch.testing.assert_close(*grads)
    torch.testing.assert_close(given, expected)
