"""What is private in torch and used here. A test imports every name, so that a move shows at once."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._dynamo
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.variables import ConstDictVariable, ListVariable, higher_order_ops
from torch._guards import TracingContext, tracing
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import CallMethodKey, guard_or_false, guard_or_true
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import SequenceKey

__all__ = [
    "CallMethodKey", "SequenceKey", "enable_python_dispatcher", "guard_or_false", "guard_or_true",
    "DataDependentOutputException", "FakeTensor", "FakeTensorMode", "HigherOrderOperator", "OpOverload",
    "OpOverloadPacket", "TorchDispatchMode",
    "aten_packet", "capture_setting", "compile_with_dynamo", "compile_with_inductor", "expression_of",
    "fake_mode_of_tracing", "guards_of_capture", "is_functorch_value", "is_mutable", "load_inductor_artifact",
    "no_autocast", "source_of_input", "storage_key", "without_saved_tensor_hooks",
    "tracing_fake_mode",
]  # fmt: skip

# torch.compile passes its own on, so what it takes, `torch._dynamo.optimize` takes.
_COMPILE_PARAMETERS = frozenset(inspect.signature(torch.compile).parameters)
# The limits are more than any program needs.
_SETTINGS = {
    "recompile_limit": 1 << 20,
    "accumulated_recompile_limit": 1 << 20,
    "skip_nnmodule_hook_guards": False,  # a hook registered after the first call is part of the program
    "reorderable_logging_functions": {print},  # prints what eager prints, when the program's values are known
}


class _Watched:
    """Dynamo's frame conversion with something around it.

    Dynamo's cache goes by the backend, which it finds through `_torchdynamo_orig_backend`.
    """

    def __init__(self, convert: Callable, around: Callable[[Callable[[], Any]], Any]):
        self._torchdynamo_orig_backend = convert
        self.around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(lambda: self._torchdynamo_orig_backend(*args, **kwargs))


# Logging is no part of a program: captured code runs without it, instead of being refused.
_LOGGING_METHODS = (
    "debug",
    "info",
    "warning",
    "warn",
    "error",
    "critical",
    "exception",
    "log",
    "warning_once",
    "info_once",
)


def _ignore_logging() -> None:
    """Lets captured programs call loggers; libraries add methods of their own to Logger, so this runs per compilation.
    """
    methods = (getattr(logging.Logger, name, None) for name in _LOGGING_METHODS)
    torch._dynamo.config.ignore_logging_functions.update(m for m in methods if m is not None)


@functools.cache
def note_gradient_counts() -> None:
    """Makes Dynamo's graphs of custom backwards say how many gradients the user's function returned.

    Dynamo fills up what is missing with None, where eager raises. The numbers (returned, wanted) are in the meta data
    of the graph's output node, under "gradient_counts". Process-wide; changes nothing else in what Dynamo does.
    """
    variable = getattr(higher_order_ops, "AutogradFunctionApplyVariable", None)
    rewire = getattr(variable, "rewire_bwd_graph_outputs", None)
    if rewire is None:
        return

    @functools.wraps(rewire)
    def wrapped(
        self: Any, fwd_freevars: Any, bwd_out: Any, bwd_graph: Any, bwd_freevars: Any, orig_fwd_args: Any
    ) -> Any:
        items = list(getattr(bwd_out, "items", [bwd_out]))
        while len(items) > len(orig_fwd_args) and getattr(items[-1], "value", 0) is None:
            items.pop()
        counts = (len(items), len(orig_fwd_args))
        if counts[0] < counts[1] and hasattr(bwd_out, "items"):
            # Dynamo would look for gradients that are not there.
            padding = higher_order_ops.ConstantVariable.create(None)
            bwd_out.items.extend([padding] * (counts[1] - counts[0]))
        result = rewire(self, fwd_freevars, bwd_out, bwd_graph, bwd_freevars, orig_fwd_args)
        for node in bwd_graph.nodes:
            node.meta["gradient_counts"] = counts
        return result

    variable.rewire_bwd_graph_outputs = wrapped  # type: ignore[union-attr]


def compile_with_dynamo(
    fn: Callable,
    *,
    backend: Callable,
    dynamic: bool,
    around: Callable[[Callable[[], Any]], Any],
    guard_failed: Callable[[str], None],
    guard_filter: Callable[[Any], Any] | None = None,
) -> Callable:
    """`torch.compile(fullgraph=True)` with a cache of its own, where this torch offers that.

    Args:
        around: called with each capture to be made, a function without arguments; returns what that returns.
        guard_failed: told, when a call fits no program, what about it did not fit, once per program.
        guard_filter: from guards to a list of bools, False for those to leave out.
    """
    _ignore_logging()
    note_gradient_counts()
    extra: dict[str, Any] = {"isolate_recompiles": True}
    context = torch._dynamo.optimize(
        backend=backend,
        nopython=True,
        dynamic=dynamic,
        guard_filter_fn=guard_filter,
        guard_fail_fn=lambda failure: guard_failed(failure.reason),
        **{name: value for name, value in extra.items() if name in _COMPILE_PARAMETERS},
    )
    if not hasattr(context, "callback"):  # Dynamo is switched off
        return context(fn)
    context.callback = _Watched(context.callback, around)  # type: ignore[arg-type]
    return context(fn)


def _unpack_guarded(original: Callable) -> Callable:
    """Dynamo's unpacking of a dict's keys, with the guard on their order that it leaves out."""

    def unpack_var_sequence(self: Any, tx: Any) -> Any:
        if self.source is not None:
            tx.output.guard_on_key_order.add(self.source)
        return original(self, tx)

    return unpack_var_sequence


def _extend_guarded(original: Callable) -> Callable:
    """Dynamo's calls of list methods; it guards nothing of a dict that a list is extended by (`list(d)`, `[*d]`)."""

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "extend" and len(args) == 1 and isinstance(args[0], ConstDictVariable):
            args[0].unpack_var_sequence(tx)
        return original(self, tx, name, args, kwargs)

    return call_method


@contextmanager
def _patched(owner: Any, name: str, make: Callable[[Callable], Callable]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def capture_setting() -> Iterator[None]:
    """How Dynamo captures in this block: without a limit on recompilations, guarding what it may leave out, quietly.

    Errors come as exceptions, so torch need not log them, too. One thread at a time is inside: torch's settings,
    warning filters and loggers are the process's.
    """
    with (
        compile_lock,
        warnings.catch_warnings(),
        torch._dynamo.config.patch(_SETTINGS),
        _silenced(logging.getLogger("torch._subclasses.fake_tensor")),
        _patched(ConstDictVariable, "unpack_var_sequence", _unpack_guarded),
        _patched(ListVariable, "call_method", _extend_guarded),
    ):
        for message in ("The .grad attribute of a Tensor that is not a leaf", "Dynamo does not know how to trace"):
            warnings.filterwarnings("ignore", message=message)
        yield


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
        found = getattr(torch.ops.aten, name, None)
        return found if isinstance(found, OpOverloadPacket) else None
    except (AttributeError, RuntimeError):
        return None


def is_mutable(op: OpOverload) -> bool:
    """Whether an operation writes to any of its arguments."""
    return op._schema.is_mutable


def is_functorch_value(x: Any) -> bool:
    """Whether a value is a tensor of a torch.func transform (vmap, grad), valid only at the transform's level."""
    return isinstance(x, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x)


def _module(name: str) -> Any:
    """A module of torch that takes seconds to import, when it is needed."""
    return importlib.import_module(name)


def compile_with_inductor(
    fn: Callable, inputs: Sequence[torch.Tensor], mode: str | None = None
) -> tuple[Callable[..., Any], bytes | None]:
    """`fn` compiled by Inductor for inputs with the metadata, strides included, of `inputs`.

    Args:
        fn: a function of tensors that returns a flat list of tensors and writes to none.
        inputs: their values are not looked at.
        mode: as that of `torch.compile`, such as "max-autotune-no-cudagraphs".

    Returns: (a callable that gives a sequence of tensors, the same as bytes for `load_inductor_artifact`, or None where
        this program cannot be kept).
    """
    inductor = _module("torch._inductor")
    make_fx = _module("torch.fx.experimental.proxy_tensor").make_fx
    with torch.no_grad(), torch._C._DisableAutocast():
        with FakeTensorMode():
            fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in inputs]
            gm = make_fx(fn)(*fakes)
        options = {} if mode is None else {"config_patches": inductor.list_mode_options(mode)}
        artifact = inductor.standalone_compile(gm, fakes, dynamic_shapes="from_graph", options=options)
    return artifact, _artifact_bytes(artifact)


def _artifact_bytes(artifact: Any) -> bytes | None:
    if not artifact.is_saveable():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "artifact")
        artifact.save(path=path, format="binary")
        with open(path, "rb") as f:
            return f.read()


def load_inductor_artifact(content: bytes) -> Callable[..., Any]:
    """The callable that `compile_with_inductor` gave as bytes. Raises whatever torch does if they are not its own."""
    inductor = _module("torch._inductor")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "artifact")
        with open(path, "wb") as f:
            f.write(content)
        return inductor.CompiledArtifact.load(path=path, format="binary")
