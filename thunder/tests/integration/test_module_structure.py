"""ThunderModules whose structure changes, inside other modules, and in wrappers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import thunder
from thunder.core.module import get_thunder_module
from thunder.tests.integration.test_modules import assert_same_grads, assert_same_state, inputs, pair, step

# Structure


def test_nested_thunder_modules():
    torch.manual_seed(0)
    inner = nn.Linear(3, 3)
    model = nn.Sequential(copy.deepcopy(inner), nn.ReLU())
    nested = nn.Sequential(thunder.jit(inner), nn.ReLU())
    x = inputs()
    for outer in (nested, thunder.jit(nested)):
        outer.zero_grad()
        model.zero_grad()
        torch.testing.assert_close(step(outer, x), step(model, x))
        torch.testing.assert_close(inner.weight.grad, model[0].weight.grad)
    assert list(nested.state_dict()) == list(model.state_dict())


def test_jitting_a_thunder_module_again():
    compiled = thunder.jit(nn.Linear(3, 2))
    again = thunder.jit(compiled)
    x = inputs()
    torch.testing.assert_close(again(x), compiled(x))
    assert again.weight is compiled.weight
    assert list(again.state_dict()) == list(compiled.state_dict())


def test_module_called_inside_a_compiled_function():
    model = thunder.jit(nn.Linear(3, 2))
    x = inputs()
    fn = thunder.jit(lambda a: model(a).sin())
    torch.testing.assert_close(fn(x), model(x).sin())


def test_appending_to_a_sequential_compiles_again():
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(3, 3)))
    x = inputs()
    torch.testing.assert_close(compiled(x), eager(x))
    for m in (eager, compiled):
        m.append(nn.Tanh())
    torch.testing.assert_close(compiled(x), eager(x))
    for m in (eager, compiled):
        m[0] = nn.Identity()
    torch.testing.assert_close(compiled(x), eager(x))
    for m in (eager, compiled):
        del m[1]
    torch.testing.assert_close(compiled(x), eager(x))


def test_module_list_and_dict_structure_is_guarded():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.ReLU()])
            self.table = nn.ModuleDict({"a": nn.Tanh()})

        def forward(self, x):
            for b in self.blocks:
                x = b(x)
            for name in self.table:
                x = self.table[name](x)
            return x

    eager, compiled = pair(Blocks)
    x = inputs()
    torch.testing.assert_close(compiled(x), eager(x))
    for m in (eager, compiled):
        m.blocks.append(nn.Sigmoid())
        m.table["b"] = nn.Softsign()
    torch.testing.assert_close(compiled(x), eager(x))


def test_replaced_forward_is_seen():
    compiled = thunder.jit(nn.Sequential(nn.ReLU()))
    x = inputs()
    torch.testing.assert_close(compiled(x), x.relu())
    compiled[0].forward = lambda a: a * 2
    torch.testing.assert_close(compiled(x), x * 2)


def test_lazily_made_buffer():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", None, persistent=False)

        def forward(self, x):
            if self.table is None or self.table.shape[0] < x.shape[0]:
                self.table = torch.arange(float(x.shape[0]))
            return x + self.table[: x.shape[0], None]

    eager, compiled = pair(Lazy)
    for n in (3, 5, 2, 4):
        torch.testing.assert_close(compiled(inputs(n)), eager(inputs(n)))
        torch.testing.assert_close(compiled.table, eager.table)
        assert type(compiled.table) is torch.Tensor


def test_counters_and_lists_on_the_module():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.log = []
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.calls += 1
            self.log.append(x.sum())
            self.total += x.sum(0)
            return x * self.calls

    eager, compiled = pair(Counting)
    for n in range(4):
        torch.testing.assert_close(compiled(inputs() + n), eager(inputs() + n))
    assert compiled.calls == eager.calls == 4
    torch.testing.assert_close(compiled.log, eager.log)
    torch.testing.assert_close(compiled.total, eager.total)


def test_lazy_modules():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    compiled = thunder.jit(model)
    x = inputs()
    out = compiled(x)
    assert compiled[0].weight.shape == (4, 3)
    torch.testing.assert_close(out, model(x))


def test_parametrized_module():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).mT

    def make():
        model = nn.Linear(3, 3)
        parametrize.register_parametrization(model, "weight", Symmetric())
        return model

    eager, compiled = pair(make)
    x = inputs()
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    assert_same_grads(eager, compiled)


def test_weight_norm_and_spectral_norm():
    eager, compiled = pair(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    x = inputs()
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    assert_same_grads(eager, compiled)
    eager, compiled = pair(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))
    for _ in range(2):
        torch.testing.assert_close(step(compiled, x), step(eager, x))
    assert_same_state(eager, compiled)


def test_functional_call():
    _, compiled = pair(lambda: nn.Linear(3, 2))
    x = inputs()
    w = torch.ones(2, 3)
    out = torch.func.functional_call(compiled._model, {"weight": w, "bias": torch.zeros(2)}, (x,))
    torch.testing.assert_close(out, x @ w.T)


def test_no_sync_without_data_parallelism():
    _, compiled = pair(lambda: nn.Linear(3, 2))
    with compiled.no_sync():
        step(compiled, inputs())
    assert compiled.weight.grad is not None


def test_data_parallel_wrapper():
    _, compiled = pair(lambda: nn.Linear(3, 2))
    x = inputs()
    wrapped = nn.DataParallel(compiled)
    torch.testing.assert_close(wrapped(x), compiled(x))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


@pytest.mark.distributed
def test_distributed_data_parallel_of_one_process(tmp_path):
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = inputs()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(compiled)
        torch.testing.assert_close(step(wrapped, x), step(eager, x))
        assert_same_grads(eager, compiled)
        with wrapped.no_sync():
            step(wrapped, x)
        step(eager, x)
        assert_same_grads(eager, compiled)
    finally:
        torch.distributed.destroy_process_group()


def test_call_with_keywords_and_several_results():
    class Two(nn.Module):
        def forward(self, x, *, scale=1.0, mask=None):
            out = x * scale
            return {"out": out, "masked": None if mask is None else out.masked_fill(mask, 0.0)}

    eager, compiled = pair(Two)
    x = inputs()
    for kwargs in ({}, {"scale": 2.0}, {"mask": x > 0}):
        torch.testing.assert_close(compiled(x, **kwargs), eager(x, **kwargs))


def test_members_of_modules_called_by_other_methods():
    _, compiled = pair()
    fn = thunder.jit(compiled._model.double_count)
    torch.testing.assert_close(fn(), torch.zeros(()))


def test_get_thunder_module():
    model = nn.Linear(2, 2)
    assert get_thunder_module(model) is None
    compiled = thunder.jit(model)
    assert get_thunder_module(model) is compiled
    model(torch.ones(1, 2))
    copy.deepcopy(model)
    pickle.dumps(model)
