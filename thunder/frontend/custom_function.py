"""Custom autograd functions: their backward graph, kept until the gradient needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from thunder.core import prims
from thunder.core.proxies import TensorProxy

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx
    from thunder.frontend.lowering import Lowering

# The key in the meta data of a captured call for `BackwardBody.variants`.
BACKWARD_VARIANTS = "backward_variants"


@dataclass(frozen=True, eq=False)
class BackwardBody:
    """What `autograd.Function.backward` computes.

    graph_module: takes the gradients of the outputs, then the saved values; returns the gradients of the inputs.
    saved: the saved values under the names that they have in the lowered trace.
    non_differentiable: positions of outputs without gradient.
    saved_for_backward: positions in `saved` that went through `ctx.save_for_backward`; None where it is not known.
    tensor_mask: in the older form, which inputs are tensors.
    dirty: positions of outputs that are inputs which forward has written.
    ids: the storage ids of the capture, continued when the backward graph is lowered.
    variants: what is computed instead of `graph_module` where gradients of outputs are missing, by the positions of
        these; None where backward is given zeros for them.
    lowering: makes an interpreter for the backward graph.
    """

    graph_module: Any
    saved: tuple
    non_differentiable: frozenset = frozenset()
    saved_for_backward: Any = None
    tensor_mask: tuple = ()
    dirty: frozenset = frozenset()
    ids: Any = None
    variants: Any = None
    lowering: Any = None

    def gradient_count(self, available: int) -> int:
        """How many gradients the backward graph takes."""
        placeholders = sum(n.op == "placeholder" for n in self.graph_module.graph.nodes)
        return min(available, placeholders - len(self.saved))

    @property
    def gradient_counts(self) -> tuple[int, int]:
        """How many gradients the user's function returned and how many it should; (0, 0) where that is not known."""
        found = (n.meta["gradient_counts"] for n in self.graph_module.graph.nodes if "gradient_counts" in n.meta)
        return next(found, (0, 0))

    def lower(self, trace: TraceCtx, grads: list) -> Any:
        """Adds the backward graph's nodes to `trace`; gives the gradients that it returns.

        grads: those of the outputs, None for missing ones.
        """
        missing = frozenset(n for n, g in enumerate(grads) if g is None)
        module = self.graph_module if self.variants is None else self.variants[missing]
        if isinstance(module, Exception):  # what the user's backward raises in such a call
            raise module
        return self.lowering(trace, self.ids).run(module.graph, module, [*grads, *self.saved])

    def emit(self, lowering: Lowering, outs: list, inputs: list, example: Any) -> list:
        """Adds the node whose outputs are those of the function, with this backward as their gradient."""
        tracked = lowering.grad_enabled and any(isinstance(a, TensorProxy) and a.requires_grad for a in inputs)
        examples = list(example) if isinstance(example, tuple | list) else [example] * len(outs)
        results: list = []
        for n, (out, fake) in enumerate(zip(outs, examples, strict=False)):
            if not isinstance(out, TensorProxy):
                results.append(out)
                continue
            floating = out.torch_dtype.is_floating_point or out.torch_dtype.is_complex
            wants = tracked and n not in self.non_differentiable and floating
            name = lowering.trace.unique_name(f"{out.name}_out")
            result = out.replace(name=name, requires_grad=wants)
            if isinstance(fake, torch.Tensor):
                lowering._by_fake[id(fake)] = result
                lowering.share_storage(fake, result)
                lowering._alive.append(fake)
            results.append(result)
        lowering.trace.emit(prims.custom_vjp, (tuple(outs), tuple(inputs), self), {}, tuple(results))
        return results
