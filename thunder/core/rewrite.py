"""The one interpreter that passes substitute nodes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.origin import origin
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx


class _Keep:
    """A rule's answer: the node stays."""


KEEP = _Keep()
Rule = Callable[[BoundSymbol], Any]


def rewrite(trace: TraceCtx, rule: Rule, pass_name: str) -> TraceCtx:
    """A trace in which each node is what `rule` makes of it.

    `rule(node)` sees the node with its arguments already renamed. It returns KEEP, or the outputs that stand for the
    node's, having called symbols (each call is a node, and a child of the rewritten one). Replaced outputs keep their
    names. O(nodes).
    """
    new = from_trace(trace)
    env: dict[str, Any] = {}
    with tracectx(new):
        for node in trace.bound_symbols:
            node = node.renamed(env, outputs=False)
            start = len(new.bound_symbols)
            with origin(node.origin, pass_name=pass_name):
                result = rule(node)
            if isinstance(result, _Keep):
                new.add_bound_symbol(node)
            else:
                substitute(new, start, node.output, result, env)
    return new


def substitute(trace: TraceCtx, start: int, old: Any, result: Any, env: dict[str, Any]) -> None:
    """Lets `result` stand for `old`.

    Nodes since `start` that define a result take the old name; what was there before is renamed in `env`.
    """
    defined = {o.name for n in trace.bound_symbols[start:] for o in n.defined}
    names: dict[str, Any] = {}
    for was, now in zip(tree_flatten([old])[0], tree_flatten([result])[0], strict=True):
        if not isinstance(was, Proxy) or (isinstance(now, Proxy) and was.name == now.name):
            continue
        if isinstance(now, Proxy) and now.name in defined and now.name not in names:
            names[now.name] = was
        else:
            env[was.name] = names.get(now.name, now) if isinstance(now, Proxy) else now
    if names:
        nodes = trace.bound_symbols
        nodes[start:] = [n.renamed(names) for n in nodes[start:]]
