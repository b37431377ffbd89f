"""vjp, value_and_grad and grad of functions of thunder operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.core.tracing import tracectx
from thunder.core.transforms.autodiff import joint_trace
from thunder.torch.registry import symbol_for


def _joint_of(fn: Callable, flat: list[Any], spec: Any) -> tuple[TraceCtx, list[Any], Any]:
    """The joint trace of `fn`, the proxies that stand for its floating-point inputs, and the structure of its result.
    """
    trace = TraceCtx(name="inner")
    inner: list[Any] = []
    with tracectx(trace):
        for v in flat:
            if isinstance(v, TensorProxy):
                v = v.replace(name=trace.make_name(prefix="t"), requires_grad=is_inexact_dtype(v.dtype))
            inner.append(v)
        trace.args = tuple(v for v in inner if isinstance(v, TensorProxy))
        args, kwargs = tree_unflatten(inner, spec)
        result = fn(*args, **kwargs)
        outs, out_spec = tree_flatten(result)
        trace.emit(prims.python_return, (tuple(outs),), {}, None)
    return joint_trace(trace), inner, out_spec


def _inline(joint: TraceCtx, flat: list[Any], inner: list[Any], cotangents: Callable[[int, TensorProxy], Any]) -> tuple:
    """Adds a joint trace to the current one; gives its outputs and gradients."""
    trace = get_tracectx()
    if trace is None:
        raise ThunderTypeError("vjp, value_and_grad and grad of a function work while a trace is being built")
    env: dict[str, Any] = {p.name: v for p, v in zip(inner, flat, strict=True) if isinstance(p, TensorProxy)}
    outputs, grads = joint.bound_symbols[-1].args
    positions = {o.name: n for n, o in reversed(list(enumerate(outputs))) if isinstance(o, Proxy)}
    for node in joint.bound_symbols[:-1]:
        if node.sym is prims.get_grad:
            name = node.args[0].name
            env[node.output.name] = cotangents(positions[name], tree_map(lambda x: _read(env, x), node.args[0]))
            continue
        made = {o.name: o.replace(name=trace.unique_name(o.name), requires_grad=False) for o in node.defined}
        trace.add_bound_symbol(node.renamed(env, outputs=False).renamed(made, inputs=False))
        env.update(made)
    return tuple(_read(env, o) for o in outputs), tuple(_read(env, g) for g in grads)


def _read(env: dict[str, Any], x: Any) -> Any:
    return env.get(x.name, x) if isinstance(x, Proxy) else x


def _gradients(flat: list[Any], grads: Sequence[Any]) -> list[Any]:
    """One gradient (zeros where there is none) for each floating-point tensor of `flat`, None for all else."""
    found = iter(grads)
    result = []
    for v in flat:
        g = next(found) if isinstance(v, TensorProxy) else None
        if g is None and isinstance(v, TensorProxy) and is_inexact_dtype(v.dtype):
            g = symbol_for(torch.zeros_like)(v)
        result.append(g)
    return result


def vjp(func: Callable) -> Callable:
    """A function `(primals, cotangents) -> (result, gradients)`, to be called inside `thunder.trace` or another
    operation.

    Args:
        func: a function of thunder or torch operations.
    The returned function takes a tuple of primals and one cotangent per output, and gives func's result and a tuple
    with the gradient of each primal (None for those that are no floating-point tensors). Raises ThunderValueError for a
    wrong number of cotangents.
    """

    @wraps(func)
    def transformed(primals: Any, cotangents: Any, **kwargs: Any) -> tuple[Any, Any]:
        primals = primals if isinstance(primals, tuple | list) else (primals,)
        given = list(cotangents) if isinstance(cotangents, tuple | list) else [cotangents]
        flat, spec = tree_flatten((tuple(primals), kwargs))
        joint, inner, out_spec = _joint_of(func, flat, spec)
        count = len(joint.bound_symbols[-1].args[0])
        if len(given) != count:
            raise ThunderValueError(f"vjp: {len(given)} cotangents given, {count} expected, one per output")
        outputs, grads = _inline(joint, flat, inner, lambda n, o: given[n])
        paired = tree_unflatten(_gradients(flat, grads), spec)
        return tree_unflatten(list(outputs), out_spec), paired[0]

    return transformed


def value_and_grad(func: Callable) -> Callable:
    """A function that gives func's result and the gradients of its arguments, with cotangents of ones.

    To be called inside `thunder.trace` or another operation. The gradients are (args, kwargs) when func is called with
    keywords, else a tuple for the positional arguments; None for arguments that are no floating-point tensors.
    """

    @wraps(func)
    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        flat, spec = tree_flatten((args, kwargs))
        joint, inner, out_spec = _joint_of(func, flat, spec)
        outputs, grads = _inline(joint, flat, inner, lambda n, o: symbol_for(torch.ones_like)(o))
        paired = tree_unflatten(_gradients(flat, grads), spec)
        return tree_unflatten(list(outputs), out_spec), (paired if kwargs else paired[0])

    return transformed


def grad(fn: Callable) -> Callable:
    """A function that calls the compiled `fn` and returns the gradients of its parameters and arguments, in order.

    Those that do not require grad, or have no gradient, are left out. The cotangent of each output that requires
    grad is ones. `thunder.last_traces` and the like work as they do on `fn`.

    Raises ThunderTypeError if `fn` has not been compiled, RuntimeError as torch does if no output requires grad.
    """
    if not hasattr(fn, "_lc_cd"):
        raise ThunderTypeError(f"grad takes what thunder.jit has returned, not {fn!r}")

    @wraps(fn, updated=())
    def gradients(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        outputs = [o for o in tree_flatten(fn(*args, **kwargs))[0] if isinstance(o, torch.Tensor) and o.requires_grad]
        inputs: list[Any] = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
        inputs += [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
        wanted = list({id(t): t for t in inputs if t.requires_grad}.values())
        found = torch.autograd.grad(outputs, wanted, [torch.ones_like(o) for o in outputs], allow_unused=True)
        return [g for g in found if g is not None]

    for name in ("_lc_cd", "_lc_cs", "_lc_transforms", "_lc_compiled"):
        if hasattr(fn, name):
            setattr(gradients, name, getattr(fn, name))
    return gradients


def populate_grads(grads: Sequence[Any], tom: Any = None, args: Any = None, kwargs: Any = None) -> None:
    """Writes gradients, in order, to `.grad` of the parameters of a module or of the tensors among args and kwargs."""
    tensors: list[torch.Tensor] = list(tom.parameters()) if isinstance(tom, torch.nn.Module) else []
    tensors += [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
    wanted = [t for t in tensors if t.requires_grad]
    for t, g in zip(wanted, grads, strict=False):
        t.grad = g


def extract_grads(module: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """The gradients of a module's parameters, in order, those without one left out."""
    return tuple(p.grad for p in module.parameters() if p.grad is not None)


def clear_grads(module: torch.nn.Module) -> None:
    """Sets the gradients of a module's parameters and buffers to None."""
    for t in (*module.parameters(), *module.buffers()):
        t.grad = None


def put_grads(a: Any, g: Any) -> None:
    """`put_grad` for all tensors of a pytree."""
    for x, y in zip(tree_flatten(a)[0], tree_flatten(g)[0], strict=True):
        if isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype) and y is not None:
            prims.put_grad(x, y)
