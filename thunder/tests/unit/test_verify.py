"""The verifier: one invalid trace for each rule, and messages that name the pass, the node and the user's line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from thunder.core import prims
from thunder.core.errors import TraceVerificationError
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD, Origin, origin
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.verify import STAGES, check_metadata_of, verify
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import LINE, add, add_, cos, make_trace, mul, node_of, sin, tensor


def trace_of(fn=lambda x, y: mul(sin(add(x, y)), y), **kwargs):
    return make_trace(fn, **kwargs)


def changed(trace, name, **changes):
    """`trace` with the first node called `name` changed."""
    node = node_of(trace, name)
    return trace.with_nodes([n.from_bsym(**changes) if n is node else n for n in trace.bound_symbols])


def without(trace, name):
    node = node_of(trace, name)
    return trace.with_nodes([n for n in trace.bound_symbols if n is not node])


def broken(trace, match, **kwargs):
    with pytest.raises(TraceVerificationError, match=match) as error:
        verify(trace, pass_name="my_pass", **kwargs)
    return str(error.value)


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "executable"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_valid_trace_passes(stage, level):
    verify(trace_of(), stage=stage, level=level)


def test_a_valid_executable_and_a_valid_joint_trace_pass():
    verify(transform_for_execution(trace_of(), [torchex]), stage="executable", level=2)
    verify(joint_trace(make_trace(lambda x, y: (mul(sin(x), y),), requires_grad=True)), stage="joint", level=2)


def test_the_message_names_pass_node_and_line_and_shows_the_neighbours():
    trace = trace_of()
    text = broken(changed(trace, "sin", args=(tensor(trace, "ghost"),)), "ghost is read before it is defined")
    assert "after the pass 'my_pass'" in text
    assert "node 3 of computation" in text
    assert "model.py:7\n    y = f(x)\n    ^^^^^^^^" in text
    assert "not of your program" in text
    assert '\n>> t1 = ltorch.sin(ghost)  # t1: "cpu f32[2, 3]"\n' in text
    assert "\n   t0 = ltorch.add(x, y)" in text
    assert "\n   t2 = ltorch.mul(t1, y)" in text


def test_a_value_is_defined_before_it_is_read():
    broken(without(trace_of(), "add"), "t0 is read before it is defined")


def test_a_deleted_value_is_not_read():
    trace = trace_of()
    nodes = list(trace.bound_symbols)
    nodes.insert(3, prims.python_del.bind(nodes[2].output, output=None))
    broken(trace.with_nodes(nodes), "t0 is read before it is defined, or after it is deleted")
    nodes.insert(3, nodes.pop(4))
    nodes.insert(4, nodes[4])
    broken(trace.with_nodes(nodes), "t0 is read before it is defined, or after it is deleted")


def test_a_value_is_defined_once():
    trace = trace_of()
    broken(changed(trace, "mul", output=node_of(trace, "add").output), "t0 is defined twice")


def test_names_are_identifiers():
    trace = trace_of()
    odd = node_of(trace, "mul").output.replace(name="t 2")
    bad = changed(changed(trace, "mul", output=odd), "python_return", args=(odd,))
    broken(bad, "'t 2' is no identifier")


@pytest.mark.parametrize(
    "change", [{"shape": (3, 2)}, {"dtype": torch.float64}, {"device": "meta"}], ids=lambda c: next(iter(c))
)
def test_a_name_has_one_type(change):
    trace = trace_of()
    other = node_of(trace, "add").output.replace(name="t0", **change)
    broken(changed(trace, "sin", args=(other,)), "t0 is used as .* but was defined as")


def test_a_trace_ends_with_its_only_return():
    broken(without(trace_of(), "python_return"), "a trace ends with its only return")
    trace = trace_of()
    broken(trace.with_nodes([*trace.bound_symbols, trace.bound_symbols[-1]]), "a trace ends with its only return")
    with pytest.raises(TraceVerificationError, match="empty"):
        verify(TraceCtx())


def joint():
    return joint_trace(make_trace(lambda x, y: (mul(sin(x), y),), requires_grad=True))


def test_what_depends_on_a_gradient_is_backward():
    trace = joint()
    untagged = replace(node_of(trace, "cos").origin, tags=frozenset())
    text = broken(
        trace.with_nodes(
            [n.from_bsym(origin=untagged) if n.sym.name.startswith("mul.") else n for n in trace.bound_symbols]
        ),
        "which backward computes, but is not tagged BACKWARD",
        stage="joint",
    )
    assert "model.py:7" in text


def test_get_grad_is_backward():
    trace = joint()
    broken(changed(trace, "get_grad", origin=Origin()), "get_grad is not tagged BACKWARD", stage="joint")


def test_parts_have_the_tags_of_the_whole():
    trace = trace_of()
    node = node_of(trace, "sin")
    part = node.from_bsym()
    tagged = Origin(LINE, "", frozenset({BACKWARD, RECOMPUTE_IN_BACKWARD}))
    bad = changed(trace, "sin", origin=tagged, subsymbols=(part,))
    broken(bad, "sin, part of sin, lacks its tag BACKWARD, RECOMPUTE_IN_BACKWARD|not tagged BACKWARD")
    deep = Symbol("outer", None, "test.outer", module="test").bind(*node.args, output=node.output, subsymbols=(part,))
    deep = deep.from_bsym(origin=tagged)
    broken(changed(trace, "sin", origin=tagged, subsymbols=(deep,)), "sin, part of outer, lacks its tag|not tagged")


def test_a_pass_keeps_lines_and_backward():
    trace = trace_of()
    lost = changed(trace, "sin", origin=Origin(passes=("my_pass",)))
    broken(lost, r"sin has lost the line that it comes from, model.py:7", before=trace)
    verify(lost, level=1)
    before = joint()
    forgetful = replace(node_of(before, "cos").origin, tags=frozenset())
    broken(changed(before, "cos", origin=forgetful), "cos has lost its tag BACKWARD", stage="joint", before=before)


def test_nothing_but_copy_writes_once_functional():
    def program(x, y):
        add_(x, y)
        return mul(x, y)

    trace = make_trace(program)
    verify(trace, stage="captured", level=2)
    broken(trace, "add_ writes to x in a functional trace", stage="functional")
    written = make_trace(lambda x, y: (prims.copy_(mul(x, y), x), y)[1])
    verify(written, stage="functional", level=2)


def test_a_replaced_alias_is_not_read():
    def program(x, y):
        (new,) = prims.update_aliases((x,), (y,))
        return mul(new, y), sin(x)

    broken(make_trace(program), "x is read after t0 replaced it", stage="aliased")


def test_everything_has_an_implementation_once_executable():
    trace = transform_for_execution(trace_of(), [torchex])
    broken(changed(trace, "sin", sym=sin), "nobody executes sin", stage="executable")


def test_metadata_is_what_the_rule_gives():
    scale = Symbol("scale", lambda a: TensorProxy(like=a), "test.scale", is_prim=True, module="test")
    two = lambda a: (TensorProxy(like=a), TensorProxy(like=a))  # noqa: E731
    pair = Symbol("pair", two, "test.pair", is_prim=True, module="test")
    for sym in (scale, pair):
        check_metadata_of(sym.id)
    trace = TraceCtx(name="computation")
    x = tensor(trace, "x")
    trace.args = (x,)
    with tracectx(trace), origin(source=LINE):
        out = tensor(trace, "out", (3, 2))
        trace.emit(scale, (x,), {}, out)
        trace.emit(prims.python_return, (out,), {}, None)
    broken(trace, r"the meta rule of scale gives \(\(2, 3\).*, the node says \(\(3, 2\)", level=2)
    broken(changed(trace, "scale", sym=pair), "gives 2 outputs, the node has 1", level=2)
    verify(trace, level=1)


def test_metadata_of_primitives_is_checked():
    trace = make_trace(lambda x, y: prims.shallow_copy(x))
    wide = node_of(trace, "shallow_copy").output.replace(name="t0", dtype=torch.float64)
    bad = changed(changed(trace, "shallow_copy", output=wide), "python_return", args=(wide,))
    broken(bad, "the meta rule of shallow_copy", level=2)


def test_parts_compute_the_outputs_from_the_inputs():
    trace = trace_of()
    node = node_of(trace, "sin")
    alien = cos.bind(node_of(trace, "mul").output, output=node.output).from_bsym(origin=node.origin)
    broken(changed(trace, "sin", subsymbols=(alien,)), "cos, part of sin, reads t2, which sin does not", level=2)
    other = cos.bind(*node.args, output=tensor(trace, "elsewhere")).from_bsym(origin=node.origin)
    broken(changed(trace, "sin", subsymbols=(other,)), "the parts of sin do not compute its output t1", level=2)
    right = cos.bind(*node.args, output=node.output).from_bsym(origin=node.origin)
    verify(changed(trace, "sin", subsymbols=(right,)), level=2)


def test_decompositions_are_checked_where_they_are_lazy():
    composite = Symbol("twice", lambda a: mul(sin(a), 2), "test.twice", module="test")
    verify(make_trace(lambda x, y: composite(x)), level=2)


def test_every_node_has_an_origin():
    text = broken(changed(trace_of(), "sin", origin=Origin()), "sin has no origin", level=2)
    assert ">> t1 = ltorch.sin" in text
    verify(changed(trace_of(), "sin", origin=Origin()), level=1)


def test_the_printed_source_compiles():
    trace = trace_of()
    odd = replace(sin, python_printer=lambda bsym, out, args, kwargs: f"{out.name} = = 1")
    broken(changed(trace, "sin", sym=odd), "the printed source does not compile", level=2)


def test_the_printed_source_refers_to_what_is_there():
    trace = transform_for_execution(trace_of(), [torchex])
    node = node_of(trace, "sin")
    odd = replace(node.sym, python_printer=lambda bsym, out, args, kwargs: f"{out.name} = nowhere({args[0].name})")
    broken(changed(trace, "sin", sym=odd), "refers to nowhere, which nothing defines", stage="executable", level=2)


def test_time_is_linear_in_the_number_of_nodes():
    """Counted in proxies made by meta rules, not in seconds: each node's rule runs once."""
    calls = []

    def meta(a):
        calls.append(1)
        return TensorProxy(like=a)

    counted = Symbol("counted", meta, "test.counted", True, module="test")
    check_metadata_of(counted.id)

    def program(x, y):
        for _ in range(50):
            x = counted(x)
        return x

    trace = make_trace(program)
    calls.clear()
    verify(trace, level=2)
    assert len(calls) == 50
