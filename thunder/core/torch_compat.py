"""What is private in torch and used here. A test imports every name, so that a move shows at once."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import SequenceKey

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode",
    "HigherOrderOperator", "OpOverload", "OpOverloadPacket", "PLAIN_TENSORS", "SequenceKey",
    "TorchDispatchMode", "allow_in_graph", "allowed_later", "asks_for_values", "aten_packet", "dynamo_compat",
    "enable_python_dispatcher", "expression_of", "fake_mode_of_tracing", "functorch_is_active",
    "guard_or_false", "guard_or_true", "guards_of_capture", "has_aten_tag", "is_functorch_value", "is_mutable",
    "is_static_input", "late_module", "likeness_check", "method_key", "no_autocast", "onednn_linear", "source_of_input",
    "storage_key", "storage_use_count", "tracing_fake_mode", "unbacked_bool", "unbacked_size",
    "without_saved_tensor_hooks",
]  # fmt: skip


def late_module(name: str) -> Any:
    """A module of torch that takes seconds to import, when it is needed."""
    return importlib.import_module(name)


_allowed_later: list[Any] = []


def allow_in_graph(fn: Any) -> None:
    """`torch.compiler.allow_in_graph`, put off until Dynamo is loaded."""
    if "thunder.core.dynamo_compat" in sys.modules:
        torch.compiler.allow_in_graph(fn)
    else:
        _allowed_later.append(fn)


def allowed_later() -> list[Any]:
    """What is waiting for Dynamo; the caller takes it over."""
    waiting = _allowed_later[:]
    _allowed_later.clear()
    return waiting


def dynamo_compat() -> Any:
    """The module with what is used of Dynamo, which takes longer to import than all of thunder."""
    return late_module("thunder.core.dynamo_compat")


def dynamo_errors() -> Any:
    """The module with Dynamo's exceptions."""
    return late_module("torch._dynamo.exc")


def _symbolic_shapes() -> Any:
    return late_module("torch.fx.experimental.symbolic_shapes")


def guard_or_false(condition: Any) -> bool:
    """A condition on sizes; False, without a guard, where it is not known."""
    return condition if isinstance(condition, bool) else _symbolic_shapes().guard_or_false(condition)


def guard_or_true(condition: Any) -> bool:
    """A condition on sizes; True, without a guard, where it is not known."""
    return condition if isinstance(condition, bool) else _symbolic_shapes().guard_or_true(condition)


def asks_for_values(e: BaseException) -> bool:
    """Whether torch raised `e` because it needs values, or sizes that depend on values, while it has none."""
    if isinstance(e, DataDependentOutputException | DynamicOutputShapeException):
        return True
    loaded = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return loaded is not None and isinstance(e, loaded.GuardOnDataDependentSymNode)


def _shape_env_of(t: torch.Tensor) -> Any:
    """What makes symbols for values of a fake tensor; None where no program is captured with such symbols."""
    return t.fake_mode.shape_env if isinstance(t, FakeTensor) else None


def unbacked_size(t: torch.Tensor, most: int | None = None) -> Any:
    """A symbol for a size that depends on the values of `t`, at most `most`; None where there are no such symbols."""
    env = _shape_env_of(t)
    if env is None:
        return None
    size = env.create_unbacked_symint()
    _symbolic_shapes()._constrain_range_for_size(size, max=most)
    return size


def unbacked_bool(t: torch.Tensor) -> Any:
    """A symbol for a bool that depends on the values of `t`; None where there are no such symbols."""
    env = _shape_env_of(t)
    return None if env is None else env.create_unbacked_symbool()


def method_key(name: str) -> Any:
    """Dynamo's name for the step from a tensor to `tensor.<name>()` in the path to an unbacked number."""
    return _symbolic_shapes().CallMethodKey(name)


def guards_of_capture() -> list[tuple[Any, str]]:
    """(source, kind) of each guard that the capture under way has installed so far; see `expression_of`."""
    context = TracingContext.try_get()
    if context is None:
        return []
    guards = []
    for guard in context.guards_context.dynamo_guards:
        create = getattr(guard.create_fn, "func", guard.create_fn)
        guards.append((guard.originating_source, getattr(create, "__name__", str(create))))
    return guards


def expression_of(source: Any) -> str:
    """A source as an expression of the call's locals `L` and globals `G`; "" for the state of torch."""
    name = source.name
    return name() if callable(name) else name


def source_of_input(placeholder: Any) -> Any:
    """Where a captured graph's input comes from; None for what is computed from other inputs."""
    return getattr(placeholder.meta.get("grapharg"), "source", None)


def is_static_input(placeholder: Any) -> bool:
    """Whether Dynamo says that a captured graph's input stays where it is between calls, as parameters do."""
    return "_dynamo_static_input_type" in (placeholder.meta.get("tensor_dict") or ())


def without_saved_tensor_hooks() -> AbstractContextManager[None]:
    """In this block, what autograd saves stays as it is: the hooks in force are for the user's program."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def no_autocast(fn: Callable) -> Callable:
    """`fn`, run without autocast: the conversions of a compiled program are among its operations."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return fn(*args, **kwargs)
        with torch._C._DisableAutocast():
            return fn(*args, **kwargs)

    return run


def preserve_versions(tensors: list[torch.Tensor]) -> Any:
    """A context whose writes to the tensors leave no trace in their version counters."""
    return torch.autograd._unsafe_preserve_version_counter(tuple(tensors))


def real_tensors_only() -> Any:
    """A context without fake-tensor modes and other dispatch modes: tensors made inside have memory."""
    return _disable_current_modes()


def tracing_fake_mode() -> FakeTensorMode | None:
    """The fake-tensor mode of the Dynamo compilation that is running, or None."""
    context = TracingContext.try_get()
    return context.fake_mode if context is not None else None


@contextmanager
def fake_mode_of_tracing(mode: FakeTensorMode) -> Iterator[None]:
    """Makes `mode` what `tracing_fake_mode` gives."""
    with tracing(TracingContext(mode)):
        yield


# Other subclasses, as fakes, may have no memory.
PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))


def likeness_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A quick test of as many tensors as these, one or more: same types, dtypes, devices, sizes, strides and dispatch.

    What is negated or conjugated lazily is dispatched in another way, and so is what requires grad.
    """
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    guards: Any = TensorGuards  # its stub leaves out the tensors
    return guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def storage_key(t: torch.Tensor) -> int | None:
    """An id of the tensor's storage, equal for tensors that share memory; None for layouts without one."""
    if t.layout is not torch.strided:
        return None
    try:
        return t.untyped_storage()._cdata
    except NotImplementedError:
        return None


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """How many tensors and storage objects refer to the memory, those that only autograd keeps included."""
    return torch._C._storage_Use_Count(storage._cdata)


def aten_packet(name: str) -> OpOverloadPacket | None:
    """The aten operation of this name, or None."""
    try:
        found = getattr(torch.ops.aten, name, None)
        return found if isinstance(found, OpOverloadPacket) else None
    except (AttributeError, RuntimeError):
        return None


@functools.cache
def has_aten_tag(name: str, *tags: torch.Tag) -> bool:
    """Whether an overload of the aten operation of this name has one of the tags."""
    packet = aten_packet(name)
    overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
    return any(tag in o.tags for o in overloads for tag in tags)


@functools.cache
def onednn_linear() -> OpOverload | None:
    """oneDNN's `(x, w, bias, "none", [], "") -> x @ w.t() + bias`; None where torch comes without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


def overload_of(custom_op: Any) -> OpOverload:
    """What the dispatcher has of a `torch.library.custom_op`."""
    return custom_op._opoverload


def is_mutable(op: OpOverload) -> bool:
    """Whether an operation writes to any of its arguments."""
    return op._schema.is_mutable


functorch_is_active = torch._C._are_functorch_transforms_active  # whether a torch.func transform runs


def is_functorch_value(x: Any) -> bool:
    """Whether a value is a tensor of a torch.func transform (vmap, grad), valid only at the transform's level."""
    return isinstance(x, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x)
