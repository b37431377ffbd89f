"""Common subexpression elimination."""

from __future__ import annotations

import torch

from thunder.core.origin import RECOMPUTE_IN_BACKWARD, BoundSymbolTag, origin
from thunder.core.passes import PassContext
from thunder.core.tracing import get_tracectx
from thunder.core.transforms.cse import CommonSubexpressionElimination, cse
from thunder.core.transforms.dce import dce
from thunder.core.verify import verify
from thunder.tests.unit.traces import add, body, lines, make_trace, mul, rand_like, sin


def names(trace):
    return [n.sym.name for n in trace.bound_symbols[len(trace.args) : -1]]


def test_equal_calls_are_computed_once():
    def program(x, y):
        a = mul(sin(x), y)
        b = mul(sin(x), y)
        return add(a, b)

    trace = make_trace(program)
    new = cse(trace)
    assert body(new) == lines(
        """
        t0 = ltorch.sin(x)  # t0: "cpu f32[2, 3]"
        t1 = ltorch.mul(t0, y)  # t1: "cpu f32[2, 3]"
        t4 = ltorch.add(t1, t1)  # t4: "cpu f32[2, 3]"
        return t4
        """
    )
    verify(new, level=2, before=trace)


def test_arguments_of_other_types_are_other_calls():
    def program(x, y):
        made = [add(x, 1), add(x, 1.0), add(x, True), add(x, y), add(y, x), add(x, 0.0), add(x, -0.0)]
        return torch_stack(made)

    def torch_stack(values):
        total = values[0]
        for v in values[1:]:
            total = mul(total, v)
        return total

    trace = make_trace(program)
    assert CommonSubexpressionElimination().apply(trace, PassContext()) is trace


def test_nan_equals_nan():
    trace = make_trace(lambda x, y: mul(add(x, float("nan")), add(x, float("nan"))))
    assert names(cse(trace)) == ["add", "mul"]


def test_random_numbers_are_drawn_as_often_as_before():
    trace = make_trace(lambda x, y: add(rand_like(x), rand_like(x)))
    assert names(cse(trace)) == ["rand_like", "rand_like", "add"]


def test_returned_values_keep_memory_of_their_own():
    trace = make_trace(lambda x, y: (sin(x), sin(x)))
    assert names(cse(trace)) == ["sin", "sin"]


def test_what_is_recomputed_is_not_merged_with_what_is_kept():
    def program(x, y):
        with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)):
            a = sin(x)
        return mul(a, sin(x))

    assert names(cse(make_trace(program))) == ["sin", "sin", "mul"]


def test_unhashable_arguments_are_left():
    class Key:
        __hash__ = None

    trace = make_trace(lambda x, y: mul(add(x, y), add(x, y)))
    odd = [n.from_bsym(kwargs={"out": Key()}) if n.sym is add else n for n in trace.bound_symbols]
    assert names(cse(trace.with_nodes(odd))) == ["add", "add", "mul"]


def test_agrees_with_torch_when_run():
    trace = dce(cse(make_trace(lambda x, y: add(mul(sin(x), y), mul(sin(x), y)))))
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    assert names(trace) == ["sin", "mul", "add"]
    env = {"x": x, "y": y}
    for node in trace.bound_symbols[2:-1]:
        env[node.output.name] = node.sym.torch_fn(*(env[a.name] for a in node.args))
    torch.testing.assert_close(env[trace.output.name], x.sin() * y * 2)


def test_a_tracked_node_is_not_merged_with_an_untracked_one():
    def program(x, y):
        tracked = sin(x)
        trace = get_tracectx()
        untracked = tracked.replace(name=trace.make_name(prefix="t"), requires_grad=not tracked.requires_grad)
        with origin(add_tags=(BoundSymbolTag.NO_GRAD,)):
            trace.emit(trace.bound_symbols[-1].sym, (x,), {}, untracked)
        return add(tracked, untracked)

    assert names(cse(make_trace(program, requires_grad=True))) == ["sin", "sin", "add"]
