"""thunder.core.torch_compat: what is private in torch is where it is expected."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core import inductor_compat, torch_compat
from thunder.core.torch_compat import (
    FakeTensorMode,
    aten_packet,
    is_mutable,
    likeness_check,
    no_autocast,
    storage_key,
    tracing_fake_mode,
)
from thunder.executors import torchex


@pytest.mark.parametrize("module, name", [(m, name) for m in (torch_compat, inductor_compat) for name in m.__all__])
def test_every_name_is_there(module, name):
    assert getattr(module, name) is not None


def test_storage_keys_tell_which_tensors_share_memory():
    x = torch.ones(4)
    assert storage_key(x) == storage_key(x[1:]) == storage_key(x.view(2, 2))
    assert storage_key(x) != storage_key(x.clone())
    assert storage_key(torch.eye(2).to_sparse()) is None


def test_tensors_that_are_like_others():
    class Sub(torch.Tensor):
        pass

    x, y = torch.rand(2, 3), torch.rand(3)
    is_like = likeness_check([x, y])
    assert is_like(x, y)
    assert is_like(torch.zeros(2, 3), torch.ones(3))
    z = torch.rand(3, dtype=torch.complex64)
    others = [
        torch.rand(4), torch.rand(6)[::2], y.double(), y.to("meta"), torch.nn.Parameter(y), y.as_subclass(Sub),
        torch._neg_view(y), torch.rand(1, 3), 3, None,
    ]  # fmt: skip
    assert [is_like(x, other) for other in others] == [False] * len(others)
    assert not likeness_check([z])(z.conj())
    with FakeTensorMode() as mode:
        assert not is_like(x, mode.from_tensor(y))


def test_aten_packets():
    assert aten_packet("add") is torch.ops.aten.add
    assert aten_packet("no_such_operation") is None
    assert aten_packet("") is None


def test_mutable_operations():
    assert is_mutable(torch.ops.aten.add_.Tensor)
    assert is_mutable(torch.ops.aten.add.out)
    assert not is_mutable(torch.ops.aten.add.Tensor)


def test_no_fake_mode_outside_a_compilation():
    assert tracing_fake_mode() is None


def test_autocast_is_off_inside_only():
    @no_autocast
    def product(a):
        """Its doc."""
        return a @ a

    assert torchex.no_autocast is no_autocast
    assert product.__doc__ == "Its doc."
    a = torch.ones(2, 2)
    assert product(a).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_compiled_program_does_under_autocast_what_eager_does(requires_grad):
    """Regions that are switched off, inside one that is on; a second call outside of it."""
    def fn(x, w):
        a = x @ w
        with torch.autocast("cpu", enabled=False):
            b = a.float() @ w
        return a, b, torch.nn.functional.softmax(a, -1)

    x, w = torch.randn(2, 3, requires_grad=requires_grad), torch.randn(3, 3, requires_grad=requires_grad)
    jitted = thunder.jit(fn)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, expected = jitted(x, w), fn(x, w)
    assert [t.dtype for t in result] == [t.dtype for t in expected]
    torch.testing.assert_close(result, expected)
    if requires_grad:
        weights = [torch.randn_like(e) for e in expected]
        grads, want = (torch.autograd.grad(outs, (x, w), weights) for outs in (result, expected))
        torch.testing.assert_close(grads, want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(jitted(x, w), fn(x, w))
