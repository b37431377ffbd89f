"""Running compiled programs inside torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.errors import DoubleBackwardError
from thunder.program import Program


class ThunderFunction(torch.autograd.Function):
    """A compiled forward and backward as one node of torch's graph.

    Saved tensors go through `save_for_backward`, so version counters and saved-tensor hooks work as in eager.
    """

    @staticmethod
    def forward(ctx: Any, program: Program, *args: Any) -> Any:
        outs, saved, others = program.forward(*args)
        ctx.program, ctx.others = program, others
        ctx.sizes = [outs[n].shape for n in program.differentiable]
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        constant = [o for n, o in enumerate(outs) if n not in program.differentiable and isinstance(o, torch.Tensor)]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        program = ctx.program
        if program.backward is None:
            return (None,) * len(ctx.needs_input_grad)
        cotangents = [grads[n] for n in program.differentiable]
        saved = [list(ctx.saved_tensors), list(ctx.others)]
        with torch.no_grad():
            given = tuple(n for n, c in zip(program.differentiable, cotangents, strict=True) if c is not None)
            if len(given) == len(cotangents):
                results = program.backward(saved, cotangents)
            else:
                results = program.partial.get(given)(saved, cotangents, ctx.sizes)
        if torch.is_grad_enabled():  # create_graph=True
            results = _without_second_gradient(ctx, results)
        return (None, *results)


class _NoSecondGradient(torch.autograd.Function):
    """Gives its tensors on as they are; their gradient is an error. What the gradients depend on is among the arguments."""

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


def run(program: Program, args: tuple) -> Any:
    """The program's results for one call, with autograd attached where it has a backward.

    Autograd is switched on for that also where the call is made without, since part of the program may switch it on.
    """
    grad_enabled = torch.is_grad_enabled()
    if not program.differentiable:
        outs = program.forward(*args)
    elif grad_enabled:
        outs = ThunderFunction.apply(program, *args)
    else:
        with torch.enable_grad():
            outs = ThunderFunction.apply(program, *args)
    if program.epilogue is None:
        return outs
    try:
        return program.epilogue(*args, *outs)
    finally:
        torch._C._set_grad_enabled(grad_enabled)
