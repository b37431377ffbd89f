"""Matrix products on a CPU through oneDNN, where its kernels are faster than those of the BLAS that torch calls.

MKL, which torch's `mm` and `linear` call on x86, runs slower code on processors that are not Intel's. oneDNN, which
comes with torch, does not. Measured on an AMD EPYC with AVX-512, one thread, times of `x @ w.t()` and `g @ w` to MKL's:
0.95 and 0.86 for 128 × 256 × 688, 0.89 and 0.88 for 128 × 256 × 1024, 0.70 and 0.84 for 512 × 512 × 2048; 1.0 and above
for less than 20 MFLOP, for few rows, and for products with a transposed left side, such as gradients of weights.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from thunder.core.origin import origin
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import onednn_linear
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.executors.region_cache import cpu_line
from thunder.executors.strides import PredictedStrides
from thunder.torch.fakes import contiguous_strides
from thunder.torch.registry import symbol_for

_MIN_FLOPS = 3e7
_MIN_ROWS = 8


@lru_cache(maxsize=1)
def blas_is_slow_here() -> bool:
    """Whether the processor is an x86 that is not Intel's, and torch's BLAS is MKL."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkl.is_available():
        return False
    vendor = cpu_line("vendor_id")
    return vendor.startswith("vendor_id") and "GenuineIntel" not in vendor


def with_onednn_products(trace: TraceCtx, strides: PredictedStrides) -> TraceCtx:
    """The joint trace with products of float32 matrices on a CPU through oneDNN, where that is faster. O(nodes).

    strides: has seen all nodes of the trace.
    """
    if not blas_is_slow_here() or onednn_linear() is None:
        return trace
    plans = {n: plan for n, node in enumerate(trace.bound_symbols) if (plan := _plan(node, strides)) is not None}
    if not plans:
        return trace
    new = from_trace(trace)
    with tracectx(new):
        for n, node in enumerate(trace.bound_symbols):
            if n not in plans:
                new.bound_symbols.append(node)
                continue
            with origin(node.origin, pass_name="onednn"):
                _emit(new, plans[n], node.output)
    return new


class _Product(NamedTuple):
    """`x @ w.t() + bias`, where `w` may be what is to be transposed, and a batch of one matrix."""

    x: TensorProxy
    w: TensorProxy
    bias: TensorProxy | None
    is_transposed: bool
    is_batch: bool


def _plan(node: BoundSymbol, strides: PredictedStrides) -> _Product | None:
    """The product that a node is, if it is one that is faster so."""
    name, args = node.sym.base_name, node.args
    if node.kwargs or not all(isinstance(a, TensorProxy) for a in args[:2]) or len(args) not in (2, 3):
        return None
    if name == "linear":
        product = _Product(args[0], args[1], args[2] if len(args) == 3 else None, False, False)
    elif name in ("mm", "matmul", "__matmul__", "bmm") and len(args) == 2:
        product = _Product(args[0], args[1], None, True, name == "bmm")
    elif name == "addmm" and len(args) == 3 and args[0].shape == args[2].shape[1:]:
        product = _Product(args[1], args[2], args[0], True, False)
    else:
        return None
    return product if _is_faster(product, strides) else None


def _is_faster(product: _Product, strides: PredictedStrides) -> bool:
    x, w, bias, is_transposed, is_batch = product
    operands = [t for t in (x, w, bias) if t is not None]
    if any(t.torch_dtype != torch.float32 or t.device.type != "cpu" for t in operands):
        return False
    if any(type(s) is not int for t in operands for s in t.shape):
        return False
    if len(w.shape) != 2 + is_batch or len(x.shape) < 2 or (is_batch and x.shape[0] != 1):
        return False
    flops = 2 * math.prod(x.shape) * w.shape[-1 if is_transposed else -2]
    is_row_major = tuple(strides.of(x)) == contiguous_strides(x.shape)  # one row, transposed, is not
    return is_row_major and math.prod(x.shape[:-1]) >= _MIN_ROWS and flops >= _MIN_FLOPS


def _emit(trace: TraceCtx, product: _Product, output: TensorProxy) -> None:
    x, w, bias, is_transposed, is_batch = product

    def view(fn: Callable, shape: tuple, *args: int) -> TensorProxy:
        made = w.replace(name=trace.unique_name(f"{w.name}_v"), shape=shape, layout=None, requires_grad=False)
        trace.emit(symbol_for(fn), (w, *args), {}, made)
        return made

    if is_batch:
        w = view(torch.squeeze, w.shape[1:], 0)
    if is_transposed:
        w = view(torch.t, w.shape[::-1])
    trace.emit(symbol_for(onednn_linear()), (x, w, bias, "none", [], ""), {}, output)
