"""How much memory a compiled step takes, line by line: the program is run on fake tensors, whose memory is counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from thunder.core import devices, dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.sizes import hint
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import FakeTensorMode
from thunder.core.trace import TraceCtx
from thunder.dev_utils.debug_transform import DebugTransform
from thunder.torch.fakes import contiguous_strides


@dataclass
class LineMemory:
    """Bytes of what one line of the user's program makes.

    Attributes:
        allocated: by all of its operations, forward and backward.
        at_peak: alive when most is alive.
        saved: kept from its forward for backward.
    """

    allocated: int = 0
    at_peak: int = 0
    saved: int = 0


@dataclass
class StepMemory:
    """Bytes of one forward and backward beyond parameters, buffers and inputs; gradients count.

    Attributes:
        peak: the most that are alive at once.
        saved: what forward keeps for backward.
        lines: file:line, or "module" and its path for what torch's own modules do, to its share, in program order.
    """

    peak: int = 0
    saved: int = 0
    lines: dict[str, LineMemory] = field(default_factory=dict)

    def report(self, limit: int = 10) -> str:
        """As text, with the `limit` lines that have most at the peak or saved."""
        keeps = f", and keeps {_readable(self.saved)} for backward" if self.saved else ""
        text = [f"It takes {_readable(self.peak)} at its peak{keeps}."]
        shown = sorted(self.lines.items(), key=lambda item: -max(item[1].at_peak, item[1].saved))[:limit]
        if shown:
            text.append(f"  {'at the peak':>12} {'saved':>12} {'allocated':>12}  line")
        for line, share in shown:
            sizes = (share.at_peak, share.saved, share.allocated)
            text.append(f"  {' '.join(f'{_readable(size):>12}' for size in sizes)}  {line}")
        return "\n".join(text)


def _readable(size: int) -> str:
    """A number of bytes as text: "980 B", "1.2 MiB"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


class _Counter(TorchDispatchMode):
    """Notes the memory that operations take and give back.

    Attributes:
        line: what is run now.
        is_paused: whether what is run is no operation of the program's own.
        events: the lines with the bytes that they took, or gave back (negative).
        alive: the storages alive now, by their address, with the line that made them and its bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = ""
        self.is_paused = False
        self.events: list[tuple[str, int]] = []
        self.alive: dict[int, tuple[str, int]] = {}
        self._watched: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outs = func(*args, **(kwargs or {}))
        if not self.is_paused:
            self.enter(outs)
        return outs

    def enter(self, values: Any) -> None:
        """Counts the memory of the tensors among `values`, where it is new."""
        for storage in _storages(values):
            if (key := storage._cdata) not in self._watched:
                self.alive[key] = (self.line, storage.nbytes())
                self.events.append(self.alive[key])
                self._watch(storage)

    def exclude(self, values: Any) -> None:
        """Leaves the memory of these tensors out: it was there before."""
        for storage in _storages(values):
            self._watch(storage)

    def _watch(self, storage: torch.UntypedStorage) -> None:
        self._watched[storage._cdata] = weakref.ref(storage, partial(self._gone, storage._cdata))

    def _gone(self, key: int, _: Any) -> None:
        del self._watched[key]
        if key in self.alive:
            line, size = self.alive.pop(key)
            self.events.append((line, -size))


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [t.untyped_storage() for t in tree_iter(values) if isinstance(t, torch.Tensor)]


def step_memory(forward: TraceCtx, backward: TraceCtx | None = None) -> StepMemory:
    """The memory of a step of a compiled program.

    What is counted is what operations ask the allocator for: each value until its last name is gone, views with their
    base, what composite operations make and drop. What kernels use inside is not (a convolution's backward on CPU takes
    copies of what it reads), nor rounding by the allocator. A fused region counts with its results, not with
    what it makes and drops. Sizes that vary count as they were at capture. Runs each operation once on fake tensors,
    which take no memory.

    Args:
        forward: the program that is run, as `thunder.last_traces(f)[-1]`.
        backward: its backward, as `thunder.last_backward_traces(f)[-1]`, run for gradients of all results.

    Raises whatever an operation raises that fake tensors cannot run.
    """
    counter = _Counter()
    kept: dict[str, int] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = _example_arguments(forward)
        counter.exclude(args)
        with counter:
            result = _watched(forward, counter)(*args)
            if backward is not None:
                _results, saved, others = result  # the caller keeps the results
                for key in {storage._cdata for storage in _storages(saved)} & counter.alive.keys():
                    line, size = counter.alive[key]
                    kept[line] = kept.get(line, 0) + size
                counter.line = "gradients of the results"
                collections = [list(saved), list(others)], [_fake(p) for p in _cotangents(backward)]
                del result, saved, others  # what is kept for it, backward drops
                _watched(backward, counter)(*collections)
    return _summary(counter.events, kept)


def _fake(p: TensorProxy) -> torch.Tensor:
    shape = [hint(size) for size in p.shape]
    strides = contiguous_strides(tuple(shape)) if p.layout is None else [hint(s) for s in p.layout.strides]
    return torch.empty_strided(
        shape, strides, dtype=dtypes.to_torch_dtype(p.dtype), device=devices.to_torch_device(p.device)
    )


def _example_arguments(trace: TraceCtx) -> tuple[Any, ...]:
    """Arguments like those at capture."""
    sizes = {str(size): hint(size) for p in trace.args if isinstance(p, TensorProxy) for size in p.shape}

    def example(p: Any) -> Any:
        if isinstance(p, NumberProxy):
            return sizes.get(p.name, p.value)
        return _fake(p) if isinstance(p, TensorProxy) else p

    return tree_map(example, tuple(trace.args))


def _cotangents(backward: TraceCtx) -> list[TensorProxy]:
    """What backward unpacks from its second argument."""
    given = backward.args[1].name
    unpacked = (n for n in backward.bound_symbols if n.sym.id is PrimIDs.UNPACK_SEQUENCE)
    return list(next(n.output for n in unpacked if n.args[0].name == given))


def _watched(trace: TraceCtx, counter: _Counter) -> Callable:
    """The program, telling the counter where it is."""

    def before(node: BoundSymbol, *args: Any, **kwargs: Any) -> None:
        counter.line = _where(node)
        counter.is_paused = node.sym.is_fusion

    def after(node: BoundSymbol, outs: Any, *args: Any, **kwargs: Any) -> None:
        if counter.is_paused:
            counter.is_paused = False
            counter.enter(outs)

    watching = DebugTransform(pre_callback=before, post_callback=after)
    return watching.transform_trace_post_optimization(trace).python_callable()


def _where(node: BoundSymbol) -> str:
    """The line that a node comes from; what torch's modules do has none of the user's, but the module's name."""
    if node.origin.source is not None:
        return str(node.origin.source)
    return f"module {node.origin.module_path}" if node.origin.module_path else "no line of the program"


def _summary(events: list[tuple[str, int]], kept: dict[str, int]) -> StepMemory:
    found = StepMemory(saved=sum(kept.values()))
    lines = {line: LineMemory(saved=kept.get(line, 0)) for line, _ in events}
    now = peak_at = 0
    for n, (line, size) in enumerate(events):
        now += size
        lines[line].allocated += max(size, 0)
        if now > found.peak:
            found.peak, peak_at = now, n
    for line, size in events[: peak_at + 1]:
        lines[line].at_peak += size
    found.lines.update(lines)
    return found
