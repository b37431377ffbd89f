"""thunder.extend: executors that users write."""

from __future__ import annotations

import numpy
import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core import prims
from thunder.core.errors import ThunderTypeError, UnsupportedOpError
from thunder.core.prims import make_prim
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol, Traits
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.extend import (
    FUEL_LEVEL,
    FusionExecutor,
    OperatorExecutor,
    StatefulExecutor,
    TemporaryExecutor,
    single_op_executor,
)
from thunder.tests.unit.traces import add, body, cos, lines, make_trace, mul, node_of, sin
from thunder.torch.registry import symbol_for


def like_first(a, *args, **kwargs):
    return TensorProxy(like=a)


def executed(jitted):
    return [n.sym.name for n in thunder.last_traces(jitted)[-1].bound_symbols]


# Operators and implementations


def test_an_operator_runs_in_a_trace_under_its_name():
    ex = OperatorExecutor("ext_a", version=1)
    double = ex.register_operator("double", meta=like_first, fn=lambda a: a * 2)
    assert (ex.opmap["double"], double.executor, double.is_prim) == (double, ex, True)
    trace = transform_for_execution(make_trace(lambda x: double(sin(x)), "x"), [ex, torchex])
    assert body(trace) == lines(
        """
        t0 = torch.sin(x)  # t0: "cpu f32[2, 3]"
        t1 = double(t0)  # t1: "cpu f32[2, 3]"
        return t1
        """
    )
    x = torch.randn(2, 3)
    torch.testing.assert_close(trace.python_callable()(x), x.sin() * 2)


def test_an_operator_called_outside_a_trace_runs():
    op = OperatorExecutor("ext_b").register_operator("double", meta=like_first, fn=lambda a: a * 2)
    assert op(torch.ones(1)).item() == 2
    nothing = OperatorExecutor("ext_b").register_operator("nothing", meta=like_first)
    with pytest.raises(UnsupportedOpError, match="only be called while a trace"):
        nothing(torch.ones(1))


def test_exactly_one_of_like_and_meta():
    ex = OperatorExecutor("ext_c")
    for arguments in ({}, {"like": torch.sin, "meta": like_first}):
        with pytest.raises(ThunderTypeError, match="exactly one of like= and meta="):
            ex.register_operator("op", fn=torch.sin, **arguments)


def test_like_takes_metadata_tags_and_effects():
    ex = OperatorExecutor("ext_d")
    op = ex.register_operator("noise", like=torch.rand_like, fn=torch.rand_like)
    assert op.traits.is_random
    assert op.tags == tuple(symbol_for(torch.rand_like).tags)
    out = node_of(make_trace(lambda x: op(x, dtype=torch.float64), "x"), "noise").output
    assert out.type_string() == "cpu f64[2, 3]"
    assert ex.register_operator("own", like=torch.sin, fn=torch.sin, tags=()).tags == ()


def test_an_implementation_needs_an_operator_or_a_transform_and_one_gradient_rule():
    ex = OperatorExecutor("ext_e")
    with pytest.raises(ThunderTypeError, match="needs an operator or an execution_transform"):
        ex.register_implementation(torch.sin)
    op = ex.register_operator("op", like=torch.sin, fn=torch.sin)
    with pytest.raises(ThunderTypeError, match="not both"):
        ex.register_implementation(torch.sin, op, grad_transform=len, vjp=len)


@pytest.mark.parametrize("key", [torch.tanh, "torch.tanh", sin], ids=["callable", "id", "symbol"])
def test_a_user_s_kernel_claims_a_torch_operation(key):
    calls = []

    def kernel(a):
        calls.append(a.shape)
        return torch.tanh(a) if key is not sin else torch.sin(a)

    ex = OperatorExecutor("ext_f")
    op = ex.register_operator("kernel", like=torch.tanh, fn=kernel)
    ex.register_implementation(key, op)
    jitted = thunder.jit(lambda x: torch.tanh(torch.sin(x)) + 1, executors=[ex])
    x = torch.randn(3)
    torch.testing.assert_close(jitted(x), x.sin().tanh() + 1)
    assert "kernel" in executed(jitted)
    assert calls == [(3,)]


def test_a_user_s_kernel_claims_a_primitive_below_a_composite():
    scale = make_prim("EXT_SCALE", "ext_scale", meta=like_first)
    shifted = Symbol("shifted", lambda a: add(scale(a, 3), 1), "ext.shifted", module="ext")
    ex = OperatorExecutor("ext_g")
    op = ex.register_operator("fast_scale", like=scale, fn=lambda a, n: a * n)
    trace = make_trace(lambda x: shifted(x), "x")
    with pytest.raises(UnsupportedOpError, match=r"no executor runs ext_scale \(executors: torch\)"):
        transform_for_execution(trace, [torchex])
    ex.register_implementation(prims.PrimIDs.EXT_SCALE, op)
    claimed = transform_for_execution(trace, [ex, torchex])
    assert [n.sym.name for n in claimed.bound_symbols[1:-1]] == ["fast_scale", "add"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(claimed.python_callable()(x), x * 3 + 1)


def test_a_claim_of_the_composite_comes_before_its_parts():
    half = make_prim("EXT_HALF", "ext_half", meta=like_first)
    composite = Symbol("composite", lambda a: half(half(a)), "ext.composite", module="ext")
    ex = OperatorExecutor("ext_h")
    quarter = ex.register_operator("quarter", like=composite, fn=lambda a: a / 4)
    ex.register_implementation(composite, quarter)
    claimed = transform_for_execution(make_trace(lambda x: composite(x), "x"), [ex, torchex])
    assert [n.sym.name for n in claimed.bound_symbols[1:-1]] == ["quarter"]


def test_the_checker_decides_and_the_next_executor_takes_the_rest():
    ex = OperatorExecutor("ext_i")
    op = ex.register_operator("wide_sum", like=torch.add, fn=torch.add)
    ex.register_implementation(torch.add, op, checker=lambda a, b, **kwargs: isinstance(b, TensorProxy))
    jitted = thunder.jit(lambda x: (x + x) + 1, executors=[ex])
    jitted(torch.ones(2))
    assert executed(jitted).count("wide_sum") == 1
    assert executed(jitted).count("add") == 1


def test_the_first_executor_is_asked_first():
    first, second = OperatorExecutor("ext_j1"), OperatorExecutor("ext_j2")
    for ex in (first, second):
        ex.implements(torch.sin, lambda a: torch.sin(a))
        ex.register_implementation(torch.sin, ex.register_operator(f"sin_{ex.name}", like=torch.sin, fn=torch.sin))
    for order in ([first, second], [second, first]):
        jitted = thunder.jit(torch.sin, executors=order)
        jitted(torch.ones(2))
        assert f"sin_{order[0].name}" in executed(jitted)


def test_an_execution_transform_is_traced_in_place():
    ex = OperatorExecutor("ext_k")
    ex.register_implementation(torch.sin, execution_transform=lambda a: mul(sin_of(a), 1))
    sin_of = ex.register_operator("my_sin", like=torch.sin, fn=torch.sin)
    trace = make_trace(lambda x: sin(x), "x")
    claimed = transform_for_execution(trace, [ex, torchex])
    assert body(claimed) == lines(
        """
        t1 = my_sin(x)  # t1: "cpu f32[2, 3]"
        t0 = torch.mul(t1, 1)  # t0: "cpu f32[2, 3]"
        return t0
        """
    )
    assert all(n.origin.source == trace.bound_symbols[1].origin.source for n in claimed.bound_symbols[1:-1])


# Gradients


def grads(fn, *args):
    args = [a.detach().requires_grad_() for a in args]
    fn(*args).backward()
    return [a.grad for a in args]


def test_a_gradient_rule_in_the_vjp_form():
    seen = []

    def rule(a):
        return op(a), lambda g: backward(g, a)

    ex = OperatorExecutor("ext_l")
    op = ex.register_operator("my_sin", like=torch.sin, fn=lambda a: torch.from_numpy(numpy.sin(a.numpy())))
    backward = ex.register_operator("my_cos", meta=like_first, fn=lambda g, a: (seen.append(1), g * a.cos())[1])
    ex.register_implementation(torch.sin, op, vjp=rule)
    jitted = thunder.jit(lambda x: torch.sin(x * 2).sum(), executors=[ex])
    x = torch.randn(4)
    torch.testing.assert_close(grads(jitted, x), grads(lambda x: torch.sin(x * 2).sum(), x))
    assert seen == [1]
    assert "my_sin" in executed(jitted)
    bw = node_of(thunder.last_backward_traces(jitted)[-1], "my_cos")
    assert bw.is_backward
    assert bw.source_filename == __file__


def test_a_gradient_rule_in_the_get_grad_form():
    def rule(a):
        out = op(a)
        g = prims.get_grad(out)
        prims.put_grad(a, mul(g, cos(a)))
        return out

    ex = OperatorExecutor("ext_m")
    op = ex.register_operator("my_sin", like=torch.sin, fn=torch.sin)
    ex.register_implementation(torch.sin, op, grad_transform=rule)
    assert ex.get_grad_transform(sin) is rule
    jitted = thunder.jit(lambda x: torch.sin(x * 2).sum(), executors=[ex])
    x = torch.randn(4)
    torch.testing.assert_close(grads(jitted, x), grads(lambda x: torch.sin(x * 2).sum(), x))
    assert "my_sin" in executed(jitted)


def test_without_a_rule_a_claimed_operation_has_torch_s_gradient():
    ex = OperatorExecutor("ext_n")
    ex.implements(torch.sin, numpy_sin)
    jitted = thunder.jit(lambda x: torch.sin(x * 2).sum(), executors=[ex])
    x = torch.randn(4)
    torch.testing.assert_close(grads(jitted, x), grads(lambda x: torch.sin(x * 2).sum(), x))
    assert "numpy_sin" in executed(jitted)


def numpy_sin(a):
    return torch.from_numpy(numpy.sin(a.numpy()))


# Replacing callables


def test_replaces_diverts_calls_of_a_torch_function():
    ex = OperatorExecutor("ext_o")
    ex.register_operator("my_gelu", like=F.gelu, fn=lambda a, **kwargs: F.gelu(a, **kwargs), replaces=F.gelu)

    def fn(x):
        return F.gelu(x * 2, approximate="tanh").sum()

    jitted = thunder.jit(fn, executors=[ex])
    x = torch.randn(4)
    torch.testing.assert_close(jitted(x), fn(x))
    assert "my_gelu" in [n.sym.name for n in thunder.last_traces(jitted)[0].bound_symbols]
    torch.testing.assert_close(grads(jitted, x), grads(fn, x))
    plain = thunder.jit(fn)
    plain(x)
    assert "my_gelu" not in executed(plain)


def test_replaces_takes_several_callables_and_operators():
    ex = OperatorExecutor("ext_p")
    ex.register_operator("my_add", like=torch.add, fn=torch.add, replaces=[torch.add, torch.Tensor.add])
    jitted = thunder.jit(lambda x: (x + x).add(torch.add(x, 1)), executors=[ex])
    jitted(torch.ones(2))
    assert executed(jitted).count("my_add") == 3


def slow_square(x):
    return x * x


def test_replaces_diverts_calls_of_a_user_s_function():
    ex = OperatorExecutor("ext_q")
    ex.register_operator("fast_square", meta=like_first, fn=torch.square, replaces=slow_square)
    x = torch.randn(4)
    jitted = thunder.jit(lambda x: slow_square(x).sum(), executors=[ex])
    torch.testing.assert_close(grads(jitted, x), [2 * x])
    assert "fast_square" in executed(jitted)
    plain = thunder.jit(lambda x: slow_square(x).sum())
    torch.testing.assert_close(grads(plain, x), [2 * x])


def test_the_checker_of_a_replacement_is_asked():
    ex = single_op_executor(
        "ext_r", "my_relu", torch.relu, like_first, replaces=torch.relu, checker=lambda a: a.ndim == 2
    )
    jitted = thunder.jit(lambda x: torch.relu(x) + torch.relu(x.sum(0)), executors=[ex])
    x = torch.randn(2, 3)
    torch.testing.assert_close(jitted(x), x.relu() + x.sum(0).relu())
    assert executed(jitted).count("my_relu") == 1
    assert executed(jitted).count("relu") == 1


def test_a_replacement_must_have_the_metadata_of_what_it_replaces():
    ex = OperatorExecutor("ext_s")
    ex.register_operator("bad", meta=lambda a: TensorProxy(like=a, shape=(1,)), fn=torch.sin, replaces=torch.sin)
    with pytest.raises(ThunderTypeError, match=r"bad replaces sin and must give \['cpu f32\[2\]'\]"):
        thunder.jit(lambda x: torch.sin(x), executors=[ex])(torch.ones(2))


def test_a_replacement_of_a_write_declares_the_write():
    def fn(x, y):
        x.add_(y)
        return x * 2

    undeclared = OperatorExecutor("ext_t1")
    undeclared.register_operator("my_add_", meta=lambda a, b: a, fn=torch.Tensor.add_, replaces=torch.Tensor.add_)
    with pytest.raises(ThunderTypeError, match="must declare the write in traits"):
        thunder.jit(fn, executors=[undeclared])(torch.ones(2), torch.ones(2))
    ex = OperatorExecutor("ext_t2")
    ex.register_operator(
        "my_add_", meta=lambda a, b: a, fn=torch.Tensor.add_, replaces=torch.Tensor.add_, traits=Traits(writes=(0,))
    )
    x = torch.ones(2)
    torch.testing.assert_close(thunder.jit(fn, executors=[ex])(x, torch.ones(2)), torch.full((2,), 4.0))
    torch.testing.assert_close(x, torch.full((2,), 2.0))


@pytest.mark.parametrize(
    "kernel, reason",
    [(numpy_sin, "autograd cannot follow its function"), (lambda a: a.detach().sin(), "that autograd does not track")],
    ids=["numpy", "detached"],
)
def test_a_replacement_out_of_autograd_s_reach_needs_a_rule(kernel, reason):
    """Never a silently missing gradient."""
    ex = OperatorExecutor("ext_u")
    ex.register_operator("opaque", like=torch.sin, fn=kernel, replaces=torch.sin)
    jitted = thunder.jit(lambda x: torch.sin(x).sum(), executors=[ex])
    x = torch.randn(3)
    torch.testing.assert_close(jitted(x), x.sin().sum())
    with pytest.raises(UnsupportedOpError, match=f"opaque of the executor ext_u has no gradient rule.*{reason}"):
        jitted(x.clone().requires_grad_())


# Special executors


def test_single_op_executor_with_a_gradient():
    def rule(a):
        out = op(a)
        prims.put_grad(a, mul(prims.get_grad(out), 3))
        return out

    ex = single_op_executor(
        "ext_v", "triple", lambda a: a.detach() * 3, like_first, replaces=slow_triple, grad_transform=rule, version="1"
    )
    op = ex.opmap["triple"]
    assert (ex.name, ex.version) == ("ext_v", "1")
    x = torch.randn(3)
    jitted = thunder.jit(lambda x: slow_triple(x).sum(), executors=[ex])
    torch.testing.assert_close(grads(jitted, x), [torch.full((3,), 3.0)])


def slow_triple(x):
    return x * 3


def test_each_use_of_a_stateful_operator_has_its_own_state():
    class Counter:
        made = 0

        def __init__(self):
            Counter.made += 1
            self.calls = 0

        def __call__(self, a):
            self.calls += 1
            return a + self.calls

    ex = StatefulExecutor("ext_w")
    count = ex.register_stateful_operator("count", Counter, meta=like_first)
    trace = transform_for_execution(make_trace(lambda x: count(count(x)), "x"), [ex, torchex])
    assert [n.sym.name for n in trace.bound_symbols[1:-1]] == ["count_0", "count_1"]
    assert Counter.made == 2
    run = trace.python_callable()
    assert run(torch.zeros(1)).item() == 2
    assert run(torch.zeros(1)).item() == 4
    assert set(ex.opmap) == {"count_0", "count_1"}
    with pytest.raises(ThunderTypeError, match="while a trace is being built"):
        count(torch.ones(1))


def test_an_opaque_function_becomes_an_operator():
    ex = TemporaryExecutor()
    op = ex.register_operator_for_opaque_function(slow_square)
    trace = transform_for_execution(make_trace(lambda x: op(x), "x"), [ex, torchex])
    x = torch.randn(2, 3)
    torch.testing.assert_close(trace.python_callable()(x), x * x)
    assert TemporaryExecutor() != TemporaryExecutor() or ex.name != torchex.name


# Fusion


class PairFuser(FusionExecutor):
    """Fuses each run of supported nodes into one callable made of their torch functions."""

    def fuse(self, region, fusion_counter):
        made = {o.name: o for n in region for o in n.flat_proxy_outs}
        inputs = list({p.name: p for n in region for p in n.flat_proxy_args if p.name not in made}.values())

        def run(*values):
            env = dict(zip([p.name for p in inputs], values, strict=True))
            for n in region:
                arguments = [env[a.name] if isinstance(a, TensorProxy) else a for a in n.args]
                env[n.output.name] = n.sym.torch_fn(*arguments)
            return [env[name] for name in made]

        name = f"PairFusion{fusion_counter}"
        return self.register_temporary_operation(name, run, inputs=inputs, outputs=list(made.values()), bsyms=region)

    def fusion_pass(self, trace):
        nodes, region, counter = [], [], 0
        for node in trace.bound_symbols:
            if self.can_fuse(node) and node.sym.name != "unpack_trivial":
                region.append(node)
                continue
            if region:
                nodes.append(self.fuse(region, counter) if self.get_fuel() else None)
                nodes = [n for n in nodes if n is not None] if nodes[-1] is not None else [*nodes[:-1], *region]
                region, counter = [], counter + 1
            nodes.append(node)
        return trace.with_nodes(nodes)


def make_fuser(name):
    ex = PairFuser(name)
    for fn in (torch.sin, torch.mul):
        ex.register_supported(fn, checker=lambda *args, **kwargs: args[0].ndim == 2)
    return ex


def test_a_fuser_replaces_regions_and_operators_take_the_rest():
    ex = make_fuser("ext_x")
    trace = transform_for_execution(make_trace(lambda x, y: add(mul(sin(x), y), y)), [ex, torchex])
    assert body(trace) == lines(
        """
        [t0, t1] = PairFusion0(x, y)
        t2 = torch.add(t1, y)  # t2: "cpu f32[2, 3]"
        return t2
        """
    )
    assert [n.sym.name for n in trace.bound_symbols[2].subsymbols] == ["sin", "mul"]
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(trace.python_callable()(x, y), x.sin() * y + y)


def test_fuel_limits_the_number_of_regions():
    ex = make_fuser("ext_y")
    assert ex.get_fuel()
    ex.set_fuel(1)
    assert (ex.get_fuel(), ex.get_fuel()) == (True, False)
    trace = transform_for_execution(make_trace(lambda x, y: mul(sin(x), y)), [ex, torchex])
    assert [n.sym.name for n in trace.bound_symbols[2:-1]] == ["sin", "mul"]
    ex.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert ex.get_fuel()


def test_executors_are_equal_by_name():
    assert OperatorExecutor("a") == OperatorExecutor("a")
    assert hash(OperatorExecutor("a")) == hash(OperatorExecutor("a"))
    assert OperatorExecutor("a") != OperatorExecutor("b")
    assert repr(OperatorExecutor("a")) == "thunder.extend.OperatorExecutor('a')"
    trace = TraceCtx()
    with tracectx(trace):
        assert not OperatorExecutor("a").can_execute(sin.bind(output=None))
