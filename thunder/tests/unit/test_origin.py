"""thunder.core.origin: where nodes come from, and that children inherit it."""

from __future__ import annotations

import pytest
import torch

from thunder.core.origin import (
    BACKWARD,
    RECOMPUTE_IN_BACKWARD,
    BoundSymbolTag,
    Origin,
    SourceLocation,
    current_origin,
    origin,
    tag_inheritance_disabled,
)
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.transforms.split import split_forward_backward
from thunder.tests.unit.traces import LINE, add, make_trace, mul, node_of, sin, tensor


def test_a_location_prints_as_file_and_line():
    assert str(SourceLocation("m.py", 3)) == "m.py:3"


def test_the_current_origin_is_that_of_emitted_nodes():
    trace = TraceCtx()
    x = tensor(trace, "x")
    with tracectx(trace), origin(source=LINE, module_path="layers.0", add_tags=(BACKWARD,)):
        sin(x)
    (node,) = trace.bound_symbols
    assert node.tags == {BACKWARD}
    assert node.is_backward
    assert (node.source_filename, node.source_positions) == ("model.py", 7)
    assert node.origin.module_path == "layers.0"
    assert current_origin() == Origin()


def test_origins_nest_and_are_restored():
    with origin(add_tags=(BACKWARD,), pass_name="a"):
        with origin(source=LINE, add_tags=(RECOMPUTE_IN_BACKWARD,), pass_name="b") as inner:
            assert inner.tags == {BACKWARD, RECOMPUTE_IN_BACKWARD}
            assert inner.passes == ("a", "b")
        assert current_origin().tags == {BACKWARD}
        assert current_origin().source is None
    with pytest.raises(KeyError), origin(source=LINE):
        raise KeyError
    assert current_origin() == Origin()


def test_a_base_takes_the_place_of_the_current_origin():
    base = Origin(source=LINE, tags=frozenset({BACKWARD}))
    with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)), origin(base) as now:
        assert now == base


def test_the_same_pass_is_noted_once_in_a_row():
    with origin(pass_name="a"), origin(pass_name="a"), origin(pass_name="b"), origin(pass_name="a") as now:
        assert now.passes == ("a", "b", "a")


def test_join_keeps_the_first_line_and_the_shared_tags():
    other = SourceLocation("model.py", 9)
    parts = [
        Origin(None, "a", frozenset({BACKWARD})),
        Origin(LINE, "a", frozenset({BACKWARD, RECOMPUTE_IN_BACKWARD}), ("dce",)),
        Origin(other, "b", frozenset({BACKWARD})),
    ]
    assert Origin.join(parts) == Origin(LINE, "", frozenset({BACKWARD}))
    assert Origin.join(parts[:2]).module_path == "a"
    assert Origin.join([]) == Origin()


def test_tags_can_be_added_once():
    with pytest.raises(AttributeError):
        BoundSymbolTag.register_tag("BACKWARD")


def _composite() -> Symbol:
    inner = Symbol("inner", lambda a: mul(sin(a), a), id="test.inner", module="test")
    return Symbol("outer", lambda a: add(inner(a), a), id="test.outer", module="test")


def test_decompositions_inherit_tags_and_line_at_every_level():
    trace = TraceCtx()
    x = tensor(trace, "x")
    with tracectx(trace), origin(source=LINE, module_path="m", add_tags=(BACKWARD,)):
        _composite()(x)

    def below(node):
        return [node, *(d for s in node.subsymbols for d in below(s))]

    nodes = below(trace.bound_symbols[0])
    named = [n.sym.name for n in nodes if n.sym.module != "prims"]
    assert named == ["outer", "inner", "sin", "mul", "add"]
    assert all(n.origin == nodes[0].origin for n in nodes)


def test_what_a_rule_makes_of_a_node_is_its_child():
    def program(x, y):
        with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)):
            return mul(x, y)

    trace = make_trace(program)
    new = rewrite(trace, lambda n: sin(add(*n.args)) if n.sym is mul else KEEP, "my_pass")
    for name in ("add", "sin"):
        made = node_of(new, name).origin
        assert made.source == LINE
        assert made.tags == {RECOMPUTE_IN_BACKWARD}
        assert made.passes == ("my_pass",)


def test_every_node_of_a_gradient_is_backward_and_points_to_the_line():
    joint = joint_trace(make_trace(lambda x, y: (mul(sin(x), y),), requires_grad=True))
    made = [n for n in joint.bound_symbols if n.is_backward and n.sym.name != "get_grad"]
    assert len(made) >= 4
    assert all(n.origin.source == LINE for n in made)
    assert all(n.origin.passes == ("autodiff",) for n in made)


def test_without_inheritance_backward_work_ends_up_in_the_forward():
    """What the one choke point is for: a rewrite whose children forget the tag moves gradients into the forward."""
    joint = joint_trace(make_trace(lambda x, y: (mul(sin(x), y),), requires_grad=True))

    def expand(node):
        return torch_cos_twice(node) if node.sym.name == "cos" else KEEP

    def torch_cos_twice(node):
        return sin(add(node.args[0], 1.5707963))

    kept = rewrite(joint, expand, "expand")
    with tag_inheritance_disabled():
        lost = rewrite(joint, expand, "expand")
    assert [n.is_backward for n in kept.bound_symbols if n.sym is add] == [True]
    assert [n.is_backward for n in lost.bound_symbols if n.sym is add] == [False]
    assert not any(n.sym is add for n in split_forward_backward(kept).forward.bound_symbols)
    assert any(n.sym is add for n in split_forward_backward(lost).forward.bound_symbols)
    assert torch.is_grad_enabled()
