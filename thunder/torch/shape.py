"""Views, joins and splits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.dims import canonicalize_dim, canonicalize_dims, extract_shape_from_varargs, infer_minus_one, numel
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.proxies import TensorProxy
from thunder.torch.op import op


@op(torch.reshape)
def reshape(input: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """`input` in another shape, one size of which may be -1; may be a view of it, or `input` itself."""
    return clang.reshape(input, extract_shape_from_varargs((shape,)))


@op(torch.Tensor.view, samples="view")
def view(self: TensorProxy, *shape: Any) -> TensorProxy:
    """A view of another shape, or of another dtype."""
    if shape and isinstance(shape[0], torch.dtype):
        return prims.bitcast(self, dtypes.to_dtype(shape[0]))
    return clang.reshape(self, extract_shape_from_varargs(shape))


@op(torch.Tensor.view_as, torch.Tensor.reshape_as, samples="view_as")
def view_as(self: TensorProxy, other: TensorProxy) -> TensorProxy:
    """`self` in the shape of `other`."""
    return clang.reshape(self, other.shape)


@op(torch.Tensor.expand, samples="expand")
def expand(self: TensorProxy, *size: Any) -> TensorProxy:
    """A view with dims of size 1, and new ones in front, repeated; -1 keeps a size."""
    return clang.expand(self, *size)


@op(torch.broadcast_to)
def broadcast_to(input: TensorProxy, size: Sequence[int]) -> TensorProxy:
    """A view with dims of size 1, and new ones in front, repeated."""
    return clang.expand(input, size)


@op(torch.Tensor.expand_as, samples="expand_as")
def expand_as(self: TensorProxy, other: TensorProxy) -> TensorProxy:
    """`self` expanded to the shape of `other`."""
    return clang.expand(self, other.shape)


@op(torch.permute)
def permute(input: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """A view with the dims in another order."""
    return clang.transpose(input, extract_shape_from_varargs((dims,)))


@op(torch.transpose, torch.swapaxes, torch.swapdims)
def transpose(input: TensorProxy, dim0: int, dim1: int) -> TensorProxy:
    """A view with two dims swapped."""
    dim0, dim1 = canonicalize_dims(input.ndim, (dim0, dim1))
    order = list(range(input.ndim))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return clang.transpose(input, order)


@op(torch.t)
def t(input: TensorProxy) -> TensorProxy:
    """The transpose of a matrix; one dim, or none, stays."""
    if input.ndim > 2:
        raise ThunderRuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return clang.transpose(input, tuple(range(input.ndim - 1, -1, -1)))


@op(torch.adjoint)
def adjoint(input: TensorProxy) -> TensorProxy:
    """The conjugate transpose of the last two dims."""
    if dtypes.is_complex_dtype(input.dtype):
        raise NoDecompositionError("a conjugate")
    return clang.matrix_transpose(input)


@op(torch.movedim, torch.moveaxis)
def movedim(input: TensorProxy, source: Any, destination: Any) -> TensorProxy:
    """A view with dims moved to other places."""
    return clang.movedim(input, source, destination)


@op(torch.flatten)
def flatten(input: TensorProxy, start_dim: int = 0, end_dim: int = -1) -> TensorProxy:
    """Dims `start_dim` to `end_dim`, both included, as one."""
    return clang.flatten(input, start_dim, end_dim)


@op(torch.ravel)
def ravel(input: TensorProxy) -> TensorProxy:
    """All dims as one."""
    return clang.reshape(input, (numel(input.shape),))


@op(torch.unflatten, torch.Tensor.unflatten)
def unflatten(input: TensorProxy, dim: int, sizes: Sequence[int]) -> TensorProxy:
    """`dim` as several dims."""
    if isinstance(dim, str):
        raise NoDecompositionError("named dims")
    dim = canonicalize_dim(input.ndim, dim)
    inner = infer_minus_one(tuple(sizes), input.shape[dim])
    return clang.reshape(input, (*input.shape[:dim], *inner, *input.shape[dim + 1 :]))


@op(torch.squeeze)
def squeeze(input: TensorProxy, dim: Any = None) -> TensorProxy:
    """A view without dims of size 1: all of them, or those in `dim`."""
    dims = tuple(range(input.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    dims = canonicalize_dims(input.ndim, dims)
    return clang.squeeze(input, tuple(d for d in dims if input.ndim and input.shape[d] == 1))


@op(torch.unsqueeze)
def unsqueeze(input: TensorProxy, dim: int) -> TensorProxy:
    """A view with a dim of size 1 at `dim`."""
    return clang.unsqueeze(input, dim)


@op(torch.diagonal)
def diagonal(input: TensorProxy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorProxy:
    """The diagonals of the planes of two dims, in a new last dim."""
    return clang.diagonal(input, offset, dim1, dim2)


@op(torch.select)
def select(input: TensorProxy, dim: int, index: int) -> TensorProxy:
    """The slice of `dim` at `index`."""
    dim = canonicalize_dim(input.ndim, dim)
    return clang.getitem(input, (*(slice(None),) * dim, index))


@op(torch.narrow)
def narrow(input: TensorProxy, dim: int, start: Any, length: int) -> TensorProxy:
    """The `length` slices of `dim` from `start`."""
    if isinstance(start, TensorProxy):
        raise NoDecompositionError("a start held by a tensor")
    dim = canonicalize_dim(input.ndim, dim)
    start = start + input.shape[dim] if start < 0 else start
    return clang.slice_in_dim(input, start, start + length, 1, dim)


@op(torch.Tensor.unfold, samples="unfold")
def unfold(self: TensorProxy, dimension: int, size: int, step: int) -> TensorProxy:
    """Windows of `size` elements along a dim, `step` apart, in a new last dim."""
    return clang.unfold(self, dimension, size, step)


@op(torch.flip)
def flip(input: TensorProxy, dims: Any) -> TensorProxy:
    """A copy reversed along `dims`."""
    dims = canonicalize_dims(input.ndim, (dims,) if isinstance(dims, int) else tuple(dims))
    return prims.flip(input, dims) if dims and input.ndim else prims.clone(input)


@op(torch.Tensor.contiguous, samples="contiguous")
def contiguous(self: TensorProxy, memory_format: Any = torch.contiguous_format) -> TensorProxy:
    """`self` in row-major memory (or another dense one); itself where it is so already."""
    if memory_format is torch.contiguous_format:
        return clang.stride_order(self)
    orders = {torch.channels_last: (3, 0, 2, 1), torch.channels_last_3d: (4, 0, 3, 2, 1)}
    if memory_format not in orders:
        return self
    return clang.stride_order(self, orders[memory_format])


@op(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """The tensors joined along `dim`, in their common dtype. One-dimensional tensors of no elements do not count."""
    if all(t.ndim == 1 for t in tensors) or not any(t.ndim == 1 and t.shape[0] == 0 for t in tensors):
        return clang.cat(list(tensors), dim)
    raise NoDecompositionError("tensors of no elements that take no part")


@op(torch.stack)
def stack(tensors: Sequence[TensorProxy], dim: int = 0) -> TensorProxy:
    """The tensors, all of one shape, along a new dim."""
    return clang.stack(list(tensors), dim)


def _split(a: TensorProxy, lengths: Sequence[int], dim: int) -> tuple[TensorProxy, ...]:
    parts, start = [], 0
    for length in lengths:
        parts.append(clang.slice_in_dim(a, start, start + length, 1, dim))
        start = start + length
    return tuple(parts)


def _split_sizes(a: TensorProxy, size: Any, dim: int) -> tuple[TensorProxy, ...]:
    dim = canonicalize_dim(a.ndim, dim)
    total = a.shape[dim]
    if not isinstance(size, int):
        return _split(a, tuple(size), dim)
    if size <= 0 or total == 0:
        raise NoDecompositionError("parts of no elements")
    count = -(-total // size)
    return _split(a, [min(size, total - n * size) for n in range(int(count))], dim)


@op(torch.split)
def split(tensor: TensorProxy, split_size_or_sections: Any, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Views of consecutive parts of `dim`, each of a given size or of sizes given one by one."""
    return _split_sizes(tensor, split_size_or_sections, dim)


@op(torch.Tensor.split, name="tensor_split_method", samples="split")
def tensor_split_method(self: TensorProxy, split_size: Any, dim: int = 0) -> tuple[TensorProxy, ...]:
    """As `split`."""
    return _split_sizes(self, split_size, dim)


@op(torch.split_with_sizes)
def split_with_sizes(input: TensorProxy, split_sizes: Sequence[int], dim: int = 0) -> tuple[TensorProxy, ...]:
    """Views of consecutive parts of `dim` of the given sizes."""
    return _split_sizes(input, tuple(split_sizes), dim)


@op(torch.chunk)
def chunk(input: TensorProxy, chunks: int, dim: int = 0) -> tuple[TensorProxy, ...]:
    """At most `chunks` views of consecutive parts of `dim`, of one size but for the last."""
    dim = canonicalize_dim(input.ndim, dim)
    size = -(-input.shape[dim] // chunks)
    if size == 0:
        return _split(input, [0] * chunks, dim)
    return _split_sizes(input, int(size), dim)


@op(torch.tensor_split)
def tensor_split(input: TensorProxy, indices_or_sections: Any, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Views of parts of `dim`: a number of nearly equal ones, or those between the given positions."""
    if isinstance(indices_or_sections, TensorProxy):
        raise NoDecompositionError("positions held by a tensor")
    dim = canonicalize_dim(input.ndim, dim)
    total = input.shape[dim]
    if isinstance(indices_or_sections, int):
        size, extra = total // indices_or_sections, total % indices_or_sections
        return _split(input, [size + (n < extra) for n in range(indices_or_sections)], dim)
    key = (slice(None),) * dim
    bounds = [None, *indices_or_sections, None]
    return tuple(clang.getitem(input, (*key, slice(s, e))) for s, e in itertools.pairwise(bounds))


@op(torch.unbind)
def unbind(input: TensorProxy, dim: int = 0) -> tuple[TensorProxy, ...]:
    """Views of the slices of `dim`."""
    dim = canonicalize_dim(input.ndim, dim, wrap_scalar=False)
    parts = _split(input, [1] * int(input.shape[dim]), dim)
    return tuple(clang.squeeze(p, dim) for p in parts)


@op(torch.Tensor.repeat, samples="repeat")
def repeat(self: TensorProxy, *repeats: Any) -> TensorProxy:
    """A copy repeated along each dim, new dims in front."""
    counts = extract_shape_from_varargs(repeats)
    return _tiled(self, counts)


@op(torch.tile)
def tile(input: TensorProxy, dims: Sequence[int]) -> TensorProxy:
    """As `repeat`, with ones for dims not given."""
    counts = extract_shape_from_varargs((dims,))
    return _tiled(input, (*(1,) * (input.ndim - len(counts)), *counts))


def _tiled(a: TensorProxy, counts: Sequence[Any]) -> TensorProxy:
    lead = len(counts) - a.ndim
    shape = (*(1,) * lead, *a.shape)
    spread = [s for count, size in zip(counts, shape, strict=True) for s in (count, size)]
    inner = [s for size in shape for s in (1, size)]
    result = clang.expand(clang.reshape(a, inner), spread)
    final = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return prims.clone(result) if not final else clang.reshape(result, final)


@op(torch.atleast_1d)
def atleast_1d(*tensors: Any) -> Any:
    """The tensors with one dim at least."""
    return _each(tensors, lambda a: clang.reshape(a, (1,)) if a.ndim == 0 else a)


@op(torch.atleast_2d)
def atleast_2d(*tensors: Any) -> Any:
    """The tensors with two dims at least, added in front."""
    return _each(tensors, lambda a: clang.reshape(a, (1,) * (2 - a.ndim) + tuple(a.shape)) if a.ndim < 2 else a)


@op(torch.atleast_3d)
def atleast_3d(*tensors: Any) -> Any:
    """The tensors with three dims at least."""

    def grown(a: TensorProxy) -> TensorProxy:
        shapes = {0: (1, 1, 1), 1: (1, *a.shape, 1), 2: (*a.shape, 1)}
        return clang.reshape(a, shapes[a.ndim]) if a.ndim < 3 else a

    return _each(tensors, grown)


def _each(tensors: tuple, fn: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], TensorProxy):
        return fn(tensors[0])
    given = tensors[0] if len(tensors) == 1 else tensors
    return tuple(fn(a) for a in given)


_PAD_MODES = ("constant", "reflect", "replicate", "circular")


def _border_positions(mode: str, size: int, low: int, high: int, like: TensorProxy) -> TensorProxy:
    """Which element each place of a padded dim shows."""
    places = clang.arange(start=-low, stop=size + high, step=1, device=like.device, dtype=dtypes.int64)
    if mode == "circular":
        return clang.mod(places, size)
    if mode == "reflect":
        last = size - 1
        return clang.sub(last, clang.abs(clang.sub(last, clang.abs(places))))
    return clang.minimum(clang.maximum(places, 0), size - 1)


@op(F.pad, samples="nn.functional.pad")
def pad(input: TensorProxy, pad: Sequence[int], mode: str = "constant", value: Any = None) -> TensorProxy:
    """`input` with elements added, or cropped where negative; pairs (low, high) from the last dim on.

    mode: "constant" adds `value` (0); "reflect", "replicate" and "circular" go on with the dim's own elements.
    """
    is_judged = mode == "circular" and any(n < 0 for n in pad)  # torch's own idea of what that means
    if len(pad) % 2 or len(pad) > 2 * input.ndim or is_judged or mode not in _PAD_MODES:
        raise NoDecompositionError(f"padding by {mode}")
    pairs = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)]
    if mode == "constant":
        pairs += [(0, 0)] * (input.ndim - len(pairs))
        config = tuple((low, high, 0) for low, high in reversed(pairs))
        return clang.pad(input, 0 if value is None else value, config)
    most = {"reflect": -1, "circular": 0}
    out = input
    for n, (low, high) in enumerate(pairs):
        dim = input.ndim - 1 - n
        size = input.shape[dim]
        allowed = size + most[mode] if mode in most else max(low, high)
        is_known = isinstance(size, int) and size > 0
        if value is not None or not is_known or max(low, high) > allowed or low + high + size <= 0:
            raise NoDecompositionError("forms that are torch's to judge")
        if low or high:
            out = clang.take(out, _border_positions(mode, size, low, high, input), dim)
    if input.ndim not in (len(pairs) + 1, len(pairs) + 2) or out is input:
        raise NoDecompositionError("forms that are torch's to judge")
    return out


def _triangle(a: TensorProxy, diagonal: int, lower: bool) -> TensorProxy:
    rows = clang.unsqueeze(clang.arange(start=0, stop=a.shape[-2], step=1, device=a.device), 1)
    columns = clang.arange(start=0, stop=a.shape[-1], step=1, device=a.device)
    offset = clang.sub(columns, rows)
    kept = clang.le(offset, diagonal) if lower else clang.ge(offset, diagonal)
    return clang.where(kept, a, maybe_convert_to_dtype(0, a.dtype))


@op(torch.tril)
def tril(input: TensorProxy, diagonal: int = 0) -> TensorProxy:
    """The lower triangle of each matrix, up to a diagonal, with zeros elsewhere."""
    return _triangle(input, diagonal, True)


@op(torch.triu)
def triu(input: TensorProxy, diagonal: int = 0) -> TensorProxy:
    """The upper triangle of each matrix, from a diagonal on, with zeros elsewhere."""
    return _triangle(input, diagonal, False)


@op(torch.roll)
def roll(input: TensorProxy, shifts: Any, dims: Any = None) -> TensorProxy:
    """`input` shifted along dims (the flattened tensor by default), what falls off coming in at the other end."""
    if dims is None or (not isinstance(dims, int) and not dims):
        if not isinstance(shifts, int):
            raise NoDecompositionError("several shifts of a flattened tensor")
        flat = clang.reshape(input, (numel(input.shape),))
        return clang.reshape(_rolled(flat, shifts, 0), input.shape)
    shifts, dims = ((x,) if isinstance(x, int) else tuple(x) for x in (shifts, dims))
    for shift, dim in zip(shifts, dims, strict=True):
        input = _rolled(input, shift, canonicalize_dim(input.ndim, dim))
    return input


def _rolled(a: TensorProxy, shift: int, dim: int) -> TensorProxy:
    size = a.shape[dim]
    if size == 0:
        return prims.clone(a)
    cut = (size - shift % size) % size
    if cut == 0:
        return prims.clone(a)
    return clang.cat([clang.slice_in_dim(a, cut, size, 1, dim), clang.slice_in_dim(a, 0, cut, 1, dim)], dim)
