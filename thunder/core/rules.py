"""Gradient rules, by symbol id. One mechanism: `vjp(*args, **kwargs) -> (outputs, pullback)`.

`pullback(*cotangents)` takes one cotangent (or None) per output tensor and returns one gradient (or None) per argument,
or a dict from argument name or position to gradient. The older forms that users know are turned into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core.dtypes import is_inexact_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, Symbol

VjpRule = Callable[..., tuple[Any, Callable]]

_vjp_rules: dict[Any, VjpRule] = {}
_grad_rules: dict[Any, Callable] = {}
augmented_forward_impls: dict[Any, Callable] = {}
backward_impls: dict[Any, Callable] = {}


def _id_of(sym_or_id: Any) -> Any:
    return sym_or_id.id if isinstance(sym_or_id, Symbol) else sym_or_id


def register_vjp(sym_or_id: Any) -> Callable[[VjpRule], VjpRule]:
    """Decorator: the function is the gradient rule of the symbol."""

    def register(rule: VjpRule) -> VjpRule:
        _vjp_rules[_id_of(sym_or_id)] = rule
        return rule

    return register


def register_grad(sym_or_id: Any, gradfn: Callable) -> None:
    """`gradfn(*args, **kwargs)` computes and returns the forward, and calls `get_grad(out)` and `put_grad(arg, g)`."""
    _grad_rules[_id_of(sym_or_id)] = gradfn


def register_augmented_forward(op: Any) -> Callable:
    """Decorator: the function gives (result, residuals) or a VJPDual."""

    def register(fn: Callable) -> Callable:
        augmented_forward_impls[_id_of(op)] = fn
        return fn

    return register


def register_backward(op: Any) -> Callable:
    """Decorator: the function takes residuals, then output gradients, and gives the inputs' gradients."""

    def register(fn: Callable) -> Callable:
        backward_impls[_id_of(op)] = fn
        return fn

    return register


@dataclass
class VJPDual:
    """Result and residuals of an augmented forward."""

    primal: Any
    residuals: tuple

    def __iter__(self) -> Any:
        yield self.primal
        yield self.residuals


def _augmented_rule(forward: Callable, backward: Callable) -> VjpRule:
    def rule(*args: Any, **kwargs: Any) -> tuple[Any, Callable]:
        out, residuals = forward(*args, **kwargs)
        kept = residuals if isinstance(residuals, tuple | list) else (residuals,)
        return out, lambda *cotangents: backward(*kept, *cotangents)

    return rule


def find_rule(sym: Symbol) -> VjpRule | None:
    """The hand-written gradient rule of a symbol, or None."""
    rule = _vjp_rules.get(sym.id)
    if rule is None and sym.id in augmented_forward_impls and sym.id in backward_impls:
        rule = _augmented_rule(augmented_forward_impls[sym.id], backward_impls[sym.id])
    return rule


def grad_rule(sym: Symbol) -> Callable | None:
    """The `register_grad` rule of a symbol, or None."""
    return _grad_rules.get(sym.id)


def pair_gradients(node: BoundSymbol, args: tuple, kwargs: dict, grads: Any) -> list[tuple[TensorProxy, Any]]:
    """Gradients as a rule returns them, as (input, gradient) pairs."""
    if isinstance(grads, dict):
        names = list(node.sym.signature.parameters) if node.sym.signature is not None else []
        pairs = []
        for key, g in grads.items():
            position = key if isinstance(key, int) else names.index(key)
            value = args[position] if position < len(args) else kwargs.get(names[position])
            pairs.append((value, g))
        return [(p, g) for p, g in pairs if isinstance(p, TensorProxy)]
    grads = list(grads) if isinstance(grads, tuple | list) else [grads]
    flat = tree_flatten((args, kwargs))[0]
    tensors = [p for p in flat if isinstance(p, TensorProxy)]
    differentiable = [p for p in tensors if is_inexact_dtype(p.dtype)]
    values: Sequence[Any] = list(args)
    for candidate in (values, flat, tensors, differentiable):
        if len(candidate) == len(grads):
            return [(p, g) for p, g in zip(candidate, grads, strict=True) if isinstance(p, Proxy)]  # type: ignore[misc]
    raise ValueError(f"the gradient rule of {node.sym.name} returned {len(grads)} gradients for {len(args)} arguments")
