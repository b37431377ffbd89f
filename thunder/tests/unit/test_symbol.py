"""thunder.core.symbol: operations and their occurrences."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims
from thunder.core.errors import UnsupportedOpError
from thunder.core.origin import BACKWARD, origin
from thunder.core.proxies import NumberProxy, TensorProxy, variableify
from thunder.core.symbol import OpTags, Symbol, Traits, gather_tags, has_tags
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.tracing import grad_mode
from thunder.tests.unit.traces import add, make_trace, mul, node_of, rand_like, sin, tensor


def like_first(a, *args, **kwargs):
    return TensorProxy(like=a, requires_grad=False)


def test_symbols_are_equal_by_id_else_by_name():
    assert Symbol("a", id="x") == Symbol("b", id="x")
    assert hash(Symbol("a", id="x")) == hash(Symbol("b", id="x"))
    assert Symbol("a", id="x") != Symbol("a", id="y")
    assert Symbol("a", module="m") == Symbol("a", module="m")
    assert Symbol("a", module="m") != Symbol("a", module="n")
    assert Symbol("a") != "a"
    assert repr(Symbol("a", id="x")) == "[Symbol name=a, id=x]"
    assert Symbol("a").__name__ == "a"


def test_normalize_fills_in_defaults():
    sym = Symbol("f", lambda a, b=1, *, c=2: a)
    assert sym.normalize("x", c=3) == (("x", 1), {"c": 3})
    assert Symbol("f").normalize(1, a=2) == ((1,), {"a": 2})
    with pytest.raises(TypeError):
        sym.normalize()


def test_calls_outside_a_trace_run_or_say_why_not():
    assert torch.equal(add(torch.ones(2), 1), torch.full((2,), 2.0))
    composite = Symbol("twice", lambda a: add(a, a))
    assert torch.equal(composite(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(UnsupportedOpError, match="f can only be called while a trace is being built"):
        Symbol("f", like_first, is_prim=True)(torch.ones(1))
    with pytest.raises(UnsupportedOpError, match="no meta rule"), tracectx(TraceCtx()):
        Symbol("f")(1)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("differentiable", [True, False])
def test_outputs_require_grad_as_eager_s_do(enabled, differentiable):
    sym = Symbol("f", like_first, "test.f", True, traits=Traits(is_differentiable=differentiable))
    to_int = Symbol("g", lambda a: TensorProxy(like=a, dtype=torch.int64), "test.g", True)

    def program(x):
        with grad_mode(enabled):
            return sym(x), to_int(x)

    trace = make_trace(program, "x", requires_grad=True)
    assert node_of(trace, "f").output.requires_grad == (enabled and differentiable)
    assert not node_of(trace, "g").output.requires_grad
    assert not node_of(make_trace(program, "x"), "f").output.requires_grad


def test_a_meta_that_returns_its_input_gives_an_output_of_its_own():
    same = Symbol("same", lambda a: a, "test.same", True)
    node = node_of(make_trace(lambda x: same(x), "x"), "same")
    assert node.output.name != node.args[0].name
    assert node.defined == (node.output,)


def test_what_a_node_reads_and_defines():
    trace = TraceCtx()
    x, y = tensor(trace, "x"), tensor(trace, "y")
    node = Symbol("f").bind(x, [y, x], 3, output=(x, (y2 := tensor(trace, "y2")), None), key={"k": y})
    assert [p.name for p in node.flat_proxy_args] == ["x", "y"]
    assert [p.name for p in node.flat_proxy_outs] == ["x", "y2"]
    assert node.defined == (y2,)
    assert node.has_input([y])
    assert node.has_input([variableify(x)])
    assert not node.has_input(["z"])
    assert not node.are_all_args_constant()
    assert Symbol("f").bind(1, output=None).are_all_args_constant()
    assert [v.name for v in node.flat_variableified_proxy_args] == ["x", "y"]
    assert [v.name for v in node.flat_variableified_proxy_outs] == ["x", "y2"]
    assert repr(node) == "<x, y2 = f(x, y)>"


def test_what_a_node_writes():
    trace = TraceCtx()
    x, y, z = (tensor(trace, n) for n in "xyz")
    sym = Symbol("f", traits=Traits(writes=(0, "out")))
    node = sym.bind(x, y, output=None, out=[z])
    assert [p.name for p in node.written] == ["x", "z"]
    assert node.has_effects
    assert not sin.bind(x, output=y).has_effects
    assert rand_like.bind(x, output=y).has_effects


def test_the_right_hand_side_as_a_key():
    trace = TraceCtx()
    x, y = tensor(trace, "x"), tensor(trace, "y")

    def key(*args, **kwargs):
        return add.bind(*args, output=None, **kwargs).rhs

    assert key(x, 1) == key(x, 1)
    different = [key(x, 1), key(x, 1.0), key(x, True), key(y, 1), key(1, x), key(x, alpha=1), key(x, 0.0), key(x, -0.0)]
    assert len(set(different)) == len(different)
    assert key(x, float("nan")) == key(x, float("nan"))
    assert key(x, bytearray()) is None
    with origin(add_tags=(BACKWARD,)):
        assert key(x, 1) != different[0]


def test_copies_keep_the_origin():
    trace = make_trace(lambda x, y: mul(sin(x), y))
    node = node_of(trace, "sin")
    z = tensor(trace, "z")
    copy = node.from_bsym(args=(z,))
    assert copy.origin is node.origin
    assert (copy.args, node.args[0].name) == ((z,), "x")
    swapped = node.from_bsym_swap_proxies({variableify(node.args[0]): z, variableify(node.output): z})
    assert (swapped.args[0], swapped.output) == (z, z)
    kept = node.from_bsym_swap_proxies({variableify(node.output): z}, skip_output=True)
    assert kept is node
    assert node.from_bsym_swap_proxies({variableify(node.args[0]): z}, skip_inputs=True) is node


def test_renaming_reaches_nested_arguments_and_parts():
    trace = TraceCtx()
    x, y, z = (tensor(trace, n) for n in "xyz")
    part = sin.bind(x, output=y)
    node = Symbol("f").bind([x, (1, x)], output=y, subsymbols=(part,), key={"k": x})
    new = node.renamed({"x": z, "y": x})
    assert new.args == ([z, (1, z)],)
    assert new.kwargs == {"key": {"k": z}}
    assert new.output is x
    assert (new.subsymbols[0].args[0], new.subsymbols[0].output) == (z, x)
    assert node.renamed({"q": z}) is node
    assert node.renamed({}) is node


def test_decompositions_are_made_when_asked_for():
    calls = []

    def meta(a):
        calls.append(1)
        return mul(sin(a), 2)

    sym = Symbol("composite", meta, "test.composite")
    node = node_of(make_trace(lambda x: sym(x), "x"), "composite")
    calls.clear()
    assert [s.sym.name for s in node.subsymbols] == ["sin", "mul"]
    assert node.subsymbols is node.subsymbols
    assert calls == [1]
    assert node.subsymbols[-1].output is node.output
    assert {o.name for s in node.subsymbols for o in s.flat_proxy_outs} == {node.output.name, f"{node.output.name}_t0"}


def test_primitives_and_given_parts():
    trace = make_trace(lambda x: prims.shallow_copy(x), "x")
    node = node_of(trace, "shallow_copy")
    assert node.subsymbols == ()
    assert node.from_bsym(subsymbols=(node,)).subsymbols == (node,)


def test_tags_of_the_operation_and_of_the_occurrence():
    with origin(add_tags=(BACKWARD,)):
        node = rand_like.bind(1, output=None)
    assert gather_tags(node) == {BACKWARD, *rand_like.tags}
    outer = Symbol("f").bind(output=None, subsymbols=(node,))
    assert has_tags(outer, {BACKWARD})
    assert not has_tags(outer, {OpTags.IN_PLACE})
    assert prims.copy_.has_tag(OpTags.DONT_DCE)
    assert not Symbol("f").has_tag(OpTags.DONT_DCE)


def test_numbers_behind_symbolic_sizes_are_read():
    n = NumberProxy("s0", python_type=int)
    assert [p.name for p in Symbol("f").bind(n, 2, output=None).flat_proxy_args] == ["s0"]
