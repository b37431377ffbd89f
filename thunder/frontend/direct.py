"""Direct capture: the function runs once on fake tensors, and every torch call that it makes is written down as fx.

For programs that Dynamo refuses, such as `autograd_function_apply` called by hand with Python functions. What follows is
the same as for a graph from Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from thunder.core.errors import UnsupportedOpError
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.sizes import hashable_leaf
from thunder.core.torch_compat import FakeTensorMode
from thunder.frontend.capture import CaptureSettings, CompiledGraph

_BY_HAND = "autograd_function_apply"


def needs_direct_capture(e: BaseException) -> bool:
    """Whether Dynamo failed on a higher-order operator called by hand."""
    return "HigherOrderOperator" in str(getattr(e, "gb_type", "")) and _BY_HAND in str(e)


class _Recorder(TorchFunctionMode):
    """Writes torch calls into an fx graph, with their fake results."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []

    def placeholder(self, name: str, fake: Any) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["example_value"] = fake
        self._enter(node, fake)
        return node

    def _enter(self, node: fx.Node, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.nodes.setdefault(id(value), node)
            self._alive.append(value)

    def argument(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in self.nodes:
                name = f"_constant_{len(self.attributes)}"
                self.attributes[name] = x
                node = self.graph.create_node("get_attr", name)
                node.meta["example_value"] = x
                self._enter(node, x)
            return self.nodes[id(x)]
        return x

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__" or func in _PLAIN:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "call").strip("_") or "call"
        target, kind = func, "call_function"
        if getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func:
            target, kind = func.__name__, "call_method"
        node = self.graph.create_node(kind, target, tree_map(self.argument, tuple(args)), tree_map(self.argument, kwargs), name=name)
        node.meta["example_value"] = result
        flat, _ = tree_flatten([result])
        if isinstance(result, torch.Tensor):
            self._enter(node, result)
        else:
            for n, value in enumerate(flat):
                if isinstance(value, torch.Tensor):
                    item = self.graph.call_function(_operator_getitem, (node, n))
                    item.meta["example_value"] = value
                    self._enter(item, value)
        return result


_PLAIN: set[Any] = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.is_contiguous, torch.is_tensor}
_operator_getitem = __import__("operator").getitem


def _trace_body(fn: Callable, inputs: list[Any], recorder_names: list[str]) -> tuple[fx.GraphModule, Any]:
    """A Python function of tensors as a graph module, and its fake result."""
    recorder = _Recorder()
    for name, value in zip(recorder_names, inputs, strict=True):
        recorder.placeholder(name, value)
    with recorder:
        result = fn(*inputs)
    recorder.graph.output(tree_map(recorder.argument, result))
    return fx.GraphModule(recorder.attributes, recorder.graph), result


def _apply_by_hand(recorder: _Recorder, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`autograd_function_apply(fwd, bwd, *args)` with Python functions: their graphs, as Dynamo would give them."""
    forward, backward, *inputs = args
    tensors = [a.detach() if isinstance(a, torch.Tensor) else a for a in inputs]
    with _paused(recorder), torch.no_grad():
        names = [f"arg_{n}" for n in range(len(inputs))]
        forward_gm, (outs, saved) = _trace_body(lambda *a: forward(None, *a), tensors, names)
        outs_list = [outs] if isinstance(outs, torch.Tensor) else list(outs)
        grads = [torch.empty_like(o) for o in outs_list]
        names = [f"grad_{n}" for n in range(len(grads))] + [f"saved_{n}" for n in range(len(saved))]
        backward_gm, _ = _trace_body(lambda *a: backward(None, *a), [*grads, *saved], names)
    skip = set(kwargs.get("non_differentiable_idx") or ())
    tracked = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in inputs)
    results = []
    for n, o in enumerate(outs_list):
        fresh = torch.empty_like(o)
        floating = fresh.dtype.is_floating_point or fresh.dtype.is_complex
        results.append(fresh.requires_grad_() if tracked and n not in skip and floating else fresh)
    result = results[0] if isinstance(outs, torch.Tensor) else tuple(results)
    _record_apply(recorder, forward_gm, backward_gm, inputs, kwargs, result)
    return result


def _record_apply(recorder: _Recorder, forward: Any, backward: Any, inputs: list, kwargs: dict, result: Any) -> None:
    names = []
    for kind, body in (("fwd_body", forward), ("bwd_body", backward)):
        name = f"{kind}_{len(recorder.attributes)}"
        recorder.attributes[name] = body
        names.append(recorder.graph.create_node("get_attr", name))
    target = torch.ops.higher_order.autograd_function_apply
    node = recorder.graph.call_function(target, (*names, *tree_map(recorder.argument, tuple(inputs))), kwargs)
    node.meta["example_value"] = result
    if isinstance(result, torch.Tensor):
        recorder._enter(node, result)
        return
    for n, value in enumerate(result):
        item = recorder.graph.call_function(_operator_getitem, (node, n))
        item.meta["example_value"] = value
        recorder._enter(item, value)


class _paused:
    """The recorder takes no notice inside."""

    def __init__(self, recorder: _Recorder):
        self._disabled = torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._disabled.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._disabled.__exit__(*exc)


class DirectCapture:
    """Compiles a function by running it on fake tensors; one program per structure, metadata and values of its arguments."""

    def __init__(self, fn: Callable, settings: CaptureSettings):
        self.fn, self.settings = fn, settings
        self.graphs: dict[Any, tuple[CompiledGraph, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        key = (spec, tuple(_guard_of(v) for v in flat), torch.is_grad_enabled(), torch.get_default_dtype())
        if key not in self.graphs:
            self.graphs[key] = self._capture(flat, spec)
        graph, out_spec = self.graphs[key]
        results = graph(*(v for v in flat if isinstance(v, torch.Tensor)))
        return tree_unflatten(list(results), out_spec)

    def _capture(self, flat: list[Any], spec: Any) -> tuple[CompiledGraph, Any]:
        recorder = _Recorder()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        values: list[Any] = []
        for n, v in enumerate(flat):
            if isinstance(v, torch.Tensor):
                v = mode.from_tensor(v)
                recorder.placeholder(f"l_x{n}_", v)
            values.append(v)
        args, kwargs = tree_unflatten(values, spec)
        with mode, _ByHand(recorder), recorder:
            result = self.fn(*args, **kwargs)
        outs, out_spec = tree_flatten(result)
        recorder.graph.output(tuple(tree_map(recorder.argument, list(outs))))
        gm = fx.GraphModule(recorder.attributes, recorder.graph)
        return CompiledGraph(gm, self.settings, [v for v in flat if isinstance(v, torch.Tensor)]), out_spec


class _ByHand:
    """Diverts `torch.ops.higher_order.autograd_function_apply` to the recorder while a function is captured."""

    def __init__(self, recorder: _Recorder):
        self.recorder = recorder
        self.target = type(torch.ops.higher_order.autograd_function_apply)

    def __enter__(self) -> None:
        recorder = self.recorder
        self.original = self.target.__call__
        self.target.__call__ = lambda op, *args, **kwargs: _apply_by_hand(recorder, args, kwargs)  # type: ignore

    def __exit__(self, *exc: Any) -> None:
        self.target.__call__ = self.original  # type: ignore[method-assign]


def _guard_of(v: Any) -> Any:
    if isinstance(v, torch.Tensor):
        return (tuple(v.shape), v.dtype, v.device, v.stride(), v.requires_grad)
    try:
        return hashable_leaf(v)
    except TypeError as e:
        raise UnsupportedOpError(f"an argument of type {type(v).__name__} cannot be guarded") from e
