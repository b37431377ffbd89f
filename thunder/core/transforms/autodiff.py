"""One joint trace: the forward program and its gradient.

Each node's rule runs in program order and leaves a pullback; the pullbacks are then played backwards, every node of
them under an origin with BACKWARD. `get_grad` marks where the cotangents of the outputs enter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.errors import ThunderRuntimeError, UnsupportedOpError
from thunder.core.origin import origin
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.core.transforms.auto_vjp import auto_vjp, backward_origin, operator_vjp, zeros_for
from thunder.core.transforms.custom_backward import CustomBackward
from thunder.core.transforms.rules import find_rule, grad_rule, pair_gradients
from thunder.torch.registry import symbol_for

Pairs = list[tuple[Any, Any]]


class _Cotangents:
    """Gradients collected so far, by value name.

    reached: values that backward comes to. One without a gradient has only consumers that returned None for it; torch
    still runs the backward of the custom function that made it.
    """

    def __init__(self, trace: TraceCtx):
        self.trace = trace
        self.reached: set[str] = set()
        self._of: dict[str, TensorProxy] = {}

    def pass_through(self, node: BoundSymbol) -> None:
        """Backward comes to the inputs of a node if it comes to one of its outputs."""
        if any(o.name in self.reached for o in node.flat_proxy_outs):
            self.reached |= {a.name for a in node.flat_proxy_args if isinstance(a, TensorProxy) and a.requires_grad}

    def get(self, p: Any) -> Any:
        return self._of.get(p.name) if isinstance(p, Proxy) else None

    def put(self, p: Any, g: Any) -> None:
        """Adds `g` to the gradient of `p`."""
        if g is None or not isinstance(p, TensorProxy) or not p.requires_grad:
            return
        known = self._of.get(p.name)
        if known is not None:
            out = known.replace(name=self.trace.make_name(prefix="t"), layout=None)
            self.trace.emit(symbol_for(torch.add), (known, g), {}, out)
            g = out
        self._of[p.name] = g


class Autodiff:
    """Builds the joint trace of one forward trace."""

    def __init__(self, trace: TraceCtx, executors: Sequence[Any] = ()):
        self.trace = trace
        self.executors = executors
        self.joint = from_trace(trace)
        self.pullbacks: list[tuple[BoundSymbol, Callable[[_Cotangents], None]]] = []
        self.env: dict[str, Any] = {}
        self.custom: CustomBackward | None = None

    def run(self, given: Collection[int] | None = None) -> TraceCtx:
        """The joint trace; its return node gives (outputs, gradients of the inputs).

        given: positions in the flat outputs whose cotangents there are; None for all.
        """
        with tracectx(self.joint):
            for node in self.trace.bound_symbols[:-1]:
                self._forward(node.renamed(self.env, outputs=False))
            outputs = self.trace.bound_symbols[-1].renamed(self.env).args[0]
            cotangents = _Cotangents(self.joint)
            leaves = tree_flatten(outputs)[0]
            flat = [o for o in leaves if isinstance(o, TensorProxy)]
            chosen = flat if given is None else [leaves[n] for n in given]
            for o in {o.name: o for o in chosen if o.requires_grad}.values():
                self._enter_cotangent(o, cotangents)
            for node, play in reversed(self.pullbacks):
                with backward_origin(node):
                    play(cotangents)
                cotangents.pass_through(node)
            if self.custom is not None:
                self.custom.write_back(flat)
            grads = tuple(cotangents.get(a) for a in self.trace.args)
            self.joint.emit(prims.python_return, (outputs, grads), {}, None)
        return self.joint

    def _enter_cotangent(self, o: TensorProxy, cotangents: _Cotangents) -> None:
        last = self.trace.bound_symbols[-1]
        with backward_origin(last):
            g = o.replace(name=self.joint.unique_name(f"{o.name}_grad"), requires_grad=False, layout=None)
            self.joint.emit(prims.get_grad, (o,), {}, g)
            cotangents.put(o, g)
            cotangents.reached.add(o.name)

    # Forward

    def _forward(self, node: BoundSymbol) -> None:
        outs = [o for o in node.flat_outs if isinstance(o, TensorProxy)]
        tracked = (
            bool(node.defined)
            and any(o.requires_grad for o in outs)
            and any(isinstance(a, TensorProxy) and a.requires_grad for a in node.flat_args)
        )
        with origin(node.origin):
            if node.sym is prims.late_saved:
                self.custom = CustomBackward.resume(self.joint, node, self.custom)
            elif not tracked:
                self.joint.add_bound_symbol(node)
            elif node.sym in _STRUCTURAL:
                _STRUCTURAL[node.sym](self, node)
            else:
                self._apply_rule(node, outs)

    def _apply_rule(self, node: BoundSymbol, outs: list[TensorProxy]) -> None:
        impl = next((i for ex in self.executors if (i := ex.grad_impl(node)) is not None), None)
        if impl is not None:
            rule, legacy = impl.vjp, impl.grad_transform
        else:
            rule = find_rule(node.sym)
            legacy = None if rule is not None else grad_rule(node.sym)
        if rule is not None:
            _, pull = self._traced(lambda: rule(*node.args, **node.kwargs), node)
            self._remember(node, lambda c: pair_gradients(node, node.args, node.kwargs, pull(*c)), outs)
        elif legacy is not None:
            self._apply_legacy(node, legacy)
        elif node.sym.torch_fn is not None:
            auto = auto_vjp(node, node.args, node.kwargs)[1] if node.sym.executor is None else operator_vjp(node)
            self._remember(node, auto, outs)
        elif node.sym.meta is not None and not node.sym.is_prim:
            self._decompose(node)
        else:
            raise UnsupportedOpError(f"{node.sym.name} has no gradient rule and no decomposition")

    def _traced(self, fn: Callable[[], tuple[Any, Any]], node: BoundSymbol) -> tuple[Any, Any]:
        """Runs a rule; the result takes the names of the node's outputs."""
        start = len(self.joint.bound_symbols)
        result, rest = fn()
        names: dict[str, Any] = {}
        for new, old in zip(tree_flatten(result)[0], node.flat_outs, strict=True):
            if isinstance(new, Proxy) and isinstance(old, Proxy):
                if any(new.name == a.name for a in node.flat_proxy_args) or new.name in names:
                    self.joint.emit(prims.shallow_copy, (new,), {}, old)
                else:
                    names[new.name] = old
        nodes = self.joint.bound_symbols
        nodes[start:] = [n.renamed(names) for n in nodes[start:]]
        return result, rest

    def _remember(self, node: BoundSymbol, pull: Callable[[Sequence[Any]], Pairs], outs: list[TensorProxy]) -> None:
        def play(cotangents: _Cotangents) -> None:
            given = [cotangents.get(o) for o in outs]
            if any(c is not None for c in given):
                for p, g in pull(given):
                    cotangents.put(p, g)

        self.pullbacks.append((node, play))

    def _apply_legacy(self, node: BoundSymbol, rule: Callable) -> None:
        """A rule in the get_grad/put_grad form: nodes up to the first get_grad are forward, the rest is replayed
        backward.
        """
        scratch = from_trace(self.joint)
        with tracectx(scratch):
            result = rule(*node.args, **node.kwargs)
        self.joint.names |= scratch.names
        names = {
            new.name: old
            for new, old in zip(tree_flatten(result)[0], node.flat_outs, strict=True)
            if isinstance(new, Proxy) and isinstance(old, Proxy)
        }
        nodes = [n.renamed(names) for n in scratch.bound_symbols]
        backward_names: set[str] = set()
        later: list[BoundSymbol] = []
        for n in nodes:
            if n.sym in (prims.get_grad, prims.put_grad) or any(p.name in backward_names for p in n.flat_proxy_args):
                backward_names |= {o.name for o in n.flat_proxy_outs}
                later.append(n)
            else:
                self.joint.emit(n.sym, n.args, n.kwargs, n.output)

        def play(cotangents: _Cotangents) -> None:
            swap: dict[str, Any] = {}
            for n in later:
                n = n.renamed(swap, outputs=False)
                if n.sym is prims.get_grad:
                    g = cotangents.get(n.args[0])
                    swap[n.output.name] = zeros_for(self.joint, n.args[0]) if g is None else g
                elif n.sym is prims.put_grad:
                    cotangents.put(*n.args)
                else:
                    self.joint.emit(n.sym, n.args, n.kwargs, n.output)

        self.pullbacks.append((node, play))

    def _decompose(self, node: BoundSymbol) -> None:
        """Differentiates what the node is made of."""
        scratch = from_trace(self.joint)
        with tracectx(scratch):
            result = node.sym.meta(*node.args, **node.kwargs)  # type: ignore[misc]
        self.joint.names |= scratch.names
        names = {
            new.name: old
            for new, old in zip(tree_flatten(result)[0], node.flat_outs, strict=True)
            if isinstance(new, Proxy) and isinstance(old, Proxy)
        }
        for sub in scratch.bound_symbols:
            self._forward(sub.renamed(names))

    # Structural primitives

    def _update_data(self, node: BoundSymbol) -> None:
        """The value of the second argument with the history of the first."""
        old = node.args[0]
        self.joint.add_bound_symbol(node)
        self._remember(node, lambda c: [(old, c[0])], [node.output])

    def _overwritten(self, node: BoundSymbol) -> None:
        """The value of the second argument; what it has taken the place of gets a gradient of zero."""
        old = node.args[0]
        self.joint.add_bound_symbol(node)
        self._remember(node, lambda c: [(old, zeros_for(self.joint, old))], [node.output])

    def _same(self, node: BoundSymbol) -> None:
        self.joint.add_bound_symbol(node)
        self._remember(node, lambda c: [(node.args[0], c[0])], [node.output])

    def _view_update(self, node: BoundSymbol) -> None:
        base, src, views = node.args[:3]
        self.joint.add_bound_symbol(node)

        def pull(c: Sequence[Any]) -> Pairs:
            g = c[0]
            pairs: Pairs = []
            if base.requires_grad:
                pairs.append((base, self._emitted(prims.view_update, (g, 0, views), base, node.kwargs)))
            if isinstance(src, TensorProxy) and src.requires_grad:
                pairs.append((src, self._emitted(prims.view_of, (g, views), src, node.kwargs)))
            return pairs

        self._remember(node, pull, [node.output])

    def _setitem(self, node: BoundSymbol) -> None:
        a, key, value = node.args
        self.joint.add_bound_symbol(node)

        def pull(c: Sequence[Any]) -> Pairs:
            g = c[0]
            pairs: Pairs = []
            if a.requires_grad:
                pairs.append((a, self._emitted(prims.copy_with_setitem, (g, key, 0), a)))
            if isinstance(value, TensorProxy) and value.requires_grad:
                args = (g, key, value.shape, value.torch_dtype)
                pairs.append((value, self._emitted(prims.setitem_value_grad, args, value)))
            return pairs

        self._remember(node, pull, [node.output])

    def _copy(self, node: BoundSymbol) -> None:
        """A write that autograd sees passes the gradient to what was written, any other one to what was there."""
        src, dst = node.args
        self.joint.add_bound_symbol(node)
        source = src if node.kwargs.get("grad_enabled", True) else dst
        self._remember(node, lambda c: [(source, c[0])], [node.output])

    def _update_aliases(self, node: BoundSymbol) -> None:
        """Each alias is a view of the root; the root is its old self outside of what was written."""
        aliases, after, rule = node.args
        self.joint.add_bound_symbol(node)
        root_was_written = not rule.written
        root = after[0] if root_was_written else node.output[0]

        def play(cotangents: _Cotangents) -> None:
            views = rule.views if root_was_written else rule.views[1:]
            outs = node.output if root_was_written else node.output[1:]
            for out, chain in zip(outs, views, strict=True):
                g = cotangents.get(out)
                if g is not None and root.requires_grad:
                    args = (g, chain, root.shape, root.layout.strides if root.layout is not None else None)
                    cotangents.put(root, self._emitted(prims.view_of_grad, args, root))
            g = None if root_was_written else cotangents.get(root)
            if g is None:
                return
            if not rule.is_seen:
                cotangents.put(aliases[0], g)
                return
            if aliases[0].requires_grad:
                cotangents.put(aliases[0], self._emitted(prims.view_update, (g, 0, rule.written), root))
            if after[0].requires_grad:
                cotangents.put(after[0], self._emitted(prims.view_of, (g, rule.written), after[0]))

        self.pullbacks.append((node, play))

    def _emitted(self, sym: Any, args: tuple, like: TensorProxy, kwargs: Any = None) -> TensorProxy:
        out = like.replace(name=self.joint.make_name(prefix="t"), requires_grad=False, layout=None)
        self.joint.emit(sym, args, kwargs or {}, out)
        return out

    def _custom_vjp(self, node: BoundSymbol) -> None:
        self.joint.add_bound_symbol(node)

        def play(cotangents: _Cotangents) -> None:
            if self.custom is None:
                raise ThunderRuntimeError(
                    "a custom autograd function lost its saved values before its gradient was built"
                )
            if any(isinstance(o, TensorProxy) and o.name in cotangents.reached for o in node.output):
                for p, g in self.custom.play(node, [cotangents.get(o) for o in node.output]):
                    cotangents.put(p, g)

        self.pullbacks.append((node, play))


_STRUCTURAL: dict[Any, Callable[[Autodiff, BoundSymbol], None]] = {
    prims.update_data: Autodiff._update_data,
    prims.overwritten: Autodiff._overwritten,
    prims.shallow_copy: Autodiff._same,
    prims.detached: Autodiff._same,
    prims.view_update: Autodiff._view_update,
    prims.copy_with_setitem: Autodiff._setitem,
    prims.custom_vjp: Autodiff._custom_vjp,
    prims.copy_: Autodiff._copy,
    prims.update_aliases: Autodiff._update_aliases,
}


def joint_trace(trace: TraceCtx, executors: Sequence[Any] = (), given: Collection[int] | None = None) -> TraceCtx:
    """The forward trace with its gradient appended; see `Autodiff.run`."""
    return Autodiff(trace, executors).run(given)
