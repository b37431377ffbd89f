"""Writes to inputs touch the bytes that the program writes, not the whole tensor.

After functionalization, `cache[i] = v` on an input is a new tensor with row i changed, copied back at the end. Where
nothing reads the older values any more, the operations run on the input's own memory instead and the copy is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.protect import MemoryGroups
from thunder.torch.mutation import variant_of
from thunder.torch.registry import symbol_for


def _inplace_symbol(node: BoundSymbol) -> Symbol | None:
    """The operation that does in the memory of its first argument what a functional node computes, or None."""
    if node.sym is prims.view_update:
        return prims.view_update_
    if node.sym is prims.copy_with_setitem:
        return prims.setitem_
    if node.sym.torch_fn is torch.ops.aten.embedding_renorm.default:
        return symbol_for(torch.embedding_renorm_)
    name = getattr(node.sym.torch_fn, "__name__", "")
    made_from_write = "functionalization" in node.origin.passes and node.sym.executor is None
    method = (
        getattr(torch.Tensor, f"{name}_", None)
        if made_from_write and node.sym.torch_fn in _functions_named(name)
        else None
    )
    return symbol_for(method) if method is not None else None


def _functions_named(name: str) -> tuple[Any, ...]:
    return (getattr(torch, name, None), getattr(torch.Tensor, name, None))


@dataclass(frozen=True)
class _Chain:
    """The operations (positions in the trace) that lead from an input to the value copied back into it."""

    copy: int
    operations: tuple[int, ...]


@dataclass(frozen=True)
class Reinplace(Pass):
    """Runs the operations between an input and its written-back value in the input's memory. O(nodes α).

    A chain is left alone where an older value, or a view of one, is read later, where an operation reads the memory
    that it would write through another name, or where the final value is returned.
    """

    name: ClassVar[str] = "reinplace"
    title: ClassVar[str] = "Write in place what is copied back"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        nodes = trace.bound_symbols
        copies = [n for n, node in enumerate(nodes) if node.sym is prims.copy_ and not node.is_backward]
        if not copies:
            return trace
        facts = _Facts(trace)
        chains = [chain for c in copies if (chain := facts.chain_for(c)) is not None]
        dropped = {chain.copy for chain in chains}
        changed = {i: _in_place_node(nodes[i]) for chain in chains for i in chain.operations}
        for c in copies:
            if c not in dropped and (clone := facts.needless_clone(c, changed)) is not None:
                dropped.add(clone)
                changed[c] = nodes[c].renamed({nodes[c].args[0].name: nodes[clone].args[0]}, outputs=False)
        for n, node in enumerate(nodes):
            found = facts.copies_of_updates(n) if _updates(node) and not _is_fused_later(node, ctx) else None
            if found is not None:
                dropped.update(found)
                changed[n] = _updating_node(node)
        if not dropped:
            return trace
        return trace.with_nodes(changed.get(n, node) for n, node in enumerate(nodes) if n not in dropped)


def _in_place_node(node: BoundSymbol) -> BoundSymbol:
    sym = _inplace_symbol(node)
    assert sym is not None
    with origin(node.origin, pass_name=Reinplace.name) as now:
        kwargs = {k: v for k, v in node.kwargs.items() if k != "strides"}
        return BoundSymbol(sym, node.args, kwargs, node.output, origin=now)


def _updates(node: BoundSymbol) -> list[tuple[TensorProxy, TensorProxy]]:
    """The arguments of which a functional node gives new values, with those, where an operation would write them."""
    if node.sym is prims.run_on_clones:
        _, writes, args, kwargs = node.args
        result, values = node.output
        written = [kwargs[w] if isinstance(w, str) else args[w] for w in writes]
        is_simple = all(isinstance(v, TensorProxy) for v in (result, *written))
        return list(zip(written, values, strict=True)) if is_simple else []
    if node.sym.torch_fn is torch.ops.aten._native_batch_norm_legit_functional.default:
        return list(zip(node.args[3:5], node.output[3:5], strict=True))
    return []


def _updating_node(node: BoundSymbol) -> BoundSymbol:
    """The node that writes what `node`, which has `_updates`, gives new values of."""
    with origin(node.origin, pass_name=Reinplace.name) as now:
        if node.sym is prims.run_on_clones:
            fn, writes, args, kwargs = node.args
            return BoundSymbol(variant_of(fn, writes), args, kwargs, node.output[0], origin=now)
        sym = symbol_for(torch.ops.aten._native_batch_norm_legit.default)
        return BoundSymbol(sym, node.args, node.kwargs, node.output[:3], origin=now)


def _is_fused_later(node: BoundSymbol, ctx: PassContext) -> bool:
    return any(ex.can_fuse(node) for ex in ctx.executors if hasattr(ex, "fusion_pass"))


class _Facts:
    """Producers, readers and memory groups of one trace."""

    def __init__(self, trace: TraceCtx):
        self.nodes: Sequence[BoundSymbol] = trace.bound_symbols
        self.inputs = {a.name for a in trace.args if isinstance(a, Proxy)}
        self.producer: dict[str, int] = {}
        self.last_read: dict[str, int] = {}
        self.reads: dict[str, int] = {}
        self.memory = MemoryGroups(trace.args)
        last = len(self.nodes) - 1
        self.returned = {p.name for p in self.nodes[last].flat_proxy_args}
        for n, node in enumerate(self.nodes):
            if node.sym in (prims.get_grad, prims.unpack_trivial):
                continue
            for p in node.args[:1] if node.sym is prims.copy_ else node.flat_proxy_args:
                self.last_read[p.name] = n
                self.reads[p.name] = self.reads.get(p.name, 0) + 1
            for o in node.defined:
                self.producer[o.name] = n
            self.memory.see_views(node)

    def chain_for(self, copy: int) -> _Chain | None:
        """The chain that ends in a copy_, if it may run in place."""
        node = self.nodes[copy]
        src, dst = node.args
        if dst.name not in self.inputs or any(o.name in self.last_read for o in node.defined):
            return None
        operations: list[int] = []
        value = src
        while value.name != dst.name:
            n = self.producer.get(value.name)
            if n is None or not self._may_run_in_place(self.nodes[n], value, dst):
                return None
            operations.append(n)
            value = self.nodes[n].args[0]
        chain = operations[::-1]
        if not chain or src.name in self.returned or not self._is_dead_after(dst, chain[0]):
            return None
        for n, following in itertools.pairwise(chain):
            if not self._is_dead_after(self.nodes[n].output, following):
                return None
        return _Chain(copy, tuple(chain))

    def copies_of_updates(self, n: int) -> list[int] | None:
        """The copies that write back what node `n` updates, if it may write in place."""
        node = self.nodes[n]
        found: list[int] = []
        pairs = _updates(node)
        for dst, value in pairs:
            copy = self.last_read.get(value.name, n)
            if node.is_backward or dst.name not in self.inputs or self.nodes[copy].sym is not prims.copy_:
                return None
            group = self.memory.group(dst.name)
            others = [p.name for p in node.flat_proxy_args if p.name != dst.name]
            unread = self.reads.get(value.name) == 1 and not any(
                o.name in self.last_read for o in self.nodes[copy].defined
            )
            if self.nodes[copy].args[1].name != dst.name or not unread or value.name in self.returned:
                return None
            if not self._is_dead_after(dst, n) or any(name in group for name in others):
                return None
            found.append(copy)
        return found if len({dst.name for dst, _ in pairs}) == len(pairs) else None

    def needless_clone(self, copy: int, written: Collection[int]) -> int | None:
        """The clone whose only reader is the copy_, unless the memory cloned is the copy's own or is written before it.

        written: positions of operations that run in the memory of their first argument.
        """
        src, dst = self.nodes[copy].args
        n = self.producer.get(src.name)
        if n is None or self.nodes[n].sym.torch_fn is not torch.clone or self.reads[src.name] != 1:
            return None
        source = self.nodes[n].args[0]
        between = any(node.written for node in self.nodes[n + 1 : copy])
        memory = self.memory.group(source.name)
        between = between or any(n < i < copy and self.nodes[i].args[0].name in memory for i in written)
        return None if between or dst.name in memory else n

    def _may_run_in_place(self, node: BoundSymbol, value: Any, dst: TensorProxy) -> bool:
        base = node.args[0] if node.args else None
        if node.is_backward or not isinstance(base, TensorProxy):
            return False
        if not isinstance(node.output, TensorProxy) or (value.shape, value.dtype) != (dst.shape, dst.dtype):
            return False
        if (base.shape, base.dtype) != (dst.shape, dst.dtype) or _inplace_symbol(node) is None:
            return False
        group = self.memory.group(base.name)
        return not any(p.name in group for p in node.flat_proxy_args if p.name != base.name)

    def _is_dead_after(self, p: Any, position: int) -> bool:
        """Whether nothing reads the memory of `p` after `position`."""
        return all(self.last_read.get(name, -1) <= position for name in self.memory.group(p.name))
