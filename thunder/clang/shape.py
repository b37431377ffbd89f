"""Functions on shapes, dims and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.clang.utils import Kind, TensorLike, clangop, maybe_convert_to_dtype
from thunder.core import devices, prims
from thunder.core.baseutils import check
from thunder.core.dims import (
    canonicalize_dim,
    canonicalize_dims,
    check_no_duplicates,
    infer_minus_one,
    numel,
    same_shape,
)
from thunder.core.errors import ThunderRuntimeError
from thunder.core.promotion import elementwise_type_promotion


@clangop()
def device_put(a: TensorLike, device: Any) -> TensorLike:
    """`a` on `device`; itself where it is there."""
    device = devices.to_device(device)
    return a if device is None or a.device == device else prims.device_put(a, device)


@clangop()
def reshape(a: TensorLike, shape: Sequence[Any]) -> TensorLike:
    """`a` in another shape, one size of which may be -1; `a` itself where the shape is its own."""
    wanted = infer_minus_one(tuple(shape), numel(a.shape))
    return a if same_shape(wanted, a.shape) else prims.reshape(a, wanted)


@clangop()
def flatten(a: TensorLike, start_dim: int = 0, end_dim: int = -1) -> TensorLike:
    """Dims `start_dim` to `end_dim`, both included, as one."""
    start, end = canonicalize_dim(a.ndim, start_dim), canonicalize_dim(a.ndim, end_dim)
    check(start <= end, lambda: "flatten: start_dim cannot come after end_dim", ThunderRuntimeError)
    if a.ndim == 0:
        return prims.reshape(a, (1,))
    return reshape(a, (*a.shape[:start], numel(a.shape[start : end + 1]), *a.shape[end + 1 :]))


@clangop()
def flip(a: TensorLike, dims: Sequence[int] | int | None = None) -> TensorLike:
    """`a` reversed along `dims`, None for all."""
    if dims is None:
        dims = tuple(range(a.ndim))
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    dims = canonicalize_dims(a.ndim, dims)
    check_no_duplicates(dims)
    return prims.flip(a, dims) if a.ndim else a


@clangop()
def movedim(a: TensorLike, /, source: int | Sequence[int], destination: int | Sequence[int]) -> TensorLike:
    """`a` with the dims `source` at the places `destination`, the others in order."""
    sources = canonicalize_dims(a.ndim, (source,) if isinstance(source, int) else tuple(source))
    places = canonicalize_dims(a.ndim, (destination,) if isinstance(destination, int) else tuple(destination))
    check(
        len(sources) == len(places),
        lambda: f"movedim: {len(sources)} dims to {len(places)} places",
        ThunderRuntimeError,
    )
    check_no_duplicates(sources)
    check_no_duplicates(places)
    at = dict(zip(places, sources, strict=True))
    others = iter(d for d in range(a.ndim) if d not in sources)
    return transpose(a, [at[n] if n in at else next(others) for n in range(a.ndim)])


@clangop()
def transpose(a: TensorLike, permutation: Sequence[int]) -> TensorLike:
    """`a` with its dims in the order `permutation`."""
    order = canonicalize_dims(a.ndim, tuple(permutation))
    return a if order == tuple(range(a.ndim)) else prims.transpose(a, order)


@clangop(method_name="mT")
def matrix_transpose(a: TensorLike) -> TensorLike:
    """`a` with its last two dims swapped; `a` itself where it has no dims."""
    if a.ndim == 0:
        return a
    check(a.ndim >= 2, lambda: "a matrix transpose takes two dims at least", ThunderRuntimeError)
    return transpose(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


@clangop()
def pad(input: TensorLike, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> TensorLike:
    """`input` with (low, high, interior) elements of `padding_value` added per dim; negative ones crop."""
    return prims.pad(input, maybe_convert_to_dtype(padding_value, input.dtype), padding_config)


@clangop()
def slice_in_dim(a: TensorLike, start_index: Any, limit_index: Any, stride: int = 1, dim: int = 0) -> TensorLike:
    """Every `stride`-th element of `dim` from `start_index` to before `limit_index`, which lie in the dim."""
    dim = canonicalize_dim(a.ndim, dim)
    starts, ends, strides = [0] * a.ndim, list(a.shape), [1] * a.ndim
    starts[dim], ends[dim], strides[dim] = start_index, limit_index, stride
    return prims.slice_prim(a, tuple(starts), tuple(ends), tuple(strides))


@clangop()
def squeeze(a: TensorLike, dims: Sequence[int] | int) -> TensorLike:
    """`a` without the dims of size 1 `dims`. Raises ThunderRuntimeError where a size is not 1."""
    dims = canonicalize_dims(a.ndim, (dims,) if isinstance(dims, int) else tuple(dims))
    return prims.squeeze(a, dims) if dims and a.ndim else a


@clangop()
def unsqueeze(a: TensorLike, /, dims: int | Sequence[int]) -> TensorLike:
    """`a` with dims of size 1 at the places `dims` of the result."""
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    rank = a.ndim + len(dims)
    places = canonicalize_dims(rank, dims)
    check_no_duplicates(places)
    sizes = iter(a.shape)
    shape = tuple(1 if n in places else next(sizes) for n in range(rank))
    return prims.broadcast_in_dim(a, shape, tuple(n for n in range(rank) if n not in places)) if dims else a


@clangop()
def unfold(a: TensorLike, /, dim: int, size: int, step: int) -> TensorLike:
    """Windows of `size` elements along `dim`, `step` apart, in a new last dim."""
    return prims.unfold(a, canonicalize_dim(a.ndim, dim), size, step)


@clangop()
def stride_order(a: TensorLike, order: Sequence[int] | None = None) -> TensorLike:
    """`a` in dense memory with strides growing as `order` says; row-major by default."""
    return prims.stride_order(a, tuple(range(a.ndim - 1, -1, -1)) if order is None else tuple(order))


@clangop()
def cat(tensors: list[TensorLike], dim: int) -> TensorLike:
    """The tensors joined along `dim`, in their common dtype."""
    check(len(tensors) > 0, lambda: "cat: there is nothing to join", ThunderRuntimeError)
    _, dtype = elementwise_type_promotion(*tensors, type_promotion_kind=Kind.PRESERVE)
    dim = canonicalize_dim(tensors[0].ndim, dim, wrap_scalar=False)
    return prims.cat([maybe_convert_to_dtype(t, dtype) for t in tensors], dim)


@clangop()
def stack(tensors: list[TensorLike], dim: int) -> TensorLike:
    """The tensors, all of one shape, along a new dim."""
    check(len(tensors) > 0, lambda: "stack: there is nothing to join", ThunderRuntimeError)
    for t in tensors:
        check(
            same_shape(t.shape, tensors[0].shape),
            lambda t=t: f"stack: the shapes {tensors[0].shape} and {t.shape} differ",
            ThunderRuntimeError,
        )
    dim = canonicalize_dim(tensors[0].ndim + 1, dim)
    return cat([unsqueeze(t, dim) for t in tensors], dim)


@clangop()
def diagonal(a: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorLike:
    """The diagonals of the planes of two dims, in a new last dim; `offset` above (below, if negative) the main one."""
    dim1, dim2 = canonicalize_dim(a.ndim, dim1), canonicalize_dim(a.ndim, dim2)
    check(dim1 != dim2, lambda: "diagonal: the two dims are the same", ThunderRuntimeError)
    rows, columns = a.shape[dim1], a.shape[dim2]
    first_row, first_column = max(0, -offset), max(0, offset)
    length = max(0, min(rows - first_row, columns - first_column))
    moved = movedim(a, (dim1, dim2), (a.ndim - 2, a.ndim - 1))
    flat = reshape(moved, (*moved.shape[:-2], rows * columns))
    start = first_row * columns + first_column if length else 0
    end = start + (length - 1) * (columns + 1) + 1 if length else 0
    return slice_in_dim(flat, start, end, columns + 1, flat.ndim - 1)
