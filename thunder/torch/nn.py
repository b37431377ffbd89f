"""Activations. All take `inplace`, which the front end has made explicit before their bodies run."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import Kind, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.dims import canonicalize_dim
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import elementwise_type_promotion
from thunder.core.proxies import TensorProxy
from thunder.torch.op import op


def _wide(a: TensorProxy) -> TensorProxy:
    """`a` in the dtype that it is computed with."""
    computation, _ = elementwise_type_promotion(a, type_promotion_kind=Kind.DEFAULT)
    return maybe_convert_to_dtype(a, computation)


def _like(value: Any, a: TensorProxy) -> TensorProxy:
    return maybe_convert_to_dtype(value, a.dtype)


@op(torch.relu, samples="nn.functional.relu")
def relu_function(input: TensorProxy) -> TensorProxy:
    """The larger of each element and 0; NaN stays."""
    return clang.where(clang.gt(input, 0), input, _zero_or_nan(input))


def _zero_or_nan(a: TensorProxy) -> Any:
    """0 where `a` is at most 0, NaN where it is NaN."""
    if dtypes.is_exact_dtype(a.dtype):
        return 0
    return clang.where(clang.le(a, 0), 0.0, a)


@op(F.relu, samples="nn.functional.relu")
def relu(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """The larger of each element and 0; NaN stays."""
    return relu_function.meta(input)


@op(F.relu6, samples="nn.functional.relu6")
def relu6(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """Each element limited to 0 ... 6."""
    return _like(clang.minimum(clang.maximum(input, 0), 6), input)


@op(F.hardtanh, samples="nn.functional.hardtanh")
def hardtanh(input: TensorProxy, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> TensorProxy:
    """Each element limited to `min_val` ... `max_val`."""
    low, high = (maybe_convert_to_dtype(x, input.dtype) for x in (min_val, max_val))
    return clang.minimum(clang.maximum(input, low), high)


@op(F.gelu, samples="nn.functional.gelu")
def gelu(input: TensorProxy, *, approximate: str = "none") -> TensorProxy:
    """input * Phi(input), Phi the normal distribution's, or its approximation by "tanh"."""
    a = _wide(input)
    if approximate == "tanh":
        inner = clang.mul(math.sqrt(2 / math.pi), clang.add(a, clang.mul(0.044715, clang.mul(a, clang.mul(a, a)))))
        return _like(clang.mul(clang.mul(0.5, a), clang.add(1, clang.tanh(inner))), input)
    if approximate != "none":
        raise ThunderRuntimeError("approximate argument must be either none or tanh.")
    return _like(clang.mul(a, clang.mul(0.5, clang.add(1, clang.erf(clang.mul(a, math.sqrt(0.5)))))), input)


@op(F.silu, samples="nn.functional.silu")
def silu(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """input * sigmoid(input)."""
    return clang.silu(input)


@op(F.mish, samples="nn.functional.mish")
def mish(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """input * tanh(softplus(input))."""
    a = _wide(input)
    return _like(clang.mul(a, clang.tanh(_softplus(a, 1.0, 20.0))), input)


def _softplus(a: TensorProxy, beta: float, threshold: float) -> TensorProxy:
    scaled = clang.mul(a, beta)
    return clang.where(clang.gt(scaled, threshold), a, clang.true_divide(clang.log1p(clang.exp(scaled)), beta))


@op(F.softplus, samples="nn.functional.softplus")
def softplus(input: TensorProxy, beta: float = 1.0, threshold: float = 20.0) -> TensorProxy:
    """log(1 + exp(beta * input)) / beta, and `input` itself where beta * input > threshold."""
    return _like(_softplus(_wide(input), beta, threshold), input)


@op(F.logsigmoid, samples="nn.functional.logsigmoid")
def logsigmoid(input: TensorProxy) -> TensorProxy:
    """log(sigmoid(input)), without overflow."""
    a = _wide(input)
    tail = clang.log1p(clang.exp(clang.neg(clang.abs(a))))
    return _like(clang.sub(clang.minimum(a, 0), tail), input)


def _elu(a: TensorProxy, negative: float, scale: float, input_scale: float) -> TensorProxy:
    wide = _wide(a)
    below = clang.mul(negative * scale, clang.expm1(clang.mul(wide, input_scale)))
    return _like(clang.where(clang.gt(wide, 0), clang.mul(wide, scale), below), a)


@op(F.elu, samples="nn.functional.elu")
def elu(input: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    """`input` where it is positive, else alpha * (exp(input) - 1)."""
    return _elu(input, alpha, 1.0, 1.0)


@op(F.celu, torch.celu, samples="nn.functional.celu")
def celu(input: TensorProxy, alpha: float = 1.0, inplace: bool = False) -> TensorProxy:
    """`input` where it is positive, else alpha * (exp(input / alpha) - 1)."""
    if alpha == 0:
        raise ThunderRuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _elu(input, alpha, 1.0, 1.0 / alpha)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@op(F.selu, torch.selu, samples="nn.functional.selu")
def selu(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """The scaled exponential linear unit."""
    return _elu(input, _SELU_ALPHA, _SELU_SCALE, 1.0)


@op(F.leaky_relu, samples="nn.functional.leaky_relu")
def leaky_relu(input: TensorProxy, negative_slope: float = 0.01, inplace: bool = False) -> TensorProxy:
    """`input` where it is positive, else negative_slope * input."""
    return _like(clang.where(clang.gt(input, 0), input, clang.mul(input, negative_slope)), input)


@op(torch.prelu, F.prelu, samples="nn.functional.prelu")
def prelu(input: TensorProxy, weight: TensorProxy) -> TensorProxy:
    """`input` where it is positive, else input * weight, one for each channel (dim 1), or a single one."""
    if weight.ndim == 1 and input.ndim >= 2:
        weight = clang.reshape(weight, (1, weight.shape[0], *(1,) * (input.ndim - 2)))
    elif weight.ndim == 1 and input.ndim == 0:
        weight = clang.reshape(weight, ())
    return clang.where(clang.gt(input, 0), input, clang.mul(input, weight))


@op(F.hardsigmoid, samples="nn.functional.hardsigmoid")
def hardsigmoid(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """input / 6 + 1/2, limited to 0 ... 1."""
    return _like(_hard(_wide(input)), input)


def _hard(a: TensorProxy) -> TensorProxy:
    return clang.true_divide(clang.minimum(clang.maximum(clang.add(a, 3), 0), 6), 6)


@op(F.hardswish, samples="nn.functional.hardswish")
def hardswish(input: TensorProxy, inplace: bool = False) -> TensorProxy:
    """input * hardsigmoid(input)."""
    a = _wide(input)
    return _like(clang.mul(a, _hard(a)), input)


@op(torch.hardshrink, F.hardshrink, samples="nn.functional.hardshrink")
def hardshrink(input: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    """`input` where it lies outside -lambd ... lambd, else 0."""
    inside = clang.logical_and(clang.ge(input, -lambd), clang.le(input, lambd))
    return clang.where(inside, maybe_convert_to_dtype(0, input.dtype), input)


@op(F.softshrink, samples="nn.functional.softshrink")
def softshrink(input: TensorProxy, lambd: float = 0.5) -> TensorProxy:
    """`input` nearer to 0 by `lambd`, or 0; NaN stays."""
    a = _wide(input)
    below = clang.where(clang.lt(a, -lambd), clang.add(a, lambd), clang.mul(a, 0.0))
    return _like(clang.where(clang.gt(a, lambd), clang.sub(a, lambd), below), input)


@op(F.softsign, samples="nn.functional.softsign")
def softsign(input: TensorProxy) -> TensorProxy:
    """input / (1 + |input|)."""
    return clang.true_divide(input, clang.add(1, clang.abs(input)))


@op(F.tanhshrink, samples="nn.functional.tanhshrink")
def tanhshrink(input: TensorProxy) -> TensorProxy:
    """input - tanh(input)."""
    return clang.sub(input, clang.tanh(input))


@op(F.threshold, torch.threshold, samples="nn.functional.threshold")
def threshold(input: TensorProxy, threshold: float, value: float, inplace: bool = False) -> TensorProxy:
    """`input` where it is above `threshold`, else `value`; NaN stays."""
    return clang.where(clang.le(input, threshold), maybe_convert_to_dtype(value, input.dtype), input)


@op(F.rrelu, torch.rrelu, samples="nn.functional.rrelu")
def rrelu(
    input: TensorProxy, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> TensorProxy:
    """`input` where it is positive, else times the mean of `lower` and `upper` (in training, times a random slope)."""
    if training:
        raise NoDecompositionError("random slopes")
    return _like(clang.where(clang.gt(input, 0), input, clang.mul(input, (lower + upper) / 2)), input)


@op(F.glu, samples="nn.functional.glu")
def glu(input: TensorProxy, dim: int = -1) -> TensorProxy:
    """The first half of `dim` times the sigmoid of the second."""
    dim = canonicalize_dim(input.ndim, dim)
    size = input.shape[dim]
    if size % 2:
        raise ThunderRuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    a = clang.slice_in_dim(input, 0, size // 2, 1, dim)
    b = clang.slice_in_dim(input, size // 2, size, 1, dim)
    return _like(clang.mul(_wide(a), clang.sigmoid(_wide(b))), input)


@op(F.dropout, samples="nn.functional.dropout")
def dropout(input: TensorProxy, p: float = 0.5, training: bool = True, inplace: bool = False) -> TensorProxy:
    """`input` with each element 0 with probability `p`, the others scaled by 1 / (1 - p); itself unless `training`."""
    if not 0.0 <= p <= 1.0:
        raise ThunderRuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0 or input.device.type == "cuda":
        return _undropped(input, p, training)
    if p == 1:
        return clang.mul(input, clang.full_like(input, 0))
    mask = prims.bernoulli_mask(input, 1 - p)
    return clang.mul(input, clang.true_divide(mask, 1 - p))


def _undropped(a: TensorProxy, p: float, training: bool) -> TensorProxy:
    if training and p != 0:
        raise NoDecompositionError("the device's own kernel draws its random numbers in another order")
    return a
