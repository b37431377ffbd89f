"""thunder.core.trace: traces under construction and complete."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.symbol import Symbol
from thunder.core.trace import (
    TraceCtx,
    TraceTag,
    detached_trace,
    from_trace,
    get_tracectx,
    is_tracing,
    reset_tracectx,
    set_tracectx,
    tracectx,
)
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import add, make_trace, mul, sin
from thunder.torch.registry import symbol_for


def test_names():
    trace = TraceCtx()
    trace.add_name("x")
    with pytest.raises(RuntimeError, match="already used"):
        trace.add_name("x")
    assert trace.has_name("x")
    assert not trace.has_name("y")
    made = [trace.make_name(), trace.make_name(), trace.make_name(prefix="a"), trace.make_name("b")]
    assert made == ["t0", "t1", "a0", "b"]
    trace.add_name("t2")
    assert trace.make_name() == "t3"
    assert [trace.unique_name("x"), trace.unique_name("x"), trace.unique_name("free")] == ["x_0", "x_1", "free"]


def test_a_complete_trace_takes_no_more_nodes():
    trace = make_trace(lambda x, y: add(x, y))
    with pytest.raises(RuntimeError, match="this trace is complete"):
        trace.add_bound_symbol(trace.bound_symbols[0])
    from_trace(trace).add_bound_symbol(trace.bound_symbols[0])


def test_from_trace_copies_signature_names_and_tags_only():
    trace = make_trace(lambda x, y: add(x, y))
    trace.tags.add(TraceTag.AUGMENTED_FORWARD)
    trace.set_provenance("a pass")
    trace.include_decorators = False
    new = from_trace(trace)
    assert (new.args, new.name, new.names, new.tags) == (trace.args, trace.name, trace.names, trace.tags)
    assert new.bound_symbols == []
    assert new.get_provenance() is None
    assert not new.include_decorators
    new.add_name("only_here")
    assert not trace.has_name("only_here")
    assert new.make_name() not in trace.names


def test_with_nodes():
    trace = make_trace(lambda x, y: add(x, y))
    new = trace.with_nodes(trace.bound_symbols[1:], "Less")
    assert len(new.bound_symbols) == len(trace.bound_symbols) - 1
    assert str(new).startswith("# Constructed by Less\n")
    assert repr(new.get_provenance()) == "# Constructed by Less"


def test_the_current_trace():
    assert get_tracectx() is None
    assert not is_tracing()
    outer, inner = TraceCtx(), TraceCtx()
    token = set_tracectx(outer)
    with tracectx(inner):
        assert get_tracectx() is inner
        with detached_trace() as scratch:
            assert get_tracectx() is scratch
        assert is_tracing()
    assert get_tracectx() is outer
    reset_tracectx(token)
    assert get_tracectx() is None


def test_outputs():
    assert make_trace(lambda x, y: x).output.name == "x"
    assert [p.name for p in make_trace(lambda x, y: (x, y)).output] == ["x", "y"]
    with tracectx(TraceCtx()) as trace:
        trace.emit(prims.python_return, (1, 2), {}, None)
    assert trace.output == (1, 2)


def test_calling_a_composite_adds_one_node():
    composite = Symbol("composite", lambda a, b: mul(add(a, b), b), "test.composite")
    trace = make_trace(lambda x, y: sin(composite(x, y)))
    assert [n.sym.name for n in trace.bound_symbols[2:]] == ["composite", "sin", "python_return"]


def test_results_are_run_as_printed():
    trace = transform_for_execution(make_trace(lambda x, y: (mul(sin(x), y), x)), [torchex])
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    z, same = trace.python_callable()(x, y)
    torch.testing.assert_close(z, x.sin() * y)
    assert same is x
    namespace = {}
    exec(trace.python(), namespace)
    torch.testing.assert_close(namespace["computation"](x, y)[0], z)
    assert "torch" in trace.python_ctx()


def test_generated_code_runs_without_autograd_and_autocast():
    trace = transform_for_execution(make_trace(lambda x, y: mul(x, y)), [torchex])
    x = torch.ones(2, 3, requires_grad=True)
    assert not trace.python_callable()(x, x).requires_grad
    product = make_trace(lambda x, y: symbol_for(torch.matmul)(x, y), shape=(2, 2))
    run = transform_for_execution(product, [torchex]).python_callable()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32
    trace.include_decorators = False
    assert trace.python_callable()(x, x).requires_grad


def test_saving(tmp_path):
    trace = make_trace(lambda x, y: add(x, y))
    trace.save_trace(tmp_path / "trace.py")
    assert (tmp_path / "trace.py").read_text() == str(trace)


def test_the_text_is_the_same_each_time():
    def program(x, y):
        with origin(pass_name="p"):
            return mul(add(x, y), 2)

    assert str(make_trace(program)) == str(make_trace(program))
