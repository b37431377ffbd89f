"""A trace as a graph in the DOT language."""

from __future__ import annotations

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

_UNSHOWN = ("unpack_trivial", "python_del", "comment", "clear_mutable_collection")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _label(node: BoundSymbol, show_metadata: bool) -> str:
    lines = [node.sym.name]
    if show_metadata:
        lines += [f"{o.name}: {o.type_string()}" for o in node.flat_proxy_outs]
        if node.origin.source is not None:
            lines.append(str(node.origin.source))
    return "\n".join(lines)


def make_trace_dot(trace: TraceCtx, show_metadata: bool = False) -> str:
    """A trace's data flow as DOT source: `dot -Tsvg` draws it. Backward nodes are blue, fused regions grey. O(nodes).

    Args:
        show_metadata: nodes also show their outputs' types and the line of the program that they come from.
    """
    lines = [f"digraph {_quoted(trace.name)} {{", "  node [shape=box];"]
    producer: dict[str, str] = {}
    for a in (a for a in trace.args if isinstance(a, Proxy)):
        producer[a.name] = f"arg_{a.name}"
        text = f"{a.name}: {a.type_string()}" if show_metadata else a.name
        lines.append(f"  arg_{a.name} [shape=ellipse, label={_quoted(text)}];")
    shown = [node for node in trace.bound_symbols if node.sym.name not in _UNSHOWN]
    for index, node in enumerate(shown):
        name = f"n{index}"
        color = ", style=filled, fillcolor=lightblue" if node.is_backward else ""
        color = ", style=filled, fillcolor=lightgrey" if node.sym.is_fusion else color
        lines.append(f"  {name} [label={_quoted(_label(node, show_metadata))}{color}];")
        for p in node.flat_proxy_args:
            if p.name in producer:
                lines.append(f"  {producer[p.name]} -> {name} [label={_quoted(p.name)}];")
        producer.update((o.name, name) for o in node.defined)
    return "\n".join([*lines, "}"]) + "\n"
