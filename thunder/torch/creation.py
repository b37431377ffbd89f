"""Factories: tensors of given shape, or like another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.dims import extract_shape_from_varargs, to_device, to_dtype
from thunder.core.errors import NoDecompositionError
from thunder.core.promotion import common_dtype
from thunder.core.proxies import TensorProxy
from thunder.torch.op import Operation, op

# Arguments that say nothing about the values; others make a call opaque.
_IGNORED = {"layout": torch.strided, "pin_memory": False, "requires_grad": False, "memory_format": None, "out": None}


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        harmless = name == "memory_format" and value in (torch.preserve_format, torch.contiguous_format)
        if not harmless and (name not in _IGNORED or value not in (None, _IGNORED[name])):
            raise NoDecompositionError(f"the argument {name}={value!r}")


def _factory(name: str, fill: Any) -> Operation:
    def body(*size: Any, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
        if "size" in options:
            size = (options.pop("size"),)
        _check_options(options)
        shape = extract_shape_from_varargs(size)
        if fill is None:
            return prims.empty(shape, device=to_device(device), dtype=to_dtype(dtype))
        return clang.full(shape, fill, device=to_device(device), dtype=to_dtype(dtype))

    body.__name__ = body.__qualname__ = name
    values = "of undefined values" if fill is None else f"full of {fill}s"
    body.__doc__ = f"A tensor {values} of a shape given as one sequence or size by size."
    return op(getattr(torch, name))(body)


zeros, ones, empty = _factory("zeros", 0), _factory("ones", 1), _factory("empty", None)


@op(torch.full)
def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
    """A tensor full of a number, whose dtype it has by default."""
    _check_options(options)
    if isinstance(fill_value, TensorProxy):
        raise NoDecompositionError("a value held by a tensor")
    kind = common_dtype((fill_value,)) if dtype is None else to_dtype(dtype)
    return clang.full(extract_shape_from_varargs((size,)), fill_value, device=to_device(device), dtype=kind)


def _like(name: str, fill: Any) -> Operation:
    def body(input: TensorProxy, *, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
        _check_options(options)
        kind, place = to_dtype(dtype, input.dtype), to_device(device, input.device)
        if fill is None:
            return prims.empty(input.shape, device=place, dtype=kind)
        return clang.full(input.shape, fill, device=place, dtype=kind)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"A tensor of the shape, and by default of the dtype and device, of `input`, as `{name[:-5]}` makes."
    return op(getattr(torch, name))(body)


zeros_like, ones_like, empty_like = _like("zeros_like", 0), _like("ones_like", 1), _like("empty_like", None)


@op(torch.full_like)
def full_like(
    input: TensorProxy, fill_value: Any, *, dtype: Any = None, device: Any = None, **options: Any
) -> TensorProxy:
    """A tensor like `input` full of a number."""
    _check_options(options)
    if isinstance(fill_value, TensorProxy):
        raise NoDecompositionError("a value held by a tensor")
    place = to_device(device, input.device)
    return clang.full(input.shape, fill_value, device=place, dtype=to_dtype(dtype, input.dtype))


def _new(name: str, make: Callable) -> Operation:
    def body(self: TensorProxy, *size: Any, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
        if "size" in options:
            size = (options.pop("size"), *size)
        return make(self, size, to_dtype(dtype, self.dtype), to_device(device, self.device), options)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"`{name[4:]}` with the dtype and device of `self` by default."
    return op(getattr(torch.Tensor, name), samples=name)(body)


def _new_filled(fill: Any) -> Callable:
    def make(a: TensorProxy, size: tuple, dtype: Any, device: Any, options: dict) -> TensorProxy:
        _check_options(options)
        return clang.full(extract_shape_from_varargs(size), fill, device=device, dtype=dtype)

    return make


def _new_full(a: TensorProxy, size: tuple, dtype: Any, device: Any, options: dict) -> TensorProxy:
    value = options.pop("fill_value") if "fill_value" in options else size[1]
    _check_options(options)
    if isinstance(value, TensorProxy):
        raise NoDecompositionError("a value held by a tensor")
    return clang.full(tuple(size[0]), value, device=device, dtype=dtype)


def _new_empty(a: TensorProxy, size: tuple, dtype: Any, device: Any, options: dict) -> TensorProxy:
    _check_options(options)
    return prims.empty(extract_shape_from_varargs(size), device=device, dtype=dtype)


new_zeros, new_ones = _new("new_zeros", _new_filled(0)), _new("new_ones", _new_filled(1))
new_full, new_empty = _new("new_full", _new_full), _new("new_empty", _new_empty)


@op(torch.arange)
def arange(*args: Any, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
    """start (0), start + step (1), ... up to before `end`."""
    bounds = dict(zip(("end",) if len(args) == 1 else ("start", "end", "step"), args, strict=False))
    bounds |= {n: options.pop(n) for n in ("start", "end", "step") if n in options}
    _check_options(options)
    if any(isinstance(b, float) for b in bounds.values()):
        raise NoDecompositionError("a number of steps that rounding decides")
    kind = None if dtype is None else to_dtype(dtype)
    start, stop, step = bounds.get("start", 0), bounds["end"], bounds.get("step", 1)
    made = clang.arange(start=start, stop=stop, step=step, device=to_device(device), dtype=dtypes.int64)
    return made if kind in (None, dtypes.int64) else prims.convert_element_type(made, kind)


@op(torch.tensor)
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> TensorProxy:
    """A tensor of the numbers in nested sequences."""
    _check_options(options)
    if requires_grad:
        raise NoDecompositionError("a leaf that requires grad")
    return prims.tensor_from_sequence(data, dtype=None if dtype is None else to_dtype(dtype), device=to_device(device))
