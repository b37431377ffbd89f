"""Gradient rules under the path that passes import them from; operations register theirs in `thunder.core.rules`."""

from thunder.core.rules import (
    VJPDual,
    VjpRule,
    augmented_forward_impls,
    backward_impls,
    find_rule,
    grad_rule,
    pair_gradients,
    register_augmented_forward,
    register_backward,
    register_grad,
    register_vjp,
)

__all__ = [
    "VJPDual", "VjpRule", "augmented_forward_impls", "backward_impls", "find_rule", "grad_rule", "pair_gradients",
    "register_augmented_forward", "register_backward", "register_grad", "register_vjp",
]  # fmt: skip
