"""Bad input: one typed error each, with the user's line; nothing half-done; the next call works."""

from __future__ import annotations

import logging
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.core.errors import (
    DataDependentControlFlowError,
    JITSharpEdgeError,
    ThunderError,
    ThunderTypeError,
    ThunderValueError,
    UnsupportedOpError,
)
from thunder.dynamo import ThunderCompiler

X = torch.ones(2, 3)

NOISE = ("Dynamo", "TORCHDYNAMO", "fullgraph", "torch.compile", "Developer debug", "Hint:", "FakeTensor", "graph break")


def assert_clear(error: pytest.ExceptionInfo, line: str) -> None:
    """The error is one of ours, names the user's line and is free of words of the machinery."""
    assert isinstance(error.value, ThunderError)
    text = str(error.value)
    assert "test_errors.py:" in text
    assert f"\n    {line}" in text
    assert "^^^" in text
    assert not [word for word in NOISE if word in text]
    assert "thunder/jit.py" not in text
    assert error.value.__suppress_context__
    assert str(pickle.loads(pickle.dumps(error.value))) == text


# Operations that torch refuses


def matmul(a, b):
    c = a + 1
    return c @ b


def broadcast(a, b):
    return a * 2 + b


def embedding(a, b):
    return F.embedding(a, b)


def loss(a, b):
    return F.cross_entropy(a, b.long())


def concatenate(a, b):
    return torch.cat([a, b[0]])


def reshape(a, b):
    return a.reshape(5)


def element(a, b):
    return a[5]


def dimension(a, b):
    return a.sum(7)


def device(a, b):
    return a + torch.ones(2, 3, device="meta")


def keyword(a, b):
    return torch.sum(a, dimension=1)


def operand(a, b):
    return a @ "text"


def convolution(a, b):
    return F.conv2d(a, b)


def interpolation(a, b):
    return F.interpolate(a, size=3, mode="nope")


def factorization(a, b):
    return torch.linalg.cholesky(a[0])


@pytest.mark.parametrize(
    "fn, other, kind, line",
    [
        (matmul, X, RuntimeError, "return c @ b"),
        (broadcast, torch.ones(4), RuntimeError, "return a * 2 + b"),
        (embedding, X, RuntimeError, "return F.embedding(a, b)"),
        (loss, torch.ones(5), ValueError, "return F.cross_entropy(a, b.long())"),
        (concatenate, X, RuntimeError, "return torch.cat([a, b[0]])"),
        (reshape, X, RuntimeError, "return a.reshape(5)"),
        (element, X, IndexError, "return a[5]"),
        (dimension, X, IndexError, "return a.sum(7)"),
        (device, X, RuntimeError, 'return a + torch.ones(2, 3, device="meta")'),
        (keyword, X, TypeError, "return torch.sum(a, dimension=1)"),
        (operand, X, TypeError, 'return a @ "text"'),
        (convolution, X, RuntimeError, "return F.conv2d(a, b)"),
        (interpolation, X, NotImplementedError, 'return F.interpolate(a, size=3, mode="nope")'),
        (factorization, X, RuntimeError, "return torch.linalg.cholesky(a[0])"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_operation_refused_by_torch(fn, other, kind, line, caplog, capfd):
    compiled = thunder.jit(fn)
    with caplog.at_level(logging.WARNING), pytest.raises(kind) as error:
        compiled(X, other)
    assert_clear(error, line)
    if fn is not device:
        with pytest.raises(kind):
            fn(X, other)
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_dtype():
    def fn(a, b):
        return a @ b

    with pytest.raises(RuntimeError, match="dtype") as error:
        thunder.jit(fn)(X, X.T.double())
    assert_clear(error, "return a @ b")


def test_wrong_shape_for_a_module():
    compiled = thunder.jit(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied") as error:
        compiled(X)
    assert isinstance(error.value, ThunderError)
    assert "F.linear(input, self.weight, self.bias)" in str(error.value)
    assert compiled(torch.ones(2, 4)).shape == (2, 3)


def test_the_next_call_works():
    compiled = thunder.jit(matmul)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            compiled(X, X)
        torch.testing.assert_close(compiled(X, X.T), matmul(X, X.T))
    with pytest.raises(RuntimeError):
        compiled(X, X)


def test_nothing_is_half_done():
    def fn(items, state, a, b):
        items.append(a + 1)
        state.add_(1)
        return a @ b

    compiled = thunder.jit(fn)
    items: list[Any] = []
    state = torch.zeros(2)
    with pytest.raises(RuntimeError):
        compiled(items, state, X, X)
    assert items == []
    torch.testing.assert_close(state, torch.zeros(2))
    compiled(items, state, X, X.T)
    assert len(items) == 1
    torch.testing.assert_close(state, torch.ones(2))


def test_errors_while_the_program_runs_are_those_of_torch():
    compiled = thunder.jit(lambda a, i: a[i])
    compiled(X, torch.tensor([1]))
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        compiled(X, torch.tensor([9]))
    torch.testing.assert_close(compiled(X, torch.tensor([1])), X[[1]])


# Arguments


def test_argument_counts():
    def scale(a, b, *, factor=1.0):
        return a * b * factor

    compiled = thunder.jit(scale)
    for args, kwargs in [((X,), {}), ((X, X, X), {}), ((X, X), {"fctor": 2}), ((X,), {"a": X})]:
        with pytest.raises(TypeError) as expected:
            scale(*args, **kwargs)
        with pytest.raises(TypeError) as got:
            compiled(*args, **kwargs)
        assert str(got.value) == str(expected.value)
    torch.testing.assert_close(compiled(X, X), X)


@pytest.mark.parametrize("args, kwargs", [((X, X), {}), ((), {}), ((X,), {"mask": None})])
def test_argument_counts_of_modules(args, kwargs):
    compiled = thunder.jit(nn.Linear(3, 3))
    with pytest.raises(ThunderTypeError, match=r"forward.*does not take these arguments") as error:
        compiled(*args, **kwargs)
    assert "Linear.forward" in str(error.value)
    assert compiled(X).shape == (2, 3)


@pytest.mark.parametrize("value", [3, "sin", None, [torch.sin], X])
def test_what_cannot_be_called(value):
    for entry in (thunder.jit, thunder.compile):
        with pytest.raises(ThunderTypeError, match="takes a function or a module"):
            entry(value)


def test_distributed_data_parallel_is_to_be_put_around():
    class Wrapped(nn.parallel.DistributedDataParallel):
        def __init__(self):
            nn.Module.__init__(self)

    with pytest.raises(ThunderTypeError, match="compile the module first"):
        thunder.jit(Wrapped())


# Options


@pytest.mark.parametrize(
    "options, kind, text",
    [
        ({"fusion_typ": "dataflow"}, TypeError, 'did you mean "fusion_type"'),
        ({"fusion_type": "datflow"}, ValueError, 'did you mean "dataflow"'),
        ({"fusion_type": 3}, ValueError, "fusion_type"),
        ({"nonsense": 1}, TypeError, "unknown compile option"),
        ({"nv_enable_linear": "yes"}, TypeError, "bool"),
        ({"cache": "symbolic value"}, ValueError, 'did you mean "symbolic values"'),
        ({"cache": 7}, ValueError, "allowed are"),
        ({"sharp_edges": "alow"}, ValueError, 'did you mean "allow"'),
        ({"executors": ["torhc"]}, ValueError, 'did you mean "torch"'),
        ({"executors": "torhc"}, ValueError, 'did you mean "torch"'),
        ({"executors": [3]}, ValueError, "no executor"),
        ({"transforms": [3]}, ValueError, "Transform"),
        ({"debug_options": 3}, TypeError, "DebugOptions"),
        ({"transforms": 3}, TypeError, "list"),
    ],
)
def test_options(options, kind, text):
    with pytest.raises(kind, match=text) as error:
        thunder.jit(torch.sin, **options)
    assert isinstance(error.value, ThunderError)
    with pytest.raises(kind):
        thunder.jit(nn.Linear(2, 2), **options)


# Values from outside

SCALE = 2.5
SIZES = {"rows": 2}


def scaled(a):
    return a * SCALE


def test_sharp_edges_in_error_mode():
    offset = 3

    def fn(a):
        return (scaled(a) + offset).reshape(SIZES["rows"], -1)

    compiled = thunder.jit(fn, sharp_edges="error")
    for _ in range(2):  # no half-compiled program is left behind
        with pytest.raises(JITSharpEdgeError) as error:
            compiled(X)
        for text in ("offset = 3", "SCALE = 2.5", "SIZES['rows'] = 2", "return a * SCALE", "test_errors.py:"):
            assert text in str(error.value)
    assert thunder.cache_misses(compiled) == 2
    torch.testing.assert_close(thunder.jit(fn)(X), fn(X))


def test_sharp_edges_in_warning_mode():
    compiled = thunder.jit(scaled, sharp_edges="warn")
    with pytest.warns(UserWarning, match=r"scaled is compiled for values .*\n  SCALE = 2.5"):
        compiled(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X), scaled(X))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.inner = 3, nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0))

    def forward(self, a, factor=2.0):
        return self.inner(a) * self.steps * factor * math.pi


def test_what_belongs_to_the_program_is_no_sharp_edge():
    def fn(a, k, options, *, dtype=torch.float64):
        parts = [a.to(dtype) * k + options["shift"] for k in range(2)]
        return torch.stack(parts) * math.e

    arguments = (X, 2, {"shift": 1})
    torch.testing.assert_close(thunder.jit(fn, sharp_edges="error")(*arguments), fn(*arguments))
    module = Scaled()
    torch.testing.assert_close(thunder.jit(module, sharp_edges="error")(X), module(X))


def test_sharp_edges_of_a_directly_captured_function():
    def fn(a):
        out = torch.empty(3, 2).t()
        torch.mul(a, SCALE, out=out)
        return out + SIZES["rows"]

    with pytest.raises(JITSharpEdgeError, match=r"(?s)SCALE = 2.5.*SIZES = \{'rows': 2\}"):
        thunder.jit(fn, sharp_edges="error")(X)
    torch.testing.assert_close(thunder.jit(fn)(X), fn(X))


def test_a_backend_does_not_see_sharp_edges():
    with pytest.raises(ValueError, match=r"sharp_edges is for thunder.jit"):
        ThunderCompiler(sharp_edges="error")


# Programs that cannot be captured


def branch(a):
    if a.sum() > 0:
        return a
    return -a


def repeat(a):
    for _ in range(int(a.sum())):
        a = a + 1
    return a


def while_loop(a):
    while a.max() < 10:
        a = a * 2
    return a


@pytest.mark.parametrize(
    "fn, line",
    [(branch, "if a.sum() > 0:"), (repeat, "for _ in range(int(a.sum())):"), (while_loop, "while a.max() < 10:")],
)
def test_data_dependent_control_flow(fn, line):
    with pytest.raises(DataDependentControlFlowError, match=r"torch\.where") as error:
        thunder.jit(fn)(X)
    assert_clear(error, line)
    assert isinstance(error.value, NotImplementedError)


def to_list(a):
    return a.tolist()


def read_file(a):
    with open("/dev/null") as f:
        return a * len(f.read())


def generator(a):
    yield a


@pytest.mark.parametrize("fn, line", [(to_list, "return a.tolist()"), (read_file, 'with open("/dev/null") as f:')])
def test_what_cannot_be_captured(fn, line):
    with pytest.raises(UnsupportedOpError, match="cannot be captured") as error:
        thunder.jit(fn)(X)
    text = str(error.value)
    assert f"\n    {line}" in text
    assert "Hint:" not in text
    assert "Developer debug" not in text


def test_generator_functions():
    with pytest.raises(UnsupportedOpError, match=r"[Gg]enerator") as error:
        thunder.jit(generator)(X)
    assert "def generator(a):" in str(error.value)


def test_print_is_as_in_eager(capsys):
    def fn(a):
        print("sum is", a.sum().detach())
        return a + 1

    compiled = thunder.jit(fn)
    for n in (1, 2, 2):
        torch.testing.assert_close(compiled(X * n), X * n + 1)
    assert capsys.readouterr().out == "sum is tensor(6.)\nsum is tensor(12.)\nsum is tensor(12.)\n"


# The user's own exceptions


class OwnError(Exception):
    """Of the user."""


def test_exceptions_of_the_user_are_unchanged():
    def fn(a, n):
        if n == 0:
            raise OwnError("own", n)
        if n == 1:
            assert a.shape[0] == 9, "nine rows"
        if n == 2:
            return a / (1 / 0 * n)
        if n == 3:
            return {}["missing"]
        if n == 4:
            return a.no_such_method()
        if n == 5:
            return torch.no_such_function(a)
        return [][n]

    compiled = thunder.jit(fn)
    for n in range(7):
        with pytest.raises(Exception) as expected:
            fn(X, n)
        with pytest.raises(type(expected.value)) as got:
            compiled(X, n)
        assert type(got.value) is type(expected.value)
        assert got.value.args == expected.value.args


def test_exceptions_handled_inside():
    def fn(a, d):
        try:
            return a * d["k"]
        except KeyError:
            return a + 1
        finally:
            d["seen"] = True

    compiled = thunder.jit(fn)
    for d in ({"k": 2}, {}):
        mine, theirs = dict(d), dict(d)
        torch.testing.assert_close(compiled(X, mine), fn(X, theirs))
        assert mine == theirs


def test_exception_in_a_hook_of_the_backward():
    def raise_error(g):
        raise OwnError("in the hook")

    a = torch.ones(3, requires_grad=True)
    out = thunder.jit(lambda t: t.sin().sum())(a)
    a.register_hook(raise_error)
    with pytest.raises(OwnError):
        out.backward()


# Recipes


def test_recipes_and_plugins():
    model = nn.Linear(3, 3)
    with pytest.raises(ThunderValueError, match='did you mean "default"'):
        thunder.compile(model, recipe="defalt")
    with pytest.raises(ThunderValueError, match="unknown plugin"):
        thunder.compile(model, plugins="no such plugin")
    with pytest.raises(ThunderTypeError, match="recipe"):
        thunder.compile(model, recipe=3)
    with pytest.raises(ThunderTypeError, match="plugin"):
        thunder.compile(model, plugins=[3])
    with pytest.raises(ThunderValueError, match="PreTrainedModel"):
        thunder.compile(model, recipe="hf-transformers")
