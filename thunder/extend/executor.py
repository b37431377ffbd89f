"""Executor classes: operator executors replace nodes one by one, fusion executors replace regions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from thunder.core.baseutils import extract_callable_name
from thunder.core.errors import ThunderTypeError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, Symbol, Traits, default_python_printer
from thunder.core.torch_compat import allow_in_graph
from thunder.core.trace import TraceCtx, detached_trace
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
        """An operation of this executor. A second registration of a name takes the place of the first.

        Args:
            like: a symbol or torch callable with the same signature, whose metadata rule it takes.
            meta: the metadata rule; exactly one of `like` and `meta`.
            tags: OpTags; those of `like` if not given.
            fn: what generated code calls.
            replaces: callable (or several) that become this operation wherever a program calls them, unless the checker
                of the operator's implementation says no. The operator must have their signature, metadata and effects.
            python_printer: replaces the default printing.
            traits: effects; those of `like` if not given.

        Raises: ThunderTypeError unless exactly one of `like` and `meta` is given.
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
            self._replace(target, sym)
        return sym

    def _replace(self, target: Callable, sym: Symbol) -> None:
        """Diverts calls of `target`. A Python function from outside torch has to be seen as one call by the capture."""
        module = getattr(target, "__module__", None) or "torch"
        if module.partition(".")[0] not in ("torch", "builtins", "_operator"):
            allow_in_graph(target)
        self._lookasides[target] = sym


Lookasides = Mapping[Any, tuple[Executor, Symbol]]


def lookasides_of(executors: Sequence[Executor]) -> dict[Any, tuple[Executor, Symbol]]:
    """Which operator stands for a callable, the first executor's where several replace it."""
    found: dict[Any, tuple[Executor, Symbol]] = {}
    for ex in executors:
        for target, sym in ex._lookasides.items():
            found.setdefault(target, (ex, sym))
    return found


def find_replacement(lookasides: Lookasides, fn: Any, args: tuple, kwargs: dict[str, Any]) -> Symbol | None:
    """The operator that takes this call, or None; the checker that its executor registered for it is asked."""
    if not lookasides or fn not in lookasides:
        return None
    ex, sym = lookasides[fn]
    impl = ex.implmap.get(sym.id)
    checker = None if impl is None else impl.checker
    return sym if checker is None or checker(*args, **kwargs) else None


def check_replacement(sym: Symbol, fn: Any, args: tuple, kwargs: dict[str, Any], expected: Any) -> None:
    """Raises ThunderTypeError unless an operator gives the metadata of what it replaces, and declares its writes."""
    name = extract_callable_name(fn)
    read = {p.name for p in tree_flatten((args, kwargs))[0] if isinstance(p, TensorProxy)}
    outs = [o for o in tree_flatten([expected])[0] if isinstance(o, TensorProxy)]
    if not sym.traits.writes and any(o.name in read for o in outs):
        raise ThunderTypeError(
            f"{name} returns a tensor that it is given: its replacement {sym.name} must declare the write in traits"
        )
    with detached_trace() as scratch:
        scratch.names |= read
        result = sym.meta(*args, **kwargs)  # type: ignore[misc]
    made = [o for o in tree_flatten([result])[0] if isinstance(o, TensorProxy)]
    given, wanted = ([o.type_string() for o in tensors] for tensors in (made, outs))
    if given != wanted:
        raise ThunderTypeError(f"{sym.name} replaces {name} and must give {wanted}, but its meta rule gives {given}")


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
        """Claims a symbol, given as such, by its id or by the torch callable that it stands for.

        Args:
            op: this executor's operator, which gets the node's arguments.
            checker: called with the node's arguments; False leaves the node to the next executor.
            execution_transform: instead of `op`, a function on proxies that is traced in the node's place.
            grad_transform: the gradient rule in the form `forward, get_grad, put_grad`.
            vjp: the gradient rule in the form `(*args) -> (outputs, pullback)`.

        Raises: ThunderTypeError without `op` and `execution_transform`, or with both gradient rules.
        """
        if op is None and execution_transform is None:
            raise ThunderTypeError("register_implementation needs an operator or an execution_transform")
        if grad_transform is not None and vjp is not None:
            raise ThunderTypeError("register_implementation takes grad_transform or vjp, not both")
        self._implmap[symbol_key(sym_or_id)] = ImplInfo(op, checker, execution_transform, grad_transform, vjp)

    def forget_operator(self, op: Symbol) -> None:
        """Undoes `register_operator`; programs compiled with the operator keep it."""
        if self._opmap.get(op.name) is op:
            del self._opmap[op.name]

    def forget(self, sym_or_id: Any) -> None:
        """Undoes `register_implementation`; nothing happens where there was none."""
        self._implmap.pop(symbol_key(sym_or_id), None)

    def implements(
        self, sym_or_id: Any, fn: Callable, *, checker: Callable | None = None, vjp: Callable | None = None
    ) -> Symbol:
        """Claims an operation with the function `fn` of the same signature."""
        like = sym_or_id if isinstance(sym_or_id, Symbol) else symbol_for(sym_or_id)
        op = self.register_operator(extract_callable_name(fn), like=like, fn=fn)
        self.register_implementation(like, op, checker=checker, vjp=vjp)
        return op


class FUEL_LEVEL(Enum):
    """How many regions a fuser may still make."""

    UNLIMITED = auto()


def region_node(
    name: str,
    fn: Callable,
    *,
    inputs: Sequence[Proxy],
    outputs: Sequence[Proxy],
    bsyms: Sequence[BoundSymbol],
    executor: Executor | None = None,
) -> BoundSymbol:
    """A node that stands for other nodes, its parts, and runs `fn`, from the inputs to a sequence of the outputs."""
    sym = Symbol(name=name, meta=None, id=name, is_prim=True, is_fusion=True, executor=executor, python_impl=fn)
    return sym.bind(*inputs, output=list(outputs), subsymbols=tuple(bsyms), _call_ctx={name: fn})


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
        """How many regions may still be made."""
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
        return region_node(name, fn, inputs=inputs, outputs=outputs, bsyms=bsyms, executor=self)


class StatefulExecutor(OperatorExecutor):
    """Operators with state: each use in a program gets an operator and a state object of its own."""

    def register_stateful_operator(self, name: str, state_class: type, *, meta: Callable) -> Callable:
        """A function that traces a call of `state_class()`, an object made for this one place in the program.

        The object is called with the values of the arguments each time the program runs, and keeps what it likes.
        """
        counter = itertools.count()

        def bind(*args: Any, **kwargs: Any) -> Any:
            trace = get_tracectx()
            if trace is None:
                raise ThunderTypeError(f"{name} can only be called while a trace is being built")
            own = f"{name}_{next(counter)}"
            state = state_class()
            sym = Symbol(own, meta, f"{self.name}.{own}", True, executor=self, python_impl=state)
            self._opmap[own] = sym
            return trace.call(sym, args, kwargs)

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
    """An executor with one operator, which replaces torch callables (`replaces`) or is called by name in a trace.

    The other arguments are those of `register_operator` and `register_implementation`.
    """
    ex = OperatorExecutor(exc_name, version=version)
    op = ex.register_operator(op_name, meta=meta, fn=fn, replaces=replaces, tags=tags)
    ex.register_implementation(
        op, op, checker=checker, execution_transform=execution_transform, grad_transform=grad_transform
    )
    return ex
