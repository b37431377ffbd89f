"""Products through oneDNN: which, their values and gradients, strides that were not foreseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.torch_compat import onednn_linear
from thunder.executors import onednn_products, region_cache, region_program
from thunder.executors.inductorex import region_table
from thunder.tests.fusers import uncompiled

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(onednn_linear() is None, reason="torch comes without oneDNN"),
]


@pytest.fixture(autouse=True)
def slow_blas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any machine is one on which oneDNN is faster, and regions run as they are."""
    region_table.clear()
    monkeypatch.setattr(onednn_products, "blas_is_slow_here", lambda: True)
    monkeypatch.setattr(region_program, "compile_with_inductor", uncompiled)
    yield
    region_table.clear()


def products(f: Callable) -> tuple[int, int]:
    """How many products of the last forward and backward go through oneDNN."""
    traces = thunder.last_traces(f)[-1:], thunder.last_backward_traces(f)[-1:]
    return tuple(sum("_linear_pointwise" in n.sym.name for t in ts for n in t.bound_symbols) for ts in traces)  # type: ignore[return-value]


def leaf(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True, **kwargs)


CASES: dict[str, tuple[Callable, Callable[[], tuple], tuple[int, int]]] = {
    # Of the gradients of a product, one has a transposed left side.
    "linear": (F.linear, lambda: (leaf(128, 256), leaf(512, 256), leaf(512)), (1, 1)),
    "linear of a batch": (F.linear, lambda: (leaf(4, 64, 256), leaf(512, 256)), (1, 1)),
    "mm": (torch.mm, lambda: (leaf(128, 256), leaf(256, 512)), (1, 1)),
    "matmul of a batch": (torch.matmul, lambda: (leaf(4, 64, 256), leaf(256, 512)), (1, 1)),
    "bmm of one": (torch.bmm, lambda: (leaf(1, 128, 256), leaf(1, 256, 512)), (1, 1)),
    "bmm of two": (torch.bmm, lambda: (leaf(2, 128, 256), leaf(2, 256, 512)), (0, 0)),
    "small": (F.linear, lambda: (leaf(64, 64), leaf(64, 64)), (0, 0)),
    "one row": (F.linear, lambda: (leaf(1, 8192), leaf(4096, 8192)), (0, 0)),
    "double": (F.linear, lambda: (leaf(128, 256, dtype=torch.double), leaf(512, 256, dtype=torch.double)), (0, 0)),
    "half": (F.linear, lambda: (leaf(128, 256, dtype=torch.bfloat16), leaf(512, 256, dtype=torch.bfloat16)), (0, 0)),
    "transposed left side": (torch.mm, lambda: (leaf(256, 128).t(), leaf(256, 512)), (0, 2)),
    "added to": (torch.addmm, lambda: (leaf(512), leaf(128, 256), leaf(256, 512)), (1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    fn, make, expected = CASES[name]
    compiled = thunder.jit(lambda *args: fn(*(a * 1 for a in args[:1]), *args[1:]), executors=["torchcompile"])
    torch.manual_seed(0)
    ours = make()
    theirs = tuple(a.detach().clone().requires_grad_() for a in ours)
    got, want = compiled(*ours), fn(*theirs)
    weight = torch.rand_like(want)
    tolerance = {"rtol": 1e-2, "atol": 1e-1} if want.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(got, want, **tolerance)
    assert got.stride() == want.stride()
    grads = torch.autograd.grad((got * weight).sum(), ours)
    torch.testing.assert_close(grads, torch.autograd.grad((want * weight).sum(), theirs), **tolerance)
    assert products(compiled) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(256, 128).t(),
        lambda: torch.rand(128, 512)[:, ::2],
        lambda: torch.rand(256).expand(128, 256),
        lambda: torch.rand(128, 1).expand(128, 256),
        lambda: torch.rand(1, 128 * 256 + 1)[0, 1:].view(128, 256),
    ],
)
def test_operands_of_any_strides(make: Callable) -> None:
    """What is foreseen of strides decides about speed only."""
    w, bias = torch.rand(512, 256), torch.rand(512)
    run = onednn_linear()
    for x, weight in ((make(), w), (torch.rand(512, 256), make()), (make(), make())):
        b = bias if weight is w else None
        torch.testing.assert_close(run(x, weight, b, "none", [], ""), F.linear(x, weight, b), rtol=1e-4, atol=1e-3)


def test_gradients_given_with_other_strides() -> None:
    compiled = thunder.jit(F.linear, executors=["torchcompile"])
    x, w = leaf(128, 256), leaf(512, 256)
    y = compiled(x, w)
    for gradient in (torch.rand(512, 128).t(), torch.rand(1).expand(128, 512)):
        got = torch.autograd.grad(y, (x, w), gradient, retain_graph=True)
        torch.testing.assert_close(got, (gradient @ w, gradient.t() @ x), rtol=1e-4, atol=1e-3)
    assert products(compiled) == (1, 1)


def test_only_where_blas_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_products, "blas_is_slow_here", lambda: False)
    compiled = thunder.jit(F.linear, executors=["torchcompile"])
    compiled(leaf(128, 256), leaf(512, 256))
    assert products(compiled) == (0, 0)


def test_unfused_programs_call_what_eager_calls() -> None:
    compiled = thunder.jit(F.linear)
    x, w = leaf(128, 256), leaf(512, 256)
    assert torch.equal(compiled(x, w), F.linear(x, w))
    assert products(compiled) == (0, 0)


@pytest.mark.parametrize(
    "vendor, machine, has_mkl, slow",
    [
        ("AuthenticAMD", "x86_64", True, True),
        ("HygonGenuine", "AMD64", True, True),
        ("GenuineIntel", "x86_64", True, False),
        ("AuthenticAMD", "x86_64", False, False),
        ("", "x86_64", True, False),
        ("AuthenticAMD", "aarch64", True, False),
    ],
)
def test_which_processors(
    vendor: str, machine: str, has_mkl: bool, slow: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n" if vendor else "processor\t: 0\n")
    monkeypatch.setattr(region_cache, "Path", lambda _: facts)
    monkeypatch.setattr(onednn_products.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert onednn_products.blas_is_slow_here.__wrapped__() is slow
