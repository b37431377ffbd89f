"""Plugins: additions to recipes, by name."""

from thunder.plugins.registry import get_plugin, get_plugin_names, names_to_plugins, register_plugin

__all__ = ["get_plugin", "get_plugin_names", "names_to_plugins", "register_plugin"]
