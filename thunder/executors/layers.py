"""Large regions end where layers of a model do, so that equal layers give equal regions, which are compiled once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from thunder.core.symbol import BoundSymbol

# A numbered item of the outermost list of modules: ("blocks.", "3") for blocks.3.attention.query.
_ITEM = re.compile(r"((?:[^.]*[^.\d][^.]*\.)*)(\d+)(?=\.|$)")

Layer = tuple[str, int]


def layer_of(node: BoundSymbol) -> Layer | None:
    """The layer that a node comes from: the name of the list that holds it, and its number there."""
    found = _ITEM.match(node.origin.module_path)
    return None if found is None else (found[1], int(found[2]))


def split_by_layers(nodes: Sequence[BoundSymbol], limit: int) -> list[list[BoundSymbol]]:
    """A region's nodes, in program order, in parts that may run one after the other.

    Up to `limit` nodes stay together. More are cut into runs of whole layers, the same number of layers in each, so
    that a run has about `limit` / 2 nodes or more; what lies between two layers belongs to the first, and what comes
    before or after all layers is a part of its own. Nodes of no layer at all stay together.
    """
    layers = [layer_of(n) for n in nodes]
    numbered = [n for n, layer in enumerate(layers) if layer is not None]
    if len(nodes) <= limit or not numbered:
        return [list(nodes)]
    for n in range(numbered[0], numbered[-1]):
        layers[n] = layers[n] or layers[n - 1]
    sizes: dict[str, dict[int, int]] = {}
    for layer in layers:
        if layer is not None:
            items = sizes.setdefault(layer[0], {})
            items[layer[1]] = items.get(layer[1], 0) + 1
    per_run = {name: max(1, limit * len(items) // (2 * sum(items.values()))) for name, items in sizes.items()}
    parts: list[list[BoundSymbol]] = []
    previous: Layer | None = None
    for node, layer in zip(nodes, layers, strict=True):
        run = None if layer is None else (layer[0], layer[1] // per_run[layer[0]])
        if not parts or run != previous:
            parts.append([])
        parts[-1].append(node)
        previous = run
    return parts
