"""The executor of torch's fused attention kernels.

It claims attention that one of these kernels takes. Where gradients are needed, the forward and backward kernels that
torch picks are recorded as a pair, with this executor or without it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from thunder.core.compile_data import get_compile_option
from thunder.core.proxies import TensorProxy
from thunder.core.torch_compat import TorchDispatchMode
from thunder.extend.executor import OperatorExecutor
from thunder.extend.registry import register_executor
from thunder.torch.fakes import result_metadata

SpdaBackend = SDPBackend
"""torch's enumeration of attention kernels, under the name that it has in the interface."""

sdpa_ex = OperatorExecutor("sdpa", version=torch.__version__)
register_executor(sdpa_ex)


class _FusedKernels(TorchDispatchMode):
    """Notes whether a fused attention kernel runs inside."""

    is_used = False

    def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = fn._schema.name.partition("::")[2]
        self.is_used |= name.startswith("_scaled_dot_product") and "math" not in name
        return fn(*args, **(kwargs or {}))


def _runs_fused(*args: Any, **kwargs: Any) -> bool:
    with _FusedKernels() as kernels:
        F.scaled_dot_product_attention(*args, **kwargs)
    return kernels.is_used


def _takes_a_fused_kernel(*args: Any, **kwargs: Any) -> bool:
    """Whether torch runs this call by one of its fused kernels, on whatever device its tensors are."""
    is_fused = result_metadata(_runs_fused, args, kwargs)
    if not is_fused and get_compile_option("sdpa_debug", "warn why an attention kernel is not eligible"):
        tensors = ", ".join(a.type_string() for a in args if isinstance(a, TensorProxy))
        warnings.warn(f"sdpa: no fused attention kernel takes {tensors}; torch multiplies out the scores", stacklevel=2)
    return is_fused


sdpa_ex.implements(F.scaled_dot_product_attention, F.scaled_dot_product_attention, checker=_takes_a_fused_kernel)
