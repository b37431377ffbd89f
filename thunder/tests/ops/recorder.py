"""Capture without Dynamo, for breadth: the calls that a function makes on fake tensors, as an fx graph.

What follows capture (lowering, functionalization, gradient, split, code) is what follows Dynamo's too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
    compute_unbacked_bindings,
)
from torch.overrides import TorchFunctionMode

from thunder.core.dynamo_compat import capture_setting
from thunder.core.errors import DataDependentControlFlowError
from thunder.core.pytree import tree_flatten, tree_iter, tree_map, tree_unflatten
from thunder.extend.registry import resolve_executors
from thunder.frontend.capture import CaptureSettings, CompiledGraph
from thunder.torch.mutation import METADATA_METHODS
from thunder.torch.value_reading import stand_in_for

# What Dynamo too gives up on: the capture of such a call ends in this class of ours under `thunder.jit`.
_DEPENDS_ON_DATA = (
    DynamicOutputShapeException, DataDependentOutputException, GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)  # fmt: skip
_METADATA = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.is_contiguous,
    torch.Tensor.storage_offset, torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.Tensor.is_complex,
    torch.Tensor.is_floating_point, torch.Tensor.is_conj, torch.is_conj,
}  # fmt: skip


def _has_tensor(x: Any) -> bool:
    return any(isinstance(o, torch.Tensor) for o in tree_iter([x]))


class _Recorder(TorchFunctionMode):
    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []

    def placeholder(self, name: str, fake: Any) -> None:
        node = self.graph.placeholder(name)
        node.meta["example_value"] = fake
        self._enter(node, fake)

    def _enter(self, node: fx.Node, value: Any) -> None:
        """Gives every tensor in a result a node of its own."""
        if isinstance(value, torch.Tensor):
            self._nodes.setdefault(id(value), node)
            self._alive.append(value)
        elif isinstance(value, tuple | list) and _has_tensor(value):
            for n, item in enumerate(value):
                if _has_tensor(item):
                    getitem = self.graph.call_function(operator.getitem, (node, n))
                    getitem.meta["example_value"] = item
                    self._enter(getitem, item)

    def argument(self, x: Any) -> Any:
        """What stands for `x` in the graph; real tensors that the function holds are attributes of the module."""
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self._nodes:
            name = f"constant_{len(self.attributes)}"
            self.attributes[name] = x
            node = self.graph.create_node("get_attr", name)
            node.meta["example_value"] = x
            self._enter(node, x)
        return self._nodes[id(x)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in METADATA_METHODS:
            self._keep_metadata(args[0])
        result = stand_in_for(func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func in _METADATA:
            return result
        if name == "__get__":
            if isinstance(result, torch.Tensor) and id(result) not in self._nodes:
                self._add("call_function", getattr, (args[0], func.__self__.__name__), {}, result)
        elif getattr(torch.Tensor, name, None) is func:
            self._add("call_method", name, args, kwargs, result)
        else:
            self._add("call_function", func, args, kwargs, result)
        return result

    def _keep_metadata(self, t: torch.Tensor) -> None:
        """Before the shape of a fake tensor changes: the node that made it keeps a tensor of the present shape."""
        node = self._nodes.get(id(t))
        if node is not None and node.op != "placeholder":
            with torch.no_grad(), torch._C.DisableTorchFunction():
                node.meta["example_value"] = torch.ops.aten.alias.default(t).requires_grad_(t.requires_grad)

    def _add(self, kind: str, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")
        name = name if name.isidentifier() else "call"
        arguments = tree_map(self.argument, tuple(args)), tree_map(self.argument, kwargs)
        node = self.graph.create_node(kind, target, *arguments, name=name)
        node.meta["example_value"] = result
        bindings = compute_unbacked_bindings(self.mode.shape_env, result)
        if bindings:
            node.meta["unbacked_bindings"] = bindings
        self._enter(node, result)

    def module(self) -> torch.nn.Module:
        """The graph without the Python code that fx makes of one: not every argument has a literal form."""
        module = torch.nn.Module()
        for name, value in {"graph": self.graph, **self.attributes}.items():
            object.__setattr__(module, name, value)
        return module


def compile_call(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[CompiledGraph, Any]:
    """`fn` compiled for arguments like these; called with the tensors among them, it gives the leaves of the result.

    Returns the compiled graph and the structure of `[result]`.
    """
    flat, spec = tree_flatten((args, kwargs))
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    recorder = _Recorder(mode)
    fakes: dict[int, Any] = {}
    values = list(flat)
    inputs = []
    for n, v in enumerate(flat):
        if isinstance(v, torch.Tensor):
            if id(v) not in fakes:
                fakes[id(v)] = mode.from_tensor(v, static_shapes=True)
                recorder.placeholder(f"l_x{n}_", fakes[id(v)])
                inputs.append(v)
            values[n] = fakes[id(v)]
    fake_args, fake_kwargs = tree_unflatten(values, spec)
    try:
        with mode, recorder, capture_setting(stand_in_for):
            result = fn(*fake_args, **fake_kwargs)
    except _DEPENDS_ON_DATA as e:
        raise DataDependentControlFlowError(str(e)) from e
    outs, out_spec = tree_flatten([result])
    recorder.graph.output(tuple(recorder.argument(o) for o in outs))
    with tracing(TracingContext(mode)):
        return CompiledGraph(recorder.module(), CaptureSettings(executors=resolve_executors(None)), inputs), out_spec


def capture(fn: Callable) -> Callable:
    """`fn`, compiled anew at each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Some operations draw random numbers even when run on fake tensors; Dynamo, too, captures on the side.
        with torch.random.fork_rng(devices=()):
            graph, spec = compile_call(fn, args, kwargs)
        tensors = {id(v): v for v in tree_iter((args, kwargs)) if isinstance(v, torch.Tensor)}
        return tree_unflatten(list(graph(*tensors.values())), spec)[0]

    return call
