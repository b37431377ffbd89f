"""thunder.examine, thunder.dev_utils and `python -m thunder`."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder import __main__
from thunder.core import prims
from thunder.core.errors import TraceVerificationError
from thunder.core.options import ENV
from thunder.core.transforms.del_last_used import del_last_used
from thunder.dev_utils.check_trace import CheckedListOfTraces, check_trace
from thunder.dev_utils.debug_transform import DebugTransform, debug_execution_trace
from thunder.examine import examine, get_alloc_memory, get_fusion_symbols, get_fusions, make_trace_dot
from thunder.examine.memory_calculation import size_bytes
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.fusers import ElementwiseFuser
from thunder.tests.unit.test_extend import make_fuser
from thunder.tests.unit.traces import add, make_trace, mul, node_of, sin, tensor
from thunder.torch.registry import symbol_for


def test_examine_reports_functions_and_success(capsys):
    def fn(x):
        return F.gelu(x).sinc() + x.sinc()

    found = examine(fn, torch.randn(3), show_call_stack=True)
    text = capsys.readouterr().out
    assert found.error is None
    assert {"torch.nn.functional.gelu", "torch.Tensor.sinc"} <= set(found.functions)
    assert len(found.functions["torch.Tensor.sinc"]) == 2
    assert found.functions["torch.Tensor.sinc"][0].startswith(f"{__file__}:")
    assert "torch.Tensor.sinc" in found.automatic
    assert f"The program calls {len(found.functions)} torch functions" in text
    assert text.count("called at") >= 1
    assert "thunder.jit compiles and runs it." in text


def test_examine_takes_methods_for_the_functions_that_they_are():
    found = examine(lambda x: (x.sin() + x.pow(2)).mul_(2).sum() / x.transpose(0, 1).mean(), torch.randn(3, 3))
    assert len(found.functions) >= 7
    assert found.automatic == ()


@pytest.mark.parametrize(
    "fn, reason",
    [
        (3, "TypeError: 3 is not callable"),
        (lambda x: x + torch.ones(5), "must match the size"),
        (lambda x: x if x.sum() > 0 else -x, "DataDependentControlFlowError"),
    ],
    ids=["not callable", "fails by itself", "cannot be compiled"],
)
def test_examine_prints_why_a_program_does_not_run(fn, reason, capsys):
    assert examine(fn, torch.randn(3)).error is not None
    text = capsys.readouterr().out
    assert "thunder.jit cannot run it" in text
    assert reason in text


def test_fusions():
    trace = transform_for_execution(make_trace(lambda x, y: add(mul(sin(x), y), y)), [make_fuser("exa"), torchex])
    (node,) = get_fusion_symbols(trace)
    assert [s.sym.name for s in node.subsymbols] == ["sin", "mul"]
    ((name, fn),) = get_fusions(trace)
    assert name == "PairFusion0"
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(fn(x, y)[-1], x.sin() * y)
    plain = transform_for_execution(make_trace(lambda x, y: sin(x)), [torchex])
    assert get_fusions(plain) == get_fusion_symbols(plain) == []


def test_a_fusers_bound_method_is_its_regions_callable():
    class Sine:
        def run(self, *values):
            return [values[0].sin()]

    class Own(ElementwiseFuser):
        def fuse(self, region, fusion_counter):
            return self.register_temporary_operation(
                "Own0", Sine().run, inputs=region.inputs, outputs=region.outputs, bsyms=region.bsyms
            )

    trace = transform_for_execution(make_trace(lambda x, y: sin(x)), [Own(), torchex])
    ((_, fn),) = get_fusions(trace)
    x = torch.randn(3)
    torch.testing.assert_close(fn(x), [x.sin()])


def test_a_trace_as_a_graph():
    dot = make_trace_dot(make_trace(lambda x, y: mul(sin(x), y)))
    assert dot == (
        'digraph "computation" {\n'
        "  node [shape=box];\n"
        '  arg_x [shape=ellipse, label="x"];\n'
        '  arg_y [shape=ellipse, label="y"];\n'
        '  n0 [label="sin"];\n'
        '  arg_x -> n0 [label="x"];\n'
        '  n1 [label="mul"];\n'
        '  n0 -> n1 [label="t0"];\n'
        '  arg_y -> n1 [label="y"];\n'
        '  n2 [label="python_return"];\n'
        '  n1 -> n2 [label="t1"];\n'
        "}\n"
    )


def test_a_graph_with_types_and_lines():
    x = torch.randn(2, requires_grad=True)
    jitted = thunder.jit(lambda x: (x * 2).sin())
    jitted(x)
    backward = make_trace_dot(thunder.last_backward_traces(jitted)[-1], show_metadata=True)
    assert "lightblue" in backward
    assert "cpu f32[2]\\n" in backward
    assert f"{__file__}:" in backward
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=backward.encode(), check=True, capture_output=True, timeout=20)


def executable(fn, names="x y"):
    return del_last_used(transform_for_execution(make_trace(fn, names, shape=(4, 4)), [torchex]))


def test_memory_of_a_chain():
    peak, allocated = get_alloc_memory(executable(lambda x: sin(sin(sin(x))), "x"))
    assert allocated == {"x": 64, "t0": 64, "t1": 64, "t2": 64}
    assert peak == 128
    peak, _ = get_alloc_memory(executable(lambda x: (sin(x), sin(x), x), "x"))
    assert peak == 192


def test_views_and_writes_share_memory():
    def program(x, y):
        view = symbol_for(torch.reshape)(x, (16,))
        written = prims.copy_(y, x)
        return sin(view), written

    trace = executable(program)
    peak, allocated = get_alloc_memory(trace)
    assert list(allocated) == ["x", "y", "t2"]
    assert peak == 128


def test_memory_of_a_backward_counts_what_is_saved():
    x = torch.randn(4, 4, requires_grad=True)
    jitted = thunder.jit(lambda x: x.sin().exp())
    jitted(x)
    _, allocated = get_alloc_memory(thunder.last_backward_traces(jitted)[-1])
    assert all(size == 64 for size in allocated.values())
    assert len(allocated) >= 4


@pytest.mark.parametrize(
    "shape, dtype, size",
    [((), torch.float64, 8), ((0, 3), torch.float32, 0), ((3,), torch.bool, 3), ((2,), torch.complex64, 16)],
)
def test_sizes(shape, dtype, size):
    trace = make_trace(lambda x: x, "x")
    assert size_bytes(tensor(trace, "q", shape, dtype=dtype)) == size


def test_checked_traces():
    good = make_trace(lambda x, y: mul(sin(x), y))
    bad = good.with_nodes([n for n in good.bound_symbols if n.sym is not sin])
    check_trace(good)
    check_trace(good, version=1)
    with pytest.raises(AssertionError, match="t0 is read before"):
        check_trace(bad)
    traces = CheckedListOfTraces([good])
    traces.append(good)
    with pytest.raises(TraceVerificationError):
        traces.extend([good, bad])
    assert traces == [good] * 3


def test_callbacks_around_each_operation():
    seen = []

    def before(bsym, *args, **kwargs):
        seen.append(("before", bsym.sym.name, [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]))
        return f"reads {len(args)} arguments\nand runs"

    def after(bsym, output, *args, **kwargs):
        seen.append(("after", bsym.sym.name, float(output.sum()) == float(output.sum())))

    original = thunder.jit(lambda x: (x * 2).sin())
    debugged = debug_execution_trace(original, before, after)
    x = torch.randn(3, requires_grad=True)
    out = debugged(x)
    torch.testing.assert_close(out, original(x))
    assert [s[:2] for s in seen] == [("before", "mul"), ("after", "mul"), ("before", "sin"), ("after", "sin")]
    assert seen[0][2] == [(3,)]
    seen.clear()
    out.sum().backward()
    torch.testing.assert_close(x.grad, (x * 2).cos() * 2)
    assert ("before", "cos") in [s[:2] for s in seen]
    text = thunder.last_traces(debugged)[-1].python()
    assert "  # reads 2 arguments\n  # and runs\n" in text
    assert "debug_" not in thunder.last_traces(original)[-1].python()


def test_a_debug_transform_needs_a_callback_and_a_compiled_function():
    with pytest.raises(RuntimeError, match="needs pre_callback or post_callback"):
        DebugTransform()
    with pytest.raises(RuntimeError, match="not compiled"):
        debug_execution_trace(torch.sin, print)


def test_debug_nodes_have_the_origin_of_the_operation():
    trace = executable(lambda x: sin(x), "x")
    new = DebugTransform(pre_callback=lambda *args: None).transform_trace_post_optimization(trace)
    debug = next(n for n in new.bound_symbols if n.sym.name.startswith("debug_"))
    assert debug.origin == node_of(trace, "sin").origin


def test_the_environment_report(capsys):
    assert __main__.main(["env"]) == 0
    text = capsys.readouterr().out
    for what in ("thunder", "torch", "Python", "executors", *ENV):
        assert what in text
    assert "always executors" in text
    with pytest.raises(SystemExit):
        __main__.main([])
    assert "usage: python -m thunder" in capsys.readouterr().err
