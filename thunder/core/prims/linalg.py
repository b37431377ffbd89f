"""Matrix products, convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.baseutils import check
from thunder.core.dims import check_same_device, check_same_dtype, compute_broadcast_shape
from thunder.core.errors import ThunderRuntimeError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags

_TAGS = (OpTags.MATMUL_OP, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD)


def _operands(*tensors: TensorProxy | None) -> None:
    given = [t for t in tensors if t is not None]
    check_same_device(*given, treat_cpu_scalar_tensors_as_numbers=False)
    check_same_dtype(*given)


def matmul_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple:
    """The shape of a matrix product, batch dims broadcast. Raises ThunderRuntimeError where the operands do not fit."""
    check(len(a) > 0 and len(b) > 0, lambda: "matmul: both arguments need at least one dim", ThunderRuntimeError)
    inner_b = b[0] if len(b) == 1 else b[-2]
    check(
        a[-1] == inner_b,
        lambda: f"mat1 and mat2 shapes cannot be multiplied ({tuple(a)} and {tuple(b)})",
        ThunderRuntimeError,
    )
    rows = () if len(a) == 1 else (a[-2],)
    columns = () if len(b) == 1 else (b[-1],)
    return (*(compute_broadcast_shape(a[:-2], b[:-2]) or ()), *rows, *columns)


def _matmul_meta(a: TensorProxy, b: TensorProxy, /) -> TensorProxy:
    _operands(a, b)
    return new_tensor(matmul_shape(a.shape, b.shape), like=a)


matmul = make_prim("MATMUL", "matmul", meta=_matmul_meta, torch_fn=torch.matmul, tags=_TAGS)


def _linear_meta(a: TensorProxy, w: TensorProxy, bias: TensorProxy | None) -> TensorProxy:
    _operands(a, w, bias)
    check(w.ndim in (1, 2), lambda: f"linear: the weight has {w.ndim} dims", ThunderRuntimeError)
    shape = matmul_shape(a.shape, (w.shape[1], w.shape[0]) if w.ndim == 2 else w.shape)
    if bias is not None:
        check(
            compute_broadcast_shape(shape, bias.shape) == shape,
            lambda: f"linear: a bias of shape {bias.shape} does not fit a result of shape {shape}",
            ThunderRuntimeError,
        )
    return new_tensor(shape, like=a)


linear = make_prim("LINEAR", "linear", meta=_linear_meta, torch_fn=torch.nn.functional.linear, tags=_TAGS)


def _grouped_mm_meta(a: TensorProxy, b: TensorProxy, offsets: TensorProxy) -> TensorProxy:
    _operands(a, b)
    groups = offsets.shape[0]
    if a.ndim == 2 and b.ndim == 2:
        return new_tensor((groups, a.shape[0], b.shape[1]), like=a)
    if a.ndim == 2:
        return new_tensor((a.shape[0], b.shape[2]), like=a)
    check(b.ndim == 2, lambda: "grouped_mm: at most one argument has groups of its own", ThunderRuntimeError)
    return new_tensor((a.shape[1], b.shape[1]), like=a)


_grouped_mm = make_prim(
    "_GROUPED_MM", "_grouped_mm", meta=_grouped_mm_meta, torch_fn=getattr(torch, "_grouped_mm", None), tags=_TAGS
)


def convolution_shape(
    a: Sequence[Any],
    weight: Sequence[Any],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple:
    """The shape of a convolution of (N, C, *spatial) with (out, in/groups, *kernel), or (in, out/groups, *kernel)."""
    channels = weight[1] * groups if transposed else weight[0]
    expected = weight[0] if transposed else weight[1] * groups
    check(
        a[1] == expected,
        lambda: f"convolution: {a[1]} input channels, the weight takes {expected}",
        ThunderRuntimeError,
    )
    sizes = []
    for size, kernel, s, p, d, extra in zip(a[2:], weight[2:], stride, padding, dilation, output_padding, strict=True):
        if transposed:
            sizes.append((size - 1) * s - 2 * p + d * (kernel - 1) + extra + 1)
        else:
            sizes.append((size + 2 * p - d * (kernel - 1) - 1) // s + 1)
    check(all(n >= 0 for n in sizes), lambda: "convolution: the kernel is larger than the input", ThunderRuntimeError)
    return (a[0], channels, *sizes)


def _convolution_meta(
    a: TensorProxy,
    /,
    weight: TensorProxy,
    bias: TensorProxy | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorProxy:
    _operands(a, weight, bias)
    shape = convolution_shape(
        a.shape, weight.shape, stride, padding, dilation, bool(transposed), output_padding, groups
    )
    return new_tensor(shape, like=a)


convolution = make_prim("CONVOLUTION", "convolution", meta=_convolution_meta, torch_fn=torch.convolution)
