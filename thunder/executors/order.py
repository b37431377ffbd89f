"""The order of nodes that data flow does not show: writes of memory, random numbers, switches of a mode."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.protect import may_be_view


class _Memory:
    """Groups of names that may share memory (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[Hashable, Hashable] = {}

    def find(self, key: Hashable) -> Hashable:
        parent = self._parent
        while (up := parent.get(key, key)) != key:
            parent[key] = parent.get(up, up)
            key = parent[key]
        return key

    def join(self, keys: Iterable[Hashable]) -> None:
        roots = list(dict.fromkeys(self.find(k) for k in keys))
        for other in roots[1:]:
            self._parent[other] = roots[0]

    def see(self, tensors: Iterable[TensorProxy]) -> None:
        """Enters tensors with the storage that they had when the program was captured."""
        for t in tensors:
            if t.layout is not None:
                self.join((("storage", t.layout.storage), t.name))


def may_share_memory(node: BoundSymbol) -> bool:
    """Whether outputs may lie in the memory of inputs: as views, or as new names of that memory."""
    return bool(node.written) or node.sym is prims.update_aliases or may_be_view(node)


def _memory_of(trace: TraceCtx, nodes: Sequence[BoundSymbol]) -> _Memory:
    memory = _Memory()
    args = [a for a in trace.args if isinstance(a, TensorProxy)]
    memory.see(args)
    # Inputs of unknown layout may be views of one another.
    memory.join(a.name for a in args if a.layout is None)
    for node in nodes:
        outs = [o for o in node.defined if isinstance(o, TensorProxy)]
        memory.see(outs)
        if outs and may_share_memory(node):
            memory.join([p.name for p in node.flat_proxy_args if isinstance(p, TensorProxy)] + [o.name for o in outs])
    return memory


def _is_fence(node: BoundSymbol) -> bool:
    """Whether everything before the node stays before it, and everything after it after: it changes a mode."""
    traits = node.sym.traits
    return traits.is_kept and traits.is_barrier and not node.written


class _Order:
    """Collects, node by node in program order, the earlier nodes that each one has to follow."""

    def __init__(self, memory: _Memory | None):
        self.memory = memory
        self.producer: dict[str, int] = {}
        self.written_at: dict[Hashable, int] = {}
        self.readers: dict[Hashable, list[int]] = {}
        self.last_random: int | None = None
        self.last_fence: int | None = None
        self.since_fence: list[int] = []

    def add(self, index: int, node: BoundSymbol) -> list[int]:
        """The nodes that node `index` must follow, each once, ascending in no particular order."""
        before: dict[int, None] = {}
        for p in node.flat_proxy_args:
            if p.name in self.producer:
                before[self.producer[p.name]] = None
        if self.memory is not None:
            self._memory_edges(index, node, before)
        if node.sym.traits.is_random:
            if self.last_random is not None:
                before[self.last_random] = None
            self.last_random = index
        if self.last_fence is not None:
            before[self.last_fence] = None
        if _is_fence(node):
            before.update(dict.fromkeys(self.since_fence))
            self.last_fence, self.since_fence = index, []
        else:
            self.since_fence.append(index)
        for o in node.defined:
            self.producer[o.name] = index
        before.pop(index, None)
        return list(before)

    def _memory_edges(self, index: int, node: BoundSymbol, before: dict[int, None]) -> None:
        """A read follows the last write of its memory; a write follows that write and all reads since."""
        assert self.memory is not None
        deletes = node.sym is prims.python_del
        written = {self.memory.find(w.name) for w in (node.flat_proxy_args if deletes else node.written)}
        touched = dict.fromkeys(self.memory.find(p.name) for p in node.flat_proxy_args)
        for place in touched:
            if place in self.written_at:
                before[self.written_at[place]] = None
            if place in written:
                before.update(dict.fromkeys(self.readers.pop(place, ())))
                self.written_at[place] = index
            else:
                self.readers.setdefault(place, []).append(index)


def order_edges(trace: TraceCtx) -> list[list[int]]:
    """For each node but the last, the earlier nodes that it must follow. O(nodes + edges).

    Beside data flow: reads and writes of memory that may be shared, random nodes among themselves, and everything with
    respect to nodes that switch a mode.
    """
    nodes = trace.bound_symbols[:-1]
    has_writes = any(n.written or n.sym is prims.python_del for n in nodes)
    order = _Order(_memory_of(trace, nodes) if has_writes else None)
    return [order.add(n, node) for n, node in enumerate(nodes)]
