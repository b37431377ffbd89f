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
from thunder.core.pytree import tree_flatten, tree_unflatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.core.tracing import tracectx
from thunder.core.transforms.autodiff import joint_trace
from thunder.torch.registry import symbol_for


class JointFunction:
    """A function's forward and backward, to be put into the current trace at two places.

    out_spec: the structure of the function's result.
    """

    def __init__(self, fn: Callable, flat: list[Any], spec: Any):
        """Differentiates `fn` with respect to its floating-point inputs.

        Args:
            flat: the leaves of its (args, kwargs).
            spec: their structure.
        """
        trace = TraceCtx(name="inner")
        self._inner: list[Any] = []
        with tracectx(trace):
            for v in flat:
                if isinstance(v, TensorProxy):
                    v = v.replace(name=trace.make_name(prefix="t"), requires_grad=is_inexact_dtype(v.dtype))
                self._inner.append(v)
            trace.args = tuple(v for v in self._inner if isinstance(v, TensorProxy))
            args, kwargs = tree_unflatten(self._inner, spec)
            outs, self.out_spec = tree_flatten(fn(*args, **kwargs))
            trace.emit(prims.python_return, (tuple(outs),), {}, None)
        joint = joint_trace(trace)
        self._outputs, self._grads = joint.bound_symbols[-1].args
        nodes = joint.bound_symbols[:-1]
        self._forward = [n for n in nodes if not n.is_backward]
        self._entries = {n.args[0].name: n.output.name for n in nodes if n.sym is prims.get_grad}
        self._backward = [n for n in nodes if n.is_backward and n.sym is not prims.get_grad]
        made = {o.name for n in self._backward for o in n.defined} | set(self._entries.values())
        read = [p.name for n in self._backward for p in n.flat_proxy_args]
        read += [g.name for g in self._grads if isinstance(g, Proxy)]
        self._residuals = list(dict.fromkeys(name for name in read if name not in made))

    @property
    def n_outputs(self) -> int:
        return len(self._outputs)

    @property
    def n_residuals(self) -> int:
        return len(self._residuals)

    @property
    def has_gradient(self) -> list[bool]:
        """For each output whether its cotangent is read."""
        return [isinstance(o, Proxy) and o.name in self._entries for o in self._outputs]

    def forward(self, flat: list[Any]) -> tuple[list[Any], list[Any]]:
        """Adds the forward for inputs like those it was made for; gives the outputs and what `backward` needs."""
        env = {p.name: v for p, v in zip(self._inner, flat, strict=True) if isinstance(p, TensorProxy)}
        _replay(self._forward, env)
        return [_read(env, o) for o in self._outputs], [env[name] for name in self._residuals]

    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Adds the backward for one cotangent per output; gives one gradient, or None, per tensor among the inputs."""
        env = dict(zip(self._residuals, residuals, strict=True))
        for o, g, is_read in zip(self._outputs, cotangents, self.has_gradient, strict=True):
            if is_read:
                env.setdefault(self._entries[o.name], g)
        _replay(self._backward, env)
        return [_read(env, g) for g in self._grads]


def _replay(nodes: list[BoundSymbol], env: dict[str, Any]) -> None:
    """Adds nodes to the current trace under new names. `env`: the values of what they read; what they make is added."""
    trace = get_tracectx()
    if trace is None:
        raise ThunderTypeError("the gradient of a function of operations can be taken while a trace is being built")
    for node in nodes:
        made = {o.name: o.replace(name=trace.unique_name(o.name), requires_grad=False) for o in node.defined}
        trace.add_bound_symbol(node.renamed(env, outputs=False).renamed(made, inputs=False))
        env.update(made)


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
        joint = JointFunction(func, flat, spec)
        if len(given) != joint.n_outputs:
            raise ThunderValueError(f"vjp: {len(given)} cotangents given, {joint.n_outputs} expected, one per output")
        outputs, residuals = joint.forward(flat)
        paired = tree_unflatten(_gradients(flat, joint.backward(residuals, given)), spec)
        return tree_unflatten(outputs, joint.out_spec), paired[0]

    return transformed


def value_and_grad(func: Callable) -> Callable:
    """A function that gives func's result and the gradients of its arguments, with cotangents of ones.

    To be called inside `thunder.trace` or another operation. The gradients are (args, kwargs) when func is called with
    keywords, else a tuple for the positional arguments; None for arguments that are no floating-point tensors.
    """

    @wraps(func)
    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        flat, spec = tree_flatten((args, kwargs))
        joint = JointFunction(func, flat, spec)
        outputs, residuals = joint.forward(flat)
        is_tracked = joint.has_gradient
        ones = [symbol_for(torch.ones_like)(o) if t else None for o, t in zip(outputs, is_tracked, strict=True)]
        paired = tree_unflatten(_gradients(flat, joint.backward(residuals, ones)), spec)
        return tree_unflatten(outputs, joint.out_spec), (paired if kwargs else paired[0])

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
