"""One call, compiled and eager, compared in everything that a user can see.

Most calls are compiled without Dynamo (see `recorder`), which takes some 15 ms, a tenth of what `thunder.jit` takes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

import thunder
from thunder.core.errors import UnsupportedOpError
from thunder.core.pytree import tree_flatten, tree_iter, tree_map
from thunder.tests.ops.recorder import capture

_SEED = 1234

PASSED, FAILED, REFUSED, SKIPPED = "passed", "failed", "refused", "skipped"


@dataclass(frozen=True)
class Outcome:
    """What became of one sample.

    status: "passed"; "failed"; "refused" by an UnsupportedOpError; "skipped" where eager torch refuses the call itself.
    kind: what differs ("value", "strides", ...), or the class of the error.
    """

    status: str
    kind: str = ""
    message: str = ""

    @property
    def is_counted(self) -> bool:
        return self.status != SKIPPED


def jit(fn: Callable) -> Callable:
    """`fn` compiled as users do it."""
    torch._dynamo.reset()
    return thunder.jit(fn)


def _without_seed(op: Callable, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@contextmanager
def quiet() -> Iterator[None]:
    """Neither torch's deprecation notices on old operations, nor seeds that op_db sets inside of operations.

    Such a seed would be set once, while the operation is captured; `check` sets one around each run instead.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.testing._internal") and "wrapper_set_seed" in vars(module):
                stack.enter_context(patch.object(module, "wrapper_set_seed", _without_seed))
        yield


# Copies of arguments


class _Copier:
    """Copies tensors with their strides, and shared memory as shared memory."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.tensors: dict[int, torch.Tensor] = {}

    def __call__(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in self.tensors:
                self.tensors[id(x)] = self._copied(x)
            return self.tensors[id(x)]
        if isinstance(x, torch.Generator):
            return x.clone_state()
        return x

    def _copied(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if x.layout is not torch.strided:
                new = x.detach().clone()
            elif x.is_conj():
                new = self._copied(x.detach().conj()).conj()
            elif x.is_neg():
                new = torch._neg_view(self._copied(torch._neg_view(x.detach())))
            else:
                key = x.untyped_storage().data_ptr()
                if key == 0 or key not in self.storages:
                    self.storages[key] = x.untyped_storage().clone()
                new = torch.empty(0, dtype=x.dtype, device=x.device)
                new.set_(self.storages[key], x.storage_offset(), x.shape, x.stride())
        return new.requires_grad_(x.requires_grad)


def copies(args: Any) -> Any:
    """A deep copy of a pytree of tensors: strides, shared memory, `requires_grad` and generator states are kept."""
    return tree_map(_Copier(), args)


# Differences


def _metadata(t: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "shape": tuple(t.shape), "dtype": t.dtype, "device": t.device, "layout": t.layout,
        "requires_grad": t.requires_grad, "conj": t.is_conj(), "neg": t.is_neg(),
    }  # fmt: skip
    if t.layout is torch.strided:
        # The stride of a dimension of one element means nothing.
        facts["strides"] = tuple(st for s, st in zip(t.shape, t.stride()) if s != 1) if t.numel() else ()
    return facts


def _value_difference(got: torch.Tensor, want: torch.Tensor, tolerance: dict[str, float]) -> str | None:
    try:
        torch.testing.assert_close(got.detach(), want.detach(), equal_nan=True, check_stride=False, **tolerance)
    except AssertionError as e:
        return str(e)
    return None


def difference(
    got: Any, want: Any, *, values: bool = True, tolerance: dict[str, float] | None = None
) -> tuple[str, str] | None:
    """What differs first between two results, as (kind, message); None where nothing does."""
    flat_got, flat_want = tree_flatten([got])[0], tree_flatten([want])[0]
    if type(got) is not type(want) or len(flat_got) != len(flat_want):
        one, other = f"{type(got).__name__} of {len(flat_got)}", f"{type(want).__name__} of {len(flat_want)}"
        return "structure", f"a {one} values, not a {other}"
    for g, w in zip(flat_got, flat_want):
        if not isinstance(w, torch.Tensor):
            if type(g) is not type(w) or (values and not _equal(g, w)):
                return "value", f"{g!r}, not {w!r}"
            continue
        if not isinstance(g, torch.Tensor):
            return "structure", f"a {type(g).__name__} where eager has a tensor"
        facts_got, facts_want = _metadata(g), _metadata(w)
        for fact, wanted in facts_want.items():
            if facts_got.get(fact) != wanted:
                return fact, f"{facts_got.get(fact)}, not {wanted}"
        if values and (what := _value_difference(g, w, tolerance or {})):
            return "value", what
    return None


def _equal(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)


def _memory(t: Any) -> Any:
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided or not t.numel():
        return None
    return t.untyped_storage().data_ptr()


def sharing(result: Any, args: Any) -> list[tuple]:
    """For each result tensor: the positions of the arguments and earlier results that are it, or share its memory."""
    leaves = [a for a in tree_iter(args) if isinstance(a, torch.Tensor)]
    facts: list[tuple] = []
    earlier: list[torch.Tensor] = []
    for r in tree_iter([result]):
        if not isinstance(r, torch.Tensor):
            continue
        known = leaves + earlier
        same = tuple(n for n, a in enumerate(known) if a is r)
        shared = tuple(n for n, a in enumerate(known) if _memory(r) and _memory(a) == _memory(r))
        facts.append((same, shared))
        earlier.append(r)
    return facts


# Checks


@dataclass(frozen=True)
class Call:
    """A call to be checked.

    has_gradient: also compare the gradients of all arguments that require one.
    has_values: False for results that are uninitialized memory.
    raises: the class of error that the call must raise, here and in eager.
    compiler: `capture` or `jit`.
    """

    fn: Callable
    args: tuple
    kwargs: dict[str, Any]
    has_gradient: bool = False
    has_values: bool = True
    raises: type[Exception] | None = None
    compiler: Callable = capture
    tolerance: dict[str, float] | None = None


def _run(fn: Callable, call: Call) -> tuple[Any, Any]:
    args = copies((call.args, call.kwargs))
    torch.manual_seed(_SEED)
    return fn(*args[0], **args[1]), args


def check(call: Call) -> Outcome:
    """Runs the call eagerly and compiled, and compares results, memory, mutated arguments and gradients."""
    with quiet(), torch.set_grad_enabled(torch.is_grad_enabled()):
        if call.raises is not None:
            return _check_error(call)
        try:
            want, want_args = _run(call.fn, call)
            want_grads = _gradients(want, want_args) if call.has_gradient else None
        except Exception as e:
            return Outcome(SKIPPED, type(e).__name__, str(e))
        if call.has_gradient and want_grads is None:
            return Outcome(SKIPPED, "gradient", "no result requires a gradient")
        try:
            got, got_args = _run(call.compiler(call.fn), call)
            found = _compare(call, got, got_args, want, want_args)
            if found is None and call.has_gradient:
                found = _compare_gradients(call, _gradients(got, got_args), want_grads)
        except UnsupportedOpError as e:
            return Outcome(REFUSED, type(e).__name__, str(e))
        except Exception as e:
            return Outcome(FAILED, type(e).__name__, str(e))
    return Outcome(PASSED) if found is None else Outcome(FAILED, *found)


def _compare(call: Call, got: Any, got_args: Any, want: Any, want_args: Any) -> tuple[str, str] | None:
    found = difference(got, want, values=call.has_values, tolerance=call.tolerance)
    if found is not None:
        return found
    found = difference(got_args, want_args, values=call.has_values, tolerance=call.tolerance)
    if found is not None:
        return f"argument {found[0]}", found[1]
    a, b = sharing(got, got_args), sharing(want, want_args)
    return None if a == b else ("aliasing", f"{a}, not {b}")


def _check_error(call: Call) -> Outcome:
    try:
        _run(call.fn, call)
    except call.raises as e:  # type: ignore[misc]
        expected = type(e)
    except Exception as e:
        return Outcome(SKIPPED, type(e).__name__, str(e))
    else:
        return Outcome(SKIPPED, "no error", "eager raises nothing")
    try:
        _run(call.compiler(call.fn), call)
    except call.raises:  # type: ignore[misc]
        return Outcome(PASSED)
    except Exception as e:
        return Outcome(FAILED, type(e).__name__, f"eager: {expected.__name__}; here: {e}")
    return Outcome(FAILED, "no error", f"eager raises {expected.__name__}")


# Gradients


def _is_floating(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex


def _gradients(result: Any, args: Any) -> list[torch.Tensor | None] | None:
    """Gradients of the leaves for fixed random cotangents; None where no result has a gradient."""
    tensors = dict.fromkeys(x for x in tree_iter(args) if isinstance(x, torch.Tensor))
    leaves = [a for a in tensors if a.requires_grad and a.is_leaf]
    outs = [o for o in tree_iter([result]) if isinstance(o, torch.Tensor) and o.requires_grad and _is_floating(o)]
    outs = [o for o in outs if all(o is not a for a in leaves)]
    if not outs or not leaves:
        return None
    generator = torch.Generator().manual_seed(_SEED)
    cotangents = [_cotangent(o, generator) for o in outs]
    return list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True))


def _cotangent(o: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if o.layout is not torch.strided:
        return torch.ones_like(o)
    return torch.randn(o.shape, dtype=o.dtype, device=o.device, generator=generator)


def _compare_gradients(call: Call, got: Sequence[Any] | None, want: Sequence[Any] | None) -> tuple[str, str] | None:
    if got is None or want is None:
        return None if got is want else ("gradient", "only one of the results requires a gradient")
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        if w is None or g is None:
            # Zeros and no gradient at all are the same to an optimizer that is given both.
            present = g if w is None else w
            if present is not None and bool((present != 0).any()):
                return "gradient", f"input {n}: {'no gradient' if g is None else 'a gradient that eager does not have'}"
            continue
        facts_got, facts_want = (tuple(g.shape), g.dtype, g.layout), (tuple(w.shape), w.dtype, w.layout)
        if facts_got != facts_want:
            return "gradient", f"input {n}: {facts_got}, not {facts_want}"
        what = _value_difference(g, w, call.tolerance or {})
        if what is not None:
            return "gradient", f"input {n}: {what}"
    return None
