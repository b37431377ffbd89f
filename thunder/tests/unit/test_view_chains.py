"""Chains of views become one view or none, in the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.core.passes import PassContext
from thunder.core.transforms.view_chains import SimplifyViews, root_form, steps
from thunder.core.verify import verify
from thunder.tests.unit.traces import add, body, lines, make_trace
from thunder.torch.registry import symbol_for

reshape, permute, transpose = (symbol_for(f) for f in (torch.reshape, torch.permute, torch.transpose))
squeeze, unsqueeze, expand = (symbol_for(f) for f in (torch.squeeze, torch.unsqueeze, torch.Tensor.expand))


def simplified(program: Callable, shape: tuple[int, ...] = (2, 3, 4)) -> Any:
    trace = make_trace(program, "x", shape=shape)
    new = SimplifyViews().apply(trace, PassContext())
    verify(new, level=2, before=trace)
    return new


def views_in(trace: Any) -> list[str]:
    return [n.sym.name for n in trace.bound_symbols if n.sym.name not in ("unpack_trivial", "python_return", "add")]


@pytest.mark.parametrize(
    "program, left",
    [
        (lambda x: permute(permute(x, (1, 0, 2)), (1, 0, 2)), []),
        (lambda x: transpose(transpose(x, 1, 2), -1, -2), []),
        (lambda x: reshape(x, (2, 3, 4)), []),
        (lambda x: expand(x, 2, 3, 4), []),
        (lambda x: squeeze(unsqueeze(x, 0), 0), []),
        (lambda x: reshape(reshape(x, (1, 2, 3, 2, 2)), (2, 3, 4)), []),
        (lambda x: permute(transpose(x, 0, 1), (2, 0, 1)), ["permute"]),
        (lambda x: unsqueeze(unsqueeze(unsqueeze(x, 0), 2), 4), ["reshape"]),
        (lambda x: permute(unsqueeze(permute(x, (2, 1, 0)), 0), (3, 2, 1, 0)), ["reshape"]),
        (lambda x: permute(unsqueeze(unsqueeze(x, 3), 0), (2, 0, 1, 4, 3)), ["reshape", "permute"]),
        (lambda x: permute(reshape(transpose(x, 0, 2), (2, 2, 3, 2)), (0, 3, 2, 1)), ["reshape", "permute"]),
    ],
)
def test_a_chain_takes_no_more_than_two_views(program, left):
    new = simplified(lambda x: add(program(x), 1))
    assert views_in(new) == left


@pytest.mark.parametrize(
    "program",
    [
        lambda x: permute(x, (1, 0, 2)),
        lambda x: reshape(permute(x, (1, 0, 2)), (3, 8)),  # copies
        lambda x: reshape(reshape(permute(x, (1, 0, 2)), (3, 8)), (3, 2, 4)),  # row-major after the copy
        lambda x: reshape(reshape(x, (6, 4)), (2, 3, 4)),  # copies where x is not row-major
        lambda x: expand(unsqueeze(x, 0), 5, 2, 3, 4),
    ],
)
def test_what_may_copy_or_repeat_stays(program):
    trace = make_trace(lambda x: add(program(x), 1), "x", shape=(2, 3, 4))
    assert SimplifyViews().apply(trace, PassContext()) is trace


def test_the_trace_reads_as_the_shorter_program():
    def program(x):
        heads = transpose(unsqueeze(reshape(x, (3, 2, 4)), 0), 1, 2)
        return add(permute(squeeze(heads, 0), (1, 2, 0)), 1)

    new = body(simplified(program, (3, 8)))
    assert "\n".join(line for line in new.splitlines() if "prims." not in line) == lines(
        """
        t9 = ltorch.reshape(x, (3, 2, 4))  # t9: "cpu f32[3, 2, 4]"
        t4 = ltorch.permute(t9, (0, 2, 1))  # t4: "cpu f32[3, 4, 2]"
        t5 = ltorch.add(t4, 1)  # t5: "cpu f32[3, 4, 2]"
        return t5
        """
    )


def test_views_that_others_read_are_not_computed_twice():
    def program(x):
        shared = permute(reshape(x, (2, 3, 2, 2)), (1, 0, 2, 3))
        return add(shared, 1), add(permute(shared, (2, 0, 1, 3)), 1), add(permute(shared, (2, 3, 0, 1)), 1)

    assert views_in(simplified(program)) == ["reshape", "permute", "permute", "permute"]


def test_sizes_of_zero_and_symbols_are_left_alone():
    trace = make_trace(lambda x: add(permute(permute(x, (1, 0)), (1, 0)), 1), "x", shape=(0, 3))
    assert SimplifyViews().apply(trace, PassContext()) is trace


SHAPES = ((2, 3, 4), (6, 1, 2), (4,), (1, 1), (2, 2, 2, 3))


@st.composite
def chains(draw):
    """A shape and up to six views, as (operation, argument)."""
    shape = draw(st.sampled_from(SHAPES))
    start, made = shape, []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(("permute", "reshape", "unsqueeze", "squeeze")))
        if kind == "permute":
            order = draw(st.permutations(range(len(shape))))
            made.append((torch.permute, tuple(order)))
            shape = tuple(shape[d] for d in order)
        elif kind == "unsqueeze":
            place = draw(st.integers(0, len(shape)))
            made.append((torch.unsqueeze, place))
            shape = (*shape[:place], 1, *shape[place:])
        elif kind == "squeeze":
            made.append((torch.squeeze, tuple(range(len(shape)))))
            shape = tuple(s for s in shape if s != 1)
        else:
            total = torch.Size(shape).numel()
            parts = [total]
            for divisor in draw(st.lists(st.sampled_from((2, 3)), max_size=3)):
                if parts[0] % divisor == 0:
                    parts = [parts[0] // divisor, divisor, *parts[1:]]
            made.append((torch.reshape, tuple(parts)))
            shape = tuple(parts)
    return start, made


@settings(max_examples=150, deadline=None)
@given(chains(), st.booleans())
def test_random_chains_have_eagers_values_strides_and_memory(chain, transposed):
    shape, views = chain
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    x = x.mT.contiguous().mT if transposed and x.ndim > 1 else x

    def program(x):
        for fn, arg in views:
            x = fn(x, arg)
        return x

    trace = make_trace(lambda x: add(_traced(views, x), 0.0), "x", shape=shape)
    new = SimplifyViews().apply(trace, PassContext())
    verify(new, level=2, before=trace)
    assert len(new.bound_symbols) <= len(trace.bound_symbols)
    env = {"x": x}
    for node in new.bound_symbols[1:-1]:
        args = [env[a.name] if hasattr(a, "name") else a for a in node.args]
        env[node.output.name] = node.sym.torch_fn(*args)
        if node.sym.name == "add":
            got, want = args[0], program(x)
    assert torch.equal(got, want)
    strides = [(a, b) for a, b, n in zip(got.stride(), want.stride(), got.shape, strict=True) if n != 1]
    assert all(a == b for a, b in strides)
    assert (got.data_ptr() == x.data_ptr()) == (want.data_ptr() == x.data_ptr())


def _traced(views, x):
    for fn, arg in views:
        x = symbol_for(fn)(x, arg)
    return x


def test_a_form_is_what_its_steps_make():
    root = (2, 3, 4)
    form = tuple(root_form(root)[d] for d in (2, 0, 1))
    assert steps(root, form) == (None, [2, 0, 1])
    assert steps(root, (None, *root_form(root))) == ([1, 2, 3, 4], None)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.permute(1, 0, 2).permute(1, 0, 2),
        lambda x: x.unsqueeze(0).squeeze(0),
        lambda x: x.reshape(2, 3, 4),
        lambda x: (x.transpose(0, 1).transpose(0, 1), x.transpose(1, 2).transpose(1, 2)),
        lambda x: x.unsqueeze(1).permute(1, 2, 0, 3),
        lambda x: x.contiguous().reshape(2, 3, 4),
        lambda x: (x.sin().unsqueeze(0).squeeze(0), x.cos().reshape(2, 3, 4)),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_are_tensors_of_their_own_in_eagers_memory(program, requires_grad):
    x = torch.randn(2, 3, 4, requires_grad=requires_grad)
    got, want = thunder.jit(program)(x), program(x)
    gots, wants = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for g, w in zip(gots, wants, strict=True):
        assert (g is x) == (w is x)
        assert g.stride() == w.stride()
        assert (g.data_ptr() == x.data_ptr()) == (w.data_ptr() == x.data_ptr())
    assert len({id(g) for g in gots}) == len(gots)
    with torch.no_grad():
        gots[0].add_(1)
        wants[0].add_(1)
    for g, w in zip(gots, wants, strict=True):
        assert torch.equal(g, w) or g.data_ptr() == x.data_ptr()


def test_written_views_and_their_inputs_are_as_in_eager():
    def program(x):
        v = x.mT.mT
        v.mul_(2)
        w = x.unsqueeze(0).squeeze(0)
        w[0] = 1
        return x + v, w

    a, b = torch.ones(3, 3), torch.ones(3, 3)
    for got, want in zip(thunder.jit(program)(a), program(b), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(a, b)


def test_the_gradient_of_a_batched_product_has_no_views_that_change_nothing():
    a, b = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 4, 5, requires_grad=True)
    f = thunder.jit(lambda a, b: torch.matmul(a, b).sin())
    f(a, b).sum().backward()
    names = [n.sym.name for n in thunder.last_backward_traces(f)[-1].bound_symbols]
    assert not {"reshape", "expand", "view"} & set(names), names


def test_the_gradient_of_attention_is_eagers():
    def attention(x, w):
        q, k, v = (t.reshape(2, 5, 2, 4).transpose(1, 2) for t in F.linear(x, w).chunk(3, -1))
        s = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return s.transpose(1, 2).reshape(2, 5, 8)

    x, w = torch.randn(2, 5, 8, requires_grad=True), torch.randn(24, 8, requires_grad=True)
    got, want = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (thunder.jit(attention), attention))
    torch.testing.assert_close(got, want)
