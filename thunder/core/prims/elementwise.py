"""Elementwise primitives: operands have one shape and one dtype; Python numbers may stand for tensors.

On numbers alone the result is a number, computed at once. CPU tensors without dims go with any shape, as numbers do.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.dims import check_same_device, check_same_dtype, check_same_shape, is_cpu_scalar_tensor, result_device
from thunder.core.errors import ThunderTypeError
from thunder.core.prims.base import ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND, make_prim
from thunder.core.promotion import get_numberlike_value, is_numberlike
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.tracing import get_tracectx

Kind = ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND


def new_tensor(shape: Any, *, like: TensorProxy | None = None, device: Any = None, dtype: Any = None) -> TensorProxy:
    """A fresh tensor of the current trace; device and dtype are those of `like` unless given."""
    return TensorProxy(
        get_tracectx().make_name(prefix="t"),
        shape=tuple(shape),
        device=device if device is not None else like.device,  # type: ignore[union-attr]
        dtype=dtype if dtype is not None else like.dtype,  # type: ignore[union-attr]
    )


def _result_dtype(kind: Kind, dtype: dtypes.dtype) -> dtypes.dtype:
    if kind is Kind.ALWAYS_BOOL:
        return dtypes.bool8
    if kind is Kind.COMPLEX_TO_FLOAT and dtypes.is_complex_dtype(dtype):
        return dtypes.to_dtype(dtypes.corresponding_real_dtype(dtype))
    return dtype


def elementwise_meta(name: str, kind: Kind, on_numbers: Callable | None, exact: bool = True) -> Callable:
    """The meta rule of an elementwise primitive.

    Args:
        on_numbers: computes it on Python numbers; None where it takes tensors only.
        exact: whether it takes integers and booleans.
    """

    def meta(*args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, TensorProxy)]
        if not tensors:
            if on_numbers is None or not all(is_numberlike(a) for a in args):
                raise ThunderTypeError(f"{name} takes tensors, not {', '.join(type(a).__name__ for a in args)}")
            return on_numbers(*(get_numberlike_value(a) for a in args))
        check_same_shape(*tensors)
        check_same_device(*tensors)
        check_same_dtype(*tensors)
        if not exact and dtypes.is_exact_dtype(tensors[0].dtype):
            raise ThunderTypeError(f"{name} is not defined for {tensors[0].dtype}")
        full = next((t for t in tensors if not is_cpu_scalar_tensor(t)), tensors[0])
        return new_tensor(full.shape, device=result_device(*tensors), dtype=_result_dtype(kind, tensors[0].dtype))

    return meta


def _sign(x: Any) -> Any:
    if isinstance(x, complex):
        return x / operator.abs(x) if x else 0j
    return type(x)((x > 0) - (x < 0))


def _round(x: Any) -> Any:
    return x if isinstance(x, int) else float(builtins.round(x))


def _to_int(fn: Callable) -> Callable:
    return lambda x: x if isinstance(x, int) else fn(x)


def _on_tensors(fn: Callable) -> Callable:
    """A torch function on a Python number, in double precision."""

    def on_number(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return fn(
                *(torch.tensor(a, dtype=torch.complex128 if isinstance(a, complex) else torch.float64) for a in args)
            ).item()

    return on_number


def _unary(
    id: str, torch_fn: Callable, on_number: Callable | None = None, kind: Kind = Kind.SAME, *, exact: bool = False
) -> Symbol:
    name = id.lower()
    return make_prim(
        id, name, meta=_one(elementwise_meta(name, kind, on_number or _on_tensors(torch_fn), exact)), torch_fn=torch_fn
    )


def _one(meta: Callable) -> Callable:
    return lambda a, /: meta(a)


def _two(meta: Callable) -> Callable:
    return lambda a, b, /: meta(a, b)


py_abs = make_prim(
    "PY_ABS", "py_abs", meta=lambda a, /: operator.abs(get_numberlike_value(a)), python_impl=operator.abs
)
abs = _unary("ABS", torch.abs, operator.abs, Kind.COMPLEX_TO_FLOAT, exact=True)
acos = _unary("ACOS", torch.acos)
acosh = _unary("ACOSH", torch.acosh)
asin = _unary("ASIN", torch.asin)
asinh = _unary("ASINH", torch.asinh)
atan = _unary("ATAN", torch.atan)
atanh = _unary("ATANH", torch.atanh)
bitwise_not = _unary("BITWISE_NOT", torch.bitwise_not, lambda x: not x if isinstance(x, bool) else ~x, exact=True)
ceil = _unary("CEIL", torch.ceil, _to_int(math.ceil), exact=True)
cos = _unary("COS", torch.cos)
cosh = _unary("COSH", torch.cosh)
digamma = _unary("DIGAMMA", torch.digamma)
erf = _unary("ERF", torch.erf)
erfc = _unary("ERFC", torch.erfc)
erfinv = _unary("ERFINV", torch.erfinv)
exp = _unary("EXP", torch.exp)
exp2 = _unary("EXP2", torch.exp2)
expm1 = _unary("EXPM1", torch.expm1)
floor = _unary("FLOOR", torch.floor, _to_int(math.floor), exact=True)
isfinite = _unary(
    "ISFINITE", torch.isfinite, lambda x: math.isfinite(x.real) and math.isfinite(x.imag), Kind.ALWAYS_BOOL, exact=True
)
lgamma = _unary("LGAMMA", torch.lgamma)
log = _unary("LOG", torch.log)
log10 = _unary("LOG10", torch.log10)
log1p = _unary("LOG1P", torch.log1p)
log2 = _unary("LOG2", torch.log2)
ndtri = _unary("NDTRI", torch.special.ndtri)
neg = _unary("NEG", torch.neg, operator.neg, exact=True)
reciprocal = _unary("RECIPROCAL", torch.reciprocal)
round = _unary("ROUND", torch.round, _round, exact=True)
rsqrt = _unary("RSQRT", torch.rsqrt)
sign = _unary("SIGN", torch.sgn, _sign, exact=True)
signbit = _unary("SIGNBIT", torch.signbit, lambda x: math.copysign(1.0, x) < 0, Kind.ALWAYS_BOOL, exact=True)
sin = _unary("SIN", torch.sin)
sinh = _unary("SINH", torch.sinh)
sqrt = _unary("SQRT", torch.sqrt)
tan = _unary("TAN", torch.tan)
tanh = _unary("TANH", torch.tanh)
trunc = _unary("TRUNC", torch.trunc, _to_int(math.trunc), exact=True)
real = _unary("REAL", torch.real, lambda x: x.real, Kind.COMPLEX_TO_FLOAT, exact=True)
imag = _unary("IMAG", torch.imag, lambda x: x.imag, Kind.COMPLEX_TO_FLOAT, exact=True)


def _erfcinv(a: torch.Tensor) -> torch.Tensor:
    return torch.erfinv(1 - a)


erfcinv = _unary("ERFCINV", _erfcinv)


def _frexp_meta(a: TensorProxy, /) -> tuple[TensorProxy, TensorProxy]:
    if not dtypes.is_float_dtype(a.dtype):
        raise ThunderTypeError(f"frexp takes floating point tensors, not {a.dtype}")
    return new_tensor(a.shape, like=a), new_tensor(a.shape, like=a, dtype=dtypes.int32)


frexp = make_prim("FREXP", "frexp", meta=_frexp_meta, torch_fn=torch.frexp)


def _binary(
    id: str, torch_fn: Callable, on_numbers: Callable | None = None, kind: Kind = Kind.SAME, *, exact: bool = True
) -> Symbol:
    name = id.lower()
    return make_prim(
        id, name, meta=_two(elementwise_meta(name, kind, on_numbers or _on_tensors(torch_fn), exact)), torch_fn=torch_fn
    )


def _div(a: Any, b: Any) -> Any:
    tensor = a if isinstance(a, torch.Tensor) else b
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.true_divide(a, b) if isinstance(a, torch.Tensor) else torch.mul(torch.reciprocal(b), a)
    if not isinstance(a, torch.Tensor):
        a = torch.full_like(b, a)
    return torch.div(a, b, rounding_mode="trunc")


def _div_numbers(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return math.trunc(a / b) if max(a, b, -a, -b) < 1 << 52 else int(operator.floordiv(a, b))
    return a / b


def _pow(a: Any, b: Any) -> Any:
    return torch.pow(a, b)


def _first_as_tensor(fn: Callable) -> Callable:
    """`fn` where it takes a number second but not first."""

    def call(a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            a = torch.full_like(b, a)
        return fn(a, b)

    call.__name__ = call.__qualname__ = fn.__name__
    return call


def _both_as_tensors(fn: Callable) -> Callable:
    """`fn` where it takes no numbers."""

    def call(a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            a = torch.full_like(b, a)
        elif not isinstance(b, torch.Tensor):
            b = torch.full_like(a, b)
        return fn(a, b)

    call.__name__ = call.__qualname__ = fn.__name__
    return call


def _compare(id: str, fn: Callable, mirrored: Callable) -> Symbol:
    def call(a: Any, b: Any) -> Any:
        return fn(a, b) if isinstance(a, torch.Tensor) else mirrored(b, a)

    call.__name__ = call.__qualname__ = id.lower()
    return _binary(id, call, getattr(operator, id.lower()), Kind.ALWAYS_BOOL)


def _add(a: Any, b: Any) -> Any:
    return torch.add(a, b) if isinstance(a, torch.Tensor) else torch.add(b, a)


def _mul(a: Any, b: Any) -> Any:
    return torch.mul(a, b) if isinstance(a, torch.Tensor) else torch.mul(b, a)


def _sub(a: Any, b: Any) -> Any:
    return torch.sub(a, b) if isinstance(a, torch.Tensor) else torch.rsub(b, a)


for _fn, _name in ((_add, "add"), (_mul, "mul"), (_sub, "sub"), (_div, "div"), (_pow, "pow")):
    _fn.__name__ = _fn.__qualname__ = _name

add = _binary("ADD", _add, operator.add)
atan2 = _binary("ATAN2", _both_as_tensors(torch.atan2), math.atan2, exact=False)
bitwise_and = _binary("BITWISE_AND", _first_as_tensor(torch.bitwise_and), operator.and_)
bitwise_or = _binary("BITWISE_OR", _first_as_tensor(torch.bitwise_or), operator.or_)
bitwise_xor = _binary("BITWISE_XOR", _first_as_tensor(torch.bitwise_xor), operator.xor)
bitwise_left_shift = _binary("BITWISE_LEFT_SHIFT", torch.bitwise_left_shift, operator.lshift)
bitwise_right_shift = _binary("BITWISE_RIGHT_SHIFT", torch.bitwise_right_shift, operator.rshift)
div = _binary("DIV", _div, _div_numbers)
fmod = _binary("FMOD", _first_as_tensor(torch.fmod), math.fmod)
maximum = _binary("MAXIMUM", _both_as_tensors(torch.maximum), max)
minimum = _binary("MINIMUM", _both_as_tensors(torch.minimum), min)
mul = _binary("MUL", _mul, operator.mul)
nextafter = _binary("NEXTAFTER", _both_as_tensors(torch.nextafter), math.nextafter, exact=False)
pow = _binary("POW", _pow, operator.pow)
remainder = _binary("REMAINDER", torch.remainder, operator.mod)
sub = _binary("SUB", _sub, operator.sub)
zeta = _binary("ZETA", _both_as_tensors(torch.special.zeta), exact=False)
py_floordiv = make_prim(
    "PY_FLOORDIV", "py_floordiv", meta=lambda a, b, /: get_numberlike_value(a) // get_numberlike_value(b),
    python_impl=operator.floordiv,
)  # fmt: skip
eq = _compare("EQ", torch.eq, torch.eq)
ne = _compare("NE", torch.ne, torch.ne)
ge = _compare("GE", torch.ge, torch.le)
gt = _compare("GT", torch.gt, torch.lt)
le = _compare("LE", torch.le, torch.ge)
lt = _compare("LT", torch.lt, torch.gt)

lerp = make_prim(
    "LERP", "lerp", torch_fn=torch.lerp,
    meta=lambda start, end, weight, /: elementwise_meta("lerp", Kind.SAME, None, False)(start, end, weight),
)  # fmt: skip


def _where_meta(pred: Any, a: Any, b: Any, /) -> Any:
    if is_numberlike(pred):
        return a if get_numberlike_value(pred) else b
    if pred.dtype is not dtypes.bool8:
        raise ThunderTypeError(f"where takes a boolean condition, not {pred.dtype}")
    tensors = [x for x in (pred, a, b) if isinstance(x, TensorProxy)]
    check_same_shape(*tensors)
    values = [x for x in (a, b) if isinstance(x, TensorProxy)]
    if not values:
        raise ThunderTypeError("where takes at least one tensor to choose from")
    check_same_dtype(*values)
    full = next((t for t in tensors if not is_cpu_scalar_tensor(t)), tensors[0])
    return new_tensor(full.shape, device=result_device(*tensors), dtype=values[0].dtype)


where = make_prim("WHERE", "where", meta=_where_meta, torch_fn=torch.where)
