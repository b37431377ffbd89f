"""thunder.core.printer: traces as Python source."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

from thunder.core import devices, dtypes, prims
from thunder.core.errors import ThunderTypeError
from thunder.core.origin import BACKWARD, SourceLocation, origin
from thunder.core.printer import _Context, dotted_path, print_value
from thunder.core.proxies import AnyProxy, FutureTensorProxy, NumberProxy, TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.extend import OperatorExecutor
from thunder.tests.unit.traces import add, body, lines, make_trace, mul, sin, tensor


class Color(enum.Enum):
    RED = "red"


class Text(str, enum.Enum):
    A = "a"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Config:
    rate: float
    name: str


Pair = namedtuple("Pair", "a b")


def shown(x: Any) -> tuple[str, Any]:
    ctx = _Context()
    text = print_value(x, ctx)
    return text, eval(text, {**ctx.names, "torch": torch, "dtypes": dtypes, "devices": devices})


@pytest.mark.parametrize(
    "value, text",
    [
        (1, "1"), (True, "True"), (None, "None"), (..., "..."), ("a'b\n", '"a\'b\\n"'), (1.5, "1.5"),
        (float("inf"), "float('inf')"), (-float("inf"), "-float('inf')"), (2j, "2j"),
        ((1,), "(1,)"), ((), "()"), ([1, [2.0]], "[1, [2.0]]"), ({"k": (1, 2)}, "{'k': (1, 2)}"),
        (slice(None, 3, None), "slice(None, 3, None)"), ({2, 1}, "{1, 2}"), (frozenset({1}), "frozenset({1})"),
        (set(), "set()"), (torch.Size([2, 3]), "(2, 3)"), (torch.float16, "torch.float16"),
        (torch.device("cpu"), 'torch.device("cpu")'), (torch.channels_last, "torch.channels_last"),
        (torch.strided, "torch.strided"), (dtypes.float32, "dtypes.float32"), (int, "int"),
        (torch.sin, "torch.sin"), (torch.nn.functional.gelu, "torch.nn.functional.gelu"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (Color.RED, "Color.RED"), (Text.A, "Text.A"), (Mode.READ, "Mode.READ"), (Pair(1, [2]), "Pair(1, [2])"),
    ],
)  # fmt: skip
def test_values_print_as_source_that_gives_them_back(value, text):
    printed, back = shown(value)
    assert printed == text
    assert back == value
    assert type(back) is type(value) or isinstance(value, torch.Size)


@pytest.mark.parametrize("value", [float("nan"), complex(float("inf"), float("nan")), complex(-0.0, float("-inf"))])
def test_numbers_that_are_no_literals(value):
    _, back = shown(value)
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value", [Mode.READ | Mode.WRITE, numpy.int64(3), object(), torch.Generator(), numpy.float32, Config]
)
def test_values_without_a_literal_get_a_name(value):
    text, back = shown(value)
    assert text.startswith("_")
    assert text.isidentifier()
    assert back is value or back == value


def test_dataclasses_print_their_fields():
    text, back = shown(Config(0.5, "c"))
    assert text.endswith("_Config(rate=0.5, name='c')")
    assert back == Config(0.5, "c")


def test_devices_print_as_thunder_s():
    text, back = shown(devices.cpu)
    assert text == 'devices.Device("cpu")'
    assert back is devices.cpu


def test_two_classes_of_one_name_get_two_names():
    other = enum.Enum("Color", "BLUE")
    ctx = _Context()
    assert print_value(Color.RED, ctx) == "Color.RED"
    assert print_value(other.BLUE, ctx) == "_Color_0.BLUE"
    assert ctx.names["Color"] is Color
    assert ctx.names["_Color_0"] is other


def test_an_object_has_one_name_and_different_ones_have_different_names():
    ctx = _Context()
    a, b = object(), object()
    assert [print_value(v, ctx) for v in (a, b, a)] == ["_object_0", "_object_1", "_object_0"]


@pytest.mark.parametrize(
    "fn, path",
    [
        (torch.Tensor.T.__get__, "torch.Tensor.T.__get__"),
        (torch.Tensor.add_, "torch.Tensor.add_"), (torch.linalg.norm, "torch.linalg.norm"),
        (torch.special.expit, "torch.special.expit"), (torch.fft.fft, "torch.fft.fft"), (len, None), ([], None),
    ],
)  # fmt: skip
def test_paths_of_torch_callables(fn, path):
    assert dotted_path(fn) == path


def test_a_whole_trace():
    trace = TraceCtx()
    x = tensor(trace, "x")
    trace.args = (x,)
    with tracectx(trace):
        trace.emit(prims.unpack_trivial, (x,), {"name": "x"}, x)
        with origin(source=SourceLocation("model.py", 3, "h = x * 2\nignored")):
            h = mul(x, 2, out=None)
        with origin(source=SourceLocation("model.py", 4, "return h.sin()")):
            out = sin(h)
        trace.emit(prims.python_return, ((out,),), {}, None)
    trace.set_provenance("a test")
    assert trace.python() == (
        "# Constructed by a test\n"
        "import torch\n"
        "from thunder.executors.torchex import no_autocast\n"
        "\n"
        "@torch.no_grad()\n"
        "@no_autocast\n"
        "def computation(x):\n"
        '  # x: "cpu f32[2, 3]"\n'
        "\n"
        "  # model.py:3: \th = x * 2\n"
        '  t0 = ltorch.mul(x, 2, out=None)  # t0: "cpu f32[2, 3]"\n'
        "\n"
        "  # model.py:4: \treturn h.sin()\n"
        '  t1 = ltorch.sin(t0)  # t1: "cpu f32[2, 3]"\n'
        "  return (t1,)\n"
    )


def test_inputs_are_shown_once_with_and_without_unpacking():
    trace = make_trace(lambda x, y: add(x, y))
    assert trace.python().count('# x: "cpu f32[2, 3]"') == 1
    bare = trace.with_nodes(trace.bound_symbols[2:])
    assert bare.python().count('# x: "cpu f32[2, 3]"') == 1
    assert bare.python().count('# y: "cpu f32[2, 3]"') == 1


def test_without_decorators():
    text = make_trace(lambda x, y: add(x, y)).python(include_decorators=False)
    assert text.startswith("def computation(x, y):\n")
    trace = make_trace(lambda x, y: add(x, y))
    trace.include_decorators = False
    assert "@" not in str(trace)


def test_tags_are_shown_at_all_depths_only():
    def program(x, y):
        with origin(add_tags=(BACKWARD,)):
            return add(x, y)

    trace = make_trace(program)
    assert "BACKWARD" not in trace.python()
    assert "BACKWARD" not in trace.python(print_depth=2)
    assert '# t0: "cpu f32[2, 3]"  # BACKWARD\n' in str(trace)


def test_decompositions_are_indented_comments():
    inner = Symbol("inner", lambda a: sin(mul(a, 2)), "test.inner", module="test")
    outer = Symbol("outer", lambda a: add(inner(a), a), "test.outer", module="test")
    trace = make_trace(lambda x: outer(x), "x")
    assert body(trace) == lines('t2 = test.outer(x)  # t2: "cpu f32[2, 3]"\nreturn t2')
    assert body(trace, 2) == lines(
        """
        t2 = test.outer(x)  # t2: "cpu f32[2, 3]"
        #   t2_t1 = test.inner(x)  # t2_t1: "cpu f32[2, 3]"
        #   t2 = ltorch.add(t2_t1, x)  # t2: "cpu f32[2, 3]"
        return t2
        """
    )
    third = [line for line in body(trace, 3).splitlines() if line.startswith("  #     ")]
    assert third[0] == '  #     t2_t1_t0 = ltorch.mul(x, 2)  # t2_t1_t0: "cpu f32[2, 3]"'
    assert len(body(trace, -1).splitlines()) >= len(body(trace, 3).splitlines())


def test_outputs():
    trace = TraceCtx()
    a, b = tensor(trace, "a"), tensor(trace, "b")
    sym = Symbol("f", None, "test.f", module="test")

    def line(output, *args):
        trace.bound_symbols = [sym.bind(*args, output=output)]
        return trace.python(include_decorators=False).splitlines()[1].strip()

    assert line((a, b)) == "(a, b) = test.f()"
    assert line((a,)) == "(a,) = test.f()"
    assert line([a, None]) == "[a, _] = test.f()"
    assert line((a, (b, None))) == "(a, (b, _)) = test.f()"
    assert line(None) == "test.f()"
    assert line((None, 3)) == "test.f()"
    assert line(a, a) == "test.f(a)"
    with pytest.raises(ThunderTypeError, match="f gives dict"):
        line({"a": a})


def test_types():
    trace = TraceCtx()
    like = TensorProxy("t", shape=(4, 1), device="meta", dtype=torch.bfloat16)
    assert like.type_string() == "meta bf16[4, 1]"
    assert TensorProxy("t", shape=(), device="cpu", dtype=torch.float8_e4m3fn).type_string() == "cpu f8_e4m3fn[]"
    assert NumberProxy("n", 2, python_type=int).type_string() == "int 2"
    assert NumberProxy("n", python_type=float).type_string() == "float"
    assert AnyProxy([1], name="l").type_string() == "list"
    assert AnyProxy(None, name="l").type_string() == "Any"
    assert FutureTensorProxy("f", like=like).type_string() == "FUTURE meta bf16[4, 1]"
    assert not trace.bound_symbols


def test_a_value_named_like_an_operator_does_not_hide_it():
    ex = OperatorExecutor("printer_test")
    ex.implements(torch.sin, scaled_sine)
    trace = TraceCtx(name="computation")
    x = tensor(trace, "scaled_sine")
    trace.args = (x,)
    with tracectx(trace), origin(pass_name="test"):
        trace.emit(prims.python_return, (sin(x),), {}, None)
    claimed = transform_for_execution(trace, [ex, torchex])
    assert "= _scaled_sine_0(scaled_sine)" in claimed.python()
    given = torch.ones(2, 3)
    torch.testing.assert_close(claimed.python_callable()(given), given.sin())


def scaled_sine(x):
    return torch.sin(x)


def test_values_never_take_the_names_that_generated_code_needs():
    trace = TraceCtx()
    assert [trace.unique_name(n) for n in ("torch", "float", "lambda", "x")] == ["torch_0", "float_0", "lambda_0", "x"]
    with pytest.raises(RuntimeError, match="cannot be called slice"):
        trace.make_name("slice")


def test_annotated_code_shows_operations_to_profilers(monkeypatch):
    plain = transform_for_execution(make_trace(lambda x, y: mul(sin(x), y)), [torchex])
    assert "record_function" not in plain.python()
    monkeypatch.setenv("THUNDER_ANNOTATE_TRACES", "1")
    assert "  with torch.profiler.record_function('sin model.py:7'):\n    t0 = torch.sin(x)" in plain.python()
    run = plain.python_callable()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = run(x, y)
    torch.testing.assert_close(result, x.sin() * y)
    assert {"sin model.py:7", "mul model.py:7"} <= {event.key for event in profile.key_averages()}


def test_aliases_have_the_name_that_aten_has():
    assert dotted_path(torch.mm) == dotted_path(torch.spmm) == "torch.mm"
    assert dotted_path(torch.Tensor.__abs__) == "torch.Tensor.abs"
