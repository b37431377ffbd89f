"""Plugins by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.baseutils import did_you_mean
from thunder.core.errors import ThunderValueError
from thunder.plugins.reduce_overhead import ReduceOverhead

names_to_plugins: dict[str, Callable[[], Any]] = {"reduce-overhead": ReduceOverhead}


def get_plugin_names() -> list[str]:
    """The names that `thunder.compile(plugins=...)` takes."""
    return list(names_to_plugins)


def get_plugin(name: str) -> Callable[[], Any]:
    """The class of the plugin of this name. Raises ThunderValueError, with the nearest name, if there is none."""
    if name not in names_to_plugins:
        known = ", ".join(get_plugin_names()) or "none"
        hint = did_you_mean(name, get_plugin_names())
        raise ThunderValueError(f"unknown plugin {name!r}{hint or '.'} Known plugins: {known}")
    return names_to_plugins[name]


def register_plugin(name: str, cls: Callable[[], Any]) -> None:
    """Makes a plugin known by a name. `cls` is called without arguments."""
    names_to_plugins[name] = cls
