"""Takes away the primitives that only the gradient has needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import TensorProxy
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

MARKERS = (
    prims.custom_vjp,
    prims.late_saved,
    prims.update_data,
    prims.overwritten,
    prims.shallow_copy,
    prims.update_aliases,
)


def marked_values(node: BoundSymbol) -> list[tuple[TensorProxy, TensorProxy]]:
    """(value, result) for each result of a marker that is one of its arguments with another gradient."""
    if node.sym is prims.custom_vjp:
        pairs = zip(node.args[0], node.output, strict=True)
    elif node.sym in (prims.update_data, prims.overwritten):
        pairs = zip((node.args[1],), (node.output,), strict=True)
    elif node.sym is prims.shallow_copy:
        pairs = zip((node.args[0],), (node.output,), strict=True)
    else:
        return []
    return [(a, o) for a, o in pairs if isinstance(a, TensorProxy) and isinstance(o, TensorProxy)]


@dataclass(frozen=True)
class RemoveMarkers(Pass):
    """Replaces custom_vjp, update_data, overwritten and shallow_copy by the value that they pass on. O(nodes).

    with_aliases: also `update_aliases`, for programs that keep their writes in program order.
    """

    with_aliases: bool = False

    name: ClassVar[str] = "remove_markers"
    title: ClassVar[str] = "Remove autograd markers"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        if not any(n.sym in MARKERS for n in trace.bound_symbols):
            return trace

        def rule(node: BoundSymbol) -> Any:
            if node.sym is prims.custom_vjp:
                return tuple(node.args[0])
            if (pairs := marked_values(node)):
                return pairs[0][0]
            if node.sym is prims.update_aliases and self.with_aliases:
                return tuple(node.args[0])
            return None if node.sym is prims.late_saved else KEEP

        return rewrite(trace, rule, self.name)
