"""`Transform`: what users derive from to change traces, modules and state dicts."""

from __future__ import annotations

from abc import ABC
from typing import Any


class Transform(ABC):  # noqa: B024
    """A change to compiled programs. Override the hooks that it needs; each is called once per compilation."""

    def transform_traces_pre_prologue(
        self, prologue_trace: Any, computation_trace: Any, epilogue_trace: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """Before differentiation: takes and returns the three traces."""
        return prologue_trace, computation_trace, epilogue_trace

    def transform_module(self, model: Any) -> None:  # noqa: B027
        """When a module is jitted: may replace parameters and buffers."""

    def transform_state_dict_for_submodule(self, model: Any, submodule_name: str, state_dict: dict[str, Any]) -> dict:
        """The original's state dict for a submodule, as this transform's."""
        return state_dict

    def transform_trace_post_optimization(self, computation_trace: Any, **kwargs: Any) -> Any:
        """After execution transform and split: takes and returns the forward, then the backward trace."""
        return computation_trace

    def reverse_transform_state_dict_for_submodule(self, model: Any, submodule_name: str, state_dict: dict) -> dict:
        """The inverse of `transform_state_dict_for_submodule`."""
        return state_dict

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{type(self).__name__}()"
