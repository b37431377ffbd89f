"""thunder's devices: one object per device, comparable with `is`, cheap to convert from and to torch's."""

from __future__ import annotations

from enum import Enum
from typing import Any, overload

import torch

from thunder.core.errors import ThunderRuntimeError, ThunderTypeError


class DeviceType(Enum):
    """The kinds of devices torch knows. A backend that renamed PrivateUse1 has type PRIVATEUSEONE."""

    CPU = "cpu"
    CUDA = "cuda"
    META = "meta"
    MPS = "mps"
    XPU = "xpu"
    HPU = "hpu"
    XLA = "xla"
    MTIA = "mtia"
    MAIA = "maia"
    IPU = "ipu"
    HIP = "hip"
    VE = "ve"
    FPGA = "fpga"
    LAZY = "lazy"
    VULKAN = "vulkan"
    OPENGL = "opengl"
    OPENCL = "opencl"
    IDEEP = "ideep"
    MKLDNN = "mkldnn"
    PRIVATEUSEONE = "privateuseone"


all_devicetypes: tuple[DeviceType, ...] = (DeviceType.CPU, DeviceType.CUDA)
"""The device types that tests of ops are generated for."""

_BY_NAME = {member.value: member for member in DeviceType}
_WITHOUT_INDEX = frozenset({"cpu", "meta"})


def devicetype_string(devicetype: DeviceType) -> str:
    """The name of `devicetype` as torch spells it, such as "cuda"."""
    return devicetype.value


class Device:
    """A device. Equal devices are the same object, also after copying and unpickling.

    Args:
        device: as torch spells it ("cuda", "cuda:1"), a DeviceType, or a torch.device.
        index: number of the device among those of its type; 0 if neither gives one. Ignored for cpu and meta, of which
            there is one.

    Attributes:
        type: name of the type, as torch spells it.
        devicetype: the same as a DeviceType.
        index: None for cpu and meta.
        torch_device: the same device as a torch.device.
    """

    __slots__ = ("devicetype", "index", "torch_device", "type")
    type: str
    devicetype: DeviceType
    index: int | None
    torch_device: torch.device

    def __new__(cls, device: str | DeviceType | torch.device, index: int | None = None, /) -> Device:
        return _intern(_parse(device, index))

    def device_str(self) -> str:
        """The device as torch spells it: "cpu", "cuda:0"."""
        return str(self.torch_device)

    def __str__(self) -> str:
        return str(self.torch_device)

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"thunder.devices.Device(type={self.type!r}{index})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.device_str(),)


def _parse(device: Any, index: int | None = None) -> torch.device:
    """`device` as a torch.device that has an index exactly if there can be several of its type."""
    spelled = device.value if isinstance(device, DeviceType) else device
    given = repr(device) if index is None else f"{device!r} with index {index!r}"
    try:
        found = torch.device(spelled) if index is None else torch.device(spelled, index)
    except RuntimeError as e:
        raise ThunderRuntimeError(f"{given} is not a device: {e}") from e
    except TypeError as e:
        raise ThunderTypeError(f"expected a device, but got {given}") from e
    if found.type in _WITHOUT_INDEX:
        return torch.device(found.type)
    return torch.device(found.type, 0) if found.index is None else found


_interned: dict[Any, Device] = {}
"""Every device made so far, by torch.device and by each spelling that `to_device` was given."""


def _intern(device: torch.device) -> Device:
    if (found := _interned.get(device)) is not None:
        return found
    made: Device = object.__new__(Device)
    made.type = device.type
    made.devicetype = _BY_NAME.get(device.type, DeviceType.PRIVATEUSEONE)
    made.index = device.index
    made.torch_device = device
    # Atomic, so that two threads get the same object.
    return _interned.setdefault(device, made)


@overload
def to_device(x: None, /) -> None: ...
@overload
def to_device(x: str | int | torch.device | Device, /) -> Device: ...


def to_device(x: str | int | torch.device | Device | None, /) -> Device | None:
    """`x` as a Device; None for None. An int is an index of the current accelerator, as in torch.

    Raises: RuntimeError (as torch) for a spelling that torch does not know, ThunderTypeError for any other object.
    """
    if x is None or isinstance(x, Device):
        return x
    if isinstance(x, (str, torch.device)):
        if (found := _interned.get(x)) is None:
            found = _interned.setdefault(x, _intern(_parse(x)))
        return found
    if isinstance(x, int) and not isinstance(x, bool):
        return _intern(_parse(x))
    raise ThunderTypeError(f"expected a device, a string or None, but got {x!r} of type {type(x).__name__}")


def device_from_string(devicestr: str) -> Device:
    """The Device that `devicestr`, such as "cuda:1", names. Raises RuntimeError if there is no such type."""
    return Device(devicestr)


@overload
def to_torch_device(x: None, /) -> None: ...
@overload
def to_torch_device(x: str | int | torch.device | Device, /) -> torch.device: ...


def to_torch_device(x: str | int | torch.device | Device | None, /) -> torch.device | None:
    """`x` as a torch.device; None for None. A torch.device gives itself, so it may have no index."""
    if isinstance(x, Device):
        return x.torch_device
    if x is None or isinstance(x, torch.device):
        return x
    return to_device(x).torch_device


def available_devices() -> tuple[Device, ...]:
    """The devices tensors can be put on here: cpu first, then those of the current accelerator."""
    if not torch.accelerator.is_available():
        return (cpu,)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type in _WITHOUT_INDEX:
        return (cpu,)
    return (cpu, *(Device(accelerator.type, index) for index in range(torch.accelerator.device_count())))


cpu = Device("cpu")
