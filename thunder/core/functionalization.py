"""In-place programs without writes.

Every write to a tensor becomes a new value; each view of the memory written is computed again from its root when it is
next read. At the end, inputs that were written get their last value by `prims.copy_`.

`Functionalizer` is the engine: nodes go in, functional nodes come out. The forward program and the bodies of custom
backward functions go through the same one.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from thunder.core import prims
from thunder.core.alias_analysis import (
    AliasInfo,
    Storage,
    Value,
    extent,
    has_internal_overlap,
    has_known_strides,
    is_row_major,
    is_same_window,
    needs_strides,
    parent_of,
    same_geometry,
    view_step,
)
from thunder.core.errors import UnsupportedOpError
from thunder.core.origin import BACKWARD, NO_GRAD, current_origin, origin
from thunder.core.overlap import check_overlap
from thunder.core.proxies import Layout, Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx
from thunder.torch.fakes import contiguous_strides, result_metadata, tracked_results
from thunder.torch.mutation import UNSEEN_WRITES, Twin, twin_of
from thunder.torch.registry import is_pointwise, symbol_for

_SETITEM = torch.Tensor.__setitem__
_COPY = torch.Tensor.copy_


class Functionalizer:
    """Rewrites nodes one by one into `trace`. `info` says what shares memory with what so far."""

    def __init__(self, trace: TraceCtx):
        self.trace = trace
        self.info = AliasInfo()
        self.bodies: list[Any] = []
        self.forward_values: dict[str, Any] = {}

    def fork(self, trace: TraceCtx) -> Functionalizer:
        """A functionalizer that goes on from here in `trace`; this one stays as it is."""
        other = copy.copy(self)
        other.trace = trace
        other.bodies, other.forward_values = list(self.bodies), dict(self.forward_values)
        other.info = AliasInfo(
            {name: replace(value) for name, value in self.info.values.items()},
            {n: replace(storage, members=list(storage.members)) for n, storage in self.info.storages.items()},
        )
        return other

    # Reading

    def read(self, x: Any) -> Any:
        """The tensor that holds the value of `x` now, its views brought up to date."""
        if not isinstance(x, TensorProxy):
            return x
        value = self.info.values.get(x.name)
        if value is None:
            return x
        storage = self.info.storage_of(x.name)
        if storage is None or value.version == storage.version:
            return value.current
        if value.parent is None:
            raise UnsupportedOpError(
                f"{x.name} shares memory with another result of its operation, which was written to"
            )
        self._replay(value, storage)
        return value.current

    def _replay(self, value: Value, storage: Storage) -> None:
        """Computes a view again from its parent's current value."""
        parent = self.info.values[value.parent]  # type: ignore[index]
        fresh = self.read(parent.proxy)
        node = value.node
        if node is None:
            self._renew(value, fresh, storage)
            return
        tracked = value.is_tracked and fresh.requires_grad
        outs = [o for o in node.flat_proxy_outs if isinstance(o, TensorProxy)]
        new = {o.name: self._like(o, o.requires_grad or tracked) for o in outs}
        args = tree_map(self.read, node.args)
        output = tree_map(lambda o: new.get(o.name, o) if isinstance(o, Proxy) else o, node.output)
        # A view of forward that backward has to compute again is part of backward.
        with origin(node.origin, add_tags=current_origin().tags & {BACKWARD}, pass_name="functionalization"):
            self.trace.emit(node.sym, args, tree_map(self.read, node.kwargs), output)
        for name, p in new.items():
            sibling = self.info.values.get(name)
            if sibling is not None and sibling.node is node:
                self._renew(sibling, p, storage)

    def _renew(self, value: Value, fresh: TensorProxy, storage: Storage) -> None:
        """Gives a view its memory's present value; a history of its own it keeps."""
        if value.has_own_history and value.current.requires_grad:
            fresh = self._emit(prims.update_data, (value.current, fresh), like=fresh, requires_grad=True)
        value.current, value.version = fresh, storage.version

    def _like(self, p: TensorProxy, requires_grad: bool) -> TensorProxy:
        name = self.trace.unique_name(f"{p.name}_v")
        return p.replace(name=name, requires_grad=requires_grad)

    # Nodes

    def process(self, node: BoundSymbol) -> None:
        """Rewrites one node."""
        if node.sym is prims.custom_vjp:
            self._custom_function(node)
        elif node.written:
            self._write_node(node)
        else:
            self._plain_node(node)

    def _plain_node(self, node: BoundSymbol) -> None:
        args, kwargs = tree_map(self.read, node.args), tree_map(self.read, node.kwargs)
        known = {o.name for o in node.flat_proxy_outs if o.name in self.info.values}
        if known:
            self._returned_argument(node, args, kwargs)
            return
        read, captured = _tensors((args, kwargs)), _tensors((node.args, node.kwargs))
        tracked = any(a.requires_grad and not b.requires_grad for a, b in zip(read, captured, strict=True))
        output = self._retracked(node, args, kwargs) if tracked and NO_GRAD not in node.tags else node.output
        with origin(node.origin):
            self.trace.emit(node.sym, args, kwargs, output)
        self._enter_outputs(node, output)

    def _retracked(self, node: BoundSymbol, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The output with the gradients that it needs now that it reads `args` and `kwargs`.

        Nodes that read a written value may need one that they did not need in the captured program.
        """
        outs = list(_tensors(node.output))
        if not node.sym.traits.is_differentiable or all(o.requires_grad for o in outs):
            return node.output
        found = tracked_results(node.sym.torch_fn, args, kwargs)  # type: ignore[arg-type]
        now = {o.name: o.requires_grad or is_tracked for o, is_tracked in zip(outs, found, strict=True)}
        return tree_map(
            lambda o: o.replace(name=o.name, requires_grad=now[o.name]) if isinstance(o, TensorProxy) else o,
            node.output,
        )

    def _returned_argument(self, node: BoundSymbol, args: tuple, kwargs: dict[str, Any]) -> None:
        """A node whose output is one of its arguments as it is (`x.contiguous()` of a contiguous tensor)."""
        fresh = [o for o in node.flat_proxy_outs if o.name not in self.info.values]
        if fresh or node.sym.traits.is_random or node.sym.traits.is_kept:
            with origin(node.origin):
                self.trace.emit(node.sym, args, kwargs, tree_map(lambda o: self.read(o), node.output))
            self._enter_outputs(node, node.output)

    def _enter_outputs(self, node: BoundSymbol, output: Any) -> None:
        flat = [o for o in node.flat_outs if isinstance(o, TensorProxy)]
        current = list(_tensors(output))
        single = isinstance(node.output, TensorProxy)
        for n, o in enumerate(flat):
            if o.name in self.info.values:
                continue
            parent = parent_of(o, node)
            if parent is None or parent.name not in self.info.values:
                self._enter_fresh(o, current[n])
                continue
            is_tracked = NO_GRAD not in node.tags and node.sym.traits.is_differentiable
            self.info.add_view(o, parent.name, node, None if single else n, current=current[n], is_tracked=is_tracked)

    def _enter_fresh(self, o: TensorProxy, current: Any) -> None:
        storage = self.info.storages.get(o.layout.storage) if o.layout is not None else None
        if storage is None:
            self.info.add_root(o, current)
            return
        # Another output of the same node has this memory already: the same tensor, or another part of a hidden base.
        is_empty = any(type(size) is int and size == 0 for size in o.shape)
        is_same = not is_empty and same_geometry(o, self.info.values[storage.root].proxy)
        self.info.values[o.name] = Value(
            o, storage.root if is_same else None, None, None, True, current, storage.version
        )
        storage.members.append(o.name)

    # Writes

    def _write_node(self, node: BoundSymbol) -> None:
        with origin(node.origin, pass_name="functionalization"):
            written = list(dict.fromkeys(node.written))
            check_overlap(node)
            if NO_GRAD in node.tags:
                self._refuse_shared_history(written)
            if node.sym.traits.is_random:
                self._restore_layouts(written)
            if len(written) == 1 and self._is_folded(written[0]):
                self._write_through(node, written[0], NO_GRAD not in node.tags)
                return
            fn = node.sym.torch_fn
            tracked = NO_GRAD not in node.tags and fn not in UNSEEN_WRITES
            if fn is _SETITEM:
                target, key, value = node.args
                new = [self._setitem(target, key, value, tracked)]
            elif fn is _COPY or node.sym is prims.copy_:
                dst, src = node.args[:2] if fn is _COPY else node.args[1::-1]
                new = [self._copied(dst, self.read(src), tracked)]
            else:
                new = self._twin_call(node, written, tracked)
            for p, value in zip(written, new, strict=True):
                self.write(p, value, tracked)

    def _refuse_shared_history(self, written: list[TensorProxy]) -> None:
        """Overlapping inputs keep histories of their own under no_grad, which views of one base do not have."""
        for p in written:
            storage = self.info.storage_of(p.name)
            if storage is not None and storage.is_joined and self.info.values[storage.root].proxy.requires_grad:
                raise UnsupportedOpError(
                    f"{p.name} lies in memory that inputs which require grad share in part, and is written in no_grad"
                )

    def _restore_layouts(self, written: list[TensorProxy]) -> None:
        """Lays the new values of tensors out as the tensors are, since random numbers are drawn in that order."""
        for p in written:
            value, current = self.info.values.get(p.name), self.read(p)
            if value is not None and current is not value.proxy and not is_row_major(p):
                value.current = self._with_strides_of(p, current)

    def _is_folded(self, p: TensorProxy) -> bool:
        """Whether a view shows an element of its root twice, so that a write depends on its order."""
        return p.name in self.info.values and has_internal_overlap(p) and bool(self.info.view_chain(p.name))

    def _write_through(self, node: BoundSymbol, p: TensorProxy, tracked: bool) -> None:
        """The call as it is, on a view of a copy of the root."""
        root = self.info.values[self.info.storage_of(p.name).root].proxy  # type: ignore[union-attr]
        old = self.read(root)
        named = (*enumerate(node.args), *node.kwargs.items())
        where = tuple(n for n, a in named if isinstance(a, TensorProxy) and is_same_window(a, p))
        args = tree_map(self.read, tuple(None if n in where else a for n, a in enumerate(node.args)))
        kwargs = tree_map(self.read, {k: v for k, v in node.kwargs.items() if k not in where})
        is_seen = tracked and self.info.is_tracked(p.name)
        requires_grad = old.requires_grad or (
            is_seen and any(t.requires_grad for t in _tensors((args, kwargs)))
        )
        sym = prims.random_write_through if node.sym.traits.is_random else prims.write_through
        views = tree_map(self.read, self.info.view_chain(p.name))
        strides = {"strides": root.layout.strides} if self.info.needs_strides(p.name) else {}  # type: ignore[union-attr]
        new = self._emit(
            sym, (old, views, node.sym.torch_fn, where, args, kwargs), strides, like=root, requires_grad=requires_grad
        )
        self.write(root, new, is_seen)

    def write(self, p: TensorProxy, new: TensorProxy, tracked: bool = True) -> None:
        """Makes `new` the value of `p`, and so of all memory that `p` is a window on."""
        if p.name not in self.info.values:
            self.info.add_root(p, p)
        value, storage = self.info.values[p.name], self.info.storage_of(p.name)
        if storage is None:
            value.current = new
            return
        root = self.info.values[storage.root]
        if value.parent is None and value is not root:
            raise UnsupportedOpError(f"a write to {p.name}, which shares memory with another result of its operation")
        old_root = self.read(root.proxy)
        is_seen = tracked and self.info.is_tracked(p.name)
        new = self._keeping_track(p, new, tracked)
        base = self.info.own_base(p.name) if tracked and not is_seen and new.requires_grad else None
        new_base = self._updated_base(base, p, new) if base is not None else None
        if self.info.view_chain(p.name):
            new_root = self._updated_root(root, old_root, p, new, is_seen)
            if not tracked and (old := self.read(p)).requires_grad:
                new = self._emit(prims.update_data, (old, new), like=new, requires_grad=True)
        else:
            new_root = new
        if not is_seen and old_root.requires_grad:
            new_root = self._emit(prims.update_data, (old_root, new_root), like=new_root, requires_grad=True)
        storage.has_tracked_write |= is_seen and (new.requires_grad or old_root.requires_grad)
        storage.version += 1
        self._commit(storage, root, new_root, value, new)
        if base is not None:
            base.has_own_history = True
            base.current, base.version = new_base, storage.version

    def _updated_base(self, base: Value, p: TensorProxy, new: TensorProxy) -> TensorProxy:
        """An untracked view with `new` in the place of `p`, a view of it or itself: its history begins here."""
        chain = self.info.chain(p.name)
        steps = [v for v in chain[chain.index(base) + 1 :] if v.node is not None]
        if not steps:
            return new
        args = (self.read(base.proxy), new, tree_map(self.read, tuple(view_step(v) for v in steps)))
        has_strides = any(needs_strides(v) for v in steps)
        kwargs = {"strides": base.proxy.layout.strides} if has_strides else {}  # type: ignore[union-attr]
        return self._emit(prims.view_update, args, kwargs, like=base.proxy, requires_grad=True)

    def _keeping_track(self, p: TensorProxy, new: TensorProxy, tracked: bool) -> TensorProxy:
        """What requires grad still does after it was overwritten with something that does not: its gradient is zero."""
        if not tracked or new.requires_grad or p.name not in self.info.values:
            return new
        old = self.read(p)
        return self._emit(prims.overwritten, (old, new), like=new, requires_grad=True) if old.requires_grad else new

    def _commit(self, storage: Storage, root: Value, new_root: Any, value: Value, new: Any) -> None:
        root.current, root.version = new_root, storage.version
        if value is not root and self.info.view_chain(value.proxy.name):
            value.current, value.version = new, storage.version

    def _updated_root(
        self, root: Value, old_root: TensorProxy, p: TensorProxy, new: TensorProxy, is_seen: bool
    ) -> TensorProxy:
        views = tree_map(self.read, self.info.view_chain(p.name))
        strides = root.proxy.layout.strides if self.info.needs_strides(p.name) else None  # type: ignore[union-attr]
        requires_grad = old_root.requires_grad or (is_seen and new.requires_grad)
        kwargs = {} if strides is None else {"strides": strides}
        return self._emit(
            prims.view_update, (old_root, new, views), kwargs, like=root.proxy, requires_grad=requires_grad
        )

    def _emit(
        self, sym: Symbol, args: tuple, kwargs: Any = None, *, like: TensorProxy, requires_grad: bool
    ) -> TensorProxy:
        out = like.replace(
            name=self.trace.unique_name(f"{_stem(like.name)}_v"), requires_grad=requires_grad, layout=None
        )
        self.trace.emit(sym, args, kwargs or {}, out)
        return out

    def _setitem(self, target: TensorProxy, key: Any, value: Any, tracked: bool) -> TensorProxy:
        a, key, value = self.read(target), tree_map(self.read, key), self.read(value)
        requires_grad = tracked and (a.requires_grad or getattr(value, "requires_grad", False))
        return self._emit(prims.copy_with_setitem, (a, key, value), like=target, requires_grad=requires_grad)

    def _copied(self, dst: TensorProxy, src: Any, tracked: bool) -> TensorProxy:
        """The value of `dst` after `dst.copy_(src)`."""
        requires_grad = tracked and getattr(src, "requires_grad", False)
        if not isinstance(src, TensorProxy):
            filled = (self.read(dst), src)
            return self._emit(symbol_for(torch.full_like), filled, like=dst, requires_grad=False)
        if (src.dtype, src.device) != (dst.dtype, dst.device):
            to = (src, dst.device, dst.dtype)
            args = (src, torch.device(dst.device.device_str()), dst.torch_dtype)
            like = src.replace(name=src.name, dtype=to[2], device=to[1])
            src = self._emit(symbol_for(torch.Tensor.to), args, like=like, requires_grad=requires_grad)
        if src.shape != dst.shape:
            src = self._emit(symbol_for(torch.Tensor.expand), (src, dst.shape), like=dst, requires_grad=requires_grad)
        return self._laid_out(src, dst, requires_grad)

    def _laid_out(self, src: TensorProxy, dst: TensorProxy, requires_grad: bool) -> TensorProxy:
        """A copy of `src` that lies in memory as `dst` does."""
        wanted = dst.layout.strides if dst.layout is not None else None
        known = None if src.layout is None else src.layout.strides
        if wanted == known or not has_known_strides(dst):
            return self._emit(symbol_for(torch.clone), (src,), like=dst, requires_grad=requires_grad)
        if wanted == contiguous_strides(tuple(dst.shape)) or has_internal_overlap(dst):
            kwargs = {"memory_format": torch.contiguous_format}
            return self._emit(symbol_for(torch.clone), (src,), kwargs, like=dst, requires_grad=requires_grad)
        return self._emit(prims.copy_with_strides, (src, wanted), like=dst, requires_grad=requires_grad)

    def _twin_call(self, node: BoundSymbol, written: list[TensorProxy], tracked: bool) -> list[TensorProxy]:
        twin = twin_of(node)
        args, kwargs = tree_map(self.read, twin.args), tree_map(self.read, twin.kwargs)
        reads = (*_tensors(args), *_tensors(kwargs))
        requires_grad = tracked and any(a.requires_grad for a in reads)
        if twin.returns == "both":
            return self._run_on_clones(node, twin, args, kwargs, written, requires_grad)
        target = written[0]
        result = result_metadata(twin.fn, args, kwargs)
        if isinstance(result, tuple | list):
            raise UnsupportedOpError(f"{node.sym.name} writes one tensor but computes several")
        like = target.replace(name=target.name, dtype=result.dtype, shape=result.shape, layout=None)
        sym = symbol_for(twin.fn)
        requires_grad = requires_grad and sym.traits.is_differentiable and any(tracked_results(twin.fn, args, kwargs))
        out = self._emit(sym, args, kwargs, like=like, requires_grad=requires_grad)
        if out.dtype != target.dtype:
            args = (out, target.torch_dtype)
            out = self._emit(symbol_for(torch.Tensor.to), args, like=target, requires_grad=requires_grad)
        self._check_shape(node, out, target)
        if node.sym.traits.writes == ("out",):
            self._alias_result(node, target)
            if not all(is_row_major(t) for t in (target, *_tensors(node.args))) and has_known_strides(target):
                out = self._with_strides_of(target, out)
        elif not is_row_major(target) and not _keeps_strides(twin.fn):
            out = self._with_strides_of(target, out)
        return [out]

    def _with_strides_of(self, target: TensorProxy, new: TensorProxy) -> TensorProxy:
        strides = target.layout.strides  # type: ignore[union-attr]
        return self._emit(prims.copy_with_strides, (new, strides), like=target, requires_grad=new.requires_grad)

    def _check_shape(self, node: BoundSymbol, out: TensorProxy, target: TensorProxy) -> None:
        if tuple(out.shape) != tuple(target.shape):
            raise UnsupportedOpError(
                f"{node.sym.name} would resize its output from {tuple(target.shape)} to {tuple(out.shape)}"
            )

    def _alias_result(self, node: BoundSymbol, target: TensorProxy) -> None:
        """The result of a call with `out=` is the tensor given, also where the graph has another name for it."""
        for o in node.flat_proxy_outs:
            if isinstance(o, TensorProxy) and o.name not in self.info.values:
                self.info.add_view(o, target.name, None, None, current=None, is_tracked=True).version = -1

    def _run_on_clones(
        self, node: BoundSymbol, twin: Twin, args: tuple, kwargs: dict, written: list[TensorProxy], requires_grad: bool
    ) -> list[TensorProxy]:
        known = {w.name for w in written}
        sym = prims.random_on_clones if twin.is_random else prims.run_on_clones
        call = (twin.fn, node.sym.traits.writes, args, kwargs)
        others = list(dict.fromkeys(o for o in _tensors(node.output) if o.name not in known))
        tracked = [False] * (len(others) + len(written))
        if requires_grad:
            tracked = list(tracked_results(sym.torch_fn, call, {}))  # type: ignore[arg-type]
        result_of = {
            o.name: o.replace(name=o.name, requires_grad=o.requires_grad or is_tracked)
            for o, is_tracked in zip(others, tracked, strict=False)
        }
        new = [
            w.replace(name=self.trace.unique_name(f"{_stem(w.name)}_v"), layout=None, requires_grad=is_tracked)
            for w, is_tracked in zip(written, tracked[-len(written) :], strict=True)
        ]
        shadow = tree_map(lambda o: result_of.get(o.name) if isinstance(o, TensorProxy) else o, node.output)
        self.trace.emit(sym, call, {}, (shadow, tuple(new)))
        for o in node.flat_proxy_outs:
            if isinstance(o, TensorProxy) and o.name not in known and o.name not in self.info.values:
                self._enter_fresh(o, result_of[o.name])
        return new

    # Custom autograd functions

    def _custom_function(self, node: BoundSymbol) -> None:
        outs, inputs, body = node.args
        for n in body.dirty:
            if self._is_folded(outs[n]) and node.output[n].requires_grad:
                raise UnsupportedOpError(f"mark_dirty on {outs[n].name}, a view that shows an element more than once")
        self.bodies.append(body)
        new_args = (tree_map(self.read, outs), tree_map(self.read, inputs), body)
        output = self._function_results(node, new_args[1])
        with origin(node.origin):
            self.trace.emit(node.sym, new_args, {}, output)
        for n, (o, result) in enumerate(zip(outs, output, strict=True)):
            if not isinstance(result, TensorProxy) or result.name in self.info.values:
                continue
            storage = self.info.storage_of(o.name) if isinstance(o, TensorProxy) else None
            if storage is None:
                self.info.add_root(result, result)
                continue
            own = self.info.add_view(result, o.name, None, None, current=result, is_tracked=True)
            is_inner = not any(
                isinstance(a, TensorProxy) and a.layout and self.info.storage_of(a.name) is storage for a in inputs
            )
            if is_inner or n in body.dirty:
                storage.has_tracked_write |= result.requires_grad
                self._adopt(storage, o, result)
            else:
                own.has_own_history = True

    def _function_results(self, node: BoundSymbol, inputs: tuple) -> tuple:
        """The results of a custom function, tracked where an input has become so by a write."""
        if NO_GRAD in node.tags or not any(isinstance(a, TensorProxy) and a.requires_grad for a in inputs):
            return tuple(node.output)
        body = node.args[2]

        def tracked(n: int, o: Any) -> Any:
            if (
                not isinstance(o, TensorProxy)
                or n in body.non_differentiable
                or not (o.torch_dtype.is_floating_point or o.torch_dtype.is_complex)
            ):
                return o
            return o if o.requires_grad else o.replace(name=o.name, requires_grad=True)

        return tuple(tracked(n, o) for n, o in enumerate(node.output))

    def _adopt(self, storage: Storage, o: TensorProxy, result: TensorProxy) -> None:
        """From here on the memory's value, and its gradient, is the function's result."""
        root = self.info.values[storage.root]
        if self.info.view_chain(o.name):
            old = self.read(root.proxy)
            new_root = self._updated_root(root, old, o, result, True)
        else:
            new_root = result
        storage.version += 1
        root.current, root.version = new_root, storage.version
        for name in (o.name, result.name):
            self.info.values[name].current, self.info.values[name].version = result, storage.version

    def finish_custom_functions(self) -> None:
        """Ends the program with what the custom backwards will read: their saved memory as it is now."""
        if not self.bodies:
            return
        names: dict[str, Any] = {}
        for body in self.bodies:
            for p in _tensors(body.saved):
                storage = self.info.storage_of(p.name)
                for name in (p.name,) if storage is None else (p.name, storage.root):
                    if name in self.info.values:
                        names[name] = self.read(self.info.values[name].proxy)
        for storage in self.info.storages.values():
            if storage.root in names:
                self.forward_values[storage.root] = names[storage.root]
        self.trace.emit(prims.late_saved, (self, tuple(names), tuple(names.values())), {}, None)

    def saved_on_context(self) -> set[str]:
        """Saved tensors that no `save_for_backward` has seen: writes to them after the call are the user's affair."""
        on_context: set[str] = set()
        checked: set[str] = set()
        for body in self.bodies:
            for n, p in enumerate(body.saved):
                if isinstance(p, TensorProxy):
                    is_checked = body.saved_for_backward is not None and n in body.saved_for_backward
                    storage = self.info.storage_of(p.name)
                    (checked if is_checked else on_context).update(
                        {p.name} if storage is None else {p.name, storage.root}
                    )
        return on_context - checked

    def is_physical(self, root: Value) -> bool:
        """Whether the writes to an input are in the trace itself, so that nothing is left to write back."""
        return root.current is root.proxy

    def returned(self, current: TensorProxy, storage: Storage) -> TensorProxy:
        """A value that the computation returns for the epilogue to write into an input."""
        return current

    # Inputs

    def enter_inputs(self, inputs: list[Any], written: Collection[int] = ()) -> None:
        """Enters the program's inputs; those that share memory become views of one base.

        written: the storages that the program writes.
        """
        groups: dict[int, list[TensorProxy]] = {}
        for p in inputs:
            if isinstance(p, TensorProxy):
                if p.layout is None:
                    self.info.add_root(p, p)
                else:
                    groups.setdefault(p.layout.storage, []).append(p)
        for members in groups.values():
            self._enter_input_group(members)

    def _enter_input_group(self, members: list[TensorProxy]) -> None:
        first = members[0]
        if all(same_geometry(first, m) for m in members):
            self.info.add_root(first, first, is_input=True)
            for m in members[1:]:
                self.info.add_view(m, first.name, None, None, current=m, is_tracked=True)
            return
        if any(m.dtype != first.dtype for m in members):
            raise UnsupportedOpError("inputs of different dtypes share memory that the program writes to")
        start = min(members, key=lambda m: (extent(m)[0], not m.requires_grad))
        low = extent(start)[0]
        length = max(extent(m)[1] for m in members) - low
        base = TensorProxy(
            self.trace.unique_name(f"{start.name}_base"), shape=(length,), dtype=first.dtype, device=first.device,
            layout=Layout(first.layout.storage, (1,), low), requires_grad=start.requires_grad,  # type: ignore[union-attr]
        )  # fmt: skip
        self.trace.emit(prims.strided_view, (start, (length,), (1,), 0), {}, base)
        self.info.add_root(base, base, is_input=True)
        self.info.storages[first.layout.storage].is_joined = True  # type: ignore[union-attr]
        for m in members:
            strides, offset = m.layout.strides, m.layout.offset - low  # type: ignore[union-attr]
            node = prims.strided_view.bind(base, m.shape, strides, offset, output=m)
            self.info.add_view(m, base.name, node, None, current=m, is_tracked=True)


# Pointwise to torch's tags, but their results lie otherwise in memory than their first argument.
_OTHER_STRIDES = frozenset({"masked_fill", "mvlgamma", "multigammaln"})


def _keeps_strides(fn: Any) -> bool:
    """Whether what a functional twin gives lies in memory as its first argument does."""
    return is_pointwise(fn) and fn.__name__ not in _OTHER_STRIDES


def _stem(name: str) -> str:
    """The captured name behind `name_v3`."""
    stem, _, version = name.rpartition("_v")
    return stem if stem and (version == "" or version.strip("_").isdigit()) else name


def _tensors(x: Any) -> list[TensorProxy]:
    found: list[TensorProxy] = []

    def visit(v: Any) -> None:
        if isinstance(v, TensorProxy):
            found.append(v)
        elif isinstance(v, tuple | list):
            for e in v:
                visit(e)
        elif isinstance(v, dict):
            for e in v.values():
                visit(e)

    visit(x)
    return found
