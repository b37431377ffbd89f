"""Which program runs when: hits and misses exactly, and no stale program whatever changes."""

from __future__ import annotations

import collections
import contextlib
import enum
import logging
import math
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder import CACHE_OPTIONS

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def counts(fn: Any) -> tuple[int, int]:
    return thunder.cache_misses(fn), thunder.cache_hits(fn)


def assert_calls(fn: Any, calls: list[tuple], misses: list[bool], **options: Any) -> Any:
    """Each call gives what eager gives, and compiles exactly where `misses` says so."""
    compiled = thunder.jit(fn, **options)
    assert counts(compiled) == (0, 0)
    seen: list[bool] = []
    for args in calls:
        before = thunder.cache_misses(compiled)
        got, expected = compiled(*args), fn(*args)
        torch.testing.assert_close(got, expected, equal_nan=True)
        if isinstance(expected, torch.Tensor):
            assert (got.dtype, got.requires_grad) == (expected.dtype, expected.requires_grad)
        seen.append(thunder.cache_misses(compiled) > before)
    assert seen == misses
    assert thunder.cache_hits(compiled) == misses.count(False)
    return compiled


NEW, OLD = True, False


# Constant values


def test_tensor_metadata():
    x = X
    calls = [
        (x,), (x + 1,), (x[:1],), (x.double(),), (x.T.contiguous().T,), (x.clone().requires_grad_(),),
        (x.to(torch.int64),), (x,), (x[:1],), (x.double(),),
    ]  # fmt: skip
    assert_calls(lambda a: a * 2, calls, [NEW, OLD, NEW, NEW, NEW, NEW, NEW, OLD, OLD, OLD])


@pytest.mark.parametrize(
    "values, misses",
    [
        ([1, 1, 2, 1], [NEW, OLD, NEW, OLD]),
        ([1, 1.0, True, 1], [NEW, NEW, NEW, OLD]),
        ([0, False, 0.0, -0.0], None),
        ([1.5, 1.5, 2.5], [NEW, OLD, NEW]),
        ([math.nan, math.nan], [NEW, OLD]),
        ([math.inf, -math.inf, math.inf], [NEW, NEW, OLD]),
        ([1 + 2j, 1 + 2j, 1 - 2j], [NEW, OLD, NEW]),
        ([2**40, 2**40 + 1], [NEW, NEW]),
    ],
)
def test_numbers(values, misses):
    def fn(a, n):
        return a * n, n

    if misses is None:
        compiled = thunder.jit(fn)
        for v in values:
            got = compiled(X, v)[1]
            assert type(got) is type(v)
            assert math.copysign(1, got) == math.copysign(1, v)
        return
    assert_calls(fn, [(X, v) for v in values], misses)


class Mode(enum.Enum):
    UP = 1
    DOWN = -1


@pytest.mark.parametrize(
    "fn, values",
    [
        (lambda a, v: a.sum() if v == "sum" else a.mean(), ["sum", "mean"]),
        (lambda a, v: a[v], [slice(0, 1), slice(1, 2), slice(None, None, 2)]),
        (lambda a, v: a.to(v), [torch.float64, torch.float32, torch.int32]),
        (lambda a, v: a if v is None else a + 1, [None, 0]),
        (lambda a, v: a * len(v), [[1], [1, 1], []]),
        (lambda a, v: a * len(v), [(1,), (1, 1)]),
        (lambda a, v: a * len(v), [{"a": 1}, {"a": 1, "b": 2}]),
        (lambda a, v: a * sum(v), [[1, 2], [1, 3]]),
        (lambda a, v: a * v["k"], [{"k": 1}, {"k": 2}]),
        (lambda a, v: a + ("k" in v), [{"k"}, {"j"}]),
        (lambda a, v: v(a), [torch.sin, torch.cos, torch.relu]),
        (lambda a, v: v(a), [lambda t: t + 1, lambda t: t + 2]),
        (lambda a, v: a * v.value, [Mode.UP, Mode.DOWN]),
        (lambda a, v: torch.zeros(v) + 1, [(2, 3), (3, 2)]),
        (lambda a, v: a.reshape(v), [torch.Size([6]), torch.Size([3, 2])]),
        (lambda a, v: a + 1 if isinstance(v, list) else a + 2, [[1], (1,)]),
        (lambda a, v: a * list(v).index("b"), [{"a": 0, "b": 0}, {"b": 0, "a": 0}]),
        (lambda a, v: a * tuple(v).index("b"), [{"a": 0, "b": 0}, {"b": 0, "a": 0}]),
        (lambda a, v: a * [*v].index("b"), [{"a": 0, "b": 0}, {"b": 0, "a": 0}]),
        (lambda a, v: a * len([*v]), [{"a": 0}, {"a": 0, "b": 0}]),
        (lambda a, v: a * len(list(v)), [{"a"}, {"a", "b"}]),
        (lambda a, v: a.sum(v), [0, 1, (0, 1)]),
        (lambda a, v: torch.ones(2, device=v), [torch.device("cpu"), "meta"]),
        (lambda a, v: a + (3 if v is int else 4), [int, float]),
    ],
)
def test_python_values(fn, values):
    calls = [(X, v) for v in values] * 2
    compiled = thunder.jit(fn)
    for args in calls:
        got, expected = compiled(*args), fn(*args)
        assert (got.dtype, got.device, got.shape) == (expected.dtype, expected.device, expected.shape)
        if not got.is_meta:
            torch.testing.assert_close(got, expected)
    assert counts(compiled) == (len(values), len(values))


def test_number_and_types_of_arguments():
    def fn(*args, **kwargs):
        return sum(args) + sum(kwargs.values()) + len(args)

    compiled = thunder.jit(fn)
    for args, kwargs in [((X,), {}), ((X, X), {}), ((X,), {"b": X}), ((X,), {"c": X}), ((X, 2), {}), ((X,), {})]:
        torch.testing.assert_close(compiled(*args, **kwargs), fn(*args, **kwargs))
    assert counts(compiled) == (5, 1)


def test_identity_of_tensor_arguments():
    def fn(a, b):
        return a + 1 if a is b else a - 1

    x, y = X.clone(), X.clone()
    assert_calls(fn, [(x, y), (x, x), (y, x), (y, y)], [NEW, NEW, OLD, OLD])


def test_overlap_of_written_arguments():
    def fn(a, b):
        a.add_(1)
        return a * b

    compiled = thunder.jit(fn)
    for make in (lambda t: (t, t.clone()), lambda t: (t, t.view(6).view(2, 3)), lambda t: (t, t.clone())):
        torch.testing.assert_close(compiled(*make(X.clone())), fn(*make(X.clone())))
    assert counts(compiled) == (2, 1)


def test_identity_of_other_arguments():
    def fn(a, p, q):
        return a + 1 if p is q else a - 1

    one, two = [1], [1]
    assert_calls(fn, [(X, one, two), (X, one, one), (X, two, one), (X, two, two)], [NEW, NEW, OLD, OLD])


@pytest.mark.parametrize("container", [list, tuple, lambda pair: {"p": pair[0], "q": (pair[1],)}])
def test_identity_of_objects_in_containers(container):
    def fn(a, pair):
        p, q = pair if isinstance(pair, list | tuple) else (pair["p"], pair["q"][0])
        return a + 1 if p is q else a - 1

    one, two = [1], [1]
    pairs = [(one, two), (one, one), (two, one), (two, two)]
    assert_calls(fn, [(X, container(pair)) for pair in pairs], [NEW, NEW, OLD, OLD])
    assert_calls(lambda pair: fn(X, pair), [(container(pair),) for pair in pairs], [NEW, NEW, OLD, OLD])


def test_numbers_alone():
    def fn(a, b):
        return a * b + 1

    assert_calls(
        fn, [(1, 2), (1, 2), (2, 2), (1.0, 2), (1, 2), (True, 2)], [NEW, OLD, NEW, NEW, OLD, NEW]
    )
    assert_calls(lambda: 3, [(), (), ()], [NEW, OLD, OLD])
    compiled = thunder.jit(lambda s: s + "!")
    assert [compiled(s) for s in "aba"] == ["a!", "b!", "a!"]
    assert counts(compiled) == (2, 1)


# Surroundings


def test_grad_mode():
    w = X.clone().requires_grad_()
    compiled = thunder.jit(lambda a: a * 2)
    expected = [True, False, False, True]
    modes = [contextlib.nullcontext(), torch.no_grad(), torch.inference_mode(), contextlib.nullcontext()]
    for mode, tracked in zip(modes, expected, strict=True):
        with mode:
            out = compiled(w)
            assert out.requires_grad is tracked
            assert out.is_inference() == (w * 2).is_inference()
    assert thunder.cache_misses(compiled) in (2, 3)


def test_autocast_on_and_off_and_on():
    linear = nn.Linear(3, 4)
    compiled = thunder.jit(linear)
    states = [None, torch.bfloat16, None, torch.float16, torch.bfloat16, None]
    for dtype in states:
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            got, expected = compiled(X), linear(X)
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected)
    assert counts(compiled) == (3, 3)


def test_default_dtype():
    compiled = thunder.jit(lambda a: a + torch.ones(3))
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert compiled(X).dtype is dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert counts(compiled) == (2, 1)


def test_default_device():
    compiled = thunder.jit(lambda: torch.ones(3))
    assert compiled().device.type == "cpu"
    with torch.device("meta"):
        assert compiled().device.type == "meta"
    assert compiled().device.type == "cpu"
    try:
        torch.set_default_device("meta")
        assert compiled().device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert compiled().device.type == "cpu"
    assert thunder.cache_misses(compiled) <= 3


def test_train_and_eval():
    model = nn.Sequential(nn.Dropout(0.5))
    compiled = thunder.jit(model)
    x = torch.ones(100)
    for mode in (True, False, True, False):
        model.train(mode)
        assert bool((compiled(x) == 0).any()) is mode
    assert counts(compiled) == (2, 2)


def test_module_attributes():
    class Scale(nn.Module):
        factor = 1.0

        def __init__(self):
            super().__init__()
            self.shift = 0
            self.parts = [1]
            self.config = {"power": 1}

        def forward(self, x):
            return (x * self.factor + self.shift) ** self.config["power"] * len(self.parts)

    model = Scale()
    compiled = thunder.jit(model)

    def check():
        before = thunder.cache_misses(compiled)
        torch.testing.assert_close(compiled(X), model(X))
        return thunder.cache_misses(compiled) > before

    assert check()
    assert not check()
    model.shift = 2
    assert check()
    model.parts.append(1)
    assert check()
    model.config["power"] = 2
    assert check()
    Scale.factor = 3.0
    assert check()
    model.factor = 4.0
    assert check()
    del model.factor
    torch.testing.assert_close(compiled(X), model(X))


def test_requires_grad_of_a_parameter():
    model = nn.Linear(3, 3)
    compiled = thunder.jit(model)
    assert compiled(X).requires_grad
    model.requires_grad_(False)
    assert not compiled(X).requires_grad
    model.bias.requires_grad_(True)
    assert compiled(X).requires_grad
    assert counts(compiled) == (3, 0)


def test_class_attribute_of_an_argument():
    class Config:
        scale = 2.0

    config = Config()
    compiled = thunder.jit(lambda a, c: a * c.scale)
    for scale in (2.0, 3.0, 2.0):
        Config.scale = scale
        torch.testing.assert_close(compiled(X, config), X * scale)
    config.scale = 5.0
    torch.testing.assert_close(compiled(X, config), X * 5.0)


def test_deterministic_mode():
    compiled = thunder.jit(lambda a: a * 2)
    compiled(X)
    try:
        torch.use_deterministic_algorithms(True)
        torch.testing.assert_close(compiled(X), X * 2)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(compiled(X), X * 2)


def test_memory_format_and_subclass():
    image = torch.randn(1, 2, 3, 3)
    compiled = thunder.jit(lambda a: a + 1)
    for x in (image, image.to(memory_format=torch.channels_last), nn.Parameter(image), nn.Buffer(image)):
        out = compiled(x)
        assert out.stride() == (x + 1).stride()
        assert type(out) is torch.Tensor


def test_many_programs():
    compiled = thunder.jit(lambda a, n: a + n)
    for n in range(12):
        torch.testing.assert_close(compiled(X, n), X + n)
    for n in range(12):
        compiled(X, n)
    assert counts(compiled) == (12, 12)


def test_programs_of_two_compiled_callables_are_separate():
    def fn(a, n):
        return a * n

    one, two = thunder.jit(fn), thunder.jit(fn)
    one(X, 2)
    assert counts(two) == (0, 0)
    two(X, 2)
    assert counts(one) == (1, 0)
    assert counts(two) == (1, 0)


def test_a_new_closure_has_its_own_programs():
    def make(factor):
        return thunder.jit(lambda a: a * factor)

    two, three = make(2), make(3)
    torch.testing.assert_close(two(X), X * 2)
    torch.testing.assert_close(three(X), X * 3)
    torch.testing.assert_close(two(X), X * 2)
    assert counts(two) == (1, 1)


def test_dynamo_reset_means_compiling_again():
    compiled = thunder.jit(lambda a: a * 2)
    compiled(X)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(X), X * 2)
    assert counts(compiled) == (2, 0)


# Modes


def test_cache_option():
    for option in CACHE_OPTIONS:
        assert thunder.cache_option(thunder.jit(torch.sin, cache=option)) is option
        assert thunder.cache_option(thunder.jit(torch.sin, cache=option.value.upper())) is option
    assert thunder.cache_option(thunder.jit(torch.sin)) is CACHE_OPTIONS.CONSTANT_VALUES


def test_no_caching():
    assert_calls(lambda a, n: a * n, [(X, 2), (X, 2), (X, 3)], [NEW, NEW, NEW], cache="no caching")
    assert_calls(lambda n: n * 2, [(2,), (2,)], [NEW, NEW], cache="no caching")


def test_same_input():
    compiled = assert_calls(lambda a, n: a * n, [(X, 2), (X + 1, 2)], [NEW, OLD], cache="same input")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, 2), X * 2)
    assert counts(compiled) == (1, 2)


def test_same_input_of_a_module():
    model = nn.Linear(3, 3)
    compiled = thunder.jit(model, cache="same input")
    torch.testing.assert_close(compiled(X), model(X))
    with torch.no_grad():
        model.weight.add_(1)
    torch.testing.assert_close(compiled(X), model(X))
    assert counts(compiled) == (1, 1)


def test_symbolic_sizes():
    sizes = [(4, 5), (6, 5), (7, 8), (9, 2)]
    calls = [(torch.randn(s),) for s in sizes]
    assert_calls(lambda a: (a * 2).sum(1), calls, [NEW, OLD, OLD, OLD], cache="symbolic values")


def test_symbolic_sizes_with_gradients():
    fn = lambda a, w: torch.tanh(a @ w).sum()  # noqa: E731
    compiled = thunder.jit(fn, cache="symbolic values")
    for n in (3, 5, 8):
        grads = []
        for f in (compiled, fn):
            w = torch.ones(4, n, requires_grad=True)
            f(torch.arange(4.0 * n).reshape(n, 4), w).backward()
            grads.append(w.grad)
        torch.testing.assert_close(*grads)
    assert counts(compiled) == (1, 2)


def test_symbolic_integers():
    calls = [(X, n) for n in (3, 5, 7)]
    assert_calls(lambda a, n: a * n + n, calls, [NEW, OLD, OLD], cache="symbolic values")


def test_symbolic_values_used_as_sizes():
    def fn(a, n):
        return torch.zeros(n, a.shape[1]) + a[:1]

    calls = [(torch.randn(m, 3), n) for m, n in ((4, 5), (6, 7), (4, 9))]
    assert_calls(fn, calls, [NEW, OLD, OLD], cache="symbolic values")


def test_symbolic_values_decided_on():
    def fn(a):
        return a * 2 if a.shape[0] > 5 else a * 3

    calls = [(torch.randn(n),) for n in (4, 8, 3, 9)]
    assert_calls(fn, calls, [NEW, NEW, OLD, OLD], cache="symbolic values")


def test_symbolic_values_still_guard_the_rest():
    calls = [(torch.randn(4), "a"), (torch.randn(6), "a"), (torch.randn(6), "b"), (torch.randn(7).double(), "b")]
    assert_calls(lambda a, s: a * len(s), calls, [NEW, OLD, NEW, NEW], cache="symbolic values")


# Logs


def recompiles(caplog: Any, fn: Any, *calls: tuple) -> list[str]:
    compiled = thunder.jit(fn)
    with caplog.at_level(logging.DEBUG, logger="thunder.recompiles"):
        for args in calls:
            compiled(*args)
    return [r.getMessage() for r in caplog.records if r.name == "thunder.recompiles"]


@pytest.mark.parametrize(
    "calls, reason",
    [
        ([(X, 1), (X, 2)], "n == 1"),
        ([(X, 1), (X[:1], 1)], "tensor 'a' size mismatch at index 0. expected 2, actual 1"),
        ([(X, 1), (X.double(), 1)], "tensor 'a' dtype mismatch. expected Float, actual Double"),
        ([(X, 1), (X.clone().requires_grad_(), 1)], "tensor 'a' requires_grad mismatch. expected requires_grad=0"),
        ([(X, 1), (X, None)], "n"),
    ],
)
def test_recompiles_are_logged_with_the_guard_that_failed(caplog, calls, reason):
    def scale(a, n):
        return a * (n or 1)

    (message,) = recompiles(caplog, scale, *calls, calls[0], calls[1])
    assert message.startswith("scale is compiled again, since this call fits none of its programs:\n  program 0: ")
    assert reason in message
    assert "stack" not in message


def test_recompile_log_names_every_program(caplog):
    messages = recompiles(caplog, lambda a, n: a * n, (X, 1), (X, 2), (X, 3))
    assert len(messages) == 2
    assert "program 0" in messages[1]
    assert "program 1" in messages[1]


def test_last_compile_reasons():
    compiled = thunder.jit(lambda a, n: a * n)
    compiled(X, 2)
    assert thunder.compile_stats(compiled).last_compile_reasons == {}
    compiled(X, 3)
    assert thunder.compile_stats(compiled).last_compile_reasons == {"program 0": ["n == 2"]}


def test_grad_mode_is_named_in_the_log(caplog):
    compiled = thunder.jit(lambda a: a * 2)
    compiled(X)
    with caplog.at_level(logging.DEBUG, logger="thunder.recompiles"), torch.no_grad():
        compiled(X)
    assert "grad_mode" in caplog.text


def test_failed_calls_are_counted_as_misses_or_hits():
    def fn(a, b):
        return a + b

    compiled = thunder.jit(fn)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(2), torch.ones(3))
    assert counts(compiled) == (1, 0)
    compiled(X, X)
    compiled(X, X)
    assert counts(compiled) == (2, 1)
    compiled = thunder.jit(lambda a, i: a[i])
    compiled(X, torch.tensor([0]))
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([9]))
    assert counts(compiled) == (1, 1)


def test_counters_of_other_callables():
    for ask in (thunder.cache_hits, thunder.cache_misses, thunder.cache_option):
        with pytest.raises(TypeError, match="is not compiled by thunder"):
            ask(collections.OrderedDict)
