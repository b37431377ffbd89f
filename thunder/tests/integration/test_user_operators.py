"""Operators of the user's own (`torch.library`) in compiled programs."""

from __future__ import annotations

import pytest
import torch
from torch.library import custom_op, opcheck

import thunder
from thunder.core.errors import ThunderError, ThunderTypeError
from thunder.core.origin import BACKWARD
from thunder.core.symbol import OpTags
from thunder.tests.inplace.harness import REWRITES, every_rewrite
from thunder.torch.custom_op import _deregister_custom_op, _register_custom_op

Tensor = torch.Tensor


@custom_op("thunder_tests::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy().copy()).sin() * scale


@scaled_sine.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)


@custom_op("thunder_tests::scaled_cosine", mutates_args=())
def scaled_cosine(x: Tensor, scale: float = 1.0) -> Tensor:
    return x.cos() * scale


@scaled_cosine.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)


def _sine_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _sine_backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g * scaled_cosine(x, ctx.scale), None


scaled_sine.register_autograd(_sine_backward, setup_context=_sine_setup)


@custom_op("thunder_tests::fill_with", mutates_args={"x"})
def fill_with(x: Tensor, value: float) -> None:
    x.numpy()[...] = value


@custom_op("thunder_tests::total", mutates_args=())
def total(xs: list[Tensor], weights: list[float]) -> tuple[Tensor, list[Tensor]]:
    return sum(x * w for x, w in zip(xs, weights)), [x * w for x, w in zip(xs, weights)]


@total.register_fake
def _(xs, weights):
    return torch.empty_like(xs[0]), [torch.empty_like(x) for x in xs]


def _total_setup(ctx, inputs, output):
    ctx.weights = inputs[1]


total.register_autograd(
    lambda ctx, g, gs: ([(g + h) * w for h, w in zip(gs, ctx.weights)], None), setup_context=_total_setup
)


@custom_op("thunder_tests::add_to_all", mutates_args={"xs"})
def add_to_all(xs: list[Tensor], y: Tensor) -> None:
    for x in xs:
        x.add_(y)


@custom_op("thunder_tests::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x.clone()


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def names(trace):
    return [n.sym.name for n in trace.bound_symbols]


def assert_as_eager(fn, *args):
    """Values, gradients and written arguments of a compiled function are those of eager; gives the compiled one."""
    compiled = thunder.jit(fn)
    runs = []
    for call in (fn, compiled):
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        out = call(*given)
        if out is not None and out.requires_grad:
            out.sum().backward()
        runs.append((out, given, [g.grad for g in given]))
    for one, other in zip(*runs):
        torch.testing.assert_close(other, one)
    return compiled


@pytest.mark.parametrize(
    "op, args",
    [
        (scaled_sine, (leaf(3), 2.0)),
        (fill_with, (torch.zeros(3), 2.0)),
        (total, ([leaf(2), leaf(2)], [1.0, 2.0])),
        (add_to_all, ([torch.zeros(2), torch.ones(2)], torch.ones(2))),
    ],
)
def test_the_operators_of_these_tests_keep_to_their_schemas(op, args):
    opcheck(op, args)


def test_operator_is_one_line_of_the_trace_and_differentiated():
    compiled = assert_as_eager(lambda x: scaled_sine(x * 2, scale=3.0) + scaled_sine(x), leaf(4))
    assert names(thunder.last_traces(compiled)[-1]).count("scaled_sine.default") == 2
    assert "torch.ops.thunder_tests.scaled_sine.default(" in thunder.last_traces(compiled)[-1].python()
    backward = thunder.last_backward_traces(compiled)[-1]
    cosines = [n for n in backward.bound_symbols if n.sym.name.startswith("scaled_cosine")]
    assert len(cosines) == 2
    assert all(BACKWARD in n.tags for n in cosines)


def test_operator_without_gradient():
    assert_as_eager(lambda x: scaled_cosine(x.detach()) * x, leaf(4))


def test_operator_that_writes():
    def f(x, y):
        v = x[1:]
        fill_with(v, 5.0)
        return x * y

    assert_as_eager(f, torch.zeros(4), leaf(4))


def test_operator_that_writes_an_intermediate_value():
    def f(y):
        x = torch.zeros(4)
        before = x + y
        fill_with(x, 5.0)
        return before + x * y

    assert_as_eager(f, leaf(4))


@every_rewrite
def test_operator_that_writes_a_list(rewrite):
    def f(a, b, y):
        view = a.view(-1)
        add_to_all([a, b], y)
        return view * 2 + b

    args = [torch.zeros(3), torch.ones(3), torch.arange(3.0)]
    expected_args = [a.clone() for a in args]
    expected = f(*expected_args)
    torch.testing.assert_close(thunder.jit(f, **REWRITES[rewrite])(*args), expected)
    torch.testing.assert_close(args, expected_args)


def test_operator_over_lists():
    def f(a, b):
        s, parts = total([a.sin(), b], [2.0, 3.0])
        return s * parts[0] + parts[1]

    assert_as_eager(f, leaf(3), leaf(3))


def test_operator_without_fake_rule():
    compiled = thunder.jit(lambda x: without_fake(x) + 1)
    with pytest.raises(ThunderError, match="fake"):
        compiled(torch.rand(3))


def test_registered_operator_is_claimed_by_its_executor():
    sym = _register_custom_op(scaled_sine)
    try:
        assert _register_custom_op(scaled_sine) is sym
        assert OpTags.TORCH_COMPILE_COMPLIANT_CUSTOM_OP in sym.tags
        compiled = assert_as_eager(lambda x: scaled_sine(x, 3.0).exp(), leaf(4))
        node = next(n for n in thunder.last_traces(compiled)[-1].bound_symbols if "scaled_sine" in n.sym.name)
        assert node.sym.executor is thunder.custom_op_executor
    finally:
        _deregister_custom_op(scaled_sine)
        _deregister_custom_op(scaled_sine)  # which changes nothing any more
    assert not thunder.custom_op_executor.opmap
    assert not thunder.custom_op_executor.implmap
    compiled = assert_as_eager(lambda x: scaled_sine(x, 3.0).exp(), leaf(4))
    node = next(n for n in thunder.last_traces(compiled)[-1].bound_symbols if "scaled_sine" in n.sym.name)
    assert node.sym.executor is thunder.pytorch_executor


def test_registering_something_else():
    for change in (_register_custom_op, _deregister_custom_op):
        with pytest.raises(ThunderTypeError, match="custom_op"):
            change(torch.sin)
