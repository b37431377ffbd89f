"""fx graph to trace: one interpreter, one node at a time.

The metadata of every value is the one that Dynamo's fake tensors have found (`meta["example_value"]`), so a node needs
no meta rule of ours to be lowered, and what shares memory with what is known from the fake storages.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from thunder.core import prims
from thunder.core.errors import OpaqueRegionError, UnsupportedOpError
from thunder.core.origin import NO_GRAD, RECOMPUTE_IN_BACKWARD, SourceLocation, origin
from thunder.core.proxies import AnyProxy, Layout, NumberProxy, Proxy, ProxyTag, TensorProxy
from thunder.core.pytree import tree_flatten, tree_iter, tree_map
from thunder.core.sizes import SYMBOLIC_TYPES, concrete
from thunder.core.torch_compat import (
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    SequenceKey,
    aten_packet,
    is_functorch_value,
    method_key,
    storage_key,
)
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.extend.executor import Lookasides, check_replacement, find_replacement
from thunder.frontend.autocasting import AutocastState, autocast_call
from thunder.frontend.custom_function import BACKWARD_VARIANTS, BackwardBody
from thunder.torch.fakes import StorageIds, fake_meta, layout_of
from thunder.torch.mutation import METADATA_METHODS, renormalization, writing_symbol
from thunder.torch.registry import method_call, operator_call, symbol_for, symbol_name

_FILE_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>.*)')


# A module is called through a function of thunder's own, which is no line of the user's.
_OWN_FRAMES = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "jit.py"))


def source_location(stack_trace: str | None) -> SourceLocation | None:
    """The innermost user line of an fx node's stack trace."""
    if not stack_trace:
        return None
    found = None
    for frame in _FILE_LINE.finditer(stack_trace):
        if not frame["file"].startswith(_OWN_FRAMES):
            found = frame
    if found is None:
        return None
    return SourceLocation(found["file"], int(found["line"]), found["code"].strip(), found["function"])


_VARIABLE = re.compile(r"^[LG]\['(\w+)'\]\.?")
_COMPILED_MODULE = ("self", "original")  # names for it, in its own methods and in ThunderModule's


def module_path(node: fx.Node) -> str:
    """The path of the module whose forward made this node, from the compiled module or from a variable."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return _VARIABLE.sub(lambda found: "" if found[1] in _COMPILED_MODULE else f"{found[1]}.", path).rstrip(".")


_POSITIONAL = re.compile(r"^[lL]_args_(?P<n>\d+)_(?P<rest>.*)$")


def input_name(name: str, arguments: Sequence[str] = ()) -> str:
    """A readable name for a Dynamo placeholder: `l_self_modules_fc_parameters_weight_` → `t_fc_weight`, `l_x_` → `x`.

    `arguments`: names of the positional parameters behind `*args`, so that `l_args_0_` is called as the user calls it.
    """
    positional = _POSITIONAL.match(name)
    if positional is not None and int(positional["n"]) < len(arguments):
        return f"{arguments[int(positional['n'])]}{positional['rest'].rstrip('_')}"
    is_member = "_parameters_" in name or "_buffers_" in name
    short = re.sub(r"^[lL]_(self_|original_|kwargs_(?=[^_]))?", "", name).strip("_")
    short = re.sub(r"(^|_)(modules|parameters|buffers)_", r"\1", short)
    short = re.sub(r"_+", "_", short).strip("_") or name
    if is_member:
        short = "t_" + short
    return short if short.isidentifier() else f"x_{short}"


class Lowering:
    """Interprets one fx graph, and the graphs inside it, into `trace`.

    `lookasides`: operators of executors that stand for the torch callables they replace.
    """

    def __init__(
        self,
        trace: TraceCtx,
        *,
        grad_enabled: bool,
        autocast: AutocastState | None = None,
        lookasides: Lookasides = MappingProxyType({}),
    ):
        self.trace = trace
        self.lookasides = lookasides
        self.ids = StorageIds()
        self.grad_enabled = grad_enabled
        self.is_tracked = grad_enabled
        self.autocast = autocast or AutocastState()
        self._by_fake: dict[int, Any] = {}
        self._alive: list[Any] = []
        # By storage of the fakes: the storage id of the values, and how much further in it they lie.
        self._aliased: dict[int, tuple[int, Any]] = {}
        self._shifts: dict[tuple[int, int], Any] = {}
        self._key_of: dict[str, int] = {}
        # Storages of fakes that stand for several (inputs that are disjoint slices of one buffer).
        self._split_keys: set[int] = set()

    # Values

    def input_proxy(
        self, fake: Any, name: str, *, requires_grad: bool | None = None, is_static: bool = False
    ) -> Any:
        """The proxy for a graph input. `is_static`: it is at one place in memory at all calls."""
        if isinstance(fake, torch.Tensor):
            wanted = fake.requires_grad if requires_grad is None else requires_grad
            tags = {ProxyTag.STATIC_MEMORY_LOCATION} if is_static else None
            return self.tensor_proxy(fake, name=self.trace.unique_name(name), requires_grad=wanted, tags=tags)
        if isinstance(fake, SYMBOLIC_TYPES):
            expr = str(fake.node.expr)
            if expr.isidentifier() and expr not in self.trace.names:
                self.trace.names.add(expr)
                return NumberProxy(expr, python_type=fake.node.pytype)
        return AnyProxy(fake, name=self.trace.unique_name(name))

    def tensor_proxy(self, fake: torch.Tensor, *, name: str, requires_grad: bool, tags: Any = None) -> TensorProxy:
        key = storage_key(fake)
        storage, shift = self._aliased.get(key, (None, 0))  # type: ignore[arg-type]
        layout = layout_of(fake, self.ids, key)
        if layout is not None and storage is not None:
            layout = Layout(storage, layout.strides, layout.offset + shift)
        p = TensorProxy(
            name,
            shape=tuple(concrete(s) for s in fake.shape),
            device=fake.device,
            dtype=fake.dtype,
            requires_grad=requires_grad,
            layout=layout,
            tags=tags,
        )
        if key is not None:
            self._key_of[p.name] = key
        self._by_fake[id(fake)] = p
        self._alive.append(fake)
        return p

    def share_storage(self, fake: Any, p: Any) -> None:
        """Makes the memory of an inner graph's input that of the outer value that is passed for it."""
        if isinstance(fake, torch.Tensor) and isinstance(p, TensorProxy) and p.layout is not None:
            key = storage_key(fake)
            if key is not None:
                where = (p.layout.storage, p.layout.offset - concrete(fake.storage_offset()))
                self._shifts[key, where[0]] = where[1]
                if self._aliased.setdefault(key, where) != where:
                    self._split_keys.add(key)
                    self._aliased[key] = where
                self._key_of[p.name] = key

    def adopt_input(self, fake: Any, p: TensorProxy) -> None:
        """Makes `p` the value of a graph input, and its memory that of the input's views."""
        self._by_fake[id(fake)] = p
        self.share_storage(fake, p)

    def output_proxies(self, example: Any, name: str, tracked: bool) -> Any:
        """Proxies for a node's fake result. A result that is an earlier value (`x.add_()`) is that value."""
        flat, _ = tree_flatten(example)
        several = len([o for o in flat if isinstance(o, torch.Tensor)]) > 1

        def proxied(o: Any) -> Any:
            if not isinstance(o, torch.Tensor):
                return o
            known = self._by_fake.get(id(o))
            if isinstance(known, TensorProxy):
                return known
            wanted = f"{name}_0" if several else name
            differentiable = o.dtype.is_floating_point or o.dtype.is_complex
            return self.tensor_proxy(
                o, name=self.trace.unique_name(wanted), requires_grad=tracked and differentiable and o.requires_grad
            )

        return tree_map(proxied, example)

    # Calls

    def call(self, fn: Any, args: tuple, kwargs: dict[str, Any], example: Any, name: str) -> Any:
        """Emits one torch call; `example` is its fake result, or None to find it now."""
        if fn in METADATA_METHODS:
            return self._metadata_call(fn, args, kwargs, example, name)
        if self.autocast.is_active and self.autocast.concerns(args, kwargs):
            return autocast_call(self, fn, args, kwargs, example, name)
        return self.plain_call(fn, args, kwargs, example, name)

    def plain_call(self, fn: Any, args: tuple, kwargs: dict[str, Any], example: Any, name: str) -> Any:
        """Emits a call in which autocast plays no part."""
        if (renormalized := renormalization(fn, args, kwargs)) is not None:
            renorm, args, kwargs = renormalized
            with origin(add_tags=(NO_GRAD,)):
                self.trace.emit(symbol_for(torch.embedding_renorm_), renorm, {}, None)
        replacement = find_replacement(self.lookasides, fn, args, kwargs)
        sym, args, kwargs = writing_symbol(fn, args, kwargs) if replacement is None else (replacement, args, kwargs)
        tracked = (
            self.grad_enabled
            and sym.traits.is_differentiable
            and any(isinstance(a, TensorProxy) and a.requires_grad for a in tree_iter((args, kwargs)))
        )
        self.is_tracked |= tracked
        with ExitStack() as stack:
            if not self.grad_enabled:
                stack.enter_context(origin(add_tags=(NO_GRAD,)))
            if example is None and not sym.traits.writes:
                out = tree_map(
                    lambda o: o.replace(name=o.name, requires_grad=tracked) if isinstance(o, TensorProxy) else o,
                    fake_meta(fn, args, kwargs),
                )
            else:
                if self._split_keys:
                    self._follow_arguments(args, kwargs)
                out = self.output_proxies(example, name, tracked)
            if replacement is not None:
                check_replacement(replacement, fn, args, kwargs, out)
            self.trace.emit(sym, args, kwargs, out)
        return out

    def _follow_arguments(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Where one fake storage stands for several, a call's results lie in that of its first argument there."""
        tensors = [a for a in tree_iter((args, kwargs)) if isinstance(a, TensorProxy)]
        for a in reversed(tensors):
            key = self._key_of.get(a.name)
            if key in self._split_keys and a.layout is not None:
                shift = self._shifts.get((key, a.layout.storage), 0)
                self._aliased[key] = (a.layout.storage, shift)

    def _metadata_call(self, fn: Any, args: tuple, kwargs: dict[str, Any], example: Any, name: str) -> Any:
        """In-place metadata changes: the tensor's later uses are uses of a view of it."""
        method = fn.__name__
        if method == "requires_grad_":
            return args[0]
        if method in ("resize_", "resize_as_", "set_", "rename_"):
            raise UnsupportedOpError(f"Tensor.{method} changes a tensor's storage, which a traced program cannot do")
        if any(a is args[0] for a in self.trace.args):
            raise UnsupportedOpError(f"Tensor.{method} changes the shape or strides of an input of the traced program")
        if not self.grad_enabled and (args[0].requires_grad or getattr(example, "requires_grad", False)):
            raise UnsupportedOpError(
                f"Tensor.{method} in no_grad on a tensor that requires grad, whose gradient has the shape from before"
            )
        view = {"as_strided_": torch.as_strided}.get(method) or getattr(torch.Tensor, method[:-1])
        self._by_fake.pop(id(example), None)
        out = self.plain_call(view, args, kwargs, example, name)
        self.rebound[args[0].name] = out
        return out

    @property
    def rebound(self) -> dict[str, Any]:
        if not hasattr(self, "_rebound"):
            self._rebound: dict[str, Any] = {}
        return self._rebound

    def constant(self, value: torch.Tensor, name: str) -> Any:
        """A tensor that the graph holds."""
        with tracectx(self.trace):
            p = self.tensor_proxy(value, name=self.trace.unique_name(name), requires_grad=value.requires_grad)
            self.trace.emit(prims.tensor_constant, (value,), {}, p)
        return p

    # Graphs

    def run(self, graph: fx.Graph, owner: torch.nn.Module, inputs: Sequence[Any]) -> Any:
        """Interprets `graph` on the given input values; returns its result with proxies in it."""
        env: dict[fx.Node, Any] = {}
        inputs = iter(inputs)
        result = None
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = self._bind_placeholder(node, next(inputs))
            elif node.op == "get_attr":
                env[node] = self._attribute(owner, node)
            elif node.op == "output":
                result = fx.map_arg(node.args[0], lambda n: self._read(env, n))
            else:
                source = source_location(node.meta.get("stack_trace"))
                # `jit(torch.sin)` has no line of the user's; its nodes come from the capture.
                maker = "capture" if source is None else None
                with origin(source=source, module_path=module_path(node), pass_name=maker):
                    env[node] = self._node(node, env)
        return result

    def _bind_placeholder(self, node: fx.Node, value: Any) -> Any:
        """The value of a graph's input; a symbolic number stands for itself, and prints as what it is made of."""
        fake = example_value(node)
        if isinstance(fake, SYMBOLIC_TYPES):
            return concrete(fake) if isinstance(value, Proxy) else value
        self.share_storage(fake, value)
        if isinstance(fake, torch.Tensor) and isinstance(value, TensorProxy):
            self._by_fake[id(fake)] = value
            self._alive.append(fake)
        return value

    def _read(self, env: dict[fx.Node, Any], node: fx.Node) -> Any:
        value = env[node]
        while isinstance(value, Proxy) and value.name in self.rebound:
            value = self.rebound[value.name]
        return value

    def _attribute(self, owner: torch.nn.Module, node: fx.Node) -> Any:
        value: Any = owner
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return self.constant(value, "constant") if isinstance(value, torch.Tensor) else value

    def _node(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        def read(n: fx.Node) -> Any:
            return self._read(env, n)

        args = tuple(fx.map_arg(node.args, read))
        kwargs = dict(fx.map_arg(node.kwargs, read))
        args, kwargs = tree_map(_plain, args), tree_map(_plain, kwargs)
        example = example_value(node)
        with tracectx(self.trace):
            if node.op == "call_module":
                raise UnsupportedOpError(f"a call of the module {node.target} inside a graph")
            if any(is_functorch_value(o) for o in tree_iter(example)):
                raise OpaqueRegionError(f"{node.name} computes inside a transform of torch.func")
            bindings = node.meta.get("unbacked_bindings") or self._undefined_number(example, args)
            if bindings and _is_plain_result(example):
                return self._number_from_data(node, args, kwargs, example, bindings)
            if node.op == "call_method":
                result = self._method(str(node.target), args, kwargs, example, node.name)
            else:
                result = self._function(node, args, kwargs, example)
            for symbol, path in (bindings or {}).items():
                self._bind_symbol(symbol, path, result)
            self._check_offsets(node.name, example, bindings or {})
            return result

    def _check_offsets(self, name: str, example: Any, bindings: dict[Any, tuple]) -> None:
        """A view must begin where the program knows: `x.narrow(0, start, 2)` with a tensor `start` does not."""
        own = {str(symbol) for symbol, path in bindings.items() if path[-1:] == (method_key("storage_offset"),)}
        for t in tree_iter(example):
            offset = t.storage_offset() if isinstance(t, torch.Tensor) else 0
            symbols = offset.node.expr.free_symbols if isinstance(offset, SYMBOLIC_TYPES) else ()
            if any(str(s) in own or str(s) not in self.trace.names for s in symbols):
                raise UnsupportedOpError(f"{name} gives a view that begins where the values of a tensor say")

    def _bind_symbol(self, symbol: Any, path: tuple, value: Any) -> None:
        """Defines a number that depends on data, under the name that sizes refer to it by."""
        python_type = int if symbol.is_integer else float
        name = NumberProxy(self.trace.make_name(str(symbol)), python_type=python_type)
        self.trace.emit(prims.bind_symbol, (value, tuple(path)), {}, name)

    def _undefined_number(self, example: Any, args: tuple) -> dict[Any, tuple]:
        """The symbol of a number that Dynamo reads from a tensor input: a float argument reaches the graph as one."""
        if not isinstance(example, SYMBOLIC_TYPES) or not args or not isinstance(args[0], TensorProxy):
            return {}
        name = str(example.node.expr)
        return {example.node.expr: ()} if name.isidentifier() and name not in self.trace.names else {}

    def bind_sizes(self, inputs: Sequence[Any]) -> None:
        """Defines the symbolic sizes of the inputs that are not inputs themselves, such as those of `x.nonzero()`."""
        for p in inputs:
            for dim, size in enumerate(p.shape if isinstance(p, TensorProxy) else ()):
                name = str(size.node.expr) if isinstance(size, SYMBOLIC_TYPES) else ""
                if name.isidentifier() and name not in self.trace.names:
                    self._bind_symbol(size.node.expr, (method_key("size"), SequenceKey(dim)), p)

    def _number_from_data(
        self, node: fx.Node, args: tuple, kwargs: dict[str, Any], example: Any, bindings: dict
    ) -> Any:
        """A call such as `x.item()`: it stays, and what reads its result reads the symbol."""
        fn: Any = node.target
        if node.op == "call_method":
            fn, args = method_call(fn, args, kwargs)
        raw = AnyProxy(None, name=self.trace.unique_name(node.name))
        self.trace.emit(symbol_for(fn), args, kwargs, raw)
        for symbol, path in bindings.items():
            self._bind_symbol(symbol, path, raw)
        return tree_map(concrete, example)

    def _method(self, method: str, args: tuple, kwargs: dict[str, Any], example: Any, name: str) -> Any:
        if not isinstance(args[0], TensorProxy):
            if _is_plain_result(example):
                return concrete(example)
            return getattr(args[0], method)(*args[1:], **kwargs)
        if _is_plain_result(example) and example is not None:
            return concrete(example)
        fn, args = method_call(method, args, kwargs)
        return self.call(fn, args, kwargs, example, name)

    def _function(self, node: fx.Node, args: tuple, kwargs: dict[str, Any], example: Any) -> Any:
        fn: Any = node.target
        if fn is torch._C._autograd._get_data_attr:
            fn = torch.Tensor.detach
        special = _SPECIAL_FUNCTIONS.get(fn)
        if special is not None:
            return special(self, args, kwargs)
        if isinstance(fn, HigherOrderOperator):
            return self._higher_order(fn, node, args, kwargs, example)
        has_tensor = any(isinstance(a, TensorProxy) for a in tree_iter((args, kwargs)))
        if not has_tensor and example is None and changes_state(fn):
            raise OpaqueRegionError(f"{symbol_name(fn)} changes the state of torch around the operations that follow")
        if not has_tensor and (_is_plain_result(example) or fn in _PLAIN_PYTHON):
            if example is not None:
                return concrete(example)
            return fn(*args, **kwargs)
        if fn is builtins.getattr and isinstance(args[0], TensorProxy):
            if _is_plain_result(example):
                return concrete(example)
            return self._property(args[0], args[1], example, node.name)
        if fn in _PLAIN_PYTHON and not isinstance(args[0], TensorProxy):
            return fn(*args, **kwargs)
        called = operator_call(fn, args, lambda a: isinstance(a, TensorProxy))
        if called is not None:
            fn, args = called
        if _is_plain_result(example) and example is not None and not isinstance(example, tuple | list):
            return concrete(example)
        return self.call(fn, args, kwargs, example, node.name)

    def _higher_order(self, fn: Any, node: fx.Node, args: tuple, kwargs: dict[str, Any], example: Any) -> Any:
        if fn.name() not in _HIGHER_ORDER:
            raise OpaqueRegionError(f"the higher-order operator {fn.name()}")
        return _HIGHER_ORDER[fn.name()](self, node, args, kwargs, example)

    def _property(self, a: TensorProxy, attribute: str, example: Any, name: str) -> Any:
        if attribute == "data":
            return self.call(torch.Tensor.detach, (a,), {}, example, name)
        return self.call(getattr(torch.Tensor, attribute).__get__, (a,), {}, example, name)


_PLAIN_PYTHON: set[Any] = {builtins.getattr, fx.node._side_effectful_functions.__class__, max, min, sum, len}
_PLAIN_PYTHON |= {
    __import__("operator").getitem,
    torch.sym_max,
    torch.sym_min,
    torch.sym_int,
    torch.sym_float,
    torch.sym_not,
}


def example_value(node: fx.Node) -> Any:
    """The fake result of a node, or None where the graph carries none."""
    example = node.meta.get("example_value")
    return node.meta.get("val") if example is None else example


def _plain(x: Any) -> Any:
    return concrete(x) if isinstance(x, SYMBOLIC_TYPES) else x


def changes_state(fn: Any) -> bool:
    """Whether a call without tensors is made for its effect on torch, such as entering a context."""
    if fn in _SPECIAL_FUNCTIONS or fn in _PLAIN_PYTHON or isinstance(fn, OpOverload | OpOverloadPacket):
        return False
    return aten_packet(symbol_name(fn)) is None


def _is_plain_result(example: Any) -> bool:
    """Whether a fake result holds no tensor."""
    return example is not None and not any(isinstance(o, torch.Tensor) for o in tree_iter(example))


def _set_grad_enabled(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    lowering.grad_enabled = bool(args[0])


def _enter_autocast(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> Any:
    return lowering.autocast.enter(*args, **kwargs)


def _exit_autocast(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    lowering.autocast.exit()


def _enter_inference_mode(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> bool:
    before = lowering.grad_enabled
    lowering.grad_enabled = before and not args[0]
    return before


def _exit_inference_mode(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    lowering.grad_enabled = args[0]


def _assert_scalar(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    condition, message = args
    if isinstance(condition, SYMBOLIC_TYPES):
        lowering.trace.emit(prims.assert_scalar, (condition, message), {}, None)


def _nothing(lowering: Lowering, args: tuple, kwargs: dict[str, Any]) -> None:
    return None


_SPECIAL_FUNCTIONS: dict[Any, Callable] = {
    torch._C._set_grad_enabled: _set_grad_enabled,
    torch.amp.autocast_mode._enter_autocast: _enter_autocast,
    torch.amp.autocast_mode._exit_autocast: _exit_autocast,
    torch.autograd.grad_mode._enter_inference_mode: _enter_inference_mode,
    torch.autograd.grad_mode._exit_inference_mode: _exit_inference_mode,
    torch.ops.aten._assert_scalar.default: _assert_scalar,
    torch.ops.aten.sym_constrain_range_for_size.default: _nothing,
    torch.ops.aten.sym_constrain_range.default: _nothing,
    torch._check: _nothing,
    torch._C._log_api_usage_once: _nothing,
    torch._check_is_size: _nothing,
}


def _activation_checkpoint(lowering: Lowering, node: fx.Node, args: tuple, kwargs: dict[str, Any], example: Any) -> Any:
    """The region's nodes, all of them to be recomputed in backward."""
    body, *inputs = args
    with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)):
        return lowering.run(body.graph, body, inputs)


def _backward_lowering(lookasides: Lookasides, trace: TraceCtx, ids: StorageIds) -> Lowering:
    lowering = Lowering(trace, grad_enabled=False, lookasides=lookasides)
    lowering.ids = ids
    return lowering


def _dirty_outputs(outs: list, inputs: list, nodes: list) -> frozenset:
    """Positions of outputs that are inputs which the function's forward writes (`ctx.mark_dirty`)."""
    written = {w.layout.storage for node in nodes for w in node.written if w.layout is not None}
    passed = {a.layout.storage for a in inputs if isinstance(a, TensorProxy) and a.layout is not None}
    return frozenset(
        n
        for n, o in enumerate(outs)
        if isinstance(o, TensorProxy) and o.layout is not None and o.layout.storage in written & passed
    )


def _custom_function(lowering: Lowering, node: fx.Node, args: tuple, kwargs: dict[str, Any], example: Any) -> Any:
    """The forward's nodes, and one node that says what its backward is."""
    forward, backward, *inputs = args
    grad_enabled = lowering.grad_enabled
    start = len(lowering.trace.bound_symbols)
    outs, saved = lowering.run(forward.graph, forward, inputs)
    lowering.grad_enabled = grad_enabled
    single = not isinstance(outs, tuple | list)
    flat = [outs] if single else list(outs)
    body = BackwardBody(
        backward,
        tuple(saved),
        frozenset(kwargs.get("non_differentiable_idx") or ()),
        kwargs.get("saved_for_backward_idx"),
        tuple(kwargs.get("args_tensor_mask") or ()),
        _dirty_outputs(flat, inputs, lowering.trace.bound_symbols[start:]),
        lowering.ids,
        node.meta.get(BACKWARD_VARIANTS),
        lowering=partial(_backward_lowering, lowering.lookasides),
    )
    result = body.emit(lowering, flat, inputs, example)
    return result[0] if single else tuple(result)


def _fresh_example(example: Any) -> Any:
    return example if isinstance(example, FakeTensor) else None


_HIGHER_ORDER: dict[str, Callable] = {
    "tag_activation_checkpoint": _activation_checkpoint,
    "autograd_function_apply": _custom_function,
}
