"""What is private in Dynamo and used here. Loaded when something is compiled first (`torch_compat.dynamo_compat`)."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables import (
    CatchWarningsCtxManagerVariable,
    ConstDictVariable,
    GradModeVariable,
    ListVariable,
    NNModuleVariable,
    TupleVariable,
    VariableTracker,
    higher_order_ops,
)
from torch._dynamo.variables.misc import (
    AutogradFunctionContextVariable,
    AutogradFunctionVariable,
    DebuggingVariable,
    LoggingLoggerVariable,
)
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from thunder.core import dynamo_messages
from thunder.core.torch_compat import allowed_later

# torch.compile passes its own on, so what it takes, `torch._dynamo.optimize` takes.
_COMPILE_PARAMETERS = frozenset(inspect.signature(torch.compile).parameters)
# The limits are more than any program needs.
_SETTINGS = {
    "recompile_limit": 1 << 20,
    "accumulated_recompile_limit": 1 << 20,
    "skip_nnmodule_hook_guards": False,  # a hook registered after the first call is part of the program
    "allow_rnn": True,  # LSTM, GRU and RNN do not break the graph
    "reorderable_logging_functions": dynamo_messages.MESSAGE_FUNCTIONS,
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


@functools.cache
def watch_custom_functions() -> None:
    """What Dynamo has to be told about custom autograd functions, for the whole process; done once."""
    _note_gradient_counts()
    _refuse_unmaterialized_gradients()
    _inline_as_eager_runs()


def _note_gradient_counts() -> None:
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


def _refuse_unmaterialized_gradients() -> None:
    """Makes Dynamo refuse autograd functions that call `ctx.set_materialize_grads`.

    It inlines the call as an attribute that nothing reads: backward is traced for gradients that are all there, and
    what it does about missing ones is lost. Refused, the function is captured directly, or breaks the graph. The
    refusal holds for the whole process, since the graph does not tell.
    """
    variable = AutogradFunctionContextVariable
    original = variable.var_getattr

    @functools.wraps(original)
    def var_getattr(self: Any, tx: Any, name: str) -> Any:
        if name == "set_materialize_grads":
            unimplemented(
                gb_type="autograd.Function context method set_materialize_grads",
                context=f"{self}.{name}",
                explanation="backward is to be told which gradients are missing, which a captured backward is not",
                hints=[],
            )
        return original(self, tx, name)

    variable.var_getattr = var_getattr  # type: ignore[method-assign]


def _inline_as_eager_runs() -> None:
    """Makes Dynamo inline the forward of an autograd function that has no gradient to pass on as eager runs it.

    That is in no_grad, so that what it reads from outside is not tracked; and an argument that it gives back is another
    tensor of the same memory. Process-wide, as the other two.
    """
    original = AutogradFunctionVariable.call_apply

    @functools.wraps(original)
    def call_apply(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if torch.is_grad_enabled() and _may_require_grad(tx, args, kwargs):
            return original(self, tx, args, kwargs)
        mode = GradModeVariable.create(tx, False, initialized=True)
        try:
            result = original(self, tx, args, kwargs)
            given = {a.as_proxy().node for a in (*args, *kwargs.values()) if a.is_tensor()}
            return _with_aliases(result, tx, given)
        finally:
            mode.exit(tx)

    AutogradFunctionVariable.call_apply = call_apply  # type: ignore[method-assign]


def _may_require_grad(tx: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    found: list[bool] = []

    def visit(variable: Any) -> None:
        if variable.is_tensor():
            found.append(variable.requires_grad is not False)
        elif isinstance(variable, NNModuleVariable):
            found.append(variable.is_training(tx))

    VariableTracker.visit(visit, (args, kwargs))
    return any(found)


def _with_aliases(result: Any, tx: Any, given: set[Any]) -> Any:
    """A function's result with an alias in the place of each tensor that is an argument."""
    if result.is_tensor():
        if result.as_proxy().node not in given:
            return result
        alias = ("detach", []) if result.requires_grad else ("view_as", [result])
        return result.call_method(tx, *alias, {})
    if isinstance(result, TupleVariable | ListVariable):
        return result.clone(items=[_with_aliases(item, tx, given) for item in result.items])
    return result


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
    watch_custom_functions()
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


def _standing_in(original: Callable, stand_in_for: Callable[[Any], Any]) -> Callable:
    """Dynamo's run of a node on fake tensors, with what stands in for functions that read values."""

    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        fn = node.target if node.op == "call_function" else None
        if node.op == "call_method" and args and isinstance(args[0], torch.Tensor):
            fn = getattr(torch.Tensor, node.target, None)
        stand_in = stand_in_for(fn)
        if stand_in is fn:
            return original(tracer, node, args, kwargs, nnmodule)
        called = types.SimpleNamespace(op="call_function", target=stand_in, name=node.name)
        return original(tracer, called, args, kwargs, nnmodule)

    return run_node


@contextmanager
def _patched(owner: Any, name: str, make: Callable[[Callable], Callable]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _unhandled(fn: Callable) -> Iterator[None]:
    """In this block, Dynamo takes a function of torch for one like the others: without a rule of its own for it."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    handler = handlers.pop(fn, None)
    try:
        yield
    finally:
        if handler is not None:
            handlers[fn] = handler


@contextmanager
def _silenced(logger: logging.Logger) -> Iterator[None]:
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def capture_setting(stand_in_for: Callable[[Any], Any]) -> Iterator[None]:
    """How Dynamo captures in this block: without a limit on recompilations, guarding what it may leave out, quietly.

    `stand_in_for` gives for a function what Dynamo calls on fake tensors in its place, or the function itself.

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
        _patched(DebuggingVariable, "call_function", dynamo_messages.noting_messages),
        _patched(LoggingLoggerVariable, "call_method", dynamo_messages.noting_logs),
        _patched(CatchWarningsCtxManagerVariable, "enter", dynamo_messages.noting_start),
        _patched(CatchWarningsCtxManagerVariable, "exit", dynamo_messages.noting_end),
        _patched(torch._dynamo.utils, "run_node", partial(_standing_in, stand_in_for=stand_in_for)),
        _unhandled(torch.nn.functional.one_hot),  # which would refuse a number of classes that depends on values
    ):
        for message in ("The .grad attribute of a Tensor that is not a leaf", "Dynamo does not know how to trace"):
            warnings.filterwarnings("ignore", message=message)
        yield


for _fn in allowed_later():
    torch.compiler.allow_in_graph(_fn)
