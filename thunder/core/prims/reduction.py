"""Reductions over dims, sorting and selection. Reduced dims vanish: keeping them is the caller's work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.baseutils import check
from thunder.core.dims import canonicalize_dim, check_no_duplicates
from thunder.core.errors import ThunderIndexError, ThunderRuntimeError, ThunderTypeError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags, Symbol

_REDUCTION = (OpTags.REDUCTION_OP,)


def reduced_shape(shape: Sequence[Any], dims: Sequence[int]) -> tuple:
    """`shape` without `dims`, which count from 0. Raises ThunderIndexError for a dim that is not there."""
    check_no_duplicates(dims)
    for d in dims:
        if not 0 <= d < max(len(shape), 1):
            raise ThunderIndexError(f"Dimension out of range: got {d}, the tensor has {len(shape)} dims")
    return tuple(s for n, s in enumerate(shape) if n not in set(dims))


def _reduce(id: str, torch_fn: Callable, *, real: bool = False) -> Symbol:
    name = id.lower()

    def meta(a: TensorProxy, /, dims: Sequence[int]) -> TensorProxy:
        if real and dtypes.is_complex_dtype(a.dtype):
            raise ThunderTypeError(f"{name} is not defined for complex numbers")
        return new_tensor(reduced_shape(a.shape, dims), like=a)

    return make_prim(id, name, meta=meta, torch_fn=torch_fn, tags=_REDUCTION)


def _amax(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return torch.amax(a, tuple(dims)) if dims else a.clone()


def _amin(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return torch.amin(a, tuple(dims)) if dims else a.clone()


def _sum(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return torch.sum(a, tuple(dims), dtype=a.dtype) if dims else a.clone()


def _prod(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    if len(dims) == a.ndim and len(dims) > 1:
        return torch.prod(a, dtype=a.dtype)
    for d in sorted(dims, reverse=True):
        a = torch.prod(a, d, dtype=a.dtype)
    return a if dims else a.clone()


for _fn, _name in ((_amax, "amax"), (_amin, "amin"), (_sum, "sum"), (_prod, "prod")):
    _fn.__name__ = _fn.__qualname__ = _name

amax = _reduce("AMAX", _amax, real=True)
amin = _reduce("AMIN", _amin, real=True)
prod = _reduce("PROD", _prod)
sum = _reduce("SUM", _sum)


def _var_dtype(a: TensorProxy) -> dtypes.dtype:
    if dtypes.is_exact_dtype(a.dtype):
        raise ThunderTypeError(f"a variance takes floating point or complex numbers, not {a.dtype}")
    return dtypes.to_dtype(dtypes.corresponding_real_dtype(a.dtype)) if dtypes.is_complex_dtype(a.dtype) else a.dtype


def _var_meta(a: TensorProxy, /, dims: Sequence[int], *, correction: Any) -> TensorProxy:
    return new_tensor(reduced_shape(a.shape, dims), like=a, dtype=_var_dtype(a))


def _var_mean_meta(a: TensorProxy, /, dims: Sequence[int], *, correction: Any) -> tuple[TensorProxy, TensorProxy]:
    shape = reduced_shape(a.shape, dims)
    return new_tensor(shape, like=a, dtype=_var_dtype(a)), new_tensor(shape, like=a)


def _dims_of(a: torch.Tensor, dims: Sequence[int]) -> tuple[torch.Tensor, tuple[int, ...]]:
    """torch takes no dims for all of them: to reduce none, the reduction goes over one more dim of size 1."""
    return (a, tuple(dims)) if dims or a.ndim == 0 else (a.unsqueeze(-1), (-1,))


def _var(a: torch.Tensor, dims: Sequence[int], *, correction: Any) -> torch.Tensor:
    a, dims = _dims_of(a, dims)
    return torch.var(a, dims, correction=correction)


def _std(a: torch.Tensor, dims: Sequence[int], *, correction: Any) -> torch.Tensor:
    a, dims = _dims_of(a, dims)
    return torch.std(a, dims, correction=correction)


def _var_mean(a: torch.Tensor, dims: Sequence[int], *, correction: Any) -> tuple[torch.Tensor, torch.Tensor]:
    a, dims = _dims_of(a, dims)
    return torch.var_mean(a, dims, correction=correction)


var = make_prim("VAR", "var", meta=_var_meta, torch_fn=_var, tags=_REDUCTION)
std = make_prim("STD", "std", meta=_var_meta, torch_fn=_std, tags=_REDUCTION)
var_mean = make_prim("VAR_MEAN", "var_mean", meta=_var_mean_meta, torch_fn=_var_mean, tags=_REDUCTION)


def _arg_meta(a: TensorProxy, /, dim: int | None) -> TensorProxy:
    dims = tuple(range(a.ndim)) if dim is None else (dim,)
    if dtypes.is_complex_dtype(a.dtype):
        raise ThunderTypeError("complex numbers have no order")
    return new_tensor(reduced_shape(a.shape, dims), like=a, dtype=dtypes.int64)


argmax = make_prim("ARGMAX", "argmax", meta=_arg_meta, torch_fn=torch.argmax, tags=_REDUCTION)
argmin = make_prim("ARGMIN", "argmin", meta=_arg_meta, torch_fn=torch.argmin, tags=_REDUCTION)


def _topk_meta(a: TensorProxy, /, k: int, dim: int, largest: bool, sorted: bool) -> tuple[TensorProxy, TensorProxy]:
    dim = canonicalize_dim(a.ndim, dim)
    size = a.shape[dim] if a.ndim else 1
    check(0 <= k <= size, lambda: f"topk: {k} elements of a dimension of {size}", ThunderRuntimeError)
    shape = tuple(k if n == dim else s for n, s in enumerate(a.shape))
    return new_tensor(shape, like=a), new_tensor(shape, like=a, dtype=dtypes.int64)


topk = make_prim("TOPK", "topk", meta=_topk_meta, torch_fn=torch.topk, tags=_REDUCTION)


def _sort_meta(a: TensorProxy, /, dim: int, descending: bool, sorted: bool) -> tuple[TensorProxy, TensorProxy]:
    canonicalize_dim(a.ndim, dim)
    return new_tensor(a.shape, like=a), new_tensor(a.shape, like=a, dtype=dtypes.int64)


def _sort(a: torch.Tensor, dim: int, descending: bool, sorted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sort(a, dim=dim, descending=descending, stable=sorted)


sort = make_prim("SORT", "sort", meta=_sort_meta, torch_fn=_sort)
