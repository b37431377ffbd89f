"""Reductions, softmax and its kin, order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.dims import canonicalize_dims, check_no_duplicates
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import get_computation_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.torch.op import op


def reduced_dims(a: TensorProxy, dim: Any, *, empty_is_all: bool = True) -> tuple[int, ...]:
    """The dims that a reduction's `dim` argument means: None, and mostly an empty list too, for all."""
    if dim is None or (empty_is_all and not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(a.ndim))
    dims = canonicalize_dims(a.ndim, (dim,) if isinstance(dim, int) else tuple(dim))
    check_no_duplicates(dims)
    return dims if a.ndim else ()


def keep_dims(out: TensorProxy, like: TensorProxy, dims: Sequence[int], keepdim: bool) -> TensorProxy:
    """A reduction's result with dims of size 1 in the place of the reduced ones, if `keepdim`."""
    return clang.unsqueeze(out, tuple(dims)) if keepdim and dims else out


def _dtype_of(a: TensorProxy, dtype: Any, *, exact_to_long: bool) -> dtypes.dtype:
    if dtype is not None:
        return dtypes.to_strong_dtype(dtype)
    return dtypes.int64 if exact_to_long and dtypes.is_exact_dtype(a.dtype) else a.dtype


def _accumulate(prim: Callable, a: TensorProxy, dims: Sequence[int], keepdim: bool, dtype: dtypes.dtype) -> TensorProxy:
    """A reduction computed in 32 bits at least."""
    a = maybe_convert_to_dtype(maybe_convert_to_dtype(a, dtype), get_computation_dtype(dtype))
    return keep_dims(maybe_convert_to_dtype(prim(a, dims) if dims else a, dtype), a, dims, keepdim)


@op(torch.sum)
def sum(input: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """The sum over `dim`, all dims by default; integers and booleans give int64."""
    kind = _dtype_of(input, dtype, exact_to_long=True)
    return _accumulate(prims.sum, input, reduced_dims(input, dim), keepdim, kind)


@op(torch.mean)
def mean(input: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """The mean over `dim`, all dims by default, of floating point or complex numbers."""
    kind = _dtype_of(input, dtype, exact_to_long=False)
    if dtypes.is_exact_dtype(kind):
        raise ThunderRuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be floating or complex, not {kind}"
        )
    dims = reduced_dims(input, dim)
    wide = maybe_convert_to_dtype(maybe_convert_to_dtype(input, kind), get_computation_dtype(kind))
    count: Any = 1
    for d in dims:
        count = count * input.shape[d]
    total = keep_dims(prims.sum(wide, dims) if dims else wide, input, dims, keepdim)
    return maybe_convert_to_dtype(clang.true_divide(total, count), kind)


@op(torch.prod)
def prod(input: TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorProxy:
    """The product over `dim`, all dims by default; integers and booleans give int64."""
    kind = _dtype_of(input, dtype, exact_to_long=True)
    return _accumulate(prims.prod, input, reduced_dims(input, dim), keepdim, kind)


def _check_elements(a: TensorProxy, dims: Sequence[int], what: str) -> None:
    if any(a.shape[d] == 0 for d in dims):
        raise NoDecompositionError(f"{what} of no elements")


@op(torch.amax)
def amax(input: TensorProxy, dim: Any = (), keepdim: bool = False) -> TensorProxy:
    """The largest element over `dim`, all dims by default; equal elements share the gradient."""
    dims = reduced_dims(input, dim)
    _check_elements(input, dims, "amax")
    return keep_dims(prims.amax(input, dims), input, dims, keepdim)


@op(torch.amin)
def amin(input: TensorProxy, dim: Any = (), keepdim: bool = False) -> TensorProxy:
    """The smallest element over `dim`, all dims by default; equal elements share the gradient."""
    dims = reduced_dims(input, dim)
    _check_elements(input, dims, "amin")
    return keep_dims(prims.amin(input, dims), input, dims, keepdim)


def _with_positions(find: Callable, a: TensorProxy, dim: int, keepdim: bool) -> tuple[TensorProxy, TensorProxy]:
    """(values, positions) of extreme elements along `dim`."""
    if a.ndim == 0:
        return prims.clone(a), prims.full((), 0, device=a.device, dtype=dtypes.int64)
    (dim,) = canonicalize_dims(a.ndim, (dim,))
    _check_elements(a, (dim,), "an extreme element")
    positions = find(a, dim, True)
    values = clang.gather(a, positions, dim)
    return (values, positions) if keepdim else (clang.squeeze(values, dim), clang.squeeze(positions, dim))


def _extreme(reduce: Callable, find: Callable, pairwise: Callable, a: TensorProxy, args: tuple, kwargs: dict) -> Any:
    arguments = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
    first = arguments.get("dim")
    if isinstance(first, TensorProxy) or "other" in arguments:
        return pairwise(a, arguments.get("other", first))
    if first is None:
        _check_elements(a, tuple(range(a.ndim)), "an extreme element")
        return reduce(a, tuple(range(a.ndim)))
    named = torch.return_types.max if reduce is prims.amax else torch.return_types.min
    return named(_with_positions(find, a, first, bool(arguments.get("keepdim", False))))


@op(torch.max, samples="max")
def max(input: TensorProxy, *args: Any, **kwargs: Any) -> Any:
    """The largest element; with `dim`, (values, positions) along it; with another tensor, the elementwise maximum."""
    return _extreme(prims.amax, clang.argmax, clang.maximum, input, args, kwargs)


@op(torch.min, samples="min")
def min(input: TensorProxy, *args: Any, **kwargs: Any) -> Any:
    """The smallest element; with `dim`, (values, positions) along it; with another tensor, the elementwise minimum."""
    return _extreme(prims.amin, clang.argmin, clang.minimum, input, args, kwargs)


@op(torch.argmax)
def argmax(input: TensorProxy, dim: int | None = None, keepdim: bool = False) -> TensorProxy:
    """The position of the largest element, in the flattened tensor or along `dim`."""
    return clang.argmax(input, dim, keepdim)


@op(torch.argmin)
def argmin(input: TensorProxy, dim: int | None = None, keepdim: bool = False) -> TensorProxy:
    """The position of the smallest element, in the flattened tensor or along `dim`."""
    return clang.argmin(input, dim, keepdim)


def _quantified(a: TensorProxy, dim: Any, keepdim: bool, *, every: bool) -> TensorProxy:
    dims = reduced_dims(a, dim, empty_is_all=False) if dim is not None else tuple(range(a.ndim))
    truth = clang.logical_not(a) if every else clang.ne(a, 0)
    counts = prims.sum(maybe_convert_to_dtype(truth, dtypes.int64), dims)
    found = clang.eq(counts, 0) if every else clang.ne(counts, 0)
    found = keep_dims(found, a, dims, keepdim)
    return maybe_convert_to_dtype(found, dtypes.uint8) if a.dtype is dtypes.uint8 else found


@op(torch.all, name="all")
def all_tensor(input: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Whether every element over `dim` is not zero; booleans, uint8 for uint8."""
    return _quantified(input, dim, keepdim, every=True)


@op(torch.any, name="any")
def any_tensor(input: TensorProxy, dim: Any = None, keepdim: bool = False) -> TensorProxy:
    """Whether any element over `dim` is not zero; booleans, uint8 for uint8."""
    return _quantified(input, dim, keepdim, every=False)


def _correction(unbiased: Any, correction: Any) -> Any:
    if correction is not None:
        return correction
    return 1 if unbiased is None or unbiased else 0


def _var_arguments(a: TensorProxy, args: tuple, kwargs: dict) -> tuple[tuple[int, ...], bool, Any]:
    """(dims, keepdim, correction) of `var(unbiased)`, `var(dim, unbiased, keepdim)`, `var(dim, *, correction)`."""
    arguments = dict(kwargs)
    if args and isinstance(args[0], bool):
        arguments["unbiased"] = args[0]
    else:
        arguments.update(zip(("dim", "unbiased", "keepdim"), args, strict=False))
    unknown = set(arguments) - {"dim", "unbiased", "keepdim", "correction"}
    if unknown:
        raise NoDecompositionError(f"the argument {sorted(unknown)[0]}")
    dims = reduced_dims(a, arguments.get("dim"))
    correction = _correction(arguments.get("unbiased"), arguments.get("correction"))
    return dims, bool(arguments.get("keepdim", False)), correction


def _variance(prim: Callable, a: TensorProxy, args: tuple, kwargs: dict) -> Any:
    dims, keepdim, correction = _var_arguments(a, args, kwargs)
    if a.ndim == 0:
        raise NoDecompositionError("the variance of a single number")
    wide = maybe_convert_to_dtype(a, get_computation_dtype(a.dtype))
    found = prim(wide, dims, correction=correction)
    several = isinstance(found, tuple)
    kinds = [dtypes.corresponding_real_dtype(a.dtype) if dtypes.is_complex_dtype(a.dtype) else a.dtype, a.dtype]
    outs = tuple(
        keep_dims(maybe_convert_to_dtype(o, k), a, dims, keepdim)
        for o, k in zip(found if several else (found,), kinds, strict=False)
    )
    return outs if several else outs[0]


@op(torch.var)
def var(input: TensorProxy, *args: Any, **kwargs: Any) -> TensorProxy:
    """The variance over `dim`, divided by the count less `correction` (1 by default)."""
    return _variance(prims.var, input, args, kwargs)


@op(torch.std)
def std(input: TensorProxy, *args: Any, **kwargs: Any) -> TensorProxy:
    """The standard deviation over `dim`, from the variance with `correction` (1 by default)."""
    return _variance(prims.std, input, args, kwargs)


@op(torch.var_mean, tags=(OpTags.REDUCTION_OP,))
def var_mean(input: TensorProxy, *args: Any, **kwargs: Any) -> tuple[TensorProxy, TensorProxy]:
    """(variance, mean) over `dim`."""
    return _variance(prims.var_mean, input, args, kwargs)


@op(torch.logsumexp, torch.special.logsumexp)
def logsumexp(input: TensorProxy, dim: Any, keepdim: bool = False) -> TensorProxy:
    """log(sum(exp(input))) over `dim`, without overflow."""
    if not dtypes.is_float_dtype(input.dtype):
        raise NoDecompositionError("logsumexp of integers or complex numbers")
    dims = reduced_dims(input, dim)
    _check_elements(input, dims, "logsumexp")
    wide = maybe_convert_to_dtype(input, get_computation_dtype(input.dtype))
    top = clang.unsqueeze(prims.amax(wide, dims), dims)
    finite = clang.where(clang.eq(clang.abs(top), float("inf")), 0.0, top)
    total = prims.sum(clang.exp(clang.sub(wide, finite)), dims)
    result = clang.add(clang.log(total), clang.squeeze(finite, dims))
    return keep_dims(maybe_convert_to_dtype(result, input.dtype), input, dims, keepdim)


def _exponentials(a: TensorProxy, dim: int, dtype: Any) -> tuple[TensorProxy, TensorProxy, int, dtypes.dtype]:
    """(a less its maximum, its exponential, the dim, the result's dtype)."""
    kind = dtypes.to_strong_dtype(dtype) if dtype is not None else a.dtype
    if not dtypes.is_float_dtype(kind) or a.ndim == 0:
        raise NoDecompositionError("softmax of integers or of a single number")
    (dim,) = canonicalize_dims(a.ndim, (dim,))
    _check_elements(a, range(a.ndim), "softmax")
    wide = maybe_convert_to_dtype(maybe_convert_to_dtype(a, kind), get_computation_dtype(kind))
    shifted = clang.sub(wide, clang.unsqueeze(prims.amax(wide, (dim,)), dim))
    return shifted, clang.exp(shifted), dim, kind


def softmax_of(a: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """exp(a) / sum(exp(a)) along `dim`, in 32 bits at least."""
    _, powers, dim, kind = _exponentials(a, dim, dtype)
    return maybe_convert_to_dtype(clang.true_divide(powers, clang.unsqueeze(prims.sum(powers, (dim,)), dim)), kind)


def log_softmax_of(a: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """The logarithm of `softmax_of`."""
    shifted, powers, dim, kind = _exponentials(a, dim, dtype)
    total = clang.log(clang.unsqueeze(prims.sum(powers, (dim,)), dim))
    return maybe_convert_to_dtype(clang.sub(shifted, total), kind)


@op(torch.softmax, torch.special.softmax, name="_softmax", samples="softmax")
def _softmax(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """exp(input) / sum(exp(input)) along `dim`."""
    return softmax_of(input, dim, dtype)


@op(torch.log_softmax, torch.special.log_softmax, name="_log_softmax", samples="log_softmax")
def _log_softmax(input: TensorProxy, dim: int, dtype: Any = None) -> TensorProxy:
    """The logarithm of softmax along `dim`."""
    return log_softmax_of(input, dim, dtype)


def _implicit_dim(rank: int, dim: int | None) -> int:
    return dim if dim is not None else 0 if rank in (0, 1, 3) else 1


@op(F.softmax, samples="softmax")
def softmax(input: TensorProxy, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> TensorProxy:
    """exp(input) / sum(exp(input)) along `dim`."""
    return softmax_of(input, _implicit_dim(input.ndim, dim), dtype)


@op(F.softmin, samples="nn.functional.softmin")
def softmin(input: TensorProxy, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> TensorProxy:
    """softmax of -input along `dim`."""
    return softmax_of(clang.neg(input), _implicit_dim(input.ndim, dim), dtype)


@op(F.log_softmax, samples="log_softmax")
def log_softmax(input: TensorProxy, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> TensorProxy:
    """The logarithm of softmax along `dim`."""
    return log_softmax_of(input, _implicit_dim(input.ndim, dim), dtype)


@op(torch.cumsum)
def cumsum(input: TensorProxy, dim: int, *, dtype: Any = None) -> TensorProxy:
    """Sums of the elements up to each one along `dim`; integers and booleans give int64."""
    kind = _dtype_of(input, dtype, exact_to_long=True)
    (dim,) = canonicalize_dims(input.ndim, (dim,))
    return prims.cumsum(maybe_convert_to_dtype(input, kind), dim)


@op(torch.topk)
def topk(
    input: TensorProxy, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorProxy, TensorProxy]:
    """(values, positions) of the `k` largest (smallest) elements along `dim`."""
    return torch.return_types.topk(clang.topk(input, k, dim, largest, sorted))


@op(torch.sort, samples="sort")
def sort(input: TensorProxy, *args: Any, **kwargs: Any) -> tuple[TensorProxy, TensorProxy]:
    """(values in order, the positions that they had) along `dim`."""
    return torch.return_types.sort(clang.sort(input, *_sort_arguments(args, kwargs)))


@op(torch.argsort)
def argsort(input: TensorProxy, *args: Any, **kwargs: Any) -> TensorProxy:
    """The positions of the elements in order along `dim`."""
    return clang.sort(input, *_sort_arguments(args, kwargs))[1]


def _sort_arguments(args: tuple, kwargs: dict) -> tuple[int, bool, bool]:
    if len(args) > 2:
        raise NoDecompositionError("`stable` given by position")
    arguments = {"dim": -1, "descending": False, "stable": None}
    arguments |= dict(zip(("dim", "descending"), args, strict=False)) | kwargs
    return arguments["dim"], bool(arguments["descending"]), bool(arguments["stable"])  # type: ignore[return-value]
