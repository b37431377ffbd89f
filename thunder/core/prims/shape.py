"""Primitives that move, repeat or drop elements, and those that change dtype or device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import devices, dtypes
from thunder.core.baseutils import check
from thunder.core.dims import (
    canonicalize_dim,
    check_no_duplicates,
    check_same_device,
    check_same_dtype,
    check_valid_permutation,
    numel,
)
from thunder.core.errors import ThunderRuntimeError, ThunderTypeError, ThunderValueError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.promotion import const_as, is_numberlike
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import OpTags, Traits
from thunder.core.torch_compat import guard_or_false, guard_or_true
from thunder.core.tracing import get_tracectx

_SHAPE = (OpTags.SHAPE_OP,)


def _broadcast_meta(a: TensorProxy, /, shape: Sequence[Any], broadcast_dimensions: Sequence[int]) -> TensorProxy:
    check(
        len(broadcast_dimensions) == a.ndim and list(broadcast_dimensions) == sorted(set(broadcast_dimensions)),
        lambda: f"broadcast_in_dim: {broadcast_dimensions} must be ascending, one for each dim of {a.shape}",
        ThunderRuntimeError,
    )
    for size, d in zip(a.shape, broadcast_dimensions, strict=True):
        check(
            guard_or_false(size == 1) or guard_or_true(size == shape[d]),
            lambda: f"broadcast_in_dim: the shape {a.shape} does not broadcast to {tuple(shape)}",
            ThunderRuntimeError,
        )
    return new_tensor(shape, like=a)


def _broadcast_in_dim(a: torch.Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> torch.Tensor:
    present = set(broadcast_dimensions)
    for d in range(len(shape)):
        if d not in present:
            a = a.unsqueeze(d)
    return a.expand(tuple(shape))


broadcast_in_dim = make_prim(
    "BROADCAST_IN_DIM", "broadcast_in_dim", meta=_broadcast_meta, torch_fn=_broadcast_in_dim, tags=_SHAPE
)


def _cat_meta(tensors: Sequence[TensorProxy], /, dim: int) -> TensorProxy:
    check(bool(tensors), lambda: "cat: there is nothing to join", ThunderRuntimeError)
    check_same_device(*tensors, treat_cpu_scalar_tensors_as_numbers=False)
    check_same_dtype(*tensors)
    first = tensors[0]
    dim = canonicalize_dim(first.ndim, dim)
    length: Any = 0
    for t in tensors:
        same = t.ndim == first.ndim and all(
            guard_or_true(x == y) for n, (x, y) in enumerate(zip(t.shape, first.shape, strict=False)) if n != dim
        )
        if not same:
            raise ThunderRuntimeError(f"cat: the shapes {first.shape} and {t.shape} differ outside dim {dim}")
        length = length + t.shape[dim]
    return new_tensor((*first.shape[:dim], length, *first.shape[dim + 1 :]), like=first)


cat = make_prim("CAT", "cat", meta=_cat_meta, torch_fn=torch.cat)


def _flip_meta(a: TensorProxy, /, dims: Sequence[int]) -> TensorProxy:
    check_no_duplicates([canonicalize_dim(a.ndim, d) for d in dims])
    return new_tensor(a.shape, like=a)


flip = make_prim("FLIP", "flip", meta=_flip_meta, torch_fn=torch.flip)


def _reshape_meta(a: TensorProxy, /, shape: Sequence[Any]) -> TensorProxy:
    check(
        guard_or_true(numel(shape) == numel(a.shape)),
        lambda: f"the shape {tuple(shape)} has not as many elements as {a.shape}",
        ThunderRuntimeError,
    )
    return new_tensor(shape, like=a)


reshape = make_prim("RESHAPE", "reshape", meta=_reshape_meta, torch_fn=torch.reshape, tags=_SHAPE)


def _view(a: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return a.view(tuple(shape))


view = make_prim("VIEW", "view", meta=_reshape_meta, torch_fn=_view, tags=_SHAPE)


def _slice_meta(
    a: TensorProxy, /, start_indices: Sequence[Any], end_indices: Sequence[Any], strides: Sequence[int] | None = None
) -> TensorProxy:
    steps = [1] * a.ndim if strides is None else list(strides)
    check(
        len(start_indices) == len(end_indices) == len(steps) == a.ndim,
        lambda: f"slice: starts, ends and strides must be {a.ndim} each",
        ThunderRuntimeError,
    )
    shape = []
    for size, start, end, step in zip(a.shape, start_indices, end_indices, steps, strict=True):
        if not (step > 0 and all(guard_or_true(c) for c in (start >= 0, start <= end, end <= size))):
            raise ThunderRuntimeError(f"slice: {(start, end, step)} does not lie in a dimension of {size}")
        shape.append(end - start if step == 1 else (end - start + step - 1) // step)
    return new_tensor(shape, like=a)


def _slice(
    a: torch.Tensor, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int] | None = None
) -> torch.Tensor:
    steps = [1] * a.ndim if strides is None else strides
    key = tuple(slice(s, e, step) for s, e, step in zip(start_indices, end_indices, steps, strict=True))
    return a[key] if key else a.view(a.shape)


slice_prim = make_prim("SLICE", "slice_prim", meta=_slice_meta, torch_fn=_slice, tags=_SHAPE)


def _squeeze_meta(a: TensorProxy, /, dims: Sequence[int]) -> TensorProxy:
    check_no_duplicates(dims)
    for d in dims:
        if not guard_or_true(a.shape[d] == 1):
            raise ThunderRuntimeError(f"squeeze: dim {d} of {a.shape} is not 1")
    return new_tensor([s for n, s in enumerate(a.shape) if n not in set(dims)], like=a)


def _squeeze(a: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return torch.squeeze(a, tuple(dims)) if dims else a.view(a.shape)


squeeze = make_prim("SQUEEZE", "squeeze", meta=_squeeze_meta, torch_fn=_squeeze, tags=_SHAPE)


def _transpose_meta(a: TensorProxy, /, permutation: Sequence[int]) -> TensorProxy:
    check_valid_permutation(a.ndim, permutation)
    return new_tensor([a.shape[p] for p in permutation], like=a)


transpose = make_prim("TRANSPOSE", "transpose", meta=_transpose_meta, torch_fn=torch.permute, tags=_SHAPE)


def _unfold_meta(a: TensorProxy, /, dim: int, size: int, step: int) -> TensorProxy:
    dim = canonicalize_dim(a.ndim, dim)
    length = a.shape[dim] if a.ndim else 1
    check(
        size >= 0 and guard_or_true(size <= length) and step > 0,
        lambda: f"unfold: windows of {size} with step {step} in a dimension of {length}",
        ThunderRuntimeError,
    )
    windows = (length - size) // step + 1
    shape = [windows if n == dim else s for n, s in enumerate(a.shape)]
    return new_tensor([*shape, size], like=a)


def _unfold(a: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    return a.unfold(dim, size, step)


unfold = make_prim("UNFOLD", "unfold", meta=_unfold_meta, torch_fn=_unfold, tags=_SHAPE)


def _stride_order_meta(a: TensorProxy, /, order: Sequence[int]) -> TensorProxy:
    check_valid_permutation(a.ndim, order)
    return new_tensor(a.shape, like=a)


def _stride_order(a: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    strides, step = [0] * a.ndim, 1
    for d in sorted(range(a.ndim), key=lambda d: order[d]):
        strides[d] = step
        step *= max(a.shape[d], 1)
    return (
        a
        if a.stride() == tuple(strides)
        else torch.empty_strided(a.shape, strides, dtype=a.dtype, device=a.device).copy_(a)
    )


stride_order = make_prim("STRIDE_ORDER", "stride_order", meta=_stride_order_meta, torch_fn=_stride_order, tags=_SHAPE)


def _pad_meta(a: TensorProxy, /, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> TensorProxy:
    check(
        len(padding_config) == a.ndim,
        lambda: f"pad: {len(padding_config)} paddings for {a.ndim} dims",
        ThunderRuntimeError,
    )
    shape = []
    for size, (low, high, interior) in zip(a.shape, padding_config, strict=True):
        length = low + high + size + (interior * (size - 1) if interior and size > 0 else 0)
        if not guard_or_true(length >= 0):
            raise ThunderRuntimeError(f"pad: a dimension would get {length} elements")
        shape.append(length)
    return new_tensor(shape, like=a)


def _pad(a: torch.Tensor, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    if any(interior for _, _, interior in padding_config):
        shape = [s + interior * max(s - 1, 0) for s, (_, _, interior) in zip(a.shape, padding_config, strict=True)]
        spread = torch.full(shape, padding_value, dtype=a.dtype, device=a.device)
        spread[tuple(slice(None, None, interior + 1) for _, _, interior in padding_config)] = a
        a = spread
    widths = [w for low, high, _ in reversed(padding_config) for w in (low, high)]
    return torch.constant_pad_nd(a, widths, padding_value)


pad = make_prim("PAD", "pad", meta=_pad_meta, torch_fn=_pad)


def _convert_meta(a: Any, /, dtype: Any) -> Any:
    if is_numberlike(a):
        return const_as(a, dtype)
    return new_tensor(a.shape, like=a, dtype=dtypes.to_strong_dtype(dtype))


def _convert_element_type(a: Any, dtype: Any) -> Any:
    if not isinstance(a, torch.Tensor):
        return const_as(a, dtype)
    return a.to(dtypes.to_torch_dtype(dtype))


convert_element_type = make_prim(
    "CONVERT_ELEMENT_TYPE", "convert_element_type", meta=_convert_meta, torch_fn=_convert_element_type
)


def _device_put(a: torch.Tensor, device: Any) -> torch.Tensor:
    return a.to(devices.to_torch_device(device))


device_put = make_prim(
    "DEVICE_PUT", "device_put", meta=lambda a, /, device: new_tensor(a.shape, like=a, device=devices.to_device(device)),
    torch_fn=_device_put,
)  # fmt: skip


def _bitcast_meta(src: TensorProxy, dtype: Any) -> TensorProxy:
    wanted = dtypes.to_strong_dtype(dtype)
    if src.dtype.bytes == wanted.bytes:
        return new_tensor(src.shape, like=src, dtype=wanted)
    check(src.ndim > 0, lambda: "bitcast to another size takes a tensor with dims", ThunderRuntimeError)
    last = src.shape[-1] * src.dtype.bytes
    check(
        last % wanted.bytes == 0, lambda: f"bitcast: {last} bytes hold no whole number of {wanted}", ThunderRuntimeError
    )
    return new_tensor((*src.shape[:-1], last // wanted.bytes), like=src, dtype=wanted)


def _bitcast(src: torch.Tensor, dtype: Any) -> torch.Tensor:
    return src.view(dtypes.to_torch_dtype(dtype))


bitcast = make_prim("BITCAST", "bitcast", meta=_bitcast_meta, torch_fn=_bitcast)


def _item_meta(a: TensorProxy, /) -> NumberProxy:
    if not all(s == 1 for s in a.shape):
        raise ThunderValueError(f"item() of a tensor of shape {a.shape}: it must have one element")
    python_type = dtypes.dtype_to_numbertype(a.dtype)
    return NumberProxy(get_tracectx().make_name(prefix="n"), python_type=python_type)


item = make_prim(
    "ITEM", "item", meta=_item_meta, torch_fn=torch.Tensor.item, tags=(OpTags.DEVICE_SYNC_OP,),
    traits=Traits(is_barrier=True, is_differentiable=False),
)  # fmt: skip


def _clone_meta(a: TensorProxy, **kwargs: Any) -> TensorProxy:
    unknown = set(kwargs) - {"memory_format"}
    if unknown:
        raise ThunderTypeError(f"clone has no argument {sorted(unknown)[0]!r}")
    return new_tensor(a.shape, like=a)


clone = make_prim("CLONE", "clone", meta=_clone_meta, torch_fn=torch.clone)
