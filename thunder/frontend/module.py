"""ThunderModule: a compiled module that is used as the module itself."""

from __future__ import annotations

import copy

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class ThunderModule(torch.nn.Module):
    """A module whose forward is compiled. Parameters, buffers, state and attributes are those of the original.

    Args:
        model: the original module, which stays usable.
        compiled_model_call: the compiled call of `model`.
    """

    def __init__(self, model: torch.nn.Module, compiled_model_call: Callable):
        super().__init__()
        self.__dict__["_model"] = model
        self._forward_fn = compiled_model_call
        self._overrides_parameters: dict[str, Any] = {}
        self._overrides_buffers: dict[str, Any] = {}
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_fn(*args, **kwargs)

    # The original's call runs its own hooks, so nn.Module's machinery is left out here, unless hooks were put on this one.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*args, **kwargs)
        return self._forward_fn(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_lc_") or name == "_model":
            raise AttributeError(name)
        model = self.__dict__.get("_model")
        if model is None:
            raise AttributeError(name)
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        model = self.__dict__.get("_model")
        own = name.startswith("_") or name == "training" or model is None
        if own:
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._model, name)

    # Members

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator:
        for name, p in self._model.named_parameters(prefix, recurse, remove_duplicate):
            yield name, self._overrides_parameters.get(name, p)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True, *, persistent: bool | None = None
    ) -> Iterator:
        for name, b in self._model.named_buffers(prefix, recurse, remove_duplicate):
            yield name, self._overrides_buffers.get(name, b)

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator:
        yield from self._model.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator:
        yield from self._model.named_children()

    def get_parameter(self, name: str) -> torch.nn.Parameter:
        return self._overrides_parameters[name] if name in self._overrides_parameters else self._model.get_parameter(name)

    def get_buffer(self, name: str) -> torch.Tensor:
        return self._overrides_buffers[name] if name in self._overrides_buffers else self._model.get_buffer(name)

    def set_buffer(self, name: str, value: torch.Tensor) -> None:
        """Replaces a buffer, given by its dotted name."""
        path, _, leaf = name.rpartition(".")
        setattr(self._model.get_submodule(path), leaf, value)

    def get_submodule(self, name: str) -> torch.nn.Module:
        return self._model.get_submodule(name)

    # State

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        return self._model.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def original_state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """The state of the original module."""
        return self._model.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self._model.load_state_dict(state_dict, strict=strict, assign=assign)

    def load_original_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Loads a state dict of the original module."""
        return self._model.load_state_dict(state_dict)

    def train(self, mode: bool = True) -> ThunderModule:
        self._model.train(mode)
        self.training = mode
        return self

    def _apply(self, fn: Callable, recurse: bool = True) -> ThunderModule:
        self._model._apply(fn, recurse)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> ThunderModule:
        self._model.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._model.zero_grad(set_to_none)

    def apply(self, fn: Callable) -> ThunderModule:
        self._model.apply(fn)
        return self

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local to the process inside; without data parallelism there is nothing to do."""
        yield

    # Copies compile anew: a compiled call belongs to the module that it was made for.

    def __deepcopy__(self, memo: dict[int, Any]) -> ThunderModule:
        return _rebuild(_deepcopy(self._model, memo), self._lc_settings)

    def __reduce__(self) -> Any:
        return _rebuild, (self._model, self._lc_settings.without_state())

    def extra_repr(self) -> str:
        return repr(self._model)


def _deepcopy(model: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    return copy.deepcopy(model, memo)


def _rebuild(model: torch.nn.Module, settings: Any) -> ThunderModule:
    return settings.compile(model)


def get_thunder_module(model: torch.nn.Module) -> ThunderModule | None:
    """The ThunderModule made from `model` last, or None."""
    return model.__dict__.get("_thunder_module_ref", lambda: None)()
