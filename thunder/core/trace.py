"""A trace: a function in single-assignment form, as a list of bound symbols.

While it is built (`tracectx`), calling a Symbol adds a node. Once complete it is a value: passes make new ones from it.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from thunder.core import symbol as _symbol_module
from thunder.core.baseutils import TagBase
from thunder.core.codegen import compile_source
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import ThunderRuntimeError, UnsupportedOpError
from thunder.core.printer import Printed, print_trace
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.tracing import (
    get_tracectx,
    is_grad_enabled,
    is_tracing,
    reset_tracectx,
    set_tracectx,
    tracectx,
)

__all__ = [
    "TraceCtx", "TraceProvenance", "TraceTag", "detached_trace", "from_trace", "get_tracectx", "is_tracing",
    "reset_tracectx", "set_tracectx", "tracectx",
]  # fmt: skip


# What generated code refers to, or cannot use as a variable.
RESERVED_NAMES = frozenset(keyword.kwlist) | {
    "torch", "math", "dtypes", "devices", "no_autocast", "bool", "int", "float", "complex", "slice", "set", "frozenset",
}  # fmt: skip


class TraceTag(TagBase):
    """What a trace is."""

    AUGMENTED_FORWARD: ClassVar[TraceTag]
    BACKWARD: ClassVar[TraceTag]


class TraceProvenance:
    """Which pass made a trace and how long it took; printed as its first line."""

    def __init__(self, pss: str):
        self.pss = pss

    def __repr__(self) -> str:
        return f"# Constructed by {self.pss}"


class TraceCtx:
    """A program under construction, or complete.

    Attributes:
        name: of the printed function.
        args: proxies of the inputs, in order.
        bound_symbols: the nodes in program order; the last one returns.
        analyses: results of analyses of this trace, by their type.
        include_decorators: the printed function runs without autograd and autocast; False for code that autograd sees.
    """

    def __init__(self, fn: Callable | None = None, *, name: str = "computation"):
        self.fn = fn
        self.name = name
        self.args: Sequence[Any] = ()
        self.kwargs: dict[str, Any] = {}
        self.bound_symbols: list[BoundSymbol] = []
        self.names: set[str] = set()
        self.tags: set = set()
        self.analyses: dict[Any, Any] = {}
        self.include_decorators = True
        self._counters: dict[str, int] = {}
        self._provenance: TraceProvenance | None = None
        self._is_complete = False

    # Names

    def add_name(self, name: str) -> None:
        """Enters a name. Raises ThunderRuntimeError if it is taken."""
        if name in self.names:
            raise ThunderRuntimeError(f"the name {name} is already used in this trace")
        if name in RESERVED_NAMES:
            raise ThunderRuntimeError(f"a value cannot be called {name}: generated code needs that name")
        self.names.add(name)

    def has_name(self, name: str) -> bool:
        return name in self.names

    def make_name(self, name: str | None = None, *, prefix: str = "t") -> str:
        """`name`, entered; or the first free one of prefix0, prefix1, ..."""
        if name is not None:
            self.add_name(name)
            return name
        n = self._counters.get(prefix, 0)
        while f"{prefix}{n}" in self.names:
            n += 1
        self._counters[prefix] = n + 1
        name = f"{prefix}{n}"
        self.names.add(name)
        return name

    def unique_name(self, wanted: str) -> str:
        """`wanted` if it is free, else `wanted_1`, `wanted_2`, ..."""
        if wanted not in self.names and wanted not in RESERVED_NAMES:
            self.names.add(wanted)
            return wanted
        return self.make_name(prefix=f"{wanted}_")

    # Nodes

    def add_bound_symbol(self, bsym: BoundSymbol) -> None:
        """Appends a node. Raises ThunderRuntimeError once the trace is complete."""
        if self._is_complete:
            raise ThunderRuntimeError("this trace is complete; make a new one with from_trace")
        self.bound_symbols.append(bsym)

    def emit(
        self, sym: Symbol, args: tuple, kwargs: dict[str, Any], output: Any, *, call_ctx: dict | None = None
    ) -> BoundSymbol:
        """Appends an occurrence of `sym` with a given output; its origin is the current one."""
        bsym = BoundSymbol(sym, args, kwargs, output, call_ctx=call_ctx)
        self.add_bound_symbol(bsym)
        return bsym

    def call(self, sym: Symbol, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Appends an occurrence of `sym`, whose outputs its meta gives, and returns them."""
        if sym.meta is None:
            raise UnsupportedOpError(f"{sym.name} has no meta rule, so its output is not known")
        scratch = _scratch(None, [], self)
        if sym.is_prim and sym.executor is None:
            result = sym.meta(*args, **kwargs)
        else:
            with tracectx(scratch):
                result = sym.meta(*args, **kwargs)
        read = {p.name for p in tree_flatten((args, kwargs))[0] if isinstance(p, Proxy)}
        tracked = is_grad_enabled() and any(
            isinstance(p, TensorProxy) and p.requires_grad for p in tree_flatten((args, kwargs))[0]
        )

        def finish(x: Any) -> Any:
            if not isinstance(x, TensorProxy):
                return x
            wants = tracked and sym.traits.is_differentiable and is_inexact_dtype(x.dtype)
            if scratch.bound_symbols:  # what it is made of says which arguments are differentiated
                wants = wants and x.requires_grad
            if x.name in read and not sym.traits.writes:
                return x.replace(name=self.make_name(prefix="t"))
            return x if x.requires_grad == wants or x.name in read else x.replace(name=x.name, requires_grad=wants)

        result = tree_map(finish, result)
        self.emit(sym, args, kwargs, result)
        return result

    def mark_complete(self) -> TraceCtx:
        self._is_complete = True
        return self

    @property
    def output(self) -> Any:
        """What the trace returns, unwrapped when it is one value."""
        last = self.bound_symbols[-1]
        return last.args[0] if len(last.args) == 1 else last.args

    def with_nodes(self, nodes: Iterable[BoundSymbol], provenance: str | None = None) -> TraceCtx:
        """A trace with the same signature and names and the given nodes."""
        new = from_trace(self)
        new.bound_symbols = list(nodes)
        if provenance is not None:
            new.set_provenance(TraceProvenance(provenance))
        return new

    # Text

    def get_provenance(self) -> TraceProvenance | None:
        return self._provenance

    def set_provenance(self, provenance: TraceProvenance | str) -> None:
        self._provenance = TraceProvenance(provenance) if isinstance(provenance, str) else provenance

    def python(self, *, print_depth: int = 1, include_decorators: bool = True) -> str:
        """The program's source. `print_depth`: levels of nodes shown, -1 for all; deeper ones are comments."""
        return self._printed(print_depth, include_decorators).source

    def _printed(self, print_depth: int = 1, include_decorators: bool = True) -> Printed:
        decorated = include_decorators and self.include_decorators
        return print_trace(self, print_depth=print_depth, include_decorators=decorated)

    def python_ctx(self) -> dict[str, Any]:
        """The names that the printed source uses."""
        return self._printed().context

    def python_callable(
        self, *, global_dicts: dict | None = None, include_decorators: bool = True, **_: Any
    ) -> Callable:
        """The printed source, compiled and registered with linecache.

        include_decorators: False for a caller that has switched off autograd and autocast itself, once for many calls.
        """
        printed = self._printed(include_decorators=include_decorators)
        return compile_source(printed.source, self.name, {**printed.context, **(global_dicts or {})})

    def save_trace(self, filename: Any) -> None:
        """Writes the printed source to a file."""
        with open(filename, "w") as f:
            f.write(str(self))

    def __repr__(self) -> str:
        return self.python(print_depth=-1)


def from_trace(trace: TraceCtx) -> TraceCtx:
    """An empty trace with the signature, names and tags of `trace`."""
    new = TraceCtx(trace.fn, name=trace.name)
    new.args, new.kwargs = trace.args, trace.kwargs
    new.names = set(trace.names)
    new.tags = set(trace.tags)
    new.include_decorators = trace.include_decorators
    new._counters = dict(trace._counters)
    return new


@contextmanager
def detached_trace() -> Any:
    """A scratch trace, current inside the block and then dropped."""
    with tracectx(TraceCtx()) as trace:
        yield trace


def _scratch(prefix: str | None, known: Sequence[Proxy], parent: TraceCtx | None = None) -> TraceCtx:
    """A trace for a decomposition: names are shared with the parent, or start with the decomposed node's name."""
    new = TraceCtx()
    if parent is not None:
        new.names, new._counters = parent.names, parent._counters
        new.make_name = parent.make_name  # type: ignore[method-assign]
    else:
        new.names = {p.name for p in known}
        make_name = new.make_name
        new.make_name = lambda name=None, *, prefix="t", _own=prefix: make_name(name, prefix=f"{_own}_{prefix}")  # type: ignore[method-assign, misc]
    return new


_symbol_module.bsym_trace_factory = _scratch


class TraceResults:
    """The three traces of one capture: checks, computation, side effects."""

    def __init__(
        self, prologue: TraceCtx, computation: TraceCtx, epilogue: TraceCtx | None, interpreter_log: Any = None
    ):
        self.prologue_trace = prologue
        self.computation_trace = computation
        self.epilogue_trace = epilogue
        self.interpreter_log = interpreter_log or []
