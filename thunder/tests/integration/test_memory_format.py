"""Convolutions in channels-last memory: as eager in values, gradients, strides, writes and aliasing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transforms.protect import MemoryGroups
from thunder.executors import memory_format
from thunder.executors.memory_format import with_channels_last
from thunder.program import PartialBackwards
from thunder.tests.fusers import ElementwiseFuser

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN"),
]


class LayoutFuser(ElementwiseFuser):
    """Fuses elementwise operations of what `with_channels_last` gives; `changed`: whether that was another trace."""

    changed = False

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        new = with_channels_last(trace)
        self.changed = new is not trace
        return super().fusion_pass(new)


class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.conv3 = nn.Conv2d(8, 4, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(4, 2)
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def residual(m, x):
    x = F.relu(m.bn(m.conv1(x)))
    x = F.relu(m.conv2(x) + x)
    return m.head(F.adaptive_avg_pool2d(m.conv3(x), 1).flatten(1))


def image_out(m, x):
    return m.conv3(m.conv2(m.conv1(x)).tanh())


def pooled(m, x):
    x = F.max_pool2d(m.conv1(x), 2)
    x = F.avg_pool2d(m.conv2(x), 2)
    return F.interpolate(m.conv3(x), scale_factor=2).mean((2, 3))


def written(m, x):
    x = m.bn(m.conv1(x)) + 1
    x[:, 0].mul_(2)
    x.add_(1)
    x = F.relu_(m.conv2(x))
    return m.conv3(F.relu(m.conv2(x), inplace=True))


def viewed(m, x):
    x = m.conv1(x)
    y = m.conv3(m.conv2(x.view(*x.shape[:2], -1).view(x.shape)))
    return y.view(y.shape[0], -1).sum(1), y.view(y.shape[0], 2, -1).transpose(1, 2), y


def with_views(m, x):
    x = m.conv2(m.conv1(x))
    return x, x[0], x.flatten(2), m.conv3(x)


def normalized(m, x):
    return m.conv3(m.norm(m.conv2(m.conv1(x))))


def dropped(m, x):
    return m.conv3(F.dropout(m.conv2(m.conv1(x)), 0.5))


def attention(m, x):
    x = m.conv2(m.conv1(x))
    q = x.flatten(2).transpose(1, 2)
    x = (torch.softmax(q @ q.transpose(1, 2), -1) @ q).transpose(1, 2).reshape(x.shape)
    return m.conv3(m.conv2(x)).amax((2, 3))


def halves(m, x):
    a, b = m.conv2(m.conv1(x)).chunk(2, 1)
    return m.conv3(torch.cat([a * torch.sigmoid(b), b], 1)).permute(0, 2, 3, 1)


BODIES = [residual, image_out, pooled, written, viewed, with_views, normalized, dropped, attention, halves]


def outcome(net, call, x):
    """Results, gradients and buffers of a step."""
    torch.manual_seed(1)
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    outs = call(x)
    outs = outs if isinstance(outs, tuple) else (outs,)
    grads = torch.autograd.grad(sum((o * o).sum() for o in outs), [x, *net.parameters()], allow_unused=True)
    return [*outs, *grads, *net.buffers()], outs


def compiled_and_eager(body, x, *, channels_last=False):
    results, fuser = [], LayoutFuser()
    for make in (lambda net: net, lambda net: thunder.jit(net, executors=[fuser])):
        torch.manual_seed(0)
        net = Net(body)
        if channels_last:
            net = net.to(memory_format=torch.channels_last)
        results.append(outcome(net, make(net), x))
    return results, fuser


def assert_alike(results, *, strides=True):
    (expected, expected_outs), (actual, outs) = results
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, check_stride=strides and e is not None)
    assert sharing(outs) == sharing(expected_outs)


def sharing(outs):
    return [o.untyped_storage()._cdata == p.untyped_storage()._cdata for o in outs for p in outs]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_as_in_eager(body):
    results, fuser = compiled_and_eager(body, torch.randn(2, 3, 8, 8))
    assert_alike(results)
    if body in (residual, image_out, pooled):
        assert fuser.changed


def convolutions(trace: TraceCtx) -> list[BoundSymbol]:
    return [n for n in trace.bound_symbols if n.sym.name in ("conv2d", "convolution")]


def copies_in(nodes: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    return [n for n in nodes if n.sym.name == "contiguous"]


def test_what_lies_between_convolutions_is_not_copied():
    fuser = LayoutFuser()
    torch.manual_seed(0)
    net = Net(residual)
    compiled = thunder.jit(net, executors=[fuser])
    compiled(torch.randn(2, 3, 8, 8)).sum().backward()
    trace = thunder.last_traces(compiled)[-1]
    copied = [n.output.name for n in copies_in(trace.bound_symbols)]
    assert copied == ["x_channels_last", "t_conv2_weight_channels_last"]
    backward = thunder.last_backward_traces(compiled)[-1]
    copied = [n.args[0].shape for n in copies_in(backward.bound_symbols)]
    assert sorted(copied) == [(4, 8, 1, 1), (8, 3, 3, 3), (8, 4, 3, 3)], "gradients of weights"
    assert len(convolutions(trace)) == 3


def test_random_numbers_fall_where_they_do_in_eager():
    results, fuser = compiled_and_eager(dropped, torch.randn(2, 3, 8, 8))
    assert_alike(results)
    assert fuser.changed


def test_a_program_that_chooses_channels_last_is_left_alone():
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    results, fuser = compiled_and_eager(residual, x, channels_last=True)
    assert_alike(results, strides=False)
    assert not fuser.changed


def test_more_copies_than_convolutions_are_not_made():
    def alternating(m, x):
        return m.conv3(m.norm(m.conv2(m.norm(m.conv1(x)))))

    results, fuser = compiled_and_eager(alternating, torch.randn(2, 3, 8, 8))
    assert_alike(results)
    assert not fuser.changed


LAYOUTS = {
    "row-major": torch.ones(2, 4, 6, 6),
    "channels last": torch.ones(2, 4, 6, 6).contiguous(memory_format=torch.channels_last),
    "slice": torch.ones(2, 8, 6, 6)[:, ::2],
    "permuted": torch.ones(6, 6, 4, 2).permute(3, 2, 0, 1),
}
IN_PLACE = [
    {},
    {"skip_inplace_functionalization": True},
    {"skip_inplace_functionalization": True, "skip_inplace_alias_updates": True},
]


def adds(images, z):
    return z + images


def writes_result(images, z):
    y = z + 0
    y.add_(images)
    y[0].mul_(3)
    return y


def writes_input(images, z):
    z.add_(images)
    z.mul_(2)
    z[0].sub_(1)
    return z, z.sum()


def copies_into_input(images, z):
    z.copy_(images)
    return images * 1, z


@pytest.mark.parametrize("options", IN_PLACE, ids=["functional", "alias updates", "neither"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("body", [adds, writes_result, writes_input, copies_into_input], ids=lambda body: body.__name__)
def test_strides_that_other_values_decide(body, layout, options):
    x, w, v = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 1, 1), torch.randn(4, 4, 1, 1)

    def program(z):
        return body(F.conv2d(F.conv2d(x, w).relu(), v), z)

    ours, theirs = ((t := LAYOUTS[layout]).new_empty_strided(t.shape, t.stride()).copy_(t) for _ in range(2))
    actual, expected = thunder.jit(program, executors=[LayoutFuser()], **options)(ours), program(theirs)
    torch.testing.assert_close(actual, expected, check_stride=True)
    torch.testing.assert_close(ours, theirs, check_stride=True)


def weights_read(compiled) -> list[str]:
    """Names of the weights that the backward reads."""
    nodes = thunder.last_backward_traces(compiled)[-1].bound_symbols
    return sorted(n.args[2].name for n in nodes if n.sym.base_name == "convolution_backward")


def test_a_weight_is_laid_out_once_for_forward_and_backward():
    net = Net(residual)
    compiled = thunder.jit(net, executors=[LayoutFuser()])
    out = compiled(torch.randn(2, 3, 8, 8))
    assert weights_read(compiled) == ["t_conv1_weight", "t_conv2_weight_channels_last", "t_conv3_weight"]
    with torch.no_grad():
        compiled(torch.randn(2, 3, 8, 8))
    assert [n.output.name for n in copies_in(thunder.last_traces(compiled)[-1].bound_symbols)] == ["x_channels_last"]
    out.sum().backward()
    assert net.conv2.weight.grad.stride() == net.conv2.weight.stride()


def test_a_weight_with_two_readers_is_laid_out_once_without_gradients():
    def f(x, w):
        return F.conv2d(F.conv2d(x, w).relu(), w)

    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    compiled = thunder.jit(f, executors=[LayoutFuser()])
    torch.testing.assert_close(compiled(x, w), f(x, w))
    copies = [n.output.name for n in copies_in(thunder.last_traces(compiled)[-1].bound_symbols)]
    assert copies == ["x_channels_last", "w_channels_last", "conv2d_1"]


@pytest.mark.parametrize("options", IN_PLACE, ids=["functional", "alias updates", "neither"])
@pytest.mark.parametrize("written", ["x", "w", "view of x", "view of w"])
def test_what_is_written_between_convolutions_is_laid_out_anew(written, options):
    def f(x, w):
        with torch.no_grad():
            a = F.conv2d(F.conv2d(x, w).relu(), w)
            target = {"x": x, "w": w, "view of x": x[0], "view of w": w.view(-1)}[written]
            target.mul_(3)
            return a.relu().sum((2, 3)) + F.conv2d(F.conv2d(x, w).relu(), w).relu().sum((2, 3))

    def inputs():
        torch.manual_seed(0)
        return torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)

    fuser = LayoutFuser()
    ours, theirs = inputs(), inputs()
    actual, expected = thunder.jit(f, executors=[fuser], **options)(*ours), f(*theirs)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours, theirs)
    assert fuser.changed


def two_heads(m, x):
    x = F.relu(m.conv2(m.conv1(x)))
    return m.conv3(x).mean((2, 3)), F.conv2d(x, m.conv2.weight, groups=2).mean((2, 3))


@pytest.mark.parametrize("executor", [LayoutFuser(), "torchcompile"], ids=["test fuser", "Inductor"])
@pytest.mark.parametrize("used", [0, 1])
def test_gradients_of_some_outputs_take_the_layout_of_the_forward(used, executor, monkeypatch):
    monkeypatch.setattr(PartialBackwards, "_on_zeros", lambda *_: pytest.fail("computes gradients of zeros"))
    found = []
    for make in (lambda net: net, lambda net: thunder.jit(net, executors=[executor])):
        torch.manual_seed(0)
        net = Net(two_heads)
        torch.manual_seed(1)
        make(net)(torch.randn(2, 3, 8, 8))[used].square().sum().backward()
        found.append([p.grad for p in net.parameters()])
    for actual, expected in zip(*found[::-1], strict=True):
        torch.testing.assert_close(actual, expected, check_stride=expected is not None)


def test_memory_that_is_written_often_is_looked_at_once(monkeypatch):
    visited = [0]
    group = MemoryGroups.group

    def counting(self, name):
        visited[0] += len(found := group(self, name))
        return found

    monkeypatch.setattr(MemoryGroups, "group", counting)
    for writes in (20, 80):
        trace = written_trace(writes)
        visited[0] = 0
        memory_format._written_and_fixed_names(trace)
        assert visited[0] <= sum(len(n.defined) for n in trace.bound_symbols)


def written_trace(writes: int) -> TraceCtx:
    """A program that adds to rows of one tensor, renamed at each write."""

    def program(b):
        b = b + 0
        for n in range(writes):
            b[n % 4].add_(1)
        return b.sum()

    compiled = thunder.jit(program, executors=["torch"], skip_inplace_functionalization=True)
    compiled(torch.ones(4, 3))
    return thunder.last_traces(compiled)[1]


def test_one_dimensional_and_transposed_convolutions():
    def f(x, w, v):
        return F.conv_transpose2d(F.relu(x), w).sum() + F.conv1d(x.flatten(2), v).sum()

    x, w, v = torch.randn(2, 3, 5, 5), torch.randn(3, 4, 2, 2), torch.randn(2, 3, 2)
    fuser = LayoutFuser()
    torch.testing.assert_close(thunder.jit(f, executors=[fuser])(x, w, v), f(x, w, v))
    assert not fuser.changed


@pytest.mark.parametrize("options", [{"cache": "symbolic values"}, {"skip_inplace_functionalization": True}], ids=str)
def test_options(options):
    torch.manual_seed(0)
    net = Net(written)
    torch.manual_seed(0)
    eager = Net(written)
    compiled = thunder.jit(net, executors=[LayoutFuser()], **options)
    for size in (8, 6):
        x = torch.randn(2, 3, size, size)
        actual, expected = compiled(x), eager(x)
        torch.testing.assert_close(actual, expected, check_stride=True)
        actual.sum().backward()
        expected.sum().backward()
    for a, e in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, e.grad)


def test_with_inductor():
    torch.manual_seed(0)
    net = Net(residual)
    torch.manual_seed(0)
    eager = Net(residual)
    x = torch.randn(2, 3, 8, 8)
    compiled = thunder.jit(net, executors=["torchcompile"])
    assert_alike([outcome(eager, eager, x), outcome(net, compiled, x)])
    trace = thunder.last_traces(compiled)[-1]
    fused = [part.output.name for n in trace.bound_symbols if n.sym.is_fusion for part in copies_in(n.subsymbols)]
    alone = [n.output.name for n in copies_in(trace.bound_symbols)]
    expected = ["t_conv1_weight_channels_last", "t_conv2_weight_channels_last", "x_channels_last"]
    assert sorted(fused + alone) == expected
