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


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        for root in _ROOTS:
            found = getattr(root, name, None)
            if callable(found) and not isinstance(found, type):
                sym = symbol_for(found)
                register_symbol(sym, sym)
                allow_in_graph(sym)
                globals()[name] = sym
                return sym
    raise AttributeError(f"neither thunder.torch nor torch has {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *operations, *dir(_torch), *dir(_torch.nn.functional)})


for _name, _operation in operations.items():
    globals().setdefault(_name, _operation)
