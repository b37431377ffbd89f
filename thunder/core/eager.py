"""Functions of proxies on real tensors: what they do is traced, then run node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder.core.errors import UnsupportedOpError
from thunder.core.proxies import Proxy, TensorProxy, tensorproxy
from thunder.core.pytree import tree_flatten, tree_iter, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx


def has_tensors(args: Any) -> bool:
    """Whether a pytree holds a torch tensor."""
    return any(isinstance(a, torch.Tensor) for a in tree_iter(args))


def evaluate(nodes: Iterable[BoundSymbol], env: dict[str, Any]) -> None:
    """Runs nodes in order; `env` maps names to values and gets the results. Nodes nobody runs are run in parts.

    Raises: UnsupportedOpError for a primitive without an implementation.
    """

    def read(x: Any) -> Any:
        return env[x.name] if isinstance(x, Proxy) and x.name in env else x

    for node in nodes:
        fn = node.sym.python_impl or node.sym.torch_fn
        if fn is None:
            if not node.subsymbols:
                raise UnsupportedOpError(f"{node.sym.name} cannot be run on tensors")
            evaluate(node.subsymbols, env)
            continue
        result = fn(*tree_map(read, node.args), **tree_map(read, node.kwargs))
        for p, value in zip(tree_flatten([node.output])[0], tree_flatten([result])[0], strict=True):
            if isinstance(p, Proxy):
                env[p.name] = value


def run_on_tensors(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`fn(*args, **kwargs)` for a function that is written for proxies. O(calls that it makes)."""
    trace = TraceCtx(name="eager")
    env: dict[str, Any] = {}
    proxies: dict[int, TensorProxy] = {}

    def proxied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in proxies:
            proxies[id(x)] = tensorproxy(x, name=trace.make_name(prefix="a"))
            env[proxies[id(x)].name] = x
        return proxies[id(x)]

    with tracectx(trace):
        result = fn(*tree_map(proxied, args), **tree_map(proxied, kwargs))
    evaluate(trace.bound_symbols, env)
    (value,) = tree_map(lambda x: env.get(x.name, x) if isinstance(x, Proxy) else x, (result,))
    return value
