"""What backward saves and what it computes again."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.benchmarks.measure import Step, saved_bytes
from thunder.benchmarks.models import Workload
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD


class Gated(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(F.silu(h) * torch.sigmoid(h) + 1)


def saved(compiled, module, x):
    """Bytes that a call saves for backward, those of parameters and inputs left out."""
    compiled(x)
    return saved_bytes(Step(compiled, Workload(module, (x,), torch.sum)))


def gradients(compiled, module, x):
    module.zero_grad()
    compiled(x).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


def test_rematerialize_saves_fewer_bytes_than_eager_and_than_min_cut_of_aot():
    torch.manual_seed(0)
    module = torch.nn.Sequential(Gated(), Gated())
    x = torch.randn(16, 8)
    aot = saved(torch.compile(module, backend="aot_eager"), module, x)
    eager = saved(module, module, x)
    plain, least = thunder.jit(module, rematerialize=False), thunder.jit(module)
    want = gradients(module, module, x)
    torch.testing.assert_close(gradients(plain, module, x), want)
    torch.testing.assert_close(gradients(least, module, x), want)
    assert saved(plain, module, x) <= eager
    assert saved(least, module, x) <= aot < eager
    # Decomposed, layer_norm's mean and inverse deviation are computed again, which one kernel for all of it cannot.
    statistics = 2 * 2 * 16 * 4
    decomposed = saved(torch.compile(module, backend="aot_eager_decomp_partition"), module, x)
    assert saved(least, module, x) - statistics <= decomposed < aot


def recomputed(fn, *args):
    """Names of the operations that run again in backward."""
    compiled = thunder.jit(fn)
    compiled(*args).sum().backward()
    backward = thunder.last_backward_traces(compiled)[-1]
    return [b.sym.name for b in backward.bound_symbols if RECOMPUTE_IN_BACKWARD in b.tags]


def test_what_backward_would_have_to_store_is_saved():
    """A product reads the gelu, so computing it again costs a kernel, and its bytes, all the same."""
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    assert recomputed(lambda x, w: F.gelu(x) @ w, x, w) == []
    assert recomputed(lambda x, w: F.gelu(x).view(2, 8).t().reshape(4, 4) @ w, x, w) == []
    assert recomputed(lambda x, w: F.gelu(x) * w.sin(), x, w) != []


def test_values_are_recomputed_from_what_they_were():
    """torch's own partitioner reads the buffer after the write here, and gives half the gradient."""

    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.ones(()))

        def forward(self, x):
            y = x.exp()
            self.n += 1
            return y / self.n

    grads = []
    for wrap in (lambda m: m, lambda m: thunder.jit(m, rematerialize=True)):
        x = torch.ones(3, requires_grad=True)
        wrap(Counted())(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_checkpointed_region_is_computed_again_in_backward():
    def f(x, w):
        return checkpoint(lambda a, b: torch.tanh(a @ b).sin(), x, w, use_reentrant=False).sum()

    compiled = thunder.jit(f)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    compiled(x, w).backward()
    got = [x.grad, w.grad]
    x.grad = w.grad = None
    f(x, w).backward()
    torch.testing.assert_close(got, [x.grad, w.grad])
    again = [b for b in thunder.last_backward_traces(compiled)[-1].bound_symbols if RECOMPUTE_IN_BACKWARD in b.tags]
    assert {"matmul", "tanh"} <= {b.sym.name for b in again}
    assert all(BACKWARD in b.tags for b in again)
    saved = thunder.last_traces(compiled)[-1].bound_symbols[-1].args[1]
    assert {p.name for p in saved} == {"x", "w"}


@pytest.mark.parametrize("rematerialize", [False, True])
def test_random_values_are_saved(rematerialize):
    def f(x):
        return checkpoint(lambda a: F.dropout(a.sin(), 0.5) * a, x, use_reentrant=False)

    x = torch.rand(100, requires_grad=True)
    out = thunder.jit(f, rematerialize=rematerialize)(x)
    out.sum().backward()
    v, mask = x.detach(), (out.detach() != 0) * 2.0
    torch.testing.assert_close(x.grad, mask * (v.cos() * v + v.sin()))


def test_compiles_under_saved_tensor_hooks():
    compiled = thunder.jit(lambda x: x.exp().sin())
    x = torch.rand(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        out = compiled(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp().cos() * x.detach().exp())
