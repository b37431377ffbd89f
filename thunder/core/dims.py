"""Dims, shapes and devices of operands: counting negative dims from the end, broadcasting, checks with clear errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import devices, dtypes
from thunder.core.baseutils import check
from thunder.core.errors import ThunderIndexError, ThunderRuntimeError, ThunderTypeError
from thunder.core.promotion import get_numberlike_value, is_numberlike
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.sizes import SYMBOLIC_TYPES
from thunder.core.torch_compat import guard_or_false, guard_or_true


def canonicalize_dim(rank: int, idx: int, wrap_scalar: bool = True) -> int:
    """The dim from 0 that `idx` means in a tensor of `rank` dims.

    Args:
        wrap_scalar: a tensor without dims takes 0 and -1 too.
    Raises: ThunderIndexError if there is no such dim.
    """
    if rank == 0 and wrap_scalar:
        rank = 1
    if not -rank <= idx < rank:
        allowed = f"from {-rank} to {rank - 1}" if rank else "none"
        raise ThunderIndexError(f"Dimension out of range: got {idx}, allowed are {allowed}")
    return idx + rank if idx < 0 else idx


def canonicalize_dims(rank: int, indices: Any, wrap_scalar: bool = True) -> Any:
    """`canonicalize_dim` of one dim, or of each in a sequence as a tuple."""
    if isinstance(indices, Sequence):
        return tuple(canonicalize_dim(rank, i, wrap_scalar) for i in indices)
    return canonicalize_dim(rank, indices, wrap_scalar)


def canonicalize_dim_idx(dim_length: int, idx: int) -> int:
    """The position from 0 that the index `idx` means in a dim of `dim_length` elements. Raises ThunderIndexError."""
    if not -dim_length <= idx < dim_length:
        raise ThunderIndexError(f"index {idx} is out of range for a dimension of size {dim_length}")
    return idx + dim_length if idx < 0 else idx


def validate_idx(rank: int, idx: int) -> None:
    """Raises ThunderIndexError unless `idx` is a dim from 0 of a tensor of `rank` dims."""
    check(0 <= idx < max(rank, 1), lambda: f"there is no dimension {idx} among {rank}", ThunderIndexError)


def check_no_duplicates(dims: Sequence) -> None:
    """Raises ThunderRuntimeError if a dim is named twice."""
    check(len(set(dims)) == len(dims), lambda: f"a dimension appears twice in {tuple(dims)}", ThunderRuntimeError)


def check_valid_permutation(rank: int, perm: Sequence[int]) -> None:
    """Raises ThunderRuntimeError unless `perm` names each dim from 0 to rank - 1 once."""
    check(
        sorted(perm) == list(range(rank)),
        lambda: f"{tuple(perm)} is no permutation of {rank} dimensions",
        ThunderRuntimeError,
    )


def same_shape(a: Sequence[int], b: Sequence[int], /) -> bool:
    """Whether two shapes are known to be equal."""
    return len(a) == len(b) and all(guard_or_false(x == y) for x, y in zip(a, b, strict=True))


def may_be_same_shape(a: Sequence[int], b: Sequence[int], /) -> bool:
    """Whether two shapes are equal, or may be: sizes that depend on values are not known before the program runs."""
    return len(a) == len(b) and all(guard_or_true(x == y) for x, y in zip(a, b, strict=True))


def is_cpu_scalar_tensor(a: Any, /) -> bool:
    """Whether `a` is a tensor without dims on the CPU, which may be combined with tensors of any device and shape."""
    return isinstance(a, TensorProxy) and a.ndim == 0 and a.device.devicetype == devices.DeviceType.CPU


def is_numbertensor(t: Any) -> bool:
    """Whether `t` is a tensor without dims."""
    return isinstance(t, TensorProxy) and t.ndim == 0


def _compared(args: Sequence[Any], skip_scalars: bool) -> list[TensorProxy]:
    tensors = [a for a in args if isinstance(a, TensorProxy)]
    kept = [a for a in tensors if not (skip_scalars and is_cpu_scalar_tensor(a))]
    return kept or tensors


def check_same_shape(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> None:
    """Raises ThunderRuntimeError if two of the tensors in `args` differ in shape; other values are ignored."""
    tensors = _compared(args, treat_cpu_scalar_tensors_as_numbers)
    for a in tensors[1:]:
        first = tensors[0]
        if not may_be_same_shape(first.shape, a.shape):
            raise ThunderRuntimeError(f"the shapes {first.shape} and {a.shape} of {first.name} and {a.name} differ")


def check_same_device(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> None:
    """Raises ThunderRuntimeError if two of the tensors in `args` are on different devices."""
    tensors = _compared(args, treat_cpu_scalar_tensors_as_numbers)
    for a in tensors[1:]:
        first = tensors[0]
        if first.device != a.device:
            raise ThunderRuntimeError(
                f"{first.name} is on {first.device.device_str()}, but {a.name} on {a.device.device_str()}"
            )


def check_same_dtype(*args: Any) -> tuple[type | None, Any]:
    """Raises ThunderRuntimeError if two of the tensors in `args` differ in dtype.

    Returns: (type of the first number or None, dtype of the tensors or None).
    """
    tensors = [a for a in args if isinstance(a, TensorProxy)]
    numbers = [a for a in args if is_numberlike(a)]
    for a in tensors[1:]:
        if a.dtype is not tensors[0].dtype:
            raise ThunderRuntimeError(
                f"the dtypes {tensors[0].dtype} and {a.dtype} of {tensors[0].name} and {a.name} differ"
            )
    number_type = None
    if numbers:
        value = numbers[0]
        number_type = value.python_type if isinstance(value, NumberProxy) else type(value)
    return number_type, tensors[0].dtype if tensors else None


def result_device(*args: Any) -> devices.Device:
    """The device of an operation's result: the tensors' own, where CPU scalars count only among themselves."""
    tensors = _compared(args, True)
    if not tensors:
        raise ThunderTypeError("there is no tensor among the arguments")
    check_same_device(*args)
    return tensors[0].device


def extract_shape_from_varargs(shape: Any) -> tuple:
    """A shape given as one sequence or as separate sizes: `((2, 3),)` and `(2, 3)` both give (2, 3)."""
    if isinstance(shape, (int, NumberProxy, *SYMBOLIC_TYPES)):
        return (get_numberlike_value(shape),)
    if len(shape) == 1 and isinstance(shape[0], Sequence) and not isinstance(shape[0], str):
        shape = shape[0]
    return tuple(get_numberlike_value(s) for s in shape)


def compute_broadcast_shape(*_shapes: Sequence[int] | None) -> tuple | None:
    """The shape that all given ones broadcast to, None where none is given.

    Raises: ThunderRuntimeError if two sizes of a dim differ and neither is 1.
    """
    shapes = [tuple(s) for s in _shapes if s is not None]
    if not shapes:
        return None
    rank = max(len(s) for s in shapes)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for position, size in enumerate(shape, start=rank - len(shape)):
            known = result[position]
            if size is known or (isinstance(size, int) and size == 1):
                continue
            if isinstance(known, int) and known == 1:
                result[position] = size
            elif size != known:
                if size == 1:
                    continue
                if known != 1:
                    raise ThunderRuntimeError(f"the shapes {', '.join(map(str, shapes))} do not broadcast together")
                result[position] = size
    return tuple(result)


def numel(shape: Sequence[Any]) -> Any:
    """The number of elements of a shape."""
    n: Any = 1
    for size in shape:
        n = n * size
    return n


def infer_minus_one(shape: Sequence[Any], count: Any) -> tuple:
    """A shape of `count` elements with its -1, if any, replaced by what is left.

    Raises: ThunderRuntimeError if there is more than one -1, or the number of elements differs.
    """
    unknown = [n for n, size in enumerate(shape) if isinstance(size, int) and size == -1]
    check(len(unknown) <= 1, lambda: "only one dimension can be inferred", ThunderRuntimeError)
    if not unknown:
        check(
            numel(shape) == count,
            lambda: f"shape '{list(shape)}' is invalid for input of size {count}",
            ThunderRuntimeError,
        )
        return tuple(shape)
    rest = numel([s for n, s in enumerate(shape) if n != unknown[0]])
    check(
        rest != 0 and count % rest == 0,
        lambda: f"shape '{list(shape)}' is invalid for input of size {count}",
        ThunderRuntimeError,
    )
    return tuple(count // rest if n == unknown[0] else s for n, s in enumerate(shape))


def to_device(device: Any, default: devices.Device | None = None) -> devices.Device:
    """A device from what torch accepts for one; None gives `default`, or torch's default device."""
    if device is None:
        return default if default is not None else devices.to_device(torch.get_default_device())
    return devices.to_device(device)


def to_dtype(dtype: Any, default: Any = None) -> dtypes.dtype:
    """A strong dtype from what torch's `dtype=` accepts (where `float` means float64); None gives `default`."""
    if dtype is None:
        dtype = torch.get_default_dtype() if default is None else default
    if dtype in (float, complex):
        return dtypes.float64 if dtype is float else dtypes.complex128
    return dtypes.to_strong_dtype(dtype)
