"""ThunderModule: used as the module that it was made from."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder import ThunderModule


class Net(nn.Module):
    """Linear layers, a batch norm, a buffer that counts, and one that is not saved."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(width, 2)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.note = "text"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.last(self.drop(self.norm(self.first(x)).relu())) * self.scratch

    def double_count(self) -> torch.Tensor:
        return self.count * 2


def pair(make: Any = Net, **options: Any) -> tuple[nn.Module, ThunderModule]:
    """A module and a compiled copy of it."""
    torch.manual_seed(0)
    eager = make()
    return eager, thunder.jit(copy.deepcopy(eager), **options)


def inputs(n: int = 5, width: int = 3) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1))


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name])


def assert_same_grads(a: nn.Module, b: nn.Module) -> None:
    for (name, p), (other, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert name == other
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=lambda m, name=name: f"{name}: {m}")


def step(module: nn.Module, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    out = module(x)
    out.square().sum().backward()
    return out


# Members


def test_it_is_a_module_with_the_members_of_the_original():
    eager, compiled = pair()
    assert isinstance(compiled, nn.Module)
    assert isinstance(compiled, ThunderModule)
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in eager.named_parameters()]
    assert [n for n, _ in compiled.named_buffers()] == [n for n, _ in eager.named_buffers()]
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in eager.named_modules()]
    assert [n for n, _ in compiled.named_children()] == [n for n, _ in eager.named_children()]
    assert len(list(compiled.parameters())) == len(list(eager.parameters()))
    assert len(list(compiled.buffers())) == len(list(eager.buffers()))
    assert len(list(compiled.modules())) == len(list(eager.modules()))
    assert len(list(compiled.children())) == len(list(eager.children()))
    assert compiled.get_parameter("first.weight") is compiled.first.weight
    assert compiled.get_buffer("norm.running_mean") is compiled.norm.running_mean
    assert compiled.get_submodule("norm") is compiled.norm


def test_named_buffers_by_persistence():
    _, compiled = pair()
    assert "scratch" not in dict(compiled.named_buffers(persistent=True))
    assert list(dict(compiled.named_buffers(persistent=False))) == ["scratch"]
    assert "scratch" in dict(compiled.named_buffers())


def test_attributes_are_those_of_the_original():
    _, compiled = pair()
    assert compiled.note == "text"
    torch.testing.assert_close(compiled.double_count(), torch.zeros(()))
    compiled.note = "other"
    assert compiled._model.note == "other"
    del compiled.note
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'note'"):
        _ = compiled.note
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        _ = compiled.missing
    assert not hasattr(compiled, "missing")
    assert "first" in dir(compiled)


def test_members_may_be_assigned():
    eager, compiled = pair()
    x = inputs()
    compiled.eval()(x)
    for m in (eager, compiled):
        m.eval()
        m.last = nn.Linear(4, 2)
        nn.init.constant_(m.last.weight, 0.5)
        nn.init.constant_(m.last.bias, 0.25)
        m.scratch = torch.full((2,), 3.0)
    assert "last.weight" in dict(compiled.named_parameters())
    torch.testing.assert_close(compiled(x), eager(x))
    for m in (eager, compiled):
        m.first.bias = None
    torch.testing.assert_close(compiled(x), eager(x))
    assert "first.bias" not in dict(compiled.named_parameters())


def test_new_parameter_after_the_first_call():
    class Gate(nn.Module):
        def forward(self, x):
            gate = getattr(self, "gate", None)
            return x if gate is None else x * gate

    compiled = thunder.jit(Gate())
    x = inputs()
    assert compiled(x) is x
    compiled.gate = nn.Parameter(torch.full((3,), 2.0))
    torch.testing.assert_close(compiled(x), x * 2)
    assert list(dict(compiled.named_parameters())) == ["gate"]
    compiled.register_parameter("gate", None)
    torch.testing.assert_close(compiled(x), x)


def test_set_buffer():
    _, compiled = pair()
    compiled.set_buffer("norm.running_mean", torch.full((4,), 7.0))
    torch.testing.assert_close(compiled._model.norm.running_mean, torch.full((4,), 7.0))
    assert compiled.get_buffer("norm.running_mean") is compiled._model.norm.running_mean


def test_container_protocol_is_that_of_the_original():
    compiled = thunder.jit(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert len(compiled) == 2
    assert isinstance(compiled[1], nn.ReLU)
    assert [type(m) for m in compiled] == [nn.Linear, nn.ReLU]
    named = thunder.jit(nn.ModuleDict({"a": nn.Linear(3, 3)}))
    assert "a" in named
    assert "b" not in named
    with pytest.raises(TypeError, match="len"):
        len(thunder.jit(nn.Linear(3, 3)))


def test_repr_shows_the_original():
    text = repr(thunder.jit(nn.Sequential(nn.Linear(3, 4), nn.ReLU())))
    assert text.startswith("ThunderModule(")
    assert text.count("Linear(in_features=3, out_features=4, bias=True)") == 1
    assert text.count("ReLU()") == 1


# State


def test_state_dict_and_back():
    eager, compiled = pair()
    assert_same_state(eager, compiled)
    assert list(compiled.state_dict(prefix="net.")) == list(eager.state_dict(prefix="net."))
    assert list(compiled.original_state_dict()) == list(eager.state_dict())
    assert "scratch" not in compiled.state_dict()
    assert compiled.state_dict(keep_vars=True)["first.weight"] is compiled.first.weight
    other = Net()
    result = compiled.load_state_dict(other.state_dict())
    assert not result.missing_keys
    assert not result.unexpected_keys
    x = inputs()
    torch.testing.assert_close(compiled.eval()(x), other.eval()(x))
    third = Net()
    compiled.load_original_state_dict(third.state_dict())
    torch.testing.assert_close(compiled(x), third.eval()(x))


def test_state_dict_inside_a_parent_module():
    inner = Net()
    parent = nn.Sequential(nn.Linear(3, 3), thunder.jit(inner))
    plain = nn.Sequential(parent[0], inner)
    assert list(parent.state_dict()) == list(plain.state_dict())
    parent.load_state_dict(plain.state_dict())
    assert [n for n, _ in parent.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert len(list(parent.parameters())) == len(list(plain.parameters()))


def test_load_state_dict_errors_are_those_of_eager():
    eager, compiled = pair()
    state = eager.state_dict()
    del state["first.bias"]
    state["first.weight"] = torch.zeros(1, 1)
    state["extra"] = torch.zeros(())
    with pytest.raises(RuntimeError) as expected:
        eager.load_state_dict(state)
    with pytest.raises(RuntimeError) as got:
        compiled.load_state_dict(state)
    assert str(got.value) == str(expected.value)
    result = compiled.load_state_dict({"first.bias": torch.ones(4)}, strict=False)
    assert "first.weight" in result.missing_keys


def test_load_state_dict_with_assign():
    eager, compiled = pair()
    x = inputs()
    compiled.eval()(x)
    state = {k: v.clone() + 0.25 for k, v in eager.state_dict().items()}
    compiled.load_state_dict(state, assign=True)
    assert compiled.first.weight.data_ptr() == state["first.weight"].data_ptr()
    eager.load_state_dict(state)
    torch.testing.assert_close(compiled(x), eager.eval()(x))


def test_saved_with_torch_save():
    eager, compiled = pair()
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(file))
    assert_same_state(eager, fresh)


@pytest.mark.parametrize("called", [False, True], ids=["fresh", "called"])
def test_deepcopy_is_independent(called):
    eager, compiled = pair()
    x = inputs()
    if called:
        step(compiled, x)
        step(eager, x)
    clone = copy.deepcopy(compiled)
    assert isinstance(clone, ThunderModule)
    assert clone.first.weight is not compiled.first.weight
    with torch.no_grad():
        for p in clone.parameters():
            p.add_(1)
        for p in eager.parameters():
            p.add_(1)
    torch.testing.assert_close(clone.eval()(x), eager.eval()(x))
    assert thunder.cache_misses(clone) == 1
    assert not torch.equal(clone.first.weight, compiled.first.weight)


def test_deepcopy_of_a_parent():
    parent = nn.Sequential(thunder.jit(nn.Linear(3, 3)), nn.ReLU())
    x = inputs()
    expected = parent(x)
    clone = copy.deepcopy(parent)
    torch.testing.assert_close(clone(x), expected)
    assert clone[0].weight is not parent[0].weight


def test_deepcopy_keeps_settings():
    compiled = thunder.jit(nn.Linear(3, 3), cache="symbolic values", fusion_type="dataflow")
    clone = copy.deepcopy(compiled)
    assert thunder.cache_option(clone) is thunder.CACHE_OPTIONS.SYMBOLIC_VALUES
    assert thunder.compile_data(clone).compile_options == {"fusion_type": "dataflow"}


def test_pickle():
    eager, compiled = pair()
    x = inputs()
    compiled.eval()(x)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert isinstance(loaded, ThunderModule)
    assert not loaded.training
    torch.testing.assert_close(loaded(x), eager.eval()(x))
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), eager(x))


# Modes and conversions


def test_train_and_eval():
    eager, compiled = pair()
    x = inputs()
    for mode in (True, False, True, False):
        assert compiled.train(mode) is compiled
        eager.train(mode)
        assert compiled.training is mode
        assert compiled.drop.training is mode
        torch.testing.assert_close(step(compiled, x), step(eager, x))
    assert thunder.cache_misses(compiled) == 2
    assert_same_state(eager, compiled)
    compiled.drop.train()
    eager.drop.train()
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    compiled._model.eval()
    assert compiled.training is False


@pytest.mark.parametrize("convert", [lambda m: m.double(), lambda m: m.to(torch.float64), lambda m: m.bfloat16()])
def test_conversions(convert):
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    x = inputs()
    compiled(x)
    assert convert(compiled) is compiled
    convert(eager)
    dtype = compiled[0].weight.dtype
    assert dtype is eager[0].weight.dtype
    x = x.to(dtype)
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    assert_same_grads(eager, compiled)


def test_to_meta_and_to_empty():
    compiled = thunder.jit(nn.Linear(3, 4))
    compiled.to("meta")
    assert compiled.weight.is_meta
    compiled.to_empty(device="cpu")
    assert compiled.weight.device.type == "cpu"


def test_requires_grad_and_frozen_parameters():
    eager, compiled = pair()
    x = inputs()
    for m in (eager, compiled):
        m.first.requires_grad_(False)
    step(eager, x)
    step(compiled, x)
    assert_same_grads(eager, compiled)
    for m in (eager, compiled):
        m.requires_grad_(True)
        m.zero_grad()
        assert all(p.grad is None for p in m.parameters())
    step(eager, x)
    step(compiled, x)
    assert_same_grads(eager, compiled)
    for m in (eager, compiled):
        m.zero_grad(set_to_none=False)
    assert_same_grads(eager, compiled)
    for m in (eager, compiled):
        m.requires_grad_(False)
    assert not compiled(x).requires_grad


def test_apply():
    _, compiled = pair()
    seen = []
    assert compiled.apply(lambda m: seen.append(type(m).__name__)) is compiled
    assert "Linear" in seen
    assert "Net" in seen


# Training


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
    ids=["sgd", "adamw", "adagrad"],
)
def test_optimizers(optimizer):
    eager, compiled = pair()
    x = inputs()
    losses = []
    for m in (eager, compiled):
        opt = optimizer(m.parameters())
        trail = []
        for n in range(4):
            opt.zero_grad()
            torch.manual_seed(n)
            loss = m(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            opt.step()
            trail.append(loss.detach())
        losses.append(torch.stack(trail))
    torch.testing.assert_close(losses[1], losses[0])
    assert_same_state(eager, compiled)
    assert thunder.cache_misses(compiled) == 1


def test_original_stays_usable_and_shares_state():
    model = nn.Linear(3, 2)
    compiled = thunder.jit(model)
    x = inputs()
    torch.testing.assert_close(model(x), compiled(x))
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(compiled(x), model(x))


def test_parameter_replaced_is_read_anew():
    compiled = thunder.jit(nn.Linear(3, 2, bias=False))
    x = inputs()
    compiled(x)
    compiled.weight = nn.Parameter(torch.ones(2, 3))
    out = compiled(x)
    torch.testing.assert_close(out, x @ torch.ones(3, 2))
    out.sum().backward()
    assert compiled.weight.grad is not None
    compiled.weight.data = torch.zeros(2, 3)
    torch.testing.assert_close(compiled(x), torch.zeros(5, 2))


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            return self.head(self.emb(ids))

    eager, compiled = pair(Tied)
    ids = torch.tensor([1, 2, 3, 3])
    assert len(list(compiled.parameters())) == 1
    torch.testing.assert_close(step(compiled, ids), step(eager, ids))
    assert_same_grads(eager, compiled)
    clone = copy.deepcopy(compiled)
    assert clone.head.weight is clone.emb.weight
    clone.head.weight = nn.Parameter(torch.zeros(7, 4))
    torch.testing.assert_close(clone(ids), torch.zeros(4, 7))


# Hooks


def test_hooks_on_the_compiled_module():
    eager, compiled = pair(lambda: nn.Linear(3, 2))
    x = inputs()
    seen: dict[str, list[str]] = {"eager": [], "compiled": []}
    for name, m in (("eager", eager), ("compiled", compiled)):
        log = seen[name]
        m.register_forward_pre_hook(lambda mod, args, log=log: log.append("pre") or (args[0] * 2,))
        m.register_forward_hook(lambda mod, args, out, log=log: log.append("post") or out + 1)
        m.register_full_backward_hook(lambda mod, gi, go, log=log: log.append(f"backward {go[0].sum():.4f}"))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.testing.assert_close(step(compiled, a), step(eager, b))
    torch.testing.assert_close(a.grad, b.grad)
    assert seen["compiled"] == seen["eager"]
    assert_same_grads(eager, compiled)


def test_hooks_on_submodules():
    eager, compiled = pair(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    x = inputs()
    kept: dict[str, list[torch.Tensor]] = {"eager": [], "compiled": []}
    torch.testing.assert_close(compiled(x), eager(x))
    handles = []
    for name, m in (("eager", eager), ("compiled", compiled)):
        handles.append(m[0].register_forward_hook(lambda mod, a, out, k=kept[name]: k.append(out) or out * 2))
        handles.append(m[1].register_forward_pre_hook(lambda mod, a: (a[0] + 1,)))
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    torch.testing.assert_close(kept["compiled"][0], kept["eager"][0])
    assert_same_grads(eager, compiled)
    for h in handles:
        h.remove()
    torch.testing.assert_close(compiled(x), eager(x))
    assert len(kept["compiled"]) == 1


def test_hook_on_the_original():
    model = nn.Linear(3, 2)
    compiled = thunder.jit(model)
    x = inputs()
    compiled(x)
    model.register_forward_hook(lambda mod, a, out: out * 3)
    torch.testing.assert_close(compiled(x), model(x))


def test_parameter_hooks():
    eager, compiled = pair(lambda: nn.Linear(3, 2))
    x = inputs()
    seen: dict[str, list[float]] = {"eager": [], "compiled": []}
    for name, m in (("eager", eager), ("compiled", compiled)):
        m.weight.register_hook(lambda g: g * 2)
        m.bias.register_post_accumulate_grad_hook(lambda p, s=seen[name]: s.append(float(p.grad.sum())))
    for _ in range(2):
        step(eager, x)
        step(compiled, x)
    assert_same_grads(eager, compiled)
    assert seen["compiled"] == pytest.approx(seen["eager"])
