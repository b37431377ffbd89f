"""Torch functions that look at values, and that torch's own rules for tensors without data refuse.

Most only check values, and the metadata of their results does not depend on these. Some give a number or a size that
does: while a program is captured this is a symbol, as the result of `item` or `nonzero` is. All run as a whole, as in
eager; what stands in for their results until then is made here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from thunder.core.pytree import tree_map
from thunder.core.torch_compat import DynamicOutputShapeException, TorchDispatchMode, unbacked_bool, unbacked_size


class _Reading(TorchDispatchMode):
    """Tensors without data read as one number, with which the checks pass."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
            return kind(self.number)
        if func is torch.ops.aten.equal.default:
            return bool(self.number)
        return func(*args, **(kwargs or {}))


def _reading(fn: Callable, number: int) -> Callable:
    """`fn` on tensors that read as `number`."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        with _Reading(number), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about values that nobody has
            return fn(*args, **kwargs)

    return stand_in


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes >= 0:
        return _reading(F.one_hot, 0)(tensor, num_classes)
    classes = unbacked_size(tensor)
    return F.one_hot(tensor, num_classes) if classes is None else tensor.new_empty((*tensor.shape, classes))


def _read_as_bool(fn: Callable) -> Callable:
    """`fn`, whose result is a bool that nobody knows yet."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        value = unbacked_bool(args[0] if args else kwargs["input"])
        return fn(*args, **kwargs) if value is None else value

    return stand_in


def _lstsq(
    input: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None, out: Any = None
) -> Any:
    torch._check(input.ndim > 1, lambda: "torch.linalg.lstsq: input must have at least 2 dimensions.")
    torch._check(b.ndim > 0, lambda: "torch.linalg.lstsq: other must have at least 1 dimension.")
    batch, (m, n) = input.shape[:-2], input.shape[-2:]
    is_vector = b.ndim == 1 or (input.ndim - 1 == b.ndim and b.shape == input.shape[:-1])
    columns = 1 if is_vector else b.shape[-1]
    driver = driver or ("gelsy" if input.device.type == "cpu" else "gels")
    by_singular_values = driver in ("gelsd", "gelss")
    residuals: tuple = (*batch, columns) if m > n and driver != "gelsy" else (0,)
    if m > n and by_singular_values:  # where a matrix has not full rank there are none
        size = unbacked_size(input, most=residuals[0])
        if size is None:
            return torch.linalg.lstsq(input, b, rcond, driver=driver)
        residuals = (size, *residuals[1:])
    # The sum is there for autograd: solutions and residuals are differentiable.
    total = input.sum() + b.sum()
    solution = total.expand((*batch, columns, max(m, n))).clone().mT[..., :n, :]
    solution = solution.squeeze(-1) if is_vector else solution
    rank = input.new_empty((0,) if driver == "gels" else batch, dtype=torch.int64)
    values = input.new_empty((*batch, min(m, n)) if by_singular_values else (0,), dtype=input.real.dtype)
    result = solution, total.expand(residuals).real.clone(), rank, values
    for given, made in zip(out or (), result):
        given.resize_(made.shape).copy_(made)
    return torch.return_types.linalg_lstsq(result) if out is None else torch.return_types.linalg_lstsq_out(out)


def _batch_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """No result's metadata depends on the momentum, which a module of cumulative averages reads from its counter."""
    args, kwargs = tree_map(lambda a: 0.1 if isinstance(a, torch.SymFloat) else a, (args, kwargs))
    return F.batch_norm(*args, **kwargs)


def _tensor_split(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
        # Views that begin and end where the values say: refused.
        raise DynamicOutputShapeException(torch.ops.aten.tensor_split.tensor_indices_or_sections)
    return torch.tensor_split(input, *args, **kwargs)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    shape = log_probs.shape[1:-1] if reduction == "none" else ()
    # The sum is there for autograd: the loss is differentiable.
    return log_probs.sum().expand(shape).clone()


def _istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    hop = n_fft // 4 if hop_length is None else hop_length
    samples = n_fft + hop * (input.shape[-1] - 1) - (2 * (n_fft // 2) if center else 0)
    shape = (*input.shape[:-2], samples if length is None else length)
    total = input.sum() if return_complex else input.sum().real
    return total.expand(shape).clone()


def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    n = input.shape[0]
    shape = (math.comb(n + r - 1 if with_replacement else n, r), r) if r else (0,)
    return input.sum().expand(shape).to(input.dtype).clone()


_STAND_INS: dict[Any, Callable] = {
    torch.cov: _reading(torch.cov, 1),
    torch.Tensor.cov: _reading(torch.Tensor.cov, 1),
    torch.corrcoef: _reading(torch.corrcoef, 1),
    torch.Tensor.corrcoef: _reading(torch.Tensor.corrcoef, 1),
    F.gaussian_nll_loss: _reading(F.gaussian_nll_loss, 0),
    F.one_hot: _one_hot,
    F.ctc_loss: _ctc_loss,
    torch.istft: _istft,
    torch.Tensor.istft: _istft,
    torch.combinations: _combinations,
    torch.linalg.lstsq: _lstsq,
    F.batch_norm: _batch_norm,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
    torch.equal: _read_as_bool(torch.equal),
    torch.Tensor.equal: _read_as_bool(torch.Tensor.equal),
    torch.allclose: _read_as_bool(torch.allclose),
    torch.Tensor.allclose: _read_as_bool(torch.Tensor.allclose),
}


def stand_in_for(fn: Callable) -> Callable:
    """What gives the results of `fn` on tensors without data: itself, unless it reads values."""
    try:
        return _STAND_INS.get(fn, fn)
    except TypeError:  # not hashable
        return fn
