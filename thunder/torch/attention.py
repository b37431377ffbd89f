"""Scaled dot product attention."""

from __future__ import annotations

import math

import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import get_computation_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.torch.op import op
from thunder.torch.reductions import softmax_of


def _heads_repeated(a: TensorProxy, query: TensorProxy) -> TensorProxy:
    """`a` with each head repeated, so that it has as many as `query`."""
    heads, wanted = a.shape[-3], query.shape[-3]
    check(wanted % heads == 0, lambda: f"attention: {wanted} query heads for {heads} heads", ThunderRuntimeError)
    spread = clang.expand(clang.unsqueeze(a, a.ndim - 2), (*a.shape[:-2], wanted // heads, *a.shape[-2:]))
    return clang.reshape(spread, (*a.shape[:-3], wanted, *a.shape[-2:]))


def _masked(scores: TensorProxy, mask: TensorProxy | None, is_causal: bool) -> TensorProxy:
    if is_causal:
        rows = clang.unsqueeze(clang.arange(start=0, stop=scores.shape[-2], step=1, device=scores.device), 1)
        columns = clang.arange(start=0, stop=scores.shape[-1], step=1, device=scores.device)
        return clang.where(clang.ge(rows, columns), scores, -math.inf)
    if mask is None:
        return scores
    if mask.dtype is dtypes.bool8:
        return clang.where(mask, scores, -math.inf)
    return clang.add(scores, maybe_convert_to_dtype(mask, scores.dtype))


@op(
    F.scaled_dot_product_attention,
    samples="nn.functional.scaled_dot_product_attention",
    tags=(OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,),
)
def scaled_dot_product_attention(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    attn_mask: TensorProxy | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorProxy:
    """softmax(query @ key.T * scale + mask) @ value.

    Args:
        query, key, value: (..., heads, length, features).
        attn_mask: broadcast with the scores; booleans say what takes part, other numbers are added. Rows of which
            nothing takes part give 0.
        scale: 1 / sqrt(features of `query`) by default.
    """
    if dropout_p != 0.0 or query.ndim < 2:
        raise NoDecompositionError("the kernels draw the random numbers of their dropout in orders of their own")
    check(
        not (is_causal and attn_mask is not None),
        lambda: "attention: explicit attn_mask and is_causal",
        ThunderRuntimeError,
    )
    if enable_gqa:
        key, value = _heads_repeated(key, query), _heads_repeated(value, query)
    kind, wide = query.dtype, get_computation_dtype(query.dtype)
    q, k, v = (maybe_convert_to_dtype(t, wide) for t in (query, key, value))
    scores = prims.matmul(q, clang.matrix_transpose(k))
    scores = clang.mul(scores, 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = _masked(scores, attn_mask, is_causal)
    weights = softmax_of(scores, -1)
    if (attn_mask is not None and attn_mask.dtype is dtypes.bool8) or is_causal:
        top = clang.unsqueeze(prims.amax(scores, (scores.ndim - 1,)), scores.ndim - 1)
        weights = clang.where(clang.eq(top, -math.inf), 0.0, weights)
    return maybe_convert_to_dtype(prims.matmul(weights, v), kind)
