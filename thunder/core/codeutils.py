"""Facts about Python callables and source files: bound arguments, source lines, module names."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch

from thunder.core.baseutils import extract_callable_name
from thunder.core.errors import ThunderTypeError

_SHORT_NAMES = {"thunder.torch": "ltorch", "thunder.numpy": "lnp"}


def module_shortname(module: str | ModuleType) -> str:
    """The name that traces print for `module`: ltorch for thunder.torch, else the last part, as prims."""
    name = module.__name__ if isinstance(module, ModuleType) else module
    return _SHORT_NAMES.get(name) or name.rpartition(".")[2]


def get_source_line(filename: str, lineno: int) -> str:
    """Line `lineno`, from 1, of a source file, without its line break; "" if there is none. The file is cached."""
    return linecache.getline(filename, lineno).rstrip("\n")


@dataclass(slots=True)
class SigInfo:
    """A callable's parameters, each with the value one call binds to it.

    Attributes:
        name: of the callable.
        args: (name, value) of each positional parameter.
        varargs: (name, values) of `*args`, or None.
        kwargs: name to value of each keyword-only parameter.
        varkwargs: (name, name to value) of `**kwargs`, or None.
        defaultdict: name to default value of each parameter that has one.
        unwrapped_fn: the callable itself, without partial or module around it.
    """

    name: str
    args: list[tuple[str, Any]] = field(default_factory=list)
    varargs: tuple[str, tuple[Any, ...]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    varkwargs: tuple[str, dict[str, Any]] | None = None
    defaultdict: dict[str, Any] = field(default_factory=dict)
    unwrapped_fn: Callable[..., Any] | None = None

    @staticmethod
    def from_name_and_args(name: str, args: Sequence[Any]) -> SigInfo:
        """A signature of positional parameters; each of `args` has an attribute `name`."""
        return SigInfo(name, args=[(arg.name, arg) for arg in args])

    def prettyprint(self, *, print_default: Callable[[Any], str] | None = None) -> str:
        """The line that defines the callable, such as "def f(a, b, *args, c, **kwargs):".

        Args:
            print_default: prints a default value; without it defaults are left out.
        """

        def parameter(name: str) -> str:
            if print_default is None or name not in self.defaultdict:
                return name
            return f"{name}={print_default(self.defaultdict[name])}"

        parts = [parameter(name) for name, _ in self.args]
        if self.varargs is not None:
            parts.append(f"*{self.varargs[0]}")
        elif self.kwargs:
            parts.append("*")
        parts += [parameter(name) for name in self.kwargs]
        if self.varkwargs is not None:
            parts.append(f"**{self.varkwargs[0]}")
        return f"def {self.name}({', '.join(parts)}):"


def get_siginfo(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> SigInfo:
    """Binds `args` and `kwargs` to the parameters of `fn`, filling in defaults.

    `fn` may be a function, method, partial, nn.Module (then its `forward` is meant) or any other callable. A builtin
    without a signature gets parameters arg0, arg1, ... and the keywords given.

    Raises: ThunderTypeError if `fn` cannot be called so.
    """
    name = extract_callable_name(fn)
    unwrapped, args, kwargs = _unwrap(fn, args, kwargs)
    try:
        signature = inspect.signature(unwrapped)
    except ValueError:
        positional = [(f"arg{index}", arg) for index, arg in enumerate(args)]
        return SigInfo(name, args=positional, kwargs=dict(kwargs), unwrapped_fn=unwrapped)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as e:
        raise ThunderTypeError(f"cannot call {name}{signature}: {e}") from e
    bound.apply_defaults()
    info = SigInfo(name, unwrapped_fn=unwrapped)
    for parameter in signature.parameters.values():
        _add_parameter(info, parameter, bound.arguments[parameter.name])
    return info


def _unwrap(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    while True:
        if isinstance(fn, partial):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif isinstance(fn, torch.nn.Module):
            fn = fn.forward
        else:
            return fn, args, kwargs


def _add_parameter(info: SigInfo, parameter: inspect.Parameter, value: Any) -> None:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        info.varargs = (parameter.name, tuple(value))
    elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
        info.varkwargs = (parameter.name, dict(value))
    elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        info.kwargs[parameter.name] = value
    else:
        info.args.append((parameter.name, value))
    if parameter.default is not inspect.Parameter.empty:
        info.defaultdict[parameter.name] = parameter.default
