"""What backward would refuse in eager because something was written that a gradient needs, found out on fake tensors.

A compiled program keeps what its backward reads, so it could compute a gradient where eager raises. It raises too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from thunder.core.errors import UnsupportedOpError
from thunder.core.torch_compat import FakeTensorMode, HigherOrderOperator

_REFUSALS = (
    "modified by an inplace operation", "has been modified inplace", "is being modified inplace",
    "derivative for 'inplace version of",
)  # fmt: skip


@dataclass(frozen=True)
class Refusals:
    """Positions of outputs, and of inputs that the program has written, whose backward raises; with eager's error."""

    outputs: dict[int, RuntimeError] = field(default_factory=dict)
    inputs: dict[int, RuntimeError] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.outputs or self.inputs)

    def attach(self, args: Sequence[Any], results: Sequence[Any]) -> None:
        """Makes the backward of one call's results raise."""
        for errors, tensors in ((self.outputs, results), (self.inputs, args)):
            for n, error in errors.items():
                t = tensors[n]
                if isinstance(t, torch.Tensor) and t.requires_grad and not t.is_leaf:
                    t.register_hook(partial(_refuse, error))


def _refuse(error: RuntimeError, grad: torch.Tensor | None) -> None:
    if grad is None:  # the result shares a node with one that has a gradient
        return
    raise type(error)(str(error))


def refusals_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> Refusals:
    """Runs backward on the fake results of a program run on fake inputs. O(program), for each root if it fails."""
    roots: list[tuple[str, int, torch.Tensor]] = []
    for kind, tensors in (("outputs", outputs), ("inputs", inputs)):
        for n, t in enumerate(tensors):
            if isinstance(t, torch.Tensor) and _has_history(t):
                roots.append((kind, n, t))
    if not roots or _error_of([t for _, _, t in roots]) is None:
        return Refusals()
    refused = Refusals()
    for kind, n, t in roots:
        error = _error_of([t])
        if error is not None:
            getattr(refused, kind)[n] = error
    return refused


def _has_history(t: torch.Tensor) -> bool:
    try:
        return t.requires_grad and t.grad_fn is not None
    except RuntimeError:
        # A view that a write has cut off from its base: torch says so when it is used.
        return False


def _error_of(roots: list[torch.Tensor]) -> RuntimeError | None:
    try:
        with torch.autograd.set_detect_anomaly(False):  # which reads gradients to find NaN in them
            torch.autograd.backward(roots, [torch.empty_like(t) for t in roots], retain_graph=True)
    except RuntimeError as e:
        return type(e)(str(e)) if any(text in str(e) for text in _REFUSALS) else None
    return None


class _Rerun(fx.Interpreter):
    """Runs a captured graph again, on other fake tensors, as eager would."""

    def call_function(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if isinstance(target, HigherOrderOperator):
            if target.name() == "tag_activation_checkpoint":
                return _Rerun(args[0]).run(*args[1:])
            if target.name() == "autograd_function_apply":
                return _apply(args, kwargs)
            raise NotImplementedError(target.name())
        return super().call_function(target, args, kwargs)


def _apply(args: tuple, kwargs: dict[str, Any]) -> Any:
    """A custom function that saves what the user's saves, and whose backward only looks at it."""
    forward, _, *inputs = args
    saved_idx = frozenset(kwargs.get("saved_for_backward_idx") or ())

    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            outputs, saved = _Rerun(forward).run(*values)
            flat = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
            ctx.mark_dirty(*(flat[n] for n in kwargs.get("dirty_idx") or ()))
            ctx.mark_non_differentiable(*(flat[n] for n in kwargs.get("non_differentiable_idx") or ()))
            ctx.save_for_backward(*(t for n, t in enumerate(saved) if n in saved_idx))
            ctx.like = [v.detach() if isinstance(v, torch.Tensor) else None for v in values]
            return outputs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            _ = ctx.saved_tensors
            return tuple(
                torch.zeros_like(v) if needed else None
                for v, needed in zip(ctx.like, ctx.needs_input_grad, strict=True)
            )

    return Saving.apply(*inputs)


_METADATA_METHODS = frozenset({"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"})


class _Refresh(_Rerun):
    """Gives each node the result that it has when it runs, where a later call changes that result's shape in place."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_method" and n.target in _METADATA_METHODS:
            changed = self.env[n.args[0]]  # type: ignore[index]
            with torch.no_grad():
                kept = torch.ops.aten.alias.default(changed).requires_grad_(changed.requires_grad)
            for earlier in self.env:
                if earlier.meta.get("example_value") is changed:
                    earlier.meta["example_value"] = kept
        result = super().run_node(n)
        if n.op != "output":
            n.meta["example_value"] = result
        return result


def refresh_examples(gm: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any]) -> None:
    """Renews the fake results in a graph from Dynamo, if it has calls that change a tensor's shape in place.

    Dynamo keeps one fake tensor for a value, whose shape is the last one for all of them.
    """
    changes = [n for n in gm.graph.nodes if n.op == "call_method" and n.target in _METADATA_METHODS]
    examples = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    for n in changes:
        # The argument may have another name here: `x.to(x.dtype)` is x.
        example = n.args[0].meta.get("example_value")  # type: ignore[union-attr]
        if any(example is e for e in examples):
            method = f"Tensor.{n.target}"
            raise UnsupportedOpError(f"{method} changes the shape or strides of an input of the traced program")
    if changes:
        with mode, torch.enable_grad():
            _Refresh(gm, garbage_collect_values=False).run(*inputs)


def refusals_of_graph(gm: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any]) -> Refusals:
    """The refusals of a graph from Dynamo, by running it again on `inputs`, fakes with memory of their own."""
    with mode, torch.enable_grad():
        try:
            outputs = _Rerun(gm).run(*inputs)
        except (NotImplementedError, RuntimeError):
            # Not a program that eager runs as it stands here: nothing is known about its backward.
            return Refusals()
        return refusals_of(inputs, outputs if isinstance(outputs, tuple | list) else [outputs])


def fake_like(t: torch.Tensor, mode: FakeTensorMode, requires_grad: bool, is_leaf: bool) -> Any:
    """A fake tensor like `t`, in memory of its own; it may be written to where `t` may."""
    if t.layout is not torch.strided:
        return mode.from_tensor(t)
    with mode, torch.enable_grad():
        fake = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        if not requires_grad:
            return fake
        if is_leaf:
            return fake.requires_grad_()
        if any(step == 0 for step in t.stride()):
            return fake.requires_grad_().view_as(fake)
        return fake.add_(torch.zeros((), dtype=t.dtype, device=t.device, requires_grad=True))
