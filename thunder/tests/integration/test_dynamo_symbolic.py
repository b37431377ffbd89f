"""Sizes and numbers that vary between calls: one compilation, values and gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.tests.integration.dynamo_harness import assert_same, compiled_and_backend, leaf

SIZES = (6, 9, 11)


def concatenated(x: Any, y: Any) -> Any:
    return torch.cat([x, y], 0).mean(0) * (x.shape[0] + y.shape[0])


def padded(x: Any, n: int) -> Any:
    return F.pad(x, (n, n)).unfold(1, 2, 1).sum(-1)


def written(x: Any, n: int) -> Any:
    y = x * 2
    y[:n] = 0
    y[:, 1].add_(n)
    return y.view(-1)[::2]


def buffer_written(x: Any, b: Any) -> Any:
    b[: x.shape[0]] += x.detach().sum(1)
    return x * b[: x.shape[0], None]


def expanded(x: Any) -> Any:
    return x[:, None, :].expand(x.shape[0], x.shape[0], x.shape[1]).reshape(-1, x.shape[1])


def factories(x: Any) -> Any:
    return torch.arange(x.shape[0])[:, None] * x, torch.ones(x.shape[0] + 1), x.shape[0] * 2


def numbers(x: Any, n: int, s: float) -> Any:
    return x * s + n / 2 + n // 2 + n % 3 + n**2 - max(n, 4) + min(n, x.shape[0]), n * 2


def folded(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1] // 2).sum(0)


def input_written(x: Any) -> Any:
    x.add_(x.shape[0])
    return x * 1


def row_assigned(x: Any, n: int) -> Any:
    y = x.clone()
    y[n - 1] = x.sum(0)
    return y


def recurrent(x: Any, w: Any) -> Any:
    h = torch.zeros(x.shape[0], 4)
    for _ in range(3):
        h = torch.tanh(x @ w + h)
    return h


def checkpointed(x: Any) -> Any:
    return checkpoint(lambda a: (a @ a.t()).sin() * a.shape[0], x, use_reentrant=False)


class ScaledSine(torch.autograd.Function):
    """sin(x) times the number of rows; its backward writes in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin() * x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        h = g.clone()
        h.mul_(x.cos())
        return h * x.shape[0]


def custom(x: Any) -> Any:
    return ScaledSine.apply(x) * 2


Case = tuple[Callable, Callable[[int], tuple]]
CASES: list[Case] = [
    (concatenated, lambda n: (leaf(n, 4), leaf(n + 1, 4))),
    (padded, lambda n: (leaf(n, 4), n)),
    (written, lambda n: (leaf(n + 2, 4), n)),
    (buffer_written, lambda n: (leaf(n, 4), torch.zeros(20))),
    (expanded, lambda n: (leaf(n, 4),)),
    (factories, lambda n: (leaf(n, 4),)),
    (numbers, lambda n: (leaf(n + 1, 4), n, 1.5 * n)),
    (folded, lambda n: (leaf(n, 4),)),
    (input_written, lambda n: (torch.randn(n, 4),)),
    (row_assigned, lambda n: (leaf(n, 4), n)),
    (recurrent, lambda n: (leaf(n, 3), leaf(3, 4))),
    (checkpointed, lambda n: (leaf(n, 4),)),
    (custom, lambda n: (leaf(n, 4),)),
    (lambda x, k: torch.topk(x, k, dim=0)[0], lambda n: (leaf(12, 4), n)),
    (lambda x: (x.view(-1), x.t(), x[1:]), lambda n: (leaf(n, 4),)),
    (lambda x, w: F.max_pool2d(F.conv2d(x, w), 2).flatten(1), lambda n: (leaf(n, 3, 8, 2 * n), leaf(5, 3, 3, 3))),
    (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda n: (leaf(2, 2, n, 8),)),
    (F.cross_entropy, lambda n: (leaf(n, 5), torch.randint(0, 5, (n,)))),
    (lambda i, w: F.embedding(i, w).sum(-1), lambda n: (torch.randint(0, 5, (n, 3)), leaf(5, 4))),
    (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), lambda n: (leaf(1, 2, n, n + 1),)),
    (lambda x, w: F.layer_norm(x, (4,), w).softmax(-1), lambda n: (leaf(n, 4), leaf(4))),
    (lambda x, m, v: F.batch_norm(x, m, v, training=True), lambda n: (leaf(n, 4), torch.zeros(4), torch.ones(4))),
    (lambda x: F.dropout(x, 0.5), lambda n: (leaf(n, 3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_one_compilation_serves_all_sizes(case: Case) -> None:
    fn, make = case
    compiled, backend = compiled_and_backend(fn, dynamic=True)
    for n in SIZES:
        assert_same(fn, compiled, lambda n=n: make(n))
    assert len(backend.subgraph_infos) == 1
    assert backend.subgraph_infos[0].split_reasons == []


@pytest.mark.parametrize("case", CASES[:10], ids=lambda c: c[0].__name__)
def test_one_compilation_under_jit_with_symbolic_values(case: Case) -> None:
    fn, make = case
    compiled = thunder.jit(fn, cache="symbolic values")
    for n in SIZES:
        assert_same(fn, compiled, lambda n=n: make(n))
    assert thunder.cache_misses(compiled) == 1


def test_branch_on_a_size_compiles_twice() -> None:
    def fn(x: Any) -> Any:
        return x * 2 if x.shape[0] > 8 else x * 3

    compiled, backend = compiled_and_backend(fn, dynamic=True)
    for n in (6, 7, 9, 11):
        assert_same(fn, compiled, lambda n=n: (leaf(n, 4),))
    assert len(backend.subgraph_infos) == 2


def test_sizes_become_symbolic_at_the_second_call() -> None:
    compiled, backend = compiled_and_backend(folded)
    for n in SIZES:
        assert_same(folded, compiled, lambda n=n: (leaf(n, 4),))
    assert len(backend.subgraph_infos) == 2


def test_mark_dynamic() -> None:
    compiled, backend = compiled_and_backend(folded)
    for n in SIZES:
        x = leaf(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(folded, compiled, lambda x=x: (x,), backward=False)
    assert len(backend.subgraph_infos) == 1


def test_symbolic_sizes_with_inputs_that_overlap_in_a_later_call() -> None:
    def fn(x: Any, y: Any) -> Any:
        x.add_(x.shape[0])
        return x + y

    compiled, _ = compiled_and_backend(fn, dynamic=True)
    for n in SIZES:
        assert_same(fn, compiled, lambda n=n: (torch.randn(n, 3), torch.randn(n, 3)))

        def overlapping(n: int = n) -> tuple:
            base = torch.randn(n + 1, 3)
            return base[1:], base[:-1]

        assert_same(fn, compiled, overlapping)


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("through", ["compiler", "jit"])
def test_sizes_that_depend_on_data(through: str) -> None:
    def nonzero(x: Any) -> Any:
        i = x.nonzero()
        return i * 2, i.size(0) + 1, torch.zeros(i.shape[0])

    def selected(x: Any) -> Any:
        rows = x.nonzero()[:, 0]
        return (x[rows] * 2).sum(), x.masked_select(x > 0).sin()

    def masked(x: Any) -> Any:
        return (x[x > 0] * 2).sum() + x.sum()

    def item(x: Any) -> Any:
        return x.sum().item() * x, (x > 0).any().item()

    for fn in (nonzero, selected, masked, item):
        torch._dynamo.reset()
        compiled = thunder.jit(fn) if through == "jit" else compiled_and_backend(fn)[0]
        for values in ([1.0, 0, 3], [0.0, 2, 0], [1.0, 2, 3]):
            assert_same(fn, compiled, lambda values=values: (torch.tensor(values, requires_grad=True),))


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_condition_on_a_data_dependent_number_is_checked() -> None:
    def fn(x: Any) -> Any:
        n = x.sum().item()
        torch._check(n >= 0)
        torch._check(n < 20)
        return torch.zeros(n) + 1

    compiled, _ = compiled_and_backend(fn)
    assert_same(fn, compiled, lambda: (torch.tensor([1, 2, 3]),))
    with pytest.raises(RuntimeError, match=r"u0 (< 20|<= 19)"):
        compiled(torch.tensor([10, 20, 30]))
