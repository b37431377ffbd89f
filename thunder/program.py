"""A compiled program, and the backwards for calls that use only some of its outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.errors import UnsupportedOpError
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.split import SplitTraces

Backward: TypeAlias = "Callable[[list[list[Any]], list[Any]], Sequence[Any]]"
"""From ([saved tensors, saved others], cotangents) to the gradients of the inputs. Empties the lists of tensors."""

PartialBackward: TypeAlias = "Callable[[list[list[Any]], list[Any], Sequence[torch.Size] | None], Sequence[Any]]"
"""As Backward, with None for missing cotangents, and the sizes that these would have, where sizes vary."""


@dataclass
class Program:
    """A compiled program.

    forward(*inputs) gives outputs, or (outputs, saved tensors, saved others) where there is a backward;
    epilogue(*inputs, *outputs) gives what the caller gets.
    differentiable: positions in the outputs that carry gradient.
    partial: the backwards for calls in which some of those get none.
    phase_ns: nanoseconds of each phase of the compilation.
    """

    forward: Callable
    backward: Backward | None
    epilogue: Callable | None
    differentiable: tuple[int, ...]
    traces: list[TraceCtx] = field(default_factory=list)
    backward_traces: list[TraceCtx] = field(default_factory=list)
    epilogue_traces: list[TraceCtx] = field(default_factory=list)
    make_prologue_traces: Callable[[], list[TraceCtx]] = list
    partial: PartialBackwards | None = None
    phase_ns: dict[str, int] = field(default_factory=dict)

    @cached_property
    def prologue_traces(self) -> list[TraceCtx]:
        """What the program unpacks and checks, as captured first, as transforms leave it last."""
        return self.make_prologue_traces()

    @property
    def computation_traces(self) -> list[TraceCtx]:
        """The computation's traces, as captured first, as run last."""
        return self.traces

    @property
    def computation_fn(self) -> Callable:
        """What runs `computation_traces[-1]`."""
        return self.forward

    @property
    def backward_fn(self) -> Backward | None:
        """What runs `backward_traces[-1]`, or None."""
        return self.backward

    @property
    def epilogue_fn(self) -> Callable | None:
        """What runs `epilogue_traces[-1]`, or None."""
        return self.epilogue


@dataclass(frozen=True)
class Differentiated:
    """A joint trace before execution passes, what it was split into, and the backward that runs."""

    joint: TraceCtx
    split: SplitTraces
    backward: Backward | None


class PartialBackwards:
    """Backwards for calls in which the gradients of some outputs are missing, made when first needed.

    Eager does not visit what only missing gradients lead to, and an input that only that reaches gets None. A backward
    made here does the same. It reads what the forward has saved for the full one. Where the program's own passes leave
    that out of reach, the full backward runs on zeros, and what eager leaves at None is left out of its result.

    Args:
        full: the program differentiated with respect to all outputs.
        make: differentiates it with respect to the outputs at the given positions.

    `sizes_vary`: whether the sizes of the outputs that carry gradient are known by call only.
    """

    def __init__(self, full: Differentiated, make: Callable[[Sequence[int]], Differentiated]):
        self._full, self._make = full, make
        outputs = tree_flatten(full.split.forward.bound_symbols[-1].args[0])[0]
        self._outputs = [outputs[n] for n in full.split.differentiable]
        self.sizes_vary = any(type(s) is not int for p in self._outputs for s in p.shape)
        self._made: dict[tuple[int, ...], PartialBackward] = {}
        self._lock = threading.Lock()

    def get(self, given: tuple[int, ...]) -> PartialBackward:
        """The backward for cotangents of the outputs at these positions only. It takes None for each of the others.

        Its third argument are the sizes of all these outputs, or None where the program knows them.
        """
        found = self._made.get(given)
        if found is None:
            with self._lock:
                found = self._made.get(given) or self._made.setdefault(given, self._build(given))
        return found

    def _build(self, given: tuple[int, ...]) -> PartialBackward:
        part = self._make(given)
        if part.backward is None:
            count = len(part.joint.args)
            return lambda saved, cotangents, sizes: (None,) * count
        full_saved, part_saved = _saved_names(self._full.split), _saved_names(part.split)
        for mine, theirs in zip(part_saved, full_saved, strict=True):
            if not set(mine) <= set(theirs) or not _computed_alike(part, self._full, mine):
                return self._on_zeros(part)
        tensors, others = (
            tuple(theirs.index(name) for name in mine) for mine, theirs in zip(part_saved, full_saved, strict=True)
        )
        run = part.backward

        def backward(saved: list[list[Any]], cotangents: list[Any], sizes: Sequence[Any] | None) -> Sequence[Any]:
            picked = [[saved[0][n] for n in tensors], [saved[1][n] for n in others]]
            saved[0].clear()
            return run(picked, [c for c in cotangents if c is not None])

        return backward

    def _on_zeros(self, part: Differentiated) -> PartialBackward:
        if any(n.sym is prims.custom_vjp and n.args[2].variants is not None for n in part.joint.bound_symbols):
            raise UnsupportedOpError(
                "a custom autograd function takes missing gradients as None (set_materialize_grads(False)), and what "
                "its backward needs when they are missing was not saved"
            )
        expected = self._outputs
        known = [p.shape for p in expected]
        grads = part.joint.bound_symbols[-1].args[1]
        missing = [g is None for g in grads]
        run = self._full.backward
        assert run is not None

        def backward(saved: list[list[Any]], cotangents: list[Any], sizes: Sequence[Any] | None) -> Sequence[Any]:
            filled = [
                torch.zeros(size, dtype=p.torch_dtype, device=to_torch_device(p.device)) if c is None else c
                for c, p, size in zip(cotangents, expected, sizes or known, strict=True)
            ]
            cotangents.clear()
            return [None if m else g for g, m in zip(run(saved, filled), missing, strict=True)]

        return backward


def _saved_names(split: SplitTraces) -> tuple[list[str], list[str]]:
    """Names of what the forward saves: tensors, others."""
    _, tensors, others = split.forward.bound_symbols[-1].args
    return [p.name for p in tensors], [p.name for p in others]


def saved_names(split: SplitTraces) -> frozenset[str]:
    """Names of what the forward saves."""
    tensors, others = _saved_names(split)
    return frozenset((*tensors, *others))


def _computed_alike(one: Differentiated, other: Differentiated, names: Sequence[str]) -> bool:
    """Whether each of these values is an input of both, or comes from the same operations in both. O(nodes)."""
    inputs = _input_names(one.joint) & _input_names(other.joint)
    mine, theirs = _producers(one), _producers(other)
    pending, seen = list(names), set(inputs)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None or a.sym is not b.sym or _shown(a) != _shown(b):
            return False
        pending.extend(p.name for p in a.flat_proxy_args)
    return True


def _input_names(trace: TraceCtx) -> set[str]:
    return {a.name for a in trace.args if isinstance(a, Proxy)}


def _producers(program: Differentiated) -> dict[str, BoundSymbol]:
    """What makes each value of the forward; of values that execution passes add, the nodes that run."""
    run = (part for n in program.split.forward.bound_symbols for part in (n.subsymbols if n.sym.is_fusion else (n,)))
    captured = (n for n in program.joint.bound_symbols if not n.is_backward)
    return {o.name: n for n in (*run, *captured) for o in n.defined}


def _shown(node: BoundSymbol) -> tuple[str, ...]:
    flat, spec = tree_flatten((node.args, node.kwargs, node.output))
    return (str(spec), *(leaf.name if isinstance(leaf, Proxy) else repr(leaf) for leaf in flat))
