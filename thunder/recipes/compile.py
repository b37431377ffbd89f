"""`thunder.compile`: a model compiled by a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.baseutils import did_you_mean
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.plugins.registry import get_plugin
from thunder.recipes.base import BaseRecipe
from thunder.recipes.hf_transformers import HFTransformers
from thunder.recipes.recipe import Plugin, Recipe

AUTO = "auto"

names_to_recipes: dict[str, type[Recipe]] = {"default": BaseRecipe, "hf-transformers": HFTransformers}


def get_recipes() -> list[str]:
    """The names that `thunder.compile(recipe=...)` takes, beside "auto"."""
    return list(names_to_recipes)


def get_recipe_class(name: str) -> type[Recipe]:
    """The recipe of this name. Raises ThunderValueError, with the nearest name, if there is none."""
    if name not in names_to_recipes:
        known = ", ".join([AUTO, *get_recipes()])
        hint = did_you_mean(name, get_recipes())
        raise ThunderValueError(f"unknown recipe {name!r}{hint or '.'} Known recipes: {known}")
    return names_to_recipes[name]


def register_recipe(name: str, cls: type[Recipe]) -> None:
    """Makes a recipe known by a name. Raises ThunderValueError for "auto"."""
    if name == AUTO:
        raise ThunderValueError(f'the name "{AUTO}" stands for the choice by the class of the model')
    names_to_recipes[name] = cls


def _plugin(plugin: Plugin | str) -> Plugin:
    return get_plugin(plugin)() if isinstance(plugin, str) else plugin


def compile(
    fn: Callable,
    recipe: Recipe | str = AUTO,
    plugins: Plugin | str | Sequence[Plugin | str] | None = None,
) -> Callable:
    """Compiles a function or module as a recipe says.

    Args:
        fn: a callable, or an nn.Module, for which the result is a ThunderModule.
        recipe: a recipe or the name of one; "auto" for the one that is registered for the class of the model.
        plugins: additions to the recipe, or their names.

    Raises:
        TypeError: `fn` is not callable, or an argument is of the wrong kind.
        ValueError: a recipe or plugin is not known, or the recipe is not made for this model.
    """
    if not callable(fn):
        raise ThunderTypeError(f"thunder.compile takes a function or a module, not {fn!r} of type {type(fn).__name__}")
    if isinstance(recipe, str):
        recipe = Recipe.get_for_model(fn) if recipe == AUTO else get_recipe_class(recipe)()
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise ThunderTypeError(f"a recipe is a name or an instance of Recipe, not {recipe!r} of type {kind}")
    given: list[Any] = [plugins] if isinstance(plugins, Plugin | str) else list(plugins or ())
    recipe.add_plugins([_plugin(p) for p in given])
    return recipe.apply(fn)
