"""Tools for user-written transforms: thunder.core.transforms."""

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.symbol import BoundSymbolTag
from thunder.core.trace import tracectx
from thunder.core.transforms import (
    TOPOSORT_ORDER,
    VISIT_TYPE,
    bsym_list_to_dag,
    eval_trace,
    replace_inplace,
    toposort_bsym_dag,
    value_and_grad,
    visitor_transform,
    vjp,
)
from thunder.executors.passes import transform_for_execution
from thunder.extend import resolve_executors


def traced(fn, *args):
    return thunder.trace()(fn, *args)


def run(trace, *args):
    return transform_for_execution(trace, resolve_executors(None)).python_callable()(*args)


@pytest.fixture
def chain():
    return traced(lambda a, b: torch.sin(a * b) + a, torch.rand(3), torch.rand(3))


def names(trace):
    return [b.sym.name for b in trace.bound_symbols if b.sym.name not in ("unpack_trivial", "python_return")]


def test_visitor_inserts_and_replaces(chain):
    def visit(bsym):
        if bsym.sym.name == "sin":
            with tracectx(None):
                pass
            prims.comment("here")
            return VISIT_TYPE.INSERT_BEFORE
        return VISIT_TYPE.NO_OP

    new = visitor_transform(chain, visit, provenance="comments")
    assert names(new) == ["mul", "comment", "sin", "add"]
    assert names(chain) == ["mul", "sin", "add"]
    assert str(new).startswith("# Constructed by comments")


def test_visitor_children_inherit_tags(chain):
    backward = chain.with_nodes(
        b.from_bsym(origin=type(b.origin)(tags=frozenset({BoundSymbolTag.BACKWARD}))) if b.sym.name == "sin" else b
        for b in chain.bound_symbols
    )

    def visit(bsym):
        if bsym.sym.name != "sin":
            return VISIT_TYPE.NO_OP
        prims.comment("child")
        return VISIT_TYPE.INSERT_AFTER

    made = [b for b in visitor_transform(backward, visit).bound_symbols if b.sym.name == "comment"]
    assert [b.tags for b in made] == [frozenset({BoundSymbolTag.BACKWARD})]


def test_visitor_must_answer(chain):
    with pytest.raises(ThunderTypeError, match="VISIT_TYPE"):
        visitor_transform(chain, lambda bsym: None)


def test_dag_orders(chain):
    nodes = [b for b in chain.bound_symbols if b.sym.name in ("mul", "sin", "add")]
    roots, leaves = bsym_list_to_dag(nodes)
    assert [r.bsym.sym.name for r in roots] == ["mul"]
    assert [leaf.bsym.sym.name for leaf in leaves] == ["add"]
    for order, start in ((TOPOSORT_ORDER.TOP_DOWN, roots), (TOPOSORT_ORDER.BOTTOM_UP, leaves)):
        roots, leaves = bsym_list_to_dag(nodes)
        start = roots if order is TOPOSORT_ORDER.TOP_DOWN else leaves
        assert [b.sym.name for b in toposort_bsym_dag(start, order)] == ["mul", "sin", "add"]


def test_eval_trace_on_tensors(chain):
    a, b = torch.rand(3), torch.rand(3)
    torch.testing.assert_close(eval_trace(chain, a, b), torch.sin(a * b) + a)


def test_replace_inplace():
    trace = traced(lambda a: torch.sin(a), torch.rand(3))
    index = names(trace).index("sin") + sum(b.sym.name == "unpack_trivial" for b in trace.bound_symbols)
    replace_inplace(trace, index, lambda bsym: trace.emit(bsym.sym, bsym.args, bsym.kwargs, bsym.output))
    assert names(trace) == ["sin"]


def test_vjp_inside_a_trace():
    def f(x, w, g):
        return vjp(lambda x, w: torch.tanh(x @ w))((x, w), g)

    x, w, g = torch.rand(2, 3), torch.rand(3, 4), torch.rand(2, 4)
    value, grads = run(traced(f, x, w, g), x, w, g)
    xr, wr = x.clone().requires_grad_(), w.clone().requires_grad_()
    want = torch.tanh(xr @ wr)
    want.backward(g)
    torch.testing.assert_close(value, want.detach())
    torch.testing.assert_close(tuple(grads), (xr.grad, wr.grad))


def test_value_and_grad_inside_a_trace():
    def f(x, n):
        return value_and_grad(lambda x, n: (x * n).exp().sum())(x, n)

    x = torch.rand(3)
    value, grads = run(traced(f, x, torch.tensor(2.0)), x, torch.tensor(2.0))
    torch.testing.assert_close(value, (x * 2).exp().sum())
    torch.testing.assert_close(grads[0], 2 * (x * 2).exp())


def test_wrong_number_of_cotangents():
    def f(x):
        return vjp(lambda x: (x.sin(), x.cos()))((x,), (x,))

    with pytest.raises(ThunderValueError, match="2 expected"):
        traced(f, torch.rand(3))


def test_outside_of_a_trace():
    with pytest.raises(ThunderTypeError, match="trace"):
        vjp(torch.sin)((torch.rand(3),), torch.rand(3))
