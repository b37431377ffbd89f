"""The verifier: what must hold for every trace, checked after every pass when checks are on.

Level 1 checks structure: names defined once and before use, tags closed, forward never reads backward, writes only where
the stage allows them. Level 2 also recomputes metadata and decompositions, and runs the printed source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core import prims
from thunder.core.errors import TraceVerificationError, user_location
from thunder.core.origin import BACKWARD
from thunder.core.printer import _Context, print_node
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx

# Stages: "captured" may write anywhere; "functional" only by final copy_; "split" is one half of a joint trace.
STAGES = ("captured", "aliased", "functional", "joint", "split", "executable")


class _Check:
    def __init__(self, trace: TraceCtx, pass_name: str, stage: str, before: TraceCtx | None):
        self.trace, self.pass_name, self.stage, self.before = trace, pass_name, stage, before

    def fail(self, index: int, what: str) -> None:
        nodes = self.trace.bound_symbols
        node = nodes[index]
        ctx = _Context()
        lines = []
        for n in range(max(0, index - 5), min(len(nodes), index + 5)):
            mark = ">>" if n == index else "  "
            lines += [f"{mark} {line}" for line in print_node(nodes[n], ctx, 1)]
        where = ""
        if node.origin.source is not None:
            source = node.origin.source
            where = "\n" + user_location((source.filename, source.lineno, source.code))
        raise TraceVerificationError(
            f"the trace after the pass {self.pass_name!r} is not valid: {what}. This is a defect of thunder or of a "
            f"transform, not of your program.{where}\nnode {index} of {self.trace.name}:\n" + "\n".join(lines)
        )

    def names(self) -> None:
        """Each name is defined once and before use, and is the same object type everywhere."""
        defined: dict[str, Proxy] = {}
        for a in tree_flatten((tuple(self.trace.args), self.trace.kwargs))[0]:
            if isinstance(a, Proxy):
                defined[a.name] = a
        for index, node in enumerate(self.trace.bound_symbols):
            if node.sym is prims.python_del:
                for p in node.flat_proxy_args:
                    if p.name not in defined:
                        self.fail(index, f"{p.name} is deleted but not defined")
                    del defined[p.name]
                continue
            for p in node.flat_proxy_args:
                if p.name not in defined:
                    self.fail(index, f"{p.name} is read before it is defined")
            for o in node.defined:
                if o.name in defined and node.sym is not prims.unpack_trivial:
                    self.fail(index, f"{o.name} is defined twice")
                if not o.name.isidentifier():
                    self.fail(index, f"{o.name!r} is no identifier")
                defined[o.name] = o

    def consistent(self) -> None:
        """A name has one type: what reads it sees the shape, dtype and device that were defined."""
        known: dict[str, tuple] = {}
        for index, node in enumerate(self.trace.bound_symbols):
            for p in (*node.flat_proxy_args, *node.flat_proxy_outs):
                if isinstance(p, TensorProxy):
                    facts = (tuple(str(s) for s in p.shape), p.dtype, p.device)
                    if known.setdefault(p.name, facts) != facts:
                        self.fail(index, f"{p.name} is used as {facts} but was defined as {known[p.name]}")

    def tags(self) -> None:
        """Every node that depends on a cotangent is BACKWARD, and forward never reads backward."""
        gradients: set[str] = set()
        for index, node in enumerate(self.trace.bound_symbols):
            if node.sym in (prims.python_return, prims.python_del):
                continue
            depends = next((p.name for p in node.flat_proxy_args if p.name in gradients), None)
            if depends is not None and not node.is_backward:
                self.fail(index, f"{node.sym.name} reads {depends}, which backward computes, but is not tagged BACKWARD")
            if node.sym is prims.get_grad and not node.is_backward:
                self.fail(index, "get_grad is not tagged BACKWARD")
            if node.is_backward:
                gradients |= {o.name for o in node.defined}
            for sub in node.given_subsymbols or ():
                self._below(index, node, sub)

    def _below(self, index: int, node: BoundSymbol, sub: BoundSymbol) -> None:
        missing = node.tags - sub.tags
        if missing:
            names = ", ".join(sorted(t.name for t in missing))
            self.fail(index, f"{sub.sym.name}, part of {node.sym.name}, lacks its tag {names}")
        for deeper in sub.given_subsymbols or ():
            self._below(index, sub, deeper)

    def effects(self) -> None:
        """After functionalization, nothing but copy_ writes."""
        for index, node in enumerate(self.trace.bound_symbols):
            if node.written and node.sym.id is not prims.copy_.id and node.sym.name != "copy_":
                self.fail(index, f"{node.sym.name} writes to {node.written[0].name} in a functional trace")

    def aliases(self) -> None:
        """Nothing reads a name that `update_aliases` or a write has replaced."""
        replaced: dict[str, str] = {}
        for index, node in enumerate(self.trace.bound_symbols):
            for p in node.flat_proxy_args:
                if p.name in replaced and node.sym not in (prims.python_return, prims.python_del):
                    self.fail(index, f"{p.name} is read after {replaced[p.name]} replaced it")
            if node.sym is prims.update_aliases:
                for old, new in zip(node.args[0], node.output, strict=True):
                    replaced[old.name] = new.name

    def metadata(self) -> None:
        """The outputs are what the meta rule gives."""
        for index, node in enumerate(self.trace.bound_symbols):
            if node.sym.meta is None or not _is_checkable(node):
                continue
            scratch = from_trace(self.trace)
            with tracectx(scratch):
                result = node.sym.meta(*node.args, **node.kwargs)
            want, got = tree_flatten([result])[0], tree_flatten([node.output])[0]
            if len(want) != len(got):
                self.fail(index, f"the meta rule of {node.sym.name} gives {len(want)} outputs, the node has {len(got)}")
            for w, g in zip(want, got, strict=True):
                if isinstance(w, TensorProxy) and isinstance(g, TensorProxy):
                    a = (tuple(str(s) for s in w.shape), w.dtype, w.device)
                    b = (tuple(str(s) for s in g.shape), g.dtype, g.device)
                    if a != b:
                        self.fail(index, f"the meta rule of {node.sym.name} gives {a}, the node says {b}")

    def returns(self) -> None:
        """The trace ends with its only return."""
        last = len(self.trace.bound_symbols) - 1
        for index, node in enumerate(self.trace.bound_symbols):
            if (node.sym is prims.python_return) != (index == last):
                self.fail(index, "a trace ends with its only return")

    def executable(self) -> None:
        """Every operation has an executor or an implementation."""
        for index, node in enumerate(self.trace.bound_symbols):
            if node.sym.python_impl is None and not node.call_ctx:
                self.fail(index, f"nobody executes {node.sym.name}")


def _is_checkable(node: BoundSymbol) -> bool:
    return node.sym.executor is None and not node.written and node.sym.id in _checkable_ids


_checkable_ids: set[Any] = set()


def check_metadata_of(sym_id: Any) -> None:
    """Level 2 recomputes the metadata of this symbol's nodes: for hand-written meta rules."""
    _checkable_ids.add(sym_id)


def verify(
    trace: TraceCtx, *, pass_name: str = "trace", stage: str = "functional", level: int = 1, before: TraceCtx | None = None
) -> None:
    """Raises TraceVerificationError, naming pass, node and user line, if the trace is not valid at its stage.

    O(nodes) at level 1; level 2 also runs meta rules.
    """
    check = _Check(trace, pass_name, stage, before)
    checks: list[Callable[[], None]] = [check.names, check.consistent, check.returns, check.tags]
    if stage in ("functional", "joint", "split"):
        checks.append(check.effects)
    if stage == "aliased":
        checks.append(check.aliases)
    if stage == "executable":
        checks.append(check.executable)
    if level >= 2 and stage != "executable":
        checks.append(check.metadata)
    for one in checks:
        one()


__all__ = ["BACKWARD", "STAGES", "check_metadata_of", "verify"]
