"""What two runs of a program must have in common: values, gradients, inputs, who shares memory with whom, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch

import thunder
from thunder.core.pytree import tree_flatten

FUSION_TYPES = ("consecutive", "dataflow")
# (name, options): the rewrites of in-place programs that a user can choose from.
REWRITES = {
    "functionalized": {},
    "alias_updates": {"skip_inplace_functionalization": True},
    "neither": {"skip_inplace_functionalization": True, "skip_inplace_alias_updates": True},
}

every_rewrite = pytest.mark.parametrize("rewrite", list(REWRITES))
_NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, _NO_CUDA])])
every_fusion = pytest.mark.parametrize("fusion_type", FUSION_TYPES)


def leaves_of(x: Any) -> list[Any]:
    """The flat values of nested results."""
    return tree_flatten([x])[0]


def tensors_of(x: Any) -> list[torch.Tensor]:
    return [t for t in leaves_of(x) if isinstance(t, torch.Tensor)]


def autograd_leaves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that the tensors are computed from, in a fixed order."""
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    pending = []
    for t in tensors:
        if t.requires_grad and t.is_leaf:
            found[id(t)] = t
        elif t.grad_fn is not None:
            pending.append(t.grad_fn)
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.setdefault(id(node.variable), node.variable)
        pending.extend(n for n, _ in node.next_functions)
    return list(found.values())


def copies(values: Sequence[Any]) -> list[Any]:
    return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values]


def steps(t: torch.Tensor) -> tuple:
    """Strides; the step of a dimension of one element says nothing."""
    return tuple(step if size > 1 else None for size, step in zip(t.shape, t.stride(), strict=True))


def sharing(values: Sequence[Any], n_inputs: int) -> list[Any]:
    """For each tensor that shares memory with another: the first such, and where in an input's memory it lies."""
    pointers = [t.untyped_storage().data_ptr() if isinstance(t, torch.Tensor) and t.numel() else None for t in values]
    found: list[Any] = []
    for t, p in zip(values, pointers, strict=True):
        if not p or pointers.count(p) == 1:
            found.append(None)
        else:
            first = pointers.index(p)
            found.append((first, t.storage_offset(), steps(t), t.dtype) if first < n_inputs else (first, t.dtype))
    return found


def identity(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """For each output, which input or earlier output it is."""
    known: dict[int, int] = {}
    for n, t in enumerate(inputs):
        if isinstance(t, torch.Tensor):
            known.setdefault(id(t), n)
    found = []
    for n, o in enumerate(outputs):
        found.append(known.get(id(o)) if isinstance(o, torch.Tensor) else None)
        known.setdefault(id(o), n + len(inputs))
    return found


@dataclass
class Observation:
    """One run. `error` is the class of what it raised, with the phase; what comes after an error stays empty.

    Phases: "forward"; "inspection", where torch refuses to say how a tensor was computed; "backward".
    """

    outputs: list[Any] = field(default_factory=list)
    requires_grad: list[Any] = field(default_factory=list)
    inputs_after_forward: list[Any] = field(default_factory=list)
    inputs_require_grad: list[bool] = field(default_factory=list)
    shared_memory: list[Any] = field(default_factory=list)
    strides: list[Any] = field(default_factory=list)
    views: list[bool] = field(default_factory=list)
    same_object: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    inputs_after_backward: list[Any] = field(default_factory=list)
    outputs_after_backward: list[Any] = field(default_factory=list)
    error: Any = None
    message: str = ""


def observe(
    fn: Callable, args: Sequence[Any], watched: Sequence[Any] = (), *, kwargs: Any = None, seed: int = 0
) -> Observation:
    """Runs `fn(*args)` forward and, where an output or a written input has a gradient, backward.

    watched: further tensors that the program may write, such as parameters and buffers.
    """
    seen = Observation()
    inputs = leaves_of([list(args), kwargs or {}, list(watched)])
    leaves = autograd_leaves([t for t in inputs if isinstance(t, torch.Tensor)])
    torch.manual_seed(seed)
    try:
        outputs = leaves_of(fn(*args, **(kwargs or {})))
    except Exception as e:
        seen.error, seen.message = ("forward", error_kind(e)), str(e)
        return seen
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    try:
        roots = [t for t in (*tensors, *tensors_of(outputs)) if t.requires_grad and not t.is_leaf]
        _ = [t.grad_fn for t in roots]
    except RuntimeError as e:
        seen.error, seen.message = ("inspection", RuntimeError), str(e)
        return seen
    seen.outputs, seen.inputs_after_forward = copies(outputs), copies(inputs)
    seen.requires_grad = [isinstance(o, torch.Tensor) and o.requires_grad for o in outputs]
    seen.inputs_require_grad = [t.requires_grad for t in tensors]
    seen.shared_memory = sharing([*inputs, *outputs], len(inputs))
    seen.strides = [steps(o) if isinstance(o, torch.Tensor) and o.numel() else None for o in outputs]
    seen.views = [isinstance(o, torch.Tensor) and o._is_view() for o in outputs]
    seen.same_object = identity(outputs, inputs)
    if not roots:
        return seen
    torch.manual_seed(seed + 1)
    cotangents = [torch.rand_like(t) for t in roots]
    try:
        torch.autograd.backward(roots, cotangents)
    except Exception as e:
        seen.error, seen.message = ("backward", error_kind(e)), str(e)
        return seen
    seen.gradients = [None if t.grad is None else t.grad.clone() for t in leaves]
    seen.inputs_after_backward, seen.outputs_after_backward = copies(inputs), copies(outputs)
    return seen


def error_kind(e: BaseException) -> type:
    """The class of torch's or Python's that an error counts as."""
    if isinstance(e, ValueError) and "Cannot view a tensor" in str(e):
        return RuntimeError  # what fake tensors raise where real ones raise RuntimeError
    for kind in (IndexError, TypeError, NotImplementedError, ValueError, RuntimeError):
        if isinstance(e, kind):
            return kind
    return type(e)


def assert_same(got: Observation, want: Observation, what: str = "") -> None:
    """Fails, naming the first difference."""
    assert got.error == want.error, (
        f"{what}: error {got.error} ({got.message[:500]}), eager has {want.error} ({want.message[:200]})"
    )
    for f in fields(Observation):
        if f.name in ("error", "message", "views"):
            continue
        g, w = getattr(got, f.name), getattr(want, f.name)
        if f.name == "strides":
            # A view whose base nobody else sees may lie in memory of its own.
            g, w = ([s for s, is_view in zip(v, want.views, strict=True) if not is_view] for v in (g, w))
        assert len(g) == len(w), f"{what}: {f.name}: {len(g)} values, eager has {len(w)}"
        for n, (a, b) in enumerate(zip(g, w, strict=True)):
            _same_value(a, b, f"{what}: {f.name}[{n}]")


def _same_value(a: Any, b: Any, where: str) -> None:
    if not isinstance(b, torch.Tensor):
        assert (type(a), a) == (type(b), b), f"{where}: {a!r}, eager has {b!r}"
        return
    assert isinstance(a, torch.Tensor), f"{where}: {a!r}, eager has a tensor"
    assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, eager has {b.dtype}"
    assert a.shape == b.shape, f"{where}: shape {tuple(a.shape)}, eager has {tuple(b.shape)}"
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if b.dtype.is_floating_point or b.dtype.is_complex else {}
    torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m: f"{where}: {m}\n{a}\neager has\n{b}", **tolerance)


def check(fn: Callable, make_inputs: Callable[[], Sequence[Any]], *, calls: int = 2, **jit_options: Any) -> Any:
    """`fn` in eager against `thunder.jit(fn)`, called `calls` times on new inputs (the later ones hit the cache).

    make_inputs: gives the arguments; the random seed is the same each time.
    Returns the compiled function.
    """
    compiled = thunder.jit(fn, **jit_options)
    for call in range(calls):
        torch.manual_seed(17 + call)
        want = observe(fn, list(make_inputs()), seed=call)
        torch.manual_seed(17 + call)
        got = observe(compiled, list(make_inputs()), seed=call)
        assert_same(got, want, f"call {call}")
    return compiled


def check_module(
    make_module: Callable[[], torch.nn.Module], make_inputs: Callable, *, calls: int = 2, **jit_options: Any
) -> Any:
    """A module in eager against `thunder.jit(module)`: its parameters and buffers count as inputs."""
    torch.manual_seed(5)
    eager = make_module()
    torch.manual_seed(5)
    original = make_module()
    compiled = thunder.jit(original, **jit_options)
    for call in range(calls):
        torch.manual_seed(17 + call)
        want = observe(eager, list(make_inputs()), _state(eager), seed=call)
        torch.manual_seed(17 + call)
        got = observe(compiled, list(make_inputs()), _state(original), seed=call)
        assert_same(got, want, f"call {call}")
    return compiled


def _state(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
