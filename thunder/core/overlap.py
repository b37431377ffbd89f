"""Writes to memory that a call also reads, or writes more than once: what torch says to them.

Torch refuses many of them by looking at addresses, which traced tensors have none of. Such a call is tried once on
small real tensors that lie in memory as the traced ones do.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.alias_analysis import extent, has_internal_overlap
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import real_tensors_only

_LIMIT = 1 << 20  # elements; larger calls are not tried
_REFUSED = "unsupported operation"


def check_overlap(node: BoundSymbol) -> None:
    """Raises RuntimeError with torch's text where torch refuses the call because of how its tensors share memory."""
    tensors = [p for p in node.flat_proxy_args if isinstance(p, TensorProxy)]
    if not _is_suspect(node, tensors) or not _is_small(tensors):
        return
    buffers: dict[int, tuple[torch.Tensor, int]] = {}
    with real_tensors_only(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        real = {p.name: _real(p, tensors, buffers) for p in tensors}
        args, kwargs = tree_map(
            lambda x: real.get(x.name, x) if isinstance(x, TensorProxy) else x, (node.args, node.kwargs)
        )
        try:
            node.sym.torch_fn(*args, **kwargs)  # type: ignore[misc]
        except RuntimeError as e:
            if _REFUSED in str(e):
                raise RuntimeError(str(e)) from None


def _is_suspect(node: BoundSymbol, tensors: list[TensorProxy]) -> bool:
    if node.sym.torch_fn is None or any(p.layout is None for p in node.written):
        return False
    for w in node.written:
        if has_internal_overlap(w):
            return True
        if any(p.layout is not None and p.layout.storage == w.layout.storage and p is not w for p in tensors):  # type: ignore[union-attr]
            return True
        flat = [a for a in node.flat_args if isinstance(a, TensorProxy) and a.name == w.name]
        if len(flat) > 1:
            return True
    return False


def _is_small(tensors: list[TensorProxy]) -> bool:
    total = 0
    for p in tensors:
        sizes = (
            *p.shape,
            *(p.layout.strides if p.layout is not None else ()),
            p.layout.offset if p.layout is not None else 0,
        )
        if not all(isinstance(s, int) for s in sizes):
            return False
        total += p.numel if p.layout is None else extent(p)[1]
    return total <= _LIMIT


def _real(p: TensorProxy, tensors: list[TensorProxy], buffers: dict[int, tuple[torch.Tensor, int]]) -> Any:
    """A tensor in a buffer of its storage; `buffers` has them with the offset that they begin at."""
    dtype = to_torch_dtype(p.dtype)
    if p.layout is None:
        return torch.zeros(p.shape, dtype=dtype)
    key = p.layout.storage
    if key not in buffers:
        members = [extent(t) for t in tensors if t.layout is not None and t.layout.storage == key]
        low, high = min(m[0] for m in members), max(m[1] for m in members)
        buffers[key] = (torch.zeros(max(high - low, 1) * 16, dtype=torch.uint8), low)
    buffer, low = buffers[key]
    return torch.as_strided(buffer.view(dtype), p.shape, p.layout.strides, p.layout.offset - low)
