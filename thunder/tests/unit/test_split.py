"""The joint trace as forward and backward: by tag alone."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD, origin
from thunder.core.passes import PassContext
from thunder.core.trace import TraceTag
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.transforms.recompute import RecomputeInBackward
from thunder.core.transforms.split import split_forward_backward
from thunder.core.verify import verify
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import add, body, lines, make_trace, mul, sin


def split_of(fn, names="x y", **kwargs):
    joint = joint_trace(make_trace(fn, names, requires_grad=True, **kwargs))
    verify(joint, stage="joint", level=2)
    joint = RecomputeInBackward().apply(joint, PassContext())
    verify(joint, stage="joint", level=2)
    split = split_forward_backward(joint)
    for half in (split.forward, split.backward):
        if half is not None:
            verify(half, stage="split", level=2, before=joint)
    return split


def test_text_of_both_halves():
    split = split_of(lambda x, y: (mul(sin(x), y),))
    assert body(split.forward) == lines(
        """
        t0 = ltorch.sin(x)  # t0: "cpu f32[2, 3]"
        t1 = ltorch.mul(t0, y)  # t1: "cpu f32[2, 3]"
        return ((t1,), (t0, y, x), ())
        """
    )
    assert "def backward_fn(saved_for_backward, cotangents):" in split.backward.python()
    text = body(split.backward)
    assert text.index("C0, C1 = saved_for_backward") < text.index("t0, y, x = C0") < text.index("C0.clear()")
    assert text.index("t1_grad, = cotangents") < text.index("cotangents.clear()") < text.index("torch.ops.aten.mul")
    assert split.differentiable == (0,)
    assert TraceTag.AUGMENTED_FORWARD in split.forward.tags
    assert TraceTag.BACKWARD in split.backward.tags
    assert all(n.is_backward for n in split.backward.bound_symbols)
    assert not any(n.is_backward for n in split.forward.bound_symbols)


def run_split(split, *args):
    forward = transform_for_execution(split.forward, [torchex]).python_callable()
    backward = transform_for_execution(split.backward, [torchex]).python_callable()
    outs, tensors, others = forward(*args)
    grads = backward([list(tensors), list(others)], [torch.ones_like(outs[n]) for n in split.differentiable])
    return outs, grads


def test_the_halves_compute_values_and_gradients():
    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    outs, grads = run_split(split_of(lambda x, y: (mul(sin(x), y), add(x, y))), x, y)
    expected = (x.sin() * y, x + y)
    torch.testing.assert_close(outs, expected)
    torch.testing.assert_close(grads, torch.autograd.grad(sum(e.sum() for e in expected), (x, y)))


def test_an_output_returned_twice_has_one_cotangent():
    split = split_of(lambda x, y: (lambda z: (z, y, z))(sin(x)))
    assert split.differentiable == (0, 1)


def test_inputs_without_gradient_have_none():
    trace = make_trace(lambda x, y: (sin(x),), requires_grad=True)
    split = split_forward_backward(joint_trace(trace))
    assert split.backward.output[1] is None


def test_forward_keeps_nothing_that_backward_does_not_read():
    split = split_of(lambda x, y: (add(sin(mul(x, 2)), y),))
    assert body(split.forward).endswith("return ((t2,), (t0,), ())")


def test_what_is_to_be_recomputed_is_computed_in_backward():
    def program(x, y):
        with origin(add_tags=(RECOMPUTE_IN_BACKWARD,)):
            h = sin(x)
            k = sin(h)
        return (mul(k, y),)

    split = split_of(program)
    assert body(split.forward).splitlines()[-1].split("((t2,), ")[1] in ("(x, y), ())", "(y, x), ())")
    recomputed = [n for n in split.backward.bound_symbols if n.sym is sin]
    assert [n.output.name for n in recomputed] == ["bw_t0", "bw_t1"]
    assert all({BACKWARD, RECOMPUTE_IN_BACKWARD} <= n.tags and n.origin.source is not None for n in recomputed)
    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    _, grads = run_split(split, x, y)
    torch.testing.assert_close(grads, torch.autograd.grad((x.sin().sin() * y).sum(), (x, y)))


@pytest.mark.parametrize("tagged", [True, False])
def test_checkpointing_saves_inputs_instead_of_intermediates(tagged):
    def block(x):
        return x.sin().cos().tanh()

    def fn(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if tagged else block(x)

    x = torch.randn(3, requires_grad=True)
    jitted = thunder.jit(fn, rematerialize=False)
    jitted(x)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = jitted(x)
    kept_anyway = {t.data_ptr() for t in (x, out)}
    assert len({t.data_ptr() for t in saved} - kept_anyway) == (0 if tagged else 1)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(block(x).sum(), x)[0])
