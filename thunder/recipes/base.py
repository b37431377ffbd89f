"""The automatic recipe."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.errors import ThunderValueError
from thunder.core.transform_base import Transform
from thunder.extend.executor import Executor
from thunder.extend.registry import get_default_executors, get_executor
from thunder.recipes.recipe import Interpreter, Plugin, Recipe

_FUSERS = {"torch.compile": "torchcompile", "nvfuser": "nvfuser"}
AUTO = "auto"


def fuser_of_this_machine() -> str | None:
    """The fuser that "auto" stands for: Inductor ("torch.compile") where its compilers are, else None.

    Those are Triton on a machine with CUDA, a C++ compiler (CXX, or g++ or clang++) on others.
    """
    if torch.cuda.is_available():
        found = importlib.util.find_spec("triton") is not None
    else:
        compilers = (os.environ.get("CXX") or "g++", "clang++")
        found = any(shutil.which(compiler) is not None for compiler in compilers)
    return "torch.compile" if found else None


@Recipe.register("")
class BaseRecipe(Recipe):
    """For any model: a fuser, and the default executors for what it leaves.

    Args:
        show_progress: without effect, since a status line on a terminal shows it anyway.
        fuser: "torch.compile", "nvfuser", "auto" for what this machine has (`fuser_of_this_machine`), or None for
            what the default executors fuse.
        interpreter: what captures the program.
        plugins: additions.

    Raises: ThunderValueError for an unknown fuser.
    """

    def __init__(
        self,
        show_progress: bool = False,
        fuser: str | None = AUTO,
        interpreter: Interpreter | str = Interpreter.THUNDER_JIT,
        plugins: Plugin | Sequence[Plugin] | None = None,
    ):
        super().__init__(plugins, interpreter)
        if fuser is not None and fuser not in (AUTO, *_FUSERS):
            allowed = ", ".join(f'"{name}"' for name in (AUTO, *_FUSERS))
            raise ThunderValueError(f"unknown fuser {fuser!r}; allowed are {allowed} and None")
        self.fuser = fuser
        self.show_progress = show_progress
        self.executor_names = [e.name for e in get_default_executors()]

    def setup_config(self) -> dict[str, Any]:
        """Regions grow along the dependency graph, which makes fewer and larger ones than program order does."""
        return {"fusion_type": "dataflow"}

    def setup_transforms(self) -> list[Transform] | None:
        return None

    def setup_fuser(self) -> None:
        """Puts the fuser in front of `executor_names`."""
        fuser = fuser_of_this_machine() if self.fuser == AUTO else self.fuser
        if fuser is not None:
            name = _FUSERS[fuser]
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
