"""Which nodes of a trace run as one: the search for fusion regions, and the base of executors that fuse them.

A region is forward or backward, never both. What writes memory, draws random numbers, starts a gradient or talks to
other processes is in no region, and nothing is moved across it that could tell.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from thunder.core import prims
from thunder.core.compile_data import get_compile_option
from thunder.core.errors import ThunderRuntimeError
from thunder.core.log import get_logger
from thunder.core.origin import Origin, origin
from thunder.core.proxies import FutureTensorProxy, NumberProxy, Proxy, TensorProxy, tensors_among
from thunder.core.sizes import symbolic_numbers
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import OpOverload
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.core.transforms.dce import live_nodes
from thunder.executors.layers import split_by_layers
from thunder.executors.order import order_edges
from thunder.extend.executor import FusionExecutor

_log = get_logger("fusions")

FusionType = Literal["consecutive", "dataflow"]
CanFuse = Callable[[BoundSymbol], bool]
FusionClass = str


# What may be fused at all


def is_collective(node: BoundSymbol) -> bool:
    """Whether the node starts, or waits for, an exchange between processes."""
    if any(isinstance(p, FutureTensorProxy) for p in (*node.flat_args, *node.flat_outs)):
        return True
    fn = node.sym.torch_fn
    return isinstance(fn, OpOverload) and "c10d" in fn.namespace


def runs_alone(node: BoundSymbol) -> bool:
    """Whether the node does more than compute its outputs, so that nothing may run as one with it."""
    structural = not node.defined or node.sym is prims.get_grad
    return structural or node.has_effects or is_collective(node)


def is_fusion_barrier(node: BoundSymbol) -> bool:
    """Whether no region may contain the node, whatever an executor says. A region is in no other region."""
    return node.sym.is_fusion or runs_alone(node)


def fusion_class(node: BoundSymbol) -> FusionClass:
    """What the nodes of one region have in common: they are forward or backward. Recomputation is part of backward."""
    return "backward" if node.is_backward else "forward"


# The search

_MANY = 4  # independent operations whose calls cost more than that of a region

class _Groups:
    """Nodes by number, merged (union-find); a group is called by its smallest member."""

    def __init__(self, count: int):
        self._parent = list(range(count))

    def find(self, n: int) -> int:
        parent = self._parent
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    def merge(self, a: int, b: int) -> int:
        a, b = sorted((self.find(a), self.find(b)))
        self._parent[b] = a
        return a

    def members(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for n in range(len(self._parent)):
            found.setdefault(self.find(n), []).append(n)
        return found


@dataclass
class RegionSearch:
    """Finds regions along the dependency graph. O(nodes + edges), and never a cycle.

    Each node gets a level that does not fall along an edge and stays the same only along edges between nodes that fit
    into one region. Nodes that such edges connect at one level form a region. A path that leaves a region passes an
    edge on which the level rises, so it never comes back: no merge needs a search for cycles.

    Attributes:
        is_small: which nodes take less time than a call of them.
        edge_visits: how many times an edge was looked at, for tests of the complexity.
    """

    nodes: Sequence[BoundSymbol]
    before: Sequence[Sequence[int]]
    kinds: Sequence[FusionClass | None]
    is_small: CanFuse | None = None
    edge_visits: int = 0
    after: list[list[int]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)

    def run(self) -> list[list[int]]:
        """The groups, in an order in which each follows all that it depends on; each ascending."""
        self.groups = _Groups(len(self.nodes))
        self._earliest_levels()
        self._sink_groups()
        self._merge_readers_of_one_value()
        if self.is_small is not None:
            self._merge_small_nodes(self.is_small)
        return self._in_order()

    def _fits(self, a: int, b: int) -> bool:
        return self.kinds[a] is not None and self.kinds[a] == self.kinds[b]

    def _earliest_levels(self) -> None:
        self.after = [[] for _ in self.nodes]
        for n, before in enumerate(self.before):
            level = 0
            for p in before:
                self.edge_visits += 1
                self.after[p].append(n)
                level = max(level, self.levels[p] + (not self._fits(p, n)))
            self.levels.append(level)
            for p in before:
                if self._fits(p, n) and self.levels[p] == level:
                    self.groups.merge(p, n)

    def _sink_groups(self) -> None:
        """Moves groups that only later levels read to the latest level possible, where they meet what reads them."""
        beyond = max(self.levels, default=0) + 1
        members = self.groups.members()
        for root in sorted(members, key=lambda r: (-self.levels[r], r)):
            group = members[root]
            level = self.levels[root]
            latest, readers = beyond, []
            for n in group:
                for c in self.after[n]:
                    self.edge_visits += 1
                    if self.groups.find(c) != self.groups.find(root):
                        latest = min(latest, self.levels[c] - (not self._fits(n, c)))
                        readers.append((n, c))
            if self.kinds[root] is None:
                new_level = latest
            else:
                meets = [c for n, c in readers if self._fits(n, c) and self.levels[c] == latest]
                new_level = latest if meets and latest > level else level
            for n in group:
                self.levels[n] = new_level
            if new_level != level:
                for n, c in readers:
                    if self._fits(n, c) and self.levels[c] == new_level:
                        self.groups.merge(root, c)

    def _merge_readers_of_one_value(self) -> None:
        """Regions of one level that read the same tensor become one: it is then read from memory once."""
        first: dict[Hashable, int] = {}
        for n, node in enumerate(self.nodes):
            if self.kinds[n] is None:
                continue
            for p in node.flat_proxy_args:
                self.edge_visits += 1
                if isinstance(p, TensorProxy):
                    self.groups.merge(first.setdefault((self.levels[n], self.kinds[n], p.name), n), n)

    def _merge_small_nodes(self, is_small: CanFuse) -> None:
        """Small nodes that are left alone join a region of their level and device, or are one if they are many."""
        first: dict[Hashable, int] = {}
        alone: dict[Hashable, list[int]] = {}
        for root, group in self.groups.members().items():
            node, kind = self.nodes[root], self.kinds[root]
            if kind is not None:
                place = self.levels[root], kind, next((o.device for o in tensors_among(node.defined)), None)
                if len(group) > 1:
                    first.setdefault(place, root)
                elif is_small(node):
                    alone.setdefault(place, []).append(root)
        for place, roots in alone.items():
            if place in first or len(roots) >= _MANY:
                for root in roots:
                    self.groups.merge(first.get(place, roots[0]), root)

    def _in_order(self) -> list[list[int]]:
        """Topological; where there is a choice forward comes first, then what ends earlier in the program."""
        members = self.groups.members()
        waiting = dict.fromkeys(members, 0)
        for n, before in enumerate(self.before):
            for p in before:
                self.edge_visits += 1
                waiting[self.groups.find(n)] += self.groups.find(p) != self.groups.find(n)

        def priority(root: int) -> tuple[bool, int, int]:
            return self.nodes[root].is_backward, members[root][-1], root

        ready = [priority(r) for r, count in waiting.items() if not count]
        heapq.heapify(ready)
        ordered: list[list[int]] = []
        while ready:
            *_, root = heapq.heappop(ready)
            ordered.append(members[root])
            for n in members[root]:
                for c in self.after[n]:
                    self.edge_visits += 1
                    other = self.groups.find(c)
                    if other != root:
                        waiting[other] -= 1
                        if not waiting[other]:
                            heapq.heappush(ready, priority(other))
        if len(ordered) != len(members):
            raise ThunderRuntimeError("fusion regions depend on each other in a circle; this is a defect of thunder")
        return ordered


def _consecutive(kinds: Sequence[FusionClass | None]) -> list[list[int]]:
    """Maximal runs of neighbours that fit into one region."""
    groups: list[list[int]] = []
    for n, kind in enumerate(kinds):
        if n and kind is not None and kind == kinds[n - 1]:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups


def _numbers_of(node: BoundSymbol) -> dict[str, Any]:
    """What the symbolic sizes of a node are made of, those of its results included."""
    values = (*node.flat_args, *node.flat_outs)
    return symbolic_numbers(s for v in values for s in (v.shape if isinstance(v, TensorProxy) else (v,)))


def numbers_among(nodes: Iterable[BoundSymbol], inputs: Iterable[Proxy]) -> dict[str, tuple[int, bool]]:
    """What symbolic sizes and strides of a region's inputs, and ints in its nodes, are made of; see `symbolic_numbers`.
    """
    sizes: list[Any] = []
    for p in tensors_among(inputs):
        sizes += (*p.shape, *(p.layout.strides if p.layout is not None else ()))
    return symbolic_numbers([*sizes, *(a for n in nodes for a in n.flat_args)])


def fuse_bound_symbols(
    trace: TraceCtx,
    can_fuse: CanFuse,
    fusion_type: FusionType | None = None,
    *,
    is_barrier: CanFuse = is_fusion_barrier,
    is_small: CanFuse | None = None,
) -> list[list[BoundSymbol]]:
    """The trace's nodes in groups that may run as one, in an order in which they may run.

    Args:
        trace: ends with its return node, which stays last and alone.
        can_fuse: which nodes may be in a region; barriers are in none, whatever it says, nor is what has sizes made of
            other numbers than those that the program is given.
        is_barrier: what is a barrier; at least what `runs_alone`.
        fusion_type: "consecutive" takes maximal runs of neighbours and keeps the order; "dataflow" follows the
            dependency graph. None takes the compile option.
        is_small: which nodes take less time than a call of them. Where dataflow gives such a node no company, it shares
            a region with what is independent of it. None for no node.

    Returns: groups of at least one node each, every node in one of them. A node that cannot be fused is alone.
    Complexity: O(nodes + edges), beside a heap of the groups that are ready.
    """
    if fusion_type is None:
        fusion_type = get_compile_option("fusion_type", "how fusion regions grow: consecutive or dataflow")
    nodes = trace.bound_symbols[:-1]
    given = {a.name for a in trace.args}
    kinds = [
        fusion_class(n) if not is_barrier(n) and can_fuse(n) and _numbers_of(n).keys() <= given else None for n in nodes
    ]
    if fusion_type == "consecutive":
        groups = _consecutive(kinds)
    else:
        groups = RegionSearch(nodes, order_edges(trace), kinds, is_small).run()
    return [[nodes[n] for n in group] for group in groups] + [[trace.bound_symbols[-1]]]


# Regions

Producers = dict[str, BoundSymbol]
Consumers = dict[str, list[BoundSymbol]]


class Region:
    """Nodes to run as one, with what flows in and out.

    Attributes:
        producers, consumers: of the trace that it is in: which node defines a name, and which ones read it.
        bsyms: the nodes in program order.
        inputs: proxies read and not defined here, each once, in the order in which the nodes first read them; before
            them the numbers that symbolic sizes and strides are made of, as far as they are among `given`.
        outputs: proxies defined here and read elsewhere, in the order in which they are defined.
    """

    def __init__(
        self,
        producers: Producers,
        consumers: Consumers,
        bsyms: Sequence[BoundSymbol],
        given: Collection[str] | None = None,
    ):
        self.producers, self.consumers = producers, consumers
        self.bsyms = list(bsyms)
        inside = {id(n) for n in self.bsyms}
        defined = {o.name for n in self.bsyms for o in n.defined}
        read: dict[str, Proxy] = {}
        for node in self.bsyms:
            for p in node.flat_proxy_args:
                if p.name not in defined:
                    read.setdefault(p.name, p)
        numbers = [n for n in numbers_among(self.bsyms, read.values()) if given is None or n in given]
        self.inputs: list[Proxy] = [NumberProxy(name, python_type=int) for name in numbers]
        self.inputs.extend(p for name, p in read.items() if name not in numbers)
        self.outputs: list[Proxy] = [
            o for n in self.bsyms for o in n.defined if any(id(c) not in inside for c in consumers.get(o.name, ()))
        ]

    def __repr__(self) -> str:
        names = [", ".join(p.name for p in ps) for ps in (self.inputs, self.outputs)]
        return f"<Region of {len(self.bsyms)} nodes: {names[0]} -> {names[1]}>"


def producers_and_consumers(nodes: Sequence[BoundSymbol]) -> tuple[Producers, Consumers]:
    """Which node defines each name, and which nodes read it. O(nodes)."""
    producers: Producers = {}
    consumers: Consumers = {}
    for node in nodes:
        for o in node.defined:
            producers[o.name] = node
        for p in node.flat_proxy_args:
            consumers.setdefault(p.name, []).append(node)
    return producers, consumers


def peel(
    nodes: Sequence[BoundSymbol], consumers: Consumers, is_free: CanFuse
) -> tuple[list[BoundSymbol], list[BoundSymbol], list[BoundSymbol]]:
    """A region's nodes as (before, core, after): free nodes at its rim, such as views, run by themselves. O(nodes).

    `after` are free nodes that nothing in the core reads. `before` are free nodes that read nothing of the core, where
    they, or free nodes made of them, are read outside.
    """
    core = {id(n): n for n in nodes}
    after: list[BoundSymbol] = []
    for node in reversed(nodes):
        if is_free(node) and not any(id(c) in core for o in node.defined for c in consumers.get(o.name, ())):
            after.append(core.pop(id(node)))
    computed: set[str] = set()
    sources: dict[int, BoundSymbol] = {}
    for node in core.values():
        if is_free(node) and not any(p.name in computed for p in node.flat_proxy_args):
            sources[id(node)] = node
        else:
            computed.update(o.name for o in node.defined)
    before: list[BoundSymbol] = []
    for node in reversed(sources.values()):
        if any(id(c) not in core for o in node.defined for c in consumers.get(o.name, ())):
            before.append(core.pop(id(node)))
    return before[::-1], list(core.values()), after[::-1]


def replace_regions(
    trace: TraceCtx,
    groups: Iterable[Sequence[BoundSymbol]],
    *,
    is_free: CanFuse,
    is_wanted: Callable[[Sequence[BoundSymbol], Sequence[BoundSymbol]], bool],
    fuse: Callable[[Region, int], BoundSymbol],
    pass_name: str,
    count: int = 0,
) -> tuple[TraceCtx, int]:
    """A trace with regions replaced by one node each, and how many there are. O(nodes).

    Args:
        groups: all nodes of `trace`, in an order in which they may run.
        is_free: see `peel`.
        is_wanted: whether a region is made of a group: called with the group, and with what peeling leaves of it.
        fuse: the node that runs a region; its second argument counts the regions before it.
        count: where counting begins.
    """
    producers, consumers = producers_and_consumers(trace.bound_symbols)
    given = {a.name for a in trace.args}
    new = from_trace(trace)
    with tracectx(new):
        for group in groups:
            before, core, after = peel(group, consumers, is_free)
            if not is_wanted(group, core):
                new.bound_symbols.extend(group)
                continue
            with origin(Origin.join(n.origin for n in core), pass_name=pass_name):
                fused = fuse(Region(producers, consumers, core, given), count)
            new.bound_symbols.extend((*before, fused, *after))
            count += 1
    return new, count


class RegionFusionExecutor(FusionExecutor):
    """A fuser that says what it can fuse (`can_fuse`) and makes the node that runs a region (`fuse`).

    `fusion_pass` finds the regions by the compile option `fusion_type`.
    """

    min_region_size = 2
    max_region_size = 64  # of nodes, where there are layers to cut at

    def is_free(self, node: BoundSymbol) -> bool:
        """Whether a node costs nothing by itself, so that it is better left out at a region's rim."""
        return False

    def is_small(self, node: BoundSymbol) -> bool:
        """Whether a node takes less time than a call of it, so that a region with others is better than none."""
        return False

    def is_worth_fusing(self, nodes: Sequence[BoundSymbol], work: int) -> bool:
        """Whether a region of these nodes, of which `work` are not free, gains anything."""
        return work >= self.min_region_size

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """The trace with its regions replaced by one node each; what nobody reads is gone. O(nodes + edges)."""
        return self.with_regions(trace, self.is_free)

    def with_regions(self, trace: TraceCtx, is_free: CanFuse) -> TraceCtx:
        """What `fusion_pass` gives, with another judgement of what is free."""
        trace = trace.with_nodes(live_nodes(trace.bound_symbols))

        def is_wanted(group: Sequence[BoundSymbol], core: Sequence[BoundSymbol]) -> bool:
            fusible = len(group) > 1 or (not is_fusion_barrier(group[0]) and self.can_fuse(group[0]))
            work = sum(not is_free(n) for n in core) if fusible else 0
            return bool(core) and fusible and self.is_worth_fusing(core, work) and self.get_fuel()

        new, count = replace_regions(
            trace,
            self._groups(trace, lambda n: self.is_small(n) and not is_free(n)),
            is_free=is_free,
            is_wanted=is_wanted,
            fuse=self.fuse,
            pass_name=str(self.name),
            count=sum(n.sym.is_fusion for n in trace.bound_symbols),
        )
        _log.debug("%s: %d regions in %d nodes", self.name, count, len(trace.bound_symbols))
        return new

    def _groups(self, trace: TraceCtx, is_small: CanFuse) -> list[list[BoundSymbol]]:
        groups = fuse_bound_symbols(trace, self.can_fuse, is_small=is_small)
        return [part for group in groups for part in split_by_layers(group, self.max_region_size)]


def run_nodes(
    nodes: Sequence[BoundSymbol],
    env: dict[str, Any],
    call: Callable[[BoundSymbol, dict[str, Any]], Any],
    *,
    keep: Collection[str] | None = None,
) -> None:
    """Runs nodes in order on values: `call(node, env)` gives the node's results, which enter `env` by name.

    keep: names that are wanted in `env` at the end; others go after their last use. By default all are.
    """
    dying: dict[int, list[str]] = {}
    if keep is not None:
        last = {p.name: n for n, node in enumerate(nodes) for p in (*node.flat_proxy_args, *node.defined)}
        for name in last.keys() - set(keep):
            dying.setdefault(last[name], []).append(name)
    for n, node in enumerate(nodes):
        _store(node.output, call(node, env), env)
        for name in dying.get(n, ()):
            env.pop(name, None)


def _store(output: Any, value: Any, env: dict[str, Any]) -> None:
    if isinstance(output, Proxy):
        env[output.name] = value
    elif isinstance(output, tuple | list):
        for o, v in zip(output, value, strict=True):
            _store(o, v, env)
