"""Elementwise functions: primitives after promotion and broadcasting, on tensors that broadcast, or numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from thunder.clang.utils import Kind, TensorLike, apply, clangop, elementwise, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.promotion import (
    common_dtype,
    elementwise_type_promotion,
    get_numberlike_value,
    is_numberlike,
)
from thunder.core.proxies import TensorProxy


def _named(fn: Callable, name: str, doc: str) -> Callable:
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    return fn


def _unary(prim: Any, kind: Kind = Kind.INT_TO_FLOAT, *, method: bool = False) -> Any:
    """A function of one argument; the result has its shape and the dtype that `kind` says."""
    fn = _named(lambda a: elementwise(prim, a, kind=kind), prim.name, f"{prim.name} of each element.")
    return clangop(method_name=prim.name if method else None)(fn)


def _binary(prim: Any, kind: Kind = Kind.DEFAULT, *, method: bool = False) -> Any:
    """A function of two arguments that broadcast."""
    fn = _named(lambda a, b: elementwise(prim, a, b, kind=kind), prim.name, f"{prim.name} of each pair of elements.")
    return clangop(method_name=prim.name if method else None)(fn)


def _rounding(prim: Any) -> Any:
    """A function that leaves exact dtypes as they are."""

    def fn(a: Any) -> Any:
        if isinstance(a, TensorProxy) and dtypes.is_exact_dtype(a.dtype):
            return a
        return elementwise(prim, a, kind=Kind.NUMBER_TO_INT)

    return clangop(method_name=prim.name)(_named(fn, prim.name, f"{prim.name} of each element; integers stay."))


abs = _unary(prims.abs, Kind.COMPLEX_TO_FLOAT, method=True)
acos, acosh, asin, asinh = (_unary(p) for p in (prims.acos, prims.acosh, prims.asin, prims.asinh))
atan, atanh, cos, cosh = (_unary(p) for p in (prims.atan, prims.atanh, prims.cos, prims.cosh))
bitwise_not = _unary(prims.bitwise_not, Kind.DEFAULT, method=True)
ceil, floor, round, trunc = (_rounding(p) for p in (prims.ceil, prims.floor, prims.round, prims.trunc))
digamma, erf, erfc, erfcinv, erfinv = (
    _unary(p) for p in (prims.digamma, prims.erf, prims.erfc, prims.erfcinv, prims.erfinv)
)
exp, exp2, expm1, lgamma = (_unary(p) for p in (prims.exp, prims.exp2, prims.expm1, prims.lgamma))
log, log10, log1p, log2 = (_unary(p) for p in (prims.log, prims.log10, prims.log1p, prims.log2))
ndtri, reciprocal, rsqrt = (_unary(p) for p in (prims.ndtri, prims.reciprocal, prims.rsqrt))
sin, sinh, sqrt, tan, tanh = (_unary(p) for p in (prims.sin, prims.sinh, prims.sqrt, prims.tan, prims.tanh))
neg = _unary(prims.neg, Kind.DEFAULT, method=True)
sign = _unary(prims.sign, Kind.DEFAULT)


@clangop()
def signbit(a: TensorLike) -> TensorLike:
    """Whether each element is negative, -0.0 included."""
    return apply(prims.signbit, a)


@clangop()
def isfinite(a: Any) -> Any:
    """Whether each element is neither infinite nor NaN."""
    if isinstance(a, TensorProxy) and dtypes.is_exact_dtype(a.dtype):
        return full_bool(a, True)
    return apply(prims.isfinite, a)


def full_bool(a: TensorLike, value: bool) -> TensorLike:
    """A boolean tensor of the shape and device of `a`, full of `value`."""
    return prims.full(a.shape, value, device=a.device, dtype=dtypes.bool8)


@clangop()
def isnan(a: TensorLike) -> TensorLike:
    """Whether each element is NaN."""
    return ne(a, a)


@clangop()
def frexp(a: TensorLike, /) -> tuple[TensorLike, TensorLike]:
    """(mantissa, exponent as int32) of each element: a = mantissa * 2 ** exponent."""
    return prims.frexp(a)


@clangop(method_name="real")
def real(a: Any) -> Any:
    """The real parts; real numbers stay as they are."""
    return apply(prims.real, a) if not isinstance(a, TensorProxy) or dtypes.is_complex_dtype(a.dtype) else a


@clangop(method_name="imag")
def imag(a: Any, /) -> Any:
    """The imaginary parts of complex numbers. Raises ThunderTypeError (by the primitive's rule) for others."""
    return apply(prims.imag, a)


@clangop()
def sigmoid(a: Any) -> Any:
    """1 / (1 + exp(-a)), computed in 32 bits at least."""
    computation, result = elementwise_type_promotion(a, type_promotion_kind=Kind.INT_TO_FLOAT)
    a = maybe_convert_to_dtype(a, computation)
    return maybe_convert_to_dtype(reciprocal(add(1, exp(neg(a)))), result)


@clangop()
def silu(a: TensorLike) -> TensorLike:
    """a * sigmoid(a), computed in 32 bits at least."""
    computation, result = elementwise_type_promotion(a, type_promotion_kind=Kind.INT_TO_FLOAT)
    a = maybe_convert_to_dtype(a, computation)
    return maybe_convert_to_dtype(mul(a, sigmoid(a)), result)


add = _binary(prims.add, method=True)
atan2 = _binary(prims.atan2, Kind.INT_TO_FLOAT)
bitwise_and = _binary(prims.bitwise_and, method=True)
bitwise_or = _binary(prims.bitwise_or, method=True)
bitwise_xor = _binary(prims.bitwise_xor, method=True)
bitwise_left_shift = _binary(prims.bitwise_left_shift, method=True)
bitwise_right_shift = _binary(prims.bitwise_right_shift, method=True)
eq, ne = (_binary(p, Kind.ALWAYS_BOOL, method=True) for p in (prims.eq, prims.ne))
ge, gt = (_binary(p, Kind.ALWAYS_BOOL, method=True) for p in (prims.ge, prims.gt))
le, lt = (_binary(p, Kind.ALWAYS_BOOL, method=True) for p in (prims.le, prims.lt))
fmod = _binary(prims.fmod)
maximum, minimum = (_binary(p) for p in (prims.maximum, prims.minimum))
mul = _binary(prims.mul, method=True)
nextafter = _binary(prims.nextafter)
remainder = _binary(prims.remainder)
sub = _binary(prims.sub, method=True)
true_divide = clangop(method_name="true_divide")(
    _named(
        lambda a, b: elementwise(_divide, a, b, kind=Kind.INT_TO_FLOAT), "true_divide", "a / b; integers give floats."
    )
)
zeta = _binary(prims.zeta, Kind.INT_TO_FLOAT)


def _divide(a: Any, b: Any) -> Any:
    return operator.truediv(a, b) if is_numberlike(a) and is_numberlike(b) else prims.div(a, b)


@clangop(method_name="mod")
def mod(a: Any, b: Any) -> Any:
    """The remainder with the sign of `b`, as Python's %."""
    return remainder(a, b)


@clangop(method_name="pow")
def pow(a: Any, b: Any) -> Any:
    """a ** b."""
    if is_numberlike(a) and is_numberlike(b):
        return get_numberlike_value(a) ** get_numberlike_value(b)
    return elementwise(prims.pow, a, b)


@clangop()
def copysign(a: Any, b: Any) -> Any:
    """The magnitude of `a` with the sign of `b`; integers give floats."""
    if is_numberlike(a) and is_numberlike(b):
        return math.copysign(a, b)
    computation, result = elementwise_type_promotion(a, b, type_promotion_kind=Kind.INT_TO_FLOAT)
    a, b = (maybe_convert_to_dtype(x, computation) for x in maybe_broadcast(a, b))
    magnitude = abs(a)
    negative = signbit(b) if isinstance(b, TensorProxy) else math.copysign(1.0, b) < 0
    return maybe_convert_to_dtype(where(negative, neg(magnitude), magnitude), result)


def _floor_divide_exact(a: Any, b: Any) -> Any:
    quotient = prims.div(a, b)
    rest = sub(a, mul(quotient, b))
    is_below = logical_and(ne(rest, 0), ne(lt(rest, 0), lt(b, 0)))
    return where(is_below, sub(quotient, 1), quotient)


def _floor_divide_inexact(a: Any, b: Any) -> Any:
    """As Python's //: from the remainder, so that rounding of a / b does not show."""
    rest = fmod(a, b)
    quotient = true_divide(sub(a, rest), b)
    quotient = where(logical_and(ne(rest, 0), ne(lt(b, 0), lt(rest, 0))), sub(quotient, 1), quotient)
    floored = floor(quotient)
    floored = where(gt(sub(quotient, floored), 0.5), add(floored, 1), floored)
    exact = true_divide(a, b)
    result = where(ne(quotient, 0), floored, copysign(mul(exact, 0), exact))
    return where(eq(b, 0), exact, result)


@clangop(method_name="floor_divide")
def floor_divide(a: Any, b: Any) -> Any:
    """a / b rounded down, in the promoted dtype."""
    if is_numberlike(a) and is_numberlike(b):
        return get_numberlike_value(a) // get_numberlike_value(b)
    computation, result = elementwise_type_promotion(a, b, type_promotion_kind=Kind.DEFAULT)
    a, b = (maybe_convert_to_dtype(x, computation) for x in maybe_broadcast(a, b))
    divide = _floor_divide_exact if dtypes.is_exact_dtype(computation) else _floor_divide_inexact
    return maybe_convert_to_dtype(divide(a, b), result)


@clangop(method_name="trunc_divide")
def trunc_divide(a: Any, b: Any, /) -> Any:
    """a / b rounded towards zero, in the promoted dtype."""
    computation, result = elementwise_type_promotion(a, b, type_promotion_kind=Kind.DEFAULT)
    if dtypes.is_exact_dtype(computation):
        return elementwise(prims.div, a, b)
    a, b = (maybe_convert_to_dtype(x, computation) for x in maybe_broadcast(a, b))
    return maybe_convert_to_dtype(trunc(true_divide(a, b)), result)


def as_bool(a: Any) -> Any:
    """Whether each element is not zero."""
    if is_numberlike(a):
        return bool(get_numberlike_value(a))
    return a if a.dtype is dtypes.bool8 else ne(a, 0)


@clangop()
def logical_and(a: Any, b: Any) -> Any:
    """Whether both are not zero."""
    return bitwise_and(as_bool(a), as_bool(b))


@clangop()
def logical_or(a: Any, b: Any) -> Any:
    """Whether any of the two is not zero."""
    return bitwise_or(as_bool(a), as_bool(b))


@clangop()
def logical_xor(a: Any, b: Any, /) -> Any:
    """Whether exactly one of the two is not zero."""
    return bitwise_xor(as_bool(a), as_bool(b))


@clangop()
def logical_not(a: Any, /) -> Any:
    """Whether each element is zero."""
    return bitwise_not(as_bool(a))


@clangop()
def lerp(start: TensorLike, end: TensorLike, weight: Any) -> TensorLike:
    """start + weight * (end - start), without loss at the ends."""
    if isinstance(weight, TensorProxy):
        return elementwise(prims.lerp, start, end, weight)
    computation, result = elementwise_type_promotion(start, end, type_promotion_kind=Kind.DEFAULT)
    start, end = (maybe_convert_to_dtype(x, computation) for x in maybe_broadcast(start, end))
    return maybe_convert_to_dtype(prims.lerp(start, end, weight), result)


@clangop()
def where(pred: Any, a: Any, b: Any) -> Any:
    """`a` where `pred` holds, else `b`, in their common dtype; the three broadcast.

    With a number as `pred` and two numbers the result is a number.
    """
    if is_numberlike(pred) and is_numberlike(a) and is_numberlike(b):
        return a if get_numberlike_value(pred) else b
    _, dtype = elementwise_type_promotion(a, b, type_promotion_kind=Kind.PRESERVE)
    if is_numberlike(pred):
        chosen = a if get_numberlike_value(pred) else b
        a, b = maybe_broadcast(a, b)
        return maybe_convert_to_dtype(a if chosen is a else b, dtype)
    if not isinstance(a, TensorProxy) and not isinstance(b, TensorProxy):
        strong = dtypes.to_strong_dtype(common_dtype((a, b)))
        a = prims.full(pred.shape, a, device=pred.device, dtype=strong)
        dtype = strong
    pred, a, b = maybe_broadcast(pred, a, b)
    return prims.where(pred, maybe_convert_to_dtype(a, dtype), maybe_convert_to_dtype(b, dtype))
