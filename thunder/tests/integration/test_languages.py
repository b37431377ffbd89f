"""What users write on top of torch: einops, tensor subclasses, torch.func, complex numbers, Triton operators."""

from __future__ import annotations

from typing import Any

import einops
import pytest
import torch
import torch.utils._pytree as pytree
from einops.layers.torch import Rearrange, Reduce
from torch.library import triton_op

import thunder
from thunder.core.errors import UnsupportedOpError

EINOPS = {
    "rearrange": lambda x: einops.rearrange(x, "b c (h p) w -> b (h w) (p c)", p=2),
    "reduce": lambda x: einops.reduce(x, "b c h w -> b c", "mean"),
    "pooling": lambda x: einops.reduce(x, "b c (h 2) (w 3) -> b c h w", "max"),
    "repeat": lambda x: einops.repeat(x, "b c h w -> b c (h k) w", k=2),
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"),
    "pack": lambda x: einops.pack([x, x[:, :, 0]], "b c *")[0],
    "parse_shape": lambda x: x * einops.parse_shape(x, "b c h w")["c"],
    "layers": torch.nn.Sequential(
        Rearrange("b c h w -> b (c h) w"), torch.nn.Linear(6, 5), Reduce("b n d -> b d", "sum")
    ),
}


@pytest.mark.parametrize("name", EINOPS)
def test_einops(name: str) -> None:
    fn = EINOPS[name]
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    result, expected = thunder.jit(fn)(x), fn(x)
    torch.testing.assert_close(result, expected)
    gradients = (torch.autograd.grad(out.sin().sum(), x)[0] for out in (result, expected))
    torch.testing.assert_close(*gradients)


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Wrapping(torch.Tensor):
    """A subclass that holds a tensor, as quantized and distributed tensors do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        options = {"dtype": inner.dtype, "requires_grad": inner.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict, context: Any, shape: Any, strides: Any) -> Wrapping:
        return Wrapping(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = pytree.tree_map(lambda t: t.inner if isinstance(t, Wrapping) else t, (args, kwargs or {}))
        out = func(*unwrapped[0], **unwrapped[1])
        return pytree.tree_map(lambda t: Wrapping(t) if isinstance(t, torch.Tensor) else t, out)


def plain(t: Any) -> Any:
    return t.inner if isinstance(t, Wrapping) else t.as_subclass(torch.Tensor)


@pytest.mark.parametrize("wrap", [Wrapping, lambda t: t.as_subclass(Plain)], ids=["wrapping", "plain"])
def test_tensor_subclasses_stay_what_they_are(wrap: Any) -> None:
    def loss(t: Any) -> Any:
        return (t * 2).sin().sum()

    def write(t: Any) -> Any:
        t.mul_(2)
        return t.view(1, -1)

    compiled_loss, compiled_write = thunder.jit(loss), thunder.jit(write)
    outcomes = []
    for run_loss, run_write in ((loss, write), (compiled_loss, compiled_write), (compiled_loss, compiled_write)):
        t = wrap(torch.arange(3.0)).requires_grad_()
        value = run_loss(t)
        value.backward()
        u = wrap(torch.arange(3.0))
        view = run_write(u)
        outcomes.append([value, t.grad, u, view])
    for outcome in outcomes[1:]:
        assert [type(o) for o in outcome] == [type(o) for o in outcomes[0]]
        for got, want in zip(outcome, outcomes[0], strict=True):
            torch.testing.assert_close(plain(got.detach()), plain(want.detach()))


REFUSED = {
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "masked": lambda: torch.masked.masked_tensor(torch.randn(3), torch.tensor([True, False, True])),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_other_kinds_are_refused(name: str) -> None:
    compiled = thunder.jit(lambda t: t * 2)
    with pytest.raises(UnsupportedOpError, match="cannot be captured"):
        compiled(REFUSED[name]())
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x * 2)


FUNC = {
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    "grad": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "vmap": lambda x: torch.vmap(lambda row: row * 2 + row.sum())(x.exp()).sin(),
    "gradient of each sample": lambda x: torch.func.vmap(torch.func.grad(lambda y: (y**3).sum()))(x),
    "jacrev": lambda x: torch.func.jacrev(lambda y: y.sin())(x),
    "hessian": lambda x: torch.func.hessian(lambda y: (y**3).sum())(x),
}


@pytest.mark.parametrize("name", FUNC)
def test_torch_func(name: str) -> None:
    fn = FUNC[name]
    compiled = thunder.jit(fn)
    for seed in range(2):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), fn(x))


COMPLEX = {
    "product": lambda z: z @ z.mH + z.real.sum(),
    "polar": lambda z: torch.polar(z.abs(), z.angle() * 2),
    "fft": lambda z: torch.fft.ifft(torch.fft.fft(z) * z.conj()),
    "views": lambda z: torch.view_as_complex(torch.view_as_real(z) * 2),
    "functions": lambda z: z.exp() + z.sqrt() * torch.tensor(1j),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str) -> None:
    fn = COMPLEX[name]
    z = torch.randn(3, 4, dtype=torch.complex128, requires_grad=True)
    result, expected = thunder.jit(fn)(z), fn(z)
    torch.testing.assert_close(result, expected)
    gradients = (torch.autograd.grad(out.abs().sum(), z)[0] for out in (result, expected))
    torch.testing.assert_close(*gradients)


@triton_op("thunder_tests::twice", mutates_args={})
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_autograd(lambda ctx, gradient: gradient * 2)


def test_triton_operators() -> None:
    x = torch.randn(3, requires_grad=True)
    compiled = thunder.jit(lambda x: twice(x).sin())
    result, expected = compiled(x), twice(x).sin()
    torch.testing.assert_close(result, expected)
    gradients = (torch.autograd.grad(out.sum(), x)[0] for out in (result, expected))
    torch.testing.assert_close(*gradients)
    torch.library.opcheck(twice, (x,))
