"""Operations (`Symbol`) and their occurrences (`BoundSymbol`).

A Symbol's `meta` runs on proxies. For a primitive it returns fresh proxies; for a composite it calls other symbols, and
those calls are its decomposition, made only when somebody asks (`BoundSymbol.subsymbols`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from thunder.core.baseutils import TagBase
from thunder.core.errors import DataDependentControlFlowError, UnsupportedOpError
from thunder.core.origin import BACKWARD, BoundSymbolTag, Origin, current_origin, origin
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy, Variable, variableify
from thunder.core.pytree import tree_flatten, tree_iter, tree_map
from thunder.core.sizes import free_symbols, hashable_leaf
from thunder.core.tracing import get_tracectx, tracectx

__all__ = ["BoundSymbol", "BoundSymbolTag", "OpTags", "Symbol", "Traits", "bsym_header", "gather_tags", "has_tags"]


class OpTags(TagBase):
    """Facts of an operation that executors and transforms ask for by name."""

    SHAPE_OP: ClassVar[OpTags]
    REDUCTION_OP: ClassVar[OpTags]
    RANDOM_OP: ClassVar[OpTags]
    MATMUL_OP: ClassVar[OpTags]
    DONT_AUTO_RECOMPUTE_IN_BACKWARD: ClassVar[OpTags]
    DONT_RECOMPUTE_IN_BACKWARD: ClassVar[OpTags]
    DEVICE_SYNC_OP: ClassVar[OpTags]
    DONT_DCE: ClassVar[OpTags]
    IN_PLACE: ClassVar[OpTags]
    CTX_MANAGER_ENTER_EXIT_OP: ClassVar[OpTags]
    AUTO_REGISTERED: ClassVar[OpTags]
    TORCH_COMPILE_COMPLIANT_CUSTOM_OP: ClassVar[OpTags]


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts of an operation, read from aten schemas where there is one.

    writes: positions (int) and names (str) of the arguments it writes to.
    is_random: it advances a random number generator.
    is_kept: it is never removed, whatever reads its output.
    is_barrier: no fuser may move anything across it.
    is_differentiable: False where autograd never tracks the output (comparisons, detach).
    """

    writes: tuple[int | str, ...] = ()
    is_random: bool = False
    is_kept: bool = False
    is_barrier: bool = False
    is_differentiable: bool = True


PURE = Traits()


def default_python_printer(bsym: BoundSymbol, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Marks that a node prints as `outputs = name(args)`; the printer module does it."""
    return None


@dataclass(frozen=True, eq=False)
class Symbol:
    """A named operation.

    Args:
        name: the name printed after the module.
        meta: function on proxies that gives the outputs; None when outputs are always given (`bind`).
        id: what executors register implementations for, such as "torch.add" or a PrimIDs member.
        is_prim: has no decomposition.
        tags: OpTags.
        is_fusion: made by a fuser.
        python_printer: replaces the default printing.
        executor: who runs it; None for an operation nobody has claimed yet.
        python_impl: the function to run in generated code.
        module: printed before the name, such as "ltorch", "prims", "torch.nn.functional".
        torch_fn: what a call computes on real tensors; the torch executor runs it.
        traits: effects and other facts.
        varargs: name of the parameter that collects sizes or dims given one by one (`x.permute(1, 0)`).
    """

    name: str
    meta: Callable | None = None
    id: Any = None
    is_prim: bool = False
    tags: Sequence[Any] | None = None
    is_fusion: bool = False
    python_printer: Callable = default_python_printer
    executor: Any = None
    python_impl: Callable | None = None
    module: str | None = None
    torch_fn: Callable | None = None
    traits: Traits = PURE
    is_property: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Symbol):
            return NotImplemented
        if self.id is None and other.id is None:
            return (self.name, self.module, self.executor) == (other.name, other.module, other.executor)
        return self.id == other.id and self.executor == other.executor

    def __hash__(self) -> int:
        return hash(self.id if self.id is not None else (self.name, self.module))

    def __repr__(self) -> str:
        return f"[Symbol name={self.name}, id={self.id}]"

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def base_name(self) -> str:
        """The name without that of an overload: "add" for "add.Tensor"."""
        return self.name.partition(".")[0]

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """The parameters of `meta`, or None where they are not known."""
        return None if self.meta is None else inspect.signature(self.meta)

    def normalize(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        """The call's arguments with defaults filled in."""
        if self.signature is None:
            return args, kwargs
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def has_tag(self, tag: Any) -> bool:
        return bool(self.tags) and tag in self.tags  # type: ignore[operator]

    def bind(
        self, *args: Any, output: Any, subsymbols: Any = None, _call_ctx: Any = None, **kwargs: Any
    ) -> BoundSymbol:
        """An occurrence with a known output, not added to any trace. Its origin is the current one."""
        return BoundSymbol(self, args, kwargs, output, given_subsymbols=subsymbols, call_ctx=_call_ctx)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a call to the current trace, or runs it at once when no trace is being built and tensors are given."""
        trace = get_tracectx()
        if trace is not None:
            return trace.call(self, args, kwargs)
        fn = self.python_impl or self.torch_fn
        if fn is None and self.meta is not None and not self.is_prim:
            fn = self.meta
        if fn is None:
            raise UnsupportedOpError(f"{self.name} can only be called while a trace is being built")
        return fn(*args, **kwargs)


_header: ContextVar[str] = ContextVar("thunder_bsym_header", default="")


@contextmanager
def bsym_header(header: str) -> Iterator[None]:
    """Nodes made inside print `header` as a comment above them."""
    token = _header.set(header)
    try:
        yield
    finally:
        _header.reset(token)


@dataclass(frozen=True, eq=False)
class BoundSymbol:
    """One occurrence of a symbol: arguments, outputs and origin. Never changed after it is made."""

    sym: Symbol
    args: tuple
    kwargs: dict[str, Any]
    output: Any
    origin: Origin = field(default_factory=current_origin)
    header: str = field(default_factory=_header.get)
    given_subsymbols: Any = None
    call_ctx: dict[str, Any] | None = None

    @property
    def tags(self) -> frozenset:
        return self.origin.tags

    @property
    def source_filename(self) -> str | None:
        return self.origin.source.filename if self.origin.source else None

    @property
    def source_positions(self) -> int | None:
        return self.origin.source.lineno if self.origin.source else None

    @property
    def is_backward(self) -> bool:
        return BACKWARD in self.origin.tags

    @cached_property
    def flat_args(self) -> list:
        return tree_flatten((self.args, self.kwargs))[0]

    @cached_property
    def flat_outs(self) -> list:
        return tree_flatten(self.output)[0] if not isinstance(self.output, Proxy) else [self.output]

    @cached_property
    def flat_proxy_args(self) -> tuple[Proxy, ...]:
        """Proxies that the node reads, each once, in order; symbolic sizes count as the numbers that they are made of.
        """
        found: dict[str, Proxy] = {}
        for leaf in self.flat_args:
            if isinstance(leaf, Proxy):
                found.setdefault(leaf.name, leaf)
            elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                for name in free_symbols(leaf):
                    if name not in found:
                        found[name] = NumberProxy(name, python_type=int)
        return tuple(found.values())

    @cached_property
    def flat_proxy_outs(self) -> tuple[Proxy, ...]:
        return tuple(dict.fromkeys(o for o in self.flat_outs if isinstance(o, Proxy)))

    @cached_property
    def defined(self) -> tuple[Proxy, ...]:
        """The outputs that this node defines: those that are not among its arguments."""
        read = {p.name for p in self.flat_proxy_args}
        return tuple(o for o in self.flat_proxy_outs if o.name not in read)

    @property
    def flat_variableified_proxy_args(self) -> tuple[Variable, ...]:
        return tuple(variableify(p) for p in self.flat_proxy_args)

    @property
    def flat_variableified_proxy_outs(self) -> tuple[Variable, ...]:
        return tuple(variableify(p) for p in self.flat_proxy_outs)

    @cached_property
    def written(self) -> tuple[TensorProxy, ...]:
        """The tensors that this node writes to, as its schema says."""
        values: list = []
        for where in self.sym.traits.writes:
            if isinstance(where, int):
                values.extend(self.args[where : where + 1])
            elif where in self.kwargs:
                values.append(self.kwargs[where])
        return tuple(v for v in tree_iter(values) if isinstance(v, TensorProxy))

    @property
    def has_effects(self) -> bool:
        """Whether the node does anything beside computing its outputs from its inputs."""
        traits = self.sym.traits
        return bool(traits.writes) or traits.is_random or traits.is_kept or traits.is_barrier

    @cached_property
    def subsymbols(self) -> tuple[BoundSymbol, ...]:
        """The decomposition one level down; empty for primitives and for operations run as they are."""
        if self.given_subsymbols is not None:
            return tuple(self.given_subsymbols)
        if self.sym.is_prim or self.sym.meta is None:
            return ()
        return _decompose(self)

    @cached_property
    def rhs(self) -> Hashable | None:
        """What the node computes, as a dictionary key, or None where an argument cannot be hashed."""
        flat, spec = tree_flatten((self.args, self.kwargs))
        try:
            key = (self.sym, tuple(hashable_leaf(v) for v in flat), spec, self.is_backward)
            hash(key)
        except TypeError:
            return None
        return key

    def has_input(self, coll: Iterable) -> bool:
        wanted = {getattr(v, "name", v) for v in coll}
        return any(p.name in wanted for p in self.flat_proxy_args)

    def are_all_args_constant(self) -> bool:
        return not self.flat_proxy_args

    def from_bsym(self, **changes: Any) -> BoundSymbol:
        """A copy with some fields changed; the origin stays."""
        if "subsymbols" in changes:
            changes["given_subsymbols"] = changes.pop("subsymbols")
        return replace(self, **changes)

    def from_bsym_swap_proxies(
        self,
        swap_map: dict[Variable, Proxy],
        skip_inputs: bool = False,
        skip_output: bool = False,
        skip_subsymbols: bool = False,
    ) -> BoundSymbol:
        """A copy in which proxies are replaced as `swap_map` says."""
        by_name = {k.name: v for k, v in swap_map.items()}
        return self.renamed(by_name, inputs=not skip_inputs, outputs=not skip_output)

    def renamed(self, by_name: dict[str, Any], *, inputs: bool = True, outputs: bool = True) -> BoundSymbol:
        """A copy in which the proxy called n is replaced by `by_name[n]`. O(arguments)."""
        if not by_name:
            return self

        def swap(x: Any) -> Any:
            return by_name.get(x.name, x) if isinstance(x, Proxy) else x

        changes: dict[str, Any] = {}
        if inputs and any(p.name in by_name for p in self.flat_proxy_args):
            changes.update(args=tree_map(swap, self.args), kwargs=tree_map(swap, self.kwargs))
        if outputs and any(p.name in by_name for p in self.flat_proxy_outs):
            changes["output"] = tree_map(swap, self.output)
        if not changes:
            return self
        if self.given_subsymbols:
            changes["given_subsymbols"] = tuple(s.renamed(by_name) for s in self.given_subsymbols)
        return replace(self, **changes)

    def __repr__(self) -> str:
        outs = ", ".join(p.name for p in self.flat_proxy_outs)
        args = ", ".join(p.name for p in self.flat_proxy_args)
        return f"<{outs} = {self.sym.name}({args})>"


def _decompose(bsym: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """Runs the symbol's meta in a scratch trace and renames its result to the node's outputs.

    What depends on values, which a meta does not have, is made of nothing else.
    """
    outs = bsym.flat_proxy_outs
    scratch = bsym_trace_factory(outs[0].name if outs else bsym.sym.name, bsym.flat_proxy_args)
    try:
        with tracectx(scratch), origin(bsym.origin):
            result = bsym.sym.meta(*bsym.args, **bsym.kwargs)  # type: ignore[misc]
    except DataDependentControlFlowError:
        return ()
    names = {
        new.name: old
        for new, old in zip(tree_flatten(result)[0], bsym.flat_outs, strict=False)
        if isinstance(new, Proxy) and isinstance(old, Proxy)
    }
    own = {p.name for p in bsym.flat_proxy_args}
    return tuple(s.renamed({n: p for n, p in names.items() if n not in own}) for s in scratch.bound_symbols)


def _no_factory(prefix: str | None, known: Sequence[Proxy]) -> Any:
    raise UnsupportedOpError("thunder.core.trace is not loaded")


# Makes the scratch trace of a decomposition. Traces are made of bound symbols, so their module fills this in.
bsym_trace_factory: Callable[[str, Sequence[Proxy]], Any] = _no_factory


def gather_tags(bsym: BoundSymbol) -> set:
    """OpTags of the symbol and tags of the occurrence."""
    return set(bsym.sym.tags or ()) | set(bsym.tags)


def has_tags(bsym: BoundSymbol, tags: set) -> bool:
    """Whether the node, or any node of its decomposition so far given, carries one of `tags`."""
    if gather_tags(bsym) & set(tags):
        return True
    return any(has_tags(s, tags) for s in bsym.given_subsymbols or ())


@dataclass(frozen=True, slots=True)
class BoundSymbolRHS:
    """The right-hand side of a node as a key for common subexpressions."""

    sym: Symbol
    args: tuple
    kwargs: Any
    backward: bool
