"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import TraceCtx


def is_kept(node: BoundSymbol) -> bool:
    """Whether a node stays whatever reads it: it writes, draws random numbers, or says so."""
    traits = node.sym.traits
    if node.sym is prims.custom_vjp and node.args[2].dirty:
        return True  # it gives memory that is read elsewhere a new history
    return bool(traits.writes) or traits.is_random or traits.is_kept or node.sym.has_tag(OpTags.DONT_DCE)


def live_nodes(nodes: list[BoundSymbol], needed: Iterable[str] = ()) -> list[BoundSymbol]:
    """The nodes that effects, or the names in `needed`, depend on. O(nodes)."""
    wanted = set(needed)
    kept: list[BoundSymbol] = []
    for node in reversed(nodes):
        if is_kept(node) or any(o.name in wanted for o in node.flat_proxy_outs):
            kept.append(node)
            wanted.update(p.name for p in node.flat_proxy_args)
            if node.sym is prims.custom_vjp:  # what only its backward reads
                wanted.update(p.name for p in node.args[2].saved if isinstance(p, Proxy))
    return kept[::-1]


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Removes nodes whose outputs nobody reads. O(nodes). Keeps nodes with effects."""

    name: ClassVar[str] = "dce"
    title: ClassVar[str] = "Dead Code Elimination"
    stage: ClassVar[str] = "captured"
    after: str = "captured"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        nodes = live_nodes(list(trace.bound_symbols))
        return trace if len(nodes) == len(trace.bound_symbols) else trace.with_nodes(nodes)


def dce(trace: TraceCtx, needed_proxies: Any = None) -> TraceCtx:
    """`trace` without the nodes that neither its effects nor `needed_proxies` depend on."""
    names = [getattr(p, "name", p) for p in needed_proxies or ()]
    return trace.with_nodes(live_nodes(list(trace.bound_symbols), names), "Dead Code Elimination")


def dce_bsyms(bsyms: list[BoundSymbol], output: Any, needed_proxies: Any = None) -> list[BoundSymbol]:
    """Those of `bsyms` that effects, the proxies in `output` (a pytree) or `needed_proxies` depend on. O(nodes)."""
    names = [p.name for p in tree_flatten(output)[0] if isinstance(p, Proxy)]
    return live_nodes(list(bsyms), [*names, *(getattr(p, "name", p) for p in needed_proxies or ())])
