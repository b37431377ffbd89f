"""ThunderModule: a compiled module that is used as the module itself."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from thunder.core.errors import ThunderTypeError

# Methods of every module. They are the original's, also where its class overrides them.
_METHODS = (
    "add_module", "apply", "bfloat16", "buffers", "children", "cpu", "cuda", "double", "eval", "float", "get_buffer",
    "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia",
    "named_children", "named_modules", "named_parameters", "parameters", "register_buffer",
    "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_module",
    "register_parameter", "register_state_dict_post_hook", "register_state_dict_pre_hook", "requires_grad_",
    "set_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train", "type", "xpu",
    "zero_grad", "_apply", "_load_from_state_dict", "_save_to_state_dict",
)  # fmt: skip

# What containers can do. A ThunderModule has those that its original has.
_CONTAINER_METHODS = (
    "__len__", "__getitem__", "__setitem__", "__delitem__", "__iter__", "__reversed__", "__contains__", "__bool__",
)  # fmt: skip

# Shared with the original, so that modules around this one, which look into it, find what they would find there.
_SHARED = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def _forwarded(name: str) -> Callable:
    """A method that calls the original's; where that gives the original itself, this gives the ThunderModule."""

    def method(self: ThunderModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._model, name)(*args, **kwargs)
        return self if result is self._model else result

    method.__name__ = name
    method.__doc__ = f"The original's `{name}`."
    return method


class _Members(MutableMapping):
    """The original's parameters, or its buffers, by dotted name. Assignment replaces them there."""

    def __init__(self, model: torch.nn.Module, kind: str):
        self._model, self._kind = model, kind

    def _named(self) -> dict[str, Any]:
        return dict(getattr(self._model, f"named_{self._kind}")(remove_duplicate=False))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._named()[name]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        path, _, leaf = name.rpartition(".")
        owner = self._model.get_submodule(path)
        if self._kind == "parameters" and not isinstance(value, torch.nn.Parameter):
            value = torch.nn.Parameter(value, requires_grad=value.requires_grad)
        getattr(owner, f"_{self._kind}")[leaf] = value

    def __delitem__(self, name: str) -> None:
        path, _, leaf = name.rpartition(".")
        delattr(self._model.get_submodule(path), leaf)

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())


class ThunderModule(torch.nn.Module):
    """A module whose forward is compiled. Parameters, buffers, state and attributes are those of the original.

    The original stays usable. It and this module are two ways to call one model: a change of one is a change of the
    other. Hooks registered here run, uncompiled, around the compiled call; those of the original are part of it.

    Args:
        model: the original module.
        compiled_model_call: the compiled call of `model`.
    """

    _model: torch.nn.Module

    def __new__(cls, model: torch.nn.Module, compiled_model_call: Callable) -> ThunderModule:
        return super().__new__(_class_for(cls, type(model)))

    def __init__(self, model: torch.nn.Module, compiled_model_call: Callable):
        super().__init__()
        self.__dict__.update({name: model.__dict__[name] for name in _SHARED if name in model.__dict__})
        self.__dict__["_model"] = model
        self.__dict__["_forward_fn"] = compiled_model_call
        self.__dict__["_overrides_parameters"] = _Members(model, "parameters")
        self.__dict__["_overrides_buffers"] = _Members(model, "buffers")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # inside another compiled program: a part of it
            return self._model(*args, **kwargs)
        return self._forward_fn(*args, **kwargs)

    # The original's call runs its own hooks, so nn.Module's machinery is left out, unless hooks were put on this one.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    # Attributes

    @property
    def training(self) -> bool:
        """The original's mode."""
        return self._model.training

    @training.setter
    def training(self, mode: bool) -> None:
        model = self.__dict__.get("_model")
        if model is not None:  # nn.Module.__init__ sets it before there is an original
            model.training = mode

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None or name.startswith("_lc_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or name.startswith("_lc_") or "_model" not in self.__dict__:
            self.__dict__[name] = value
        elif isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            setattr(self._model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._model, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._model)})

    def __repr__(self) -> str:
        return f"ThunderModule({self._model!r})"

    # Members

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True, *, persistent: bool | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The original's buffers by name. `persistent`: only those that are in the state dict, or only the others."""
        skipped = None
        if persistent is not None:
            modules = self._model.named_modules(prefix=prefix, remove_duplicate=False)
            names = {
                f"{path}.{name}".lstrip(".") for path, m in modules for name in m._non_persistent_buffers_set
            }  # fmt: skip
            skipped = names.__contains__ if persistent else lambda name: name not in names
        for name, b in self._model.named_buffers(prefix, recurse, remove_duplicate):
            if skipped is None or not skipped(name):
                yield name, b

    def set_buffer(self, name: str, value: torch.Tensor) -> None:
        """Replaces a buffer, given by its dotted name."""
        path, _, leaf = name.rpartition(".")
        setattr(self._model.get_submodule(path), leaf, value)

    def _get_shared_names(self) -> dict[str, set[str]]:
        """For each parameter and buffer the names of the same tensor, its own included."""
        names: dict[int, set[str]] = {}
        tensors = {**self._overrides_parameters, **self._overrides_buffers}
        for name, t in tensors.items():
            names.setdefault(id(t), set()).add(name)
        return {name: names[id(t)] for name, t in tensors.items()}

    # State of the original, where transforms change it

    def original_state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """The state dict that the original had before transforms changed its members."""
        state = self.state_dict(keep_vars=keep_vars)
        for path, own in self._by_submodule(state).items():
            for transform in reversed(self._lc_transforms):
                own = transform.reverse_transform_state_dict_for_submodule(self, path, own)
            destination = {} if destination is None else destination
            destination.update({f"{prefix}{_joined(path, name)}": value for name, value in own.items()})
        return {} if destination is None else destination

    def load_original_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Loads a state dict of the original; each transform changes it as it did the original's members.

        Raises: RuntimeError for missing and unexpected names and for wrong sizes, as `load_state_dict` does.
        """
        changed: dict[str, Any] = {}
        for path, own in self._by_submodule(state_dict).items():
            for transform in self._lc_transforms:
                own = transform.transform_state_dict_for_submodule(self, path, own)
            changed.update({_joined(path, name): value for name, value in own.items()})
        return self.load_state_dict(changed)

    def _by_submodule(self, state_dict: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The entries of a state dict by the submodule that they belong to."""
        result: dict[str, dict[str, Any]] = {}
        for name, value in state_dict.items():
            path, _, leaf = name.rpartition(".")
            result.setdefault(path, {})[leaf] = value
        return result

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay local to the process inside; without data parallelism there is nothing to do."""
        yield

    # Copies compile anew: a compiled call belongs to the module that it was made for.

    def __deepcopy__(self, memo: dict[int, Any]) -> ThunderModule:
        return _rebuild(copy.deepcopy(self._model, memo), self._lc_settings)

    def __reduce__(self) -> Any:
        return _rebuild, (self._model, self._lc_settings.without_state())


for _name in _METHODS:
    setattr(ThunderModule, _name, _forwarded(_name))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@functools.cache
def _class_for(cls: type, original: type) -> type:
    """`cls` with those container methods that `original` has."""
    methods = {name: _forwarded(name) for name in _CONTAINER_METHODS if hasattr(original, name)}
    if not methods:
        return cls
    return type(cls.__name__, (cls,), {**methods, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _rebuild(model: torch.nn.Module, settings: Any) -> ThunderModule:
    return settings.compile(model)


_thunder_modules: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref] = weakref.WeakKeyDictionary()


def remember_thunder_module(module: ThunderModule) -> None:
    """Makes `module` what `get_thunder_module` gives for its original."""
    _thunder_modules[module._model] = weakref.ref(module)


def get_thunder_module(model: torch.nn.Module) -> ThunderModule | None:
    """The ThunderModule made from `model` last, or None if there is none any more."""
    if not isinstance(model, torch.nn.Module):
        raise ThunderTypeError(f"a module has a ThunderModule, not {model!r} of type {type(model).__name__}")
    found = _thunder_modules.get(model)
    return None if found is None else found()
