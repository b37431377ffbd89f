"""What backward computes again, instead of reading what forward has saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD, origin
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.transforms.dce import is_kept, live_nodes


def returned_names(joint: TraceCtx) -> set[str]:
    """Names of the inputs and of what the forward returns: backward may read these at no cost."""
    outputs = joint.bound_symbols[-1].args[0]
    arguments = {a.name for a in joint.args if isinstance(a, Proxy)}
    return arguments | {o.name for o in tree_flatten(outputs)[0] if isinstance(o, Proxy)}


def recompute_in_backward(joint: TraceCtx, producers: Mapping[str, BoundSymbol]) -> TraceCtx:
    """The joint trace with copies of forward nodes in its backward part.

    Args:
        joint: forward nodes, then backward nodes, then the return.
        producers: the forward node for each value that backward computes again instead of reading.

    Returns: a trace in which each copy stands right before its first use, tagged BACKWARD and RECOMPUTE_IN_BACKWARD,
    its
        outputs called `bw_<name>`; forward nodes that only backward needed are gone. O(nodes).
    """
    new = from_trace(joint)
    env: dict[str, Any] = {}

    def compute(first: BoundSymbol) -> None:
        pending = [first]
        while pending:
            node = pending[-1]
            missing = [producers[p.name] for p in node.flat_proxy_args if p.name in producers and p.name not in env]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if all(o.name in env for o in node.defined):
                continue
            names = {o.name: o.replace(name=new.unique_name(f"bw_{o.name}")) for o in node.defined}
            with origin(node.origin, add_tags=(BACKWARD, RECOMPUTE_IN_BACKWARD), pass_name="recompute") as now:
                copy = node.renamed(dict(env), outputs=False).renamed(names, inputs=False)
                new.bound_symbols.append(copy.from_bsym(origin=now))
            env.update(names)

    for node in joint.bound_symbols[:-1]:
        if node.is_backward and node.sym is not prims.get_grad:
            for p in node.flat_proxy_args:
                if p.name in producers and p.name not in env:
                    compute(producers[p.name])
            node = node.renamed(env, outputs=False)
        new.bound_symbols.append(node)
    outputs, grads = joint.bound_symbols[-1].args
    for g in grads:
        if isinstance(g, Proxy) and g.name in producers and g.name not in env:
            compute(producers[g.name])
    grads = tuple(env.get(g.name, g) if isinstance(g, Proxy) else g for g in grads)
    new.bound_symbols.append(joint.bound_symbols[-1].from_bsym(args=(outputs, grads)))
    new.bound_symbols = live_nodes(new.bound_symbols)
    return new


@dataclass(frozen=True)
class RecomputeInBackward(Pass):
    """Backward computes again what is tagged RECOMPUTE_IN_BACKWARD (activation checkpointing). O(nodes).

    Random values are saved, so that backward sees the ones that forward has used.
    """

    name: ClassVar[str] = "recompute"
    title: ClassVar[str] = "Recompute in backward"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        available = returned_names(trace)
        producers = {
            o.name: n
            for n in trace.bound_symbols[:-1]
            if RECOMPUTE_IN_BACKWARD in n.tags and not n.is_backward and not is_kept(n)
            for o in n.defined
            if o.name not in available
        }
        return recompute_in_backward(trace, producers) if producers else trace
