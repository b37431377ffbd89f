"""What is private in torch and used here. A test imports every name, so that a move shows at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "FakeTensor", "FakeTensorMode", "HigherOrderOperator", "OpOverload", "OpOverloadPacket", "TorchDispatchMode",
    "aten_packet", "compile_with_dynamo", "is_mutable", "storage_key", "tracing_fake_mode",
]  # fmt: skip

_COMPILE_PARAMETERS = frozenset(inspect.signature(torch.compile).parameters)
# More than any program needs; torch counts recompilations per compiled callable from 2.13 on.
_RECOMPILE_LIMIT = 1 << 20


def compile_with_dynamo(fn: Callable, *, backend: Callable, fullgraph: bool, dynamic: bool | None, options: Any) -> Callable:
    """`torch.compile` with a cache of its own and no limit on recompilations, where this torch offers that."""
    extra: dict[str, Any] = {}
    if "isolate_recompiles" in _COMPILE_PARAMETERS:
        extra["isolate_recompiles"] = True
    if "recompile_limit" in _COMPILE_PARAMETERS:
        extra["recompile_limit"] = _RECOMPILE_LIMIT
    return torch.compile(fn, backend=backend, fullgraph=fullgraph, dynamic=dynamic, options=options, **extra)


def tracing_fake_mode() -> FakeTensorMode | None:
    """The fake-tensor mode of the Dynamo compilation that is running, or None."""
    context = TracingContext.try_get()
    return context.fake_mode if context is not None else None


def storage_key(t: torch.Tensor) -> int | None:
    """An id of the tensor's storage, equal for tensors that share memory; None for layouts without one."""
    if t.layout is not torch.strided:
        return None
    try:
        return t.untyped_storage()._cdata
    except NotImplementedError:
        return None


def aten_packet(name: str) -> OpOverloadPacket | None:
    """The aten operation of this name, or None."""
    try:
        return getattr(torch.ops.aten, name, None)
    except (AttributeError, RuntimeError):
        return None


def is_mutable(op: OpOverload) -> bool:
    """Whether an operation writes to any of its arguments."""
    return op._schema.is_mutable
