"""Recipes: what to compile a model with."""

from thunder.recipes.base import BaseRecipe
from thunder.recipes.compile import get_recipe_class, get_recipes, names_to_recipes, register_recipe
from thunder.recipes.hf_transformers import HFTransformers

__all__ = ["BaseRecipe", "HFTransformers", "get_recipe_class", "get_recipes", "names_to_recipes", "register_recipe"]
