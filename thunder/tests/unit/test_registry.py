"""The registry of executors, and what torch callables stand for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder import extend
from thunder.core.errors import ThunderValueError
from thunder.extend import OperatorExecutor
from thunder.torch.registry import symbol_for, traits_of


@pytest.fixture(autouse=True)
def restored_lists() -> Iterator[None]:
    default, always = extend.get_default_executors(), extend.get_always_executors()
    known = extend.get_all_executors()
    yield
    extend.set_default_executors(list(default))
    extend.set_always_executors(list(always))
    for ex in extend.get_all_executors():
        if ex not in known:
            extend.deregister_executor(ex)


def test_the_executors_that_come_with_thunder():
    names = [e.name for e in extend.get_all_executors()]
    assert {"torch", "python"} <= set(names)
    assert [e.name for e in extend.get_always_executors()] == ["torch", "python"]
    assert extend.get_executor("torch") is thunder.pytorch_executor
    assert extend.get_executor("python") is thunder.pythonex
    assert extend.get_executor("none such") is None


def test_registering_and_deregistering():
    ex = extend.register_executor(OperatorExecutor("reg_a"))
    extend.add_default_executor(ex)
    extend.add_always_executor(ex)
    assert extend.get_executor("reg_a") is ex
    extend.deregister_executor("reg_a")
    assert extend.get_executor("reg_a") is None
    assert ex not in extend.get_default_executors()
    assert ex not in extend.get_always_executors()
    extend.register_executor(ex)
    extend.deregister_executor(ex)
    assert ex not in extend.get_all_executors()


@pytest.mark.parametrize("which", ["default", "always"])
def test_lists_are_added_to_in_front(which):
    add, remove, get, put = (
        getattr(extend, f"{verb}_{which}_executor{s}")
        for verb, s in (("add", ""), ("remove", ""), ("get", "s"), ("set", "s"))
    )
    a, b = OperatorExecutor("reg_b"), OperatorExecutor("reg_c")
    rest = get()
    assert add(a) == [a, *rest]
    assert add(b) == [b, a, *rest]
    assert add(a) == [a, b, *rest]
    assert remove(a) == [b, *rest]
    assert remove("reg_c") == list(rest)
    assert remove("reg_c") == list(rest)
    assert put([a]) == [a]
    assert get() == (a,)


def test_resolving():
    ex = extend.register_executor(OperatorExecutor("reg_d"))
    always = extend.get_always_executors()
    assert extend.resolve_executors(None) == (*extend.get_default_executors(), *always)
    assert extend.resolve_executors(["reg_d", "torch"])[:2] == (ex, always[0])
    assert extend.resolve_executors([ex, "reg_d"]) == (ex, *always)
    assert extend.resolve_executors("reg_d") == (ex, *always)
    assert extend.resolve_executors([]) == always


@pytest.mark.parametrize("resolve", [extend.resolve_executors, lambda x: extend.add_executor_lists(x, None)])
def test_an_unknown_name_is_an_error_with_the_nearest_one(resolve):
    expected = r"'torhc' is no executor; did you mean \"torch\"\? Registered executors: .*python"
    with pytest.raises(ThunderValueError, match=expected):
        resolve(["torhc"])
    with pytest.raises(ThunderValueError, match=r"3 is no executor\. Registered"):
        resolve([3])
    with pytest.raises(ValueError, match="torch"):
        thunder.jit(torch.sin, executors=["torhc"])


def test_the_union_of_lists_is_in_order():
    a, b = (extend.register_executor(OperatorExecutor(n)) for n in ("reg_e", "reg_f"))
    torchex = extend.get_executor("torch")
    assert extend.add_executor_lists([a, "torch"], ["reg_f", a]) == (a, torchex, b)
    assert extend.add_executor_lists(None, [b]) == (b,)
    assert extend.add_executor_lists(None, None) == ()


def test_a_default_executor_is_used():
    ex = OperatorExecutor("reg_g")
    ex.register_implementation(torch.sin, ex.register_operator("default_sin", like=torch.sin, fn=torch.sin))
    extend.add_default_executor(ex)
    jitted = thunder.jit(lambda x: torch.sin(x))
    jitted(torch.ones(2))
    assert "default_sin(" in str(thunder.last_traces(jitted)[-1])


# Symbols of torch callables


def test_a_callable_has_one_symbol():
    assert symbol_for(torch.sin) is symbol_for(torch.sin)
    assert symbol_for(F.gelu).torch_fn is F.gelu
    assert str(symbol_for(torch.ops.aten.mm.default).id) == "aten.mm.default"


@pytest.mark.parametrize(
    "fn, writes",
    [
        (torch.add, ()), (torch.Tensor.add_, (0,)), (torch.Tensor.__setitem__, (0,)),
        (torch.ops.aten.add_.Tensor, (0,)),
        (torch.ops.aten.add.out, ("out",)), (torch.Tensor.zero_, (0,)), (torch.relu_, (0,)), (torch.is_tensor, ()),
    ],
)  # fmt: skip
def test_writes_come_from_schemas(fn, writes):
    traits = traits_of(fn)
    assert traits.writes == writes
    assert traits.is_barrier == bool(writes)


@pytest.mark.parametrize(
    "fn, is_random",
    [
        (torch.rand_like, True), (torch.Tensor.uniform_, True), (F.dropout, True), (torch.bernoulli, True),
        (F.gumbel_softmax, True), (torch.sin, False), (torch.zeros, False),
    ],
)  # fmt: skip
def test_random_operations_are_known(fn, is_random):
    assert traits_of(fn).is_random == is_random


def test_results_whose_shape_depends_on_data_are_barriers():
    assert traits_of(torch.nonzero).is_barrier
    assert not traits_of(torch.topk).is_barrier


def test_what_autograd_never_tracks():
    assert not traits_of(torch.Tensor.detach).is_differentiable
    assert not traits_of(torch.zeros_like).is_differentiable
    assert traits_of(torch.sin).is_differentiable
