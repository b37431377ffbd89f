"""einsum as the matrix products that it is, before the gradient is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder.core.errors import NoDecompositionError
from thunder.core.passes import Pass, PassContext
from thunder.core.proxies import tensors_among
from thunder.core.rewrite import KEEP, rewrite
from thunder.core.rules import find_rule, grad_rule
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import has_aten_tag
from thunder.core.trace import TraceCtx
from thunder.executors.torchex import torch_ex
from thunder.extend.executor import Executor
from thunder.torch.linalg import ends_in_product


def _has_own_way(node: BoundSymbol, executors: Sequence[Executor]) -> bool:
    """Whether somebody has said how this operation is run, or differentiated, as a whole."""
    claimed = any(ex is not torch_ex and ex.can_execute(node) for ex in executors)
    return claimed or find_rule(node.sym) is not None or grad_rule(node.sym) is not None


_PRODUCTS = frozenset({"mm", "bmm", "linear", "addmm", "baddbmm"})
_PASS_ON = frozenset({"reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "flatten", "float", "to"})


def _has_own_strides(node: BoundSymbol) -> bool:
    """Whether the node gives a matrix product, whose strides do not follow its factors'."""
    if node.sym.torch_fn is torch.einsum:
        return ends_in_product(*node.args)
    if node.has_effects:
        return False
    # torch.matmul decides by strides how it brings operands of different rank together.
    is_matmul = node.sym.base_name in ("matmul", "__matmul__")
    ranks = {a.ndim for a in tensors_among(node.flat_args)}
    return node.sym.base_name in _PRODUCTS or (is_matmul and len(ranks) == 1)


def _strides_matter(trace: TraceCtx) -> set[str]:
    """Names of values whose strides the program may tell: it returns them, or reads them otherwise than element by
    element or as factors. O(nodes).
    """
    names = {p.name for p in trace.bound_symbols[-1].flat_proxy_args}
    for node in reversed(trace.bound_symbols[:-1]):
        if _has_own_strides(node):
            continue
        passes_on = node.sym.base_name in _PASS_ON or has_aten_tag(node.sym.base_name, torch.Tag.pointwise)
        if not passes_on or node.has_effects or any(o.name in names for o in node.flat_proxy_outs):
            names.update(p.name for p in node.flat_proxy_args)
    return names


@dataclass(frozen=True)
class DecomposeEinsum(Pass):
    """Replaces each `torch.einsum` of several operands by the products that it is made of, unless an executor or a
    gradient rule takes it whole. O(nodes).

    torch's own way and its gradient pad operands to one rank, and copy those whose dims no single product can take (see
    `thunder.torch.linalg`). It stays where a program can tell the strides of the result, for which torch has rules.
    """

    name: ClassVar[str] = "decompose_einsum"
    title: ClassVar[str] = "Decompose einsum"

    def apply(self, trace: TraceCtx, ctx: PassContext) -> TraceCtx:
        if not any(n.sym.torch_fn is torch.einsum for n in trace.bound_symbols):
            return trace

        strides_matter = _strides_matter(trace)

        def rule(node: BoundSymbol) -> Any:
            if node.sym.torch_fn is not torch.einsum or node.call_ctx or _has_own_way(node, ctx.executors):
                return KEEP
            if node.output.name in strides_matter or len(tensors_among(node.flat_args)) < 2:
                return KEEP
            try:
                return node.sym.meta(*node.args, **node.kwargs)  # type: ignore[misc]
            except NoDecompositionError:
                return KEEP

        return rewrite(trace, rule, self.name)
