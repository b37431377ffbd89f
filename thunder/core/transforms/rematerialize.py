"""Which values backward reads and which it computes again, so that the fewest bytes are saved.

The values of the forward are a flow network whose edges are what a node reads; cutting a value costs its bytes. The
minimum cut between what cannot be computed again and what backward needs is what is saved
(the recomputation of Chen et al., "Training Deep Nets with Sublinear Memory Cost", chosen as in AOTAutograd's
min-cut partitioner).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.sizes import hint
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.protect import may_be_view
from thunder.core.transforms.recompute import recompute_in_backward, returned_names
from thunder.torch.registry import is_pointwise

_FREE = 1  # bytes charged for what lives on anyway: inputs, parameters, outputs


def size_bytes(p: TensorProxy) -> int:
    """numel × itemsize, symbolic sizes at the values that they had when captured."""
    numel = 1
    for s in p.shape:
        numel *= int(hint(s))
    return numel * p.dtype.bytes


def has_unknown_size(p: Proxy) -> bool:
    """Whether a size depends on data, so that nothing is known about its bytes."""
    return isinstance(p, TensorProxy) and any(hint(s) is None for s in p.shape)


def is_cheap(node: BoundSymbol) -> bool:
    """Whether a node may run again in backward: an elementwise operation, a conversion or a view, without effects."""
    if node.has_effects or node.is_backward or not node.defined:
        return False
    return is_pointwise(node.sym.torch_fn) or may_be_view(node)


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Saves the cheapest set of forward values from which backward's needs follow by cheap operations, and what
    backward would have to store.

    O(maximum flow) on the part of the forward that cheap operations connect to backward. Inputs that forward or the
    epilogue (`written`) writes cost their bytes, since backward needs a clone of what they were.

    Where `saved` is given, these values are what is saved. Programs with sizes that depend on data save what they read.
    """

    name: ClassVar[str] = "rematerialize"
    title: ClassVar[str] = "Rematerialize"
    stage: ClassVar[str] = "joint"
    written: frozenset = frozenset()
    saved: frozenset | None = None

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        if self.saved is None:
            producers = recomputed_producers(trace, self.written)
        else:
            producers = unsaved_producers(trace, self.saved)
        return recompute_in_backward(trace, producers) if producers else trace


def _read_by_backward(joint: TraceCtx, made_by: Mapping[str, BoundSymbol]) -> dict[str, TensorProxy]:
    return {
        p.name: p
        for n in joint.bound_symbols[:-1]
        if n.is_backward
        for p in n.flat_proxy_args
        if p.name in made_by and isinstance(p, TensorProxy)
    }


def _forward_producers(joint: TraceCtx) -> dict[str, BoundSymbol]:
    return {o.name: n for n in joint.bound_symbols[:-1] if not n.is_backward for o in n.defined}


def _repeatable(joint: TraceCtx, made_by: dict[str, BoundSymbol]) -> dict[str, BoundSymbol]:
    """The producers that may run again: cheap ones, except of memory that backward writes, which must be forward's."""
    written = {w.name for n in joint.bound_symbols[:-1] if n.is_backward for w in n.written}
    return {name: n for name, n in made_by.items() if name not in written and is_cheap(n)}


def _stored_in_backward(joint: TraceCtx, repeatable: Mapping[str, BoundSymbol]) -> set[str]:
    """The values that backward would have to store if it computed them again, since a node that is neither elementwise
    nor a view (a matrix product, say) reads them or a view of them. No fuser makes that free: such a value costs a
    kernel of its own and all its bytes.
    """
    nodes = joint.bound_symbols[:-1]
    views = {o.name: n for n in nodes if may_be_view(n) for o in n.defined}
    readers = (n for n in nodes if n.is_backward and not is_pointwise(n.sym.torch_fn) and not may_be_view(n))
    pending = [p.name for n in readers for p in n.flat_proxy_args]
    stored: set[str] = set()
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in views:
            pending.extend(p.name for p in views[name].flat_proxy_args)
        elif name in repeatable:
            stored.add(name)
    return stored


def recomputed_producers(joint: TraceCtx, written: frozenset = frozenset()) -> dict[str, BoundSymbol]:
    """For each value that is cheaper computed again than saved, the forward node that makes it."""
    made_by = _forward_producers(joint)
    needed = _read_by_backward(joint, made_by)
    writes = {w.name for n in joint.bound_symbols[:-1] if not n.is_backward for w in n.written}
    if any(has_unknown_size(p) for n in joint.bound_symbols for p in n.defined):
        return {}
    repeatable = _repeatable(joint, made_by)
    stored = _stored_in_backward(joint, repeatable)
    again = {name: n for name, n in repeatable.items() if name not in stored}
    network, reachable = _network(needed, again, returned_names(joint) - written - writes)
    if not reachable:
        return {}
    networkx = importlib.import_module("networkx")
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from(network, weight="capacity")
    # On these graphs (long, few paths between any two nodes) this algorithm is the quickest, and linear in the depth.
    algorithm = networkx.algorithms.flow.boykov_kolmogorov
    _, (near, _) = networkx.minimum_cut(graph, "source", "sink", flow_func=algorithm)
    return {name: made_by[name] for name in reachable if f"{name}:in" not in near and name in made_by}


def unsaved_producers(joint: TraceCtx, saved: frozenset) -> dict[str, BoundSymbol]:
    """For each value that backward needs and that is not saved, the forward node that makes it, if that is cheap."""
    made_by = _forward_producers(joint)
    repeatable = _repeatable(joint, made_by)
    found: dict[str, BoundSymbol] = {}
    pending = [name for name in _read_by_backward(joint, made_by) if name not in saved]
    while pending:
        name = pending.pop()
        node = repeatable.get(name)
        if name in found or node is None:
            continue
        found[name] = node
        pending.extend(p.name for p in node.flat_proxy_args if isinstance(p, TensorProxy) and p.name not in saved)
    return found


def _network(
    needed: Mapping[str, Proxy], made_by: dict[str, BoundSymbol], free: set[str]
) -> tuple[list[tuple[str, str, float]], set[str]]:
    """Edges with capacities, and the values that cheap nodes connect to backward."""
    edges: list[tuple[str, str, float]] = [(f"{name}:out", "sink", float("inf")) for name in needed]
    seen: set[str] = set()
    cheap: set[str] = set()
    pending = list(needed.values())
    while pending:
        value = pending.pop()
        if value.name in seen:
            continue
        seen.add(value.name)
        cost = _FREE if value.name in free else size_bytes(value) if isinstance(value, TensorProxy) else _FREE
        edges.append((f"{value.name}:in", f"{value.name}:out", float(max(cost, _FREE))))
        node = made_by.get(value.name)
        if node is None:
            edges.append(("source", f"{value.name}:in", float("inf")))
            continue
        cheap.add(value.name)
        tensors = [p for p in node.flat_proxy_args if isinstance(p, TensorProxy)]
        if not tensors:
            edges.append(("source", f"{value.name}:in", float("inf")))
        for p in tensors:
            edges.append((f"{p.name}:out", f"{value.name}:in", float("inf")))
            pending.append(p)
    return edges, cheap
