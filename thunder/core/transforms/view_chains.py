"""A view of a view of a view becomes one view, or none.

What einsum, matmul and their gradients are made of in torch reshapes and permutes the same memory several times over. A
chain of such views is described by where each of its dims lies in the tensor that it starts from, its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from thunder.core import prims
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import FutureTensorProxy, TensorProxy
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.cse import returned_names, written_memory
from thunder.core.transforms.dce import live_nodes
from thunder.core.transforms.markers import MARKERS
from thunder.core.transforms.protect import may_be_view
from thunder.torch.registry import symbol_for

# Their results are their input's elements in the same order; those of `expand` are where it changes no size.
_KEEP_ORDER = frozenset(
    {
        "reshape", "view", "view_as", "reshape_as", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze",
        "ravel", "expand", "expand_as",
    }
)  # fmt: skip
_SWAPS = frozenset({"transpose", "swapaxes", "swapdims"})


class Factor(NamedTuple):
    """The dim of a view: `size` steps of `step` elements along dim `dim` of the root."""

    dim: int
    step: int
    size: int


Form = tuple[Factor | None, ...]  # one entry for each dim of the view; None for a dim of size 1


def root_form(shape: Sequence[int]) -> Form:
    """The form of a tensor as a view of itself."""
    return tuple(Factor(d, 1, n) if n != 1 else None for d, n in enumerate(shape))


def reshaped(form: Form, shape: Sequence[int]) -> Form | None:
    """The form of a view after a reshape; None where dims are joined that do not lie side by side in one dim of the
    root, so that the reshape may copy.
    """
    factors = [f for f in form if f is not None]
    new: list[Factor | None] = []
    for size in shape:
        whole: Factor | None = None
        missing = size
        while missing != 1:
            if not factors:
                return None
            part = factors.pop(0)
            if part.size > missing:
                if part.size % missing:
                    return None
                inner = part.size // missing
                factors.insert(0, Factor(part.dim, part.step, inner))
                part = Factor(part.dim, part.step * inner, missing)
            elif missing % part.size:
                return None
            missing //= part.size
            if whole is not None:
                if whole.dim != part.dim or whole.step != part.step * part.size:
                    return None
                part = Factor(part.dim, part.step, whole.size * part.size)
            whole = part
        new.append(whole)
    return tuple(new) if not factors else None


def _permutation(node: BoundSymbol, rank: int) -> list[int] | None:
    """The order in which a node puts the dims of its input, or None."""
    name, rest = node.sym.base_name, node.args[1:]
    if node.kwargs:
        return None
    order = list(range(rank))
    if name in ("mT", "t", "T") and not rest and rank >= 2:
        if name != "mT" and rank > 2:
            return None
        rest, name = (-2, -1), "transpose"
    if name in _SWAPS and len(rest) == 2 and all(type(d) is int for d in rest):
        a, b = rest
        order[a], order[b] = order[b], order[a]
        return order
    if name == "permute" or node.sym is prims.transpose:
        dims = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        return [order[d] for d in dims] if all(type(d) is int for d in dims) else None
    return None


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose sizes are numbers, none of them 0."""
    is_tensor = isinstance(value, TensorProxy) and not isinstance(value, FutureTensorProxy)
    return is_tensor and all(type(s) is int and s for s in value.shape)


def _view_form(node: BoundSymbol, form: Form) -> Form | None:
    """The form of what a node makes of a view of that form; None where it is no such view."""
    source, out = node.args[0], node.output
    if node.sym.base_name in _KEEP_ORDER:
        is_expanded = node.sym.base_name.startswith("expand") and source.numel() != out.numel()
        return None if is_expanded else reshaped(form, out.shape)
    order = _permutation(node, len(form))
    return None if order is None else tuple(form[d] for d in order)


def steps(root: Sequence[int], form: Form) -> tuple[list[int] | None, list[int] | None]:
    """The shape to reshape a root to, and then the order to permute it in, for a view; None for what is not needed."""
    rooted = root_form(root)
    places: dict[Factor | None, list[int]] = {}
    for d, f in enumerate(rooted):
        places.setdefault(f, []).append(d)
    if len(form) == len(rooted) and set(form) == set(rooted):  # the root's dims as they are, in some order
        order = [places[f].pop(0) for f in form]
        return None, order if order != sorted(order) else None
    factors = [(f, d) for d, f in enumerate(form) if f is not None]
    in_root = sorted(factors, key=lambda fd: (fd[0].dim, -fd[0].step))
    if in_root == factors:
        return [1 if f is None else f.size for f in form], None
    dims = [*(d for _, d in in_root), *(d for d, f in enumerate(form) if f is None)]
    shape = [f.size for f, _ in in_root] + [1] * (len(form) - len(factors))
    return shape if shape != list(root) else None, [dims.index(d) for d in range(len(form))]


@dataclass
class _View:
    """What is known of a view: its root and form, how many nodes lead there, and whether those serve it alone."""

    root: TensorProxy
    form: Form
    length: int
    is_alone: bool


class _Simplifier:
    def __init__(self, trace: TraceCtx):
        self.returned = returned_names(trace)
        self.held = written_memory(trace)
        self.readers: dict[str, int] = {}
        for node in trace.bound_symbols:
            names = {p.name for p in node.flat_proxy_args}
            for name in names:
                self.readers[name] = self.readers.get(name, 0) + 1
            if node is not trace.bound_symbols[-1] and (node.has_effects or not node.defined or node.sym in MARKERS):
                self.held |= names
        self.views: dict[str, _View] = {}
        self.fresh: set[str] = set()  # values with memory of their own, of which no view is returned in their place

    def _in_its_place(self, view: TensorProxy, root: TensorProxy) -> bool:
        """Whether `root` may be what is read, and returned, for an equal view of it."""
        if view.name not in self.returned:
            return view.name not in self.held
        may = root.name in self.fresh and not {view.name, root.name} & self.held and root.name not in self.returned
        self.fresh.discard(root.name)
        return may

    def rule(self, node: BoundSymbol) -> Any:
        result = self._simpler(node)
        if result is KEEP and not may_be_view(node) and not node.has_effects:
            self.fresh.update(o.name for o in node.defined)
        return result

    def _simpler(self, node: BoundSymbol) -> Any:
        out = node.output
        if node.has_effects or node.call_ctx or not node.args or not all(map(_is_plain, (node.args[0], out))):
            return KEEP
        source = node.args[0]
        known = self.views.get(source.name) or _View(source, root_form(source.shape), 0, True)
        form = _view_form(node, known.form)
        if form is None:
            return KEEP
        is_alone = known.is_alone and (not known.length or self.readers[source.name] == 1)
        view = _View(known.root, form, known.length + 1, is_alone)
        self.views[out.name] = view
        shape, order = steps(view.root.shape, form)
        length = (shape is not None) + (order is not None)
        if 1 in out.shape and (out.name in self.returned or out.name in self.held):
            return KEEP  # with eager's strides, those of dims of one element too
        if not length and not self._in_its_place(out, view.root):
            return KEEP
        if length and not (length < view.length and (length == 1 or is_alone)):
            return KEEP
        self.views[out.name] = _View(view.root, form, length, True)
        result: Any = view.root
        if shape is not None:
            result = symbol_for(torch.reshape)(result, tuple(shape))
        if order is not None:
            result = symbol_for(torch.permute)(result, tuple(order))
        return result


@dataclass(frozen=True)
class SimplifyViews(Pass):
    """Replaces chains of views of all of a tensor's elements by a reshape, a permutation, both, or nothing. O(nodes).

    Only where no step can have copied, and sizes are numbers: memory and strides are as before. What the program
    returns, or writes to, is a tensor of its own.
    """

    name: ClassVar[str] = "simplify_views"
    title: ClassVar[str] = "Simplify views"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        new = rewrite(trace, _Simplifier(trace).rule, self.name)
        nodes = live_nodes(new.bound_symbols)
        return trace if len(nodes) == len(trace.bound_symbols) else new.with_nodes(nodes)
