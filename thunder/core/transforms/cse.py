"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.markers import marked_values
from thunder.core.transforms.protect import MemoryGroups

_COMPARED = frozenset({BACKWARD, RECOMPUTE_IN_BACKWARD})


@dataclass(frozen=True)
class CommonSubexpressionElimination(Pass):
    """Reuses the earlier of two nodes with equal operation, arguments and tags. O(nodes). Leaves nodes with effects.

    Nodes whose results the program returns, or writes to, keep memory of their own. A node that autograd sees is not
    replaced by one that it does not see.
    """

    name: ClassVar[str] = "cse"
    title: ClassVar[str] = "Common Subexpression Elimination"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        returned = returned_names(trace)
        written = written_memory(trace)
        seen: dict[Hashable, Any] = {}

        def rule(node: BoundSymbol) -> Any:
            if node.has_effects or not node.flat_proxy_outs or any(o.name in returned for o in node.flat_proxy_outs):
                return KEEP
            if node.sym is prims.bind_symbol:  # sizes refer to it by its name
                return KEEP
            if any(o.name in written for o in node.flat_proxy_outs):
                return KEEP
            if not all(isinstance(o, Proxy) for o in node.flat_outs) or node.rhs is None:
                return KEEP
            requires_grad = tuple(getattr(o, "requires_grad", False) for o in node.flat_outs)
            key = (node.rhs, node.tags & _COMPARED, requires_grad)
            if key in seen:
                return seen[key]
            seen[key] = node.output
            return KEEP

        new = rewrite(trace, rule, self.name)
        return trace if len(new.bound_symbols) == len(trace.bound_symbols) else new


def returned_names(trace: TraceCtx) -> set[str]:
    """Names of values that the program returns as they are or as an autograd marker passes them on. O(nodes)."""
    returned = {p.name for p in trace.bound_symbols[-1].flat_proxy_args}
    for node in reversed(trace.bound_symbols[:-1]):
        returned |= {p.name for p, o in marked_values(node) if o.name in returned}
    return returned


def written_memory(trace: TraceCtx) -> set[str]:
    """Names of values whose memory is written: two equal ones do not stay equal."""
    if not any(n.written for n in trace.bound_symbols):
        return set()
    memory = MemoryGroups(trace.args)
    for node in trace.bound_symbols:
        memory.see_views(node)
        if node.sym is prims.update_aliases:
            for old, new in zip(node.args[0], node.output, strict=True):
                memory.join(old.name, new.name)
    return {name for n in trace.bound_symbols for w in n.written for name in memory.group(w.name)}


def cse(trace: TraceCtx) -> TraceCtx:
    """`trace` with repeated pure nodes computed once."""
    return CommonSubexpressionElimination().apply(trace, PassContext())
