"""In-place programs: from a captured trace to a functional computation and an epilogue.

The computation returns fresh tensors. The epilogue gives the caller what it expects to share memory: inputs that come
back as outputs, views of inputs and of other outputs, and writes to inputs that autograd has to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from thunder.core import prims
from thunder.core.alias_analysis import Storage, Value
from thunder.core.functionalization import Functionalizer
from thunder.core.origin import NO_GRAD, origin
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.sizes import SYMBOLIC_TYPES, free_symbols
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.torch.registry import symbol_for


@dataclass(frozen=True)
class ProgramParts:
    """A functional computation; an epilogue or None; names of inputs that the epilogue writes."""

    computation: TraceCtx
    epilogue: TraceCtx | None
    epilogue_writes: frozenset = frozenset()


def needs_alias_handling(trace: TraceCtx) -> bool:
    """Whether a program writes to memory or returns tensors that share it. O(nodes)."""
    if any(n.written or n.sym is prims.custom_vjp for n in trace.bound_symbols):
        return True
    seen = {a.layout.storage for a in trace.args if isinstance(a, TensorProxy) and a.layout is not None}
    names = {a.name for a in trace.args if isinstance(a, Proxy)}
    for o in trace.bound_symbols[-1].flat_args:
        if isinstance(o, TensorProxy):
            if o.name in names or (o.layout is not None and o.layout.storage in seen):
                return True
            names.add(o.name)
            if o.layout is not None:
                seen.add(o.layout.storage)
    return False


class _Outputs:
    """Plans what the computation returns and what the epilogue makes of it."""

    def __init__(self, functionalizer: Functionalizer, trace: TraceCtx):
        self.fz = functionalizer
        self.inputs = {a.name: a for a in trace.args if isinstance(a, Proxy)}
        self.numbers = {n.output.name: n.output for n in trace.bound_symbols if n.sym is prims.bind_symbol}
        self.computed: dict[str, Any] = {}
        self.epilogue = TraceCtx(name="epilogue")
        self.epilogue.names = set(trace.names)
        self.made: dict[str, Any] = {}
        self.renewed: dict[str, Any] = {}
        self.is_trivial = True
        self.writes: set[str] = set()

    def compute(self, current: TensorProxy) -> TensorProxy:
        """Makes the computation return a value; gives it back."""
        self.computed.setdefault(current.name, current)
        return current

    def _emit_view(self, sym: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """A node of the epilogue, which the computation gives the numbers that it reads in its arguments."""
        for leaf in tree_iter((args, kwargs)):
            for name in free_symbols(leaf) if isinstance(leaf, SYMBOLIC_TYPES) else ():
                if name in self.numbers:
                    self.computed.setdefault(name, self.numbers[name])
        self.epilogue.emit(sym, args, kwargs, output)

    def write_input(self, storage: Storage, root: Value) -> None:
        """The epilogue's write of an input's new value, which autograd sees."""
        new = self.compute(self.fz.returned(self.fz.read(root.proxy), storage))
        target = self._input_tensor(root)
        out = new.replace(name=self.epilogue.unique_name(f"{target.name}_written"), layout=None)
        self.epilogue.emit(symbol_for(torch.Tensor.copy_), (target, new), {}, out)
        self.is_trivial = False
        self.writes |= {m for m in storage.members if m in self.inputs}

    def _input_tensor(self, root: Value) -> Any:
        if root.proxy.name in self.inputs:
            return root.proxy
        producer = next(n for n in self.fz.trace.bound_symbols if n.output is root.proxy)
        self._emit_view(producer.sym, producer.args, producer.kwargs, root.proxy)
        return root.proxy

    def output(self, o: Any, shared: set[int]) -> Any:
        """What the epilogue returns for one output of the program."""
        if not isinstance(o, TensorProxy) or o.name not in self.fz.info.values:
            return o
        storage = self.fz.info.storage_of(o.name)
        if o.name in self.inputs:
            self.is_trivial = False
            return o
        if storage is None or not (storage.is_input or o.layout.storage in shared):  # type: ignore[union-attr]
            return self.compute(self.fz.read(o))
        self.is_trivial = False
        value = self.fz.info.values[o.name]
        current = self.fz.read(o)
        view = self._view(value)
        if not current.requires_grad or not any(v.has_own_history for v in self.fz.info.chain(o.name)):
            return view
        if o.name not in self.renewed:
            out = view.replace(name=self.epilogue.unique_name(f"{o.name}_output"), requires_grad=True)
            computed = self.compute(self.fz.returned(current, storage))
            self.epilogue.emit(prims.with_history, (view, computed), {}, out)
            self.renewed[o.name] = out
        return self.renewed[o.name]

    def _view(self, value: Value) -> Any:
        """A value as a view of an input or of a computed root, made by the epilogue."""
        name = value.proxy.name
        if name in self.inputs or name in self.made:
            return self.made.get(name, value.proxy)
        if value.parent is None:
            self.made[name] = self.compute(self.fz.read(value.proxy))
            return self.made[name]
        parent = self._view(self.fz.info.values[value.parent])
        self.made[name] = parent if value.node is None else self._replay(value, parent)
        return self.made[name]

    def _replay(self, value: Value, parent: Any) -> Any:
        node = value.node
        assert node is not None
        read = {a.name for a in tree_iter((node.args, node.kwargs)) if isinstance(a, TensorProxy)}
        reads_tensors = bool(read - {value.parent})
        with origin(node.origin), self._grad_mode(NO_GRAD in node.tags):
            return self._strided(value, parent) if reads_tensors else self._repeated(value, parent)

    @contextmanager
    def _grad_mode(self, is_off: bool) -> Any:
        """The epilogue makes a view without autograd where the user did."""
        if is_off:
            self.epilogue.emit(prims.set_grad_enabled, (False,), {}, None)
        yield
        if is_off:
            self.epilogue.emit(prims.set_grad_enabled, (True,), {}, None)

    def _strided(self, value: Value, parent: Any) -> Any:
        """A view that other tensors determine, by the geometry that it was captured with."""
        layout, above = value.proxy.layout, self.fz.info.values[value.parent].proxy.layout  # type: ignore[index]
        out = value.proxy.replace(name=self.epilogue.unique_name(f"{value.proxy.name}_view"))
        args = (parent, out.shape, layout.strides, layout.offset - above.offset)  # type: ignore[union-attr]
        self._emit_view(prims.strided_view, args, {}, out)
        return out

    def _repeated(self, value: Value, parent: Any) -> Any:
        """A view by the operation that the user called; its other outputs are made on the way."""
        node = value.node
        assert node is not None
        names = {
            o.name: o.replace(name=self.epilogue.unique_name(f"{o.name}_view"))
            for o in node.flat_proxy_outs
            if isinstance(o, TensorProxy)
        }
        output = node.renamed(names, inputs=False).output
        args = tree_map(lambda a: parent if isinstance(a, TensorProxy) and a.name == value.parent else a, node.args)
        self._emit_view(node.sym, args, node.kwargs, output)
        for was, now in names.items():
            self.made.setdefault(was, now)
        return names[value.proxy.name]


def _shared_storages(outputs: Sequence[Any]) -> set[int]:
    """Storages that several outputs lie in."""
    first: set[int] = set()
    shared: set[int] = set()
    for o in outputs:
        if isinstance(o, TensorProxy) and o.layout is not None:
            (shared if o.layout.storage in first else first).add(o.layout.storage)
    return shared


def _written_storages(trace: TraceCtx) -> set[int]:
    return {w.layout.storage for node in trace.bound_symbols for w in node.written if w.layout is not None}


def split_effects(trace: TraceCtx, make_functionalizer: Any = Functionalizer) -> ProgramParts:
    """The functional computation and the epilogue of a captured trace. O(nodes) plus the views replayed."""
    if not needs_alias_handling(trace):
        return ProgramParts(trace, None)
    new = from_trace(trace)
    fz = make_functionalizer(new)
    with tracectx(new):
        fz.enter_inputs(list(trace.args), _written_storages(trace))
        for node in trace.bound_symbols[:-1]:
            fz.process(node)
        outputs = trace.bound_symbols[-1].args[0]
        plan = _Outputs(fz, trace)
        shared = _shared_storages(outputs)
        _write_inputs(fz, plan)
        result = tuple(plan.output(o, shared) for o in outputs)
        fz.finish_custom_functions()
        last = trace.bound_symbols[-1]
        if plan.is_trivial:
            new.emit(last.sym, (result,), {}, None)
            return ProgramParts(new, None)
        new.emit(last.sym, (tuple(plan.computed.values()),), {}, None)
    plan.epilogue.args = (*trace.args, *plan.computed.values())
    plan.epilogue.emit(prims.python_return, (result,), {}, None)
    return ProgramParts(new, plan.epilogue, frozenset(plan.writes))


def _write_inputs(fz: Functionalizer, plan: _Outputs) -> None:
    for storage in fz.info.storages.values():
        if not storage.is_input or not storage.version:
            continue
        root = fz.info.values[storage.root]
        if storage.has_tracked_write:
            plan.write_input(storage, root)
            continue
        if fz.is_physical(root):
            continue
        with origin(add_tags=(NO_GRAD,), pass_name="functionalization"):
            value = fz.read(root.proxy)
            out = root.proxy.replace(
                name=fz.trace.unique_name(f"{root.proxy.name}_out"), requires_grad=False, layout=None
            )
            fz.trace.emit(prims.copy_, (value, root.proxy), {}, out)
