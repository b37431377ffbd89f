"""Traces as Python source.

What is printed is what runs: `print_trace` gives the text and the names that it needs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from thunder.core import devices, dtypes
from thunder.core.errors import ThunderTypeError
from thunder.core.options import env
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.sizes import SYMBOLIC_TYPES, size_expression
from thunder.core.symbol import BoundSymbol, Symbol, default_python_printer
from thunder.core.torch_compat import aten_packet

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
    """Names given to objects that have no literal form. `taken`: names of the trace's values, which hide globals."""

    names: dict[str, Any] = field(default_factory=dict)
    by_id: dict[int, str] = field(default_factory=dict)
    taken: Collection[str] = ()
    _serials: dict[str, int] = field(default_factory=dict)

    def name_of(self, x: Any) -> str:
        if id(x) in self.by_id:
            return self.by_id[id(x)]
        kind = getattr(x, "__name__", None) if callable(x) else None
        base = "_" + "".join(c if c.isalnum() else "_" for c in (kind or type(x).__name__))
        n = self._serials.get(base, 0)
        while f"{base}_{n}" in self.names or f"{base}_{n}" in self.taken:
            n += 1
        self._serials[base] = n + 1
        name = f"{base}_{n}"
        self.names[name] = x
        self.by_id[id(x)] = name
        return name

    def name_of_object(self, name: str, x: Any) -> str:
        """`name` for `x` if it is free, else another."""
        if name in self.taken or self.names.get(name, x) is not x or not name.isidentifier():
            return self.name_of(x)
        return self.need(name, x)

    def need_namespace(self, name: str) -> SimpleNamespace:
        """The object behind the module name `name`, which holds what the source uses of that module."""
        self.names.setdefault(name, SimpleNamespace())
        return self.names[name]

    def need(self, name: str, value: Any) -> str:
        self.names.setdefault(name, value)
        return name


def _print_float(x: float) -> str:
    if math.isnan(x):
        return "float('NaN')"
    if math.isinf(x):
        return "float('inf')" if x > 0 else "-float('inf')"
    return repr(x)


def _print_complex(x: complex) -> str:
    if math.isfinite(x.real) and math.isfinite(x.imag):
        return repr(x)
    return f"complex({_print_float(x.real)}, {_print_float(x.imag)})"


def _print_enum(x: enum.Enum, ctx: _Context) -> str:
    """A member by its name; a combination of flags, which has none, by a context name."""
    if x.name is None or not x.name.isidentifier():
        return ctx.name_of(x)
    return f"{ctx.name_of_object(type(x).__name__, type(x))}.{x.name}"


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
    if isinstance(x, set | frozenset):
        inner = "{" + ", ".join(sorted(print_value(v, ctx) for v in x)) + "}" if x else ""
        return inner if type(x) is set and x else f"{type(x).__name__}({inner})"
    if isinstance(x, tuple):
        name = ctx.name_of_object(type(x).__name__, type(x))
        return f"{name}({', '.join(print_value(v, ctx) for v in x)})"
    return None


def dotted_path(fn: Any) -> str | None:
    """The path under which a torch callable is reached from the name `torch`, such as "torch.nn.functional.gelu"."""
    if isinstance(fn, torch._ops.OpOverload):
        return f"torch.ops.{fn.namespace}.{fn._schema.name.split('::')[1]}.{fn._overloadname}"
    if getattr(fn, "__name__", "") == "__get__" and getattr(fn.__self__, "__objclass__", None) in torch.Tensor.__mro__:
        return f"torch.Tensor.{fn.__self__.__name__}.__get__"
    return _TORCH_PATHS.get(fn) if _hashable(fn) else None


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
            if callable(value) and _hashable(value) and _is_better_path(paths.get(value, ""), where, name):
                paths[value] = f"{where}.{name}"
    return paths


def _is_better_path(known: str, where: str, name: str) -> bool:
    """Whether to call a torch callable `where.name` and not `known`. The name under the later root is the public one;
    of two aliases (torch.mm, torch.spmm) it is the one that is not private, or that is aten's.
    """
    root, _, known_name = known.rpartition(".")
    if root != where or known_name.startswith("_"):
        return True
    return aten_packet(name) is not None and aten_packet(known_name) is None


_TORCH_PATHS = _collect_torch_paths()


def print_value(x: Any, ctx: _Context) -> str:
    """Source of an argument: a proxy's name, a literal, or a context name for objects without one."""
    if isinstance(x, Proxy):
        return x.name
    if isinstance(x, enum.Enum):
        return _print_enum(x, ctx)
    if x is None or x is Ellipsis or isinstance(x, bool | str):
        return "..." if x is Ellipsis else repr(x)
    if isinstance(x, SYMBOLIC_TYPES):
        ctx.need("math", math)
        ctx.need("torch", torch)
        return size_expression(x)
    if isinstance(x, float):
        return _print_float(float(x))
    if type(x) is complex:
        return _print_complex(x)
    if type(x) is int:
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
        name = ctx.name_of_object(f"{type(x).__module__.replace('.', '_')}_{type(x).__name__}", type(x))
        text = f"{name}({', '.join(f'{f.name}={print_value(getattr(x, f.name), ctx)}' for f in fields(x))})"
    return text if text is not None else ctx.name_of(x)


def call_name(sym: Symbol, ctx: _Context, call_ctx: dict[str, Any] | None) -> str:
    """How generated code names the operation."""
    if call_ctx and sym.name in call_ctx:
        return ctx.name_of_object(sym.name, call_ctx[sym.name])
    if sym.python_impl is not None and sym.module is not None and sym.module.startswith("torch"):
        ctx.need("torch", torch)
        return f"{sym.module}.{sym.name}"
    if sym.python_impl is not None and sym.module == "prims":
        setattr(ctx.need_namespace("prims"), sym.name, sym.python_impl)
        return f"prims.{sym.name}"
    if sym.python_impl is not None:
        return ctx.name_of_object(sym.name, sym.python_impl)
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
        printed = [custom] if isinstance(custom, str) else list(custom)
        if any(f"prims.{bsym.sym.name}(" in line for line in printed):
            call_name(bsym.sym, ctx, bsym.call_ctx)
        return printed
    args = [print_value(a, ctx) for a in bsym.args]
    args += [f"{k}={print_value(v, ctx)}" for k, v in bsym.kwargs.items()]
    call = f"{call_name(bsym.sym, ctx, bsym.call_ctx)}({', '.join(args)})"
    read = {p.name for p in bsym.flat_proxy_args}
    if bsym.flat_proxy_outs and all(o.name in read for o in bsym.flat_proxy_outs):
        return [call]
    left = print_outputs(bsym.output)
    if left is None and bsym.flat_proxy_outs:
        raise ThunderTypeError(
            f"{bsym.sym.name} gives {type(bsym.output).__name__}; a node's outputs are proxies in tuples and lists"
        )
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
        lines = [f"{lead}# {h}" for h in bsym.header.splitlines()] + lines
    if depth < 0 and not commented and lines:
        lines[0] += _tag_comment(bsym)
    if depth != 1:
        for sub in bsym.subsymbols:
            lines.extend(print_node(sub, ctx, depth - 1 if depth > 0 else depth, indent + 1, True))
    return lines


def _annotated(bsym: BoundSymbol, lines: list[str], ctx: _Context) -> list[str]:
    """The lines of a node inside a range that profilers show under the operation's name and the user's line."""
    if bsym.sym.python_impl is None or bsym.sym.python_printer is not default_python_printer:
        return lines
    ctx.need("torch", torch)
    source = bsym.origin.source
    name = bsym.sym.name if source is None else f"{bsym.sym.name} {source}"
    return [f"with torch.profiler.record_function({name!r}):", *(_INDENT + line for line in lines)]


def _argument_comments(trace: TraceCtx, body: Sequence[str]) -> list[str]:
    """The types of the arguments, but of those that an unpacking node shows."""
    shown = set(body)
    comments = [f'{_INDENT}# {a.name}: "{a.type_string()}"' for a in trace.args if isinstance(a, Proxy)]
    return [line for line in comments if line not in shown]


def _signature(trace: TraceCtx) -> str:
    positional = [a.name if isinstance(a, Proxy) else str(a) for a in trace.args]
    return ", ".join(positional + [f"{k}=None" for k in trace.kwargs])


def print_trace(trace: TraceCtx, *, print_depth: int = 1, include_decorators: bool = True) -> Printed:
    """The whole program. O(nodes) at depth 1; deeper levels run the decompositions."""
    ctx = _Context(taken=trace.names | {o.name for n in trace.bound_symbols for o in n.flat_proxy_outs})
    body: list[str] = []
    is_annotated = env("THUNDER_ANNOTATE_TRACES")
    last_source = None
    for bsym in trace.bound_symbols:
        source = bsym.origin.source
        if source is not None and source != last_source:
            code = source.code.strip().partition("\n")[0]
            body += ["", f"{_INDENT}# {source}: \t{code}"]
            last_source = source
        printed = print_node(bsym, ctx, print_depth)
        body += [_INDENT + line for line in (_annotated(bsym, printed, ctx) if is_annotated else printed)]
    if include_decorators:
        ctx.need("torch", torch)
    lines: list[str] = [] if trace.get_provenance() is None else [str(trace.get_provenance())]
    lines += _import_lines(ctx)
    if include_decorators:
        lines += [_NO_AUTOCAST, "", "@torch.no_grad()", "@no_autocast"]
    lines.append(f"def {trace.name}({_signature(trace)}):")
    source_text = "\n".join(lines + _argument_comments(trace, body) + (body or [f"{_INDENT}pass"])) + "\n"
    return Printed(source_text, ctx.names)


_NO_AUTOCAST = "from thunder.executors.torchex import no_autocast"
_MODULE_IMPORTS: dict[str, str] = {
    "torch": "import torch",
    "math": "import math",
    "dtypes": "from thunder.core import dtypes",
    "prims": "from thunder.core import prims",
    "devices": "from thunder.core import devices",
}


def _import_lines(ctx: _Context) -> list[str]:
    return sorted(line for name, line in _MODULE_IMPORTS.items() if name in ctx.names)
