"""`thunder.trace`: the trace of a function, made by calling it once on proxies.

Thunder's symbols, clang's functions, torch's functions and tensor methods all leave nodes. Python values are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder.core import prims
from thunder.core.baseutils import extract_callable_name
from thunder.core.codeutils import get_siginfo
from thunder.core.passes import PassContext
from thunder.core.proxies import FutureTensorProxy, NumberProxy, Proxy, TensorProxy, numberproxy, tensorproxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.trace import TraceCtx
from thunder.core.tracing import get_tracectx, grad_mode, tracectx
from thunder.core.transforms.dce import DeadCodeElimination
from thunder.torch.langctx import torch_function


class TraceMode(TorchFunctionMode):
    """Sends torch calls that concern the trace to it: those on proxies, and factories, which read no tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if get_tracectx() is None:
            return func(*args, **kwargs)
        has_proxy = any(isinstance(a, TensorProxy) for a in tree_iter((args, kwargs)))
        if has_proxy or func in _FACTORIES:
            return torch_function(func, args, kwargs)
        return func(*args, **kwargs)


_FACTORIES = frozenset(
    getattr(torch, n)
    for n in (
        "arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
        "randperm", "tensor", "tril_indices", "triu_indices", "zeros",
    )
)  # fmt: skip


class _Inputs:
    """Gives arguments their proxies and unpacks containers of them."""

    def __init__(self, trace: TraceCtx):
        self.trace = trace
        self.proxies: list[Proxy] = []

    def value(self, name: str, x: Any) -> Any:
        """What the function gets for an argument: proxies for tensors, everything else as it is."""
        if isinstance(x, TensorProxy):
            p = x.replace(name=self.trace.unique_name(x.name))
            return self._enter(p)
        if isinstance(x, torch.Tensor):
            return self._enter(tensorproxy(x, name=self.trace.unique_name(name)))
        if isinstance(x, Number) and not isinstance(x, NumberProxy):
            self._enter(numberproxy(type(x), x).replace(name=self.trace.unique_name(name)))
            return x
        if isinstance(x, tuple | list | dict):
            count = iter(range(1 << 30))
            return tree_map(lambda leaf: self._leaf(f"{name}_{next(count)}", leaf), x)
        return x

    def _leaf(self, name: str, x: Any) -> Any:
        return self.value(name, x) if isinstance(x, torch.Tensor | TensorProxy) else x

    def _enter(self, p: Any) -> Any:
        self.proxies.append(p)
        self.trace.emit(prims.unpack_trivial, (p,), {"name": p.name}, p)
        return p


def _waited(result: Any) -> Any:
    return tree_map(lambda x: x.wait() if isinstance(x, FutureTensorProxy) else x, (result,))[0]


def _bind_inputs(trace: TraceCtx, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The function's arguments as proxies, under the names of its parameters."""
    inputs = _Inputs(trace)
    info = get_siginfo(fn, args, kwargs)
    names = [name for name, _ in info.args]
    if info.varargs is not None:
        names += [f"{info.varargs[0]}_{n}" for n in range(len(args) - len(names))]
    names += [f"arg{n}" for n in range(len(names), len(args))]
    bound = tuple(inputs.value(name, a) for name, a in zip(names, args, strict=False))
    bound_kwargs = {name: inputs.value(name, a) for name, a in kwargs.items()}
    trace.args = tuple(inputs.proxies)
    return bound, bound_kwargs


def trace(
    compile_data: Any = None,
    inline_trace: bool = True,
    rename_proxies: bool = True,
    include_return_statement: bool = True,
    use_dce: bool = True,
    insert_ddp_syncs: bool = False,
    _used_names: set[str] | None = None,
) -> Callable:
    """A function that traces: `trace()(fn, *args, **kwargs)` calls `fn` on proxies and gives what it did as a trace.

    The trace's inputs are the tensors and numbers of the arguments, in order, those in containers too; numbers are
    constants, whatever is passed for them later.

    Args:
        compile_data, rename_proxies, insert_ddp_syncs: accepted for compatibility; tracing needs none of them.
        inline_trace: while another trace is being built, `fn` is called into that one and its result returned.
        include_return_statement: ends the trace with a return node.
        use_dce: removes nodes whose results are not used.
        _used_names: names that no value may take.
    Raises: what `fn` raises; UnsupportedOpError for what cannot be traced.
    """

    def run(fn: Callable, *args: Any, **kwargs: Any) -> Any:
        if inline_trace and get_tracectx() is not None:
            return fn(*args, **kwargs)
        made = TraceCtx(fn, name=_function_name(fn))
        made.names |= _used_names or set()
        with tracectx(made), grad_mode(torch.is_grad_enabled()):
            bound, bound_kwargs = _bind_inputs(made, fn, args, kwargs)
            with TraceMode():
                result = _waited(fn(*bound, **bound_kwargs))
            if include_return_statement:
                made.emit(prims.python_return, (result,), {}, None)
        if use_dce and include_return_statement:
            made = DeadCodeElimination().apply(made, PassContext())
        return made.mark_complete()

    return run


def _function_name(fn: Callable) -> str:
    name = extract_callable_name(fn)
    return name if name.isidentifier() else "computation"
