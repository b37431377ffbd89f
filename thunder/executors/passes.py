"""The execution transform: who runs each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core import prims
from thunder.core.compile_data import compile_options
from thunder.core.errors import UnsupportedOpError
from thunder.core.passes import Pass, PassContext
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.tracing import get_tracectx
from thunder.core.transforms.del_last_used import del_last_used
from thunder.extend.executor import Executor, FusionExecutor


def _claim(node: BoundSymbol, executors: Sequence[Executor]) -> Any:
    """What stands for a node: itself, an executor's operator, or its decomposition, claimed in turn."""
    if node.sym is prims.get_grad or node.sym.is_fusion:
        return KEEP
    for ex in executors:
        if isinstance(ex, FusionExecutor):
            if ex.can_fuse(node):
                transform = ex.get_execution_transform(node)
                return KEEP if transform is None else transform(*node.args, **node.kwargs)
            continue
        impl = ex._impl(node)
        if impl is None:
            continue
        if impl.execution_transform is not None:
            return impl.execution_transform(*node.args, **node.kwargs)
        if impl.symbol is not node.sym:
            get_tracectx().emit(impl.symbol, node.args, node.kwargs, node.output, call_ctx=node.call_ctx)
            return node.output
        return KEEP
    if node.sym.python_impl is not None or node.call_ctx:
        return KEEP
    if node.sym.meta is None or node.sym.is_prim:
        names = ", ".join(str(e.name) for e in executors)
        raise UnsupportedOpError(f"no executor runs {node.sym.name} (executors: {names})")
    return node.sym.meta(*node.args, **node.kwargs)


@dataclass(frozen=True)
class TransformForExecution(Pass):
    """Replaces each node by the operator of the first executor that claims it; nodes for fusers are left.

    O(nodes × executors) for each level of decomposition.
    """

    name: ClassVar[str] = "transform_for_execution"
    title: ClassVar[str] = "Transform for execution"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        executors = ctx.executors
        pending = True
        while pending:
            pending = False

            def rule(node: BoundSymbol) -> Any:
                nonlocal pending
                before = len(get_tracectx().bound_symbols)
                result = _claim(node, executors)
                new = get_tracectx().bound_symbols[before:]
                pending = pending or any(_is_unclaimed(n, executors) for n in new)
                return result

            trace = rewrite(trace, rule, self.name)
        return trace


def _is_unclaimed(node: BoundSymbol, executors: Sequence[Executor]) -> bool:
    return node.sym.python_impl is None and not node.call_ctx and not _fusible(node, executors)


def _fusible(node: BoundSymbol, executors: Sequence[Executor]) -> bool:
    return node.sym is prims.get_grad or any(isinstance(ex, FusionExecutor) and ex.can_fuse(node) for ex in executors)


def operator_executors(executors: Sequence[Executor]) -> list[Executor]:
    """Those that implement what no region takes."""
    return [ex for ex in executors if not isinstance(ex, FusionExecutor)]


@dataclass(frozen=True)
class Fusion(Pass):
    """Lets each fusion executor, in order, replace regions; what is left goes to the operator executors."""

    name: ClassVar[str] = "fusion"
    title: ClassVar[str] = "Fusion"
    stage: ClassVar[str] = "joint"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        fusers = [ex for ex in ctx.executors if isinstance(ex, FusionExecutor)]
        if not fusers:
            return trace
        for ex in fusers:
            trace = ex.fusion_pass(trace)
        return TransformForExecution().apply(trace, PassContext(ctx.options, operator_executors(ctx.executors)))


def transform_for_execution(trace: TraceCtx, executors_list: Sequence[Executor]) -> TraceCtx:
    """`trace` with every node executed by somebody."""
    ctx = PassContext(executors=executors_list)
    with compile_options(ctx.options):
        return Fusion().apply(TransformForExecution().apply(trace, ctx), ctx)


__all__ = ["Fusion", "TransformForExecution", "del_last_used", "transform_for_execution"]
