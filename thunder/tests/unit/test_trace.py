"""`thunder.trace`, thunder's symbols outside traces and inside jitted code, languages."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch as ltorch
from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import DataDependentControlFlowError, NoDecompositionError, ThunderRuntimeError
from thunder.core.langctxs import Languages, langctx, resolve_language
from thunder.core.symbol import Symbol
from thunder.executors import torchex
from thunder.executors.passes import transform_for_execution

A = torch.linspace(-1, 1, 6).reshape(2, 3)
B = torch.linspace(0, 1, 3)


def run(trace, *args):
    return transform_for_execution(trace, [torchex.ex]).python_callable()(*args)


def symbols(trace) -> list[str]:
    return [n.sym.name for n in trace.bound_symbols]


def test_trace_has_inputs_nodes_and_a_return():
    def foo(a, b, *, scale=2.0):
        return clang.add(a, b) * scale

    trace = thunder.trace()(foo, A, B)
    assert trace.name == "foo"
    assert [p.name for p in trace.args] == ["a", "b"]
    assert symbols(trace) == ["unpack_trivial", "unpack_trivial", "broadcast_in_dim", "add", "mul", "python_return"]
    torch.testing.assert_close(run(trace, A, B), (A + B) * 2.0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: F.gelu(a @ b.reshape(3, 1), approximate="tanh"),
        lambda a, b: torch.cat([a, b[None]], 0).softmax(-1),
        lambda a, b: 2 - a,
        lambda a, b: 1 / (a + 3),
        lambda a, b: 7 // (a + 3),
        lambda a, b: 2**a,
        lambda a, b: -a.abs().T[0] + a.size(0) + a.shape[1] + len(b),
        lambda a, b: a[:, None, 1:] * torch.arange(2) + torch.ones(2, dtype=torch.float64),
        lambda a, b: torch.where(a > b, a, b).max(dim=1).values,
        lambda a, b: a.view(-1).unfold(0, 2, 1) if a.dim() == 2 else b,
        lambda a, b: F.layer_norm(a, (3,), b, b, 1e-3).permute(1, 0),
        lambda a, b: torch.fft.fft(a).real,
        lambda a, b: ltorch.sum(ltorch.exp(a), dim=1, dtype=thunder.float64),
        lambda a, b: next(iter(a)) + torch.special.i0e(b),
        lambda a, b: a.to(torch.int32).type_as(b).float() + a.mT.contiguous().mT,
    ],
)
def test_torch_functions_methods_and_operators_are_traced(fn):
    trace = thunder.trace()(fn, A, B)
    torch.testing.assert_close(
        run(trace, A, B), fn(A, B) if "ltorch" not in fn.__code__.co_names else A.exp().double().sum(1)
    )


def test_in_place_methods_write_in_program_order():
    def fn(a, b):
        c = a.clone()
        c.add_(b)
        c[0] = 1.0
        return c * 2

    trace = thunder.trace()(fn, A, B)
    assert "add_" in " ".join(symbols(trace))
    torch.testing.assert_close(run(trace, A, B), fn(A, B))


def test_containers_numbers_and_kwargs():
    def fn(tensors, n, *, other):
        return tensors["x"][0] * n + other

    trace = thunder.trace()(fn, {"x": [A, B]}, 3, other=B)
    assert [p.name for p in trace.args] == ["tensors_0", "tensors_1", "n", "other"]
    torch.testing.assert_close(run(trace, A, B, 3, B), A * 3 + B)


def test_unused_nodes_are_removed_unless_asked():
    def fn(a):
        torch.sin(a)
        return torch.cos(a)

    assert symbols(thunder.trace()(fn, A)) == ["unpack_trivial", "cos", "python_return"]
    assert "sin" in symbols(thunder.trace(use_dce=False)(fn, A))


def test_nested_trace_is_inlined():
    def outer(a):
        return thunder.trace()(torch.sin, a)

    assert symbols(thunder.trace()(outer, A)) == ["unpack_trivial", "sin", "python_return"]


def test_values_are_not_known():
    with pytest.raises(DataDependentControlFlowError):
        thunder.trace()(lambda a: a if a.sum() > 0 else -a, A)


def test_wrong_shapes_are_errors_with_torchs_type():
    with pytest.raises(ThunderRuntimeError, match="broadcast"):
        thunder.trace()(lambda a: clang.add(a, a[:, :2]), A)
    with pytest.raises(RuntimeError):
        thunder.trace()(lambda a: a @ a, A)
    with pytest.raises(IndexError):
        thunder.trace()(lambda a: a.sum(5), A)


def test_a_module_becomes_constants():
    module = torch.nn.Linear(3, 2)
    trace = thunder.trace()(lambda a: F.linear(a, module.weight.detach(), module.bias.detach()), A)
    torch.testing.assert_close(run(trace, A), module(A).detach())


def test_symbols_run_on_tensors_outside_traces():
    assert torch.equal(ltorch.add(A, B, alpha=2), torch.add(A, B, alpha=2))
    assert ltorch.sum(A, dtype=dtypes.float64).dtype is torch.float64
    assert torch.equal(clang.add(A, B), A + B)
    assert torch.equal(prims.broadcast_in_dim(B, (2, 3), (1,)), B.expand(2, 3))
    assert clang.maximum(2, 3.0) == 3.0
    assert torch.equal(clang.arange(start=0, stop=4, step=2, device="cpu"), torch.arange(0, 4, 2))
    assert torch.equal(ltorch.relu6(A), F.relu6(A))


def test_names_of_torch_resolve():
    assert ltorch.operations["gelu"].id == "torch.nn.functional.gelu"
    assert ltorch.add.id == "torch.add"
    assert isinstance(ltorch.igamma, Symbol)
    assert isinstance(ltorch.gumbel_softmax, Symbol)
    with pytest.raises(AttributeError, match="no_such_function"):
        _ = ltorch.no_such_function


def jitted_program(x):
    y = ltorch.relu(clang.mul(x, 2))
    y = prims.add(y, x)
    return clang.true_divide(y, 3).sum()


def test_jitted_code_may_call_symbols_and_clang():
    compiled = thunder.jit(jitted_program)
    x = A.clone().requires_grad_()
    y = A.clone().requires_grad_()
    got, want = compiled(x), ((y * 2).relu() + y).div(3).sum()
    torch.testing.assert_close(got, want)
    got.backward()
    want.backward()
    torch.testing.assert_close(x.grad, y.grad)
    first = thunder.last_traces(compiled)[0]
    assert {"mul", "relu", "add", "true_divide"} <= set(symbols(first))


def test_decompositions_are_made_when_asked_only():
    compiled = thunder.jit(lambda x: F.gelu(x))
    compiled(A)
    node = next(n for n in thunder.last_traces(compiled)[0].bound_symbols if n.sym.name == "gelu")
    assert "subsymbols" not in vars(node)
    assert [s.sym.name for s in node.subsymbols] == ["mul", "erf", "add", "mul", "mul"]
    assert node.subsymbols[-1].output.name == node.output.name


def test_a_form_without_decomposition_is_opaque():
    trace = thunder.trace()(lambda a: torch.round(a, decimals=1), A)
    node = trace.bound_symbols[1]
    assert node.subsymbols == ()
    torch.testing.assert_close(run(trace, A), torch.round(A, decimals=1))


def test_masks_have_no_decomposition_in_clang():
    with pytest.raises(NoDecompositionError):
        thunder.trace()(lambda a: clang.getitem(a, a > 0), A)


def test_gradient_rule_of_an_operation():
    calls = []

    @ltorch.op(name="doubled_test_op")
    def doubled(a):
        return clang.mul(a, 2)

    @doubled.vjp
    def _(a):
        calls.append(a.name)
        return doubled(a), lambda g: clang.mul(g, 10)

    x = A.clone().requires_grad_()
    thunder.jit(lambda x: doubled(x).sum())(x).backward()
    assert calls
    torch.testing.assert_close(x.grad, torch.full_like(A, 10.0))


def test_languages():
    def fn(a, b):
        return a + b

    in_clang = thunder.trace()(langctx(Languages.CLANG)(fn), A, B)
    assert symbols(in_clang)[2:] == ["broadcast_in_dim", "add", "python_return"]
    assert in_clang.bound_symbols[3].sym is prims.add
    assert thunder.trace()(langctx(Languages.NUMPY)(fn), A, B).bound_symbols[2].sym.id == "numpy.add"
    assert resolve_language(Languages.TORCH).has_method("softmax")
    with pytest.raises(ValueError, match="unknown language"):
        langctx("klingon")
    with pytest.raises(LookupError):
        resolve_language("klingon")
    assert torch.equal(thunder.numpy.add(A, B), A + B)
