"""Torch functions that look at values, to check them, though their results' metadata does not depend on these.

They run as a whole, values checked as in eager. What stands in for their results while a program is captured is made
here, since torch's own rules for tensors without data refuse them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from thunder.core.torch_compat import TorchDispatchMode


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
    if num_classes < 0:
        return F.one_hot(tensor, num_classes)  # as many classes as the values say: refused
    return _reading(F.one_hot, 0)(tensor, num_classes)


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
}

VALUE_READERS = frozenset(fn.__name__ for fn in _STAND_INS)
"""Names of these functions."""


def call_on_fakes(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`fn(*args, **kwargs)` on tensors without data, for functions that read values too."""
    return _STAND_INS.get(fn, fn)(*args, **kwargs)
