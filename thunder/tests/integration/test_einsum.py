"""einsum as matrix products: values, gradients and strides of eager's, and fewer copies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.core.rules import _vjp_rules
from thunder.core.transforms.rules import register_vjp
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from thunder.torch.linalg import ends_in_product

SIZES = {"a": 2, "b": 3, "c": 4, "d": 32, "e": 5, "t": 3, "w": 4, "h": 33}


def operands(equation, dtype=torch.float32, requires_grad=True):
    gen = torch.Generator().manual_seed(0)
    shapes = [[SIZES[n] for n in term] for term in equation.split("->")[0].split(",")]
    return [torch.randn(s, generator=gen, dtype=dtype).requires_grad_(requires_grad) for s in shapes]


def names_of(trace):
    return [n.sym.name for n in trace.bound_symbols]


def check(fn, given, **tolerances):
    """Values, strides and gradients of the compiled function are eager's."""
    compiled = thunder.jit(fn)
    got, want = compiled(*given), fn(*given)
    torch.testing.assert_close(got, want, **tolerances)
    strides = [(g, w) for g, w, n in zip(got.stride(), want.stride(), got.shape, strict=True) if n != 1]
    assert all(g == w for g, w in strides), (got.stride(), want.stride())
    if want.requires_grad:
        cotangent = torch.randn(want.shape, dtype=want.dtype, generator=torch.Generator().manual_seed(1))
        grads = (torch.autograd.grad(o, given, cotangent, allow_unused=True) for o in (got, want))
        torch.testing.assert_close(*grads, **tolerances)
    return compiled


EQUATIONS = [
    "ab,bc->ac", "ab,cb->ca", "ab,bc", "cab,abd->cd", "abc,abd->acd", "tw,awh->ath", "awh,tw->ath", "tw,awh->tah",
    "ath,ahw,ta->tw", "ab,ab->ab", "ab,ab->a", "ab,ab->", "a,b", "ab,c->a", "ab->ba", "ab->", "ab,bc,cd->ad",
    "acb,bc->a", "dab,bd->a", "bwc,w->bc", "twh,aw->tah", "a,a", "ab,ba->", "...a,ab->...b",
]  # fmt: skip


def factor(equation):
    """The einsum as a factor of a product, which hides its strides."""

    def program(*x):
        y = torch.einsum(equation, *x)
        return y.reshape(1, -1) @ torch.linspace(-1, 1, y.numel(), dtype=y.dtype).unsqueeze(1)

    return program


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_results_strides_and_gradients_are_eagers(equation, requires_grad):
    given = operands(equation.replace("...", "tw"), requires_grad=requires_grad)
    check(lambda *x: torch.einsum(equation, *x), given)
    compiled = check(factor(equation), given, rtol=1e-4, atol=1e-4)
    assert ("einsum" in names_of(thunder.last_traces(compiled)[-1])) == (len(given) == 1)


@st.composite
def equations(draw):
    names = "abcde"
    term = st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map("".join)
    terms = draw(st.lists(term, min_size=2, max_size=3))
    there = sorted(set("".join(terms)))
    out = draw(st.lists(st.sampled_from(there), max_size=4, unique=True).map("".join))
    return f"{','.join(terms)}->{out}"


@settings(max_examples=25, deadline=None)
@given(equations())
def test_random_equations_are_eagers(equation):
    check(factor(equation), operands(equation, torch.float64))


def experts(x, w1, w2):
    return torch.einsum("ath,ahw->tw", F.silu(torch.einsum("tw,awh->ath", x, w1)), w2)


def test_what_no_program_can_tell_is_not_copied():
    given = operands("tw,awh,ahw->tw")
    compiled = check(experts, given, rtol=1e-4, atol=1e-4)
    kinds = [n for n in names_of(thunder.last_traces(compiled)[-1]) if n not in ("python_del", "unpack_trivial")]
    assert kinds[: kinds.index("silu")] == ["broadcast_in_dim", "bmm"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: torch.einsum("tw,awh->ath", x, w).sin(),
        lambda x, w: torch.einsum("tw,awh->ath", x, w).permute(1, 0, 2).view(3, 66),
        lambda x, w: torch.einsum("tw,awh->ath", x, w).permute(1, 0, 2).contiguous().exp(),
        lambda x, w: torch.einsum("tw,awh->ath", x, w).neg().unsqueeze(0),
        lambda x, w: torch.einsum("tw,awh->ath", x, w).as_strided((3, 66), (66, 1)).clone(),
        lambda x, w: torch.einsum("ath,ath->ath", torch.einsum("tw,awh->ath", x, w), w[:, :1].expand(2, 3, 33)),
    ],
)
def test_what_a_program_can_tell_has_eagers_strides(fn):
    given = operands("tw,awh")
    check(fn, given)


def test_half_precision_is_one_product():
    given = operands("tw,awh,ahw->tw", torch.bfloat16)
    compiled = thunder.jit(experts)
    torch.testing.assert_close(compiled(*given), experts(*given), rtol=0.05, atol=0.5)
    assert "broadcast_in_dim" not in names_of(thunder.last_traces(compiled)[-1])


def test_last_steps():
    x = torch.ones(2, 3)
    assert ends_in_product("ab,ab->a", x, x)
    assert not ends_in_product("ab,ab->ab", x, x)
    assert not ends_in_product("ab->a", x)
    assert not ends_in_product("aa->a", torch.ones(2, 2))


def test_an_executor_may_take_it_whole():
    ex = OperatorExecutor("einsums")
    register_executor(ex)
    try:
        op = ex.register_operator("my_einsum", like=thunder.torch.einsum, fn=torch.einsum)
        ex.register_implementation(thunder.torch.einsum, op)
        compiled = thunder.jit(factor("ab,bc->ac"), executors=[ex])
        given = operands("ab,bc", requires_grad=False)
        torch.testing.assert_close(compiled(*given), factor("ab,bc->ac")(*given))
        assert "my_einsum" in names_of(thunder.last_traces(compiled)[-1])
    finally:
        deregister_executor(ex)


def test_a_gradient_rule_may_take_it_whole():
    calls = []

    @register_vjp(thunder.torch.einsum)
    def rule(equation, a, b):
        out = thunder.torch.einsum(equation, a, b)

        def pull(g):
            calls.append(equation)
            return {1: thunder.torch.matmul(g, thunder.torch.transpose(b, 0, 1)), 2: None}

        return out, pull

    try:
        a, b = operands("ab,bc")
        compiled = thunder.jit(lambda *x: torch.einsum("ab,bc->ac", *x).reshape(1, -1) @ torch.ones(8, 1))
        compiled(a, b).sum().backward()
        assert calls == ["ab,bc->ac"]
        assert b.grad is None
        torch.testing.assert_close(a.grad, torch.ones(2, 4) @ b.detach().t())
    finally:
        del _vjp_rules[thunder.torch.einsum.id]
