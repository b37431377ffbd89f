"""Changes of spatial size: interpolation and adaptive pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.errors import NoDecompositionError, ThunderValueError
from thunder.core.promotion import get_computation_dtype
from thunder.core.proxies import TensorProxy
from thunder.torch.op import Operation, op

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_CUBIC_A = -0.75  # the parameter of Keys, "Cubic convolution interpolation for digital image processing", 1981


def _steps(count: int, like: TensorProxy) -> TensorProxy:
    """0, 1, ..., count - 1 as int64."""
    return clang.arange(start=0, stop=count, step=1, device=like.device, dtype=dtypes.int64)


def _along(values: TensorProxy, dim: int, rank: int) -> TensorProxy:
    """One-dimensional `values` as a tensor of `rank` dims that varies along `dim`."""
    return clang.reshape(values, (*(1,) * dim, -1, *(1,) * (rank - dim - 1)))


def _at(a: TensorProxy, positions: TensorProxy, dim: int) -> TensorProxy:
    """The slices of `dim` at integer positions, those outside taken from the border."""
    return clang.take(a, clang.minimum(clang.maximum(positions, 0), a.shape[dim] - 1), dim)


def _nearest(a: TensorProxy, dim: int, size: int, factor: float | None, *, exact: bool) -> TensorProxy:
    """Each output's nearest element, floor(index · scale), or floor((index + 1/2) · scale) if `exact`."""
    ratio = a.shape[dim] / size if factor is None else 1.0 / factor
    repeats = size // a.shape[dim]
    if not exact and repeats and size == a.shape[dim] * repeats and ratio == 1 / repeats:
        spread = clang.unsqueeze(a, dim + 1)
        wide = clang.expand(spread, (*a.shape[: dim + 1], repeats, *a.shape[dim + 1 :]))
        return clang.reshape(wide, (*a.shape[:dim], size, *a.shape[dim + 1 :]))
    # As torch does, in float32 whatever the dtype.
    steps = maybe_convert_to_dtype(_steps(size, a), dtypes.float32)
    place = clang.floor(clang.mul(clang.add(steps, 0.5) if exact else steps, ratio))
    return _at(a, maybe_convert_to_dtype(place, dtypes.int64), dim)


def _source(a: TensorProxy, dim: int, size: int, factor: float | None, align_corners: bool) -> TensorProxy:
    """Where in the input each output lies, as ATen/native/UpSample.h has it; between elements, in the dtype of `a`."""
    steps = maybe_convert_to_dtype(_steps(size, a), a.dtype)
    if align_corners:
        return clang.mul(steps, (a.shape[dim] - 1) / (size - 1) if size > 1 else 0.0)
    ratio = a.shape[dim] / size if factor is None else 1.0 / factor
    return clang.sub(clang.mul(clang.add(steps, 0.5), ratio), 0.5)


def _linear(a: TensorProxy, dim: int, size: int, factor: float | None, align_corners: bool) -> TensorProxy:
    """Means of the two elements around each output, weighted by nearness."""
    source = clang.maximum(_source(a, dim, size, factor, align_corners), 0.0)
    low = clang.minimum(clang.floor(source), float(a.shape[dim] - 1))
    weight = _along(clang.sub(source, low), dim, a.ndim)
    low = maybe_convert_to_dtype(low, dtypes.int64)
    first, second = _at(a, low, dim), _at(a, clang.add(low, 1), dim)
    return clang.add(clang.mul(first, clang.sub(1.0, weight)), clang.mul(second, weight))


def _near_weight(t: TensorProxy) -> TensorProxy:
    """The cubic's weight of an element at distance 0 to 1."""
    inner = clang.sub(clang.mul(t, _CUBIC_A + 2), _CUBIC_A + 3)
    return clang.add(clang.mul(clang.mul(inner, t), t), 1.0)


def _far_weight(t: TensorProxy) -> TensorProxy:
    """The cubic's weight of an element at distance 1 to 2."""
    inner = clang.add(clang.mul(clang.sub(clang.mul(t, _CUBIC_A), 5 * _CUBIC_A), t), 8 * _CUBIC_A)
    return clang.sub(clang.mul(inner, t), 4 * _CUBIC_A)


def _cubic(a: TensorProxy, dim: int, size: int, factor: float | None, align_corners: bool) -> TensorProxy:
    """Sums of the four elements around each output, weighted by Keys' cubic."""
    source = _source(a, dim, size, factor, align_corners)
    low = clang.floor(source)
    t = clang.sub(source, low)
    low = maybe_convert_to_dtype(low, dtypes.int64)
    weights = (_far_weight(clang.add(t, 1.0)), _near_weight(t), _near_weight(clang.sub(1.0, t)),
               _far_weight(clang.sub(2.0, t)))  # fmt: skip
    total: Any = None
    for n, weight in enumerate(weights):
        part = clang.mul(_at(a, clang.add(low, n - 1), dim), _along(weight, dim, a.ndim))
        total = part if total is None else clang.add(total, part)
    return total


def _each(value: Any, count: int) -> list[Any]:
    values = list(value) if isinstance(value, tuple | list) else [value] * count
    check(len(values) == count, lambda: f"{len(values)} sizes or factors for {count} spatial dims", ThunderValueError)
    return values


@op(F.interpolate, samples="nn.functional.interpolate")
def interpolate(
    input: TensorProxy,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TensorProxy:
    """`input` (N, C, ...) resampled to other spatial sizes, given as such or as factors.

    mode: "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic" or "area".
    """
    spatial = input.ndim - 2
    is_smooth = mode in (_LINEAR.get(input.ndim), "bicubic")
    if antialias or spatial not in (1, 2, 3) or (mode == "bicubic" and spatial != 2):
        raise NoDecompositionError(f"interpolation by {mode} of {input.ndim} dims, antialias={antialias}")
    if not (is_smooth or mode in ("nearest", "nearest-exact", "area")):
        raise NoDecompositionError(f"interpolation by {mode}")
    if (size is None) == (scale_factor is None) or not input.shape[0] or (dtypes.is_exact_dtype(input.dtype)):
        raise NoDecompositionError("sizes, dtypes and batches that are torch's to judge")
    factors: list[float | None] = [None] * spatial
    if size is not None:
        sizes = _each(size, spatial)
    else:
        given = _each(scale_factor, spatial)
        sizes = [math.floor(input.shape[n + 2] * f) for n, f in enumerate(given)]
        if not recompute_scale_factor:
            factors = [float(f) for f in given]
    if not all(isinstance(s, int) and s > 0 for s in (*sizes, *input.shape[2:])):
        raise NoDecompositionError("sizes that are not known, or empty")
    if mode == "area":
        return _adaptive_avg(input, sizes)
    a = maybe_convert_to_dtype(input, get_computation_dtype(input.dtype)) if is_smooth else input
    for n, (wanted, factor) in enumerate(zip(sizes, factors, strict=True)):
        if mode == "bicubic":
            a = _cubic(a, n + 2, wanted, factor, bool(align_corners))
        elif is_smooth:
            a = _linear(a, n + 2, wanted, factor, bool(align_corners))
        else:
            a = _nearest(a, n + 2, wanted, factor, exact=mode == "nearest-exact")
    return maybe_convert_to_dtype(a, input.dtype)


def _adaptive_avg_dim(a: TensorProxy, dim: int, size: int) -> TensorProxy:
    """Means along `dim` over [floor(i · n / size), ceil((i + 1) · n / size)) for each output i, of n elements."""
    total = a.shape[dim]
    if total == size:
        return a
    before, after = a.shape[:dim], a.shape[dim + 1 :]
    if total % size == 0:
        parts = clang.reshape(a, (*before, size, total // size, *after))
        return clang.true_divide(prims.sum(parts, (dim + 1,)), total // size)
    longest = max(-(-(i + 1) * total // size) - i * total // size for i in range(size))
    steps = _steps(size, a)
    starts = clang.floor_divide(clang.mul(steps, total), size)
    ends = clang.floor_divide(clang.add(clang.mul(clang.add(steps, 1), total), size - 1), size)
    places = clang.add(clang.unsqueeze(starts, 1), clang.unsqueeze(_steps(longest, a), 0))
    inside = clang.lt(places, clang.unsqueeze(ends, 1))
    flat = clang.reshape(places, (size * longest,))
    windows = clang.reshape(_at(a, flat, dim), (*before, size, longest, *after))
    shape = (*(1,) * dim, size, longest, *(1,) * len(after))
    kept = clang.where(clang.reshape(inside, shape), windows, 0.0)
    counts = maybe_convert_to_dtype(clang.sub(ends, starts), a.dtype)
    return clang.true_divide(prims.sum(kept, (dim + 1,)), _along(counts, dim, a.ndim))


def _adaptive_avg(input: TensorProxy, sizes: Sequence[int]) -> TensorProxy:
    a = maybe_convert_to_dtype(input, get_computation_dtype(input.dtype))
    for n, size in enumerate(sizes):
        a = _adaptive_avg_dim(a, input.ndim - len(sizes) + n, size)
    out = maybe_convert_to_dtype(a, input.dtype)
    return prims.shallow_copy(out) if out is input else out


def _adaptive_avg_pool(rank: int) -> Operation:
    def body(input: TensorProxy, output_size: Any) -> TensorProxy:
        if input.ndim not in (rank + 1, rank + 2) or dtypes.is_exact_dtype(input.dtype):
            raise NoDecompositionError("dims and dtypes that are torch's to judge")
        given = output_size if isinstance(output_size, tuple | list) else (output_size,) * rank
        spatial = input.shape[input.ndim - rank :]
        sizes = [old if new is None else new for old, new in zip(spatial, given, strict=True)]
        if not all(isinstance(s, int) and s > 0 for s in (*sizes, *input.shape)):
            raise NoDecompositionError("sizes that are not known, or empty")
        return _adaptive_avg(input, sizes)

    name = f"adaptive_avg_pool{rank}d"
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"The means of as many windows over the last {rank} dims as `output_size` says (None: as there are)."
    return op(getattr(F, name), samples=f"nn.functional.{name}")(body)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_avg_pool(n) for n in (1, 2, 3))


@op(F.local_response_norm, samples="nn.functional.local_response_norm")
def local_response_norm(
    input: TensorProxy, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> TensorProxy:
    """`input` (N, C, ...) over (k + alpha · mean of squares of `size` neighbouring channels) ** beta."""
    is_known = all(isinstance(s, int) and s > 0 for s in input.shape)
    if input.ndim < 3 or dtypes.is_exact_dtype(input.dtype) or not is_known:
        raise NoDecompositionError("dims and dtypes that are torch's to judge")
    pairs = ((0, 0, 0), (size // 2, (size - 1) // 2, 0), *((0, 0, 0),) * (input.ndim - 2))
    windows = clang.unfold(clang.pad(clang.mul(input, input), 0, pairs), 1, size, 1)
    mean = clang.true_divide(prims.sum(windows, (windows.ndim - 1,)), size)
    return clang.true_divide(input, clang.pow(clang.add(clang.mul(mean, alpha), k), beta))

