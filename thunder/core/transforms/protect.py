"""Keeps values for backward that forward overwrites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch

from thunder.core import prims
from thunder.core.origin import RECOMPUTE_IN_BACKWARD, origin
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import OpOverload, aten_packet
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.core.transforms.markers import marked_values
from thunder.torch.registry import aten_overloads, symbol_for

_MAYBE_VIEWS = {"reshape", "contiguous", "to", "flatten", "view_as", "reshape_as", "_to_copy", "type_as", "expand_as"}


@cache
def _returns_views(fn: Any) -> bool:
    """Whether the aten schemas of a torch callable say that it returns views of its arguments."""
    if isinstance(fn, OpOverload):
        overloads = [fn]
    else:
        packet = aten_packet(getattr(fn, "__name__", ""))
        overloads = [] if packet is None else aten_overloads(packet)
    returns = [r.alias_info for o in overloads for r in o._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returns)


def may_be_view(node: BoundSymbol) -> bool:
    """Whether an output may share memory with an input, by schema and where schemas leave it open."""
    fn = node.sym.torch_fn
    name = node.sym.base_name
    if name in _MAYBE_VIEWS or name in (
        "strided_view",
        "shallow_copy",
        "update_data",
        "overwritten",
        "unversioned",
        "detached",
        "custom_vjp",
    ):
        return True
    if _returns_views(fn):
        return True
    return any(
        isinstance(o, TensorProxy)
        and o.layout is not None
        and any(
            isinstance(a, TensorProxy) and a.layout is not None and a.layout.storage == o.layout.storage
            for a in node.flat_args
        )
        for o in node.flat_outs
    )


def _view_pairs(node: BoundSymbol) -> list[tuple[Any, Any]]:
    """The inputs and outputs of a node that may share memory."""
    if not may_be_view(node):
        return []
    return marked_values(node) or [
        (p, o) for p in node.flat_proxy_args for o in node.defined if _may_share_storage(p, o)
    ]


def _may_share_storage(a: Any, b: Any) -> bool:
    """Whether two values may lie in one storage; capture knows it of its values."""
    known = isinstance(a, TensorProxy) and isinstance(b, TensorProxy) and a.layout is not None and b.layout is not None
    return a.layout.storage == b.layout.storage if known else True


class MemoryGroups:
    """Which names may share memory, grown node by node (union by size, near constant time each).

    inputs: of the trace; those of one storage share memory from the beginning.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._parent: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}
        first: dict[int, str] = {}
        for p in inputs:
            if isinstance(p, TensorProxy) and p.layout is not None:
                self.join(first.setdefault(p.layout.storage, p.name), p.name)

    def _root(self, name: str) -> str:
        while (up := self._parent.get(name, name)) != name:
            name = up
        return name

    def join(self, a: str, b: str) -> None:
        """The two names may share memory; the smaller group joins the larger."""
        ra, rb = self._root(a), self._root(b)
        if ra == rb:
            return
        if len(self._members.get(ra, (ra,))) < len(self._members.get(rb, (rb,))):
            ra, rb = rb, ra
        self._parent[rb] = ra
        self._members.setdefault(ra, [ra]).extend(self._members.pop(rb, [rb]))

    def group(self, name: str) -> list[str]:
        """All names that may share the memory of `name`, itself included."""
        root = self._root(name)
        return self._members.get(root, [root])

    def see_views(self, node: BoundSymbol) -> None:
        """Enters a node's outputs that may be views of its inputs."""
        for p, o in _view_pairs(node):
            self.join(p.name, o.name)


class _Memory(MemoryGroups):
    """Memory groups, and which of their names a write has left with another value."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__(inputs)
        self.stale: set[str] = set()

    def write(self, name: str, new: set[str]) -> None:
        """All names of this memory but `new` are stale."""
        self.stale.update(set(self.group(name)) - new)

    def see(self, node: BoundSymbol) -> None:
        """Enters a node: its views join their inputs, its writes make names stale."""
        if node.sym is prims.update_aliases:
            for old, new in zip(node.args[0], node.output, strict=True):
                self.join(old.name, new.name)
                self.stale.discard(new.name)
            self.stale.update(a.name for a in node.args[0])
            return
        self.see_views(node)
        for w in node.written:
            for o in node.defined:
                self.join(w.name, o.name)
            self.write(w.name, {o.name for o in node.defined})


@dataclass(frozen=True)
class ProtectOverwritten(Pass):
    """A read of a value whose memory was written before becomes a read of a clone, made where the value was. O(nodes
    α).

    `written` names inputs that the epilogue writes, which is before backward runs. What `unversioned` gives is the
    memory as backward finds it.
    """

    name: ClassVar[str] = "protect_overwritten"
    title: ClassVar[str] = "Keep values that are overwritten"
    stage: ClassVar[str] = "joint"
    written: frozenset = frozenset()

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        if not self.written and not any(n.written for n in trace.bound_symbols):
            return trace
        needed = self._stale_reads(trace)
        return _with_clones(trace, needed) if needed else trace

    def _stale_reads(self, trace: TraceCtx) -> dict[str, set[int]]:
        """For each name, the positions of the nodes that read it too late."""
        memory, nodes = _Memory(trace.args), trace.bound_symbols
        reads: dict[str, set[int]] = {}
        unversioned = {n.output.name for n in nodes if n.sym is prims.unversioned}
        in_backward = False

        def check(index: int, node: BoundSymbol) -> None:
            overwritten = {w.name for w in node.written} if node.sym is prims.copy_ else ()
            for p in node.flat_proxy_args:
                if p.name in memory.stale and p.name not in overwritten and isinstance(p, TensorProxy):
                    reads.setdefault(p.name, set()).add(index)

        for index, node in enumerate(nodes[:-1]):
            if node.is_backward and not in_backward:
                in_backward = True
                for name in self.written:
                    memory.write(name, unversioned)
            if node.sym not in (prims.update_aliases, prims.get_grad, prims.unversioned):
                check(index, node)
            memory.see(node)
        return reads


def _with_clones(trace: TraceCtx, needed: dict[str, set[int]]) -> TraceCtx:
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
        for index, node in enumerate(trace.bound_symbols[:-1]):
            own = {p.name: clones[p.name] for p in node.flat_proxy_args if index in needed.get(p.name, ())}
            new.add_bound_symbol(node.renamed(own, outputs=False))
            for o in node.defined:
                if o.name in needed and isinstance(o, TensorProxy):
                    tags = node.tags - {RECOMPUTE_IN_BACKWARD}
                    with origin(replace(node.origin, tags=tags), pass_name="protect_overwritten"):
                        clone(o)
        new.add_bound_symbol(trace.bound_symbols[-1])
    return new
