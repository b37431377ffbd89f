"""How much tensor memory a trace allocates, by reading it."""

from __future__ import annotations

from thunder.core.proxies import CollectionProxy, FutureTensorProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_iter
from thunder.core.sizes import hint
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.protect import may_be_view


def size_bytes(p: TensorProxy | FutureTensorProxy) -> int:
    """The bytes of a tensor's elements. A size that varies counts as it was at capture."""
    count = 1
    for size in p.shape:
        count *= int(hint(size))
    return (count * p.dtype.bits + 7) // 8


class _Memory:
    """Live allocations; a view shares its base's, and memory is free when the last of its names is gone."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.allocated: dict[str, int] = {}
        self._block: dict[str, str] = {}
        self._live: dict[str, set[str]] = {}

    def allocate(self, p: TensorProxy | FutureTensorProxy) -> None:
        """A tensor with memory of its own."""
        if p.name in self._block:
            return
        self.allocated[p.name] = size_bytes(p)
        self._block[p.name] = p.name
        self._live[p.name] = {p.name}
        self.now += self.allocated[p.name]
        self.peak = max(self.peak, self.now)

    def share(self, p: TensorProxy, base: Proxy) -> None:
        """Another name for the memory of `base`."""
        block = self._block.get(base.name)
        if block is None:
            self.allocate(p)
        elif p.name not in self._block:
            self._block[p.name] = block
            self._live[block].add(p.name)

    def release(self, name: str) -> None:
        """The name is gone."""
        block = self._block.pop(name, None)
        if block is None:
            return
        self._live[block].discard(name)
        if not self._live[block]:
            self.now -= self.allocated[block]


def _is_shared(node: BoundSymbol) -> bool:
    return bool(node.written) or may_be_view(node) or node.sym.name in ("update_aliases", "unpack_sequence", "wait")


def _see(node: BoundSymbol, memory: _Memory) -> None:
    if node.sym.name == "python_del":
        for p in node.flat_proxy_args:
            memory.release(p.name)
        return
    if node.sym.name in ("clear_mutable_collection", "pack_list"):
        return
    outs = [o for o in node.defined if isinstance(o, TensorProxy | FutureTensorProxy)]
    bases = list(node.written) or [p for p in node.flat_proxy_args if isinstance(p, TensorProxy | FutureTensorProxy)]
    for n, o in enumerate(outs):
        if bases and _is_shared(node) and isinstance(o, TensorProxy):
            paired = node.sym.name == "update_aliases" and n < len(bases)
            memory.share(o, bases[n] if paired else bases[0])
        else:
            memory.allocate(o)


def get_alloc_memory(trace: TraceCtx) -> tuple[int, dict[str, int]]:
    """Peak bytes of tensors alive at once, and bytes of each tensor that has memory of its own, inputs included.

    An estimate from the text of the trace: views share their base's memory; an operation that may give a view, such as
    reshape, is taken to give one; workspace inside operations, rounding by allocators and what the caller keeps beside
    the inputs do not count. Run it on an executable trace, which says where values are given up (`del`). O(nodes).
    """
    memory = _Memory()
    for p in tree_iter([a.coll if isinstance(a, CollectionProxy) else a for a in trace.args]):
        for q in tree_iter(p.coll) if isinstance(p, CollectionProxy) else (p,):
            if isinstance(q, TensorProxy | FutureTensorProxy):
                memory.allocate(q)
    for node in trace.bound_symbols:
        _see(node, memory)
    return memory.peak, memory.allocated
