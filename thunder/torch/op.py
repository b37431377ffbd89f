"""How torch's operations are declared: one function gives the metadata and the decomposition of several callables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder.clang.utils import functions as clang_functions
from thunder.core import devices, dtypes, prims
from thunder.core.eager import has_tensors, run_on_tensors
from thunder.core.errors import NoDecompositionError, UnsupportedOpError
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy, tensorproxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.rules import VjpRule, register_vjp
from thunder.core.symbol import Symbol, Traits
from thunder.core.torch_compat import allow_in_graph, asks_for_values
from thunder.core.trace import TraceCtx
from thunder.core.tracing import get_tracectx
from thunder.core.verify import check_metadata_of
from thunder.torch.fakes import fake_meta
from thunder.torch.mutation import writing_symbol
from thunder.torch.registry import method_call, register_symbol, symbol_id, symbol_name, traits_of

# Names that torch's argument parser takes for others, as numpy calls them.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}


def to_torch_leaf(x: Any) -> Any:
    """Thunder's dtypes and devices as torch's, and number proxies whose value is known as numbers."""
    if isinstance(x, dtypes.dtype):
        return dtypes.to_torch_dtype(x)
    if isinstance(x, devices.Device):
        return devices.to_torch_device(x)
    return x.value if isinstance(x, NumberProxy) and x.value is not None else x


@dataclass(frozen=True, eq=False, repr=False)
class Operation(Symbol):
    """A hand-written torch operation.

    twins: the symbols of the other callables with the same body.
    samples: its name in torch's op_db, which gives the inputs for its tests.
    """

    twins: tuple[Symbol, ...] = field(default=())
    samples: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(to_torch_leaf, (args, kwargs))
        trace = get_tracectx()
        if trace is None:
            if self.torch_fn is None:
                return run_on_tensors(self.meta, args, kwargs)  # type: ignore[arg-type]
            return self.torch_fn(*args, **kwargs)
        if kwargs.get("inplace") or kwargs.get("out") is not None:
            return call_torch(self.torch_fn, args, kwargs)
        args, kwargs = with_constants(trace, args, kwargs)
        return trace.call(self, args, kwargs)

    def vjp(self, rule: VjpRule) -> VjpRule:
        """Decorator: `rule(*args, **kwargs) -> (outputs, pullback)` is the gradient of the operation and its twins."""
        for sym in (self, *self.twins):
            register_vjp(sym)(rule)
        return rule


operations: dict[str, Operation] = {}
"""The hand-written operations by the name that `thunder.torch` has for them."""


def _distinct(result: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result with new names for values that are arguments, or appear twice."""
    seen = {p.name for p in tree_flatten((args, kwargs))[0] if isinstance(p, Proxy)}

    def renamed(x: Any) -> Any:
        if not isinstance(x, TensorProxy):
            return x
        if x.name in seen:
            x = prims.shallow_copy(x)
        seen.add(x.name)
        return x

    (result,) = tree_map(renamed, (result,))
    return result


def _meta_of(body: Callable, fn: Callable | None) -> Callable:
    """The meta rule of `body`; forms of the call that it does not take get their metadata from `fn` on fake tensors."""
    signature = inspect.signature(body)

    def opaque(args: tuple, kwargs: dict[str, Any]) -> Any:
        if fn is None:
            raise UnsupportedOpError(f"{body.__name__} does not take these arguments")
        return fake_meta(fn, args, kwargs)

    @functools.wraps(body)
    def meta(*args: Any, **kwargs: Any) -> Any:
        named = {n if n in signature.parameters else _NUMPY_NAMES.get(n, n): value for n, value in kwargs.items()}
        try:
            signature.bind(*args, **named)
        except TypeError:
            return opaque(args, kwargs)
        nodes = get_tracectx().bound_symbols
        start = len(nodes)
        try:
            result = body(*args, **named)
        except Exception as e:
            if not isinstance(e, NoDecompositionError) and not asks_for_values(e):
                raise
            del nodes[start:]
            return opaque(args, kwargs)
        return _distinct(result, args, kwargs)

    return meta


def _register(sym: Symbol, *callables: Any) -> None:
    register_symbol(sym, sym, *callables)
    check_metadata_of(sym.id)
    allow_in_graph(sym)


def op(
    *callables: Callable,
    name: str | None = None,
    id: Any = None,
    method: str | None = None,
    samples: str | None = None,
    tags: Sequence[Any] = (),
    traits: Traits | None = None,
) -> Callable[[Callable], Operation]:
    """Declares an operation: the decorated function, on proxies, is its metadata rule and what it is made of.

    Args:
        callables: torch's functions and methods that it is, with one signature, which the body's is too. Each has a
            symbol of its own, with the id that it would have without a declaration; the first one's is returned.
        name: under which `thunder.torch` has it, the body's name by default.
        id: replaces the first symbol's id.
        method: the tensor method that it is where no torch callable says so.
        samples: its name in torch's op_db.
        tags: OpTags.
        traits: effects; from torch's schemas by default.

    A body raises NoDecompositionError for forms of the call that it leaves to torch as a whole.
    """

    def declare(body: Callable) -> Operation:
        own_name = name or body.__name__
        symbols: list[Symbol] = []
        for fn in callables or (None,):
            symbols.append(
                Operation(
                    name=own_name if fn is None else symbol_name(fn),
                    meta=_meta_of(body, fn),
                    id=(id if id is not None and not symbols else f"torch.{own_name}" if fn is None else symbol_id(fn)),
                    module="ltorch",
                    tags=tuple(tags),
                    torch_fn=fn,
                    traits=traits or (traits_of(fn) if fn is not None else Traits()),
                    samples=samples or own_name,
                )
            )
        primary = symbols[0]
        object.__setattr__(primary, "twins", tuple(symbols[1:]))
        for sym, fn in zip(symbols, callables or (None,), strict=True):
            _register(sym, *(() if fn is None else (fn,)))
        operations[own_name] = primary  # type: ignore[assignment]
        if method is not None:
            extra_methods[method] = primary
        return primary  # type: ignore[return-value]

    return declare


extra_methods: dict[str, Callable] = {}
"""Tensor methods that no torch callable stands for."""


def with_constants(trace: TraceCtx, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments with real tensors as constants of the trace."""
    if not has_tensors((args, kwargs)):
        return args, kwargs

    def constant(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        p = tensorproxy(x, name=trace.make_name(prefix="constant"))
        trace.emit(prims.tensor_constant, (x,), {}, p)
        return p

    return tree_map(constant, (args, kwargs))


def _is_method(fn: Any) -> bool:
    name = getattr(fn, "__name__", "")
    return not name.startswith("__") and getattr(torch.Tensor, name, None) is fn


def call_torch(fn: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A torch call on proxies while a trace is being built: its node, and what it gives.

    A call that writes gives the tensor that it writes to; the nodes of a trace run in order, so later reads see it.
    """
    trace = get_tracectx()
    args, kwargs = tree_map(to_torch_leaf, (tuple(args), dict(kwargs)))
    args, kwargs = with_constants(trace, args, kwargs)
    if _is_method(fn):
        fn, args = method_call(fn.__name__, args, kwargs)
    if isinstance(fn, Symbol):
        return trace.call(fn, args, kwargs)
    sym, args, kwargs = writing_symbol(fn, args, kwargs)
    if not sym.traits.writes:
        return trace.call(sym, args, kwargs)
    if sym.traits.writes == (0,):
        out: Any = args[0]
    elif sym.traits.writes == ("out",):
        out = kwargs["out"]
    else:
        out = fake_meta(fn, args, kwargs)
    if fn is torch.Tensor.__setitem__:
        out = None
    trace.emit(sym, args, kwargs, out)
    return out


def _declare_lower_functions() -> None:
    """Lets jitted programs call primitives, and clang's functions, which are nodes there, decomposed when asked."""
    for fn in clang_functions:
        sym = Symbol(name=fn.__name__, meta=fn, id=f"clang.{fn.__name__}", module="clang")
        register_symbol(sym, fn)
        allow_in_graph(fn)
    for sym in vars(prims).values():
        if isinstance(sym, Symbol) and sym.torch_fn is not None:
            register_symbol(sym, sym)
            allow_in_graph(sym)


_declare_lower_functions()
