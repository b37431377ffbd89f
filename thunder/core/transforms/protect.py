"""Keeps values for backward that forward overwrites."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from thunder.core.origin import RECOMPUTE_IN_BACKWARD
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.origin import origin
from thunder.core.tracing import tracectx
from thunder.torch.registry import symbol_for

_MAYBE_VIEWS = {"reshape", "contiguous", "to", "flatten", "view_as", "reshape_as", "_to_copy", "type_as", "expand_as"}


def may_be_view(node: BoundSymbol) -> bool:
    """Whether an output may share memory with an input, by schema and where schemas leave it open."""
    fn = node.sym.torch_fn
    name = node.sym.name.partition(".")[0]
    if name in _MAYBE_VIEWS or name in ("strided_view", "shallow_copy", "update_data", "custom_vjp"):
        return True
    if isinstance(fn, torch._ops.OpOverload):
        return any(r.alias_info is not None for r in fn._schema.returns)
    return any(
        isinstance(o, TensorProxy)
        and o.layout is not None
        and any(isinstance(a, TensorProxy) and a.layout is not None and a.layout.storage == o.layout.storage for a in node.flat_args)
        for o in node.flat_outs
    )


def aliases_of(nodes: list[BoundSymbol], roots: set[str]) -> set[str]:
    """Names that may share memory with `roots`. O(nodes)."""
    found = set(roots)
    for node in nodes:
        if any(p.name in found for p in node.flat_proxy_args) and may_be_view(node):
            found.update(o.name for o in node.defined)
    return found


@dataclass(frozen=True)
class ProtectOverwritten(Pass):
    """Backward (and what it recomputes) reads clones of what forward, or the epilogue, writes over. O(nodes)."""

    name: ClassVar[str] = "protect_overwritten"
    title: ClassVar[str] = "Keep values that forward overwrites"
    stage: ClassVar[str] = "joint"
    written: frozenset = frozenset()

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        nodes = trace.bound_symbols
        forward = [n for n in nodes if not n.is_backward]
        written = set(self.written) | {w.name for n in forward for w in n.written}
        stale = aliases_of(forward, written) if written else set()
        read = {p.name for n in nodes for p in n.flat_proxy_args if n.is_backward or RECOMPUTE_IN_BACKWARD in n.tags}
        needed = stale & read
        if not needed:
            return trace
        return _with_clones(trace, needed)


def _with_clones(trace: TraceCtx, needed: set[str]) -> TraceCtx:
    new = from_trace(trace)
    clones: dict[str, Any] = {}

    def clone(p: Any) -> None:
        saved = p.replace(name=new.unique_name(f"{p.name}_saved"), layout=None)
        new.emit(symbol_for(torch.clone), (p,), {}, saved)
        clones[p.name] = saved

    with tracectx(new):
        for a in trace.args:
            if isinstance(a, TensorProxy) and a.name in needed:
                clone(a)
        for node in trace.bound_symbols[:-1]:
            late = node.is_backward or RECOMPUTE_IN_BACKWARD in node.tags
            new.add_bound_symbol(node.renamed(clones, outputs=False) if late and not node.written else node)
            for o in node.defined:
                if o.name in needed and not node.is_backward and isinstance(o, TensorProxy):
                    with origin(replace(node.origin, tags=frozenset()), pass_name="protect_overwritten"):
                        clone(o)
        new.add_bound_symbol(trace.bound_symbols[-1])
    return new
