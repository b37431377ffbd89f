"""Direct capture: the function runs once on fake tensors, and every torch call that it makes is written down as fx.

For programs that Dynamo refuses, such as `autograd_function_apply` called by hand with Python functions, or an autograd
function that is given one tensor twice. What follows is the same as for a graph from Dynamo.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder.core.options import SHARP_EDGES_OPTIONS
from thunder.core.pytree import tree_flatten, tree_unflatten
from thunder.core.sizes import hashable_leaf
from thunder.core.torch_compat import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from thunder.frontend.autograd_functions import functions_recorded
from thunder.frontend.capture import CaptureSettings, CompiledGraph
from thunder.frontend.failures import FROM_CAPTURE, data_dependent_error
from thunder.frontend.python_state import PLAIN_VALUES, python_state, torch_state
from thunder.frontend.recording import Recorder
from thunder.frontend.sharp_edges import edges_among, report
from thunder.frontend.version_checks import fake_like, refusals_of

_BY_HAND = "autograd_function_apply"
_WRITING_BACKWARD = "is a view and its base or another view of its base has been modified inplace"
_REFUSED = ("autograd.Function", "non-contiguous `out=`")


def needs_direct_capture(e: BaseException) -> bool:
    """Whether Dynamo failed where running the function on fake tensors does not.

    An autograd function (the operator called by hand, or a use that it refuses), `out=` with a tensor that is not
    contiguous, a backward that writes to what forward has passed on (which Dynamo runs inside forward), or an
    assertion of Dynamo's own (views of one base, when the program reads the second
    after it has written the first).
    """
    if (isinstance(e, AssertionError) and FROM_CAPTURE in str(e)) or _WRITING_BACKWARD in str(e):
        return True
    kind = str(getattr(e, "gb_type", ""))
    return ("HigherOrderOperator" in kind and _BY_HAND in str(e)) or any(refused in kind for refused in _REFUSED)


@dataclass(frozen=True)
class _Captured:
    """A compiled graph; tensors from outside that it reads besides the arguments; the structure of the result."""

    graph: CompiledGraph
    outer: tuple[torch.Tensor, ...]
    out_spec: Any
    constants: tuple[tuple[int, Any], ...]
    alive: list[Any]


class DirectCapture:
    """Compiles a function by running it on fake tensors, once per structure, metadata and values of its arguments.

    What the function finds elsewhere (closures, globals, modules) is part of what is compared at each call; see
    `python_state` for how far that goes, and for its cost.
    """

    def __init__(
        self, fn: Callable, settings: CaptureSettings, sharp_edges: SHARP_EDGES_OPTIONS = SHARP_EDGES_OPTIONS.ALLOW
    ):
        self.fn, self.settings, self.sharp_edges = fn, settings, sharp_edges
        self.graphs: dict[Any, _Captured] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        state, alive, named = python_state(self.fn, [v for v in flat if not _is_value(v)])
        key = (spec, _guards_of(flat), torch_state(), state)
        captured = self.graphs.get(key)
        if captured is None:
            with self._lock:
                if key not in self.graphs:
                    if self.sharp_edges is not SHARP_EDGES_OPTIONS.ALLOW:
                        report(edges_among(named), self.sharp_edges, getattr(self.fn, "__name__", "the program"))
                    self.graphs[key] = replace(self._capture(flat, spec), alive=alive)
                captured = self.graphs[key]
        tensors = {id(v): v for v in flat if isinstance(v, torch.Tensor)}
        results = list(captured.graph(*tensors.values(), *captured.outer))
        for n, value in captured.constants:
            results[n] = value
        return tree_unflatten(results, captured.out_spec)

    def _capture(self, flat: list[Any], spec: Any) -> _Captured:
        mode = FakeTensorMode()
        outer: dict[int, tuple[torch.Tensor, Any]] = {}
        fakes = _Fakes(mode, [v for v in flat if isinstance(v, torch.Tensor)])

        def enter_outer(real: torch.Tensor) -> Any:
            if id(real) not in outer:
                outer[id(real)] = (real, fakes.of(real))
                recorder.placeholder(f"l_outer_{len(outer)}_", outer[id(real)][1])
            return outer[id(real)][1]

        recorder = Recorder(outer=enter_outer)
        values: list[Any] = []
        for n, v in enumerate(flat):
            if isinstance(v, torch.Tensor):
                if id(v) not in outer:
                    outer[id(v)] = (v, fakes.of(v))
                    recorder.placeholder(f"l_x{n}_", outer[id(v)][1])
                v = outer[id(v)][1]
            values.append(v)
        given = len(outer)
        args, kwargs = tree_unflatten(values, spec)
        try:
            with mode, functions_recorded(recorder):
                result = self.fn(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as e:
            raise data_dependent_error(e) from None
        outs, out_spec = tree_flatten(result)
        constants = tuple((n, o) for n, o in enumerate(outs) if not isinstance(o, torch.Tensor))
        gm = recorder.module(tuple(o if isinstance(o, torch.Tensor) else None for o in outs))
        with mode:
            refusals = refusals_of([fake for _, fake in outer.values()], outs)
        tensors = [real for real, _ in outer.values()]
        graph = CompiledGraph(gm, self.settings, tensors, refusals=refusals)
        return _Captured(graph, tuple(tensors[given:]), out_spec, constants, [])


class _Fakes:
    """Fake tensors for real ones: views of one base are views of one fake base, if several of them are arguments."""

    def __init__(self, mode: FakeTensorMode, tensors: list[torch.Tensor]):
        self.mode = mode
        self._count: dict[int, int] = {}
        self._bases: dict[int, Any] = {}
        for t in {id(t): t for t in tensors}.values():
            key = id(t if t._base is None else t._base)
            self._count[key] = self._count.get(key, 0) + 1

    def of(self, t: torch.Tensor) -> Any:
        """A fake tensor for `t`."""
        base = t if t._base is None else t._base
        if self._count.get(id(base), 0) < 2 or base.requires_grad != t.requires_grad:
            return fake_like(t, self.mode, t.requires_grad, t.is_leaf)
        if id(base) not in self._bases:
            self._bases[id(base)] = fake_like(base, self.mode, base.requires_grad, base.is_leaf)
        fake = self._bases[id(base)]
        if t is base:
            return fake
        with self.mode, torch.enable_grad():
            return fake.as_strided(t.shape, t.stride(), t.storage_offset() - base.storage_offset())


def _guards_of(flat: list[Any]) -> tuple:
    """What a program depends on in its arguments: metadata of tensors, which of them are the same one, other values."""
    first: dict[int, int] = {}
    return tuple(_guard_of(v, first.setdefault(id(v), n)) for n, v in enumerate(flat))


def _guard_of(v: Any, first: int) -> Any:
    if isinstance(v, torch.Tensor):
        return (tuple(v.shape), v.dtype, v.device, v.stride(), v.requires_grad, v.is_leaf, first)
    return hashable_leaf(v) if _is_value(v) else type(v)  # objects are part of `python_state`


def _is_value(v: Any) -> bool:
    """Whether an argument is a tensor, or equal to another by what it holds and hashed so; what is not is an object,
    which has an identity and attributes that may change.
    """
    return isinstance(v, (torch.Tensor, *PLAIN_VALUES)) or type(v).__hash__ not in (None, object.__hash__)
