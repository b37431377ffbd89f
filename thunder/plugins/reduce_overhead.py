"""Launches on a GPU, fewer of them."""

from __future__ import annotations

from thunder.core.transform_base import Transform
from thunder.recipes.recipe import Plugin, PluginPolicy
from thunder.transforms.cudagraph import CUDAGraphTransform


class ReduceOverhead(Plugin):
    """Records what runs on CUDA devices as CUDA graphs (`CUDAGraphTransform`), after what the recipe does."""

    policy = PluginPolicy.POST

    def setup_transforms(self) -> list[Transform]:
        return [CUDAGraphTransform()]
