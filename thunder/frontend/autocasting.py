"""Autocast made explicit: what a call converts under autocast becomes conversions in the trace."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch

from thunder.core.errors import UnsupportedOpError
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten, tree_iter, tree_unflatten
from thunder.core.torch_compat import TorchDispatchMode
from thunder.torch.fakes import call_key, fake_mode, quiet_autocast, to_fake, to_real_leaf

if TYPE_CHECKING:
    from thunder.frontend.lowering import Lowering


class AutocastState:
    """Which autocast regions the traced program is in, on top of those around the call."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, torch.dtype, bool]] = []
        self.ambient: dict[str, torch.dtype] = {}

    @classmethod
    def from_surroundings(cls) -> AutocastState:
        """The state at the time of the call that is being compiled."""
        state = cls()
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                state.ambient[device] = torch.get_autocast_dtype(device)
        return state

    def copy(self) -> AutocastState:
        """The state as it is now; regions entered later are the copy's own."""
        other = AutocastState()
        other.ambient, other.stack = dict(self.ambient), list(self.stack)
        return other

    def enter(self, device: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        self.stack.append((device, dtype or torch.get_autocast_dtype(device), enabled))

    def exit(self) -> None:
        self.stack.pop()

    @property
    def effective(self) -> dict[str, torch.dtype]:
        """Device type to dtype, for the device types whose autocast is on."""
        now = dict(self.ambient)
        for device, dtype, enabled in self.stack:
            if enabled:
                now[device] = dtype
            else:
                now.pop(device, None)
        return now

    @property
    def is_active(self) -> bool:
        return bool(self.stack or self.ambient) and bool(self.effective)

    def concerns(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether a call has a floating-point tensor on a device whose autocast is on."""
        on = self.effective
        return any(
            isinstance(a, TensorProxy) and a.device.type in on and a.torch_dtype.is_floating_point
            for a in tree_iter((args, kwargs))
        )


class _Recorder(TorchDispatchMode):
    """Notes which aten operations run, with their input dtypes, conversions left out."""

    _IGNORED = ("_to_copy", "detach", "device", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Hashable] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        # It makes no difference whether a value is converted before or after a view is taken.
        if name not in self._IGNORED and not func.is_view:
            flat, _ = tree_flatten((args, kwargs or {}))
            self.calls.append((str(func), tuple(a.dtype for a in flat if isinstance(a, torch.Tensor))))
        return func(*args, **(kwargs or {}))


def _recorded(
    fn: Any, flat: list, spec: Any, cast: torch.dtype | None, autocast: dict[str, torch.dtype]
) -> list[Hashable] | None:
    """The aten calls of `fn`, with floating-point tensors first cast to `cast`; None where it raises."""
    fakes: dict[str, torch.Tensor] = {}

    def real(leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy):
            if leaf.name not in fakes:
                t = to_fake(leaf)
                fakes[leaf.name] = t.to(cast) if cast is not None and is_castable(leaf) else t
            return fakes[leaf.name]
        return to_real_leaf(leaf)

    with fake_mode(), torch.no_grad(), quiet_autocast():
        args, kwargs = tree_unflatten([real(v) for v in flat], spec)
        regions = [torch.autocast(d, dtype=t, cache_enabled=False) for d, t in autocast.items()]
        recorder = _Recorder()
        try:
            for region in regions:
                region.__enter__()
            with recorder:
                fn(*args, **kwargs)
        except RuntimeError:
            return None
        finally:
            for region in reversed(regions):
                region.__exit__(None, None, None)
    return recorder.calls


def is_castable(p: TensorProxy) -> bool:
    """Whether autocast may convert the tensor: floating point, but not double."""
    return p.torch_dtype in (torch.float16, torch.bfloat16, torch.float32)


_casts: dict[Hashable, Any] = {}


def _needed_cast(fn: Any, args: tuple, kwargs: dict[str, Any], on: dict[str, torch.dtype]) -> torch.dtype | None:
    """The dtype to which autocast converts the inputs of this call, None for no conversion."""
    flat, spec = tree_flatten((args, kwargs))
    key = call_key((fn, tuple(sorted(on.items(), key=str))), flat, spec)
    if key in _casts and key is not None:
        return _casts[key]
    wanted = _recorded(fn, flat, spec, None, on)
    for cast in (None, *dict.fromkeys(on.values()), torch.float32):
        if wanted is not None and _recorded(fn, flat, spec, cast, {}) == wanted:
            _casts[key] = cast
            return cast
    raise UnsupportedOpError(
        f"autocast converts values inside {getattr(fn, '__name__', fn)}; call it with autocast disabled, or convert "
        f"its inputs yourself"
    )


def autocast_call(lowering: Lowering, fn: Any, args: tuple, kwargs: dict[str, Any], example: Any, name: str) -> Any:
    """Emits a call as autocast runs it: its inputs converted, then the call."""
    cast = _needed_cast(fn, args, kwargs, lowering.autocast.effective)
    if cast is not None:
        flat, spec = tree_flatten((args, kwargs))
        converted: dict[str, Any] = {}
        for leaf in flat:
            if not isinstance(leaf, TensorProxy) or leaf.name in converted:
                continue
            if is_castable(leaf) and leaf.torch_dtype is not cast:
                converted[leaf.name] = lowering.plain_call(
                    torch.Tensor.to, (leaf, cast), {}, None, f"{leaf.name}_cast"
                )
        args, kwargs = tree_unflatten(
            [converted.get(v.name, v) if isinstance(v, TensorProxy) else v for v in flat], spec
        )
    return lowering.plain_call(fn, args, kwargs, example, name)
