"""Which values share memory, as what view of what, and who writes them: filled once, before any rewrite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from thunder.core.prims.inplace import ViewChain
from thunder.core.proxies import Layout, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import guard_or_false, guard_or_true
from thunder.torch.fakes import contiguous_strides


@dataclass(eq=False)
class Value:
    """A tensor of the captured program.

    proxy: under its captured name.
    parent: name of the tensor that it is a view of, None for a root.
    node, index: the view operation and which of its outputs this is.
    is_tracked: False where autograd does not see the view (detach, or made under no_grad).
    current: the tensor that holds its value now, in the rewritten trace.
    version: how many writes to the storage `current` has seen.
    has_own_history: autograd knows another history of it than that of a view of its parent: the result of a custom
        function that gives back its input, or a detached view that was written with a gradient.
    """

    proxy: TensorProxy
    parent: str | None = None
    node: BoundSymbol | None = None
    index: int | None = None
    is_tracked: bool = True
    current: Any = None
    version: int = 0
    has_own_history: bool = False


@dataclass(eq=False)
class Storage:
    """Memory that values share.

    root: the value that all others are views of.
    version: writes so far.
    has_tracked_write: autograd has seen a value with gradient written here.
    is_joined: inputs lie here that overlap in part; the root is made up of them.
    """

    root: str
    is_input: bool = False
    version: int = 0
    has_tracked_write: bool = False
    is_joined: bool = False
    members: list[str] = field(default_factory=list)


# View operations that give a view whatever the strides are; the others need the captured strides to be repeated.
_STRIDE_AGNOSTIC = {
    "select", "__getitem__", "transpose", "permute", "t", "squeeze", "unsqueeze", "narrow", "diagonal", "movedim",
    "unbind", "chunk", "split", "detach", "expand", "expand_as", "swapaxes", "swapdims", "alias", "real", "imag",
}  # fmt: skip


@dataclass
class AliasInfo:
    """Storages and values of one program, by id and by name."""

    values: dict[str, Value] = field(default_factory=dict)
    storages: dict[int, Storage] = field(default_factory=dict)

    def storage_of(self, name: str) -> Storage | None:
        value = self.values.get(name)
        layout = value.proxy.layout if value is not None else None
        return self.storages.get(layout.storage) if layout is not None else None

    def add_root(self, p: TensorProxy, current: Any, *, is_input: bool = False) -> Value:
        """Enters a value with memory of its own."""
        value = self.values[p.name] = Value(p, current=current)
        if p.layout is not None:
            self.storages[p.layout.storage] = Storage(p.name, is_input, members=[p.name])
        return value

    def add_view(
        self,
        p: TensorProxy,
        parent: str,
        node: BoundSymbol | None,
        index: int | None,
        *,
        current: Any,
        is_tracked: bool,
    ) -> Value:
        """Enters a value that shares the memory of `parent`."""
        storage = self.storage_of(parent)
        assert storage is not None
        value = self.values[p.name] = Value(p, parent, node, index, is_tracked, current, storage.version)
        storage.members.append(p.name)
        return value

    def forget_views(self, kept: frozenset[str]) -> None:
        """Makes the views that are not among `kept` be computed again when they are read next."""
        for name, value in self.values.items():
            if value.parent is not None and name not in kept:
                value.version = -1

    def chain(self, name: str) -> list[Value]:
        """The values from the root's first view down to `name`; empty for a root."""
        steps: list[Value] = []
        value = self.values[name]
        while value.parent is not None:
            steps.append(value)
            value = self.values[value.parent]
        return steps[::-1]

    def view_chain(self, name: str, read: Any = None) -> ViewChain:
        """The view operations that lead from the root to `name`, as functions on tensors."""
        return tuple(view_step(v, read) for v in self.chain(name) if v.node is not None)

    def is_tracked(self, name: str) -> bool:
        """Whether autograd sees every view between the root and `name`."""
        return all(v.is_tracked for v in self.chain(name))

    def own_base(self, name: str) -> Value | None:
        """The untracked view (`x.detach()`) that autograd takes for the base of `name`; None where that is the root."""
        return next((v for v in reversed(self.chain(name)) if not v.is_tracked), None)

    def needs_strides(self, name: str) -> bool:
        """Whether repeating the views from the root needs the root's captured strides."""
        return any(needs_strides(v) for v in self.chain(name))


def needs_strides(value: Value) -> bool:
    """Whether repeating one view needs the captured strides of what it is a view of."""
    return value.node is not None and getattr(value.node.sym.torch_fn, "__name__", "") not in _STRIDE_AGNOSTIC


def view_step(value: Value, read: Any = None) -> tuple:
    """One view operation as (function, arguments after the tensor, keywords, output index)."""
    node = value.node
    assert node is not None
    args, kwargs = node.args[1:], node.kwargs
    return (node.sym.torch_fn, args, kwargs, value.index)


def parent_of(out: TensorProxy, node: BoundSymbol) -> TensorProxy | None:
    """The argument whose memory the output `out` of `node` is a view of."""
    if out.layout is None:
        return None
    for p in node.flat_proxy_args:
        if isinstance(p, TensorProxy) and p.layout is not None and p.layout.storage == out.layout.storage:
            return p
    return None


def extent(p: TensorProxy) -> tuple[int, int]:
    """First and one past the last element of the storage that a strided tensor touches."""
    layout = p.layout
    assert layout is not None
    last = layout.offset
    for size, stride in zip(p.shape, layout.strides, strict=True):
        if guard_or_false(size == 0):
            return layout.offset, layout.offset
        last += (size - 1) * stride
    return layout.offset, last + 1


def same_geometry(a: TensorProxy, b: TensorProxy) -> bool:
    """Whether two tensors of one storage are known to be the same elements in the same order."""
    la, lb = a.layout, b.layout
    assert la is not None
    assert lb is not None
    if a.dtype != b.dtype or len(a.shape) != len(b.shape):
        return False
    mine, other = (*a.shape, *la.strides, la.offset), (*b.shape, *lb.strides, lb.offset)
    return all(guard_or_false(m == o) for m, o in zip(mine, other, strict=True))


def has_internal_overlap(p: TensorProxy) -> bool:
    """Whether two elements of a strided tensor may be the same memory.

    Exact for views that indexing makes; else may say
    yes.
    """
    if p.layout is None:
        return False
    dims = [(stride, size) for size, stride in zip(p.shape, p.layout.strides, strict=True)]
    if not all(isinstance(n, int) for d in dims for n in d) or any(size == 0 for _, size in dims):
        return False
    reach = 0
    for stride, size in sorted(d for d in dims if d[1] != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def overlaps(a: TensorProxy, b: TensorProxy) -> bool:
    """Whether two tensors of one storage may share an element (by extent; interleaved ones count as overlapping)."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    return guard_or_true(a0 < b1) and guard_or_true(b0 < a1)


def input_overlap_pattern(tensors: list[Any]) -> tuple:
    """How the inputs of a call share memory: (first, position, relative byte offset) for each tensor that may overlap
    an earlier one.

    Two calls with the same pattern, shapes and strides can share a program. O(n) where no storages are shared.
    """
    by_storage: dict[int, list[int]] = {}
    for n, t in enumerate(tensors):
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_meta:
            key = t.untyped_storage()._cdata
            if key in by_storage:
                by_storage[key].append(n)
            else:
                by_storage[key] = [n]
    if len(by_storage) == len(tensors):
        return ()
    pattern = []
    for members in by_storage.values():
        for k, n in enumerate(members):
            for m in members[:k]:
                if _may_overlap(tensors[m], tensors[n]):
                    pattern.append((m, n, tensors[n].storage_offset() - tensors[m].storage_offset()))
    return tuple(pattern)


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    def span(t: torch.Tensor) -> tuple[Any, Any]:
        start = t.storage_offset() * t.element_size()
        if t.numel() == 0:
            return start, start
        last = sum((s - 1) * st for s, st in zip(t.shape, t.stride(), strict=True))
        return start, start + (last + 1) * t.element_size()

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1


def with_storage(p: TensorProxy, storage: int, offset: Any = None) -> TensorProxy:
    """The proxy under its name, with another storage id."""
    layout = p.layout
    strides = layout.strides if layout is not None else ()
    where = (layout.offset if layout is not None else 0) if offset is None else offset
    return p.replace(name=p.name, layout=Layout(storage, strides, where))


def is_same_window(a: TensorProxy, p: TensorProxy) -> bool:
    """Whether `a` is `p` or another name for the same elements, which a write to `p` changes while it reads them."""
    if a.name == p.name or a.layout is None or p.layout is None:
        return a.name == p.name
    return a.layout.storage == p.layout.storage and same_geometry(a, p)


def has_known_strides(p: TensorProxy) -> bool:
    """Whether a tensor's sizes and strides are numbers."""
    return p.layout is not None and all(isinstance(s, int) for s in (*p.layout.strides, *p.shape))


def is_row_major(p: TensorProxy) -> bool:
    """Whether a tensor is contiguous, or nothing is known about how it lies in memory."""
    return not has_known_strides(p) or p.layout.strides == contiguous_strides(tuple(p.shape))  # type: ignore[union-attr]
