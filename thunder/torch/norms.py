"""Normalizations, computed in 32 bits at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.dims import numel
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import get_computation_dtype
from thunder.core.proxies import TensorProxy
from thunder.torch.op import op


def _widened(*tensors: TensorProxy | None) -> list:
    kind = get_computation_dtype(tensors[0].dtype)  # type: ignore[union-attr]
    return [maybe_convert_to_dtype(t, kind) for t in tensors]


def _normalized_dims(a: TensorProxy, shape: Sequence[int]) -> tuple[int, ...]:
    check(
        len(shape) > 0 and tuple(a.shape[a.ndim - len(shape) :]) == tuple(shape),
        lambda: (
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {list(shape)}], but got {a.shape}"
        ),
        ThunderRuntimeError,
    )
    return tuple(range(a.ndim - len(shape), a.ndim))


def _standardized(a: TensorProxy, dims: Sequence[int], eps: float) -> TensorProxy:
    """`a` less its mean over `dims`, divided by its deviation."""
    variance, mean = (clang.unsqueeze(s, tuple(dims)) for s in prims.var_mean(a, tuple(dims), correction=0))
    return clang.mul(clang.sub(a, mean), clang.rsqrt(clang.add(variance, eps)))


def _affine(a: TensorProxy, weight: TensorProxy | None, bias: TensorProxy | None) -> TensorProxy:
    a = a if weight is None else clang.mul(a, weight)
    return a if bias is None else clang.add(a, bias)


def _per_channel(a: TensorProxy, values: TensorProxy | None) -> TensorProxy | None:
    """One value for each channel (dim 1), to be broadcast with `a`."""
    return None if values is None else clang.reshape(values, (1, values.shape[0], *(1,) * (a.ndim - 2)))


def _require_elements(a: TensorProxy) -> None:
    if any(s == 0 for s in a.shape):
        raise NoDecompositionError("a normalization of no elements")


@op(F.layer_norm, samples="nn.functional.layer_norm")
def layer_norm(
    input: TensorProxy,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-05,
) -> TensorProxy:
    """`input` standardized over its last dims, which are `normalized_shape`, times `weight`, plus `bias`."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)


def _layer_norm(input: TensorProxy, shape: Any, weight: Any, bias: Any, eps: float) -> TensorProxy:
    dims = _normalized_dims(input, shape)
    _require_elements(input)
    a, weight, bias = _widened(input, weight, bias)
    return maybe_convert_to_dtype(_affine(_standardized(a, dims, eps), weight, bias), input.dtype)


@op(torch.layer_norm, name="_layer_norm_function", samples="nn.functional.layer_norm")
def layer_norm_function(
    input: TensorProxy,
    normalized_shape: Sequence[int],
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> TensorProxy:
    """As `layer_norm`."""
    return _layer_norm(input, normalized_shape, weight, bias, eps)


@op(F.rms_norm, torch.rms_norm, samples="nn.functional.rms_norm")
def rms_norm(
    input: TensorProxy, normalized_shape: Sequence[int], weight: TensorProxy | None = None, eps: float | None = None
) -> TensorProxy:
    """`input` divided by the root of the mean of its squares over its last dims, times `weight`.

    `eps` is by default the computation dtype's own.
    """
    dims = _normalized_dims(input, normalized_shape)
    if dtypes.is_complex_dtype(input.dtype):
        raise NoDecompositionError("rms_norm of complex numbers")
    _require_elements(input)
    (a,) = _widened(input)
    mean_square = clang.true_divide(prims.sum(clang.mul(a, a), dims), numel([a.shape[d] for d in dims]))
    small = torch.finfo(a.torch_dtype).eps if eps is None else eps
    result = clang.mul(a, clang.rsqrt(clang.add(clang.unsqueeze(mean_square, dims), small)))
    if weight is None:
        return maybe_convert_to_dtype(result, input.dtype)
    result = clang.mul(result, weight)
    kind = input.dtype if weight.dtype is input.dtype else torch.promote_types(input.torch_dtype, weight.torch_dtype)
    return maybe_convert_to_dtype(result, kind)


def _group_norm(
    input: TensorProxy, groups: int, weight: TensorProxy | None, bias: TensorProxy | None, eps: float
) -> TensorProxy:
    check(input.ndim >= 2, lambda: "group_norm: expected at least 2 dims", ThunderRuntimeError)
    check(
        input.shape[1] % groups == 0,
        lambda: f"group_norm: {input.shape[1]} channels do not divide into {groups} groups",
        ThunderRuntimeError,
    )
    _require_elements(input)
    a, weight, bias = _widened(input, weight, bias)
    grouped = clang.reshape(a, (a.shape[0], groups, -1))
    result = clang.reshape(_standardized(grouped, (2,), eps), a.shape)
    return maybe_convert_to_dtype(_affine(result, _per_channel(a, weight), _per_channel(a, bias)), input.dtype)


@op(F.group_norm, torch.group_norm, samples="nn.functional.group_norm")
def group_norm(
    input: TensorProxy,
    num_groups: int,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> TensorProxy:
    """`input` (N, C, ...) standardized over groups of channels, times `weight`, plus `bias`, one for each channel."""
    return _group_norm(input, num_groups, weight, bias, eps)


@op(F.batch_norm, samples="nn.functional.batch_norm")
def batch_norm(
    input: TensorProxy,
    running_mean: TensorProxy | None,
    running_var: TensorProxy | None,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> TensorProxy:
    """`input` (N, C, ...) standardized for each channel, by the batch's statistics in training, else the running ones.

    Running statistics that training updates make the call a write, which the front end makes explicit.
    """
    _require_elements(input)
    a, weight, bias, mean, variance = _widened(input, weight, bias, running_mean, running_var)
    if training:
        if running_mean is not None or running_var is not None:
            raise NoDecompositionError("running statistics, which are written to")
        result = _standardized(a, (0, *range(2, a.ndim)), eps)
    else:
        check(
            mean is not None and variance is not None, lambda: "batch_norm: no running statistics", ThunderRuntimeError
        )
        scale = clang.rsqrt(clang.add(_per_channel(a, variance), eps))
        result = clang.mul(clang.sub(a, _per_channel(a, mean)), scale)
    return maybe_convert_to_dtype(_affine(result, _per_channel(a, weight), _per_channel(a, bias)), input.dtype)


@op(F.instance_norm, samples="nn.functional.instance_norm")
def instance_norm(
    input: TensorProxy,
    running_mean: TensorProxy | None = None,
    running_var: TensorProxy | None = None,
    weight: TensorProxy | None = None,
    bias: TensorProxy | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> TensorProxy:
    """`input` (N, C, ...) standardized for each channel of each example."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise NoDecompositionError("running statistics")
    return _group_norm(input, input.shape[1], weight, bias, eps)


@op(F.normalize, samples="nn.functional.normalize")
def normalize(input: TensorProxy, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> TensorProxy:
    """`input` divided by its 2-norm along `dim`, which counts as `eps` at least."""
    if p != 2.0 or not isinstance(dim, int) or not dtypes.is_float_dtype(input.dtype) or input.ndim == 0:
        raise NoDecompositionError("a norm other than the 2-norm along one dim")
    (a,) = _widened(input)
    dim = dim + a.ndim if dim < 0 else dim
    norm = clang.unsqueeze(clang.sqrt(prims.sum(clang.mul(a, a), (dim,))), dim)
    norm = maybe_convert_to_dtype(clang.maximum(norm, eps), input.dtype)
    return clang.true_divide(input, norm)
