"""Losses, reduced by mean or sum, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import maybe_broadcast, maybe_convert_to_dtype
from thunder.core import dtypes
from thunder.core.dims import numel
from thunder.core.errors import NoDecompositionError, ThunderValueError
from thunder.core.proxies import TensorProxy
from thunder.torch.op import op
from thunder.torch.reductions import log_softmax_of, mean, sum


def _check_legacy(size_average: Any, reduce: Any) -> None:
    if size_average is not None or reduce is not None:
        raise NoDecompositionError("the old arguments size_average and reduce")


def _reduced(loss: TensorProxy, reduction: str) -> TensorProxy:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ThunderValueError(f"{reduction} is not a valid value for reduction")
    return mean.meta(loss) if reduction == "mean" else sum.meta(loss)


def _pointwise(input: TensorProxy, target: TensorProxy, reduction: str, loss: Callable) -> TensorProxy:
    """A loss of each pair of elements."""
    input, target = maybe_broadcast(input, target, treat_cpu_scalar_tensors_as_numbers=False)
    return _reduced(loss(input, target), reduction)


@op(F.mse_loss, samples="nn.functional.mse_loss")
def mse_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: TensorProxy | None = None,
) -> TensorProxy:
    """(input - target) ** 2."""
    _check_legacy(size_average, reduce)
    if weight is not None:
        raise NoDecompositionError("weights")

    def loss(a: TensorProxy, b: TensorProxy) -> TensorProxy:
        difference = clang.sub(a, b)
        return clang.mul(difference, difference)

    return _pointwise(input, target, reduction, loss)


@op(F.l1_loss, samples="nn.functional.l1_loss")
def l1_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: TensorProxy | None = None,
) -> TensorProxy:
    """|input - target|."""
    _check_legacy(size_average, reduce)
    if weight is not None:
        raise NoDecompositionError("weights")
    return _pointwise(input, target, reduction, lambda a, b: clang.abs(clang.sub(a, b)))


def _huber(a: TensorProxy, b: TensorProxy, delta: float, scale: float) -> TensorProxy:
    """scale * (x ** 2 / 2 below delta, delta * (x - delta / 2) above), x the distance."""
    distance = clang.abs(clang.sub(a, b))
    near = clang.mul(clang.mul(0.5, distance), distance)
    far = clang.mul(delta, clang.sub(distance, 0.5 * delta))
    value = clang.where(clang.lt(distance, delta), near, far)
    return value if scale == 1.0 else clang.mul(value, scale)


@op(F.smooth_l1_loss, samples="nn.functional.smooth_l1_loss")
def smooth_l1_loss(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> TensorProxy:
    """Squares of distances below `beta`, over 2 * beta, and distances less beta / 2 above."""
    _check_legacy(size_average, reduce)
    if beta == 0.0:
        return _pointwise(input, target, reduction, lambda a, b: clang.abs(clang.sub(a, b)))
    return _pointwise(input, target, reduction, lambda a, b: _huber(a, b, beta, 1.0 / beta))


@op(F.huber_loss, samples="nn.functional.huber_loss")
def huber_loss(
    input: TensorProxy,
    target: TensorProxy,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: TensorProxy | None = None,
) -> TensorProxy:
    """Half the squares of distances up to `delta`, and delta * (distance - delta / 2) above."""
    if weight is not None:
        raise NoDecompositionError("weights")
    return _pointwise(input, target, reduction, lambda a, b: _huber(a, b, delta, 1.0))


def _weighted(loss: TensorProxy, weight: TensorProxy | None) -> TensorProxy:
    return loss if weight is None else clang.mul(loss, weight)


@op(F.binary_cross_entropy, samples="nn.functional.binary_cross_entropy")
def binary_cross_entropy(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    """-(target * log(input) + (1 - target) * log(1 - input)), the logarithms -100 at least."""
    _check_legacy(size_average, reduce)
    yes = clang.maximum(clang.log(input), -100.0)
    no = clang.maximum(clang.log1p(clang.neg(input)), -100.0)
    loss = clang.sub(clang.mul(clang.sub(target, 1), no), clang.mul(target, yes))
    return _reduced(_weighted(loss, weight), reduction)


@op(F.binary_cross_entropy_with_logits, samples="nn.functional.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: TensorProxy | None = None,
) -> TensorProxy:
    """The binary cross entropy of sigmoid(input), without overflow; `pos_weight` scales its part for the target 1."""
    _check_legacy(size_average, reduce)
    log_sigmoid = clang.sub(clang.minimum(input, 0), clang.log1p(clang.exp(clang.neg(clang.abs(input)))))
    scaled = log_sigmoid
    if pos_weight is not None:
        scaled = clang.mul(clang.add(clang.mul(clang.sub(pos_weight, 1), target), 1), log_sigmoid)
    loss = clang.sub(clang.mul(clang.sub(1, target), input), scaled)
    return _reduced(_weighted(maybe_convert_to_dtype(loss, input.dtype), weight), reduction)


def _classes_last(a: TensorProxy) -> TensorProxy:
    """Class scores (N, C, ...) or (C,) as (rows, C)."""
    if a.ndim == 1:
        return clang.reshape(a, (1, a.shape[0]))
    moved = clang.movedim(a, 1, a.ndim - 1)
    return clang.reshape(moved, (-1, a.shape[1]))


def _nll(
    scores: TensorProxy, target: TensorProxy, weight: TensorProxy | None, ignore_index: int
) -> tuple[TensorProxy, TensorProxy]:
    """(losses, weights) of each target, from log-probabilities (rows, C); ignored ones have weight 0."""
    rows = clang.reshape(target, (-1,))
    counts = clang.ne(rows, ignore_index)
    safe = clang.where(counts, rows, maybe_convert_to_dtype(0, rows.dtype))
    picked = clang.squeeze(clang.gather(scores, clang.unsqueeze(safe, 1), 1), 1)
    weights = clang.full_like(picked, 1.0) if weight is None else clang.take(weight, safe, 0)
    weights = clang.where(counts, weights, maybe_convert_to_dtype(0, weights.dtype))
    return clang.neg(clang.mul(clang.where(counts, picked, maybe_convert_to_dtype(0, picked.dtype)), weights)), weights


def _nll_reduced(losses: TensorProxy, weights: TensorProxy, target: TensorProxy, reduction: str) -> TensorProxy:
    if reduction == "none":
        return clang.reshape(losses, target.shape)
    if reduction not in ("mean", "sum"):
        raise ThunderValueError(f"{reduction} is not a valid value for reduction")
    total = sum.meta(losses)
    return total if reduction == "sum" else clang.true_divide(total, sum.meta(weights))


def _check_scores(a: TensorProxy, target: TensorProxy) -> None:
    if a.ndim == 0 or numel(a.shape) == 0 or not dtypes.is_nonboolean_integer_dtype(target.dtype):
        raise NoDecompositionError("no scores, or targets that are no class numbers")
    if target.dtype is dtypes.uint8:
        raise NoDecompositionError("class numbers of 8 bits")


@op(F.nll_loss, samples="nn.functional.nll_loss")
def nll_loss(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> TensorProxy:
    """-input at the target class, for log-probabilities (N, C, ...) or (C,); the mean is over the weights."""
    _check_legacy(size_average, reduce)
    _check_scores(input, target)
    losses, weights = _nll(_classes_last(input), target, weight, ignore_index)
    return _nll_reduced(losses, weights, target, reduction)


def _with_probabilities(
    scores: TensorProxy, target: TensorProxy, weight: TensorProxy | None, reduction: str, smoothing: float
) -> TensorProxy:
    """The cross entropy with a distribution as target, of the shape of the scores."""
    classes = scores.shape[0] if scores.ndim == 1 else scores.shape[1]
    rows = _classes_last(target)
    if smoothing > 0.0:
        rows = clang.add(clang.mul(rows, 1 - smoothing), smoothing / classes)
    products = clang.mul(_classes_last(scores), rows)
    losses = clang.neg(sum.meta(products if weight is None else clang.mul(products, weight), 1))
    shape = () if scores.ndim == 1 else (scores.shape[0], *scores.shape[2:])
    if reduction == "none":
        return clang.reshape(losses, shape)
    total = sum.meta(losses)
    return total if reduction == "sum" else clang.true_divide(total, numel(shape))


@op(F.cross_entropy, samples="nn.functional.cross_entropy")
def cross_entropy(
    input: TensorProxy,
    target: TensorProxy,
    weight: TensorProxy | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> TensorProxy:
    """The cross entropy of softmax(input) over the classes (dim 1 of (N, C, ...), or the only dim).

    Args:
        target: class numbers, or a distribution in the shape of `input`.
        label_smoothing: the part of the target that goes to all classes alike.
    """
    _check_legacy(size_average, reduce)
    if reduction not in ("none", "mean", "sum"):
        raise ThunderValueError(f"{reduction} is not a valid value for reduction")
    if numel(input.shape) == 0:
        raise NoDecompositionError("no scores")
    scores = log_softmax_of(input, 0 if input.ndim == 1 else 1)
    if tuple(target.shape) == tuple(input.shape):
        return _with_probabilities(scores, target, weight, reduction, label_smoothing)
    _check_scores(input, target)
    rows = _classes_last(scores)
    losses, weights = _nll(rows, target, weight, ignore_index)
    result = _nll_reduced(losses, weights, target, reduction)
    if label_smoothing <= 0.0:
        return result
    counts = maybe_convert_to_dtype(clang.ne(clang.reshape(target, (-1,)), ignore_index), rows.dtype)
    spread = clang.neg(sum.meta(rows if weight is None else clang.mul(rows, weight), 1))
    smooth = _nll_reduced(
        clang.where(clang.ne(counts, 0), spread, 0.0), weights if weight is not None else counts, target, reduction
    )
    part = label_smoothing / rows.shape[1]
    return clang.add(clang.mul(result, 1 - label_smoothing), clang.mul(smooth, part))


@op(F.kl_div, samples="nn.functional.kl_div")
def kl_div(
    input: TensorProxy,
    target: TensorProxy,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> TensorProxy:
    """target * (log(target) - input), for log-probabilities `input`; "batchmean" divides the sum by the first dim."""
    _check_legacy(size_average, reduce)
    if log_target:
        loss = clang.mul(clang.exp(target), clang.sub(target, input))
    else:
        product = clang.where(clang.eq(target, 0), 0.0, clang.mul(target, clang.log(target)))
        loss = clang.sub(product, clang.mul(target, input))
    if reduction == "batchmean":
        total = sum.meta(loss)
        return clang.true_divide(total, input.shape[0]) if input.ndim else total
    return _reduced(loss, reduction)


__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div", "l1_loss",
    "mse_loss", "nll_loss", "smooth_l1_loss",
]  # fmt: skip
