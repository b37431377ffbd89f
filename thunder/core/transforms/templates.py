"""Templates: the aten operations of one call and of its backward, as recorded, and what is simplified in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.torch_compat import OpOverload


@dataclass(frozen=True)
class Ref:
    """A value of a template: inputs, then cotangents, then results, numbered in order."""

    n: int


@dataclass(frozen=True)
class TensorMeta:
    shape: tuple
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class TemplateNode:
    op: OpOverload
    args: tuple
    kwargs: dict
    outs: Any
    metas: dict[int, TensorMeta]
    is_view: bool

    @property
    def reads(self) -> set[int]:
        return {v.n for v in tree_flatten((self.args, self.kwargs))[0] if isinstance(v, Ref)}

    @property
    def defines(self) -> set[int]:
        return set(self.metas)


@dataclass(frozen=True)
class Template:
    """The aten operations of one call and of its backward.

    forward: to be emitted in the place of the call; None keeps the call as it is.
    outputs: a pytree like the call's result, of Refs.
    backward: reads inputs, cotangents, outputs and results of `forward`.
    grads: a Ref or None for each differentiable input.
    """

    n_inputs: int
    n_outputs: int
    forward: tuple[TemplateNode, ...] | None
    outputs: list
    backward: tuple[TemplateNode, ...]
    grads: tuple[Ref | None, ...]


def stride_agnostic(func: OpOverload) -> OpOverload:
    """`view` demands strides that are known for the fake tensors only; `reshape` does the same on any."""
    name = func._schema.name.split("::")[1]
    if name in ("view", "_unsafe_view") and func._overloadname == "default":
        return torch.ops.aten.reshape.default
    return func


def with_other_strides(out: torch.Tensor) -> torch.Tensor:
    """A tensor like `out` whose strides are not row-major: for values whose strides are known at run time only.

    Formulas ask for contiguous values where their kernels need them (`grad.contiguous()`), which leaves no mark on a
    value that is contiguous already. On this one it does, so that the template asks as well.
    """
    if out.ndim == 0:
        return torch.empty_like(out, memory_format=torch.contiguous_format)
    if out.ndim == 1:
        return torch.empty((out.shape[0], 2), dtype=out.dtype, device=out.device)[:, 0]
    return torch.empty(out.shape[::-1], dtype=out.dtype, device=out.device).permute(*range(out.ndim - 1, -1, -1))


def _live(nodes: Sequence[TemplateNode], needed: set[int]) -> list[TemplateNode]:
    kept: list[TemplateNode] = []
    needed = set(needed)
    for node in reversed(nodes):
        if node.defines & needed or torch.Tag.nondeterministic_seeded in node.op.tags:
            kept.append(node)
            needed |= node.reads
    return kept[::-1]


def finished_template(
    n_inputs: int,
    outputs: list,
    cotangents: list,
    forward: list[TemplateNode],
    backward: list[TemplateNode],
    grads: tuple,
) -> Template:
    """Drops dead nodes, and keeps the call whole where its backward can do with its inputs and outputs."""
    forward, backward = _functional_statistics(forward), [_without_unread_statistics(node) for node in backward]
    backward = _live(_contiguous_where_asked(backward), {g.n for g in grads if g is not None})
    own = set().union(*(b.defines for b in backward)) if backward else set()
    reads = set().union(*(b.reads for b in backward)) if backward else set()
    reads |= {g.n for g in grads if g is not None}
    known = set(range(n_inputs)) | {c.n for c in cotangents if c is not None} | own
    from_outputs = known | {o.n for o in outputs}
    residual = reads - from_outputs
    views = _views_for(forward, residual, from_outputs)
    all_refs = list(outputs) + [c if c is not None else Ref(-1) for c in cotangents]
    if views is not None:
        folded, grads = _without_double_transposes([*views, *backward], grads)
        return Template(n_inputs, len(outputs), None, all_refs, tuple(folded), grads)
    forward = _live(forward, {o.n for o in outputs} | reads)
    return Template(n_inputs, len(outputs), tuple(forward), all_refs, tuple(backward), grads)


_STATISTICS = slice(3, 5)  # the running mean and variance among the arguments of batch norms and their backwards


def _functional_statistics(nodes: list[TemplateNode]) -> list[TemplateNode]:
    """A batch norm that updates clones of the running statistics as the operation that gives their new values."""
    clones = {node.outs.n: node for node in nodes if node.op is torch.ops.aten.clone.default}
    kept: list[TemplateNode] = []
    for node in nodes:
        statistics = node.args[_STATISTICS]
        if node.op is torch.ops.aten.native_batch_norm.default and all(
            isinstance(s, Ref) and s.n in clones for s in statistics
        ):
            made = [clones[s.n] for s in statistics]
            kept = [k for k in kept if k not in made]
            node = replace(
                node,
                op=torch.ops.aten._native_batch_norm_legit_functional.default,
                args=(*node.args[:3], *(m.args[0] for m in made), *node.args[5:]),
                outs=(*node.outs, *statistics),
                metas={**node.metas, **made[0].metas, **made[1].metas},
            )
        kept.append(node)
    return kept


def _without_unread_statistics(node: TemplateNode) -> TemplateNode:
    """In training, the backward of a batch norm reads none of the running statistics that it is given."""
    training = 7
    if node.op is not torch.ops.aten.native_batch_norm_backward.default or node.args[training] is not True:
        return node
    return replace(node, args=(*node.args[:3], None, None, *node.args[5:]))


def _without_double_transposes(nodes: list[TemplateNode], grads: tuple) -> tuple[list[TemplateNode], tuple]:
    """Autograd of a linear layer transposes twice; `t(t(x))` is `x`."""
    transposed: dict[int, Ref] = {}
    same: dict[int, Ref] = {}

    def final(v: Any) -> Any:
        return same.get(v.n, v) if isinstance(v, Ref) else v

    kept: list[TemplateNode] = []
    for node in nodes:
        node = replace(node, args=tree_map(final, node.args), kwargs=tree_map(final, node.kwargs))
        if node.op is torch.ops.aten.t.default and isinstance(node.outs, Ref):
            source = node.args[0]
            if source.n in transposed:
                same[node.outs.n] = transposed[source.n]
                continue
            transposed[node.outs.n] = source
        kept.append(node)
    grads = tuple(final(g) for g in grads)
    return _live(kept, {g.n for g in grads if g is not None}), grads


def _views_for(forward: list[TemplateNode], residual: set[int], known: set[int]) -> list[TemplateNode] | None:
    """The view nodes that give the residuals from known values; None where more than views are needed."""
    needed, kept = set(residual), []
    for node in reversed(forward):
        if node.defines & needed:
            if not node.is_view:
                return None
            kept.append(node)
            needed |= node.reads - known
    return kept[::-1]


def _contiguous_where_asked(nodes: list[TemplateNode]) -> list[TemplateNode]:
    """Copies made for the sake of strides as `contiguous`, which costs nothing where they are right already.

    `reshape` needs none before it.
    """
    made: dict[int, Ref] = {}
    kept: list[TemplateNode] = []
    for node in nodes:
        if node.op is torch.ops.aten.clone.default and node.kwargs.get("memory_format") is torch.contiguous_format:
            node = replace(node, op=torch.ops.aten.contiguous.default, kwargs={}, is_view=True)
            made[node.outs.n] = node.args[0]
        elif node.op is torch.ops.aten.reshape.default and node.args[0].n in made:
            node = replace(node, args=(made[node.args[0].n], *node.args[1:]))
        kept.append(node)
    return kept
