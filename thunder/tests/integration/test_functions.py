"""Functions of every Python shape, compiled: results, side effects and structure as in eager."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

import thunder
import thunder.torch as ltorch
from thunder.core.proxies import Proxy


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator) for s in shapes]


def assert_same(got: Any, expected: Any) -> None:
    """Equal structure, types and values; no proxy anywhere."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.requires_grad == expected.requires_grad
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(got, field.name), getattr(expected, field.name))
    else:
        assert not isinstance(got, Proxy)
        assert got == expected or (isinstance(got, float) and math.isnan(got) and math.isnan(expected))


def check(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """`fn` compiled, called twice, against eager; the compiled callable is given back."""
    compiled = thunder.jit(fn)
    expected = fn(*args, **kwargs)
    assert_same(compiled(*args, **kwargs), expected)
    assert_same(compiled(*args, **kwargs), expected)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 1
    return compiled


# What can be compiled


def scale(x: torch.Tensor, factor: float, *, bias: float = 0.0) -> torch.Tensor:
    return x * factor + bias


class Scaler:
    """Has a method, a class method, a static method, and can be called."""

    offset = 1.0

    def __init__(self, factor: float):
        self.factor = factor

    def apply(self, x: torch.Tensor, power: int = 1) -> torch.Tensor:
        return (x * self.factor) ** power

    @classmethod
    def shift(cls, x: torch.Tensor) -> torch.Tensor:
        return x + cls.offset

    @staticmethod
    def negate(x: torch.Tensor) -> torch.Tensor:
        return -x

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor


def test_partial_of_positions_and_keywords():
    (x,) = tensors((2, 3))
    check(functools.partial(scale, factor=3.0), x)
    check(functools.partial(scale, x, bias=2.0), 0.5)
    check(functools.partial(functools.partial(scale, bias=1.0), factor=2.0), x)
    check(functools.partial(scale, factor=3.0), x, bias=1.0)


def test_partial_with_a_tensor_bound():
    x, y = tensors((3,), (3,))
    check(functools.partial(torch.add, y), x)
    check(functools.partial(lambda a, b: a @ b, y), x)


def test_bound_methods():
    (x,) = tensors((2, 3))
    scaler = Scaler(2.0)
    compiled = check(scaler.apply, x)
    assert_same(compiled(x, power=2), scaler.apply(x, power=2))
    scaler.factor = 5.0
    assert_same(compiled(x), scaler.apply(x))
    check(Scaler.shift, x)
    check(scaler.shift, x)
    check(Scaler.negate, x)
    check(scaler.negate, x)
    check(Scaler.apply, scaler, x)


def test_callable_object():
    (x,) = tensors((2, 3))
    scaler = Scaler(2.0)
    compiled = check(scaler, x)
    scaler.factor = 4.0
    assert_same(compiled(x), scaler(x))


@pytest.mark.parametrize(
    "fn",
    [torch.sin, torch.add, F.gelu, F.softmax, torch.Tensor.exp, torch.special.expit],
    ids=lambda f: f.__name__,
)
def test_torch_callables(fn):
    x, y = tensors((2, 3), (2, 3))
    args = {torch.add: (x, y), F.softmax: (x, -1)}.get(fn, (x,))
    check(fn, *args)


def test_torch_builtin_with_keywords():
    x, y = tensors((2, 3), (2, 3))
    check(torch.add, x, y, alpha=2)
    check(torch.sum, x, dim=1, keepdim=True)


def test_lambda_and_decorated_function():
    (x,) = tensors((3,))

    def twice(f):
        @functools.wraps(f)
        def inner(*args):
            return f(f(*args))

        return inner

    check(lambda a: a.cos(), x)
    compiled = check(twice(torch.sin), x)
    assert compiled.__name__ == "sin"


def test_wrapper_keeps_name_and_docstring():
    compiled = thunder.jit(scale)
    assert compiled.__name__ == "scale"
    assert compiled.__wrapped__ is scale


# Arguments


def test_signature_forms():
    x, y, z = tensors((3,), (3,), (3,))

    def f(a, b=2.0, /, c=None, *rest, d=1.0, e, **more):
        out = a * b + d + e
        if c is not None:
            out = out + c
        for r in rest:
            out = out + r
        for name in sorted(more):
            out = out * more[name]
        return out

    check(f, x, e=1.0)
    check(f, x, 3.0, y, z, z, e=2.0)
    check(f, x, 3.0, y, d=z, e=0.5, g=y, h=2.0)
    check(f, x, e=y, c=z)


def test_nested_containers_in_and_out():
    x, y, z = tensors((2, 2), (2, 2), (2, 2))

    def f(tree):
        (a, b), rest = tree["pair"], tree["rest"]
        return {"sum": a + b, "more": [rest[0] * 2, (rest[1], None, "text", 3)], 7: (b,), "empty": [], "none": None}

    check(f, {"pair": (x, y), "rest": [z, 2.5]})


class Pair(NamedTuple):
    first: Any
    second: Any


Legacy = collections.namedtuple("Legacy", ["a", "b"])


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    weight: float = 1.0
    tags: tuple = ()


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int


def test_namedtuples():
    x, y = tensors((3,), (3,))
    check(lambda p: Pair(p.first + p.second, p.first), Pair(x, y))
    check(lambda p: Legacy(b=p.a * p.b, a=p), Legacy(x, 3))
    check(lambda a: torch.max(a.reshape(3, 1), 0), x)
    check(lambda a: a.sort(), x)


def test_dataclasses():
    (x,) = tensors((3,))
    check(lambda b: b.inputs * b.weight, Batch(x, 2.0))
    check(lambda b: Batch(b.inputs + 1, b.weight * 2, ("a",)), Batch(x))
    check(lambda b: Frozen(b.x * b.n, b.n + 1), Frozen(x, 3))
    check(lambda b: dataclasses.replace(b, weight=3.0), Batch(x))


def test_dataclass_field_is_guarded():
    (x,) = tensors((3,))
    compiled = thunder.jit(lambda b: b.inputs * b.weight)
    for weight in (1.0, 2.0, 1.0):
        assert_same(compiled(Batch(x, weight)), x * weight)
    assert thunder.cache_misses(compiled) == 2


def test_sets_and_frozensets():
    (x,) = tensors((3,))
    compiled = check(lambda a, names: a + 1 if "shift" in names else a - 1, x, {"shift", "other"})
    assert_same(compiled(x, {"other"}), x - 1)
    check(lambda a, names: a * len(names), x, frozenset({1, 2, 3}))
    check(lambda a: (a, {1, 2}), x)
    check(lambda a: (a + 1, {1, 2}, frozenset({"a"})), x)


def test_ordered_and_default_dicts():
    x, y = tensors((3,), (3,))
    check(lambda d: collections.OrderedDict((k, v * 2) for k, v in d.items()), collections.OrderedDict(b=x, a=y))
    check(lambda d: d["a"] + d["b"], collections.OrderedDict(b=x, a=y))

    def f(d):
        out = collections.defaultdict(list)
        out["k"].append(d["a"] + 1)
        return out["k"]

    check(f, collections.defaultdict(float, a=x))


def test_strings_slices_dtypes_devices_and_none():
    (x,) = tensors((4, 4))

    def f(a, mode, rows, dtype, device, nothing):
        out = a[rows].to(dtype=dtype, device=device)
        out = out.sum() if mode == "sum" else out.mean()
        return out if nothing is None else out + 1, mode, dtype, device, nothing

    check(f, x, "sum", slice(1, 3), torch.float64, torch.device("cpu"), None)
    check(f, x, "mean", slice(None, None, 2), torch.float64, "cpu", 3)


# Results


@pytest.mark.parametrize(
    "value",
    [None, 1, 2.5, True, "s", 3j, (), [], {}, (1, 2), [None], torch.float32, torch.device("cpu"), math.inf, math.nan],

)
def test_results_that_are_no_tensors(value):
    (x,) = tensors((3,))
    check(lambda a: value, x)
    check(lambda a: (a + 1, value), x)


def test_shapes_dtypes_and_devices_of_tensors():
    (x,) = tensors((2, 3))
    check(lambda a: (a.shape, a.dtype, a.device, a.dim(), a.numel(), a.stride(), a.size(1), a.requires_grad), x)
    check(lambda a: (a + a.shape[0], a.shape, a.T.shape), x)


def test_number_only_functions():
    def f(a, b=3):
        return a * b + 1

    compiled = thunder.jit(f)
    for args in ((2,), (2,), (3,), (3,), (2,), (2.0,), (2, 4)):
        assert_same(compiled(*args), f(*args))
    check(lambda: 5)
    check(lambda a: math.sqrt(a) + a**2, 4.0)
    check(lambda a, b: [a + b, a // b, a / b, a % b, divmod(a, b), a > b], 7, 2)


def test_nothing_in_nothing_out():
    check(lambda: None)
    check(lambda: torch.arange(4.0))
    check(lambda *a, **k: (a, k))


def test_same_object_returned_twice():
    (x,) = tensors((3,))
    compiled = thunder.jit(lambda a: ((y := a + 1), y, a, a))
    first, second, third, fourth = compiled(x)
    assert first is second
    assert third is x
    assert fourth is x


def test_generators_and_comprehensions():
    x, y = tensors((3,), (3,))
    check(lambda ts: [t * n for n, t in enumerate(ts)], [x, y])
    check(lambda ts: {n: t + 1 for n, t in zip("ab", ts, strict=True)}, (x, y))
    check(lambda ts: sum(t for t in ts), (x, y))
    check(lambda ts: list(map(torch.sin, ts)), [x, y])

    def f(ts):
        def walk():
            for t in ts:
                yield t.exp()

        return list(walk())

    check(f, [x, y])


# Closures and globals

FACTOR = 2.0
TABLE = {"factor": 2.0, "list": [1.0, 2.0]}
WEIGHT = torch.ones(3)


def test_changed_closure_is_seen():
    (x,) = tensors((3,))
    factor = 2.0
    compiled = thunder.jit(lambda a: a * factor)
    for factor in (2.0, 3.0, 2.0):
        assert_same(compiled(x), x * factor)
    assert thunder.cache_misses(compiled) == 2


def test_changed_global_is_seen(monkeypatch):
    (x,) = tensors((3,))
    compiled = thunder.jit(lambda a: a * FACTOR)
    assert_same(compiled(x), x * 2.0)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert_same(compiled(x), x * 5.0)
    monkeypatch.undo()
    assert_same(compiled(x), x * 2.0)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_changed_global_containers_are_seen(monkeypatch):
    (x,) = tensors((3,))
    compiled = thunder.jit(lambda a: a * TABLE["factor"] + sum(TABLE["list"]))
    assert_same(compiled(x), x * 2.0 + 3.0)
    monkeypatch.setitem(TABLE, "factor", 4.0)
    assert_same(compiled(x), x * 4.0 + 3.0)
    monkeypatch.setitem(TABLE, "list", [1.0, 2.0, 3.0])
    assert_same(compiled(x), x * 4.0 + 6.0)


def test_global_tensor_is_an_input(monkeypatch):
    (x,) = tensors((3,))
    compiled = thunder.jit(lambda a: a * WEIGHT)
    assert_same(compiled(x), x * WEIGHT)
    monkeypatch.setitem(globals(), "WEIGHT", torch.full((3,), 4.0))
    assert_same(compiled(x), x * 4.0)
    WEIGHT.mul_(2)
    assert_same(compiled(x), x * 8.0)


def test_closure_tensor_gets_its_gradient():
    (x,) = tensors((3,))
    w = torch.ones(3, requires_grad=True)
    compiled = thunder.jit(lambda a: (a * w).sum())
    compiled(x).backward()
    assert_same(w.grad, x)
    with torch.no_grad():
        w.add_(1)
    assert_same(compiled(x).detach(), (x * 2).sum())


def test_rebound_closure_function_is_seen():
    (x,) = tensors((3,))
    activation = torch.sin
    compiled = thunder.jit(lambda a: activation(a))
    assert_same(compiled(x), x.sin())
    activation = torch.cos
    assert_same(compiled(x), x.cos())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos(), (x * 1,)) + 1,
        lambda x: torch.vmap(lambda row: row * 2 + row.sum())(x.exp()).sin(),
        lambda x: torch.func.grad(lambda t: (t * t).sum())(x.exp()) * x,
    ],
    ids=["cond", "vmap", "grad"],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.cond, in eager
def test_regions_that_only_torch_runs(fn):
    compiled = thunder.jit(fn)
    results = []
    for f in (compiled, fn):
        x = torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_()
        out = f(x)
        out.sum().backward()
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1])
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_traces(compiled)


SYMBOLS = {
    "sin": (lambda x: ltorch.sin(x), lambda x: torch.sin(x)),
    "all_tensor": (lambda x: ltorch.all_tensor(x > 0, 1), lambda x: torch.all(x > 0, 1)),
    "any_tensor": (lambda x: ltorch.any_tensor(x > 0), lambda x: torch.any(x > 0)),
    "torch_max": (lambda x: ltorch.torch_max(x) * 2, lambda x: torch.max(x) * 2),
    "torch_type": (lambda x: ltorch.torch_type(x, torch.float64), lambda x: x.type(torch.float64)),
    "reverse_dims_T": (lambda x: ltorch.reverse_dims_T(x) * 2, lambda x: x.T * 2),
    "matrix_transpose": (lambda x: ltorch.matrix_transpose(x) * 2, lambda x: x.mT * 2),
    "checkpoint": (
        lambda x: ltorch.checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False), lambda x: x.sin().exp(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLS)
def test_thunder_symbols_inside_and_outside(name: str) -> None:
    fn, expected = SYMBOLS[name]
    (x,) = tensors((3, 4))
    assert_same(fn(x), expected(x))
    assert_same(thunder.jit(fn)(x), expected(x))
