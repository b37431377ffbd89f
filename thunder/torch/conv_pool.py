"""Convolutions and poolings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder import clang
from thunder.core import prims
from thunder.core.baseutils import check
from thunder.core.dims import numel
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError, ThunderValueError
from thunder.core.proxies import TensorProxy
from thunder.torch.op import Operation, op


def _each_dim(value: Any, count: int) -> tuple:
    if isinstance(value, int):
        return (value,) * count
    values = tuple(value)
    return values * count if len(values) == 1 else values


def _same_padding(kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    """(low, high) of each dim, so that the result has the input's size."""
    check(
        all(s == 1 for s in stride),
        lambda: "padding='same' is not supported for strided convolutions",
        ThunderRuntimeError,
    )
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in totals]


def _convolve(
    a: TensorProxy, weight: TensorProxy, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, rank: int
) -> TensorProxy:
    batched = a.ndim == rank + 2
    check(batched or a.ndim == rank + 1, lambda: f"conv{rank}d: an input of {a.ndim} dims", ThunderRuntimeError)
    a = a if batched else clang.unsqueeze(a, 0)
    stride, dilation = _each_dim(stride, rank), _each_dim(dilation, rank)
    if padding == "same":
        pairs = _same_padding(weight.shape[2:], dilation, stride)
        if any(low != high for low, high in pairs):
            a = clang.pad(a, 0, ((0, 0, 0), (0, 0, 0), *((0, high - low, 0) for low, high in pairs)))
        padding = tuple(low for low, _ in pairs)
    elif padding == "valid":
        padding = 0
    elif isinstance(padding, str):
        raise ThunderValueError(f"Invalid padding string: {padding!r}")
    padding = _each_dim(padding, rank)
    out = prims.convolution(a, weight, bias, stride, padding, dilation, False, (0,) * rank, groups)
    return out if batched else clang.squeeze(out, 0)


def _conv(rank: int) -> Operation:
    def body(
        input: TensorProxy,
        weight: TensorProxy,
        bias: TensorProxy | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> TensorProxy:
        return _convolve(input, weight, bias, stride, padding, dilation, groups, rank)

    name = f"conv{rank}d"
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"The convolution over {rank} dims of (N, C, ...), or (C, ...), with (out, C / groups, ...)."
    return op(getattr(F, name), samples=f"nn.functional.{name}")(body)


conv1d, conv2d, conv3d = _conv(1), _conv(2), _conv(3)


@op(torch.convolution)
def convolution(
    input: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorProxy:
    """The general convolution of (N, C, ...)."""
    rank = input.ndim - 2
    spread = [_each_dim(v, rank) for v in (stride, padding, dilation, output_padding)]
    return prims.convolution(input, weight, bias, *spread[:3], transposed, spread[3], groups)


def _conv_transpose(rank: int) -> Operation:
    def body(
        input: TensorProxy,
        weight: TensorProxy,
        bias: TensorProxy | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> TensorProxy:
        batched = input.ndim == rank + 2
        a = input if batched else clang.unsqueeze(input, 0)
        stride, padding, output_padding, dilation = (
            _each_dim(v, rank) for v in (stride, padding, output_padding, dilation)
        )
        out = prims.convolution(a, weight, bias, stride, padding, dilation, True, output_padding, groups)
        return out if batched else clang.squeeze(out, 0)

    name = f"conv_transpose{rank}d"
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"The gradient of a convolution over {rank} dims as an operation."
    return op(getattr(F, name), samples=f"nn.functional.{name}")(body)


conv_transpose1d, conv_transpose2d, conv_transpose3d = (_conv_transpose(n) for n in (1, 2, 3))


def _windows(
    a: TensorProxy,
    kernel: Sequence[int],
    stride: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    fill: Any,
) -> TensorProxy:
    """All windows over the last dims of `a`, padded by `low` and `high`: the windows' own dims come last."""
    rank = len(kernel)
    if any((*low, *high)):
        pairs = ((lo, hi, 0) for lo, hi in zip(low, high, strict=True))
        a = clang.pad(a, fill, (*((0, 0, 0),) * (a.ndim - rank), *pairs))
    first = a.ndim - rank
    for n in range(rank):
        a = clang.unfold(a, first + n, kernel[n], stride[n])
    return a


def _check_window(a: TensorProxy, kernel: Sequence[int], padding: Sequence[int]) -> None:
    for k, p in zip(kernel, padding, strict=True):
        check(p <= k // 2, lambda: "pad should be at most half of effective kernel size", ThunderRuntimeError)
    check(a.dtype.python_type is float, lambda: f"pooling of {a.dtype}", NoDecompositionError)


def _beyond(a: TensorProxy, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """With ceil_mode, how far the last windows reach over the padded end; they begin inside the input or its padding.
    """
    found = []
    for size, k, s, p in zip(a.shape[a.ndim - len(kernel) :], kernel, stride, padding, strict=True):
        count = -(-(size + 2 * p - k) // s) + 1
        if (count - 1) * s >= size + p:
            count -= 1
        found.append(max(0, (count - 1) * s + k - size - 2 * p))
    return found


def _avg_pool(rank: int, make_body: Callable) -> Operation:
    name = f"avg_pool{rank}d"
    body = make_body(rank)
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"The means of windows over the last {rank} dims."
    return op(getattr(F, name), samples=f"nn.functional.{name}")(body)


def _sums(windows: TensorProxy, rank: int) -> TensorProxy:
    return prims.sum(windows, tuple(range(windows.ndim - rank, windows.ndim)))


def _avg_body(rank: int) -> Callable:
    def body(
        input: TensorProxy,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorProxy:
        kernel, padding = _each_dim(kernel_size, rank), _each_dim(padding, rank)
        stride = kernel if stride is None or stride == () or stride == [] else _each_dim(stride, rank)
        _check_window(input, kernel, padding)
        beyond = _beyond(input, kernel, stride, padding) if ceil_mode else [0] * rank
        high = [p + extra for p, extra in zip(padding, beyond, strict=True)]
        total = _sums(_windows(input, kernel, stride, padding, high, 0.0), rank)
        if divisor_override is not None:
            return clang.true_divide(total, divisor_override)
        if not any(beyond) and (count_include_pad or not any(padding)):
            return clang.true_divide(total, numel(kernel))
        # How many elements each window counts: those of the input, and of its padding if that is included.
        ones = clang.full(input.shape[input.ndim - rank :], 1.0, device=input.device, dtype=input.dtype)
        if count_include_pad and any(padding):
            ones = clang.pad(ones, 1.0, tuple((p, p, 0) for p in padding))
            counts = _windows(ones, kernel, stride, (0,) * rank, beyond, 0.0)
        else:
            counts = _windows(ones, kernel, stride, padding, high, 0.0)
        return clang.true_divide(total, _sums(counts, rank))

    return body


avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(n, _avg_body) for n in (1, 2, 3))


def _max_pool(rank: int) -> Operation:
    def body(
        input: TensorProxy,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> TensorProxy:
        kernel, padding = _each_dim(kernel_size, rank), _each_dim(padding, rank)
        stride = kernel if stride is None or stride == () or stride == [] else _each_dim(stride, rank)
        steps = _each_dim(dilation, rank)
        if return_indices:
            raise NoDecompositionError("positions of the largest elements")
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, steps, strict=True)]
        _check_window(input, spans, padding)
        beyond = _beyond(input, spans, stride, padding) if ceil_mode else [0] * rank
        high = [p + extra for p, extra in zip(padding, beyond, strict=True)]
        windows = _windows(input, spans, stride, padding, high, float("-inf"))
        for n, (span, step) in enumerate(zip(spans, steps, strict=True)):
            if step != 1:
                windows = clang.slice_in_dim(windows, 0, span, step, windows.ndim - rank + n)
        if any(s == 0 for s in windows.shape):
            raise NoDecompositionError("the largest of no elements")
        return prims.amax(windows, tuple(range(windows.ndim - rank, windows.ndim)))

    name = f"max_pool{rank}d"
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"The largest elements of windows over the last {rank} dims."
    return op(getattr(F, name), getattr(torch, name), samples=f"nn.functional.{name}")(body)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(n) for n in (1, 2, 3))
