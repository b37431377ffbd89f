"""Primitives of prologues: they fetch the program's inputs from where the call has them, and check them."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.errors import GuardError
from thunder.core.prims.base import make_prim
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Traits

_KEPT = Traits(is_kept=True)


def _unpack_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> str:
    return f'{out.name} = {args[0]}  # {out.name}: "{out.type_string()}"'


unpack_source = make_prim(
    "UNPACK_SOURCE", "unpack_source", meta=lambda source, like: like, python_printer=_unpack_printer,
    python_impl=lambda source, like: like, traits=_KEPT, tags=(OpTags.DONT_DCE,),
)  # fmt: skip
unpack_source.__dict__["__doc__"] = "The value of `source`, an expression of the call's locals `L` and globals `G`."


def _check_tensor(
    t: Any, shape: tuple[int, ...], device: str, dtype: torch.dtype, requires_grad: bool
) -> None:
    """Raises GuardError unless `t` is a tensor with this metadata; a size of -1 fits any."""
    if not isinstance(t, torch.Tensor):
        raise GuardError(f"expected a tensor, but got {t!r} of type {type(t).__name__}")
    sizes = tuple(-1 if wanted == -1 else size for size, wanted in zip(t.shape, shape, strict=False))
    found = (len(t.shape), sizes, str(t.device), t.dtype, t.requires_grad)
    if found != (len(shape), shape, device, dtype, requires_grad):
        raise GuardError(
            f"expected a tensor of shape {shape}, device {device}, dtype {dtype}, requires_grad={requires_grad}, "
            f"but got shape {tuple(t.shape)}, device {t.device}, dtype {t.dtype}, requires_grad={t.requires_grad}"
        )


def _check_meta(t: TensorProxy, shape: Any, device: str, dtype: Any, requires_grad: bool) -> None:
    return None


check_tensor_shape_and_metadata = make_prim(
    "CHECK_TENSOR_SHAPE_AND_METADATA", "check_tensor_shape_and_metadata", meta=_check_meta, python_impl=_check_tensor,
    traits=_KEPT, tags=(OpTags.DONT_DCE,),
)  # fmt: skip
