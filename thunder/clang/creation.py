"""Functions that make tensors, and convolution, which takes what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.clang.utils import TensorLike, clangop, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.dims import to_device
from thunder.core.errors import ThunderRuntimeError
from thunder.core.promotion import common_dtype, get_numberlike_type, get_numberlike_value, is_numberlike


@clangop()
def arange(*, start: Any, step: Any, stop: Any, device: Any, dtype: Any = None) -> TensorLike:
    """start, start + step, ... up to before `stop`; by default int64 if all three are ints, else the default float."""
    start, step, stop = (get_numberlike_value(x) for x in (start, step, stop))
    check(step != 0, lambda: "arange: step must not be 0", ThunderRuntimeError)
    length = max(0, -((start - stop) // step))
    exact = all(get_numberlike_type(x) is int for x in (start, step, stop))
    if dtype is None:
        dtype = dtypes.int64 if exact else common_dtype((1.0,))
    length = length if exact else int(length)
    if exact:
        return prims.iota(length, start=start, step=step, device=to_device(device), dtype=dtypes.to_strong_dtype(dtype))
    steps = prims.iota(length, start=0, step=1, device=to_device(device), dtype=dtypes.int64)
    wide = prims.convert_element_type(steps, dtypes.float64)
    return maybe_convert_to_dtype(prims.add(prims.mul(wide, float(step)), float(start)), dtype)


@clangop()
def full(shape: Sequence[int], fill_value: Any, *, device: Any, dtype: Any = None) -> TensorLike:
    """A tensor full of a number, whose dtype it has unless one is given."""
    dtype = common_dtype((fill_value,)) if dtype is None else dtype
    value = maybe_convert_to_dtype(get_numberlike_value(fill_value), dtype)
    return prims.full(tuple(shape), value, device=to_device(device), dtype=dtypes.to_strong_dtype(dtype))


@clangop()
def full_like(a: Any, fill_value: Any, *, device: Any = None, dtype: Any = None) -> Any:
    """A tensor like `a` full of a number; the number itself where `a` is one."""
    if is_numberlike(a):
        return maybe_convert_to_dtype(fill_value, get_numberlike_type(a) if dtype is None else dtype)
    return full(a.shape, fill_value, device=device or a.device, dtype=dtype or a.dtype)


@clangop()
def empty(shape: Sequence[int], *, device: Any, dtype: Any) -> TensorLike:
    """A tensor of undefined values."""
    return prims.empty(tuple(shape), device=to_device(device), dtype=dtypes.to_strong_dtype(dtype))


@clangop()
def uniform(shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, *, device: Any, dtype: Any) -> TensorLike:
    """Random numbers from `minval` to below `maxval`."""
    return prims.uniform(tuple(shape), minval, maxval, device=to_device(device), dtype=dtypes.to_strong_dtype(dtype))


@clangop()
def uniform_like(
    a: TensorLike, minval: Any = 0.0, maxval: Any = 1.0, *, device: Any = None, dtype: Any = None
) -> TensorLike:
    """Random numbers in a tensor like `a`."""
    return uniform(a.shape, minval, maxval, device=device or a.device, dtype=dtype or a.dtype)


@clangop()
def uniform_philox(
    shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, *, device: Any, dtype: Any, seed: Any, offset: Any
) -> TensorLike:
    """Random numbers that depend on `seed` and `offset` alone."""
    return prims.uniform_philox(
        tuple(shape),
        minval,
        maxval,
        device=to_device(device),
        dtype=dtypes.to_strong_dtype(dtype),
        seed=seed,
        offset=offset,
    )


@clangop()
def tensor_from_sequence(sequence: Any, *, dtype: Any = None, device: Any = None) -> TensorLike:
    """A tensor of the numbers in nested sequences."""
    return prims.tensor_from_sequence(sequence, dtype=dtype, device=to_device(device))


@clangop()
def convolution(
    a: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorLike:
    """torch.convolution."""
    return prims.convolution(a, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@clangop()
def construct_tuple(tup: tuple, /) -> tuple:
    """The tuple itself: containers are no values of a trace."""
    return tuple(tup)
