"""Primitives that make tensors without reading any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import devices, dtypes
from thunder.core.baseutils import check, check_valid_shape
from thunder.core.errors import ThunderRuntimeError, ThunderTypeError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.promotion import get_numberlike_type, is_numberlike
from thunder.core.proxies import TensorProxy
from thunder.core.sizes import SYMBOLIC_TYPES
from thunder.core.symbol import Traits

_CONSTANT = Traits(is_differentiable=False)


def _shaped(shape: Sequence[Any], device: Any, dtype: Any) -> TensorProxy:
    check_valid_shape(tuple(0 if isinstance(s, SYMBOLIC_TYPES) else s for s in shape))
    return new_tensor(shape, device=devices.to_device(device), dtype=dtypes.to_strong_dtype(dtype))


def _full_meta(shape: Sequence[Any], fill_value: Any, *, device: Any, dtype: Any) -> TensorProxy:
    check(is_numberlike(fill_value), lambda: f"full takes a number, not {fill_value!r}", ThunderTypeError)
    return _shaped(shape, device, dtype)


def _full(shape: Sequence[int], fill_value: Any, *, device: Any, dtype: Any) -> torch.Tensor:
    return torch.full(
        tuple(shape), fill_value, device=devices.to_torch_device(device), dtype=dtypes.to_torch_dtype(dtype)
    )


full = make_prim("FULL", "full", meta=_full_meta, torch_fn=_full, traits=_CONSTANT)


def _iota_meta(length: Any, *, start: Any, step: Any, device: Any, dtype: Any) -> TensorProxy:
    for name, value in (("length", length), ("start", start), ("step", step)):
        if get_numberlike_type(value) is not int:
            raise ThunderTypeError(f"iota: {name} must be an int")
    check(length >= 0, lambda: f"iota: the length {length} is negative", ThunderRuntimeError)
    return _shaped((length,), device, dtype)


def _iota(length: int, *, start: int, step: int, device: Any, dtype: Any) -> torch.Tensor:
    kind, where = dtypes.to_torch_dtype(dtype), devices.to_torch_device(device)
    if step == 0:
        return torch.full((length,), start, dtype=kind, device=where)
    return torch.arange(start, start + length * step, step, dtype=kind, device=where)


iota = make_prim("IOTA", "iota", meta=_iota_meta, torch_fn=_iota, traits=_CONSTANT)


def _empty_meta(shape: Sequence[Any], *, device: Any, dtype: Any) -> TensorProxy:
    return _shaped(shape, device, dtype)


def _empty(shape: Sequence[int], *, device: Any, dtype: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), device=devices.to_torch_device(device), dtype=dtypes.to_torch_dtype(dtype))


empty = make_prim("EMPTY", "empty", meta=_empty_meta, torch_fn=_empty, traits=_CONSTANT)


def sequence_shape(seq: Any) -> tuple[int, ...]:
    """The shape of nested sequences. Raises ThunderTypeError where they are ragged."""
    if not isinstance(seq, Sequence):
        return ()
    inner = [sequence_shape(s) for s in seq]
    check(all(s == inner[0] for s in inner), lambda: "the sequence is ragged", ThunderTypeError)
    return (len(seq), *(inner[0] if inner else ()))


def _number_types(seq: Any) -> set[type]:
    if isinstance(seq, Sequence):
        return set().union(*(_number_types(s) for s in seq))
    return {get_numberlike_type(seq)}


def _sequence_dtype(seq: Any) -> dtypes.dtype:
    found = _number_types(seq)
    default = torch.get_default_dtype()
    if not found or (float in found and complex not in found):
        return dtypes.to_dtype(default)
    if complex in found:
        return dtypes.to_dtype(dtypes.corresponding_complex_dtype(dtypes.to_dtype(default)))
    return dtypes.int64 if int in found else dtypes.bool8


def _from_sequence_meta(seq: Any, *, dtype: Any, device: Any) -> TensorProxy:
    return _shaped(sequence_shape(seq), device, _sequence_dtype(seq) if dtype is None else dtype)


def _from_sequence(seq: Any, *, dtype: Any, device: Any) -> torch.Tensor:
    return torch.tensor(seq, dtype=dtypes.to_torch_dtype(dtype), device=devices.to_torch_device(device))


tensor_from_sequence = make_prim(
    "TENSOR_FROM_SEQUENCE", "tensor_from_sequence", meta=_from_sequence_meta, torch_fn=_from_sequence, traits=_CONSTANT
)
exogenous_like = make_prim(
    "EXOGENOUS_LIKE", "exogenous_like", meta=lambda likes, /: tuple(new_tensor(t.shape, like=t) for t in likes),
    torch_fn=lambda likes: tuple(torch.zeros_like(t) for t in likes),
)  # fmt: skip
