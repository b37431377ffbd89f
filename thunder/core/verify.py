"""The verifier: what must hold for every trace, checked after every pass when checks are on.

Level 1 checks structure: names defined once and before use, tags and origins kept, forward never reads backward, writes
only where the stage allows them. Level 2 also recomputes metadata, looks into decompositions, asks for origins and
compiles the printed source.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from thunder.core.errors import ThunderError, TraceVerificationError, user_location
from thunder.core.origin import BACKWARD, Origin
from thunder.core.printer import _Context, print_node
from thunder.core.proxies import CollectionProxy, NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_iter
from thunder.core.sizes import hint
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx

# "captured" may write anywhere; "aliased" keeps writes and renames what they touch; "functional", "joint" and "split"
# (half of a joint trace) write only by copy_; in "executable" every operation has an implementation.
STAGES = ("captured", "aliased", "functional", "joint", "split", "executable")

# Primitives that give a trace its frame: they stand for no line of the program.
_FRAME = frozenset(
    {
        "RETURN", "DEL", "UNPACK_TRIVIAL", "UNPACK_SEQUENCE", "PACK_LIST", "CLEAR_MUTABLE_COLLECTION", "COMMENT",
        "SINK", "GET_GRAD", "TENSOR_CONSTANT", "SET_GRAD_ENABLED", "LATE_SAVED", "COPY_",
    }
)  # fmt: skip


def _prim(node: BoundSymbol) -> str:
    """The name of a primitive's id; "" for other operations."""
    return str(node.sym.id.name) if node.sym.module == "prims" and hasattr(node.sym.id, "name") else ""


def _facts(p: TensorProxy) -> tuple[Any, ...]:
    """What must be equal where two nodes name one tensor; a symbolic size, which has many forms, by its value."""
    return (tuple(map(_size, p.shape)), p.dtype, p.device)


def _size(size: Any) -> Any:
    value = hint(size)
    return "?" if value is None else int(value)


class _Check:
    """The rules, each a method; the first broken one raises."""

    def __init__(self, trace: TraceCtx, pass_name: str, before: TraceCtx | None):
        self.trace, self.pass_name = trace, pass_name
        self.nodes = trace.bound_symbols
        # Nodes are never changed, so those of the trace before have been looked into.
        known = set() if before is None else {id(n) for n in before.bound_symbols}
        self.new_nodes = [(index, n) for index, n in enumerate(self.nodes) if id(n) not in known]

    def fail(self, index: int, what: str) -> NoReturn:
        """Raises with the pass, the node among its neighbours, and the user's line."""
        where = ""
        if self.nodes and self.nodes[index].origin.source is not None:
            source = self.nodes[index].origin.source
            where = "\n" + user_location((source.filename, source.lineno, source.code))  # type: ignore[union-attr]
        raise TraceVerificationError(
            f"the trace after the pass {self.pass_name!r} is not valid: {what}. This is a defect of thunder or of a "
            f"transform, not of your program.{where}\nnode {index} of {self.trace.name}:\n{self._excerpt(index)}"
        )

    def _excerpt(self, index: int) -> str:
        ctx = _Context()
        lines = []
        for n in range(max(0, index - 5), min(len(self.nodes), index + 5)):
            try:
                printed = print_node(self.nodes[n], ctx, 1)
            except ThunderError:
                printed = [repr(self.nodes[n])]
            lines += [f"{'>>' if n == index else '  '} {line}" for line in printed]
        return "\n".join(lines)

    # Level 1

    def returns(self) -> None:
        """The trace ends with its only return."""
        last = len(self.nodes) - 1
        if last < 0:
            self.fail(0, "a trace ends with its only return, and this one is empty")
        for index, node in enumerate(self.nodes):
            if (_prim(node) == "RETURN") != (index == last):
                self.fail(index, "a trace ends with its only return")

    def names(self) -> None:
        """Each name is an identifier, defined once and before use."""
        arguments = tree_flatten((tuple(self.trace.args), self.trace.kwargs))[0]
        defined: set[str] = {a.name for a in arguments if isinstance(a, Proxy)}
        for index, node in enumerate(self.nodes):
            for p in node.flat_proxy_args:
                if p.name not in defined:
                    self.fail(index, f"{p.name} is read before it is defined, or after it is deleted")
            if _prim(node) == "DEL":
                defined.difference_update(p.name for p in node.flat_proxy_args)
                continue
            for o in node.defined:
                if o.name in defined:
                    self.fail(index, f"{o.name} is defined twice")
                if not o.name.isidentifier():
                    self.fail(index, f"{o.name!r} is no identifier")
                defined.add(o.name)

    def consistent(self) -> None:
        """A name has one type: what reads it sees the shape, dtype and device that were defined."""
        known: dict[str, tuple[Any, ...]] = {}
        for index, node in enumerate(self.nodes):
            for p in (*node.flat_proxy_args, *node.flat_proxy_outs):
                if isinstance(p, TensorProxy) and known.setdefault(p.name, _facts(p)) != _facts(p):
                    self.fail(index, f"{p.name} is used as {_facts(p)} but was defined as {known[p.name]}")

    def tags(self) -> None:
        """What depends on a gradient is BACKWARD, forward never reads it, and parts have the tags of the whole."""
        gradients: set[str] = set()
        for index, node in enumerate(self.nodes):
            if _prim(node) in ("RETURN", "DEL"):
                continue
            depends = next((p.name for p in node.flat_proxy_args if p.name in gradients), None)
            if depends is not None and not node.is_backward:
                what = f"{node.sym.name} reads {depends}, which backward computes, but is not tagged BACKWARD"
                self.fail(index, what)
            if _prim(node) == "GET_GRAD" and not node.is_backward:
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

    def kept_origins(self, before: TraceCtx) -> None:
        """What computes a value that was there before the pass has kept the user's line and is as much BACKWARD."""
        was = {o.name: n.origin for n in before.bound_symbols for o in n.defined}
        for index, node in enumerate(self.nodes):
            if _prim(node) in _FRAME:
                continue
            for old in (was[o.name] for o in node.defined if o.name in was):
                if old.source is not None and node.origin.source is None:
                    self.fail(index, f"{node.sym.name} has lost the line that it comes from, {old.source}")
                if BACKWARD in old.tags and not node.is_backward:
                    self.fail(index, f"{node.sym.name} has lost its tag BACKWARD")

    def effects(self) -> None:
        """After functionalization, nothing but copy_ writes, and what `reinplace` has put back."""
        for index, node in enumerate(self.nodes):
            if node.written and node.sym.name != "copy_" and "reinplace" not in node.origin.passes:
                self.fail(index, f"{node.sym.name} writes to {node.written[0].name} in a functional trace")

    def aliases(self) -> None:
        """Nothing reads a name that `update_aliases` has replaced."""
        replaced: dict[str, str] = {}
        for index, node in enumerate(self.nodes):
            for p in node.flat_proxy_args:
                if p.name in replaced and _prim(node) not in ("RETURN", "DEL"):
                    self.fail(index, f"{p.name} is read after {replaced[p.name]} replaced it")
            if _prim(node) == "UPDATE_ALIASES":
                replaced.update((old.name, new.name) for old, new in zip(node.args[0], node.output, strict=True))

    def executable(self) -> None:
        """Every operation has an implementation."""
        for index, node in enumerate(self.nodes):
            if node.sym.python_impl is None and not node.call_ctx:
                self.fail(index, f"nobody executes {node.sym.name}")

    # Level 2

    def metadata(self) -> None:
        """The outputs are what a hand-written meta rule gives."""
        scratch = from_trace(self.trace)
        for index, node in self.new_nodes:
            if node.sym.meta is None or node.sym.executor is not None or node.written or not self._has_own_meta(node):
                continue
            with tracectx(scratch):
                result = node.sym.meta(*node.args, **node.kwargs)
            want, got = tree_flatten([result])[0], tree_flatten([node.output])[0]
            if len(want) != len(got):
                self.fail(index, f"the meta rule of {node.sym.name} gives {len(want)} outputs, the node has {len(got)}")
            for w, g in zip(want, got, strict=True):
                if isinstance(w, TensorProxy) and isinstance(g, TensorProxy) and _facts(w) != _facts(g):
                    self.fail(index, f"the meta rule of {node.sym.name} gives {_facts(w)}, the node says {_facts(g)}")

    def _has_own_meta(self, node: BoundSymbol) -> bool:
        """Whether the rule is written by hand: a primitive's, or one that `check_metadata_of` names."""
        return node.sym.id in _checkable_ids or (_prim(node) != "" and _prim(node) not in _FRAME)

    def decompositions(self) -> None:
        """What a node is made of reads what the node reads, and computes the node's outputs under their names."""
        for index, node in self.new_nodes:
            parts = node.subsymbols
            if not parts:
                continue
            known = {p.name for p in node.flat_proxy_args}
            for packed in (p for p in node.flat_proxy_args if isinstance(p, CollectionProxy)):
                known.update(p.name for p in tree_iter(packed.coll) if isinstance(p, Proxy))
            for part in parts:
                for p in part.flat_proxy_args:
                    if p.name not in known and not isinstance(p, NumberProxy):
                        whole = f"{part.sym.name}, part of {node.sym.name}"
                        self.fail(index, f"{whole}, reads {p.name}, which {node.sym.name} does not")
                known.update(o.name for o in part.flat_proxy_outs)
            for o in node.flat_proxy_outs:
                if o.name not in known:
                    self.fail(index, f"the parts of {node.sym.name} do not compute its output {o.name}")

    def origins(self) -> None:
        """Every node but those of the frame knows where it comes from."""
        for index, node in enumerate(self.nodes):
            if node.origin == Origin() and _prim(node) not in _FRAME:
                self.fail(index, f"{node.sym.name} has no origin: it was made outside of origin(...)")

    def source(self, is_executable: bool) -> None:
        """The printed source compiles; once it is executable, it refers to nothing that is not there."""
        try:
            printed = self.trace._printed()
            code = compile(printed.source, f"<{self.trace.name}>", "exec")
        except (ThunderError, SyntaxError) as e:
            self.fail(len(self.nodes) - 1, f"the printed source does not compile ({e})")
        if not is_executable:
            return
        known = {*vars(builtins), *printed.context, *code.co_names}
        body = next(c for c in code.co_consts if hasattr(c, "co_code") and c.co_name == self.trace.name)
        for name in _globals_read(body):
            if name not in known:
                self.fail(len(self.nodes) - 1, f"the printed source refers to {name}, which nothing defines")


def _globals_read(code: Any) -> Iterable[str]:
    return (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


_checkable_ids: set[Any] = set()


def check_metadata_of(sym_id: Any) -> None:
    """Level 2 recomputes the metadata of this symbol's nodes, as it does for primitives. For hand-written rules."""
    _checkable_ids.add(sym_id)


def verify(
    trace: TraceCtx,
    *,
    pass_name: str = "trace",
    stage: str = "functional",
    level: int = 1,
    before: TraceCtx | None = None,
) -> None:
    """Raises TraceVerificationError, naming pass, node and user line, if the trace is not valid at its stage.

    O(nodes) at level 1; level 2 also runs meta rules and decompositions.

    Args:
        stage: one of STAGES.
        before: the trace that the pass was given; what it computes must have kept its origin.
    """
    check = _Check(trace, pass_name, before)
    checks: list[Callable[[], None]] = [check.returns, check.names, check.consistent, check.tags]
    if before is not None:
        checks.append(lambda: check.kept_origins(before))
    if stage in ("functional", "joint", "split"):
        checks.append(check.effects)
    if stage == "aliased":
        checks.append(check.aliases)
    if stage == "executable":
        checks.append(check.executable)
    if level >= 2:
        checks += [check.metadata, check.decompositions, check.origins, lambda: check.source(stage == "executable")]
    for one in checks:
        one()


__all__ = ["BACKWARD", "STAGES", "check_metadata_of", "verify"]
