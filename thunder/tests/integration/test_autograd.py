"""Compiled programs inside torch's autograd: gradients, hooks and errors as in eager."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder import program
from thunder.core.errors import DoubleBackwardError, ThunderError


def leaf(*shape: int, seed: int = 0, requires_grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    t = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return t.requires_grad_(requires_grad)


def grads_of(fn: Any, inputs: list[torch.Tensor], loss: Any) -> list[torch.Tensor | None]:
    """Gradients of `loss(fn(*inputs))` for fresh copies of the inputs."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    loss(fn(*inputs)).backward()
    return [t.grad for t in inputs]


def assert_grads(fn: Any, inputs: list[torch.Tensor], loss: Any, compiled: Any = None) -> Any:
    """Gradients of the compiled function are eager's, None where eager's are None."""
    compiled = compiled or thunder.jit(fn)
    for _ in range(2):
        got, expected = grads_of(compiled, inputs, loss), grads_of(fn, inputs, loss)
        assert [g is None for g in got] == [e is None for e in expected]
        for g, e in zip(got, expected, strict=True):
            if e is not None:
                torch.testing.assert_close(g, e)
                assert g.dtype is e.dtype
    return compiled


# Which inputs and outputs have gradients


@pytest.mark.parametrize(
    "tracked", [(True, True, True), (True, False, True), (False, True, False), (False, False, True)]
)
def test_mixed_requires_grad(tracked):
    inputs = [leaf(3, seed=n, requires_grad=r) for n, r in enumerate(tracked)]
    assert_grads(lambda a, b, c: (a * b + c).tanh(), inputs, lambda out: out.sum())


def test_nothing_requires_grad():
    out = thunder.jit(lambda a: a * 2)(leaf(3, requires_grad=False))
    assert not out.requires_grad
    assert out.grad_fn is None


def test_unused_input_has_no_gradient():
    assert_grads(lambda a, b: a * 2, [leaf(3), leaf(3, seed=1)], lambda out: out.sum())


def fan(a, b, c):
    hidden = (a * b).exp()
    return hidden.sum(), (b * c).sin(), {"c": c * 2, "n": 3}


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out[0],
        lambda out: out[1].sum(),
        lambda out: out[2]["c"].sum(),
        lambda out: out[0] + out[1].sum(),
        lambda out: out[0] + out[2]["c"].sum(),
        lambda out: out[0] + out[1].sum() + out[2]["c"].sum(),
    ],
    ids=["first", "second", "third", "first+second", "first+third", "all"],
)
def test_inputs_that_reach_only_unused_outputs_have_no_gradient(loss):
    assert_grads(fan, [leaf(3, seed=n) for n in range(3)], loss)


def test_each_set_of_used_outputs_has_a_backward_of_its_own():
    compiled = thunder.jit(fan)
    inputs = [leaf(3, seed=n) for n in range(3)]
    for loss in (lambda o: o[0], lambda o: o[1].sum(), lambda o: o[0] + o[1].sum(), lambda o: o[0]):
        assert_grads(fan, inputs, loss, compiled)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_unused_outputs_whose_backward_needs_what_was_not_saved(cache, monkeypatch):
    monkeypatch.setattr(program, "_computed_alike", lambda *_: False)
    compiled = thunder.jit(fan, cache=cache)
    for size in (3, 4):
        inputs = [leaf(size, seed=n) for n in range(3)]
        for loss in (lambda o: o[0], lambda o: o[1].sum(), lambda o: o[0] + o[2]["c"].sum()):
            assert_grads(fan, inputs, loss, compiled)
    assert thunder.cache_misses(compiled) == (1 if cache == "symbolic values" else 2)


def test_unused_outputs_of_operations_of_many_kinds():
    def fn(x, w, b, g):
        normal = nn.functional.layer_norm(x @ w, (4,), g, b)
        parts = torch.cat([normal, x[:, :4]], 1).split(4, 1)
        values, places = torch.sort(normal)
        return parts[0].sum(), values * 2, places, torch.stack([b, g]), nn.functional.softmax(x, -1), x.view(-1)

    inputs = [leaf(2, 5), leaf(5, 4, seed=1), leaf(4, seed=2), leaf(4, seed=3)]
    compiled = thunder.jit(fn)
    for n in (0, 1, 3, 4, 5):
        assert_grads(fn, inputs, lambda out, n=n: out[n].sum(), compiled)
    assert_grads(fn, inputs, lambda out: out[0] + out[5].sum(), compiled)


def test_unused_outputs_of_a_custom_function():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b, a + b

        @staticmethod
        def backward(ctx, g, h):
            a, b = ctx.saved_tensors
            return g * b + h, g * a + h

    def fn(a, b):
        return Two.apply(a, b)

    inputs = [leaf(3), leaf(3, seed=1)]
    for loss in (lambda o: o[0].sum(), lambda o: o[1].sum(), lambda o: (o[0] * o[1]).sum()):
        assert_grads(fn, inputs, loss)


def test_repeated_outputs():
    def fn(a):
        y = a * 2
        return y, y, [y]

    inputs = [leaf(3)]
    assert_grads(fn, inputs, lambda out: (out[0] + out[1] * 3 + out[2][0] * 5).sum())
    assert_grads(fn, inputs, lambda out: out[1].sum())


def test_outputs_that_are_inputs():
    def fn(a, b):
        return a, a * b, b, a

    inputs = [leaf(3), leaf(3, seed=1)]
    for loss in (lambda o: o[0].sum(), lambda o: o[1].sum(), lambda o: (o[0] * o[2] + o[1] + o[3]).sum()):
        assert_grads(fn, inputs, loss)
    a, b = inputs
    out = thunder.jit(fn)(a, b)
    assert out[0] is a
    assert out[2] is b
    assert out[3] is a


def test_outputs_that_are_views():
    def fn(a):
        y = a * 2
        return y, y[0], a.T, a[1]

    inputs = [leaf(3, 3)]
    for n in range(4):
        assert_grads(fn, inputs, lambda out, n=n: (out[n] ** 2).sum())
    assert_grads(fn, inputs, lambda out: sum((o**2).sum() for o in out))


def test_integer_boolean_and_detached_outputs():
    def fn(a):
        return a.argmax(), a > 0, a.sum(), a.detach() * 2, a.to(torch.int32), a.sort()

    compiled = assert_grads(fn, [leaf(4)], lambda out: out[2] + (out[5].values * torch.arange(4.0)).sum())
    for got, expected in zip(compiled(leaf(4))[:5], fn(leaf(4))[:5], strict=True):
        torch.testing.assert_close(got, expected)
        assert got.requires_grad == expected.requires_grad


def test_scalars_and_zero_dimensional_tensors():
    assert_grads(lambda a, b: a * b, [leaf(), leaf(seed=1)], lambda out: out)
    assert_grads(lambda a, b: a * 3.0 + b.sum(), [leaf(), leaf(2, seed=1)], lambda out: out)


def test_empty_tensors():
    assert_grads(lambda a: a * 2, [leaf(0, 3)], lambda out: out.sum())


def test_dtypes():
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64):
        inputs = [leaf(3, dtype=dtype), leaf(3, seed=1, dtype=dtype)]
        assert_grads(lambda a, b: a * b + a, inputs, lambda o: o.abs().sum())
    assert_grads(lambda a, b: a * b, [leaf(3), leaf(3, seed=1, dtype=torch.float64)], lambda o: o.sum())


# Grad modes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_under(mode):
    compiled = thunder.jit(lambda a: a * 2)
    x = leaf(3)
    with mode():
        out = compiled(x)
        assert not out.requires_grad
        assert out.is_inference() == (x * 2).is_inference()
    assert compiled(x).requires_grad


def test_inference_tensors_as_inputs():
    with torch.inference_mode():
        x = torch.ones(3)
    compiled = thunder.jit(lambda a: a * 2)
    torch.testing.assert_close(compiled(x), x * 2)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_no_grad_inside():
    def fn(a, b):
        with torch.no_grad():
            scale = (a * b).exp()
        return a * scale + b

    assert_grads(fn, [leaf(3), leaf(3, seed=1)], lambda out: out.sum())


def test_enable_grad_inside():
    def fn(a):
        y = a * 2
        with torch.enable_grad():
            z = a * 3
        return y, z

    compiled = thunder.jit(fn)
    x = leaf(3)
    with torch.no_grad():
        y, z = compiled(x)
        a, b = fn(x)
    assert (y.requires_grad, z.requires_grad) == (a.requires_grad, b.requires_grad) == (False, True)
    z.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 3.0))


def test_decorated_with_no_grad():
    @torch.no_grad()
    def fn(a):
        return a * 2

    assert not thunder.jit(fn)(leaf(3)).requires_grad
    assert not torch.no_grad()(thunder.jit(lambda a: a * 2))(leaf(3)).requires_grad


def test_grad_mode_set_inside_stays_set():
    def fn(a):
        torch.set_grad_enabled(False)
        return a * 2

    try:
        compiled = thunder.jit(fn)
        out = compiled(leaf(3))
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert not out.requires_grad


def test_detach():
    def fn(a, b):
        return a.detach() * b + a * b.detach().exp()

    assert_grads(fn, [leaf(3), leaf(3, seed=1)], lambda out: out.sum())


def test_requires_grad_of_outputs_is_that_of_eager():
    def fn(a, b):
        return a * 2, b * 2, a + b, b.detach(), torch.ones(2), (a > 0)

    a, b = leaf(3), leaf(3, requires_grad=False)
    got, expected = thunder.jit(fn)(a, b), fn(a, b)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]
    assert [t.is_leaf for t in got] == [t.is_leaf for t in expected]


def test_autograd_can_be_disabled():
    out = thunder.jit(lambda a: a * 2, disable_torch_autograd=True)(leaf(3))
    assert not out.requires_grad


# Backward


def test_gradients_accumulate():
    a = leaf(3)
    compiled = thunder.jit(lambda a: (a**2).sum())
    for _ in range(3):
        compiled(a).backward()
    torch.testing.assert_close(a.grad, 6 * a.detach())


def test_explicit_gradient():
    weights = torch.arange(3.0)
    a, b = leaf(3), leaf(3)
    thunder.jit(lambda t: t.sin())(a).backward(weights)
    b.sin().backward(weights)
    torch.testing.assert_close(a.grad, b.grad)


def test_gradients_of_some_inputs():
    fn = lambda a, b: (a * b).sin().sum()  # noqa: E731
    a, b = leaf(3), leaf(3, seed=1)
    for wanted in ([a], [b], [a, b]):
        got = torch.autograd.grad(thunder.jit(fn)(a, b), wanted)
        expected = torch.autograd.grad(fn(a, b), wanted)
        torch.testing.assert_close(got, expected)
    assert a.grad is None


def test_non_contiguous_and_expanded_gradients():
    fn = lambda a: (a * 2).T  # noqa: E731
    for grad in (torch.ones(()).expand(2, 3), torch.arange(6.0).reshape(3, 2).T):
        a, b = leaf(3, 2), leaf(3, 2)
        thunder.jit(fn)(a).backward(grad)
        fn(b).backward(grad)
        torch.testing.assert_close(a.grad, b.grad)


def test_retained_graph_runs_again():
    a = leaf(3)
    out = thunder.jit(lambda a: (a.exp() * a).sum())(a)
    out.backward(retain_graph=True)
    first = a.grad.clone()
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(a.grad, 3 * first)


def test_second_backward_is_the_error_of_eager():
    a = leaf(3)
    fn = lambda a: (a.exp() * a).sum()  # noqa: E731
    texts = []
    for f in (fn, thunder.jit(fn)):
        out = f(a)
        out.backward()
        with pytest.raises(RuntimeError) as error:
            out.backward()
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert "backward through the graph a second time" in texts[1]


@pytest.mark.parametrize("how", ["grad of grad", "backward of grad"])
def test_double_backward_is_a_typed_error(how):
    a = leaf(3)
    (g,) = torch.autograd.grad(thunder.jit(lambda a: (a**3).sum())(a), a, create_graph=True)
    torch.testing.assert_close(g.detach(), 3 * a.detach() ** 2)
    with pytest.raises(DoubleBackwardError, match="gradient of a gradient"):
        if how == "backward of grad":
            g.sum().backward()
        else:
            torch.autograd.grad(g.sum(), a)
    with pytest.raises(ThunderError):
        g.sum().backward()


def test_create_graph_without_double_backward():
    a = leaf(3)
    with pytest.warns(UserWarning, match="create_graph=True"):
        thunder.jit(lambda a: (a**2).sum())(a).backward(create_graph=True)
    torch.testing.assert_close(a.grad.detach(), 2 * a.detach())
    a.grad = None


def test_saved_tensor_changed_before_backward():
    a, b = leaf(3), leaf(3, seed=1)
    fn = lambda a, b: (a * b).sum()  # noqa: E731
    for f in (fn, thunder.jit(fn)):
        c = b * 1
        out = f(a, c)
        c.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_memory_of_saved_tensors_is_given_back():
    a = leaf(3)
    out = thunder.jit(lambda a: a.exp())(a)
    node = out.grad_fn
    assert len(node.saved_tensors) == 1
    out.sum().backward()
    with pytest.raises(RuntimeError):
        _ = node.saved_tensors


# Hooks


def test_tensor_hooks():
    log: list[tuple[str, torch.Tensor]] = []

    def run(f, tag):
        a = leaf(3)
        a.register_hook(lambda g: log.append((tag, g)) or g * 2)
        out = f(a)
        out.register_hook(lambda g: log.append((tag, g)) or g + 1)
        out.retain_grad()
        out.sum().backward()
        return a.grad, out.grad

    fn = lambda a: a.sin() * 3  # noqa: E731
    torch.testing.assert_close(run(thunder.jit(fn), "c"), run(fn, "e"))
    torch.testing.assert_close([g for t, g in log if t == "c"], [g for t, g in log if t == "e"])


def test_saved_tensor_hooks():
    packed: list[torch.Size] = []

    def pack(t):
        packed.append(t.shape)
        return t.to(torch.float64)

    a = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(torch.float32)):
        out = thunder.jit(lambda a: a.exp().sin().sum())(a)
    out.backward()
    assert packed
    b = leaf(3)
    b.exp().sin().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_save_on_cpu():
    a, b = leaf(3), leaf(3)
    with torch.autograd.graph.save_on_cpu():
        thunder.jit(lambda a: (a.exp() * a).sum())(a).backward()
    (b.exp() * b).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_anomaly_mode():
    a = leaf(3)
    # A number that no other test has, so that the gradient is recorded here.
    compiled = thunder.jit(lambda a: (a**11).sum())
    with torch.autograd.set_detect_anomaly(True):
        compiled(a).backward()
    torch.testing.assert_close(a.grad, 11 * a.detach() ** 10)
    assert "autograd_backward" not in thunder.last_backward_traces(compiled)[-1].python()


# Graphs around it


def test_compiled_function_inside_an_eager_graph():
    fn = thunder.jit(lambda h: h.relu() @ h.T)

    def run(f):
        a = leaf(3, 3)
        out = (f(a.exp()) * a).sum()
        out.backward()
        return a.grad

    torch.testing.assert_close(run(fn), run(lambda h: h.relu() @ h.T))


def test_compiled_function_of_a_view_and_of_a_non_leaf():
    fn = lambda h: (h * h).sum()  # noqa: E731
    compiled = thunder.jit(fn)
    for make in (lambda t: t[0], lambda t: t.T, lambda t: t * 2, lambda t: t.view(-1)):
        a, b = leaf(3, 3), leaf(3, 3)
        compiled(make(a)).backward()
        fn(make(b)).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_leaf_updates_between_calls():
    compiled = thunder.jit(lambda a, x: ((a * x - 1) ** 2).sum())
    a, x = leaf(3), torch.ones(3)
    values = []
    for _ in range(5):
        loss = compiled(a, x)
        loss.backward()
        with torch.no_grad():
            a -= 0.1 * a.grad
            a.grad = None
        values.append(loss.item())
    assert values == sorted(values, reverse=True)
    assert thunder.cache_misses(compiled) == 1


def test_in_place_write_to_a_leaf_raises_as_in_eager():
    def fn(a):
        a.add_(1)
        return a * 2

    for f in (fn, thunder.jit(fn)):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
            f(leaf(3))


def test_backward_inside_threads_of_autograd_and_no_grad_around_backward():
    a, b = leaf(3), leaf(3)
    out = thunder.jit(lambda a: a.exp().sum())(a)
    with torch.no_grad():
        out.backward()
    b.exp().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad])
def test_custom_function_around_a_compiled_function(context):
    inner = thunder.jit(lambda a: a * 2)

    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return inner(a)

        @staticmethod
        def backward(ctx, g):
            return inner(g)

    a = leaf(3)
    with context():
        out = Around.apply(a)
    if out.requires_grad:
        out.sum().backward()
        torch.testing.assert_close(a.grad, torch.full((3,), 2.0))


def test_gradcheck():
    a, b = leaf(2, 3, dtype=torch.float64), leaf(3, 2, seed=1, dtype=torch.float64)
    compiled = thunder.jit(lambda a, b: (a @ b).tanh().cumsum(0) * a.sum())
    assert torch.autograd.gradcheck(compiled, (a, b))


def test_two_calls_one_backward():
    compiled = thunder.jit(lambda a, b: a * b)
    a, b = leaf(3), leaf(3, seed=1)
    (compiled(a, b) + compiled(b, a) * 2).sum().backward()
    torch.testing.assert_close(a.grad, 3 * b.detach())


def test_output_feeds_itself():
    compiled = thunder.jit(lambda h: (h * 1.5).tanh())

    def run(f):
        a = leaf(3)
        h = a
        for _ in range(4):
            h = f(h)
        h.sum().backward()
        return a.grad

    torch.testing.assert_close(run(compiled), run(lambda h: (h * 1.5).tanh()))
