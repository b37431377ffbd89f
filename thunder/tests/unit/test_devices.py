"""thunder.core.devices, compared with torch.device."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from thunder.core import devices
from thunder.core.devices import Device, DeviceType, to_device, to_torch_device
from thunder.core.errors import ThunderRuntimeError, ThunderTypeError

SPELLINGS = ["cpu", "cuda:0", "cuda:3", "meta", "mps:0", "xpu:1", "hpu:0", "mtia:0", "xla:2"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_facts_agree_with_torch(spelling):
    device, torch_device = to_device(spelling), torch.device(spelling)
    assert str(device) == device.device_str() == str(torch_device) == spelling
    assert device.type == device.devicetype.value == torch_device.type
    assert device.index == torch_device.index
    assert to_torch_device(device) == to_torch_device(spelling) == torch_device


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_object_per_device(spelling):
    device = Device(spelling)
    assert to_device(spelling) is to_device(torch.device(spelling)) is to_device(device) is device
    assert Device(device.devicetype, device.index) is Device(device.type, device.index) is device
    assert copy.copy(device) is copy.deepcopy(device) is pickle.loads(pickle.dumps(device)) is device
    assert {device: 1}[to_device(torch.device(spelling))] == 1


def test_index():
    assert Device("cuda") is Device("cuda:0") is Device(DeviceType.CUDA) is to_device(torch.device("cuda"))
    assert Device("cuda", 1) is not Device("cuda")
    assert Device("cpu", 1) is Device("cpu:0") is to_device(torch.device("cpu", 0)) is devices.cpu
    assert devices.cpu.index is None
    assert Device("meta", 2) is Device(DeviceType.META)


def test_repr():
    assert repr(Device("cuda")) == "thunder.devices.Device(type='cuda', index=0)"
    assert repr(devices.cpu) == "thunder.devices.Device(type='cpu')"


def test_none():
    assert to_device(None) is None
    assert to_torch_device(None) is None


def test_int_is_an_index_of_the_accelerator():
    if torch.accelerator.is_available():
        assert str(to_device(1)) == str(torch.device(1))
    else:
        with pytest.raises(RuntimeError, match="accelerator"):
            to_device(1)


def test_torch_device_is_kept_as_it_is():
    assert to_torch_device(torch.device("cuda")) == torch.device("cuda")


@pytest.mark.parametrize("spelling", ["gpu", "cuda:x", "cpu:-1", ""])
def test_unknown_spelling_fails_as_in_torch(spelling):
    with pytest.raises(RuntimeError):
        torch.device(spelling)
    for function in (to_device, Device, devices.device_from_string, to_torch_device):
        with pytest.raises(ThunderRuntimeError, match="is not a device"):
            function(spelling)


@pytest.mark.parametrize("x", [1.5, True, ["cpu"], torch.float32])
def test_other_objects_are_rejected(x):
    with pytest.raises(ThunderTypeError, match="expected a device"):
        to_device(x)


def test_index_given_twice_is_rejected():
    with pytest.raises(ThunderRuntimeError):
        Device("cuda:1", 2)


def test_device_types():
    assert devices.all_devicetypes == (DeviceType.CPU, DeviceType.CUDA)
    assert devices.devicetype_string(DeviceType.CUDA) == "cuda"
    for devicetype in DeviceType:
        if devicetype is not DeviceType.MKLDNN:  # torch warns that this one is going away
            assert Device(devicetype).devicetype is devicetype


def test_available_devices():
    available = devices.available_devices()
    assert available[0] is devices.cpu
    assert len(available) == 1 + torch.accelerator.device_count()
