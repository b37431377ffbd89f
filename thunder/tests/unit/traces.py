"""Small traces for tests, built by hand, and their text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.origin import SourceLocation, origin
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.torch.registry import symbol_for

add, mul, sin, cos, tanh = (symbol_for(f) for f in (torch.add, torch.mul, torch.sin, torch.cos, torch.tanh))
rand_like, clone = symbol_for(torch.rand_like), symbol_for(torch.clone)
add_ = symbol_for(torch.Tensor.add_)
LINE = SourceLocation("model.py", 7, "y = f(x)", "forward")


def tensor(trace: TraceCtx, name: str, shape: Sequence[int] = (2, 3), **facts: Any) -> TensorProxy:
    """A float32 CPU tensor of a trace."""
    facts = {"device": "cpu", "dtype": torch.float32, **facts}
    return TensorProxy(trace.make_name(name), shape=shape, **facts)


def make_trace(
    fn: Callable, names: str = "x y", *, requires_grad: bool = False, shape: Sequence[int] = (2, 3)
) -> TraceCtx:
    """The trace of `fn`, which is called with one tensor for each of `names`. All nodes come from LINE."""
    trace = TraceCtx(name="computation")
    trace.args = tuple(tensor(trace, n, shape, requires_grad=requires_grad) for n in names.split())
    with tracectx(trace):
        for a in trace.args:
            trace.emit(prims.unpack_trivial, (a,), {"name": a.name}, a)
        with origin(source=LINE):
            result = fn(*trace.args)
        trace.emit(prims.python_return, (result,), {}, None)
    return trace.mark_complete()


def body(trace: TraceCtx, print_depth: int = 1) -> str:
    """The lines of a trace between `def` and the end, without input comments and blank lines."""
    lines = trace.python(print_depth=print_depth, include_decorators=False).split("):\n", 1)[1].splitlines()
    inputs = {f'  # {a.name}: "{a.type_string()}"' for a in trace.args}
    return "\n".join(line for line in lines if line.strip() and line not in inputs and "model.py" not in line)


def lines(text: str) -> str:
    """An indented literal as `body` gives it: common indent replaced by two spaces."""
    return textwrap.indent(textwrap.dedent(text).strip("\n").rstrip(), "  ")


def node_of(trace: TraceCtx, sym: Symbol | str) -> Any:
    """The first node of a symbol, or of a name of one."""
    name = sym if isinstance(sym, str) else sym.name
    return next(n for n in trace.bound_symbols if n.sym.name == name)
