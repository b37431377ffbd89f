"""In-place programs with their writes.

A write stays a write (`prims.copy_` of the new value), and right after it `prims.update_aliases` gives new names to
every other tensor that lies in the memory written. So data flow alone gives the order: whatever reads a new name runs
after the write, and nothing reads an old name any more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from thunder.core import prims
from thunder.core.alias_analysis import Storage, Value, view_step
from thunder.core.functionalization import Functionalizer
from thunder.core.prims.inplace import AliasRule
from thunder.core.proxies import TensorProxy
from thunder.torch.registry import symbol_for


class AliasUpdater(Functionalizer):
    """The engine of `skip_inplace_functionalization=True`: same analysis as functionalization, other rewrite."""

    def enter_inputs(self, inputs: list[Any], written: Collection[int] = ()) -> None:
        """Enters the inputs; those written are written through a tensor that torch's autograd knows nothing about."""
        super().enter_inputs(inputs)
        for n in written:
            storage = self.info.storages.get(n)
            root = self.info.values[storage.root] if storage is not None else None
            if root is None or not root.proxy.requires_grad or root.current is not root.proxy:
                continue
            out = root.proxy.replace(name=self.trace.unique_name(f"{root.proxy.name}_w"))
            self.trace.emit(prims.detached, (root.proxy,), {}, out)
            for value in map(self.info.values.__getitem__, storage.members):  # type: ignore[union-attr]
                if value.node is None:
                    value.current = out

    def _restore_layouts(self, written: list[TensorProxy]) -> None:
        """Nothing to do: the values lie in the memory of the tensors themselves."""

    def write(self, p: TensorProxy, new: TensorProxy, tracked: bool = True) -> None:
        """Writes `new` into the memory of `p` and renames what else lies there."""
        if p.name not in self.info.values:
            self.info.add_root(p, p)
        value, storage = self.info.values[p.name], self.info.storage_of(p.name)
        old = self.read(p)
        is_seen = tracked and self.info.is_tracked(p.name)
        new = self._keeping_track(p, new, tracked)
        base = self.info.own_base(p.name) if tracked and not is_seen and new.requires_grad else None
        if base is not None:
            base.has_own_history = True
        requires_grad = new.requires_grad if tracked else old.requires_grad
        out = old.replace(name=self.trace.unique_name(f"{_base(p.name)}_w"), requires_grad=requires_grad)
        kwargs = {} if tracked else {"grad_enabled": False}
        self.trace.emit(prims.copy_, (new, old), kwargs, out)
        if storage is None:
            value.current = out
            return
        storage.has_tracked_write |= is_seen and (new.requires_grad or old.requires_grad)
        self._rename_others(storage, value, out, is_seen, base)

    def _rename_others(
        self, storage: Storage, value: Value, new: TensorProxy, is_seen: bool, base: Value | None = None
    ) -> None:
        """Gives every other name of the memory a new one, the root's first.

        base: an untracked view that `value` is or is a view of, and in whose history the write is.
        """
        root = self.info.values[storage.root]
        written = self.info.view_chain(value.proxy.name)
        others = [self.info.values[m] for m in storage.members if m not in (value.proxy.name, root.proxy.name)]
        others = [v for v in others if isinstance(v.current, TensorProxy) and v.version == storage.version]
        same = [v for v in others if not written and not self.info.view_chain(v.proxy.name)]
        others = [v for v in others if v not in same]
        storage.version += 1
        for v in (value, *same, *(() if written else (root,))):
            v.current, v.version = new, storage.version
        base = base or (value if value.has_own_history and written else None)
        if base is not None:
            below = [v for v in others if base in self.info.chain(v.proxy.name)]
            others = [v for v in others if v not in below]
            self._rename_below(storage, base, value, below, new)
        renamed = others if not written else [root, *others]
        if not renamed:
            return
        root_grad = new.requires_grad if not written else root.current.requires_grad or (is_seen and new.requires_grad)
        tracked = [root_grad and self.info.is_tracked(v.proxy.name) for v in renamed]
        views = tuple(self.info.view_chain(v.proxy.name) for v in renamed)
        self._emit_renaming(storage, renamed, new, AliasRule(views, written, is_seen), tracked)

    def _rename_below(self, storage: Storage, base: Value, value: Value, below: list[Value], new: TensorProxy) -> None:
        """Gives new names to `base`, which has a history of its own, and to its views, which share it."""
        depth = len(self.info.chain(base.proxy.name))

        def steps(v: Value) -> list[Value]:
            return self.info.chain(v.proxy.name)[depth:]

        def views(v: Value) -> tuple:
            return tuple(view_step(s) for s in steps(v) if s.node is not None)

        renamed = [v for v in below if v is not base]
        if views(value):
            renamed.insert(0, base)
        if not renamed:
            return
        tracked = [new.requires_grad and all(s.is_tracked for s in steps(v)) for v in renamed]
        rule = AliasRule(tuple(views(v) for v in renamed), views(value), True)
        self._emit_renaming(storage, renamed, new, rule, tracked)

    def _emit_renaming(
        self, storage: Storage, renamed: list[Value], new: TensorProxy, rule: AliasRule, tracked: list[bool]
    ) -> None:
        aliases = tuple(v.current for v in renamed)
        outs = tuple(
            a.replace(name=self.trace.unique_name(f"{_base(v.proxy.name)}_w"), requires_grad=requires_grad)
            for v, a, requires_grad in zip(renamed, aliases, tracked, strict=True)
        )
        self.trace.emit(prims.update_aliases, (aliases, (new,), rule), {}, outs)
        for v, old, out in zip(renamed, aliases, outs, strict=True):
            base = v if v.has_own_history else self.info.own_base(v.proxy.name)
            if old.requires_grad and not out.requires_grad and base is not None and base.has_own_history:
                kept = out.replace(name=self.trace.unique_name(f"{_base(v.proxy.name)}_w"), requires_grad=True)
                self.trace.emit(prims.update_data, (old, out), {}, kept)
                out = kept
            v.current, v.version = out, storage.version

    def _adopt(self, storage: Storage, o: TensorProxy, result: TensorProxy) -> None:
        value = self.info.values[o.name]
        self._rename_others(storage, value, result, True)
        own = self.info.values[result.name]
        own.current, own.version = result, storage.version

    def is_physical(self, root: Value) -> bool:
        return True

    def returned(self, current: TensorProxy, storage: Storage) -> TensorProxy:
        """A value that the computation returns for the epilogue to write: not the memory of the input itself."""
        if not storage.is_input:
            return current
        out = current.replace(name=self.trace.unique_name(f"{current.name}_value"), layout=None)
        self.trace.emit(symbol_for(torch.clone), (current,), {}, out)
        return out


def _base(name: str) -> str:
    """The captured name behind `name_w`, `name_w_2`."""
    stem, _, version = name.rpartition("_w")
    return stem if stem and not version.strip("_0123456789") else name


def alias_engine(options: Any) -> type[Functionalizer]:
    """The engine that the compile options ask for."""
    return AliasUpdater if options.skip_inplace_functionalization else Functionalizer
