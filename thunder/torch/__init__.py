"""torch in traces: each torch callable as a symbol, hand-written with a decomposition, or made from torch itself.

`thunder.torch.<name>` is the symbol of torch's, torch.nn.functional's, torch.special's or torch.Tensor's `<name>`.
"""

from __future__ import annotations

from typing import Any

import torch as _torch

from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy as TensorLike
from thunder.core.torch_compat import allow_in_graph
from thunder.torch import (
    attention,
    conv_pool,
    creation,
    elementwise,
    indexing,
    langctx,
    linalg,
    losses,
    nn,
    norms,
    random,
    reductions,
    resample,
    shape,
)
from thunder.torch.langctx import torchctx
from thunder.torch.op import Operation, op, operations
from thunder.torch.registry import _torch_to_thunder_function_map, register_symbol, symbol_for

_ROOTS = (_torch, _torch.nn.functional, _torch.special, _torch.Tensor)
_FAMILIES = (
    attention, conv_pool, creation, elementwise, indexing, langctx, linalg, losses, nn, norms, random, reductions,
    resample, shape,
)  # fmt: skip

__all__ = [
    "Operation", "TensorLike", "_torch_to_thunder_function_map", "op", "operations", "register_symbol", "symbol_for",
    "to_torch_dtype", "torchctx",
]  # fmt: skip


# Names of the interface for operations that torch knows under other names.
_OTHER_NAMES: dict[str, Any] = {
    "all_tensor": _torch.all,
    "any_tensor": _torch.any,
    "torch_max": _torch.max,
    "torch_type": _torch.Tensor.type,
    "setitem_": _torch.Tensor.__setitem__,
    "reverse_dims_T": _torch.Tensor.T.__get__,
    "matrix_transpose": _torch.Tensor.mT.__get__,
}

checkpoint = _torch.utils.checkpoint.checkpoint
autograd_function_apply = _torch.ops.higher_order.autograd_function_apply


def _named(name: str) -> Any:
    """The torch callable called `name`, or None."""
    candidates = (_OTHER_NAMES.get(name), *(getattr(root, name, None) for root in _ROOTS))
    return next((f for f in candidates if callable(f) and not isinstance(f, type)), None)


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else _named(name)
    if found is None:
        raise AttributeError(f"neither thunder.torch nor torch has {name!r}")
    sym = symbol_for(found)
    register_symbol(sym, sym)
    allow_in_graph(sym)
    globals()[name] = sym
    return sym


def __dir__() -> list[str]:
    return sorted({*globals(), *operations, *dir(_torch), *dir(_torch.nn.functional)})


for _name, _operation in operations.items():
    globals().setdefault(_name, _operation)
