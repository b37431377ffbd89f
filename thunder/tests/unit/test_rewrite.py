"""thunder.core.rewrite: the interpreter that passes substitute nodes with."""

from __future__ import annotations

import pytest

from thunder.core import prims
from thunder.core.origin import RECOMPUTE_IN_BACKWARD, origin
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import bsym_header
from thunder.core.verify import verify
from thunder.tests.unit.traces import LINE, add, body, cos, lines, make_trace, mul, node_of, sin


def program(x, y):
    a = add(x, y)
    b = mul(a, a)
    return sin(b)


def test_keep_changes_nothing():
    trace = make_trace(program)
    new = rewrite(trace, lambda node: KEEP, "nothing")
    assert str(new) == str(trace)
    assert new is not trace
    assert all(a is b for a, b in zip(new.bound_symbols, trace.bound_symbols))


def test_a_replaced_output_keeps_its_name():
    trace = make_trace(program)
    before = str(trace)
    new = rewrite(trace, lambda n: add(cos(n.args[0]), n.args[1]) if n.sym is mul else KEEP, "expand")
    assert body(new) == lines(
        """
        t0 = ltorch.add(x, y)  # t0: "cpu f32[2, 3]"
        t3 = ltorch.cos(t0)  # t3: "cpu f32[2, 3]"
        t1 = ltorch.add(t3, t0)  # t1: "cpu f32[2, 3]"
        t2 = ltorch.sin(t1)  # t2: "cpu f32[2, 3]"
        return t2
        """
    )
    assert str(trace) == before
    verify(new, level=2, before=trace)


def test_a_result_that_was_there_before_takes_the_place_of_the_node():
    new = rewrite(make_trace(program), lambda n: n.args[0] if n.sym is mul else KEEP, "identity")
    assert body(new) == lines(
        """
        t0 = ltorch.add(x, y)  # t0: "cpu f32[2, 3]"
        t2 = ltorch.sin(t0)  # t2: "cpu f32[2, 3]"
        return t2
        """
    )


def test_a_node_can_become_a_constant():
    new = rewrite(make_trace(lambda x, y: mul(x, add(y, 1))), lambda n: 2.0 if n.sym is add else KEEP, "fold")
    assert body(new) == lines(
        """
        t1 = ltorch.mul(x, 2.0)  # t1: "cpu f32[2, 3]"
        return t1
        """
    )


def test_one_new_value_may_stand_for_several_outputs():
    def pair(x, y):
        split = prims.prim_by_id(prims.PrimIDs.CUSTOM_VJP)
        a, b = split((add(x, y), mul(x, y)), (x, y), None)
        return sin(a), cos(b)

    def rule(node):
        if node.sym is not prims.custom_vjp:
            return KEEP
        same = tanh_of(node.args[0][0])
        return (same, same)

    def tanh_of(a):
        return add(a, a)

    new = rewrite(make_trace(pair), rule, "merge")
    verify(new, level=2)
    made = node_of(new, "add")
    assert made is not None
    reads = [n.args[0].name for n in new.bound_symbols if n.sym in (sin, cos)]
    assert len(set(reads)) == 1


def test_the_number_of_outputs_must_fit():
    with pytest.raises(ValueError, match="zip"):
        rewrite(make_trace(program), lambda n: (n.args[0], n.args[0]) if n.sym is mul else KEEP, "bad")


def test_the_origin_is_the_node_s_and_the_pass_is_noted():
    def tagged(x, y):
        with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)):
            return mul(x, y)

    new = rewrite(make_trace(tagged), lambda n: add(sin(n.args[0]), n.args[1]) if n.sym is mul else KEEP, "p")
    for name in ("sin", "add"):
        made = node_of(new, name).origin
        assert (made.source, made.tags, made.passes) == (LINE, {RECOMPUTE_IN_BACKWARD}, ("p",))


def test_headers_print_above_what_is_made_inside():
    def rule(node):
        if node.sym is not mul:
            return KEEP
        with bsym_header("two lines\nof header"):
            return add(*node.args)

    assert lines(
        """
        # two lines
        # of header
        t1 = ltorch.add(t0, t0)  # t1: "cpu f32[2, 3]"
        """
    ) in body(rewrite(make_trace(program), rule, "p"))
