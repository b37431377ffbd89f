"""Running compiled programs inside torch's autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from thunder.pipeline import Program


class ThunderFunction(torch.autograd.Function):
    """A compiled forward and backward as one node of torch's graph.

    Saved tensors go through `save_for_backward`, so version counters and saved-tensor hooks work as in eager.
    """

    @staticmethod
    def forward(ctx: Any, program: Program, *args: Any) -> Any:
        outs, saved, others = program.forward(*args)
        ctx.program, ctx.others = program, others
        ctx.save_for_backward(*saved)
        constant = [o for n, o in enumerate(outs) if n not in program.differentiable and isinstance(o, torch.Tensor)]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        program = ctx.program
        if program.backward is None:
            return (None,) * len(ctx.needs_input_grad)
        cotangents = [grads[n] for n in program.differentiable]
        return (None, *program.backward([list(ctx.saved_tensors), list(ctx.others)], cotangents))


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
