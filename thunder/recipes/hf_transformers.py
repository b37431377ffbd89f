"""For the models of Hugging Face's transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from thunder.core.errors import ThunderValueError
from thunder.recipes.base import BaseRecipe
from thunder.recipes.recipe import Interpreter, Plugin, Recipe


@Recipe.register("transformers")
class HFTransformers(BaseRecipe):
    """The base recipe for models derived from `transformers.PreTrainedModel`; raises ThunderValueError for others."""

    def __init__(
        self,
        show_progress: bool = False,
        interpreter: Interpreter | str = Interpreter.THUNDER_JIT,
        plugins: Plugin | Sequence[Plugin] | None = None,
    ):
        super().__init__(show_progress=show_progress, interpreter=interpreter, plugins=plugins)

    @classmethod
    def validate(cls, model: Any) -> None:
        # A model of transformers exists only where transformers has been imported.
        transformers = sys.modules.get("transformers")
        if transformers is None or not isinstance(model, transformers.PreTrainedModel):
            raise ThunderValueError(
                f"the recipe HFTransformers is for a transformers.PreTrainedModel, not for a {type(model).__name__}"
            )
