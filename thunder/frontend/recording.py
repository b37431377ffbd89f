"""Writes the torch calls that Python code makes down as an fx graph, while the code runs on fake tensors."""

from __future__ import annotations

import linecache
import operator
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from thunder.core.errors import UnsupportedOpError
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.torch_compat import FakeTensor
from thunder.torch.mutation import METADATA_METHODS
from thunder.torch.value_reading import stand_in_for

_TORCH_DIR = os.path.dirname(torch.__file__)
_THUNDER_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN_TESTS = os.path.join(_THUNDER_DIR, "tests")

# Calls that read metadata only: nothing to write down.
_PLAIN: set[Any] = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.is_contiguous,
    torch.Tensor.storage_offset, torch.Tensor.untyped_storage, torch.Tensor.data_ptr, torch.is_tensor,
}  # fmt: skip


def user_line() -> str | None:
    """The innermost line outside of torch and thunder that is running, in the form of a stack trace."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = name.startswith((_TORCH_DIR, _THUNDER_DIR)) and not name.startswith(_OWN_TESTS)
        if not inside and not name.startswith("<frozen"):
            code = linecache.getline(name, frame.f_lineno).strip()
            return f'File "{name}", line {frame.f_lineno}, in {frame.f_code.co_name}\n    {code}'
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Recorder(TorchFunctionMode):
    """Writes torch calls into an fx graph, each with its fake result.

    parent: the recorder of the surrounding graph. A tensor that only the parent knows becomes a further input of this
    graph, kept in `lifted` in order.
    outer: for a graph without a parent, gives the fake tensor for a real one that the code has got hold of.
    """

    def __init__(self, parent: Recorder | None = None, outer: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.parent, self.outer = parent, outer
        self.lifted: list[Any] = []
        self.is_paused = False
        self._nodes: dict[int, fx.Node] = {}
        self._inputs: set[int] = set()
        self._alive: list[Any] = []

    # Values

    def placeholder(self, name: str, fake: Any) -> fx.Node:
        """An input of the graph."""
        last = next((n for n in reversed(self.graph.nodes) if n.op == "placeholder"), None)
        first = next(iter(self.graph.nodes), None)
        where = self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(first)
        with where:
            node = self.graph.placeholder(name)
        node.meta["example_value"] = fake
        self._inputs.add(id(fake))
        if isinstance(fake, torch.Tensor) and not self.knows(fake):
            self.enter(node, fake)
        return node

    def enter(self, node: fx.Node, value: Any) -> None:
        """From here on `node` stands for the tensor."""
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)

    def knows(self, t: torch.Tensor) -> bool:
        """Whether the tensor is a value of this graph."""
        return id(t) in self._nodes

    def is_known_above(self, t: torch.Tensor) -> bool:
        """Whether the tensor is a value of this graph or of one around it."""
        return self.knows(t) or (self.parent is not None and self.parent.is_known_above(t))

    def argument(self, x: Any) -> Any:
        """What stands for `x` in the graph."""
        if not isinstance(x, torch.Tensor):
            return x
        x = self.fake(x)
        if not self.knows(x):
            if self.parent is not None and self.parent.is_known_above(x):
                self._lift(x)
            else:
                raise UnsupportedOpError("a tensor that was made while the program was not being recorded")
        return self._nodes[id(x)]

    def _lift(self, x: torch.Tensor) -> None:
        self.placeholder(f"lifted_{len(self.lifted)}", x)
        self.lifted.append(x)

    def lift(self, tensors: list[torch.Tensor]) -> None:
        """Makes these the lifted tensors, in this order; those that there are so far are among them."""
        self.lifted = []
        for t in tensors:
            old = self._nodes.pop(id(t), None)
            self._lift(t)
            if old is not None:
                old.replace_all_uses_with(self._nodes[id(t)])
                self.graph.erase_node(old)

    def fake(self, x: Any) -> Any:
        """The fake tensor for a real one."""
        if not isinstance(x, torch.Tensor) or isinstance(x, FakeTensor):
            return x
        recorder = self
        while recorder.parent is not None:
            recorder = recorder.parent
        if recorder.outer is None:
            raise UnsupportedOpError("a tensor from outside of the recorded program")
        with self.paused():
            return recorder.outer(x)

    # Calls

    @contextmanager
    def paused(self) -> Any:
        """Nothing is written down inside."""
        before, self.is_paused = self.is_paused, True
        outside = self.parent.paused() if self.parent is not None else None
        if outside is not None:
            outside.__enter__()
        try:
            yield
        finally:
            self.is_paused = before
            if outside is not None:
                outside.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused or func in _PLAIN:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__set__":
            raise UnsupportedOpError(f"assignment to Tensor.{func.__self__.__name__}")
        args, kwargs = tree_map(self.fake, tuple(args)), tree_map(self.fake, kwargs)
        if func in METADATA_METHODS:
            self._check_metadata_call(name, args)
            self.keep_metadata(args[0])
        result = stand_in_for(func)(*args, **kwargs)
        has_tensor = any(isinstance(o, torch.Tensor) for o in tree_flatten([result])[0])
        if not has_tensor and (result is not None or name == "__get__"):
            return result
        if name == "__get__":
            attribute = func.__self__.__name__
            if attribute == "data":
                self.add("call_method", "detach", (args[0],), {}, result)
            elif not self.is_known_above(result):
                self.add("call_function", getattr, (args[0], attribute), {}, result)
        elif getattr(torch.Tensor, name, None) is func:
            self.add("call_method", name, args, kwargs, result)
        else:
            self.add("call_function", func, args, kwargs, result)
        return result

    def _check_metadata_call(self, name: str, args: tuple) -> None:
        if name == "requires_grad_" and args[0].requires_grad != (args[1] if len(args) > 1 else True):
            raise UnsupportedOpError("requires_grad_ on a tensor of the traced program")
        if name != "requires_grad_" and id(args[0]) in self._inputs:
            raise UnsupportedOpError(f"Tensor.{name} changes the shape or strides of an input of the traced program")

    def values(self) -> list[torch.Tensor]:
        """The tensors of this graph and of those around it."""
        return [*self._alive, *(self.parent.values() if self.parent is not None else ())]

    def keep_metadata(self, t: torch.Tensor) -> None:
        """Before the metadata of a fake tensor change: what was written down about it so far keeps the present ones."""
        with self.paused(), torch.no_grad():
            kept = torch.ops.aten.alias.default(t).requires_grad_(t.requires_grad)
        recorder: Recorder | None = self
        while recorder is not None:
            _replace_example(recorder.graph, recorder.attributes, t, kept)
            recorder = recorder.parent
        self._alive.append(kept)

    def add(self, kind: str, target: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> fx.Node:
        """Writes one call down."""
        node = self.graph.create_node(
            kind, target, tree_map(self.argument, args), tree_map(self.argument, kwargs), name=_short_name(target)
        )
        node.meta["example_value"] = result
        node.meta["stack_trace"] = user_line()
        if isinstance(result, torch.Tensor):
            if not self.knows(result):
                self.enter(node, result)
            return node
        self._enter_items(node, result, renew=False)
        return node

    def _enter_items(self, node: fx.Node, result: Any, renew: bool) -> None:
        """Gives each tensor of a result that is a tuple or list its own node."""
        if not isinstance(result, tuple | list):
            return
        for n, value in enumerate(result):
            if not isinstance(value, torch.Tensor | tuple | list):
                continue
            item = self.graph.call_function(operator.getitem, (node, n))
            item.meta["example_value"] = value
            if not isinstance(value, torch.Tensor):
                self._enter_items(item, value, renew)
            elif renew or not self.knows(value):
                self.enter(item, value)

    def set_grad_enabled(self, enabled: bool) -> None:
        """Writes down that autograd is switched on or off, without switching it."""
        self.graph.call_function(torch._C._set_grad_enabled, (enabled,))

    def call_bodies(
        self, target: Any, bodies: dict[str, Any], args: tuple, kwargs: dict[str, Any], result: Any
    ) -> fx.Node:
        """Writes down a higher-order operator's call; `bodies`: its inner graphs. Its results replace known values."""
        names = []
        for kind, body in bodies.items():
            name = f"{kind}_{len(self.attributes)}"
            self.attributes[name] = body
            names.append(self.graph.create_node("get_attr", name))
        node = self.graph.call_function(target, (*names, *tree_map(self.argument, args)), kwargs)
        node.meta["example_value"] = result
        node.meta["stack_trace"] = user_line()
        if isinstance(result, torch.Tensor):
            self.enter(node, result)
        else:
            self._enter_items(node, result, renew=True)
        return node

    def module(self, result: Any) -> fx.GraphModule:
        """The graph, which returns `result`."""
        self.graph.output(tree_map(self.argument, result))
        return fx.GraphModule(self.attributes, self.graph)


def _replace_example(graph: fx.Graph, attributes: dict[str, Any], old: torch.Tensor, new: torch.Tensor) -> None:
    """In all nodes of a graph and of the graphs inside it."""
    for node in graph.nodes:
        example = node.meta.get("example_value")
        if any(leaf is old for leaf in tree_flatten([example])[0]):
            node.meta["example_value"] = tree_map(lambda leaf: new if leaf is old else leaf, example)
    for body in attributes.values():
        if isinstance(body, fx.GraphModule):
            _replace_example(body.graph, dict(body.named_children()), old, new)


def _short_name(target: Any) -> str:
    name = target if isinstance(target, str) else getattr(target, "__name__", "call")
    return name.strip("_") or "call"
