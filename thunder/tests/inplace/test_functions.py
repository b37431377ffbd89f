"""Custom autograd functions, compiled and in eager."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

import thunder
from thunder.core.errors import ThunderError
from thunder.core.origin import BoundSymbolTag
from thunder.tests.inplace import functions
from thunder.tests.inplace.harness import REWRITES, assert_same, check, every_fusion, every_rewrite, observe


def leaf(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


def make_one() -> tuple:
    return (leaf(3, 4),)


def make_two() -> tuple:
    return leaf(3, 4), leaf(3, 4)


class Exp(torch.autograd.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        out = a.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (out,) = ctx.saved_tensors
        return g * out


class Power(torch.autograd.Function):
    """Takes arguments that are no tensors, one with a default."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, exponent: int, flag: bool, name: str, scale: float = 2.0) -> torch.Tensor:
        ctx.save_for_backward(a)
        ctx.exponent, ctx.flag, ctx.scale = exponent, flag, scale
        return a**exponent * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        (a,) = ctx.saved_tensors
        r = g * ctx.exponent * a ** (ctx.exponent - 1) * ctx.scale
        if ctx.flag:
            r = r + 1
        return r, None, None, None, None


class Asked(torch.autograd.Function):
    """Computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        a, b = ctx.saved_tensors
        return (g * b if ctx.needs_input_grad[0] else None), (g * a * 3 if ctx.needs_input_grad[1] else None)


class Setup(torch.autograd.Function):
    """Keeps what it needs in setup_context."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, scale: float = 0.5) -> tuple:
        return a * b * scale, (a + b).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        a, b, scale = inputs
        ctx.save_for_backward(a, b, output[0])
        ctx.scale = scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple:
        a, b, first = ctx.saved_tensors
        return g * b * ctx.scale + h + first, g * a * ctx.scale + h, None


class NotMaterialized(torch.autograd.Function):
    """Asks for missing gradients as None."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return a * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return None if g is None else g * 5


class TellsMissing(torch.autograd.Function):
    """Backward does something else for each set of missing gradients, and needs something else for it."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b)
        ctx.both = a * b
        return a * 2, b * 3

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> tuple:
        a, b = ctx.saved_tensors
        if g is None and h is None:
            return a * 0 + 7, None
        if g is None:
            return None, h * b.cos()
        if h is None:
            return g * a.sin(), None
        return g * ctx.both, h + ctx.both


class TellsMissingInSetup(TellsMissing):
    """The same, with a context set up apart."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> tuple:
        return a * 2, b * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.both = inputs[0] * inputs[1]


class NoGradient(torch.autograd.Function):
    """Backward gives nothing for its first input."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        return None, g


class Ignores(torch.autograd.Function):
    """Backward takes no notice of its gradient."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (a,) = ctx.saved_tensors
        return a.cos()


class Noisy(torch.autograd.Function):
    """Backward draws random numbers, in place and not."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(g)
        noise.add_(torch.empty_like(g).uniform_())
        return g * noise


class LateAttribute(torch.autograd.Function):
    """Backward reads an attribute as it is when backward runs."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        ctx.buffer = buffer
        return a * buffer

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        return g * ctx.buffer, None


class Once(torch.autograd.Function):
    """Cannot be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (a,) = ctx.saved_tensors
        r = g * 2
        r *= a
        return r


class Broadcast(torch.autograd.Function):
    """Backward gives a gradient that torch has to sum, in another dtype."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        return g.double(), g


class SavesOnly(torch.autograd.Function):
    """Computes a value that only backward reads."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a.sigmoid())
        ctx.kept = a.cos()
        return a * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (s,) = ctx.saved_tensors
        return g * s + ctx.kept


PROGRAMS = {
    "saved for backward only": (lambda a: SavesOnly.apply(a).sin(), make_one),
    "saved output": (lambda a: Exp.apply(a) * 2, make_one),
    "saved output returned too": (lambda a: (Exp.apply(a), a * 2), make_one),
    "not tensors": (lambda a: Power.apply(a, 3, True, "name", 0.5), make_one),
    "needs_input_grad": (lambda a, b: Asked.apply(a, b), lambda: (leaf(3), torch.rand(3))),
    "needs_input_grad, both": (lambda a, b: Asked.apply(a, b), make_two),
    "setup_context": (lambda a, b: Setup.apply(a, b, 0.25), make_two),
    "set_materialize_grads": (lambda a: NotMaterialized.apply(a), make_one),
    "mark_non_differentiable": (lambda a, b: functions.TwoOutputs.apply(a, b), make_two),
    "backward gives None": (lambda a, b: NoGradient.apply(a, b), make_two),
    "gradient ignored": (lambda a: Ignores.apply(a).sum() * 3, make_one),
    "random in backward": (lambda a: Noisy.apply(a), make_one),
    "once_differentiable": (lambda a: Once.apply(a), make_one),
    "summed and cast gradient": (lambda a, b: Broadcast.apply(a, b), lambda: (leaf(4), leaf(3, 4))),
    "nested": (lambda a: functions.Nested.apply(a), make_one),
    "several": (lambda a, b: Exp.apply(functions.ScaleInPlace.apply(a)) * Asked.apply(a, b), make_two),
    "shared": (lambda a, b: Exp.apply(a) + Exp.apply(b) * Exp.apply(a * 2), make_two),
    "identity": (lambda a: functions.Identity.apply(a) * 2, make_one),
    "identity returned": (lambda a: functions.Identity.apply(a), make_one),
    "identity of an intermediate": (lambda a: (functions.Identity.apply(a * 2),), make_one),
    "writes its gradient's product": (lambda a: functions.ScaleInPlace.apply(a), make_one),
    "writes an intermediate": (lambda a, b: functions.WritesSaved.apply(a, b), make_two),
    "writes an input": (lambda a, b: functions.WritesInput.apply(a, b), lambda: (leaf(3), torch.rand(3))),
    "mark_dirty": (lambda a: functions.Dirty.apply(a * 1).sin(), make_one),
    "mark_dirty on an input": (lambda a: functions.Dirty.apply(a), lambda: (leaf(3) * 1,)),
    "scatter in backward": (lambda a: functions.ScatterRows.apply(a), make_one),
    "in no_grad": (lambda a: (_in_no_grad(a), a * 2), make_one),
    "nothing tracked": (lambda a: functions.Nested.apply(a), lambda: (torch.rand(3),)),
    "unused result": (lambda a: (Exp.apply(a), a * 3)[1], make_one),
}


WEIGHT = leaf(3)


class ReadsGlobal(torch.autograd.Function):
    """Forward, which runs in no_grad, reads what requires grad but is no argument."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * WEIGHT

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * WEIGHT


@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_does_not_track_what_it_reads(requires_grad: bool) -> None:
    def fn(a: torch.Tensor) -> torch.Tensor:
        return ReadsGlobal.apply(a)

    a = torch.rand(3, requires_grad=requires_grad)
    got = thunder.jit(fn)(a)
    torch.testing.assert_close(got, fn(a))
    assert got.requires_grad == requires_grad
    if requires_grad:
        got.sum().backward()
        torch.testing.assert_close(a.grad, WEIGHT.detach())
        assert WEIGHT.grad is None


PICKS = {
    "first": lambda o: o[0] * 2,
    "second": lambda o: o[1].sin(),
    "both": lambda o: o[0] * o[1],
    "None for the first": lambda o: NoGradient.apply(o[0], o[0] * 0 + 1),
    "None only": lambda o: NoGradient.apply(o[0], o[0].detach()) + o[1].detach(),
}


@pytest.mark.parametrize("rematerialize", [False, True])
@pytest.mark.parametrize("function", [TellsMissing, TellsMissingInSetup])
@pytest.mark.parametrize("pick", list(PICKS))
def test_missing_gradients_inside(pick: str, function: Any, rematerialize: bool) -> None:
    check(lambda a, b: PICKS[pick](function.apply(a, b)), make_two, rematerialize=rematerialize)


@pytest.mark.parametrize("rematerialize", [False, True])
@pytest.mark.parametrize("function", [TellsMissing, TellsMissingInSetup])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_missing_gradients_of_the_program(used: tuple, function: Any, rematerialize: bool) -> None:
    def gradients(f: Any) -> list:
        torch.manual_seed(0)
        a, b = make_two()
        outs = f(a, b)
        sum((outs[n] * 3).sum() for n in used).backward()
        return [a.grad, b.grad]

    f = function.apply
    compiled = thunder.jit(lambda a, b: f(a, b), rematerialize=rematerialize)
    for got, want in zip(gradients(compiled), gradients(f), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)


def test_missing_gradients_through_torch_compile_in_a_process_of_its_own() -> None:
    program = (
        "import torch\n"
        "from thunder.dynamo import ThunderCompiler\n"
        "from thunder.tests.inplace.test_functions import TellsMissing\n"
        "a, b = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)\n"
        "compiled = torch.compile(lambda a, b: TellsMissing.apply(a, b)[1].sin(), backend=ThunderCompiler())\n"
        "compiled(a, b).sum().backward()\n"
        "assert a.grad is None and torch.allclose(b.grad, (b * 3).cos() * b.cos())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_backward_that_is_not_ready_for_a_missing_gradient() -> None:
    class Unready(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> tuple:
            ctx.set_materialize_grads(False)
            return a * 2, a * 3

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return g * 2 + h

    compiled = thunder.jit(lambda a: Unready.apply(a))
    first, second = compiled(a := leaf(3))
    with pytest.raises(TypeError, match="NoneType"):
        first.sum().backward()
    first, second = compiled(a := leaf(3))
    (first + second).sum().backward()
    assert torch.equal(a.grad, torch.full((3,), 3.0))


def test_too_many_gradients_that_may_be_missing() -> None:
    class Many(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> tuple:
            ctx.set_materialize_grads(False)
            return tuple(a * n for n in range(7))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return sum(g for g in grads if g is not None)

    with pytest.raises(ThunderError, match="7 outputs; at most 6"):
        thunder.jit(lambda a: Many.apply(a))(leaf(3))


def test_backward_reads_what_forward_does_not() -> None:
    class ReadsOther(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple:
            return g * weight, g

    weight = torch.rand(3, 4, requires_grad=True)
    check(lambda a: ReadsOther.apply(a, a) * weight, make_one)


def _in_no_grad(a: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return Exp.apply(a)


@pytest.mark.parametrize("rewrite", ["functionalized", "alias_updates"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_function(name: str, rewrite: str) -> None:
    fn, make = PROGRAMS[name]
    check(fn, make, **REWRITES[rewrite])


def same_twice_inside(x: torch.Tensor) -> torch.Tensor:
    return Asked.apply(x, x)


def same_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Asked.apply(x, y)


@every_fusion
def test_same_tensor_twice(fusion_type: str) -> None:
    def make() -> tuple:
        x = leaf(3)
        return x, x

    compiled = check(same_twice, make, fusion_type=fusion_type)
    check(same_twice_inside, make_one, fusion_type=fusion_type)
    torch.manual_seed(0)
    want = observe(same_twice, make_two())
    torch.manual_seed(0)
    assert_same(observe(compiled, make_two()), want, "two tensors after one")


@every_rewrite
def test_attribute_is_read_late(rewrite: str) -> None:
    def f(a: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        out = LateAttribute.apply(a, buffer)
        buffer.mul_(3)
        return out

    check(f, lambda: (leaf(3), torch.rand(3)), **REWRITES[rewrite])


def test_attribute_written_between_forward_and_backward() -> None:
    def run(f: Any) -> torch.Tensor:
        torch.manual_seed(0)
        a, buffer = leaf(3), torch.rand(3)
        out = f(a, buffer)
        buffer.mul_(2)
        out.sum().backward()
        return a.grad

    assert torch.equal(run(LateAttribute.apply), run(thunder.jit(lambda a, b: LateAttribute.apply(a, b))))


@pytest.mark.parametrize("form", ["older", "newer"])
@every_fusion
def test_by_hand(form: str, fusion_type: str) -> None:
    older = {"args_tensor_mask": [True, True], "non_differentiable_idx": []}
    newer = {"non_differentiable_idx": [], "saved_for_backward_idx": [0, 1]}

    def forward(*args: Any) -> tuple:
        a, b = args[-2:]
        return a * b, [a, b]

    def backward(*args: Any) -> tuple:
        g, a, b = args[-3:]
        r = g * b
        r.mul_(2)
        return r, g * a * 3

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        apply = torch.ops.higher_order.autograd_function_apply
        return apply(forward, backward, a, b, **(older if form == "older" else newer)).sin()

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return forward(a, b)[0]

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple:
            return backward(g, *ctx.saved_tensors)

    torch.manual_seed(0)
    want = observe(lambda a, b: Same.apply(a, b).sin(), make_two())
    torch.manual_seed(0)
    assert_same(observe(thunder.jit(f, fusion_type=fusion_type), make_two()), want)


def test_by_hand_with_parameters_of_a_closure() -> None:
    weight = torch.rand(3, requires_grad=True)

    def f(a: torch.Tensor) -> torch.Tensor:
        apply = torch.ops.higher_order.autograd_function_apply
        mask = {"args_tensor_mask": [True], "non_differentiable_idx": []}
        return apply(lambda ctx, a: (a * 2, []), lambda ctx, g: (g * 2,), a, **mask) * weight

    out = thunder.jit(f)(a := leaf(3))
    out.sum().backward()
    assert torch.equal(weight.grad, (a * 2).detach())
    assert torch.equal(a.grad, (weight * 2).detach())


def test_body_is_part_of_the_trace() -> None:
    compiled = thunder.jit(lambda a: functions.ScaleInPlace.apply(a))
    compiled(leaf(3))
    names = {n.sym.name: n for n in thunder.last_backward_traces(compiled)[-1].bound_symbols}
    assert "cos" in names
    assert BoundSymbolTag.BACKWARD in names["cos"].tags
    assert all(n.sym.name != "cos" for n in thunder.last_traces(compiled)[-1].bound_symbols)
    assert names["cos"].origin.source is not None


class Few(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g


class WrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g[:1], g


@pytest.mark.parametrize("function", [Few, WrongShape])
def test_wrong_gradients_are_an_error(function: Any) -> None:
    with pytest.raises((RuntimeError, ThunderError)):
        thunder.jit(lambda a, b: function.apply(a, b))(leaf(3), leaf(3)).sum().backward()
