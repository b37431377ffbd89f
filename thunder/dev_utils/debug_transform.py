"""Callbacks around each operation of a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thunder.core.origin import origin
from thunder.core.symbol import BoundSymbol, Symbol, Traits
from thunder.core.trace import TraceCtx
from thunder.core.transform_base import Transform
from thunder.dev_utils.utils import is_computation
from thunder.jit import JitSettings

Callback = Callable[..., Any]


class LateHeader:
    """A node's header that is known only once the program has run: what a callback returned last."""

    def __init__(self) -> None:
        self.text = ""

    def __bool__(self) -> bool:
        return bool(self.text)

    def splitlines(self) -> list[str]:
        """The lines to print above the node."""
        return self.text.splitlines()


def create_debug_boundsymbol(
    name: str, bsym: BoundSymbol, call_ctx: Callback, pass_result: bool = False
) -> BoundSymbol:
    """A node that calls `call_ctx(bsym, *args, **kwargs)`, with the values of the arguments of `bsym`.

    Args:
        pass_result: the values of the outputs come before those of the arguments.
    """

    header = LateHeader()

    def run(*values: Any, **kwargs: Any) -> None:
        said = call_ctx(bsym, *values, **kwargs)
        header.text = said if isinstance(said, str) else ""

    args = (bsym.output, *bsym.args) if pass_result else bsym.args
    sym = Symbol(name, id=name, is_prim=True, module="debug", traits=Traits(is_kept=True, is_barrier=True))
    with origin(bsym.origin):
        node = sym.bind(*args, **bsym.kwargs, output=None, _call_ctx={name: run})
    return node.from_bsym(header=header)


class DebugTransform(Transform):
    """Calls functions before and after each operation of the final traces, forward and backward.

    Args:
        pre_callback: called as `pre_callback(bsym, *args, **kwargs)` with the values of the arguments.
        post_callback: called as `post_callback(bsym, output, *args, **kwargs)`.

    A string that a callback returns is printed above the call from then on: print `thunder.last_traces(fn)[-1]` after a
    run. Raises RuntimeError if neither is given.
    """

    def __init__(self, *, pre_callback: Callback | None = None, post_callback: Callback | None = None):
        if pre_callback is None and post_callback is None:
            raise RuntimeError("DebugTransform needs pre_callback or post_callback")
        self.pre_callback, self.post_callback = pre_callback, post_callback

    def transform_trace_post_optimization(self, trace: TraceCtx, **kwargs: Any) -> TraceCtx:
        """The trace with a call before and after each operation."""
        nodes: list[BoundSymbol] = []
        for node in trace.bound_symbols:
            if not is_computation(node):
                nodes.append(node)
                continue
            name = f"debug_{len(nodes)}"
            if self.pre_callback is not None:
                nodes.append(create_debug_boundsymbol(f"{name}_before_{_safe(node)}", node, self.pre_callback))
            nodes.append(node)
            if self.post_callback is not None:
                nodes.append(create_debug_boundsymbol(f"{name}_after_{_safe(node)}", node, self.post_callback, True))
        return trace.with_nodes(nodes, "Debug Transform")


def _safe(node: BoundSymbol) -> str:
    return "".join(c if c.isalnum() else "_" for c in node.sym.name)


def debug_execution_trace(
    cfn: Callable, pre_callback: Callback | None = None, post_callback: Callback | None = None
) -> Callable:
    """A compiled callable again, with callbacks around each operation (see DebugTransform). `cfn` stays as it is."""
    settings: JitSettings | None = getattr(cfn, "_lc_settings", None)
    if settings is None:
        raise RuntimeError(f"{cfn} is not compiled by thunder.jit")
    transform = DebugTransform(pre_callback=pre_callback, post_callback=post_callback)
    return replace(settings, transforms=(*settings.transforms, transform)).compile(cfn._lc_cd.fn)  # type: ignore[attr-defined]
