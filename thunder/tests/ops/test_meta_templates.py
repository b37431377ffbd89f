"""Gradients recorded on meta tensors are those recorded on fake tensors, for every operation that is recorded so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from thunder.core.proxies import TensorProxy, tensors_among
from thunder.core.pytree import tree_flatten, tree_unflatten
from thunder.core.transforms import auto_vjp
from thunder.torch.fakes import proxy_of, result_metadata

pytestmark = pytest.mark.slow

SAMPLES = {torch.float32: 4}  # of others, 2
Case = tuple[Callable, list, Any]
# op_db calls these through functions of its own, whose names say nothing.
BY_HAND: dict[Callable, tuple] = {
    F.embedding: (torch.zeros(3, dtype=torch.long), torch.zeros(5, 4, requires_grad=True)),
    torch.einsum: ("ij,jk->ik", torch.zeros(2, 3, requires_grad=True), torch.zeros(3, 4, requires_grad=True)),
    F.interpolate: (torch.zeros(1, 2, 3, 3, requires_grad=True), None, 2.0, "bilinear"),
    F.pad: (torch.zeros(2, 3, requires_grad=True), (1, 1)),
    torch.Tensor.flatten: (torch.zeros(2, 3, requires_grad=True),),
}


def with_proxies(args: tuple, kwargs: dict[str, Any]) -> tuple[list, Any]:
    flat, spec = tree_flatten((args, kwargs))
    count = itertools.count()
    return [proxy_of(v, name=f"t{next(count)}") if isinstance(v, torch.Tensor) else v for v in flat], spec


def cases(device: str, dtype: torch.dtype) -> Iterator[Case]:
    """Calls on proxies, whose gradient may be recorded on meta tensors."""
    calls: list[tuple[Callable, tuple, dict]] = []
    for op in op_db:
        if dtype not in op.supported_dtypes(device) or not op.supports_autograd:
            continue
        for fn in {op.op, op.method_variant} - {None}:
            if auto_vjp._meta_stands_for(fn, [proxy_of(torch.ones(1), name="x")]) is None:
                continue
            samples = itertools.islice(op.sample_inputs(device, dtype, requires_grad=True), SAMPLES.get(dtype, 2))
            calls += [(fn, (s.input, *s.args), s.kwargs) for s in samples]
    if dtype == torch.float32:
        calls += [(fn, args, {}) for fn, args in BY_HAND.items()]
    for fn, args, kwargs in calls:
        flat, spec = with_proxies(args, kwargs)
        if auto_vjp._meta_stands_for(fn, flat) is not None:
            yield fn, flat, spec


def wanted_of(fn: Callable, flat: list, spec: Any) -> list[bool] | None:
    """Which results have a gradient; None where the call has no metadata, or none of its arguments has a gradient."""
    if not any(p.requires_grad for p in tensors_among(flat)):
        return None
    args, kwargs = tree_unflatten(flat, spec)
    try:
        found = tree_flatten([result_metadata(fn, args, kwargs)])[0]
    except Exception:  # its shape depends on data, or it is refused
        return None
    return [m.dtype.is_floating_point or m.dtype.is_complex for m in found if hasattr(m, "dtype")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_templates_are_the_same(device: str, dtype: torch.dtype) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    compared: set[str] = set()
    different: list[str] = []
    for fn, flat, spec in cases(device, dtype):
        wanted = wanted_of(fn, flat, spec)
        if wanted is None:
            continue
        try:
            on_fakes: Any = auto_vjp._careful(fn, flat, spec, wanted)
        except (auto_vjp.NeedsAutograd, RuntimeError, NotImplementedError):
            continue
        try:
            on_meta: Any = auto_vjp._careful(fn, flat, spec, wanted, auto_vjp._meta_stands_for(fn, flat))
        except (auto_vjp.NeedsAutograd, NotImplementedError, RuntimeError):
            continue  # fake tensors are tried next
        compared.add(fn.__name__)
        if on_meta != on_fakes:
            different.append(f"{fn.__name__}: {[str(n.op) for n in on_meta.backward]}")
    assert different == []
    if dtype == torch.float32:
        assert len(compared) > 180
        assert {"linear", "layer_norm", "embedding", "cross_entropy", "einsum", "conv2d", "silu", "mean"} <= compared


def test_calls_on_several_devices_or_sizes_that_vary_are_recorded_on_fake_tensors() -> None:
    x = TensorProxy("x", shape=(2,), device="cpu", dtype=torch.float32, requires_grad=True)
    y = TensorProxy("y", shape=(), device="cuda:0", dtype=torch.float32)
    assert auto_vjp._meta_stands_for(torch.mul, [x, x]) == torch.device("cpu")
    assert auto_vjp._meta_stands_for(torch.mul, [x, y]) is None
    assert auto_vjp._meta_stands_for(torch.mul, [x, torch.device("cpu")]) is None
    assert auto_vjp._meta_stands_for(F.scaled_dot_product_attention, [x, x, x]) is None
    assert auto_vjp._meta_stands_for(F.mish, [x]) is None

    def mul(a, b):
        return a * b if a.is_cpu else a - b

    assert auto_vjp._meta_stands_for(mul, [x, x]) is None
