"""Reading and writing elements by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.dims import canonicalize_dim, numel
from thunder.core.errors import NoDecompositionError
from thunder.core.proxies import TensorProxy
from thunder.torch.op import op


@op(torch.Tensor.__getitem__, name="getitem", samples="__getitem__")
def getitem(self: TensorProxy, key: Any) -> TensorProxy:
    """`self[key]`: a view for ints and slices, a copy for integer tensors; masks have results of unknown size."""
    return clang.getitem(self, key)


@op(torch.index_select)
def index_select(input: TensorProxy, dim: int, index: TensorProxy) -> TensorProxy:
    """The slices of `dim` at one-dimensional `index`."""
    if input.ndim == 0:
        raise NoDecompositionError("a selection from a single number")
    return clang.take(input, index, dim)


def _check_ranks(a: TensorProxy, index: TensorProxy) -> None:
    """torch takes an index of no elements whatever its rank."""
    if max(a.ndim, 1) != max(index.ndim, 1) and numel(index.shape) == 0:
        raise NoDecompositionError("an index of no elements and of another rank")


@op(torch.gather)
def gather(input: TensorProxy, dim: int, index: TensorProxy, *, sparse_grad: bool = False) -> TensorProxy:
    """Elements along `dim` at `index`."""
    if sparse_grad:
        raise NoDecompositionError("a sparse gradient")
    _check_ranks(input, index)
    return clang.gather(input, index, dim)


@op(torch.take_along_dim)
def take_along_dim(input: TensorProxy, indices: TensorProxy, dim: int | None = None) -> TensorProxy:
    """Elements along `dim` (of the flattened tensor, without it) at `indices`, broadcast with `input` elsewhere."""
    if dim is None:
        return clang.gather(
            clang.reshape(input, (numel(input.shape),)), clang.reshape(indices, (numel(indices.shape),)), 0
        )
    return clang.take_along_axis(input, indices, dim)


@op(torch.scatter)
def scatter(input: TensorProxy, dim: int, index: TensorProxy, src: Any = None, **kwargs: Any) -> TensorProxy:
    """A copy of `input` with `src` (or the number `value`) at `index` along `dim`."""
    if set(kwargs) - {"value"}:
        raise NoDecompositionError("a scatter that reduces")
    _check_ranks(input, index)
    return clang.scatter(input, index, kwargs.get("value", src), dim)


@op(torch.scatter_add)
def scatter_add(input: TensorProxy, dim: int, index: TensorProxy, src: TensorProxy) -> TensorProxy:
    """A copy of `input` with `src` added at `index` along `dim`."""
    _check_ranks(input, index)
    return clang.scatter_add(input, index, src, dim)


@op(torch.index_add)
def index_add(input: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy, *, alpha: Any = 1) -> TensorProxy:
    """A copy of `input` with alpha * source added to the slices at `index`."""
    source = source if alpha == 1 else maybe_convert_to_dtype(clang.mul(source, alpha), source.dtype)
    return clang.index_add(input, index, source, dim)


@op(torch.index_copy)
def index_copy(input: TensorProxy, dim: int, index: TensorProxy, source: TensorProxy) -> TensorProxy:
    """A copy of `input` in which the slices at `index` are those of `source`."""
    return clang.index_copy(input, index, source, dim)


@op(torch.index_put)
def index_put(input: TensorProxy, indices: Sequence[Any], values: TensorProxy, accumulate: bool = False) -> TensorProxy:
    """A copy of `input` with `values` at the positions that `indices` give together."""
    if any(i is None or not dtypes.is_nonboolean_integer_dtype(i.dtype) for i in indices):
        raise NoDecompositionError("masks and missing indices")
    return clang.index_put(input, tuple(indices), values, accumulate)


@op(torch.index_fill)
def index_fill(input: TensorProxy, dim: int, index: TensorProxy, value: Any) -> TensorProxy:
    """A copy of `input` with `value` in the slices at `index`."""
    if isinstance(value, TensorProxy) or input.ndim == 0 or index.ndim == 0:
        raise NoDecompositionError("a value held by a tensor")
    dim = canonicalize_dim(input.ndim, dim)
    shape = (*input.shape[:dim], index.shape[0], *input.shape[dim + 1 :])
    source = clang.full(shape, value, device=input.device, dtype=input.dtype)
    return clang.index_copy(input, index, source, dim)


def embedding_of(input: TensorProxy, weight: TensorProxy, padding_idx: int | None) -> TensorProxy:
    """Rows of `weight` at `input`; the row `padding_idx` gets no gradient."""
    rows = weight.shape[0]
    if padding_idx is not None and padding_idx < 0:
        padding_idx = padding_idx + rows
    return prims.embedding(input, weight, padding_idx=-1 if padding_idx is None else padding_idx)


@op(F.embedding, samples="nn.functional.embedding")
def embedding(
    input: TensorProxy,
    weight: TensorProxy,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorProxy:
    """Rows of `weight` at the integers in `input`."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NoDecompositionError("a renormalized weight, or a scaled or sparse gradient")
    return embedding_of(input, weight, padding_idx)


@op(F.one_hot, samples="nn.functional.one_hot")
def one_hot(tensor: TensorProxy, num_classes: int = -1) -> TensorProxy:
    """An int64 one at the position of each integer, in a new last dim of `num_classes` zeros."""
    if num_classes <= 0:
        raise NoDecompositionError("the number of classes depends on the values")
    classes = clang.arange(start=0, stop=num_classes, step=1, device=tensor.device)
    return maybe_convert_to_dtype(clang.eq(clang.unsqueeze(tensor, tensor.ndim), classes), dtypes.int64)


@op(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def repeat_interleave(
    input: TensorProxy, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> TensorProxy:
    """Each slice of `dim` (element of the flattened tensor) `repeats` times in a row."""
    if not isinstance(repeats, int):
        raise NoDecompositionError("the size depends on the values")
    if dim is None:
        input, dim = clang.reshape(input, (numel(input.shape),)), 0
    dim = canonicalize_dim(input.ndim, dim)
    if input.ndim == 0:
        input = clang.unsqueeze(input, 0)
    shape = list(input.shape)
    spread = clang.expand(clang.unsqueeze(input, dim + 1), (*shape[: dim + 1], repeats, *shape[dim + 1 :]))
    shape[dim] = shape[dim] * repeats
    return clang.reshape(spread, shape)
