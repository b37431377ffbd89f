"""Tools for user-written transforms: visiting and replacing nodes, and the dependency graph of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from thunder.core import prims
from thunder.core.errors import ThunderTypeError
from thunder.core.origin import origin
from thunder.core.proxies import Proxy
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx


class VISIT_TYPE(Enum):
    """What becomes of a visited node and of the nodes that the visitor has made."""

    INSERT_AFTER = auto()
    INSERT_BEFORE = auto()
    REPLACE = auto()
    NO_OP = auto()


def visitor_transform(
    trace_from: TraceCtx, visit: Callable[[BoundSymbol], VISIT_TYPE], *, provenance: str | None = None
) -> TraceCtx:
    """A trace in which the nodes that `visit` makes stand before, after or in the place of each node.

    `visit(bsym)` runs with the new trace current, so calling symbols makes nodes, which are children of the visited
    one. A visitor that replaces a node must make nodes with the node's outputs. O(nodes).
    """
    new = from_trace(trace_from)
    with tracectx(new):
        for node in trace_from.bound_symbols:
            start = len(new.bound_symbols)
            with origin(node.origin, pass_name="visitor_transform"):
                answer = visit(node)
            if not isinstance(answer, VISIT_TYPE):
                raise ThunderTypeError(f"a visitor returns a VISIT_TYPE, not {answer!r}")
            made = new.bound_symbols[start:]
            if answer is VISIT_TYPE.NO_OP and made:
                raise ThunderTypeError(f"the visitor made nodes at {node!r} and returned NO_OP")
            kept = {
                VISIT_TYPE.REPLACE: made,
                VISIT_TYPE.NO_OP: [node],
                VISIT_TYPE.INSERT_BEFORE: [*made, node],
                VISIT_TYPE.INSERT_AFTER: [node, *made],
            }
            new.bound_symbols[start:] = kept[answer]
    if provenance is not None:
        new.set_provenance(provenance)
    return new


def _traced(trace: TraceCtx, fn: Callable[[], Any]) -> list[BoundSymbol]:
    start = len(trace.bound_symbols)
    was_complete, trace._is_complete = trace._is_complete, False
    try:
        with tracectx(trace):
            fn()
        made = trace.bound_symbols[start:]
        del trace.bound_symbols[start:]
    finally:
        trace._is_complete = was_complete
    return made


def insert_inplace(trc: TraceCtx, idx: int, fn: Callable[[], Any]) -> None:
    """Puts the nodes that `fn()` makes before node `idx` of a trace under construction."""
    trc.bound_symbols[idx:idx] = _traced(trc, fn)


def replace_inplace(trc: TraceCtx, idx: int, fn: Callable[[BoundSymbol], Any]) -> None:
    """Puts the nodes that `fn(node)` makes in the place of node `idx` of a trace under construction."""
    node = trc.bound_symbols[idx]
    with origin(node.origin):
        trc.bound_symbols[idx : idx + 1] = _traced(trc, lambda: fn(node))


class Node:
    """A bound symbol in the dependency graph of its trace."""

    def __init__(self, bsym: BoundSymbol, number: int = 0):
        self.bsym = bsym
        self.number = number
        self.parents: list[Node] = []
        self.children: list[Node] = []

    def __repr__(self) -> str:
        return f"<Node {self.number}: {self.bsym!r}>"


def bsym_list_to_dag(
    bsyms: Sequence[BoundSymbol], *, producers: Any = None, consumers: Any = None
) -> tuple[list, list]:
    """The dependency graph: (nodes without parents, nodes without children). Its edges are who reads whose output.
    O(nodes).
    """
    nodes = [Node(b, n) for n, b in enumerate(bsyms)]
    made_by = {o.name: node for node in nodes for o in node.bsym.defined}
    for node in nodes:
        parents = {
            id(p): p for a in node.bsym.flat_proxy_args if (p := made_by.get(a.name)) is not None and p is not node
        }
        node.parents = list(parents.values())
        for parent in node.parents:
            parent.children.append(node)
    return [n for n in nodes if not n.parents], [n for n in nodes if not n.children]


class TOPOSORT_ORDER(Enum):
    """Whether a topological order is built from the first node or from the last."""

    TOP_DOWN = auto()
    BOTTOM_UP = auto()


def _first(nodes: list[Node]) -> int:
    return 0


def toposort_bsym_dag(
    start_nodes: list[Node], toposort_order: TOPOSORT_ORDER, selector: Callable[[list[Node]], int] = _first
) -> list[BoundSymbol]:
    """The bound symbols of a dependency graph in an order in which each follows what it reads.

    Args:
        start_nodes: roots for TOP_DOWN, leaves for BOTTOM_UP.
        selector: from the nodes that may come next to the index of the one that does.
    """
    down = toposort_order is TOPOSORT_ORDER.TOP_DOWN
    ready = list(start_nodes)
    waiting: dict[int, int] = {}
    ordered: list[BoundSymbol] = []
    while ready:
        node = ready.pop(selector(ready))
        ordered.append(node.bsym)
        for following in node.children if down else node.parents:
            left = waiting.get(id(following), len(following.parents if down else following.children)) - 1
            waiting[id(following)] = left
            if left == 0:
                ready.append(following)
    return ordered if down else ordered[::-1]


def unwrap_one_level_of_subsymbols(trace: TraceCtx) -> TraceCtx:
    """The trace with each composite node replaced by what it is made of. O(nodes of the result)."""

    def rule(node: BoundSymbol) -> Any:
        if (
            node.sym.is_prim
            or node.sym.meta is None
            or node.sym.executor is not None
            or node.sym is prims.python_return
        ):
            return KEEP
        return node.sym.meta(*node.args, **node.kwargs)

    return rewrite(trace, rule, "unwrap_one_level_of_subsymbols")


def eval_trace(
    trace: TraceCtx, *args: Any, symbol_mapper: Callable | None = None, with_env: bool = False, **kwargs: Any
) -> Any:
    """Runs the nodes of `trace` on other values: calls each node's symbol, or what `symbol_mapper(bsym)` gives for it.

    Args:
        args: values for the trace's inputs, proxies (inside another trace) or tensors.
        with_env: also return the values of all names.
    Returns: what the trace returns, with the values for its proxies.
    """
    env: dict[str, Any] = {p.name: v for p, v in zip(trace.args, args, strict=True) if isinstance(p, Proxy)}
    result = None
    for node in trace.bound_symbols:
        renamed = node.renamed(env, outputs=False)
        if node.sym is prims.python_return:
            result = renamed.args[0] if len(renamed.args) == 1 else renamed.args
            break
        if node.sym in (prims.unpack_trivial, prims.python_del, prims.comment):
            continue
        fn = symbol_mapper(node) if symbol_mapper is not None else node.sym
        with origin(node.origin):
            out = fn(*renamed.args, **renamed.kwargs)
        _bind(node.output, out, env)
    return (result, env) if with_env else result


def _bind(names: Any, values: Any, env: dict[str, Any]) -> None:
    if isinstance(names, Proxy):
        env[names.name] = values
    elif isinstance(names, list | tuple):
        for name, value in zip(names, values, strict=True):
            _bind(name, value, env)
