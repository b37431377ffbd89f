"""A Dynamo graph cut into runs of nodes: those that thunder runs, and the others.

A piece is a run of neighbours in program order and pieces run in that order, so writes to memory that pieces share
happen when they did. Only nodes that take a value out of a container are moved: to the piece that makes the container.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from thunder.core.pytree import tree_iter
from thunder.core.sizes import SYMBOLIC_TYPES, free_symbols
from thunder.frontend.lowering import example_value


@dataclass(eq=False)
class Piece:
    """A run of nodes of the original graph.

    inputs, outputs: nodes of the original graph whose values enter and leave.
    module: the same nodes as a graph of their own.
    """

    nodes: list[fx.Node]
    is_supported: bool
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    module: fx.GraphModule | None = None

    @property
    def examples(self) -> list[Any]:
        """Fake values of the inputs."""
        return [example_value(n) for n in self.inputs]


def body_nodes(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute something."""
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]


def _is_container_item(node: fx.Node) -> bool:
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return isinstance(example_value(node.args[0]), tuple | list)


def _is_number(node: fx.Node) -> bool:
    """Whether a node computes with sizes and numbers only, which both sides can do."""
    values = [example_value(n) for n in (node, *node.all_input_nodes)]
    plain = all(isinstance(v, (*SYMBOLIC_TYPES, int, float, bool)) for v in values)
    return plain and node.op == "call_function" and not node.meta.get("unbacked_bindings")


def partition(gm: fx.GraphModule, unsupported: Any) -> list[Piece]:
    """The pieces of a graph in order, without inputs and outputs. `unsupported`: a container of nodes. O(nodes)."""
    pieces: list[Piece] = []
    piece_of: dict[fx.Node, Piece] = {}
    waiting: list[fx.Node] = []
    for node in body_nodes(gm):
        if _is_container_item(node) and node.args[0] in piece_of and node not in unsupported:
            piece = piece_of[node.args[0]]  # type: ignore[index]
        elif _is_number(node) and node not in unsupported:
            if not pieces:
                waiting.append(node)
                continue
            piece = pieces[-1]
        else:
            is_supported = node not in unsupported
            if not pieces or pieces[-1].is_supported != is_supported:
                pieces.append(Piece(waiting, is_supported))
                piece_of.update(dict.fromkeys(waiting, pieces[-1]))
                waiting = []
            piece = pieces[-1]
        piece.nodes.append(node)
        piece_of[node] = piece
    if waiting:
        pieces.append(Piece(waiting, True))
    return pieces


def connect(gm: fx.GraphModule, pieces: Sequence[Piece]) -> None:
    """Finds what enters and leaves each piece, and makes its module. O(nodes)."""
    owner = {n: p for p in pieces for n in p.nodes}
    symbols = _symbol_sources(gm)
    leaving: dict[Piece, dict[fx.Node, None]] = {p: {} for p in pieces}
    entering: dict[Piece, dict[fx.Node, None]] = {p: {} for p in pieces}
    for piece in pieces:
        needed = dict.fromkeys(symbols[s] for s in _symbols_of(piece) if s in symbols) if piece.is_supported else {}
        for source in (*needed, *(source for node in piece.nodes for source in node.all_input_nodes)):
            if source.op == "get_attr" or owner.get(source) is piece:
                continue
            entering[piece].setdefault(source)
            if source in owner:
                leaving[owner[source]].setdefault(source)
    result = next(n for n in gm.graph.nodes if n.op == "output")
    for source in result.all_input_nodes:
        if source in owner:
            leaving[owner[source]].setdefault(source)
    for piece in pieces:
        piece.inputs, piece.outputs = list(entering[piece]), list(leaving[piece])
        piece.module = extract(gm, piece.nodes, piece.inputs, piece.outputs)


def _symbol_sources(gm: fx.GraphModule) -> dict[str, fx.Node]:
    """The first node that gives each symbolic number as its value."""
    sources: dict[str, fx.Node] = {}
    for node in gm.graph.nodes:
        value = example_value(node)
        if isinstance(value, SYMBOLIC_TYPES) and (name := str(value.node.expr)).isidentifier():
            sources.setdefault(name, node)
    return sources


def _symbols_of(piece: Piece) -> dict[str, None]:
    """The symbolic numbers that a piece's values are described by and that it does not define."""
    found: dict[str, None] = {}
    own: set[str] = set()
    read = [source for node in piece.nodes for source in node.all_input_nodes]
    for node in (*piece.nodes, *read):
        own |= {str(s) for s in node.meta.get("unbacked_bindings") or ()}
        for leaf in tree_iter(example_value(node)):
            numbers = (*leaf.shape, *leaf.stride()) if _is_strided(leaf) else (leaf,)
            for number in numbers:
                if isinstance(number, SYMBOLIC_TYPES):
                    found.update(dict.fromkeys(free_symbols(number)))
    return {name: None for name in found if name not in own}


def _is_strided(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def extract(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """Nodes of a graph as a graph module of their own, which returns a tuple. Attributes are shared with `gm`."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for source in inputs:
        env[source] = graph.placeholder(source.name if source.op != "placeholder" else str(source.target))
        env[source].meta = dict(source.meta)
        env[source].meta["example_value"] = example_value(source)

    def copied(source: fx.Node) -> fx.Node:
        if source not in env:
            env[source] = graph.node_copy(source)
        return env[source]

    for node in nodes:
        env[node] = graph.node_copy(node, copied)
    graph.output(tuple(env[n] for n in outputs))
    return fx.GraphModule(gm, graph)


def parent_module(gm: fx.GraphModule, pieces: Sequence[Piece], names: Sequence[str]) -> fx.GraphModule:
    """The original graph as calls of its pieces."""
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    modules: dict[str, Any] = {}

    def copied(source: fx.Node) -> fx.Node:
        if source not in env:
            env[source] = graph.node_copy(source)
        return env[source]

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = graph.node_copy(node)
    for piece, name in zip(pieces, names, strict=True):
        assert piece.module is not None
        modules[name] = piece.module
        call = graph.call_module(name, tuple(env[n] for n in piece.inputs))
        for index, source in enumerate(piece.outputs):
            item = graph.call_function(operator.getitem, (call, index))
            item.meta = dict(source.meta)
            env[source] = item
    result = next(n for n in gm.graph.nodes if n.op == "output")
    graph.output(fx.map_arg(result.args[0], copied))
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node in env:
            modules.setdefault(str(node.target), _attribute(gm, str(node.target)))
    return fx.GraphModule(modules, graph)


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value
