"""Recipes and plugins, under the path that users import."""

from thunder.recipes.recipe import Interpreter as Interpreter
from thunder.recipes.recipe import Lookaside as Lookaside
from thunder.recipes.recipe import Plugin as Plugin
from thunder.recipes.recipe import PluginPolicy as PluginPolicy
from thunder.recipes.recipe import Recipe as Recipe
from thunder.recipes.recipe import pretty_warnings as pretty_warnings
