"""The joint trace as two: forward and backward, by tag alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thunder.core import prims
from thunder.core.origin import BACKWARD, origin
from thunder.core.proxies import CollectionProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx, TraceTag
from thunder.core.tracing import tracectx
from thunder.core.transforms.dce import live_nodes


@dataclass(frozen=True)
class SplitTraces:
    """forward returns (outputs, saved tensors, saved others); backward takes ([tensors, others], cotangents).

    differentiable: positions in the flat outputs whose cotangents backward takes, in order.
    """

    forward: TraceCtx
    backward: TraceCtx | None
    differentiable: tuple[int, ...]


def split_forward_backward(joint: TraceCtx) -> SplitTraces:
    """Splits a verified joint trace. O(nodes)."""
    outputs, grads = joint.bound_symbols[-1].args
    nodes = joint.bound_symbols[:-1]
    forward = [n for n in nodes if not n.is_backward]
    marks = {n.output.name: n.args[0].name for n in nodes if n.sym is prims.get_grad}
    backward = [n for n in nodes if n.is_backward and n.sym is not prims.get_grad]
    flat = list(tree_flatten(outputs)[0])
    wanted = {v: k for k, v in marks.items()}
    first = {o.name: n for n, o in reversed(list(enumerate(flat))) if isinstance(o, TensorProxy)}
    differentiable = tuple(sorted(n for name, n in first.items() if name in wanted))
    cotangent_names = {n: wanted[flat[n].name] for n in differentiable}
    backward = live_nodes(backward, {g.name for g in grads if isinstance(g, Proxy)})
    known = {o.name for n in backward for o in n.defined} | set(marks)
    read: dict[str, Any] = {}
    for p in (*(p for n in backward for p in n.flat_proxy_args), *(g for g in grads if isinstance(g, Proxy))):
        if p.name not in known:
            read.setdefault(p.name, p)
    tensors = tuple(p for p in read.values() if isinstance(p, TensorProxy))
    others = tuple(p for p in read.values() if not isinstance(p, TensorProxy))
    forward = live_nodes(forward, {p.name for p in (*flat, *read.values()) if isinstance(p, Proxy)})
    fw = joint.with_nodes(forward)
    fw.tags.add(TraceTag.AUGMENTED_FORWARD)
    has_grads = any(g is not None for g in grads) or any(n.written for n in backward)
    with tracectx(fw):
        fw.emit(prims.python_return, (outputs, tensors, others) if has_grads else (outputs, (), ()), {}, None)
    if not has_grads:
        return SplitTraces(fw, None, differentiable)
    get_grads = {n.output.name: n.output for n in nodes if n.sym is prims.get_grad}
    cotangents = [get_grads[cotangent_names[n]] for n in differentiable]
    return SplitTraces(fw, _backward_trace(joint, backward, grads, tensors, others, cotangents), differentiable)


def _backward_trace(
    joint: TraceCtx, nodes: list, grads: Any, tensors: tuple, others: tuple, cotangents: list
) -> TraceCtx:
    bw = TraceCtx(name="backward_fn")
    bw.names = set(joint.names)
    bw.tags.add(TraceTag.BACKWARD)
    with tracectx(bw), origin(add_tags=(BACKWARD,)):
        c0 = CollectionProxy(list(tensors), name=bw.unique_name("C0"))
        c1 = CollectionProxy(list(others), name=bw.unique_name("C1"))
        saved = CollectionProxy([c0, c1], name=bw.unique_name("saved_for_backward"))
        given = CollectionProxy(list(cotangents), name=bw.unique_name("cotangents"))
        bw.args = (saved, given)
        bw.emit(prims.unpack_sequence, (saved, 2), {}, [c0, c1])
        for collection in (c0, c1, given):
            if collection.coll:
                bw.emit(prims.unpack_sequence, (collection, len(collection.coll)), {}, list(collection.coll))
            if collection is not c1:
                bw.emit(prims.clear_mutable_collection, (collection,), {}, None)
        bw.bound_symbols.extend(nodes)
        bw.emit(prims.python_return, (tuple(grads),), {}, None)
    return bw
