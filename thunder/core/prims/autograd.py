"""Primitives that mark where gradients enter and leave, and what a custom backward replaces."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.prims.base import make_prim
from thunder.core.prims.inplace import fresh
from thunder.core.symbol import BoundSymbol, OpTags, Traits

get_grad = make_prim(
    "GET_GRAD", "get_grad", meta=lambda a: fresh(a, requires_grad=False), traits=Traits(is_kept=True, is_barrier=True),
    tags=(OpTags.DONT_DCE,),
)  # fmt: skip
get_grad.__dict__["__doc__"] = (
    "The cotangent of `a`. Kept where nobody reads it: an output whose gradient is zero still requires a gradient."
)
put_grad = make_prim(
    "PUT_GRAD", "put_grad", meta=lambda a, g: None, traits=Traits(is_kept=True, is_barrier=True),
    tags=(OpTags.DONT_DCE,),
)  # fmt: skip


def _custom_vjp_meta(outs: Any, inputs: Any, body: Any) -> Any:
    return tuple(fresh(o) for o in outs)


def _custom_vjp_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    outs, inputs, body = args
    left = ", ".join(getattr(o, "name", "_") for o in out) + ("," if len(out) == 1 else "")
    return lambda show: f"({left}) = prims.custom_vjp({show(outs)}, {show(inputs)}, {show(body.graph_module)})"


custom_vjp = make_prim(
    "CUSTOM_VJP", "custom_vjp", meta=_custom_vjp_meta, python_printer=_custom_vjp_printer,
    python_impl=lambda outs, inputs, body: tuple(outs),
    traits=Traits(is_barrier=True),
)  # fmt: skip
custom_vjp.__dict__["__doc__"] = (
    "The outputs of a custom autograd function: the values `outs`, whose gradient with respect to `inputs` is "
    "what `body` computes."
)

late_saved = make_prim(
    "LATE_SAVED", "late_saved", meta=lambda body, saved: None, python_impl=lambda body, saved: None,
    traits=Traits(is_kept=True, is_barrier=True), tags=(OpTags.DONT_DCE,),
)  # fmt: skip
late_saved.__dict__["__doc__"] = (
    "What a custom backward reads when it runs: its saved tensors as they are when forward ends."
)


save = make_prim(
    "SAVE", "save", meta=lambda *values: None, python_impl=lambda *values: None, traits=Traits(is_kept=True),
    tags=(OpTags.DONT_DCE,),
)  # fmt: skip
save.__dict__["__doc__"] = "In backward: forward saves `values`, whether or not this backward reads them."


class _WithHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, window: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return window.detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, g


with_history = make_prim(
    "WITH_HISTORY", "with_history", meta=lambda window, value: fresh(window, requires_grad=value.requires_grad),
    python_impl=_WithHistory.apply,
)  # fmt: skip
with_history.__dict__["__doc__"] = (
    "A tensor on the memory of `window` with the autograd history of `value`, equal to it."
)

unversioned = make_prim(
    "UNVERSIONED", "unversioned", meta=lambda a: fresh(a, requires_grad=False), python_impl=lambda a: a.data,
    traits=Traits(is_barrier=True),
)  # fmt: skip
unversioned.__dict__["__doc__"] = "A tensor on the memory of `a` whose saving for backward checks nothing."

detached = make_prim(
    "DETACHED", "detached", meta=lambda a: fresh(a), python_impl=lambda a: a.detach(),
    traits=Traits(is_barrier=True),
)  # fmt: skip
detached.__dict__["__doc__"] = (
    "A tensor on the memory of `a`, with the gradient of `a` in the program and no history in torch's autograd, which "
    "refuses to keep views of a tensor with one that is written under no_grad."
)

set_grad_enabled = make_prim(
    "SET_GRAD_ENABLED", "set_grad_enabled", meta=lambda enabled: None, python_impl=torch._C._set_grad_enabled,
    traits=Traits(is_kept=True, is_barrier=True),
)  # fmt: skip
