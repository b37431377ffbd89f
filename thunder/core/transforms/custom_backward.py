"""The backward graphs of custom autograd functions, as part of the joint trace.

Backward runs after forward, on the memory that forward has left: a saved tensor that was written since is read as it is
then, and what backward writes to memory that the user can see is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.errors import ThunderRuntimeError
from thunder.core.functionalization import Functionalizer
from thunder.core.origin import BACKWARD, origin
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.transforms.auto_vjp import zeros_for
from thunder.torch.registry import symbol_for


class CustomBackward:
    """Plays backward graphs into the joint trace; one for all custom functions of a program."""

    def __init__(self, joint: TraceCtx, functionalizer: Functionalizer):
        self.joint = joint
        self.functionalizer = functionalizer
        info = functionalizer.info
        self._versions = {s: storage.version for s, storage in info.storages.items()}
        self._targets: dict[int, TensorProxy] = {}
        self._forward_names = {
            s: {getattr(info.values[m].current, "name", m) for m in storage.members}
            for s, storage in info.storages.items()
        }

    @classmethod
    def resume(cls, joint: TraceCtx, node: BoundSymbol, known: CustomBackward | None) -> CustomBackward:
        """From the node that forward ends with: which value each saved tensor has then."""
        functionalizer, names, values = node.args
        if known is None:  # the program may be differentiated again, so the state that forward ends with is kept
            known = cls(joint, functionalizer.fork(joint))
        functionalizer = known.functionalizer
        free = functionalizer.saved_on_context()
        for name, value in zip(names, values, strict=True):
            if name in free:
                out = value.replace(name=joint.unique_name(f"{value.name}_on_ctx"), requires_grad=False, layout=None)
                joint.emit(prims.unversioned, (value,), {}, out)
                value = out
            functionalizer.info.values[name].current = value
        functionalizer.info.forget_views(frozenset(names))
        known.note_targets(frozenset(names))
        return known

    def note_targets(self, saved: frozenset) -> None:
        """Inputs that backward may write, under names whose saving checks nothing: forward may write them too."""
        for s, storage in self.functionalizer.info.storages.items():
            if storage.is_input and storage.root in saved and s not in self._targets:
                root = self.functionalizer.info.values[storage.root].proxy
                out = root.replace(name=self.joint.unique_name(f"{root.name}_memory"), requires_grad=False, layout=None)
                self.joint.emit(prims.unversioned, (root,), {}, out)
                self._targets[s] = out

    def play(self, node: BoundSymbol, cotangents: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Emits the backward of one function; gives (input, gradient) pairs."""
        _, inputs, body = node.args
        given = []
        for n, (o, g) in enumerate(zip(node.output, cotangents, strict=True)):
            if n in body.non_differentiable and body.tensor_mask:
                continue
            if g is None and isinstance(o, TensorProxy) and body.variants is None:
                g = zeros_for(self.joint, o)
            given.append(g)
        given = given[: body.gradient_count(len(given))]
        if body.variants is not None:  # a call in which other gradients are missing may read more of them
            saved = {p.name: p for p in map(self.functionalizer.read, body.saved) if isinstance(p, TensorProxy)}
            self.joint.emit(prims.save, tuple(saved.values()), {}, None)
        scratch = from_trace(self.joint)
        result = body.lower(scratch, given)
        self.joint.names |= scratch.names
        for inner in scratch.bound_symbols:
            self.functionalizer.process(inner)
        check_gradient_count(*body.gradient_counts)
        grads = [result] if not isinstance(result, tuple | list) else list(result)
        grads = [self.functionalizer.read(g) for g in grads]
        return self._paired(node, inputs, grads, body)

    def _paired(self, node: BoundSymbol, inputs: Sequence[Any], grads: list, body: Any) -> list[tuple[Any, Any]]:
        targets = [a for a in inputs if isinstance(a, TensorProxy)] if len(grads) != len(inputs) else list(inputs)
        if len(grads) != len(targets):
            raise ThunderRuntimeError(
                f"a custom backward returned {len(grads)} gradients, but its forward has {len(inputs)} inputs"
            )
        return [(a, self._fitted(a, g, n)) for n, (a, g) in enumerate(zip(targets, grads, strict=True))]

    def _fitted(self, a: Any, g: Any, index: int) -> Any:
        """A gradient in the shape and dtype of its input: summed over what was broadcast, as torch does."""
        if not isinstance(g, TensorProxy) or not isinstance(a, TensorProxy) or not a.requires_grad:
            return g
        if tuple(a.shape) != tuple(g.shape):
            if not _expands_to(tuple(a.shape), tuple(g.shape)):
                raise ThunderRuntimeError(
                    f"a custom backward returned an invalid gradient at index {index}: got {list(g.shape)}, "
                    f"but expected a shape compatible with {list(a.shape)}"
                )
            out = a.replace(name=self.joint.make_name(prefix="t"), dtype=g.dtype, requires_grad=False, layout=None)
            self.joint.emit(symbol_for(torch.Tensor.sum_to_size), (g, tuple(a.shape)), {}, out)
            g = out
        if g.dtype != a.dtype:
            out = a.replace(name=self.joint.make_name(prefix="t"), requires_grad=False, layout=None)
            self.joint.emit(symbol_for(torch.Tensor.to), (g, a.torch_dtype), {}, out)
            g = out
        return g

    def write_back(self, outputs: Sequence[TensorProxy]) -> None:
        """Writes what backward has changed in memory that outlives it: the inputs' and the outputs'."""
        visible = {o.name for o in outputs}
        info = self.functionalizer.info
        for s, storage in info.storages.items():
            if storage.version == self._versions.get(s, 0) or s not in self._versions:
                continue
            root = info.values[storage.root]
            if self.functionalizer.is_physical(root):
                continue
            target = self._targets.get(s, root.proxy) if storage.is_input else self._started_as.get(storage.root)
            if target is None or not (storage.is_input or self._forward_names[s] & visible):
                continue
            with origin(add_tags=(BACKWARD,), pass_name="autodiff"):
                new = self.functionalizer.read(root.proxy)
                out = target.replace(name=self.joint.make_name(prefix="t"), requires_grad=False, layout=None)
                self.joint.emit(prims.copy_, (new, target), {}, out)

    @property
    def _started_as(self) -> dict[str, Any]:
        return self.functionalizer.forward_values


def check_gradient_count(returned: int, wanted: int) -> None:
    """Raises as torch does where a backward returns too few or too many gradients."""
    if returned != wanted:
        raise ThunderRuntimeError(
            f"a custom backward returned an incorrect number of gradients (expected {wanted}, got {returned})"
        )


def _expands_to(shape: tuple, wider: tuple) -> bool:
    """Whether a tensor of `shape` can be broadcast to `wider`."""
    if len(shape) > len(wider):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(wider), strict=False))
