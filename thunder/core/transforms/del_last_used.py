"""Values are given up at their last use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import CollectionProxy, Proxy, tensors_among
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx


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


@dataclass(frozen=True)
class HandOverToRegions(Pass):
    """Regions own the inputs that nobody reads after them, and can free each at its last use inside. O(nodes).

    `[t2] = Region0(a, t1)` and `del t1` become `C0 = [a, t1]`, `del t1` and `[t2] = Region0(C0)`, where the region's
    callable has a method `run_list`, which takes its inputs out of a list. The caller of the program holds its
    arguments anyway.
    """

    name: ClassVar[str] = "hand_over"
    title: ClassVar[str] = "Hand Over to Regions"
    stage: ClassVar[str] = "executable"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        given = {a.name for a in trace.args}
        new = from_trace(trace)
        dead: list[Proxy] = []
        following = (*trace.bound_symbols[1:], None)
        for node, after in zip(trace.bound_symbols, following, strict=True):
            if dead and node.sym is prims.python_del:
                handed = {p.name for p in dead}
                dead = []
                left = [p for p in node.flat_proxy_args if p.name not in handed]
                if not left:
                    continue
                node = node.from_bsym(args=tuple(left))
            run_list = getattr(node.sym.python_impl, "run_list", None)
            if run_list is not None and (dead := _dead_inputs(node, after, given)):
                with tracectx(new), origin(node.origin):
                    packed = prims.pack_list(*node.args)
                    prims.python_del(*dead)
                node = _taking_a_list(node, packed, run_list)
            new.bound_symbols.append(node)
        return new if len(new.bound_symbols) > len(trace.bound_symbols) else trace


def _taking_a_list(node: BoundSymbol, packed: Proxy, run_list: Callable) -> BoundSymbol:
    sym = replace(node.sym, python_impl=run_list)
    return node.from_bsym(sym=sym, args=(packed,), call_ctx={**(node.call_ctx or {}), sym.name: run_list})


def _dead_inputs(node: BoundSymbol, after: BoundSymbol | None, given: set[str]) -> list[Proxy]:
    """The tensors among the inputs, other than the program's, that the node after deletes."""
    if after is None or after.sym is not prims.python_del:
        return []
    read = {p.name for p in tensors_among(node.flat_args)} - given
    return [p for p in after.flat_proxy_args if p.name in read]


def del_last_used(trace: TraceCtx) -> TraceCtx:
    """`trace` with `del` statements after the last uses."""
    return DeleteLastUsed().apply(trace, PassContext())


def hand_over(trace: TraceCtx) -> TraceCtx:
    """`trace` with the inputs of regions handed over."""
    return HandOverToRegions().apply(trace, PassContext())
