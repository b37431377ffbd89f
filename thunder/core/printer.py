"""Traces as Python source.

What is printed is what runs: `print_trace` gives the text and the names that it needs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch

from thunder.core import devices, dtypes
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.sizes import SYMBOLIC_TYPES, size_expression
from thunder.core.symbol import BoundSymbol, Symbol

if TYPE_CHECKING:
    from thunder.core.trace import TraceCtx

_INDENT = "  "


@dataclass
class Printed:
    """Source text and the global names that it refers to."""

    source: str
    context: dict[str, Any]


@dataclass
class _Context:
    """Names given to objects that have no literal form."""

    names: dict[str, Any] = field(default_factory=dict)
    by_id: dict[int, str] = field(default_factory=dict)

    def name_of(self, x: Any) -> str:
        if id(x) in self.by_id:
            return self.by_id[id(x)]
        kind = getattr(x, "__name__", None) if callable(x) else None
        base = "_" + "".join(c if c.isalnum() else "_" for c in (kind or type(x).__name__))
        n = 0
        while f"{base}_{n}" in self.names:
            n += 1
        name = f"{base}_{n}"
        self.names[name] = x
        self.by_id[id(x)] = name
        return name

    def need(self, name: str, value: Any) -> str:
        self.names.setdefault(name, value)
        return name


def _print_float(x: float) -> str:
    if math.isnan(x):
        return "float('NaN')"
    if math.isinf(x):
        return "float('inf')" if x > 0 else "-float('inf')"
    return repr(x)


def _print_torch_object(x: Any, ctx: _Context) -> str | None:
    if isinstance(x, torch.dtype | torch.memory_format | torch.layout):
        ctx.need("torch", torch)
        return str(x)
    if isinstance(x, torch.device):
        ctx.need("torch", torch)
        return f'torch.device("{x}")'
    if isinstance(x, dtypes.dtype):
        ctx.need("dtypes", dtypes)
        return repr(x).replace("thunder.", "")
    if isinstance(x, devices.Device):
        ctx.need("devices", devices)
        return f'devices.Device("{x.device_str()}")'
    return None


def _print_container(x: Any, ctx: _Context) -> str | None:
    if isinstance(x, torch.Size) or type(x) is tuple or (isinstance(x, tuple) and not hasattr(x, "_fields")):
        inner = ", ".join(print_value(v, ctx) for v in x)
        return f"({inner},)" if len(x) == 1 else f"({inner})"
    if isinstance(x, list):
        return "[" + ", ".join(print_value(v, ctx) for v in x) + "]"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{print_value(k, ctx)}: {print_value(v, ctx)}" for k, v in x.items()) + "}"
    if isinstance(x, slice):
        return f"slice({print_value(x.start, ctx)}, {print_value(x.stop, ctx)}, {print_value(x.step, ctx)})"
    if isinstance(x, set | frozenset) and x:
        return "{" + ", ".join(sorted(print_value(v, ctx) for v in x)) + "}"
    if isinstance(x, tuple):
        ctx.need(type(x).__name__, type(x))
        return f"{type(x).__name__}({', '.join(print_value(v, ctx) for v in x)})"
    return None


def dotted_path(fn: Any) -> str | None:
    """The path under which a torch callable is reached from the name `torch`, such as "torch.nn.functional.gelu"."""
    if isinstance(fn, torch._ops.OpOverload):
        return f"torch.ops.{fn.namespace}.{fn._schema.name.split('::')[1]}.{fn._overloadname}"
    path = _TORCH_PATHS.get(fn) if _hashable(fn) else None
    return path


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _collect_torch_paths() -> dict[Any, str]:
    paths: dict[Any, str] = {}
    roots: Sequence[tuple[str, Any]] = (
        ("torch.Tensor", torch.Tensor),
        ("torch._C._nn", torch._C._nn),
        ("torch._C", torch._C._VariableFunctions),
        ("torch.fft", torch.fft),
        ("torch.linalg", torch.linalg),
        ("torch.special", torch.special),
        ("torch.nn.functional", torch.nn.functional),
        ("torch", torch),
    )
    for prefix, root in roots:
        where = "torch._C._VariableFunctions" if root is torch._C._VariableFunctions else prefix
        for name in dir(root):
            if name.startswith("__") and root is not torch.Tensor:
                continue
            value = getattr(root, name, None)
            if callable(value) and _hashable(value):
                paths[value] = f"{where}.{name}"
    return paths


_TORCH_PATHS = _collect_torch_paths()


def print_value(x: Any, ctx: _Context) -> str:
    """Source of an argument: a proxy's name, a literal, or a context name for objects without one."""
    if isinstance(x, Proxy):
        return x.name
    if x is None or x is Ellipsis or isinstance(x, bool | str):
        return "..." if x is Ellipsis else repr(x)
    if isinstance(x, SYMBOLIC_TYPES):
        ctx.need("math", math)
        ctx.need("torch", torch)
        return size_expression(x)
    if isinstance(x, float):
        return _print_float(float(x))
    if isinstance(x, enum.Enum):
        return ctx.need(type(x).__name__, type(x)) + f".{x.name}"
    if isinstance(x, Number) and type(x) in (int, complex):
        return repr(x)
    if x in (bool, int, float, complex) if isinstance(x, type) else False:
        return x.__name__
    text = _print_torch_object(x, ctx)
    if text is None:
        text = _print_container(x, ctx)
    if text is None and callable(x) and (path := dotted_path(x)) is not None:
        ctx.need("torch", torch)
        text = path
    if text is None and is_dataclass(x) and not isinstance(x, type):
        name = ctx.need(f"{type(x).__module__.replace('.', '_')}_{type(x).__name__}", type(x))
        text = f"{name}({', '.join(f'{f.name}={print_value(getattr(x, f.name), ctx)}' for f in fields(x))})"
    return text if text is not None else ctx.name_of(x)


def call_name(sym: Symbol, ctx: _Context, call_ctx: dict[str, Any] | None) -> str:
    """How generated code names the operation."""
    if call_ctx and sym.name in call_ctx:
        return ctx.need(sym.name, call_ctx[sym.name])
    if sym.python_impl is not None and sym.module is not None and sym.module.startswith("torch"):
        ctx.need("torch", torch)
        return f"{sym.module}.{sym.name}"
    if sym.python_impl is not None:
        name = sym.name if ctx.names.get(sym.name, sym.python_impl) is sym.python_impl else ctx.name_of(sym.python_impl)
        return ctx.need(name, sym.python_impl)
    return f"{sym.module}.{sym.name}" if sym.module else sym.name


def print_outputs(out: Any) -> str | None:
    """The left-hand side of a node, or None where it has none."""
    if isinstance(out, Proxy):
        return out.name
    if isinstance(out, list | tuple):
        names = [print_outputs(o) or "_" for o in out]
        if all(n == "_" for n in names):
            return None
        text = ", ".join(names)
        if isinstance(out, list):
            return f"[{text}]"
        return f"({text},)" if len(names) == 1 else f"({text})"
    return None


def _print_call(bsym: BoundSymbol, ctx: _Context) -> list[str]:
    custom = bsym.sym.python_printer(bsym, bsym.output, bsym.args, bsym.kwargs)
    if custom is not None:
        if callable(custom):
            custom = custom(lambda v: print_value(v, ctx))
        return [custom] if isinstance(custom, str) else list(custom)
    args = [print_value(a, ctx) for a in bsym.args]
    args += [f"{k}={print_value(v, ctx)}" for k, v in bsym.kwargs.items()]
    call = f"{call_name(bsym.sym, ctx, bsym.call_ctx)}({', '.join(args)})"
    read = {p.name for p in bsym.flat_proxy_args}
    if bsym.flat_proxy_outs and all(o.name in read for o in bsym.flat_proxy_outs):
        return [call]
    left = print_outputs(bsym.output)
    line = call if left is None else f"{left} = {call}"
    if isinstance(bsym.output, TensorProxy | NumberProxy) and left is not None:
        line += f'  # {left}: "{bsym.output.type_string()}"'
    return [line]


def _tag_comment(bsym: BoundSymbol) -> str:
    names = sorted(str(getattr(t, "name", t)) for t in bsym.tags)
    return f"  # {', '.join(names)}" if names else ""


def print_node(bsym: BoundSymbol, ctx: _Context, depth: int, indent: int = 0, commented: bool = False) -> list[str]:
    """The lines of one node and, as comments, of its decomposition down to `depth` levels (-1: all)."""
    lead = ("# " if commented else "") + _INDENT * indent
    lines = [lead + line for line in _print_call(bsym, ctx)]
    if bsym.header:
        lines = [f"# {h}" for h in bsym.header.splitlines()] + lines
    if depth != 1 and not commented:
        lines[0] += _tag_comment(bsym)
    if depth != 1:
        for sub in bsym.subsymbols:
            lines.extend(print_node(sub, ctx, depth - 1 if depth > 0 else depth, indent + 1, True))
    return lines


def _signature(trace: TraceCtx) -> str:
    return ", ".join([a.name if isinstance(a, Proxy) else str(a) for a in trace.args] + [f"{k}=None" for k in trace.kwargs])


def print_trace(trace: TraceCtx, *, print_depth: int = 1, include_decorators: bool = True) -> Printed:
    """The whole program. O(nodes) at depth 1; deeper levels run the decompositions."""
    ctx = _Context()
    body: list[str] = []
    last_source = None
    for bsym in trace.bound_symbols:
        source = bsym.origin.source
        if source is not None and source != last_source:
            body += ["", f"{_INDENT}# {source}: \t{source.code}"]
            last_source = source
        body += [_INDENT + line for line in print_node(bsym, ctx, print_depth)]
    lines: list[str] = [] if trace.get_provenance() is None else [str(trace.get_provenance())]
    lines += sorted(_import_lines(ctx))
    if include_decorators:
        ctx.need("torch", torch)
        if "import torch" not in lines:
            lines.append("import torch")
        lines += ["", "@torch.no_grad()"]
    lines.append(f"def {trace.name}({_signature(trace)}):")
    comments = [f'{_INDENT}# {a.name}: "{a.type_string()}"' for a in trace.args if isinstance(a, Proxy)]
    source = "\n".join(lines + comments + (body or [f"{_INDENT}pass"])) + "\n"
    return Printed(source, ctx.names)


_MODULE_IMPORTS: dict[str, str] = {
    "torch": "import torch",
    "math": "import math",
    "dtypes": "from thunder.core import dtypes",
    "devices": "from thunder.core import devices",
}


def _import_lines(ctx: _Context) -> list[str]:
    return [line for name, line in _MODULE_IMPORTS.items() if name in ctx.names]


Printer = Callable[[BoundSymbol, Any, Sequence[Any], dict], Any]
