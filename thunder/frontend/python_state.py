"""What a function reads besides plain arguments: closures, globals, objects and their attributes, as a key.

Direct capture runs a function once and guards nothing inside; this key stands in for the guards. Two calls with equal
keys find the same objects and the same plain values wherever the walk comes to.
"""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.sizes import hashable_leaf
from thunder.frontend.autocasting import AutocastState

PLAIN_VALUES = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.memory_format,
    torch.layout,
)  # fmt: skip
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_MISSING = object()
_FUNCTION_PARTS = ("forward", "backward", "setup_context")


class _Walk:
    """Collects the key, and the objects whose identity it names, so that they can be kept alive."""

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.alive: list[Any] = []
        self.named: list[tuple[str, Any]] = []
        self._seen: dict[int, int] = {}

    def visit(self, x: Any) -> None:
        """Adds what can be known about one value."""
        if isinstance(x, PLAIN_VALUES):
            self.key.append(hashable_leaf(x))
            return
        if id(x) in self._seen:
            self.key.append(("again", self._seen[id(x)]))
            return
        self._seen[id(x)] = len(self._seen)
        self.alive.append(x)
        self.key.append(id(x))
        if isinstance(x, torch.Tensor):
            self._tensor(x)
        elif isinstance(x, dict | list | tuple | set | frozenset):
            self._container(x)
        elif isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, types.MethodType):
            self._all((x.__self__, x.__func__))
        elif isinstance(x, functools.partial):
            self._all((x.func, x.args, x.keywords))
        elif isinstance(x, staticmethod | classmethod):
            self.visit(x.__func__)
        elif isinstance(x, type):
            if issubclass(x, torch.autograd.Function):
                self._all(vars(x)[name] for name in _FUNCTION_PARTS if name in vars(x))
        elif not isinstance(x, types.ModuleType | types.BuiltinFunctionType):
            self._object(x)

    def _tensor(self, x: torch.Tensor) -> None:
        strides = x.stride() if x.layout is torch.strided else None
        self.key.append((tuple(x.shape), x.dtype, x.device, strides, x.requires_grad, x.is_leaf))

    def _container(self, x: Any) -> None:
        self.key.append(len(x))
        self._all((part for item in x.items() for part in item) if isinstance(x, dict) else x)

    def _all(self, values: Any) -> None:
        for v in values:
            self.visit(v)

    def _object(self, x: Any) -> None:
        """An instance: its attributes; a torch module also runs its class's `forward`."""
        attributes = getattr(x, "__dict__", None)
        if isinstance(attributes, dict):
            self.visit(attributes)
        if isinstance(x, torch.nn.Module):
            self.visit(type(x).forward)

    def _function(self, fn: types.FunctionType) -> None:
        """A Python function: its closure, its defaults, and the globals that its code names."""
        if fn.__code__.co_filename.startswith((_TORCH, _LIBRARY)):
            return
        self.visit(fn.__defaults__)
        self.visit(fn.__kwdefaults__)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self._named(name, cell.cell_contents)
            except ValueError:  # not filled yet
                self.key.append("empty")
        for code in _codes(fn.__code__):
            for name in _globals_of(code):
                value = fn.__globals__.get(name, _MISSING)
                if value is _MISSING:
                    continue
                self._named(name, value)
                if isinstance(value, types.ModuleType) and not (value.__name__ + ".").startswith("torch."):
                    for n in code.co_names:
                        if n in vars(value):
                            self._named(f"{name}.{n}", vars(value)[n])

    def _named(self, name: str, value: Any) -> None:
        self.named.append((name, value))
        self.visit(value)


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code reads. `co_names` has the names of attributes, too."""
    read = ("LOAD_GLOBAL", "LOAD_NAME")
    return tuple(dict.fromkeys(i.argval for i in dis.get_instructions(code) if i.opname in read))


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """A function's code and that of the functions defined inside."""
    return [code, *(c for k in code.co_consts if isinstance(k, types.CodeType) for c in _codes(k))]


def python_state(fn: Any, objects: Sequence[Any] = ()) -> tuple[tuple, list[Any], list[tuple[str, Any]]]:
    """(key, objects whose identity is part of it, globals and closures by name) of what `fn` reads besides tensors and
    plain values among its arguments; `objects` are the others.

    O(objects reached): modules, their attributes and containers in them, functions and their globals. Not reached: what
    lies behind properties, C objects and the internals of torch and of the standard library.
    """
    walk = _Walk()
    walk.visit(fn)
    for x in objects:
        walk.visit(x)
    return tuple(walk.key), walk.alive, walk.named


def torch_state() -> tuple:
    """The modes of torch that change what a program is."""
    autocast = tuple(AutocastState.from_surroundings().ambient.items())
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    return (*modes, torch.get_default_device(), torch.are_deterministic_algorithms_enabled(), autocast)
