"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core.origin import RECOMPUTE_IN_BACKWARD
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx


@dataclass(frozen=True)
class CommonSubexpressionElimination(Pass):
    """Reuses the earlier of two nodes with equal operation, arguments and tags. O(nodes). Leaves nodes with effects.

    Nodes whose results the program returns keep memory of their own.
    """

    name: ClassVar[str] = "cse"
    title: ClassVar[str] = "Common Subexpression Elimination"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        returned = {p.name for p in trace.bound_symbols[-1].flat_proxy_args}
        seen: dict[Hashable, Any] = {}

        def rule(node: BoundSymbol) -> Any:
            if node.has_effects or not node.flat_proxy_outs or any(o.name in returned for o in node.flat_proxy_outs):
                return KEEP
            if not all(isinstance(o, Proxy) for o in node.flat_outs) or node.rhs is None:
                return KEEP
            key = (node.rhs, RECOMPUTE_IN_BACKWARD in node.tags)
            if key in seen:
                return seen[key]
            seen[key] = node.output
            return KEEP

        new = rewrite(trace, rule, self.name)
        return trace if len(new.bound_symbols) == len(trace.bound_symbols) else new


def cse(trace: TraceCtx) -> TraceCtx:
    """`trace` with repeated pure nodes computed once."""
    return CommonSubexpressionElimination().apply(trace, PassContext())
