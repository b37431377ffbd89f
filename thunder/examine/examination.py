"""`examine`: runs a program once as it is, and says how thunder would take it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from thunder.core.errors import ThunderError
from thunder.core.symbol import OpTags
from thunder.examine.step_memory import StepMemory, step_memory
from thunder.introspection import compile_stats
from thunder.jit import jit
from thunder.torch.registry import method_callable, symbol_for

_LIBRARY = ("torch", __name__)


class CollectFunctionsUsed(TorchFunctionMode):
    """While active, notes each torch function called, and from where.

    Attributes:
        functions_call_sites: function to the lines (file:line) that called it, in order of the first call.
    """

    def __init__(self, collect_into: dict[Any, list[str]] | None = None):
        super().__init__()
        self.functions_call_sites: dict[Any, list[str]] = {} if collect_into is None else collect_into

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions_call_sites.setdefault(func, []).append(_call_site())
        return func(*args, **(kwargs or {}))


def _call_site() -> str:
    """file:line of the innermost frame outside torch and this module."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARY):
        frame = frame.f_back  # type: ignore[assignment]
    return "<unknown location>" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def function_name(fn: Any) -> str:
    """The public path of a torch function, such as "torch.Tensor.add"."""
    found = resolve_name(fn)
    return found if found is not None else getattr(fn, "__qualname__", repr(fn))


@dataclass(frozen=True)
class Examination:
    """What `examine` has found.

    Attributes:
        functions: name of each torch function that the program calls, to the lines that call it.
        automatic: names of those without a declaration of their own: they run as torch's, one opaque node each.
        error: why the program cannot run or be compiled; None if it can.
        memory: what a call takes, and its backward if there is one; of the last program, where there are several.
        memory_unknown: why there is no `memory` of a program that runs.
    """

    functions: dict[str, list[str]] = field(default_factory=dict)
    automatic: tuple[str, ...] = ()
    error: BaseException | None = None
    memory: StepMemory | None = None
    memory_unknown: str = ""

    def report(self, show_call_stack: bool | int = False) -> str:
        """The findings as text."""
        total, known = len(self.functions), len(self.functions) - len(self.automatic)
        lines = [f"The program calls {total} torch functions; {known} of them are declared by thunder."]
        for name in self.automatic:
            lines.append(f"  {name}: runs as torch's own, with metadata and gradient taken from torch")
            sites = list(dict.fromkeys(self.functions[name])) if show_call_stack else []
            limit = len(sites) if show_call_stack is True else int(show_call_stack)
            lines += [f"    called at {site}" for site in sites[:limit]]
        if self.error is None:
            lines.append("thunder.jit compiles and runs it.")
            if self.memory is not None:
                lines.append(self.memory.report())
            else:
                lines.append(f"Its memory is not known: {self.memory_unknown}")
        else:
            lines.append(f"thunder.jit cannot run it: {type(self.error).__name__}: {self.error}")
        return "\n".join(lines)


def examine(fn: Callable, *args: Any, show_call_stack: bool | int = False, **kwargs: Any) -> Examination:
    """Runs `fn(*args, **kwargs)` once as it is and once compiled, prints and returns what was found.

    The program is really run, with its side effects. Nothing is raised for a program that fails: the reason is printed.

    Args:
        show_call_stack: also print from which lines functions without a declaration are called; a number prints at most
            so many for each.
    """
    found = _examine(fn, args, kwargs)
    print(found.report(show_call_stack))
    return found


def _examine(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Examination:
    if not callable(fn):
        return Examination(error=TypeError(f"{fn!r} is not callable"))
    collected = CollectFunctionsUsed()
    error: BaseException | None = None
    try:
        with collected:
            fn(*args, **kwargs)
    except Exception as e:
        error = e
    functions: dict[str, list[str]] = {}
    automatic: list[str] = []
    for function, sites in collected.functions_call_sites.items():
        name = function_name(function)
        if name not in functions and _is_operation(function) and _is_automatic(function):
            automatic.append(name)
        functions.setdefault(name, []).extend(sites)
    found = Examination(functions, tuple(automatic), error)
    if error is not None:
        return found
    compiled = jit(fn)
    try:
        compiled(*args, **kwargs)
    except (ThunderError, RuntimeError, TypeError, ValueError, NotImplementedError) as e:
        return replace(found, error=e)
    stats = compile_stats(compiled)
    if stats is None or not stats.last_traces:
        return replace(found, memory_unknown="it computes nothing with tensors")
    backward = stats.last_backward_traces[-1] if stats.last_backward_traces else None
    try:
        memory = step_memory(stats.last_traces[-1], backward)
    except Exception as e:  # any operation may fail in its own way
        return replace(found, memory_unknown=f"it does not run on fake tensors ({type(e).__name__}: {e})")
    return replace(found, memory=memory)


def _is_automatic(function: Any) -> bool:
    """Whether no declaration says what the function does. Those of functions hold for methods and in-place methods."""
    name = getattr(function, "__name__", "")
    if getattr(torch.Tensor, name, None) is function:
        if name.endswith("_") and not name.endswith("__") and hasattr(torch.Tensor, name[:-1]):
            name = name[:-1]
        function = method_callable(name)
    return symbol_for(function).has_tag(OpTags.AUTO_REGISTERED)


def _is_operation(function: Any) -> bool:
    """Whether a call of the function is part of a trace, rather than a question about metadata."""
    return callable(function) and getattr(function, "__name__", "") not in _QUESTIONS


_QUESTIONS = frozenset(
    {"__get__", "__set__", "size", "dim", "stride", "numel", "is_contiguous", "is_floating_point", "is_complex",
     "ndimension", "element_size", "storage_offset", "__len__", "__repr__", "__format__", "__hash__", "get_device"}
)  # fmt: skip


__all__ = ["CollectFunctionsUsed", "Examination", "examine", "function_name"]
