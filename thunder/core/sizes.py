"""Symbolic sizes: torch.SymInt values, which stand for numbers that vary between calls.

Their arithmetic and guards are torch's own; a trace prints them as expressions over the program's size inputs.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from thunder.core.proxies import Proxy

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


@lru_cache(maxsize=1)
def _printer() -> Any:
    """Prints sympy expressions; sympy takes longer to import than thunder, and few programs have symbolic sizes."""
    return importlib.import_module("torch.utils._sympy.printers").PythonPrinter()


def free_symbols(x: Any) -> list[str]:
    """Names of the numbers that a symbolic value is made of, sorted."""
    expr = x.node.expr
    return sorted(str(s) for s in getattr(expr, "free_symbols", ()))


def size_expression(x: Any, names: Mapping[str, str] | None = None) -> str:
    """Python source that computes a symbolic value from the numbers in `free_symbols(x)`, called as `names` says."""
    expr = x.node.expr
    if names:
        expr = expr.xreplace({s: type(s)(names[str(s)], **s.assumptions0) for s in expr.free_symbols})
    return _printer().doprint(expr)


@lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    return compile(source, "<size>", "eval")


def size_value(size: int | str, numbers: Mapping[str, Any]) -> Any:
    """An int as it is; the value of an expression that `size_expression` gave, for these numbers (ints or symbols)."""
    return size if isinstance(size, int) else eval(_code(size), {"math": math, "torch": torch}, numbers)


def symbolic_numbers(values: Iterable[Any]) -> dict[str, tuple[int, bool]]:
    """The numbers that symbolic sizes among `values` are made of, by name, in order of appearance: the value that each
    had when the program was captured, and whether it is a size. Numbers that depend on data are left out.
    """
    found: dict[str, tuple[int, bool]] = {}
    for x in values:
        if isinstance(x, torch.SymInt):
            known = x.node.shape_env.backed_var_to_val
            for symbol in sorted(x.node.expr.free_symbols & known.keys(), key=str):
                found.setdefault(str(symbol), (int(known[symbol]), bool(symbol.is_positive)))
    return found


def without_guards(values: Iterable[Any]) -> AbstractContextManager[None]:
    """In this block, decisions that torch takes on the symbolic sizes among `values` put no condition on them."""
    sizes = (x for x in values if isinstance(x, SYMBOLIC_TYPES))
    return next((x.node.shape_env.suppress_guards() for x in sizes), nullcontext())


def is_backed(x: Any) -> bool:
    """Whether a symbolic value is made of numbers that are known when the program starts, and not of data."""
    return x.node.has_hint()


def concrete(x: Any) -> Any:
    """A SymInt whose value is a constant as that constant; everything else as it is."""
    if isinstance(x, SYMBOLIC_TYPES) and not free_symbols(x):
        return x.node.pytype(x.node.expr) if not isinstance(x, torch.SymBool) else bool(x)
    return x


def hint(x: Any) -> Any:
    """The value that a symbolic size had when the program was captured."""
    return x.node.hint if isinstance(x, SYMBOLIC_TYPES) else x


def hashable_leaf(x: Any) -> Any:
    """A leaf of a node's arguments as a key that tells 1, 1.0 and True apart. TypeError where it has no hash."""
    if isinstance(x, Proxy):
        return ("%", x.name)
    if isinstance(x, SYMBOLIC_TYPES):
        return ("size", str(x.node.expr))
    if isinstance(x, torch.Tensor):
        return ("tensor", id(x))
    if isinstance(x, float) and x != x:
        return (float, "nan")
    if isinstance(x, float) and x == 0:
        return (float, str(x))
    return (type(x), x)
