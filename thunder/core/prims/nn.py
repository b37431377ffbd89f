"""Embeddings and their gradient."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.baseutils import check
from thunder.core.errors import ThunderRuntimeError
from thunder.core.prims.base import make_prim
from thunder.core.prims.elementwise import new_tensor
from thunder.core.proxies import TensorProxy


def _embedding_meta(
    a: TensorProxy,
    /,
    weight: TensorProxy,
    *,
    padding_idx: int = -1,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorProxy:
    check(max_norm is None, lambda: "embedding: max_norm writes to the weight", ThunderRuntimeError)
    check(weight.ndim == 2, lambda: f"embedding: the weight has {weight.ndim} dims", ThunderRuntimeError)
    check(a.dtype in (dtypes.int64, dtypes.int32), lambda: f"embedding: indices of type {a.dtype}", ThunderRuntimeError)
    return new_tensor((*a.shape, weight.shape[1]), like=weight)


def _embedding(
    a: torch.Tensor,
    weight: torch.Tensor,
    *,
    padding_idx: int = -1,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    return torch.embedding(weight, a, padding_idx, scale_grad_by_freq, sparse)


embedding = make_prim("EMBEDDING", "embedding", meta=_embedding_meta, torch_fn=_embedding)


def _embedding_backward_meta(
    grad: TensorProxy, indices: TensorProxy, num_weights: int, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> TensorProxy:
    return new_tensor((num_weights, grad.shape[-1]), like=grad)


def _embedding_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> torch.Tensor:
    return torch.ops.aten.embedding_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq, sparse)


embedding_backward = make_prim(
    "EMBEDDING_BACKWARD", "embedding_backward", meta=_embedding_backward_meta, torch_fn=_embedding_backward
)
