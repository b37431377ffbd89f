"""Type promotion: the dtype in which an elementwise operation computes, and the dtype of its result.

The result is torch's: tensors with dimensions come before tensors without, and those before Python numbers; a category
(bool, integer, float, complex) that only a later kind has raises the result just far enough to hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from numbers import Number
from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.baseutils import check
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.sizes import SYMBOLIC_TYPES


class ELEMENTWISE_TYPE_PROMOTION_KIND(Enum):
    """How an operation treats the common dtype of its arguments.

    DEFAULT: it is the result's (add). PRESERVE: the same, and it computes in it too (where, cat).
    INT_TO_FLOAT: exact dtypes become the default float (sin). ALWAYS_BOOL: the result is boolean (eq).
    COMPLEX_TO_FLOAT: complex results become their parts' dtype (abs). BOOL_TO_LONG: booleans become int64 (sum).
    NUMBER_TO_INT: plain numbers give an int, tensors as DEFAULT (ceil).
    """

    DEFAULT = auto()
    PRESERVE = auto()
    INT_TO_FLOAT = auto()
    ALWAYS_BOOL = auto()
    COMPLEX_TO_FLOAT = auto()
    BOOL_TO_LONG = auto()
    NUMBER_TO_INT = auto()


Kind = ELEMENTWISE_TYPE_PROMOTION_KIND

_COMPLEX_OF_DEFAULT = {
    torch.float16: torch.complex32, torch.bfloat16: torch.complex64, torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}  # fmt: skip


def get_numberlike_type(x: Any) -> type:
    """bool, int, float or complex: the Python type of a number, number proxy or symbolic number.

    Raises: ThunderTypeError for anything else.
    """
    if isinstance(x, NumberProxy):
        return x.python_type
    for symbolic, python_type in ((torch.SymBool, bool), (torch.SymInt, int), (torch.SymFloat, float)):
        if isinstance(x, symbolic):
            return python_type
    for number_type in (bool, int, float, complex):
        if isinstance(x, number_type):
            return number_type
    raise ThunderTypeError(f"expected a number, but got {x!r} of type {type(x).__name__}")


def is_numberlike(x: Any) -> bool:
    """Whether `x` is a number, a number proxy or a symbolic number."""
    return isinstance(x, (Number, NumberProxy, *SYMBOLIC_TYPES))


def get_numberlike_value(x: Any) -> Any:
    """The value of a number proxy where it is known; any other number itself."""
    return x.value if isinstance(x, NumberProxy) and x.value is not None else x


def _dtype_of_number(python_type: type) -> torch.dtype:
    if python_type is float:
        return torch.get_default_dtype()
    if python_type is complex:
        return _COMPLEX_OF_DEFAULT[torch.get_default_dtype()]
    return torch.bool if python_type is bool else torch.int64


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """The dtype of two kinds of arguments, of which `higher` counts unless `lower` is of a higher category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return _COMPLEX_OF_DEFAULT.get(higher, torch.complex64) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _join(known: torch.dtype | None, new: torch.dtype) -> torch.dtype:
    return new if known is None else torch.promote_types(known, new)


def common_dtype(args: Sequence[Any]) -> torch.dtype:
    """The dtype torch gives to a combination of tensors, numbers and dtypes (a dtype counts as a tensor of it).

    Raises: ThunderTypeError if there is no argument that has a dtype.
    """
    with_dims: torch.dtype | None = None
    without_dims: torch.dtype | None = None
    of_numbers: torch.dtype | None = None
    for a in args:
        if isinstance(a, TensorProxy):
            if a.ndim:
                with_dims = _join(with_dims, a.torch_dtype)
            else:
                without_dims = _join(without_dims, a.torch_dtype)
        elif isinstance(a, dtypes.dtype | torch.dtype):
            with_dims = _join(with_dims, dtypes.to_torch_dtype(a))
        elif is_numberlike(a):
            of_numbers = _join(of_numbers, _dtype_of_number(get_numberlike_type(a)))
        elif a is not None:
            raise ThunderTypeError(f"{a!r} of type {type(a).__name__} has no part in type promotion")
    result = _combine(with_dims, _combine(without_dims, of_numbers))
    if result is None:
        raise ThunderTypeError("type promotion needs a tensor or a number")
    return result


def get_computation_dtype(typ: Any) -> Any:
    """The dtype in which values of `typ` are computed with: at least 32 bits a float. Number types give themselves."""
    if dtypes.is_numbertype(typ):
        return typ
    found = dtypes.to_strong_dtype(typ)
    if not dtypes.is_low_precision_dtype(found):
        return found
    return dtypes.complex64 if dtypes.is_complex_dtype(found) else dtypes.float32


def _number_promotion(args: Sequence[Any], kind: Kind) -> tuple[type, type]:
    order = (bool, int, float, complex)
    highest = max((get_numberlike_type(a) for a in args), key=order.index)
    if kind is Kind.INT_TO_FLOAT and highest in (bool, int):
        return float, float
    if kind is Kind.ALWAYS_BOOL:
        return highest, bool
    if kind is Kind.COMPLEX_TO_FLOAT and highest is complex:
        return complex, float
    if kind is Kind.BOOL_TO_LONG and highest is bool:
        return int, int
    if kind is Kind.NUMBER_TO_INT:
        return highest, highest if highest is complex else int
    return highest, highest


def elementwise_type_promotion(*args: Any, type_promotion_kind: Kind) -> tuple[Any, Any]:
    """(dtype to compute in, dtype of the result) of an elementwise operation on tensors and numbers.

    Returns: thunder dtypes in the strong form; Python number types where all arguments are numbers.
    Raises: ThunderTypeError if there is no argument, or one that is neither tensor nor number.

    O(arguments).
    """
    args = tuple(a for a in args if a is not None)
    check(bool(args), lambda: "type promotion needs at least one argument", ThunderTypeError)
    if all(is_numberlike(a) for a in args):
        return _number_promotion(args, type_promotion_kind)
    result = common_dtype(args)
    kind = type_promotion_kind
    if kind is Kind.INT_TO_FLOAT and not (result.is_floating_point or result.is_complex):
        result = torch.get_default_dtype()
    if kind is Kind.BOOL_TO_LONG and result is torch.bool:
        result = torch.int64
    strong = dtypes.to_strong_dtype(result)
    if kind is Kind.PRESERVE:
        return strong, strong
    computation = get_computation_dtype(strong)
    if kind is Kind.ALWAYS_BOOL:
        return strong, dtypes.bool8
    if kind is Kind.COMPLEX_TO_FLOAT and dtypes.is_complex_dtype(strong):
        return computation, dtypes.corresponding_real_dtype(strong)
    return computation, strong


_CATEGORIES = (dtypes.is_boolean_dtype, dtypes.is_exact_dtype, dtypes.is_float_dtype, dtypes.is_complex_dtype)


def _category(x: Any) -> int:
    return next(n for n, belongs in enumerate(_CATEGORIES) if belongs(x))


def can_safe_cast_to(*, cast_to: Any, cast_from: Any) -> bool:
    """Whether the category of `cast_from` (bool, integer, float, complex) is not above that of `cast_to`."""
    return _category(cast_from) <= _category(cast_to)


def can_safe_cast_number_to(num: Any, dtype: Any) -> bool:
    """Whether the number's category is not above that of `dtype`."""
    return can_safe_cast_to(cast_to=dtype, cast_from=get_numberlike_type(num))


def const_as(number: Any, dtype: Any) -> Any:
    """A number as the Python type of `dtype`: `const_as(1, float32)` is 1.0."""
    wanted = dtypes.dtype_to_numbertype(dtype)
    if isinstance(number, SYMBOLIC_TYPES):
        if wanted is float and isinstance(number, torch.SymInt):
            return torch.sym_float(number)
        return number
    value = get_numberlike_value(number)
    if isinstance(value, complex) and wanted is not complex:
        raise ThunderValueError(f"the complex number {value} has no value of type {wanted.__name__}")
    return wanted(value)


def is_weak_number(x: Any) -> bool:
    """Whether `x` is a plain number, whose dtype gives way to a tensor's."""
    return is_numberlike(x)
