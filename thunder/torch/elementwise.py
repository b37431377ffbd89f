"""Elementwise operations of torch: any shapes that broadcast, dtypes by torch's promotion."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from thunder import clang
from thunder.clang.utils import Kind, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import elementwise_type_promotion, is_numberlike
from thunder.core.proxies import TensorProxy
from thunder.torch.op import Operation, op


def _declare(fn: Callable, parameters: str, *callables: Callable, name: str, samples: str | None = None) -> Operation:
    """An operation that is a function of clang, with torch's parameter names."""

    def body(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        return fn(*bound.arguments.values())

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(p, kind) for p in parameters.split()])
    body.__signature__ = signature  # type: ignore[attr-defined]
    body.__name__ = body.__qualname__ = name
    body.__doc__ = inspect.getdoc(fn)
    return op(*callables, name=name, samples=samples)(body)


def _unary(name: str, *aliases: Callable, samples: str | None = None) -> Operation:
    return _declare(getattr(clang, name), "input", getattr(torch, name), *aliases, name=name, samples=samples)


for _name, _aliases in {
    "abs": (torch.absolute,), "acos": (torch.arccos,), "acosh": (torch.arccosh,), "asin": (torch.arcsin,),
    "asinh": (torch.arcsinh,), "atan": (torch.arctan,), "atanh": (torch.arctanh,), "bitwise_not": (), "ceil": (),
    "cos": (), "cosh": (), "digamma": (torch.special.digamma, torch.special.psi), "erf": (torch.special.erf,),
    "erfc": (torch.special.erfc,), "erfinv": (torch.special.erfinv,), "exp": (),
    "exp2": (torch.special.exp2,), "expm1": (torch.special.expm1,), "floor": (), "isfinite": (),
    "lgamma": (torch.special.gammaln,), "log": (), "log10": (), "log1p": (torch.special.log1p,), "log2": (),
    "logical_not": (), "neg": (torch.negative,), "reciprocal": (), "rsqrt": (), "signbit": (), "sin": (), "sinh": (),
    "sqrt": (), "tan": (), "tanh": (torch.nn.functional.tanh,), "trunc": (torch.fix,), "isnan": (),
}.items():  # fmt: skip
    _unary(_name, *_aliases)
_declare(clang.sigmoid, "input", torch.sigmoid, torch.nn.functional.sigmoid, torch.special.expit, name="sigmoid")
_declare(clang.ndtri, "input", torch.special.ndtri, name="ndtri", samples="special.ndtri")


@op(torch.frexp)
def frexp(input: TensorProxy) -> tuple[TensorProxy, TensorProxy]:
    """(mantissa, exponent as int32) of each element."""
    return torch.return_types.frexp(clang.frexp(input))


@op(torch.sign)
def sign(input: TensorProxy) -> TensorProxy:
    """-1, 0 or 1 as each element is; dtype and shape of `input`, which is not complex."""
    return clang.sign(input)


@op(torch.sgn)
def sgn(input: TensorProxy) -> TensorProxy:
    """As `sign`; for complex numbers the number divided by its magnitude."""
    return clang.sign(input)


@op(torch.round, torch.special.round)
def round(input: TensorProxy, *, decimals: int = 0) -> TensorProxy:
    """Each element rounded to `decimals` places, halves to even."""
    if decimals != 0:
        raise NoDecompositionError("rounding to decimals")
    return clang.round(input)


@op(torch.square)
def square(input: TensorProxy) -> TensorProxy:
    """Each element times itself; booleans give int64."""
    return clang.pow(input, 2)


@op(torch.isinf)
def isinf(input: TensorProxy) -> TensorProxy:
    """Whether each element, or a part of it, is infinite."""
    if dtypes.is_exact_dtype(input.dtype):
        return clang.ne(input, input)
    if dtypes.is_complex_dtype(input.dtype):
        return clang.logical_or(isinf(clang.real(input)), isinf(clang.imag(input)))
    return clang.eq(clang.abs(input), math.inf)


@op(torch.real)
def real(input: TensorProxy) -> TensorProxy:
    """The real parts, a view; real tensors as they are."""
    return clang.real(input)


@op(torch.imag)
def imag(input: TensorProxy) -> TensorProxy:
    """The imaginary parts of a complex tensor, a view."""
    return clang.imag(input)


@op(torch.positive)
def positive(input: TensorProxy) -> TensorProxy:
    """`input` itself, which is not boolean."""
    return input


@op(torch.deg2rad)
def deg2rad(input: TensorProxy) -> TensorProxy:
    """Degrees as radians."""
    return clang.mul(input, math.pi / 180)


@op(torch.rad2deg)
def rad2deg(input: TensorProxy) -> TensorProxy:
    """Radians as degrees."""
    return clang.mul(input, 180 / math.pi)


@op(torch.frac)
def frac(input: TensorProxy) -> TensorProxy:
    """Each element without its integer part."""
    return clang.sub(input, clang.trunc(input))


@op(torch.nan_to_num)
def nan_to_num(
    input: TensorProxy, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> TensorProxy:
    """`input` with NaN (0 by default) and infinities (the extreme finite numbers) replaced."""
    if dtypes.is_exact_dtype(input.dtype):
        return input
    if dtypes.is_complex_dtype(input.dtype):
        raise NoDecompositionError("nan_to_num of complex numbers")
    limits = torch.finfo(input.torch_dtype)
    result = clang.where(clang.ne(input, input), 0.0 if nan is None else nan, input)
    result = clang.where(clang.eq(input, math.inf), limits.max if posinf is None else posinf, result)
    return clang.where(clang.eq(input, -math.inf), limits.min if neginf is None else neginf, result)


def _with_alpha(other: Any, alpha: Any) -> Any:
    return other if is_numberlike(alpha) and alpha == 1 else clang.mul(other, alpha)


@op(torch.add)
def add(input: Any, other: Any, *, alpha: Any = 1) -> TensorProxy:
    """input + alpha * other."""
    return clang.add(input, _with_alpha(other, alpha))


@op(torch.sub, torch.subtract)
def sub(input: Any, other: Any, *, alpha: Any = 1) -> TensorProxy:
    """input - alpha * other."""
    return clang.sub(input, _with_alpha(other, alpha))


@op(torch.rsub)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> TensorProxy:
    """other - alpha * input."""
    return clang.sub(other, _with_alpha(input, alpha))


@op(torch.Tensor.__rtruediv__, name="rtruediv", samples="__rdiv__")
def rtruediv(input: Any, other: Any) -> TensorProxy:
    """other / input."""
    return clang.true_divide(other, input)


@op(torch.div, torch.divide)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> TensorProxy:
    """input / other, rounded where `rounding_mode` is "trunc" or "floor"; without it integers give floats."""
    if rounding_mode is None:
        return clang.true_divide(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise ThunderRuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor', not {rounding_mode!r}"
        )
    return clang.floor_divide(input, other) if rounding_mode == "floor" else clang.trunc_divide(input, other)


_BINARY = {
    "mul": (torch.multiply,), "true_divide": (), "floor_divide": (), "fmod": (), "remainder": (),
    "atan2": (torch.arctan2,), "copysign": (), "nextafter": (), "maximum": (), "minimum": (),
    "bitwise_and": (torch.Tensor.__and__,), "bitwise_or": (torch.Tensor.__or__,),
    "bitwise_xor": (torch.Tensor.__xor__,),
    "bitwise_left_shift": (torch.Tensor.__lshift__,), "bitwise_right_shift": (torch.Tensor.__rshift__,),
    "logical_and": (), "logical_or": (), "logical_xor": (),
    "eq": (torch.Tensor.__eq__,), "ne": (torch.not_equal, torch.Tensor.__ne__),
    "lt": (torch.less, torch.Tensor.__lt__), "le": (torch.less_equal, torch.Tensor.__le__),
    "gt": (torch.greater, torch.Tensor.__gt__), "ge": (torch.greater_equal, torch.Tensor.__ge__),
}  # fmt: skip
for _name, _aliases in _BINARY.items():
    _declare(getattr(clang, _name), "input other", getattr(torch, _name), *_aliases, name=_name)
_declare(clang.zeta, "input other", torch.special.zeta, name="zeta", samples="special.zeta")


@op(torch.pow)
def pow(input: Any, exponent: Any) -> TensorProxy:
    """input ** exponent; one of the two is a tensor."""
    return clang.pow(input, exponent)


@op(torch.ldexp)
def ldexp(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """input * 2 ** other."""
    return clang.mul(input, clang.pow(2.0, other))


@op(torch.fmax)
def fmax(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """The larger of each two elements, the number where the other is NaN."""
    return _ignoring_nan(clang.maximum, input, other)


@op(torch.fmin)
def fmin(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """The smaller of each two elements, the number where the other is NaN."""
    return _ignoring_nan(clang.minimum, input, other)


def _ignoring_nan(choose: Callable, a: TensorProxy, b: TensorProxy) -> TensorProxy:
    return clang.where(clang.isnan(a), b, clang.where(clang.isnan(b), a, choose(a, b)))


@op(torch.logaddexp)
def logaddexp(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """log(exp(input) + exp(other)), without overflow."""
    if dtypes.is_complex_dtype(input.dtype) or dtypes.is_complex_dtype(other.dtype):
        raise NoDecompositionError("logaddexp of complex numbers")
    top = clang.maximum(input, other)
    value = clang.add(top, clang.log1p(clang.exp(clang.neg(clang.abs(clang.sub(input, other))))))
    return clang.where(clang.logical_and(clang.eq(input, other), clang.eq(clang.abs(input), math.inf)), input, value)


@op(torch.xlogy, torch.special.xlogy)
def xlogy(input: Any, other: Any) -> TensorProxy:
    """input * log(other), 0 where `input` is 0 and `other` a number."""
    product = clang.mul(input, clang.log(other))
    zero = clang.logical_and(clang.eq(input, 0), clang.logical_not(clang.ne(other, other)))
    if is_numberlike(zero):
        return product
    return clang.where(zero, 0.0, product)


@op(torch.addcmul)
def addcmul(input: TensorProxy, tensor1: TensorProxy, tensor2: TensorProxy, *, value: Any = 1) -> TensorProxy:
    """input + value * tensor1 * tensor2."""
    return _combined(input, tensor1, tensor2, value, clang.mul)


@op(torch.addcdiv)
def addcdiv(input: TensorProxy, tensor1: TensorProxy, tensor2: TensorProxy, *, value: Any = 1) -> TensorProxy:
    """input + value * tensor1 / tensor2, for inexact dtypes."""
    return _combined(input, tensor1, tensor2, value, clang.true_divide)


def _combined(a: TensorProxy, b: TensorProxy, c: TensorProxy, value: Any, join: Callable) -> TensorProxy:
    computation, result = elementwise_type_promotion(a, b, c, type_promotion_kind=Kind.DEFAULT)
    a, b, c = (maybe_convert_to_dtype(x, computation) for x in (a, b, c))
    return maybe_convert_to_dtype(clang.add(a, join(clang.mul(value, b), c)), result)


@op(torch.lerp)
def lerp(input: TensorProxy, end: TensorProxy, weight: Any) -> TensorProxy:
    """input + weight * (end - input)."""
    return clang.lerp(input, end, weight)


@op(torch.clamp, torch.clip)
def clamp(input: TensorProxy, min: Any = None, max: Any = None) -> TensorProxy:
    """`input` limited from below by `min` and from above by `max`, in their common dtype."""
    if min is None and max is None:
        raise ThunderRuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    _, dtype = elementwise_type_promotion(input, min, max, type_promotion_kind=Kind.DEFAULT)
    result = maybe_convert_to_dtype(input, dtype)
    for bound, limit in ((min, clang.maximum), (max, clang.minimum)):
        if bound is not None:
            result = limit(result, maybe_convert_to_dtype(bound, dtype))
    return result


@op(torch.clamp_min)
def clamp_min(input: TensorProxy, min: Any) -> TensorProxy:
    """`input` limited from below."""
    return clamp.meta(input, min)


@op(torch.clamp_max)
def clamp_max(input: TensorProxy, max: Any) -> TensorProxy:
    """`input` limited from above."""
    return clamp.meta(input, None, max)


@op(torch.where)
def where(condition: TensorProxy, input: Any = None, other: Any = None) -> TensorProxy:
    """`input` where `condition` holds, else `other`, broadcast and in their common dtype."""
    if input is None or other is None:
        raise NoDecompositionError("the number of elements that a condition selects is not known")
    if condition.dtype is not dtypes.bool8:
        condition = clang.ne(condition, 0)
    return clang.where(condition, input, other)


@op(torch.Tensor.where, name="where_method", samples="where")
def where_method(self: TensorProxy, condition: TensorProxy, other: Any) -> TensorProxy:
    """`self` where `condition` holds, else `other`, broadcast and in their common dtype."""
    return where(condition, self, other)


@op(torch.masked_fill)
def masked_fill(input: TensorProxy, mask: TensorProxy, value: Any) -> TensorProxy:
    """`input` with `value` (a number or a tensor without dims) where `mask` holds; the dtype of `input`."""
    value = maybe_convert_to_dtype(value, input.dtype)
    input, mask, _ = maybe_broadcast(input, mask, value, treat_cpu_scalar_tensors_as_numbers=False)
    return clang.where(mask, value, input)


@op(torch.Tensor.to, samples="to")
def to(
    self: TensorProxy,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> TensorProxy:
    """`self` in another dtype, on another device, or as another tensor is; itself where nothing changes."""
    positional = list(args)
    if positional and isinstance(positional[0], TensorProxy):
        other = positional.pop(0)
        dtype, device = other.dtype, other.device
    elif positional and isinstance(positional[0], torch.dtype):
        dtype = positional.pop(0)
    elif positional:
        device = positional.pop(0)
        if positional and isinstance(positional[0], torch.dtype):
            dtype = positional.pop(0)
    copy = copy or (len(positional) > 1 and bool(positional[1]))
    result = self if device is None else clang.device_put(self, device)
    result = result if dtype is None else maybe_convert_to_dtype(result, dtype)
    return prims.clone(result) if copy and result is self else result


@op(torch.clone)
def clone(input: TensorProxy, *, memory_format: Any = torch.preserve_format) -> TensorProxy:
    """A copy."""
    return prims.clone(input)


@op(torch.Tensor.type_as, samples="type_as")
def type_as(self: TensorProxy, other: TensorProxy) -> TensorProxy:
    """`self` in the dtype, and on the device, of `other`."""
    return maybe_convert_to_dtype(clang.device_put(self, other.device), other.dtype)


def _cast(name: str, dtype: torch.dtype) -> Operation:
    def body(self: TensorProxy, memory_format: Any = torch.preserve_format) -> TensorProxy:
        return maybe_convert_to_dtype(self, dtype)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"`self` as {dtype}."
    return op(getattr(torch.Tensor, name), name=name)(body)


for _name, _dtype in {
    "bfloat16": torch.bfloat16, "bool": torch.bool, "byte": torch.uint8, "char": torch.int8, "double": torch.float64,
    "float": torch.float32, "half": torch.float16, "int": torch.int32, "long": torch.int64, "short": torch.int16,
    "cfloat": torch.complex64, "cdouble": torch.complex128,
}.items():  # fmt: skip
    _cast(_name, _dtype)
