"""Which function of torch's Python interface is an overload of an aten operation.

`torch.mm` calls what `torch.ops.aten.mm.default` calls, in less time, since its arguments are parsed by generated code,
and it reads better.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from thunder.core.torch_compat import OpOverload, aten_packet
from thunder.torch.registry import aten_overloads

_FUNCTION, _METHOD = type(torch.add), type(torch.Tensor.add)
_NUMBERS = {"int", "float", "bool", "number", "SymInt"}
_LISTS = {"List[int]", "List[SymInt]"}


def _split(argument: Any) -> tuple[str, set[str]]:
    """A parameter's type without Optional, and {"None"} where it had that."""
    name = str(argument.real_type)
    return (name[9:-1], {"None"}) if name.startswith("Optional[") else (name, set())


def _given(argument: Any) -> set[str]:
    """The kinds of values that a parameter has in a trace."""
    name, none = _split(argument)
    return none | {"number" if name in _NUMBERS else "list" if name in _LISTS else name}


def _taken(argument: Any) -> set[str]:
    """The kinds of values that torch's argument parser takes for a parameter: numbers also for tensors and lists."""
    kinds = _given(argument)
    return kinds | {"number"} if kinds & {"Tensor", "list"} else kinds


def _positional(op: OpOverload) -> list[Any]:
    return [a for a in op._schema.arguments if not a.kwarg_only]


def _is_told_from(op: OpOverload, other: OpOverload) -> bool:
    """Whether no call of `op` could be taken for one of `other`."""
    mine, theirs = _positional(op), _positional(other)
    for n, argument in enumerate(mine):
        if argument.has_default_value():
            break
        if n >= len(theirs) or not _given(argument) & _taken(theirs[n]):
            return True
    names = {a.name for a in op._schema.arguments}
    needed = [a for a in other._schema.arguments if not a.has_default_value()]
    return len([a for a in needed if not a.kwarg_only]) > len(mine) or any(
        a.kwarg_only and a.name not in names for a in needed
    )


@cache
def python_function(op: OpOverload) -> Callable | None:
    """The function or Tensor method that runs `op` for all its arguments; None where there is none, or where the same
    arguments could mean another overload. An operation that writes has none.
    """
    parameters = _positional(op)
    if op.namespace != "aten" or op._schema.is_mutable or not parameters or str(parameters[0].type) != "Tensor":
        return None
    if any("Optional[Tensor]" in str(a.type) and "List" in str(a.type) for a in parameters):
        return None  # the parser does not take None in lists of tensors
    if any(a.name == "reduction" for a in parameters):
        return None  # the parser's default is "none", the schema's "mean"
    name = op._schema.name.removeprefix("aten::")
    fn = getattr(torch, name, None)
    if not isinstance(fn, _FUNCTION) or fn is not getattr(torch._C._VariableFunctions, name, None):
        fn = getattr(torch.Tensor, name, None)
        if not isinstance(fn, _METHOD) or name.startswith("_") or parameters[0].name != "self":
            return None
    others = [o for o in aten_overloads(aten_packet(name)) if o is not op and not o._schema.is_mutable]
    on_tensors = [o for o in others if (first := _positional(o)[:1]) and str(first[0].type) == "Tensor"]
    return fn if all(_is_told_from(op, o) for o in on_tensors) else None
