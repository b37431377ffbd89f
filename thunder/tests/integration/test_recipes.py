"""`thunder.compile`, recipes and plugins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thunder
from thunder import Transform, recipes
from thunder.core.errors import ThunderValueError
from thunder.core.recipe import Interpreter, Lookaside, Plugin, PluginPolicy, Recipe
from thunder.extend import OperatorExecutor
from thunder.plugins import get_plugin, get_plugin_names, register_plugin
from thunder.recipes import BaseRecipe, base
from thunder.tests.fusers import ElementwiseFuser

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Named(Transform):
    def __init__(self, name: str):
        self.name = name


class Doubling(Plugin):
    """Twice the sine, a transform and an executor."""

    def setup_lookasides(self):
        return [Lookaside(torch.sin, twice_sin)]

    def setup_transforms(self):
        return [Named("plugin")]

    def setup_executors(self):
        return [OperatorExecutor("of the plugin")]


def twice_sin(x):
    return torch.special.sinc(x) * 0 + 2 * torch.cos(x - torch.pi / 2)


class After(Doubling):
    policy = PluginPolicy.POST


class Own(Recipe):
    def setup_config(self):
        return {"cache": "symbolic values"}

    def setup_transforms(self):
        return [Named("recipe")]


def test_automatic_recipe():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compiled = thunder.compile(model)
    assert isinstance(compiled, thunder.ThunderModule)
    torch.testing.assert_close(compiled(X), model(X))
    fn = thunder.compile(lambda a: a.sin() + 1)
    torch.testing.assert_close(fn(X), X.sin() + 1)
    assert thunder.cache_misses(fn) == 1


def test_recipe_by_name_and_instance():
    model = nn.Linear(3, 3)
    for recipe in ("default", BaseRecipe(), Own()):
        torch.testing.assert_close(thunder.compile(model, recipe=recipe)(X), model(X))
    compiled = thunder.compile(model, recipe=Own())
    assert thunder.cache_option(compiled) is thunder.CACHE_OPTIONS.SYMBOLIC_VALUES
    assert recipes.get_recipes() == ["default", "hf-transformers"]
    assert recipes.get_recipe_class("default") is BaseRecipe


def test_registering_a_recipe(monkeypatch):
    monkeypatch.setattr(recipes.compile, "names_to_recipes", dict(recipes.names_to_recipes))
    recipes.register_recipe("own", Own)
    assert thunder.cache_option(thunder.compile(torch.sin, recipe="own")) is thunder.CACHE_OPTIONS.SYMBOLIC_VALUES
    with pytest.raises(ThunderValueError, match="auto"):
        recipes.register_recipe("auto", Own)


def test_recipe_for_a_class_path(monkeypatch):
    monkeypatch.setattr(Recipe, "_registered", dict(Recipe._registered))

    @Recipe.register(f"{__name__}.Special")
    class ForSpecial(Own):
        pass

    class Special(nn.Identity):
        pass

    Special.__qualname__ = "Special"

    class SpecialToo(nn.Identity):
        pass

    SpecialToo.__qualname__ = "SpecialToo"
    assert type(Recipe.get_for_model(Special())) is ForSpecial
    assert type(Recipe.get_for_model(SpecialToo())) is BaseRecipe


def test_plugins_before_and_after_the_recipe():
    for plugin, order in ((Doubling(), ["plugin", "recipe"]), (After(), ["recipe", "plugin"])):
        compiled = thunder.compile(lambda a: a + 1, recipe=Own(), plugins=plugin)
        assert [t.name for t in thunder.list_transforms(compiled)] == order
        assert "of the plugin" in [e.name for e in thunder.compile_data(compiled).executors_list]


def test_lookaside_replaces_a_function_and_its_gradient():
    compiled = thunder.compile(lambda a: torch.sin(a).sum(), plugins=[Doubling()])
    a = X.clone().requires_grad_()
    out = compiled(a)
    torch.testing.assert_close(out, 2 * X.sin().sum())
    out.backward()
    torch.testing.assert_close(a.grad, 2 * X.cos())


def test_plugins_by_name(monkeypatch):
    monkeypatch.setattr(thunder.plugins.registry, "names_to_plugins", {})
    register_plugin("doubling", Doubling)
    assert get_plugin_names() == ["doubling"]
    assert get_plugin("doubling") is Doubling
    compiled = thunder.compile(torch.sin, plugins=["doubling"])
    torch.testing.assert_close(compiled(X), 2 * X.sin())
    with pytest.raises(ThunderValueError, match='did you mean "doubling"'):
        get_plugin("dubling")


def test_interpreters():
    fx = thunder.compile(nn.Linear(3, 3), recipe=BaseRecipe(interpreter="thunder.fx"))
    assert fx(X).shape == (2, 3)
    assert BaseRecipe(interpreter=Interpreter.THUNDER_FX).interpreter is Interpreter.THUNDER_FX
    with pytest.raises(ThunderValueError, match=r'did you mean "thunder\.jit"'):
        BaseRecipe(interpreter="thunder.jt")


def test_the_automatic_recipe_fuses_where_there_are_compilers(monkeypatch):
    names = lambda: [e.name for e in thunder.compile_data(thunder.compile(torch.sin)).executors_list]  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(base.shutil, "which", lambda name: f"/bin/{name}")
    assert names()[0] == "torchcompile"
    assert set(names()) >= {e.name for e in thunder.get_default_executors()}
    monkeypatch.setattr(base.shutil, "which", lambda name: None)
    assert "torchcompile" not in names()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: name)
    assert names()[0] == "torchcompile"
    assert "torchcompile" not in [e.name for e in BaseRecipe(fuser=None).setup_executors()]


def test_the_automatic_recipe_fuses_along_the_dependency_graph():
    def gated(x, w):
        a = (x @ w).sin()
        b = x @ w.t()
        return a * b

    fuser = ElementwiseFuser(min_region_size=2)
    recipe = BaseRecipe(fuser=None)
    recipe.setup_executors = lambda: [fuser, *thunder.get_default_executors()]
    x, w = torch.rand(3, 3), torch.rand(3, 3)
    torch.testing.assert_close(thunder.compile(gated, recipe=recipe)(x, w), gated(x, w))
    assert [len(r.bsyms) for r in fuser.regions] == [2]


def test_fusers():
    with pytest.raises(ThunderValueError, match="unknown fuser"):
        BaseRecipe(fuser="none such")
    if thunder.get_executor("nvfuser") is None:
        with pytest.raises(ThunderValueError, match="not available"):
            thunder.compile(torch.sin, recipe=BaseRecipe(fuser="nvfuser"))
    compiled = thunder.compile(torch.sin, recipe=BaseRecipe(fuser="torch.compile"))
    assert thunder.compile_data(compiled).executors_list[0].name == "torchcompile"
