"""Values are given up at their last use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import CollectionProxy, Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace


@dataclass(frozen=True)
class DeleteLastUsed(Pass):
    """Inserts `del` after the last use of each value, so that its memory is free. O(nodes)."""

    name: ClassVar[str] = "del_last_used"
    title: ClassVar[str] = "Delete Last Used"
    stage: ClassVar[str] = "executable"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        kept = {p.name for p in trace.bound_symbols[-1].flat_proxy_args}
        nodes: list[BoundSymbol] = [trace.bound_symbols[-1]]
        for node in reversed(trace.bound_symbols[:-1]):
            dead: dict[str, Proxy] = {}
            for p in (*node.flat_proxy_outs, *node.flat_proxy_args):
                if p.name not in kept and not isinstance(p, CollectionProxy):
                    dead[p.name] = p
                    kept.add(p.name)
            if dead and node.sym is not prims.python_del:
                with origin(node.origin):
                    nodes.append(prims.python_del.bind(*dead.values(), output=None))
            nodes.append(node)
        new = from_trace(trace)
        new.bound_symbols = nodes[::-1]
        return new


def del_last_used(trace: TraceCtx) -> TraceCtx:
    """`trace` with `del` statements after the last uses."""
    return DeleteLastUsed().apply(trace, PassContext())
