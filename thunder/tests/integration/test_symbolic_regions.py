"""Fused regions of programs for all sizes: one compilation, its conditions, strides, and what comes from disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core.inductor_compat import SymbolicNumbers, holds_for
from thunder.core.torch_compat import FakeTensorMode
from thunder.executors import region_program
from thunder.executors.inductorex import region_table
from thunder.executors.region_program import RegionProgram, _stride_symbols
from thunder.tests.fusers import uncompiled
from thunder.tests.integration.dynamo_harness import assert_same, compiled_and_backend, leaf
from thunder.tests.integration.test_dynamo_symbolic import CASES, SIZES, Case

pytestmark = pytest.mark.integration
SUMMED = {"rtol": 1e-4, "atol": 1e-4}  # thousands of numbers, one after the other


@pytest.fixture(autouse=True)
def empty_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("THUNDER_CACHE_DIR", "none")
    torch._dynamo.reset()
    region_table.clear()
    yield
    region_table.clear()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[list]:
    """Stands for the compiler, whose code is the region itself, and notes the inputs that it was given."""
    seen: list[list] = []

    def compiler(fn: Callable, inputs: list, *_: Any) -> tuple:
        seen.append(inputs)
        return uncompiled(fn)

    monkeypatch.setattr(region_program, "compile_with_inductor", compiler)
    return seen


def regions() -> list[RegionProgram]:
    return list(region_table._entries.values())


def fused(fn: Callable) -> Callable:
    return thunder.jit(fn, executors=["torchcompile"], cache="symbolic values")


def chain(x: Any) -> Any:
    return (x.sin() / x.shape[0] + 1).cos().sum(0)


# Whole programs


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_one_compilation_of_each_region_serves_all_sizes(case: Case) -> None:
    fn, make = case
    compiled, backend = compiled_and_backend(fn, dynamic=True, options={"executors": ["torchcompile"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # Inductor has failed
        for n in SIZES:
            assert_same(fn, compiled, lambda n=n: make(n))
    assert len(backend.subgraph_infos) == 1
    assert all(r.compile_count == len(r.variants) == 1 for r in regions())
    assert all(r._number_names for r in regions() if any(isinstance(s, str) for shape in r._shapes for s in shape))


@pytest.mark.slow
def test_a_size_that_the_code_is_not_for_is_compiled_again() -> None:
    """Inductor sums long rows in another way, for which it looks at the size."""
    f = fused(chain)
    sizes = (6, 5000, 7, 5001)
    for n in sizes:
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x), **SUMMED)
    (region,) = regions()
    assert thunder.cache_misses(f) == 1
    assert region.compile_count == len(region.variants) == 2


# One region


def test_sizes_met_before_need_no_look_at_conditions(starts: list, monkeypatch: pytest.MonkeyPatch) -> None:
    f = fused(chain)
    for n in (6, 7):
        f(torch.rand(n, 3))
    monkeypatch.setattr(region_program, "holds_for", None)
    for n in (6, 7):
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x))
    assert len(starts) == 1


def test_what_is_remembered_of_sizes_is_bounded(starts: list) -> None:
    f = fused(chain)
    for n in range(2, 12):
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x))
        (region,) = regions()
        region.max_runs = 4
        assert len(region._runs) <= 4
    assert len(starts) == 1


def test_conditions_are_those_of_the_decisions_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(fn: Callable, inputs: list, *_: Any) -> tuple:
        started.append(bool(inputs[0] % 2 == 0))
        return uncompiled(fn)

    started: list[bool] = []
    monkeypatch.setattr(region_program, "compile_with_inductor", compiler)
    f = fused(chain)
    for n in (6, 8, 7, 4, 9):
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x))
    assert started == [True, False]


def test_numbers_that_are_no_sizes_may_be_anything(starts: list) -> None:
    f = fused(lambda x, k: (x.sin() * k).cos())
    x = torch.rand(4, 3)
    for k in (7, -2, 0, 1):
        torch.testing.assert_close(f(x, k), (x.sin() * k).cos())
    assert len(starts) == len(regions()) == thunder.cache_misses(f) == 1


def test_equal_regions_of_different_numbers_are_one(starts: list) -> None:
    for fn in (lambda x, y: chain(x) + y, lambda y, x: chain(x).sin() * y):
        f = fused(fn)
        for n in (6, 8):
            f(torch.rand(n, 3), torch.rand(n, 3))
    texts = {r.text for r in regions()}
    assert len(texts) == 2
    region_table.clear()
    starts.clear()
    for fn in (lambda a, x: (chain(x), a), lambda x: chain(x)):
        torch._dynamo.reset()
        fused(fn)(*[torch.rand(6, 3)] * fn.__code__.co_argcount)
    assert len(regions()) == len(starts) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.rand(n, 3),
        lambda n: torch.rand(3, n).t(),
        lambda n: torch.rand(n, 30)[:, :3],
        lambda n: torch.rand(n, 30 + n)[:, :3],
        lambda n: torch.rand(2 * n, 3)[::2],
        lambda n: torch.rand(3).expand(n, 3),
        lambda n: torch.rand(n, 5, 3)[:, 1],
        lambda n: torch.rand(20, n, 3)[:, :, 0].t(),
    ],
)
def test_strides_are_expressions_of_the_sizes_or_constants(make: Callable, starts: list) -> None:
    f = fused(chain)
    for n in (7, 8, 9):
        x = make(n)
        torch.testing.assert_close(f(x), chain(x))
    assert len(starts) == len(regions()) == 1


def test_strides_between_regions_that_are_no_expressions_are_constants(starts: list) -> None:
    def program(x: Any, y: Any) -> Any:
        x = (x @ x.t())[:, : y.shape[0]]  # the product is left to the library
        return (x.sin() * y).cos()

    f = fused(program)
    for n in (6, 7, 9):
        x, y = torch.rand(400, 40), torch.rand(n)
        torch.testing.assert_close(f(x, y), program(x, y))
    assert len(starts) == 1


def test_strides_that_nobody_knows_are_read_off_the_numbers_of_now() -> None:
    rows, columns = SymbolicNumbers([5, 7], [True, True]).numbers
    for shape, strides, expected in [
        ((rows, columns), (7, 1), (columns, 1)),
        ((rows, columns), (1, 5), (1, rows)),
        ((rows, 2, columns), (14, 7, 1), (columns * 2, columns, 1)),
        ((3, rows, columns), (0, 7, 1), (0, columns, 1)),
        ((rows, 3, columns), (100, 7, 1), (100, columns, 1)),
        ((rows, 1, 4), (4, 4, 1), (4, 4, 1)),
        ((), (), ()),
    ]:
        assert tuple(map(str, _stride_symbols(shape, strides))) == tuple(map(str, expected))


def test_other_strides_than_those_of_capture(starts: list) -> None:
    f = fused(chain)
    for make in (lambda n: torch.rand(n, 3), lambda n: torch.rand(3, n).t()):
        for n in (6, 7):
            x = make(n)
            torch.testing.assert_close(f(x), chain(x))
    assert len(starts) <= 2


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_of_data_are_fused_by_nobody(starts: list) -> None:
    f = thunder.jit(lambda x: (x.nonzero() * 2 + 1).abs(), executors=["torchcompile"])
    for values in ([1.0, 0, 3], [1.0, 2, 3]):
        x = torch.tensor(values)
        torch.testing.assert_close(f(x), x.nonzero() * 2 + 1)
    assert regions() == starts == []


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_strides_of_data_are_constants(starts: list) -> None:
    def program(n: torch.Tensor) -> torch.Tensor:
        width = n.item()
        torch._check(width >= 3)
        return (torch.zeros(4, width)[:, :2].sin() + 1).cos()

    f = thunder.jit(program, executors=["torchcompile"])
    for width in (5, 6, 5):
        n = torch.tensor(width)
        torch.testing.assert_close(f(n), program(n))
    assert len(regions()) == 1
    assert len(starts) <= 2


def test_a_failure_is_told_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> tuple:
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(region_program, "compile_with_inductor", failing)
    f = fused(chain)
    x = torch.rand(6, 3)
    with pytest.warns(UserWarning, match="runs uncompiled: RuntimeError: no compiler found"):
        torch.testing.assert_close(f(x), chain(x))
    for n in (7, 8):
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x))


def test_numbers_and_tensors_of_a_trace_that_is_being_made_run_one_by_one(starts: list) -> None:
    f = fused(chain)
    f(torch.rand(6, 3))
    (region,) = regions()
    with FakeTensorMode():
        assert region(7, 3, torch.rand(7, 3))[0].shape == (3,)
    symbolic = SymbolicNumbers([5, 3], [True, True])
    with symbolic.fake_mode:
        rows, columns = symbolic.numbers
        assert str(region(rows, columns, torch.empty(rows, columns))[0].shape[0]) == str(columns)
    assert len(starts) == 1


# On disk


@pytest.mark.slow
def test_a_region_comes_back_from_disk_for_other_sizes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    counts = []
    for n in (6, 7, 5000, 5001, 8):
        region_table.clear()
        torch._dynamo.reset()
        f = fused(chain)
        x = torch.rand(n, 3)
        torch.testing.assert_close(f(x), chain(x), **SUMMED)
        (region,) = regions()
        counts.append((region.compile_count, region.load_count))
    assert counts == [(1, 0), (0, 1), (1, 0), (0, 1), (0, 1)]
    assert len(list(tmp_path.glob("regions/*.region"))) == 2


@pytest.mark.slow
def test_gradients_and_sizes_from_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    fn = lambda x, w: torch.softmax(x * w + x.shape[0], 0).mul(x.cos())  # noqa: E731
    for loads in (0, 1):
        region_table.clear()
        compiled, _ = compiled_and_backend(fn, dynamic=True, options={"executors": ["torchcompile"]})
        for n in SIZES:
            assert_same(fn, compiled, lambda n=n: (leaf(n, 4), leaf(4)))
        assert {r.load_count for r in regions()} == {loads}


# Symbols


def test_conditions_hold_for_the_values_that_they_name() -> None:
    symbolic = SymbolicNumbers([8, 3, 1], [True, False, True])
    a, b, c = symbolic.numbers
    assert a * b > 20
    assert c + a < 12
    condition = symbolic.condition
    assert holds_for(condition, [8, 3, 1])
    assert holds_for(condition, [4, 9, 0])
    assert not holds_for(condition, [4, 5, 0])
    assert not holds_for(condition, [8, 3, 9])
    assert not holds_for(condition, [1, 30, 0])
    assert holds_for(SymbolicNumbers([3], [False]).condition, [-7])
