"""Reading and writing by position: `a[key]`, gathers and scatters, order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.clang.creation import tensor_from_sequence
from thunder.clang.shape import squeeze, unsqueeze
from thunder.clang.utils import TensorLike, clangop, expand, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.dims import canonicalize_dim, canonicalize_dim_idx
from thunder.core.errors import NoDecompositionError, ThunderIndexError, ThunderValueError
from thunder.core.promotion import get_numberlike_value, is_numberlike
from thunder.core.proxies import TensorProxy
from thunder.core.torch_compat import guard_or_false, guard_or_true


def _expand_ellipsis(key: tuple, rank: int) -> list:
    used = sum(k is not None and k is not Ellipsis for k in key)
    check(used <= rank, lambda: f"too many indices for a tensor of dimension {rank}", ThunderIndexError)
    fill = [slice(None)] * (rank - used)
    place = next((n for n, k in enumerate(key) if k is Ellipsis), len(key))
    check(
        sum(k is Ellipsis for k in key) <= 1, lambda: "an index can only have one ellipsis ('...')", ThunderIndexError
    )
    return [*key[:place], *fill, *key[place + 1 :]]


def _chosen(bound: Any, limit: Any, choice: Callable[[Any, Any], Any]) -> Any:
    """The larger or smaller of two sizes, as an expression only where it depends on values which that is."""
    if guard_or_false(bound <= limit):
        return bound if choice is torch.sym_min else limit
    if guard_or_false(bound > limit):
        return limit if choice is torch.sym_min else bound
    return choice(bound, limit)


def slice_bounds(key: slice, size: Any) -> tuple[Any, Any, int]:
    """(start, end, step) of a slice, within a dim of `size` elements. Raises ThunderValueError for a step below 1."""
    step = 1 if key.step is None else get_numberlike_value(key.step)
    check(step > 0, lambda: "slice step must be positive", ThunderValueError)

    def clamped(bound: Any, default: Any) -> Any:
        if bound is None:
            return default
        bound = get_numberlike_value(bound)
        if guard_or_false(bound < 0):
            bound = _chosen(bound + size, 0, torch.sym_max)
        return _chosen(bound, size, torch.sym_min)

    start, end = clamped(key.start, 0), clamped(key.stop, size)
    return start, end if guard_or_true(end > start) else start, step


def _basic(a: TensorLike, key: list) -> tuple[TensorLike, list]:
    """The slices, ints and Nones of a key applied; what is left holds index tensors, and None for other dims."""
    starts, ends, strides, dropped, added, rest = [], [], [], [], [], []
    dim = 0
    for k in key:
        if k is None:
            added.append(len(rest))
            rest.append(None)
            continue
        size = a.shape[dim]
        if isinstance(k, slice):
            bounds = slice_bounds(k, size)
            rest.append(None)
        elif isinstance(k, TensorProxy):
            bounds = (0, size, 1)
            rest.append(k)
        else:
            index = canonicalize_dim_idx(size, get_numberlike_value(k))
            bounds = (index, index + 1, 1)
            dropped.append(dim)
        starts.append(bounds[0])
        ends.append(bounds[1])
        strides.append(bounds[2])
        dim += 1
    whole = all(s == 0 and e is n and st == 1 for s, e, st, n in zip(starts, ends, strides, a.shape, strict=True))
    if not whole:
        a = prims.slice_prim(a, tuple(starts), tuple(ends), tuple(strides))
    if dropped:
        a = squeeze(a, tuple(dropped))
    return (unsqueeze(a, tuple(added)) if added else a), rest


def _index_tensor(k: Any, a: TensorLike) -> Any:
    if isinstance(k, Sequence) and not isinstance(k, str):
        k = tensor_from_sequence(k, device=a.device)
    if isinstance(k, TensorProxy):
        if not dtypes.is_nonboolean_integer_dtype(k.dtype) or k.dtype is dtypes.uint8:
            raise NoDecompositionError("the number of elements that a mask selects is not known")
        return k if k.dtype in (dtypes.int64, dtypes.int32) else maybe_convert_to_dtype(k, dtypes.int64)
    if isinstance(k, bool | torch.SymBool) or not (
        k is None or k is Ellipsis or isinstance(k, slice) or is_numberlike(k)
    ):
        raise NoDecompositionError(f"an index of type {type(k).__name__}")
    return k


@clangop(method_name="getitem")
def getitem(a: TensorLike, /, key: Any) -> TensorLike:
    """`a[key]` for ints, slices, None, Ellipsis, integer tensors and lists.

    Raises: ThunderIndexError as indexing does; NoDecompositionError for masks, whose result has an unknown size.
    """
    key = key if isinstance(key, tuple) else (key,)
    found = [_index_tensor(k, a) for k in _expand_ellipsis(key, a.ndim)]
    tensors = [k for k in found if isinstance(k, TensorProxy)]
    if len(tensors) > 1 and any(t.ndim == 0 for t in tensors):
        raise NoDecompositionError("index tensors without dims beside others")
    a, rest = _basic(a, found)
    if not tensors:
        return a
    while rest and rest[-1] is None:
        rest.pop()
    return prims.index(a, rest)


@clangop()
def copy_with_setitem(a: TensorLike, key: Any, value: Any) -> TensorLike:
    """A copy of `a` in which `a[key]` is `value`."""
    return prims.copy_with_setitem(a, key, value)


def _same_dtype(a: TensorLike, value: Any) -> Any:
    return maybe_convert_to_dtype(value, a.dtype)


@clangop()
def take(a: TensorLike, indices: TensorLike, dim: int) -> TensorLike:
    """The slices of `dim` at one-dimensional `indices`."""
    return prims.take(a, indices, canonicalize_dim(a.ndim, dim))


@clangop()
def take_along_axis(a: TensorLike, /, indices: TensorLike, dim: int) -> TensorLike:
    """Elements along `dim` at `indices`, which broadcasts with `a` in the other dims."""
    return prims.take_along_axis(a, indices, canonicalize_dim(a.ndim, dim))


@clangop()
def gather(a: TensorLike, /, indices: TensorLike, dim: int) -> TensorLike:
    """Elements along `dim` at `indices`; the other positions are those in `indices`."""
    return prims.gather(a, indices, canonicalize_dim(a.ndim, dim))


@clangop()
def scatter(a: TensorLike, /, index: TensorLike, src: Any, dim: int) -> TensorLike:
    """A copy of `a` with `src` (a tensor or number) at `index` along `dim`."""
    return prims.scatter(a, index, src, canonicalize_dim(a.ndim, dim))


@clangop()
def scatter_add(a: TensorLike, /, indices: TensorLike, value: TensorLike, dim: int) -> TensorLike:
    """A copy of `a` with `value` added at `indices` along `dim`."""
    return prims.scatter_add(a, indices, value, canonicalize_dim(a.ndim, dim))


@clangop()
def index_add(a: TensorLike, indices: TensorLike, value: TensorLike, dim: int) -> TensorLike:
    """A copy of `a` with the slices of `value` added to those at one-dimensional `indices`."""
    return prims.index_add(a, indices, value, canonicalize_dim(a.ndim, dim))


@clangop()
def index_copy(a: TensorLike, indices: TensorLike, value: TensorLike, dim: int) -> TensorLike:
    """A copy of `a` in which the slices at one-dimensional `indices` are those of `value`."""
    return prims.index_copy(a, indices, value, canonicalize_dim(a.ndim, dim))


@clangop()
def index_put(
    a: TensorLike, /, indices: Sequence[TensorLike], values: TensorLike, accumulate: bool = False
) -> TensorLike:
    """A copy of `a` with `values` at the positions that `indices` give together, added if `accumulate`."""
    return prims.index_put(a, tuple(maybe_broadcast(*indices)), _same_dtype(a, values), accumulate)


@clangop()
def argmax(a: TensorLike, /, dim: int | None = None, keepdim: bool | None = False) -> TensorLike:
    """The int64 position of the largest element along `dim`, or in the flattened tensor."""
    return _arg(prims.argmax, a, dim, keepdim)


@clangop()
def argmin(a: TensorLike, /, dim: int | None = None, keepdim: bool | None = False) -> TensorLike:
    """The int64 position of the smallest element along `dim`, or in the flattened tensor."""
    return _arg(prims.argmin, a, dim, keepdim)


def _arg(prim: Any, a: TensorLike, dim: int | None, keepdim: bool | None) -> TensorLike:
    if dim is not None:
        dim = canonicalize_dim(a.ndim, dim)
    out = prim(a, dim)
    if keepdim and a.ndim:
        return expand(out, (1,) * a.ndim) if dim is None else unsqueeze(out, dim)
    return out


@clangop()
def topk(
    a: TensorLike, /, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True
) -> tuple[TensorLike, TensorLike]:
    """(values, int64 positions) of the `k` largest (smallest) elements along `dim`, the last one by default."""
    return prims.topk(a, k, canonicalize_dim(a.ndim, -1 if dim is None else dim), bool(largest), bool(sorted))


@clangop()
def sort(
    a: TensorLike, /, dim: int | None = None, descending: bool = False, stable: bool = False
) -> tuple[TensorLike, TensorLike]:
    """(values in order, int64 positions that they had) along `dim`, the last one by default."""
    return prims.sort(a, canonicalize_dim(a.ndim, -1 if dim is None else dim), bool(descending), bool(stable))


__all__ = [
    "argmax", "argmin", "copy_with_setitem", "gather", "getitem", "index_add", "index_copy", "index_put", "scatter",
    "scatter_add", "slice_bounds", "sort", "take", "take_along_axis", "topk",
]  # fmt: skip
