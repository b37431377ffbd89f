"""thunder's data types.

A dtype is an object, and each has two forms: strong (`float32`), the type of tensors, and weak (`float32_`), the type
of Python numbers, which gives way to any strong one of its kind in type promotion. The classes of these objects are
`exact` {`bool_`, `signedinteger`, `unsignedinteger`} and `inexact` {`floating`, `complexfloating`}.

The Python types bool, int, float and complex ("number types") may stand wherever a dtype may, and mean the weak
`bool8_`, `int64_`, `float32_` and `complex64_`. This is not the rule of `torch.zeros(..., dtype=float)`, where float
means float64: such arguments are translated by the functions that take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import torch

from thunder.core.errors import ThunderTypeError, ThunderValueError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class dtype:
    """A data type. Not to be made by users: the module's objects are all there are, and `is` compares them.

    Attributes:
        full_name: the name in this module, with the trailing underscore of weak forms.
        python_type: bool, int, float or complex.
        bytes: size of an element.
        is_weak: whether this is the weak form.
    """

    full_name: str
    _shortname: str
    python_type: type
    bytes: int
    is_weak: bool

    @property
    def bits(self) -> int:
        """Size of an element in bits."""
        return self.bytes * 8

    def shortname(self) -> str:
        """The name in a printed type, such as "f32" or "b8"; weak forms end in an underscore."""
        return self._shortname

    def __repr__(self) -> str:
        return f"thunder.dtypes.{self.full_name}"

    def __reduce__(self) -> str:
        # A string means: the module's global of that name. Copies and unpickled objects are thus the same object.
        return self.full_name


class exact(dtype):
    """The dtypes with exact values: booleans and integers."""

    __slots__ = ()


class bool_(exact):
    """Booleans."""

    __slots__ = ()


class signedinteger(exact):
    """Signed integers."""

    __slots__ = ()


class unsignedinteger(exact):
    """Unsigned integers."""

    __slots__ = ()


class inexact(dtype):
    """The dtypes with rounded values."""

    __slots__ = ()


class floating(inexact):
    """Real floating point numbers."""

    __slots__ = ()


class complexfloating(inexact):
    """Complex numbers with floating point parts."""

    __slots__ = ()


D = TypeVar("D", bound=dtype)


def _pair(cls: type[D], name: str, shortname: str, python_type: type, size_bytes: int) -> tuple[D, D]:
    strong = cls(name, shortname, python_type, size_bytes, is_weak=False)
    weak = cls(name + "_", shortname + "_", python_type, size_bytes, is_weak=True)
    return strong, weak


bool8, bool8_ = _pair(bool_, "bool8", "b8", bool, 1)
uint8, uint8_ = _pair(unsignedinteger, "uint8", "ui8", int, 1)
uint16, uint16_ = _pair(unsignedinteger, "uint16", "ui16", int, 2)
uint32, uint32_ = _pair(unsignedinteger, "uint32", "ui32", int, 4)
uint64, uint64_ = _pair(unsignedinteger, "uint64", "ui64", int, 8)
int8, int8_ = _pair(signedinteger, "int8", "i8", int, 1)
int16, int16_ = _pair(signedinteger, "int16", "i16", int, 2)
int32, int32_ = _pair(signedinteger, "int32", "i32", int, 4)
int64, int64_ = _pair(signedinteger, "int64", "i64", int, 8)
float4_e2m1fn_x2, float4_e2m1fn_x2_ = _pair(floating, "float4_e2m1fn_x2", "f4_e2m1fn_x2", float, 1)
float8_e5m2, float8_e5m2_ = _pair(floating, "float8_e5m2", "f8_e5m2", float, 1)
float8_e5m2fnuz, float8_e5m2fnuz_ = _pair(floating, "float8_e5m2fnuz", "f8_e5m2fnuz", float, 1)
float8_e4m3fn, float8_e4m3fn_ = _pair(floating, "float8_e4m3fn", "f8_e4m3fn", float, 1)
float8_e4m3fnuz, float8_e4m3fnuz_ = _pair(floating, "float8_e4m3fnuz", "f8_e4m3fnuz", float, 1)
float8_e8m0fnu, float8_e8m0fnu_ = _pair(floating, "float8_e8m0fnu", "f8_e8m0fnu", float, 1)
bfloat16, bfloat16_ = _pair(floating, "bfloat16", "bf16", float, 2)
float16, float16_ = _pair(floating, "float16", "f16", float, 2)
float32, float32_ = _pair(floating, "float32", "f32", float, 4)
float64, float64_ = _pair(floating, "float64", "f64", float, 8)
complex32, complex32_ = _pair(complexfloating, "complex32", "c32", complex, 4)
complex64, complex64_ = _pair(complexfloating, "complex64", "c64", complex, 8)
complex128, complex128_ = _pair(complexfloating, "complex128", "c128", complex, 16)

_weak_of: Mapping[dtype, dtype] = {
    bool8: bool8_,
    uint8: uint8_,
    uint16: uint16_,
    uint32: uint32_,
    uint64: uint64_,
    int8: int8_,
    int16: int16_,
    int32: int32_,
    int64: int64_,
    float4_e2m1fn_x2: float4_e2m1fn_x2_,
    float8_e5m2: float8_e5m2_,
    float8_e5m2fnuz: float8_e5m2fnuz_,
    float8_e4m3fn: float8_e4m3fn_,
    float8_e4m3fnuz: float8_e4m3fnuz_,
    float8_e8m0fnu: float8_e8m0fnu_,
    bfloat16: bfloat16_,
    float16: float16_,
    float32: float32_,
    float64: float64_,
    complex32: complex32_,
    complex64: complex64_,
    complex128: complex128_,
}
_strong_of: Mapping[dtype, dtype] = {weak: strong for strong, weak in _weak_of.items()}
_numbertype_to_dtype_map: Mapping[Any, dtype] = {bool: bool8_, int: int64_, float: float32_, complex: complex64_}
_torch_to_thunder_dtype_map: Mapping[Any, dtype] = {
    torch.bool if d is bool8 else getattr(torch, d.full_name): d for d in _weak_of
}
_thunder_to_torch_dtype_map: Mapping[Any, torch.dtype] = {
    form: torch_dtype
    for torch_dtype, strong in _torch_to_thunder_dtype_map.items()
    for form in (strong, _weak_of[strong])
}
# bfloat16, the 4 and 8 bit floats and complex32 have no counterpart in numpy.
_numpy_to_thunder_dtype_map: Mapping[Any, dtype] = {
    np.dtype(np.bool_): bool8,
    np.dtype(np.uint8): uint8,
    np.dtype(np.uint16): uint16,
    np.dtype(np.uint32): uint32,
    np.dtype(np.uint64): uint64,
    np.dtype(np.int8): int8,
    np.dtype(np.int16): int16,
    np.dtype(np.int32): int32,
    np.dtype(np.int64): int64,
    np.dtype(np.float16): float16,
    np.dtype(np.float32): float32,
    np.dtype(np.float64): float64,
    np.dtype(np.complex64): complex64,
    np.dtype(np.complex128): complex128,
}
_thunder_to_numpy_dtype_map: Mapping[Any, np.dtype[Any]] = {
    d: numpy_dtype for numpy_dtype, d in _numpy_to_thunder_dtype_map.items()
}
_corresponding_complex: Mapping[dtype, dtype] = {
    float16: complex32,
    bfloat16: complex64,
    float32: complex64,
    float64: complex128,
}
_corresponding_real: Mapping[dtype, dtype] = {complex32: float16, complex64: float32, complex128: float64}

Dtype: TypeAlias = dtype | type
"""A thunder dtype or a number type."""


def _of_class(*classes: type[dtype]) -> frozenset[dtype]:
    return frozenset(d for d in all_dtypes if isinstance(d, classes))


all_dtypes: frozenset[dtype] = frozenset(_weak_of) | frozenset(_strong_of)
all_numbertypes: frozenset[Dtype] = frozenset(_numbertype_to_dtype_map)
all_dtypes_and_numbertypes: frozenset[Dtype] = all_dtypes | all_numbertypes
boolean_dtypes: frozenset[Dtype] = _of_class(bool_) | {bool}
nonboolean_integer_dtypes: frozenset[Dtype] = _of_class(signedinteger, unsignedinteger) | {int}
integer_dtypes: frozenset[Dtype] = boolean_dtypes | nonboolean_integer_dtypes
exact_dtypes: frozenset[Dtype] = integer_dtypes
float_dtypes: frozenset[Dtype] = _of_class(floating) | {float}
complex_dtypes: frozenset[Dtype] = _of_class(complexfloating) | {complex}
inexact_dtypes: frozenset[Dtype] = float_dtypes | complex_dtypes
float_8bit_dtypes: frozenset[Dtype] = frozenset(d for d in _of_class(floating) if d.full_name.startswith("float8"))
float_math_dtypes: frozenset[Dtype] = frozenset(
    {bfloat16, bfloat16_, float16, float16_, float32, float32_, float64, float64_}
)
low_precision_dtypes: frozenset[Dtype] = _of_class(floating) - {float32, float32_, float64, float64_} | {
    complex32,
    complex32_,
}
weak_dtypes: frozenset[Dtype] = frozenset(_strong_of) | all_numbertypes
strong_dtypes: frozenset[Dtype] = frozenset(_weak_of)


@overload
def to_dtype(x: None, /, *, true_dtype: bool = False) -> None: ...
@overload
def to_dtype(x: Any, /, *, true_dtype: bool = False) -> dtype: ...


def to_dtype(x: Any, /, *, true_dtype: bool = False) -> dtype | None:
    """The thunder dtype of `x`.

    Args:
        x: a dtype of thunder, torch or numpy, a number type, a number, an object with an attribute `dtype` (a tensor or
            tensor proxy) or `python_type` (a number proxy), or None.
        true_dtype: whether to ask an object for `true_dtype`, which tells weak from strong, before `dtype`.
    Returns: None for None, weak dtypes for numbers and number types.
    Raises: ThunderValueError for a dtype that thunder does not have, ThunderTypeError for any other object.
    """
    if x is None:
        return None
    if isinstance(x, dtype):
        return x
    if isinstance(x, torch.dtype):
        if (found := _torch_to_thunder_dtype_map.get(x)) is None:
            raise ThunderValueError(f"thunder has no counterpart of {x}")
        return found
    if isinstance(x, type):
        return _type_to_dtype(x)
    if isinstance(x, np.dtype):
        return _numpy_to_dtype(x)
    inner = getattr(x, "true_dtype", None) if true_dtype else None
    if inner is None and (inner := getattr(x, "dtype", None)) is None:
        inner = getattr(x, "python_type", None)
    if inner is not None:
        return _require(inner)
    for numbertype in (bool, int, float, complex):
        if isinstance(x, numbertype):
            return _numbertype_to_dtype_map[numbertype]
    raise ThunderTypeError(f"expected a dtype or an object that has one, but got {x!r} of type {type(x).__name__}")


def _type_to_dtype(cls: type) -> dtype:
    if (found := _numbertype_to_dtype_map.get(cls)) is not None:
        return found
    if issubclass(cls, np.generic):
        return _numpy_to_dtype(np.dtype(cls))
    raise ThunderTypeError(f"expected bool, int, float, complex or a dtype, but got the class {cls.__name__}")


def _numpy_to_dtype(x: np.dtype[Any]) -> dtype:
    if (found := _numpy_to_thunder_dtype_map.get(x)) is None:
        raise ThunderValueError(f"thunder has no counterpart of numpy.{x!r}")
    return found


def _require(x: Any) -> dtype:
    if x is None:
        raise ThunderTypeError("expected a dtype, but got None")
    found: dtype = to_dtype(x)
    return found


@overload
def to_torch_dtype(x: None, /) -> None: ...
@overload
def to_torch_dtype(x: Any, /) -> torch.dtype: ...


def to_torch_dtype(x: Any, /) -> torch.dtype | None:
    """The torch dtype of `x`, which may be anything that `to_dtype` takes; a torch dtype and None give themselves."""
    if isinstance(x, dtype):
        return _thunder_to_torch_dtype_map[x]
    if x is None or isinstance(x, torch.dtype):
        return x
    return _thunder_to_torch_dtype_map[_require(x)]


@overload
def to_numpy_dtype(x: None, /) -> None: ...
@overload
def to_numpy_dtype(x: Any, /) -> np.dtype[Any]: ...


def to_numpy_dtype(x: Any, /) -> np.dtype[Any] | None:
    """The numpy dtype of `x`, which may be anything that `to_dtype` takes; None for None. A numpy dtype gives itself.

    Raises: ThunderValueError if numpy has none: bfloat16, complex32, and the 4 and 8 bit floats.
    """
    if x is None or isinstance(x, np.dtype):
        return x
    if (found := _thunder_to_numpy_dtype_map.get(to_strong_dtype(_require(x)))) is None:
        raise ThunderValueError(f"numpy has no counterpart of {x}")
    return found


def to_weak_dtype(x: Any) -> Dtype:
    """The weak form of `x`; a number type, which is weak already, gives itself."""
    if isinstance(x, type) and x in all_numbertypes:
        return x
    found = _require(x)
    return _weak_of.get(found, found)


def to_strong_dtype(x: Any) -> dtype:
    """The strong form of `x`; int, for example, gives `int64`."""
    found = _require(x)
    return _strong_of.get(found, found)


def is_weak_dtype(x: Any) -> bool:
    """Whether `x` is a weak dtype or a number type."""
    return _require(x).is_weak


def has_subdtype(x: Any, cls: type[dtype]) -> bool:
    """Whether `x`, a dtype or an object with one, is of class `cls`, such as `floating`."""
    return isinstance(to_dtype(x), cls)


def resolve_dtypes(args: Iterable[Any]) -> set[dtype]:
    """The dtypes that `args` name: a class of dtypes stands for all its members, weak and strong."""
    result: set[dtype] = set()
    for arg in args:
        if isinstance(arg, type) and issubclass(arg, dtype):
            result |= _of_class(arg)
        else:
            result.add(_require(arg))
    return result


def corresponding_real_dtype(x: Any) -> Dtype:
    """The dtype of the parts of the complex `x`, as weak as `x`; complex gives float.

    Raises: ThunderValueError if `x` is not complex.
    """
    return float if x is complex else _corresponding(x, _corresponding_real, "complex")


def corresponding_complex_dtype(x: Any) -> Dtype:
    """The complex dtype whose parts are (at least) as wide as the real `x`, as weak as `x`; float gives complex.

    Raises: ThunderValueError if `x` is not a floating point dtype of 16, 32 or 64 bits.
    """
    return complex if x is float else _corresponding(x, _corresponding_complex, "floating point")


def _corresponding(x: Any, table: Mapping[dtype, dtype], kind: str) -> dtype:
    found = _require(x)
    if (result := table.get(_strong_of.get(found, found))) is None:
        raise ThunderValueError(f"expected a {kind} dtype with a counterpart, but got {x}")
    return _weak_of[result] if found.is_weak else result


def is_boolean_dtype(x: Any) -> bool:
    """Whether `x` is a boolean dtype or bool."""
    return isinstance(to_dtype(x), bool_)


def is_unsigned_dtype(x: Any) -> bool:
    """Whether `x` holds no negative numbers: unsigned integers and booleans."""
    return isinstance(to_dtype(x), (bool_, unsignedinteger))


def is_signedinteger_dtype(x: Any) -> bool:
    """Whether `x` is a signed integer dtype or int."""
    return isinstance(to_dtype(x), signedinteger)


def is_exact_dtype(x: Any) -> bool:
    """Whether `x` is a boolean or integer dtype, bool or int."""
    return isinstance(to_dtype(x), exact)


is_integer_dtype = is_exact_dtype
"""As `is_exact_dtype`: booleans count as integers here; see `is_nonboolean_integer_dtype`."""


def is_nonboolean_integer_dtype(x: Any) -> bool:
    """Whether `x` is an integer dtype other than boolean, or int."""
    return isinstance(to_dtype(x), (signedinteger, unsignedinteger))


def is_low_precision_dtype(x: Any) -> bool:
    """Whether arithmetic on `x` computes in a wider dtype: floats of at most 16 bits, and complex32."""
    return to_dtype(x) in low_precision_dtypes


def is_float_dtype(x: Any) -> bool:
    """Whether `x` is a real floating point dtype or float."""
    return isinstance(to_dtype(x), floating)


def is_complex_dtype(x: Any) -> bool:
    """Whether `x` is a complex dtype or complex."""
    return isinstance(to_dtype(x), complexfloating)


def is_inexact_dtype(x: Any) -> bool:
    """Whether `x` is a floating point or complex dtype, float or complex."""
    return isinstance(to_dtype(x), inexact)


def is_numbertype(x: Any) -> bool:
    """Whether `x` is one of the classes bool, int, float and complex."""
    return isinstance(x, type) and x in all_numbertypes


def is_dtype(x: Any) -> bool:
    """Whether `x` is a thunder dtype or a number type; torch's dtypes are not."""
    return isinstance(x, dtype) or is_numbertype(x)


def dtype_to_numbertype(x: Any) -> type:
    """The Python type of the elements of `x`; a number type gives itself."""
    return _require(x).python_type


def numbertype_to_dtype(x: Any) -> dtype:
    """The weak dtype that the number type `x` stands for; a dtype gives itself."""
    if not is_dtype(x):
        raise ThunderTypeError(f"expected bool, int, float or complex, but got {x!r}")
    return _require(x)


def are_same_dtypes(a: Any, b: Any, *, weak_and_strong_are_equivalent: bool = True) -> bool:
    """Whether `a` and `b` are the same dtype, of thunder or torch; a number type is the weak dtype it stands for."""
    if weak_and_strong_are_equivalent:
        return to_strong_dtype(a) is to_strong_dtype(b)
    return _require(a) is _require(b)
