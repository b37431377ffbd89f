"""Primitives that read or write elements at positions held by index tensors. Writes make a new tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.baseutils import check
from thunder.core.dims import canonicalize_dim, check_same_device, compute_broadcast_shape
from thunder.core.errors import ThunderRuntimeError, ThunderTypeError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol


def _check_index(a: TensorProxy, index: TensorProxy, what: str) -> None:
    check(
        dtypes.is_nonboolean_integer_dtype(index.dtype),
        lambda: f"{what}: indices of type {index.dtype}",
        ThunderTypeError,
    )
    check_same_device(a, index)


def _replaced(shape: Sequence[Any], dim: int, size: Any) -> tuple:
    return tuple(size if n == dim else s for n, s in enumerate(shape))


def _take_meta(a: TensorProxy, /, index: TensorProxy, dim: int) -> TensorProxy:
    _check_index(a, index, "take")
    check(index.ndim <= 1, lambda: f"take: the index has {index.ndim} dims", ThunderRuntimeError)
    dim = canonicalize_dim(a.ndim, dim)
    return new_tensor(_replaced(a.shape, dim, index.shape[0] if index.ndim else 1), like=a)


def _take(a: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.index_select(a, dim, index)


take = make_prim("TAKE", "take", meta=_take_meta, torch_fn=_take)


def _take_along_meta(a: TensorProxy, /, index: TensorProxy, dim: int) -> TensorProxy:
    _check_index(a, index, "take_along_axis")
    check(index.ndim == a.ndim, lambda: f"take_along_axis: {index.ndim} dims in {a.ndim}", ThunderRuntimeError)
    dim = canonicalize_dim(a.ndim, dim)
    rest = [(s, i) for n, (s, i) in enumerate(zip(a.shape, index.shape, strict=True)) if n != dim]
    outer = compute_broadcast_shape([s for s, _ in rest], [i for _, i in rest]) or ()
    length = index.shape[dim] if a.ndim else 1
    shape = (*outer[:dim], length, *outer[dim:]) if a.ndim else ()
    return new_tensor(shape, like=a)


def _take_along_axis(a: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.take_along_dim(a, index.long(), dim)


take_along_axis = make_prim("TAKE_ALONG_AXIS", "take_along_axis", meta=_take_along_meta, torch_fn=_take_along_axis)


def _gather_meta(a: TensorProxy, /, index: TensorProxy, dim: int) -> TensorProxy:
    _check_index(a, index, "gather")
    canonicalize_dim(a.ndim, dim)
    check(max(index.ndim, 1) == max(a.ndim, 1), lambda: f"gather: {index.ndim} dims in {a.ndim}", ThunderRuntimeError)
    return new_tensor(index.shape, like=a)


gather = make_prim("GATHER", "gather", meta=_gather_meta, torch_fn=lambda a, index, dim: torch.gather(a, dim, index))


def _writer(id: str, fn: Callable, same_rank: bool) -> Symbol:
    """A write of `value` at `index` along `dim`."""
    name = id.lower()

    def meta(a: TensorProxy, /, index: TensorProxy, value: Any, dim: int) -> TensorProxy:
        _check_index(a, index, name)
        canonicalize_dim(a.ndim, dim)
        if isinstance(value, TensorProxy):
            check(value.dtype is a.dtype, lambda: f"{name}: values of {value.dtype} in {a.dtype}", ThunderRuntimeError)
        if same_rank:
            check(
                max(index.ndim, 1) == max(a.ndim, 1),
                lambda: f"{name}: {index.ndim} dims in {a.ndim}",
                ThunderRuntimeError,
            )
        return new_tensor(a.shape, like=a)

    def run(a: torch.Tensor, index: torch.Tensor, value: Any, dim: int) -> torch.Tensor:
        return fn(a, dim, index, value)

    run.__name__ = run.__qualname__ = name
    return make_prim(id, name, meta=meta, torch_fn=run)


scatter = _writer("SCATTER", torch.scatter, True)
scatter_add = _writer("SCATTER_ADD", torch.scatter_add, True)
index_add = _writer("INDEX_ADD", torch.index_add, False)
index_copy = _writer("INDEX_COPY", torch.index_copy, False)


def _index_put_meta(
    a: TensorProxy, /, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: bool
) -> TensorProxy:
    check(len(indices) <= a.ndim, lambda: f"index_put: {len(indices)} indices for {a.ndim} dims", ThunderRuntimeError)
    check(values.dtype is a.dtype, lambda: f"index_put: values of {values.dtype} in {a.dtype}", ThunderRuntimeError)
    return new_tensor(a.shape, like=a)


def _index_put(
    a: torch.Tensor, indices: Sequence[torch.Tensor], values: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    return torch.index_put(a, tuple(indices), values, accumulate)


index_put = make_prim("INDEX_PUT", "index_put", meta=_index_put_meta, torch_fn=_index_put)


def _index_meta(a: TensorProxy, /, indices: Sequence[TensorProxy | None]) -> TensorProxy:
    used = [n for n, i in enumerate(indices) if i is not None]
    check(bool(used) and len(indices) <= a.ndim, lambda: "index: too many indices, or none", ThunderRuntimeError)
    for index in indices:
        if index is not None:
            _check_index(a, index, "index")
    joint = compute_broadcast_shape(*(indices[n].shape for n in used)) or ()  # type: ignore[union-attr]
    untouched = [s for n, s in enumerate(a.shape) if n not in used]
    adjacent = used == list(range(used[0], used[-1] + 1))
    place = used[0] if adjacent else 0
    return new_tensor((*untouched[:place], *joint, *untouched[place:]), like=a)


def _index(a: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(a, list(indices))


index = make_prim("INDEX", "index", meta=_index_meta, torch_fn=_index)
index.__dict__["__doc__"] = (
    "Elements of `a` at the positions that integer tensors of one broadcast shape give; None keeps a dim. The "
    "broadcast dims stand where the indexed dims were if those are adjacent, else first."
)


def _cumsum_meta(a: TensorProxy, /, dim: int) -> TensorProxy:
    canonicalize_dim(a.ndim, dim)
    return new_tensor(a.shape, like=a)


def _cumsum(a: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cumsum(a, dim, dtype=a.dtype)


cumsum = make_prim("CUMSUM", "cumsum", meta=_cumsum_meta, torch_fn=_cumsum)
