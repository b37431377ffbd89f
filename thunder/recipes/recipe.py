"""Recipes and plugins: what to compile a model with, chosen in one place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import torch

from thunder.core.baseutils import did_you_mean
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.transform_base import Transform
from thunder.dynamo import ThunderCompiler
from thunder.extend.executor import Executor, OperatorExecutor
from thunder.extend.registry import get_default_executors
from thunder.jit import jit


@contextmanager
def pretty_warnings() -> Iterator[None]:
    """Warnings inside are shown as one line, without the line of source code."""
    original = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = original


@dataclass(frozen=True, eq=False)
class Lookaside:
    """Where the program calls `fn`, `replace_with` is called, as one operation; it takes and gives what `fn` does."""

    fn: Callable
    replace_with: Callable


class PluginPolicy(Enum):
    """Whether what a plugin adds comes before or after what the recipe has."""

    PRE = "pre"
    POST = "post"


class Plugin:
    """An addition to a recipe. Override what it adds; None adds nothing."""

    policy: PluginPolicy = PluginPolicy.PRE

    def setup_lookasides(self) -> list[Lookaside] | None:
        return None

    def setup_transforms(self) -> list[Transform] | None:
        return None

    def setup_executors(self) -> list[Executor] | None:
        return None


class Interpreter(Enum):
    """What captures the program: `thunder.jit`, or torch.compile with thunder as its backend."""

    THUNDER_JIT = "thunder.jit"
    THUNDER_FX = "thunder.fx"


def resolve_interpreter(interpreter: Interpreter | str) -> Interpreter:
    """A member, or its value, as a member. Raises ThunderValueError for any other."""
    choices = {member.value: member for member in Interpreter}
    if isinstance(interpreter, Interpreter):
        return interpreter
    if interpreter not in choices:
        hint = did_you_mean(interpreter, choices) if isinstance(interpreter, str) else ""
        allowed = ", ".join(f'"{choice}"' for choice in choices)
        raise ThunderValueError(f"unknown interpreter {interpreter!r}{hint or ';'} allowed are {allowed}")
    return choices[interpreter]


class Recipe:
    """How to compile a model. Override the `setup_` methods.

    Attributes:
        lookasides, transforms, executors: in use, plugins' included, once the recipe is applied.
    """

    _registered: ClassVar[dict[str, type[Recipe]]] = {}

    def __init__(
        self,
        plugins: Plugin | Sequence[Plugin] | None = None,
        interpreter: Interpreter | str = Interpreter.THUNDER_JIT,
    ):
        self.lookasides: list[Lookaside] = []
        self.transforms: list[Transform] = []
        self.executors: list[Executor] = []
        self.plugins: list[Plugin] = []
        self.interpreter = resolve_interpreter(interpreter)
        if plugins is not None:
            self.add_plugins([plugins] if isinstance(plugins, Plugin) else list(plugins))

    def add_plugins(self, plugins: Sequence[Plugin]) -> None:
        """Adds plugins after those that are there."""
        for plugin in plugins:
            if not isinstance(plugin, Plugin):
                kind = type(plugin).__name__
                raise ThunderTypeError(f"a plugin is an instance of Plugin, not {plugin!r} of type {kind}")
            self.plugins.append(plugin)

    @classmethod
    def validate(cls, model: Any) -> None:
        """Raises ThunderValueError if the recipe is not made for this model."""

    def setup_config(self) -> dict[str, Any]:
        """Keyword arguments for `thunder.jit`."""
        return {}

    def setup_lookasides(self) -> list[Lookaside] | None:
        return None

    def setup_transforms(self) -> list[Transform] | None:
        return None

    def setup_executors(self) -> list[Executor] | None:
        """Executors, first one asked first; None for the default ones."""
        return list(get_default_executors())

    @classmethod
    def register(cls, key: str) -> Callable[[type[Recipe]], type[Recipe]]:
        """A class decorator: makes a recipe the automatic one for models whose class path starts with `key`.

        A class path is that of the module and the class, `package.module.Model`; parts match as a whole; "" fits all.
        """

        def decorate(recipe: type[Recipe]) -> type[Recipe]:
            Recipe._registered[key] = recipe
            return recipe

        return decorate

    @classmethod
    def get_for_model(cls, model: Any) -> Recipe:
        """The recipe registered for the longest part of the path of the model's class.

        Raises: ThunderValueError if there is none.
        """
        kind = type(model)
        parts = f"{kind.__module__}.{kind.__qualname__}".split(".")
        for n in range(len(parts), -1, -1):
            found = Recipe._registered.get(".".join(parts[:n]))
            if found is not None:
                return found()
        raise ThunderValueError(f"no recipe is registered for {kind.__module__}.{kind.__qualname__}")

    def _collect(self, what: str) -> list[Any]:
        """What plugins and recipe set up, in order."""
        before = [p for p in self.plugins if p.policy is PluginPolicy.PRE]
        after = [p for p in self.plugins if p.policy is PluginPolicy.POST]
        return [item for source in (*before, self, *after) for item in getattr(source, f"setup_{what}")() or ()]

    def apply(self, model: Callable) -> Callable:
        """The compiled model.

        Raises: ThunderValueError if the recipe is not made for this model.
        """
        self.validate(model)
        self.lookasides = self._collect("lookasides")
        self.transforms = self._collect("transforms")
        self.executors = self._collect("executors")
        executors = [*_lookaside_executors(self.lookasides), *dict.fromkeys(self.executors)]
        options = {"executors": executors, "transforms": self.transforms, **self.setup_config()}
        if self.interpreter is Interpreter.THUNDER_FX:
            return torch.compile(model, backend=ThunderCompiler(**options))
        return jit(model, **options)


def _lookaside_executors(lookasides: Sequence[Lookaside]) -> list[Executor]:
    """An executor that replaces the functions of all lookasides; the first of two for one function counts."""
    if not lookasides:
        return []
    executor = OperatorExecutor("lookasides")
    seen: set[Any] = set()
    for n, lookaside in enumerate(lookasides):
        if lookaside.fn not in seen:
            seen.add(lookaside.fn)
            name = f"{getattr(lookaside.replace_with, '__name__', 'lookaside').strip('<>')}_{n}"
            new = lookaside.replace_with
            executor.register_operator(name, like=new, fn=new, replaces=lookaside.fn)
    return [executor]
