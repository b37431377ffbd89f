"""The fusion regions of a trace."""

from __future__ import annotations

from collections.abc import Callable

from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx


def get_fusion_symbols(trace: TraceCtx, warn_if_fusions_unavailable: bool = True) -> list[BoundSymbol]:
    """The nodes of a trace that stand for fused regions, in program order. Their `subsymbols` are what was fused.

    Args:
        warn_if_fusions_unavailable: accepted for compatibility; a trace without regions gives an empty list.
    """
    return [node for node in trace.bound_symbols if node.sym.is_fusion]


def get_fusions(trace: TraceCtx, warn_if_fusions_unavailable: bool = True) -> list[tuple[str, Callable]]:
    """Name and callable of each fused region, in program order. A callable takes the region's inputs one by one."""
    found = []
    for node in get_fusion_symbols(trace, warn_if_fusions_unavailable):
        fn = (node.call_ctx or {}).get(node.sym.name, node.sym.python_impl)
        if fn is not None:
            owner = getattr(fn, "__self__", None)
            found.append((node.sym.name, owner if getattr(owner, "run_list", None) == fn else fn))
    return found
