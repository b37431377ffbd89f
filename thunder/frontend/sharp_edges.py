"""Values from outside its arguments that a program is compiled for: what `sharp_edges="warn"` and `"error"` report.

Such values are guarded, so no stale program is run; but a program with none of them depends on its arguments alone.
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch

from thunder.core.errors import JITSharpEdgeError, user_location
from thunder.core.options import SHARP_EDGES_OPTIONS
from thunder.frontend.failures import is_user_frame

_PLAIN_VALUES = (
    bool, int, float, complex, str, bytes, slice, type(None), Enum, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
_VALUE_GUARDS = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH", "ID_MATCH", "NONE_MATCH"})
_GLOBAL = re.compile(r"\bG\['(?P<name>[^']*)'\]")
_IMPORT = "__import_"  # how Dynamo calls the module of a function that it has inlined
_ROOT = re.compile(r"\w+")
# What belongs to a function itself, and the keys of a dict, whose values have guards of their own.
_NO_EDGE = re.compile(r"\.__(defaults|kwdefaults|name|qualname)__|^list\(dict\.keys\(")


def _is_library(module: Any) -> bool:
    """Whether a module is torch's, thunder's or the standard library's, whose constants nobody changes."""
    root = module.__name__.partition(".")[0]
    return root in ("torch", "thunder") or root in sys.stdlib_module_names


def sharp_edges_of(guards: Sequence[Any], fn: Callable) -> list[tuple[str, str]]:
    """What Dynamo guards (`GuardFilterEntry`s) says about globals and closures of `fn`: (name, user's line or "") each.

    The module that `thunder.jit` compiles is not outside: `fn` calls it under the name `original`.
    """
    outer = set(getattr(getattr(fn, "__code__", None), "co_freevars", ())) - {"original"}
    libraries = tuple(
        part
        for g in guards
        if g.has_value and isinstance(g.value, types.ModuleType) and _is_library(g.value)
        for part in (f"{g.name}.", f"{g.name}[")
    )
    found: dict[str, str] = {}
    for g in guards:
        is_value = g.guard_type in _VALUE_GUARDS and g.has_value and isinstance(g.value, _PLAIN_VALUES)
        is_member = isinstance(g.value, Enum) and g.name.endswith(f".{g.value.name}")
        if not is_value or is_member or g.name.startswith(libraries) or _NO_EDGE.search(g.name):
            continue
        root = _ROOT.match(g.name)
        if not g.is_global and (root is None or root[0] not in outer):
            continue
        found.setdefault(f"{_GLOBAL.sub(_global_name, g.name)} = {g.value!r}", _line_of(g.orig_guard))
    return list(found.items())


def _global_name(match: re.Match[str]) -> str:
    name = match["name"]
    return name.removeprefix(_IMPORT).replace("_dot_", ".") if name.startswith(_IMPORT) else name


def edges_among(values: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    """The plain values, and containers with any, among what direct capture found in globals and closures."""
    return [(f"{name} = {value!r}", "") for name, value in values if _holds_plain(value)]


def _holds_plain(x: Any) -> bool:
    if isinstance(x, dict):
        return any(_holds_plain(v) for v in x.values())
    if isinstance(x, list | tuple | set | frozenset):
        return any(_holds_plain(v) for v in x)
    return isinstance(x, _PLAIN_VALUES)


def _line_of(guard: Any) -> str:
    frames = [f for f in getattr(guard, "user_stack", None) or () if is_user_frame(f.filename)]
    return user_location((frames[-1].filename, frames[-1].lineno or 0, frames[-1].line)) if frames else ""


def report(edges: Sequence[tuple[str, str]], option: SHARP_EDGES_OPTIONS, name: str) -> None:
    """Warns about what a program named `name` depends on, or raises JITSharpEdgeError, as `option` says."""
    if not edges or option is SHARP_EDGES_OPTIONS.ALLOW:
        return
    lines = "".join(f"\n  {edge}\n{where}" if where else f"\n  {edge}" for edge, where in edges)
    text = f"{name} is compiled for values that it does not get as arguments:{lines}"
    if option is SHARP_EDGES_OPTIONS.ERROR:
        raise JITSharpEdgeError(text)
    warnings.warn(text, stacklevel=2)
