"""The automatic recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import ThunderValueError
from thunder.core.transform_base import Transform
from thunder.extend.executor import Executor
from thunder.extend.registry import get_default_executors, get_executor
from thunder.recipes.recipe import Interpreter, Plugin, Recipe

_FUSERS = {"torch.compile": "torchcompile", "nvfuser": "nvfuser"}


@Recipe.register("")
class BaseRecipe(Recipe):
    """For any model: the default executors, and a fuser in front of them where one is asked for.

    Args:
        show_progress: without effect, since a status line on a terminal shows it anyway.
        fuser: "torch.compile", "nvfuser", or None for what the default executors fuse.
        interpreter: what captures the program.
        plugins: additions.

    Raises: ThunderValueError for an unknown fuser.
    """

    def __init__(
        self,
        show_progress: bool = False,
        fuser: str | None = None,
        interpreter: Interpreter | str = Interpreter.THUNDER_JIT,
        plugins: Plugin | Sequence[Plugin] | None = None,
    ):
        super().__init__(plugins, interpreter)
        if fuser is not None and fuser not in _FUSERS:
            allowed = ", ".join(f'"{name}"' for name in _FUSERS)
            raise ThunderValueError(f"unknown fuser {fuser!r}; allowed are {allowed} and None")
        self.fuser = fuser
        self.show_progress = show_progress
        self.executor_names = [e.name for e in get_default_executors()]

    def setup_config(self) -> dict[str, Any]:
        return {}

    def setup_transforms(self) -> list[Transform] | None:
        return None

    def setup_fuser(self) -> None:
        """Puts the fuser in front of `executor_names`."""
        if self.fuser is not None:
            name = _FUSERS[self.fuser]
            self.executor_names = [name, *(n for n in self.executor_names if n != name)]

    def setup_executors(self) -> list[Executor] | None:
        self.setup_fuser()
        found = [(name, get_executor(name)) for name in self.executor_names]
        missing = [name for name, ex in found if ex is None]
        if missing:
            raise ThunderValueError(
                f"the executor {missing[0]!r} is not available here; install what it needs, or pass another `fuser`"
            )
        return [ex for _, ex in found if ex is not None]
