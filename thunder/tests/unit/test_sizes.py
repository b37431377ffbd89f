"""thunder.core.sizes: symbolic sizes, and keys for arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import thunder
from thunder.core.sizes import concrete, free_symbols, hashable_leaf, hint, size_expression
from thunder.tests.unit.traces import make_trace


def symbolic(*sizes):
    """Sizes of a tensor whose dims are all dynamic."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(sizes))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.empty(sizes), symbolic_context=context).shape


def test_expressions_name_what_they_are_made_of():
    a, b = symbolic(5, 7)
    total = a * 2 + b
    assert len(free_symbols(total)) == 2
    assert free_symbols(a) == [str(a)]
    values = dict(zip(free_symbols(a) + free_symbols(b), (5, 7), strict=True))
    assert eval(size_expression(total), {"math": math, "torch": torch, **values}) == 17
    assert eval(size_expression(total // 3), {"math": math, "torch": torch, **values}) == 17 // 3


def test_constants_are_concrete():
    (a,) = symbolic(5)
    difference = a - a
    assert concrete(difference) == 0
    assert type(concrete(difference)) is int
    assert concrete(a) is a
    assert concrete("s") == "s"
    assert concrete(3) == 3


def test_hints():
    (a,) = symbolic(5)
    assert hint(a) == 5
    assert hint(4) == 4


def test_keys_tell_kinds_of_numbers_apart():
    keys = [hashable_leaf(v) for v in (1, 1.0, True, 0.0, -0.0, "1", None, torch.float32)]
    assert len(set(keys)) == len(keys)
    assert hashable_leaf(float("nan")) == hashable_leaf(float("nan"))
    (a,) = symbolic(5)
    assert hashable_leaf(a) == hashable_leaf(a + 0)
    x = make_trace(lambda x: x, "x").args[0]
    assert hashable_leaf(x) == hashable_leaf(x.replace(name="x", shape=(9,)))
    t = torch.ones(1)
    assert hashable_leaf(t) == hashable_leaf(t)
    assert hashable_leaf(t) != hashable_leaf(torch.ones(1))
    with pytest.raises(TypeError):
        hash(hashable_leaf([]))


def test_a_program_with_symbolic_sizes_serves_several():
    def fn(x):
        return x.reshape(x.shape[0] * x.shape[1]) * x.shape[0]

    jitted = thunder.jit(fn, cache="symbolic values")
    for shape in ((3, 4), (5, 6), (7, 2)):
        x = torch.randn(shape, requires_grad=True)
        torch.testing.assert_close(jitted(x), fn(x))
        (grad,) = torch.autograd.grad(jitted(x).sum(), x)
        torch.testing.assert_close(grad, torch.full(shape, float(shape[0])))
    assert thunder.cache_misses(jitted) == 1
