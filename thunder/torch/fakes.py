"""Metadata by running torch on fake tensors: for every operation without a meta rule of its own."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from thunder.core import devices, dtypes
from thunder.core.errors import DataDependentControlFlowError
from thunder.core.proxies import CollectionProxy, Layout, NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_unflatten
from thunder.core.sizes import SYMBOLIC_TYPES, concrete, hashable_leaf
from thunder.core.torch_compat import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    enable_python_dispatcher,
    storage_key,
    tracing_fake_mode,
)
from thunder.core.tracing import get_tracectx
from thunder.torch.value_reading import stand_in_for

_local = threading.local()


def fake_mode() -> FakeTensorMode:
    """The mode of the running Dynamo compilation, whose symbolic sizes are ours too; else one of this thread's own."""
    mode = tracing_fake_mode()
    if mode is not None:
        return mode
    if not hasattr(_local, "mode"):
        _local.mode = FakeTensorMode(allow_non_fake_inputs=True)
    return _local.mode


def contiguous_strides(shape: tuple) -> tuple:
    """Row-major strides, as torch counts them (an empty dim counts as one)."""
    strides: list = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if isinstance(size, SYMBOLIC_TYPES) else max(size, 1))
    return tuple(reversed(strides))


def to_fake(p: TensorProxy, *, requires_grad: bool = False, on_meta: bool = False) -> torch.Tensor:
    """A fake tensor with a proxy's metadata: its own strides where they are known, row-major ones elsewhere.

    Must run inside `fake_mode()`, unless `on_meta` asks for a tensor on the meta device.
    """
    strides = p.layout.strides if p.layout is not None else contiguous_strides(p.shape)
    device = torch.device("meta") if on_meta else devices.to_torch_device(p.device)
    t = torch.empty_strided(p.shape, strides, dtype=dtypes.to_torch_dtype(p.dtype), device=device)
    return t.requires_grad_() if requires_grad else t


def metadata_key(p: TensorProxy) -> Hashable:
    """What a meta or gradient rule can depend on in a tensor. TypeError where sizes are symbolic."""
    strides = p.layout.strides if p.layout is not None else None
    for s in p.shape:
        if isinstance(s, SYMBOLIC_TYPES):
            raise TypeError("symbolic sizes are not memoized")
    return (p.shape, p.dtype, p.device, strides, p.requires_grad)


def call_key(fn: Any, flat_args: list, spec: Any) -> Hashable | None:
    """A key for a call on proxies, or None where it has none. Equal tensors at two places are told from different ones.
    """
    seen: dict[str, int] = {}
    parts: list[Hashable] = []
    try:
        for leaf in flat_args:
            if isinstance(leaf, TensorProxy):
                parts.append(("t", seen.setdefault(leaf.name, len(seen)), metadata_key(leaf)))
            elif isinstance(leaf, (NumberProxy | CollectionProxy | Proxy, SYMBOLIC_TYPES)):
                return None
            else:
                parts.append(hashable_leaf(leaf))
        key = (fn, tuple(parts), spec, torch.get_default_dtype())
        hash(key)
    except TypeError:
        return None
    return key


def to_real_leaf(leaf: Any) -> Any:
    """Thunder's dtypes and devices as torch's, number proxies as their values."""
    if isinstance(leaf, dtypes.dtype):
        return dtypes.to_torch_dtype(leaf)
    if isinstance(leaf, devices.Device):
        return devices.to_torch_device(leaf)
    return leaf.value if isinstance(leaf, NumberProxy) else leaf


@contextmanager
def quiet_autocast() -> Any:
    """No autocast inside: the traced program's casts are explicit."""
    with torch._C._DisableAutocast():
        yield


def symbolic_dispatch(flat_args: list) -> Any:
    """A context in which torch's operations take symbolic sizes, entered where an argument has any."""

    def is_symbolic(x: Any) -> bool:
        if isinstance(x, TensorProxy):
            return any(isinstance(s, SYMBOLIC_TYPES) for s in x.shape)
        return isinstance(x, SYMBOLIC_TYPES)

    return enable_python_dispatcher() if any(is_symbolic(a) for a in flat_args) else nullcontext()


class StorageIds:
    """Small ids for the storages of one capture, in order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._alive: list = []

    def of(self, t: torch.Tensor, key: int) -> int:
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            self._alive.append(t.untyped_storage())
        return self._ids[key]


def proxy_of(
    t: torch.Tensor, *, name: str | None = None, prefix: str = "t", requires_grad: bool | None = None
) -> TensorProxy:
    """A proxy with the metadata of a tensor and no layout."""
    return TensorProxy(
        name,
        prefix=prefix,
        shape=tuple(concrete(s) for s in t.shape),
        device=t.device,
        dtype=t.dtype,
        requires_grad=t.requires_grad if requires_grad is None else requires_grad,
    )


_META_CACHE: dict[Hashable, Any] = {}
_META_CACHE_LIMIT = 20_000


class TensorMeta:
    """Shape, strides, dtype and device of a result, without a name, and whether it lies in memory of an argument."""

    __slots__ = ("device", "dtype", "is_view", "shape", "strides")

    def __init__(self, t: torch.Tensor, is_view: bool):
        self.is_view = is_view
        self.shape, self.dtype, self.device = tuple(concrete(s) for s in t.shape), t.dtype, t.device
        self.strides = tuple(concrete(s) for s in t.stride()) if t.layout is torch.strided else None


def result_metadata(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What `fn` gives on tensors like `args`: a pytree with `TensorMeta` in the place of tensors. Memoized."""
    flat, spec = tree_flatten((args, kwargs))
    key = call_key(fn, flat, spec)
    if key is not None and key in _META_CACHE:
        return _META_CACHE[key]
    with torch.no_grad():
        result, given = _run_on_fakes(fn, flat, spec, tracked=False)
    outs, out_spec = tree_flatten(result)
    storages = {storage_key(t) for t in given} - {None}
    metas = [TensorMeta(o, storage_key(o) in storages) if isinstance(o, torch.Tensor) else o for o in outs]
    entry = tree_unflatten(metas, out_spec) if outs else result
    if key is not None:
        if len(_META_CACHE) >= _META_CACHE_LIMIT:
            _META_CACHE.clear()
        _META_CACHE[key] = entry
    return entry


def _run_on_fakes(fn: Callable, flat: list, spec: Any, *, tracked: bool) -> tuple[Any, Collection[torch.Tensor]]:
    """The fake result of `fn`, and the fake tensors that it was called with; tracked: these may require grad."""
    fakes: dict[str, torch.Tensor] = {}
    no_modes = torch._C.DisableTorchFunction()  # a mode that traces must not see what happens here
    with fake_mode(), quiet_autocast(), symbolic_dispatch(flat), no_modes:

        def real(leaf: Any) -> Any:
            if isinstance(leaf, TensorProxy):
                if leaf.name not in fakes:
                    fakes[leaf.name] = to_fake(leaf, requires_grad=tracked and leaf.requires_grad)
                return fakes[leaf.name]
            return stand_in_for(leaf) if inspect.isroutine(leaf) else to_real_leaf(leaf)

        args, kwargs = tree_unflatten([real(v) for v in flat], spec)
        try:
            return stand_in_for(fn)(*args, **kwargs), fakes.values()
        except (DataDependentOutputException, DynamicOutputShapeException) as e:
            name = getattr(fn, "__name__", str(fn))
            raise DataDependentControlFlowError(f"the result of {name} depends on the values of a tensor") from e


_TRACKED_CACHE: dict[Hashable, tuple[bool, ...]] = {}


def tracked_results(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[bool, ...]:
    """Which tensors of the result of `fn`, flattened, torch's autograd tracks: not every argument that requires grad is
    differentiated (`a.expand_as(b)` reads only the shape of `b`). `fn` must not write. Memoized.
    """
    flat, spec = tree_flatten((args, kwargs))
    if not any(isinstance(a, TensorProxy) and a.requires_grad for a in flat):
        return (False,) * sum(isinstance(m, TensorMeta) for m in tree_flatten(result_metadata(fn, args, kwargs))[0])
    key = call_key(fn, flat, spec)
    if key is not None and key in _TRACKED_CACHE:
        return _TRACKED_CACHE[key]
    with torch.enable_grad():
        result, _ = _run_on_fakes(fn, flat, spec, tracked=True)
    found = tuple(t.requires_grad for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor))
    if key is not None:
        if len(_TRACKED_CACHE) >= _META_CACHE_LIMIT:
            _TRACKED_CACHE.clear()
        _TRACKED_CACHE[key] = found
    return found


def fake_meta(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The outputs of `fn` as fresh proxies of the current trace."""
    trace = get_tracectx()
    flat, spec = tree_flatten([result_metadata(fn, args, kwargs)])

    def proxied(m: Any) -> Any:
        if not isinstance(m, TensorMeta):
            return m
        return TensorProxy(trace.make_name(prefix="t"), shape=m.shape, dtype=m.dtype, device=m.device)

    return tree_unflatten([proxied(m) for m in flat], spec)[0]


def layout_of(t: torch.Tensor, ids: StorageIds, key: int | None) -> Layout | None:
    """The layout of a captured tensor."""
    if key is None:
        return None
    strides = tuple(concrete(s) for s in t.stride())
    return Layout(ids.of(t, key), strides, concrete(t.storage_offset()))
