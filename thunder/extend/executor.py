"""Executor classes: operator executors replace nodes one by one, fusion executors replace regions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any



from thunder.core.baseutils import extract_callable_name
from thunder.core.errors import ThunderTypeError
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, Symbol, Traits, default_python_printer
from thunder.core.trace import TraceCtx
from thunder.core.tracing import get_tracectx
from thunder.torch.registry import symbol_for


@dataclass
class ImplInfo:
    """How an executor runs an operation.

    symbol: its own operation that replaces the node.
    checker: called with the node's arguments; False leaves the node to the next executor.
    execution_transform: a function on proxies traced in the node's place.
    grad_transform: a gradient rule, in the get_grad/put_grad form or as a vjp.
    """

    symbol: Symbol | None = None
    checker: Callable | None = None
    execution_transform: Callable | None = None
    grad_transform: Callable | None = None
    vjp: Callable | None = None


def symbol_key(sym_or_id: Any) -> Hashable:
    """What an implementation is registered under: a symbol's id. A torch callable stands for its symbol."""
    if isinstance(sym_or_id, Symbol):
        return sym_or_id.id if sym_or_id.id is not None else sym_or_id
    if callable(sym_or_id) and not isinstance(sym_or_id, type):
        return symbol_for(sym_or_id).id
    return sym_or_id


class Executor:
    """Base of all executors; equal by name."""

    def __init__(self, name: Hashable, *, version: Any = None):
        self._name, self._version = name, version
        self._implmap: dict[Hashable, ImplInfo] = {}
        self._opmap: dict[str, Symbol] = {}
        self._lookasides: dict[Any, Symbol] = {}

    name = property(lambda self: self._name)
    version = property(lambda self: self._version)
    implmap = property(lambda self: self._implmap)
    opmap = property(lambda self: self._opmap)

    def __repr__(self) -> str:
        return f"thunder.extend.{type(self).__name__}('{self.name}')"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Executor) and self.name == other.name

    def _impl(self, bsym: BoundSymbol) -> ImplInfo | None:
        impl = self._implmap.get(bsym.sym.id if bsym.sym.id is not None else bsym.sym)
        if impl is None or (impl.checker is not None and not impl.checker(*bsym.args, **bsym.kwargs)):
            return None
        return impl

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Whether the executor replaces this very node."""
        return self._impl(bsym) is not None

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether the node, or all that it is made of, may be part of a region of this executor."""
        if self.can_execute(bsym):
            return True
        return bool(bsym.subsymbols) and all(self.can_fuse(s) for s in bsym.subsymbols)

    def can_execute_or_fuse(self, bsym: BoundSymbol) -> bool:
        return self.can_execute(bsym) or (isinstance(self, FusionExecutor) and self.can_fuse(bsym))

    def get_execution_transform(self, bsym: BoundSymbol) -> Callable | None:
        impl = self._impl(bsym)
        return impl.execution_transform if impl is not None else None

    def get_grad_transform(self, sym: Symbol) -> Callable | None:
        """The gradient rule registered for a symbol."""
        impl = self._implmap.get(sym.id)
        return impl.grad_transform if impl is not None else None

    def grad_impl(self, bsym: BoundSymbol) -> ImplInfo | None:
        """The implementation that brings a gradient rule for this node, or None."""
        impl = self._impl(bsym)
        return impl if impl is not None and (impl.grad_transform or impl.vjp) else None

    def register_operator(
        self,
        name: str,
        *,
        like: Any = None,
        meta: Callable | None = None,
        tags: Sequence[Any] | None = None,
        module: Any = None,
        fn: Callable | None = None,
        bind_postprocess: Callable | None = None,
        replaces: Any = None,
        python_printer: Callable = default_python_printer,
        traits: Traits | None = None,
    ) -> Symbol:
        """An operation of this executor.

        Args:
            name: unique in the executor.
            like: a symbol or torch callable with the same signature, whose metadata rule it takes.
            meta: the metadata rule; exactly one of `like` and `meta`.
            fn: what generated code calls.
            replaces: torch callable (or several) that become this operation wherever a program calls them.
        """
        if (like is None) == (meta is None):
            raise ThunderTypeError(f"register_operator({name!r}): give exactly one of like= and meta=")
        origin_symbol = None if like is None else like if isinstance(like, Symbol) else symbol_for(like)
        sym = Symbol(
            name=name,
            meta=meta or origin_symbol.meta,  # type: ignore[union-attr]
            id=f"{self.name}.{name}",
            is_prim=True,
            tags=tuple(tags) if tags is not None else (origin_symbol.tags if origin_symbol else None),
            executor=self,
            python_impl=fn,
            python_printer=python_printer,
            torch_fn=fn,
            traits=traits or (origin_symbol.traits if origin_symbol else Traits()),
        )
        self._opmap[name] = sym
        for target in () if replaces is None else replaces if isinstance(replaces, list | tuple) else (replaces,):
            self._lookasides[target] = sym
        return sym


class OperatorExecutor(Executor):
    """Replaces single operations by its own."""

    def register_implementation(
        self,
        sym_or_id: Any,
        op: Symbol | None = None,
        *,
        checker: Callable | None = None,
        execution_transform: Callable | None = None,
        grad_transform: Callable | None = None,
        vjp: Callable | None = None,
    ) -> None:
        """Claims a symbol (or its id, or the torch callable that it stands for) when `checker` says so."""
        if op is None and execution_transform is None:
            raise ThunderTypeError("register_implementation needs an operator or an execution_transform")
        self._implmap[symbol_key(sym_or_id)] = ImplInfo(op, checker, execution_transform, grad_transform, vjp)

    def implements(self, sym_or_id: Any, fn: Callable, *, checker: Callable | None = None, vjp: Callable | None = None) -> Symbol:
        """Claims an operation with the function `fn` of the same signature."""
        like = sym_or_id if isinstance(sym_or_id, Symbol) else symbol_for(sym_or_id)
        op = self.register_operator(extract_callable_name(fn), like=like, fn=fn)
        self.register_implementation(like, op, checker=checker, vjp=vjp)
        return op


class FUEL_LEVEL(Enum):
    """How many regions a fuser may still make."""

    UNLIMITED = auto()


class FusionExecutor(Executor):
    """Replaces regions of nodes by one callable each. A subclass says what it can fuse and how (`fuse`)."""

    def __init__(self, name: Hashable, *, version: Any = None):
        super().__init__(name, version=version)
        self._fuel: Any = FUEL_LEVEL.UNLIMITED

    def get_fuel(self, amount: int = 1, /) -> bool:
        """Takes fuel; False when there is not enough left."""
        if self._fuel is FUEL_LEVEL.UNLIMITED:
            return True
        if self._fuel < amount:
            return False
        self._fuel -= amount
        return True

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        self._fuel = value

    def register_supported(
        self,
        sym_or_id: Any,
        checker: Callable | None = None,
        *,
        execution_transform: Callable | None = None,
        grad_transform: Callable | None = None,
    ) -> None:
        """Declares that a symbol may be part of a region."""
        self._implmap[symbol_key(sym_or_id)] = ImplInfo(None, checker, execution_transform, grad_transform)

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """The trace with regions replaced."""
        raise NotImplementedError

    def fuse(self, region: Any, fusion_counter: int) -> BoundSymbol:
        """The node that runs a region."""
        raise NotImplementedError

    def register_temporary_operation(
        self, name: str, fn: Callable, *, inputs: list[Proxy], outputs: list[Proxy], bsyms: list[BoundSymbol]
    ) -> BoundSymbol:
        """A node of an operation that exists in this trace only; its decomposition is the region."""
        sym = Symbol(name=name, meta=None, id=name, is_prim=True, is_fusion=True, executor=self, python_impl=fn)
        return sym.bind(*inputs, output=list(outputs), subsymbols=tuple(bsyms), _call_ctx={name: fn})


class StatefulExecutor(OperatorExecutor):
    """Operators with state: each use gets an operator and a state object of its own."""

    def register_stateful_operator(self, name: str, state_class: type, *, meta: Callable) -> Callable:
        counter = iter(range(1 << 30))

        def bind(*args: Any, **kwargs: Any) -> Any:
            state = state_class()
            n = next(counter)
            sym = Symbol(f"{name}_{n}", meta, f"{self.name}.{name}_{n}", True, executor=self, python_impl=state)
            return get_tracectx().call(sym, args, kwargs)

        return bind


class TemporaryExecutor(OperatorExecutor):
    """Holds operators for opaque functions of one compilation."""

    def __init__(self) -> None:
        super().__init__(f"__ad_hoc_executor_{id(self)}")
        self.counter = 0

    def register_operator_for_opaque_function(self, fn: Callable) -> Symbol:
        """An operator that calls `fn`; its metadata comes from running it on fake tensors."""
        self.counter += 1
        sym = symbol_for(fn)
        return self.register_operator(f"{extract_callable_name(fn)}_{self.counter}", meta=sym.meta, fn=fn)


def single_op_executor(
    exc_name: Hashable,
    op_name: str,
    fn: Callable,
    meta: Callable,
    *,
    version: Any = None,
    replaces: Any = None,
    tags: Sequence[Any] | None = None,
    checker: Callable | None = None,
    execution_transform: Callable | None = None,
    grad_transform: Callable | None = None,
) -> OperatorExecutor:
    """An executor with one operator that replaces one torch callable."""
    ex = OperatorExecutor(exc_name, version=version)
    op = ex.register_operator(op_name, meta=meta, fn=fn, replaces=replaces, tags=tags)
    ex.register_implementation(
        op, op, checker=checker, execution_transform=execution_transform, grad_transform=grad_transform
    )
    return ex


