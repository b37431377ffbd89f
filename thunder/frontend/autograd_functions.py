"""`torch.autograd.Function` in direct capture: forward and backward run on fake tensors, each into a graph.

What is written down is what Dynamo writes down for it: a call of `autograd_function_apply` with two graphs.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.function import Function

from thunder.core.errors import ThunderRuntimeError, UnsupportedOpError
from thunder.core.torch_compat import preserve_versions
from thunder.frontend.custom_function import BACKWARD_VARIANTS
from thunder.frontend.recording import Recorder

_local = threading.local()
# What `Function.apply` calls in the end, also where a program has kept `MyFunction.apply` from before.
_APPLY_OWNER = torch.autograd.function._SingleLevelFunction
_HIGHER_ORDER = torch.ops.higher_order.autograd_function_apply


@dataclass
class FunctionContext:
    """The `ctx` that forward, setup_context and backward get. Further attributes are the user's."""

    needs_input_grad: tuple[bool, ...]
    to_save: tuple = ()
    dirty_tensors: tuple = ()
    non_differentiable: tuple = ()
    materialize_grads: bool = True
    saved_for_forward: tuple = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple:
        return tuple(self.to_save)


@dataclass
class _Call:
    """One `apply`: what its forward has left."""

    cls: type
    args: tuple
    context: FunctionContext
    recorder: Recorder
    outputs: Any = None
    version_at_save: list[tuple[torch.Tensor, int]] = field(default_factory=list)


def _torch_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own `apply`."""
    return super(_APPLY_OWNER, cls).apply(*args, **kwargs)


@contextmanager
def functions_recorded(recorder: Recorder) -> Any:
    """Inside, calls of `Function.apply` and `autograd_function_apply` of this thread go into `recorder`'s graph."""
    higher_order = type(_HIGHER_ORDER)
    call_higher_order = higher_order.__call__

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        current = getattr(_local, "recorder", None)
        if current is None or current.is_paused:
            return _torch_apply(cls, *args, **kwargs)
        return apply_function(current, cls, args, kwargs)

    def by_hand(op: Any, *args: Any, **kwargs: Any) -> Any:
        current = getattr(_local, "recorder", None)
        if current is None or op is not _HIGHER_ORDER:
            return call_higher_order(op, *args, **kwargs)
        forward, backward, *inputs = args
        return apply_function(current, function_of(forward, backward, inputs, kwargs), tuple(inputs), {})

    with _LOCK:
        outside = vars(_APPLY_OWNER).get("apply")
        _APPLY_OWNER.apply, higher_order.__call__ = classmethod(apply), by_hand  # type: ignore[assignment,method-assign]
        try:
            with recording_into(recorder):
                yield
        finally:
            if outside is None:
                del _APPLY_OWNER.apply
            else:
                _APPLY_OWNER.apply = outside
            higher_order.__call__ = call_higher_order  # type: ignore[method-assign]


# Both replacements are process-wide, so that one capture runs at a time; other threads' calls pass through them.
_LOCK = threading.RLock()


@contextmanager
def recording_into(recorder: Recorder) -> Any:
    """Calls made inside go into `recorder`'s graph."""
    before = getattr(_local, "recorder", None)
    _local.recorder = recorder
    try:
        with recorder:
            yield
    finally:
        _local.recorder = before


def _bound_args(cls: Any, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """All arguments of a function with `setup_context`, by position and with defaults."""
    bound = inspect.signature(cls.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _has_setup_context(cls: Any) -> bool:
    return cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context


def _run_forward(cls: Any, context: Any, args: tuple) -> Any:
    if not _has_setup_context(cls):
        return cls.forward(context, *args)
    outputs = cls.forward(*args)
    cls.setup_context(context, args, outputs)
    return outputs


def apply_function(recorder: Recorder, cls: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`cls.apply(*args)` with fake tensors; its graphs go into `recorder`'s."""
    if _has_setup_context(cls):
        args = _bound_args(cls, args, kwargs)
    elif kwargs:
        raise UnsupportedOpError(f"{cls.__name__}.apply takes no keyword arguments")
    args = tuple(recorder.fake(a) for a in args)
    if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
        return _apply_tracked(recorder, cls, args)
    return _apply_plain(recorder, cls, args)


def _apply_plain(recorder: Recorder, cls: Any, args: tuple) -> Any:
    """Nobody will ask for a gradient: the forward's calls, among those around them."""
    enabled = torch.is_grad_enabled()
    recorder.set_grad_enabled(False)
    call = _Call(cls, args, FunctionContext((False,) * len(args)), recorder)
    with recorder.paused():
        results = _run_in_autograd(call, _resumed(recorder))
    made = call.outputs if isinstance(call.outputs, tuple | list) else [call.outputs]
    for o, result in zip(made, results if isinstance(results, tuple | list) else [results], strict=True):
        if isinstance(o, torch.Tensor) and result is not o:
            # An input that comes back is a new tensor on its memory.
            recorder.add("call_method", "detach", (o,), {}, result)
    recorder.set_grad_enabled(enabled)
    return results


@contextmanager
def _resumed(recorder: Recorder) -> Any:
    before, recorder.is_paused = recorder.is_paused, False
    try:
        yield
    finally:
        recorder.is_paused = before


def _map_outputs(outputs: Any, fn: Callable[[Any], Any]) -> Any:
    return tuple(fn(o) for o in outputs) if isinstance(outputs, tuple | list) else fn(outputs)


def _is_in(t: Any, tensors: Sequence[Any]) -> bool:
    return isinstance(t, torch.Tensor) and any(t is other for other in tensors)


def _fresh_alias(o: Any, args: tuple, context: FunctionContext) -> Any:
    """An input that comes back unwritten is a view of it."""
    if isinstance(o, torch.Tensor) and _is_in(o, args) and not _is_in(o, context.dirty_tensors):
        return o.view_as(o)
    return o


def _apply_tracked(recorder: Recorder, cls: Any, args: tuple) -> Any:
    """Runs the forward inside torch's autograd, so that the results are eager's; then writes both graphs down."""
    needs = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    inner = Recorder(recorder)
    for n, a in enumerate(args):
        inner.placeholder(f"arg_{n}", a)
    inner.set_grad_enabled(False)
    call = _Call(cls, args, FunctionContext(needs), inner)
    with recorder.paused():
        results = _run_in_autograd(call, recording_into(inner))
        backward = _record_backward(call, results)
    outputs = _map_outputs(call.outputs, lambda o: o)
    forward_module = inner.module((outputs, backward.saved))
    single = not isinstance(call.outputs, tuple | list)
    flat = [call.outputs] if single else list(call.outputs)
    skipped = [n for n, o in enumerate(flat) if _is_in(o, call.context.non_differentiable)]
    kwargs = {"non_differentiable_idx": skipped, "saved_for_backward_idx": backward.saved_for_backward}
    node = recorder.call_bodies(
        _HIGHER_ORDER,
        {"fwd_body": forward_module, "bwd_body": backward.graph},
        (*args, *inner.lifted),
        kwargs,
        results,
    )
    node.meta[BACKWARD_VARIANTS] = backward.variants
    return results


def _run_in_autograd(call: _Call, inside: Any) -> Any:
    """Runs the function's forward as torch does; `inside` is the context for it."""

    class Traced(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            context = call.context
            with inside:
                outputs = _run_forward(call.cls, context, args)
                if any(context.needs_input_grad):
                    outputs = _map_outputs(outputs, lambda o: _fresh_alias(o, args, context))
                call.outputs = outputs
            ctx.mark_dirty(*context.dirty_tensors)
            ctx.mark_non_differentiable(
                *(t for t in context.non_differentiable if not _is_in(t, context.dirty_tensors))
            )
            ctx.save_for_backward(*context.to_save)
            ctx.inputs = [(a.shape, a.dtype, a.device) if isinstance(a, torch.Tensor) else None for a in args]
            return call.outputs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            _ = ctx.saved_tensors  # torch checks here that nothing has written to them
            return tuple(
                torch.zeros(meta[0], dtype=meta[1], device=meta[2]) if needed else None
                for meta, needed in zip(ctx.inputs, ctx.needs_input_grad, strict=True)
            )

    Traced.__name__ = call.cls.__name__
    return _torch_apply(Traced, *call.args)


@dataclass
class _Backward:
    """The backward's graph: takes the gradients of the outputs, then the saved values.

    saved: fake tensors. saved_for_backward: positions in `saved` that went through `ctx.save_for_backward`.
    variants: with `ctx.set_materialize_grads(False)`, the graphs for calls in which some gradients are missing, by the
        positions of those outputs, or what backward raises then; None where missing gradients are zeros.
    """

    graph: fx.GraphModule
    saved: list[Any]
    saved_for_backward: list[int]
    variants: dict[frozenset[int], fx.GraphModule | Exception] | None


# With n outputs, backward is recorded 2**n times where it is to be told which gradients are missing.
_MOST_OPTIONAL_GRADIENTS = 6


def _record_backward(call: _Call, results: Any) -> _Backward:
    flat = list(results) if isinstance(results, tuple | list) else [results]
    if call.context.materialize_grads:
        recorder, returned = _backward_run(call, flat, frozenset())
        saved = recorder.lifted
        graph, variants = _backward_module(call, recorder, returned), None
    else:
        variants, saved = _record_variants(call, flat)
        graph = next(v for v in variants.values() if isinstance(v, fx.GraphModule))
    return _Backward(graph, saved, [n for n, t in enumerate(saved) if _is_in(t, call.context.to_save)], variants)


def _record_variants(call: _Call, outputs: list) -> tuple[dict[frozenset[int], Any], list[Any]]:
    """The backward's graph for each set of missing gradients, all of which take the same saved values."""
    runs: dict[frozenset[int], tuple[Recorder, list]] = {}
    variants: dict[frozenset[int], Any] = {}
    for missing in _missing_gradients(call, outputs):
        try:
            runs[missing] = _backward_run(call, outputs, missing)
        except Exception as e:  # a backward need not be ready for gradients that never come
            variants[missing] = e
    if not runs:
        raise next(iter(variants.values()))
    saved = list({id(t): t for recorder, _ in runs.values() for t in recorder.lifted}.values())
    for missing, (recorder, returned) in runs.items():
        recorder.lift(saved)
        variants[missing] = _backward_module(call, recorder, returned)
    return variants, saved


def _missing_gradients(call: _Call, outputs: list) -> list[frozenset[int]]:
    """Each set of outputs that may have no gradient, by position; the smallest one first."""
    tensors = {n for n, o in enumerate(outputs) if isinstance(o, torch.Tensor)}
    optional = sorted(n for n in tensors if outputs[n].requires_grad)
    if len(optional) > _MOST_OPTIONAL_GRADIENTS:
        raise UnsupportedOpError(
            f"{call.cls.__name__} takes missing gradients as None (set_materialize_grads(False)) and has "
            f"{len(optional)} outputs; at most {_MOST_OPTIONAL_GRADIENTS} are supported"
        )
    never = tensors - set(optional)
    return [
        frozenset(never | set(chosen))
        for count in range(len(optional) + 1)
        for chosen in itertools.combinations(optional, count)
    ]


def _backward_run(call: _Call, outputs: list, missing: frozenset[int]) -> tuple[Recorder, list]:
    """Runs the backward on fake gradients; what it calls, and what it returns."""
    recorder = Recorder(call.recorder)
    grads: list[Any] = []
    with call.recorder.paused(), torch.no_grad():
        for n, o in enumerate(outputs):
            given = isinstance(o, torch.Tensor) and n not in missing
            grads.append(torch.empty(o.shape, dtype=o.dtype, device=o.device) if given else None)
            recorder.placeholder(f"grad_{n}", grads[-1])
        # Backward runs later: what it writes does not count for the forward that is still being recorded.
        with preserve_versions(call.recorder.values()), recording_into(recorder):
            returned = call.cls.backward(call.context, *grads)
    returned = list(returned) if isinstance(returned, tuple | list) else [returned]
    return recorder, _checked_count(call, returned)


def _backward_module(call: _Call, recorder: Recorder, returned: list) -> fx.GraphModule:
    """The graph of one run; for what forward has been given besides its arguments, or has to keep, it returns None."""
    for t in recorder.lifted:
        call.recorder.argument(t)
    return recorder.module((*returned, *([None] * len(call.recorder.lifted))))


def _checked_count(call: _Call, grads: list) -> list:
    wanted = len(call.args)
    if len(grads) > wanted and all(g is None for g in grads[wanted:]):
        return grads[:wanted]
    if len(grads) != wanted:
        raise ThunderRuntimeError(
            f"function {call.cls.__name__}Backward returned an incorrect number of gradients "
            f"(expected {wanted}, got {len(grads)})"
        )
    return grads


# autograd_function_apply, called by hand


def function_of(forward: Callable, backward: Callable, inputs: list, kwargs: dict[str, Any]) -> type:
    """The autograd function that `autograd_function_apply(forward, backward, *inputs, **kwargs)` stands for.

    With `args_tensor_mask` (the older form) both callables take a context first, the gradients of outputs without
    gradient are left out, and backward may return gradients for the tensor inputs only.
    """
    skipped = frozenset(kwargs.get("non_differentiable_idx") or ())
    dirty = frozenset(kwargs.get("dirty_idx") or ())
    is_older = kwargs.get("args_tensor_mask") is not None

    class ByHand(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outputs, saved = forward(*_with_context(forward, args))
            ctx.saved = tuple(saved)
            flat = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
            ctx.mark_non_differentiable(*(o for n, o in enumerate(flat) if n in skipped))
            ctx.mark_dirty(*(o for n, o in enumerate(flat) if n in dirty))
            if kwargs.get("saved_for_backward_idx"):
                ctx.save_for_backward(*(ctx.saved[n] for n in kwargs["saved_for_backward_idx"]))
            return outputs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if is_older:
                grads = tuple(g for n, g in enumerate(grads) if n not in skipped)
            result = backward(*_with_context(backward, (*grads, *ctx.saved)))
            result = list(result) if isinstance(result, tuple | list) else [result]
            tensors = [n for n, a in enumerate(inputs) if isinstance(a, torch.Tensor)]
            if len(result) == len(inputs) or len(result) != len(tensors):
                return tuple(result)
            by_position = dict(zip(tensors, result, strict=True))
            return tuple(by_position.get(n) for n in range(len(inputs)))

    def _with_context(fn: Callable, args: tuple) -> tuple:
        if is_older and not isinstance(fn, torch.nn.Module):
            return (None, *args)
        try:
            inspect.signature(fn).bind(*args)
        except TypeError:
            return (None, *args)
        return args

    return ByHand
