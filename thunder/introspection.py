"""What a compiled callable can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.errors import ThunderTypeError
from thunder.core.options import CACHE_OPTIONS, option_docs
from thunder.core.symbol import OpTags
from thunder.core.trace import TraceCtx
from thunder.frontend.records import CompileData, CompileStats


def compile_data(fn: Any) -> CompileData | None:
    """The settings of a compiled callable; None for any other."""
    return getattr(fn, "_lc_cd", None)


def compile_stats(fn: Any) -> CompileStats | None:
    """Counters, traces and times of a compiled callable; None for any other."""
    return getattr(fn, "_lc_cs", None)


def _stats(fn: Any) -> CompileStats:
    stats = compile_stats(fn)
    if stats is None:
        raise ThunderTypeError(f"{fn} is not compiled by thunder.jit")
    return stats


def _called(fn: Any) -> CompileStats:
    stats = _stats(fn)
    if stats.last_program is None:
        raise ThunderTypeError(f"{fn} has not been called yet, or computes nothing with tensors")
    return stats


def last_traces(fn: Any) -> list[TraceCtx]:
    """The computation's traces of the program that ran last: as captured first, as run last."""
    return _called(fn).last_traces


def last_backward_traces(fn: Any) -> list[TraceCtx]:
    """The backward traces of the program that ran last; empty without backward."""
    return _called(fn).last_backward_traces


def last_prologue_traces(fn: Any) -> list[TraceCtx]:
    """Traces that show what the program unpacks and checks."""
    return _called(fn).last_prologue_traces


def cache_option(fn: Any) -> CACHE_OPTIONS:
    """The cache mode of a compiled callable."""
    data = compile_data(fn)
    if data is None:
        raise ThunderTypeError(f"{fn} is not compiled by thunder.jit")
    return data.cache_option


def cache_hits(fn: Any) -> int:
    """Calls that ran a program compiled before."""
    return _stats(fn).cache_hits


def cache_misses(fn: Any) -> int:
    """Calls that compiled a program."""
    return _stats(fn).cache_misses


def list_transforms(fn: Any) -> list[Any]:
    """The transforms given to jit."""
    return fn._lc_transforms


def last_compile_options(fn: Any, /) -> None:
    """Prints the compile options in use, then those known and not used."""
    data = compile_data(fn)
    if data is None:
        raise ThunderTypeError(f"{fn} is not compiled by thunder.jit")
    docs = option_docs()
    given = data.compile_options
    lines = ["Used compile options:"] + [f"  {k}={v!r}: {docs.get(k, '')}" for k, v in given.items()]
    lines += ["Unused compile options:"] + [f"  {k}: {doc}" for k, doc in docs.items() if k not in given]
    print("\n".join(lines))


def get_auto_registered_torch_op_names(fn: Callable, /) -> set[str] | None:
    """Ids of the automatically registered operations in the program that ran last."""
    trace = _called(fn).last_traces[0]
    return {str(b.sym.id) for b in trace.bound_symbols if b.sym.has_tag(OpTags.AUTO_REGISTERED)}
