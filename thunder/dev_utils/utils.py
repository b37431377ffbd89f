"""What the tools have in common."""

from __future__ import annotations

from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol

NON_COMPUTATION_PRIMS = (
    PrimIDs.RETURN,
    PrimIDs.DEL,
    PrimIDs.COMMENT,
    PrimIDs.UNPACK_TRIVIAL,
    PrimIDs.UNPACK_SEQUENCE,
    PrimIDs.PACK_LIST,
    PrimIDs.CLEAR_MUTABLE_COLLECTION,
    PrimIDs.SINK,
    PrimIDs.TENSOR_CONSTANT,
)
"""Primitives that give a trace its frame and compute nothing."""


def is_computation(node: BoundSymbol) -> bool:
    """Whether a node does work when the program runs."""
    return node.sym.id not in NON_COMPUTATION_PRIMS
