"""Running compiled programs inside torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.errors import DoubleBackwardError
from thunder.core.torch_compat import functorch_is_active
from thunder.program import Program


class ThunderFunction(torch.autograd.Function):
    """A compiled forward and backward as one node of torch's graph.

    Saved tensors go through `save_for_backward`, so version counters and saved-tensor hooks work as in eager.
    """

    @staticmethod
    def forward(ctx: Any, program: Program, *args: Any) -> Any:
        if torch._C._is_any_autocast_enabled():
            with _plain_torch():
                outs, saved, others = program.forward(*args)
        else:  # torch has switched autograd off for a Function's forward
            outs, saved, others = program.forward(*args)
        ctx.program, ctx.others = program, others
        if program.partial.sizes_vary:
            ctx.sizes = [outs[n].shape for n in program.differentiable]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        if len(program.differentiable) != len(outs):
            wanted = program.differentiable
            constant = [o for n, o in enumerate(outs) if n not in wanted and isinstance(o, torch.Tensor)]
            ctx.mark_non_differentiable(*constant)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        program = ctx.program
        if program.backward is None:
            return (None,) * len(ctx.needs_input_grad)
        cotangents = [grads[n] for n in program.differentiable]
        saved = [list(ctx.saved_tensors), list(ctx.others)]
        # The program drops each value at its last use; autograd's own references would keep all until the end.
        ctx.maybe_clear_saved_tensors()
        with _plain_torch():
            if all(c is not None for c in cotangents):
                results = program.backward(saved, cotangents)
            else:
                given = tuple(n for n, c in zip(program.differentiable, cotangents, strict=True) if c is not None)
                partial = program.partial
                results = partial.get(given)(saved, cotangents, ctx.sizes if partial.sizes_vary else None)
        if torch.is_grad_enabled():  # create_graph=True
            results = _without_second_gradient(ctx, results)
        return (None, *results)


# torch's own, without what `Function.apply` does in Python around it for functorch, which takes as long as the call.
apply_directly = super(torch.autograd.Function, ThunderFunction).apply


class _NoSecondGradient(torch.autograd.Function):
    """Gives its first `count` tensors on; their gradient is an error. What they depend on is among the arguments."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise DoubleBackwardError(
            "a gradient of a gradient was asked of a compiled function, which has only a first one; "
            "call the function that was compiled instead, or compile it without the part that is differentiated twice"
        )


def _without_second_gradient(ctx: Any, results: Sequence[Any]) -> list[Any]:
    """The gradients as a graph that depends on the leaves below this node, and that cannot be differentiated."""
    tensors = [g for g in results if isinstance(g, torch.Tensor)]
    if not tensors:
        return list(results)
    tracked = iter(_NoSecondGradient.apply(len(tensors), *tensors, *_leaves_below(ctx)))
    return [next(tracked) if isinstance(g, torch.Tensor) else g for g in results]


def _leaves_below(node: Any) -> list[torch.Tensor]:
    """The leaves that a node of torch's graph is computed from."""
    leaves: list[torch.Tensor] = []
    pending, seen = [node], set()
    while pending:
        for following, _ in pending.pop().next_functions:
            if following is None or following in seen:
                continue
            seen.add(following)
            pending.append(following)
            if (variable := getattr(following, "variable", None)) is not None:
                leaves.append(variable)
    return leaves


class _plain_torch:
    """No autograd and no autocast inside: a compiled program has both among its operations. Costs next to nothing
    where they are off already, as they are in most backward passes.
    """

    __slots__ = ("_autocast", "_grad_enabled")

    def __enter__(self) -> None:
        self._grad_enabled = torch.is_grad_enabled()
        if self._grad_enabled:
            torch._C._set_grad_enabled(False)
        self._autocast = torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else None
        if self._autocast is not None:
            self._autocast.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(*exc)
        if self._grad_enabled:
            torch._C._set_grad_enabled(True)


def run(program: Program, args: tuple) -> Any:
    """The program's results for one call, with autograd attached where it has a backward.

    Autograd is switched on for that also where the call is made without, since part of the program may switch it on.
    """
    grad_enabled = torch.is_grad_enabled()
    if not program.differentiable:
        with _plain_torch():
            outs = program.forward(*args)
    elif grad_enabled:
        outs = (ThunderFunction.apply if functorch_is_active() else apply_directly)(program, *args)
    else:
        with torch.enable_grad():
            outs = ThunderFunction.apply(program, *args)
    if program.epilogue is None:
        return outs
    try:
        return program.epilogue(*args, *outs)
    finally:
        torch._C._set_grad_enabled(grad_enabled)
