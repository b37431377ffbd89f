"""Symbolic sizes: torch.SymInt values, which stand for numbers that vary between calls.

Their arithmetic and guards are torch's own; a trace prints them as expressions over the program's size inputs.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
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


def size_expression(x: Any) -> str:
    """Python source that computes a symbolic value from the numbers in `free_symbols(x)`."""
    return _printer().doprint(x.node.expr)


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
