"""Gradient rules: how they are registered, which one is used, what they may return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core import prims, rules
from thunder.core.prims import make_prim
from thunder.core.proxies import TensorProxy
from thunder.core.rules import (
    VJPDual,
    find_rule,
    pair_gradients,
    register_augmented_forward,
    register_backward,
    register_grad,
    register_vjp,
)
from thunder.core.symbol import Symbol, Traits
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.transforms.split import split_forward_backward
from thunder.core.verify import verify
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import add, make_trace, mul, sin
from thunder.torch.registry import symbol_for

TABLES = ("_vjp_rules", "_grad_rules", "augmented_forward_impls", "backward_impls")
cos, exp = symbol_for(torch.cos), symbol_for(torch.exp)


@pytest.fixture(autouse=True)
def restored_tables() -> Iterator[None]:
    before = {name: dict(getattr(rules, name)) for name in TABLES}
    yield
    for name, table in before.items():
        getattr(rules, name).clear()
        getattr(rules, name).update(table)


def gradients(fn, *args, shape=(2, 3), names="x y"):
    """Values and gradients (for cotangents of ones) of a program of symbols."""
    joint = joint_trace(make_trace(fn, names, requires_grad=True, shape=shape))
    verify(joint, stage="joint", level=2)
    split = split_forward_backward(joint)
    forward = transform_for_execution(split.forward, [torchex]).python_callable()
    backward = transform_for_execution(split.backward, [torchex]).python_callable()
    outs, tensors, others = forward(*args)
    return outs, backward([list(tensors), list(others)], [torch.ones_like(outs[n]) for n in split.differentiable])


@pytest.fixture
def x_y():
    return torch.randn(2, 3), torch.randn(2, 3)


def test_a_vjp_rule_is_used(x_y):
    @register_vjp(sin)
    def rule(a):
        return sin(a), lambda g: mul(g, 7)

    assert find_rule(sin) is rule
    outs, (gx, gy) = gradients(lambda x, y: (sin(mul(x, 2)),), *x_y)
    torch.testing.assert_close(outs[0], (x_y[0] * 2).sin())
    torch.testing.assert_close(gx, torch.full((2, 3), 14.0))
    assert gy is None


@pytest.mark.parametrize("form", ["tuple", "list", "by position", "by name"])
def test_what_a_pullback_may_return(form, x_y):
    weigh = Symbol("weigh", lambda a, b, k=2: add(mul(a, b), k), "test.weigh", module="test")

    @register_vjp(weigh)
    def rule(a, b, k=2):
        def pull(g):
            ga, gb = mul(g, b), mul(g, a)
            return {
                "tuple": (ga, gb), "list": [ga, gb], "by position": {1: gb, 0: ga}, "by name": {"b": gb, "a": ga},
            }[form]  # fmt: skip

        return add(mul(a, b), k), pull

    _, (gx, gy) = gradients(lambda x, y: (weigh(x, y),), *x_y)
    torch.testing.assert_close((gx, gy), (x_y[1], x_y[0]))


def test_the_wrong_number_of_gradients_is_an_error():
    node = add.bind(*make_trace(lambda x, y: x).args, output=None)
    with pytest.raises(ValueError, match="add returned 3 gradients for 2 arguments"):
        pair_gradients(node, node.args, {}, (None, None, None))


def test_a_missing_cotangent_is_none(x_y):
    seen = []
    pair = make_prim("RULES_PAIR", "rules_pair", meta=lambda a: (TensorProxy(like=a), TensorProxy(like=a)))

    @register_vjp(pair)
    def rule(a):
        return (sin(a), cos(a)), lambda g0, g1: (seen.append((g0, g1)), mul(g0 if g0 is not None else g1, 5))[1]

    _, (gx, _) = gradients(lambda x, y: (pair(x)[1],), *x_y)
    assert seen[0][0] is None
    torch.testing.assert_close(gx, torch.full((2, 3), 5.0))


def test_a_rule_may_return_its_argument(x_y):
    same = make_prim("RULES_SAME", "rules_same", meta=lambda a: TensorProxy(like=a))
    register_vjp(same)(lambda a: (a, lambda g: mul(g, 3)))
    outs, (gx, _) = gradients(lambda x, y: (mul(same(x), y),), *x_y)
    torch.testing.assert_close(outs[0], x_y[0] * x_y[1])
    torch.testing.assert_close(gx, x_y[1] * 3)


def test_the_get_grad_form(x_y):
    def rule(a):
        out = exp(a)
        prims.put_grad(a, mul(prims.get_grad(out), out))
        return out

    register_grad(exp, rule)
    _outs, (gx, _) = gradients(lambda x, y: (mul(exp(x), y),), *x_y)
    torch.testing.assert_close(gx, x_y[0].exp() * x_y[1])


@pytest.mark.parametrize("dual", [True, False])
def test_the_augmented_forward_form(dual, x_y):
    @register_augmented_forward(sin.id)
    def forward(a):
        return VJPDual(sin(a), (a,)) if dual else (sin(a), a)

    @register_backward(sin.id)
    def backward(a, g):
        return mul(g, add(cos(a), 1))

    _, (gx, _) = gradients(lambda x, y: (sin(x),), *x_y)
    torch.testing.assert_close(gx, x_y[0].cos() + 1)


def test_half_of_a_pair_is_no_rule():
    register_augmented_forward(sin.id)(lambda a: (sin(a), a))
    assert find_rule(sin) is None


def test_a_composite_without_a_rule_is_differentiated_by_its_parts(x_y):
    composite = Symbol("composite", lambda a, b: mul(sin(a), exp(b)), "test.rules_composite", module="test")
    _outs, grads = gradients(lambda x, y: (composite(x, y),), *x_y)
    x, y = (t.clone().requires_grad_() for t in x_y)
    torch.testing.assert_close(grads, torch.autograd.grad((x.sin() * y.exp()).sum(), (x, y)))


def test_gradients_of_several_uses_add_up(x_y):
    _, (gx, gy) = gradients(lambda x, y: (mul(x, x), add(x, y), x), *x_y)
    torch.testing.assert_close(gx, 2 * x_y[0] + 2)
    torch.testing.assert_close(gy, torch.ones(2, 3))


def test_what_autograd_does_not_track_passes_no_gradient(x_y):
    stop = make_prim("RULES_STOP", "rules_stop", meta=lambda a: TensorProxy(like=a), python_impl=lambda a: a,
                     traits=Traits(is_differentiable=False))  # fmt: skip
    _, (gx, gy) = gradients(lambda x, y: (mul(stop(x), y),), *x_y)
    assert gx is None
    torch.testing.assert_close(gy, x_y[0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.layer_norm(x, (4,)), lambda x: F.softmax(x, -1), lambda x: x.var(0, keepdim=True),
        lambda x: torch.cat([x, x * 2], 1), lambda x: x[1:, ::2], lambda x: x.sort(1).values,
        lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1])), lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: F.conv1d(x[None], x[:, :2].reshape(1, 3, 2)), lambda x: torch.linalg.inv(x @ x.T),
        lambda x: torch.where(x > 0, x, x * 0.1), lambda x: x.masked_fill(x > 0, 1.0), lambda x: x.cumsum(0).prod(1),
        lambda x: x.max(1).values + x.min(1).values, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.norm(p=3),
        lambda x: torch.gather(x, 1, torch.tensor([[0, 0], [1, 3], [2, 2]])), lambda x: x.unfold(1, 2, 1),
        lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: torch.complex(x, x).abs(),
    ],
    ids=[
        "layer_norm", "softmax", "var", "cat", "slice", "sort", "cross_entropy", "einsum", "conv1d", "inv", "where",
        "masked_fill", "cumsum", "max", "gelu", "norm", "gather", "unfold", "sdpa", "complex",
    ],
)  # fmt: skip
def test_operations_without_a_rule_have_torch_s_gradient(fn):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    out, expected = thunder.jit(fn)(x), fn(x)
    weight = torch.randn_like(expected)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, x, weight), torch.autograd.grad(expected, x, weight))
