"""The gradient of one operation as a pair of functions, and what an augmented forward trace saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_unflatten
from thunder.core.rules import VJPDual, augmented_forward_impls, backward_impls
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.core.transforms.function_transforms import JointFunction


def make_aug_forward_and_backward(bsym: BoundSymbol) -> tuple[Callable, Callable]:
    """The functions `augmented_forward(*args, **kwargs) -> VJPDual` and `backward(*residuals, *cotangents)`.

    Both are called while a trace is being built. The first takes arguments like those of `bsym` and gives its result
    and the residuals; the second takes these and one cotangent per output tensor, and gives one gradient per tensor
    among the arguments, in order (None for those that are not of floating point). Rules that were registered as such a
    pair (`register_augmented_forward`, `register_backward`) are given as they are.
    """
    if bsym.sym.id in augmented_forward_impls and bsym.sym.id in backward_impls:
        return augmented_forward_impls[bsym.sym.id], backward_impls[bsym.sym.id]
    joint: JointFunction | None = None

    def augmented_forward(*args: Any, **kwargs: Any) -> VJPDual:
        nonlocal joint
        flat, spec = tree_flatten((args, kwargs))
        joint = JointFunction(bsym.sym, flat, spec)
        outputs, saved = joint.forward(flat)
        return VJPDual(tree_unflatten(outputs, joint.out_spec), tuple(saved))

    def backward(*residuals_and_cotangents: Any) -> Any:
        if joint is None:
            raise ThunderValueError(f"the backward of {bsym.sym.name} was called before its augmented forward")
        count = joint.n_residuals
        grads = tuple(joint.backward(residuals_and_cotangents[:count], residuals_and_cotangents[count:]))
        return grads[0] if len(grads) == 1 else grads

    return augmented_forward, backward


def _saving_node(trace: TraceCtx) -> BoundSymbol:
    last = trace.bound_symbols[-1]
    if last.sym is not prims.python_return or len(last.args) != 3:
        raise ThunderTypeError("only the forward trace of a program with a backward saves tensors")
    return last


def get_saved_for_backward_tensors(trace: TraceCtx) -> tuple[TensorProxy, ...]:
    """The tensors that a forward trace (the last of `thunder.last_traces`) saves for backward.

    Raises: ThunderTypeError if the trace is not a forward with a backward.
    """
    return tuple(p for p in _saving_node(trace).args[1] if isinstance(p, TensorProxy))


def set_saved_for_backward_tensors(trace: TraceCtx, saved_tensors: Sequence[TensorProxy]) -> None:
    """Changes in place which tensors a forward trace saves; its backward must unpack the same ones.

    Raises: ThunderTypeError if the trace is not a forward with a backward, ThunderValueError for a tensor that it does
        not define.
    """
    last = _saving_node(trace)
    inputs = {a.name for a in trace.args if isinstance(a, Proxy)}
    known = inputs | {o.name for n in trace.bound_symbols[:-1] for o in n.defined}
    for p in saved_tensors:
        if p.name not in known:
            raise ThunderValueError(f"{p.name} cannot be saved for backward: the trace does not define it")
    del trace.bound_symbols[-1]
    with tracectx(trace):
        trace.emit(prims.python_return, (last.args[0], tuple(saved_tensors), last.args[2]), {}, None)
