"""What a compiled callable can be asked, and what users' transforms can change."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn

import thunder
import thunder.torch as ltorch
from thunder.core.compile_data import get_compile_data, get_compile_option
from thunder.core.errors import GuardError
from thunder.core.trace import TraceCtx
from thunder.core.transform_common import Transform
from thunder.core.transforms import add_transform
from thunder.extend import FusionExecutor, OperatorExecutor
from thunder.frontend.status import StatusLine

X = torch.ones(2, 3)


def trained(**options: Any) -> Any:
    compiled = thunder.jit(lambda a, w: (a @ w).sin().sum(), **options)
    compiled(X, torch.ones(3, 4, requires_grad=True)).backward()
    return compiled


# Traces


def test_last_traces():
    compiled = trained()
    forward, backward = thunder.last_traces(compiled), thunder.last_backward_traces(compiled)
    assert all(isinstance(t, TraceCtx) for t in (*forward, *backward))
    assert "matmul" in str(forward[0])
    assert "def computation(" in str(forward[-1])
    assert "def backward_fn(" in str(backward[-1])
    assert len({str(t) for t in forward}) == len(forward)


def test_traces_are_those_of_the_program_that_ran_last():
    compiled = thunder.jit(lambda a: (a * 2).sum())
    w = torch.ones(3, requires_grad=True)
    compiled(w)
    first = str(thunder.last_traces(compiled)[-1])
    assert thunder.last_backward_traces(compiled)
    compiled(torch.ones(5))
    assert str(thunder.last_traces(compiled)[-1]) != first
    assert thunder.last_backward_traces(compiled) == []
    compiled(w)
    assert str(thunder.last_traces(compiled)[-1]) == first
    assert thunder.last_backward_traces(compiled)
    assert thunder.cache_hits(compiled) == 1


def test_nodes_know_the_module_that_they_are_from():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    for compiled, prefix in ((thunder.jit(model), ""), (thunder.jit(lambda x: model(x)), "model.")):
        compiled(torch.ones(2, 2))
        paths = {n.origin.module_path for n in thunder.last_traces(compiled)[-1].bound_symbols} - {""}
        assert paths == {f"{prefix}0", f"{prefix}1.0"}


def test_epilogue_of_a_program_that_gives_back_a_view():
    compiled = thunder.jit(lambda a: (a.view(-1), a * 2))
    compiled(X.clone().requires_grad_())
    traces = thunder.compile_stats(compiled).last_epilogue_traces
    assert "def epilogue(" in str(traces[-1])
    compiled = thunder.jit(lambda a: a * 2)
    compiled(torch.ones(3))
    assert thunder.compile_stats(compiled).last_epilogue_traces == []


@pytest.mark.parametrize("ask", [thunder.last_traces, thunder.last_backward_traces, thunder.last_prologue_traces])
def test_asking_too_early_or_the_wrong_thing(ask):
    with pytest.raises(TypeError, match="is not compiled by thunder"):
        ask(torch.sin)
    with pytest.raises(TypeError, match="has not been called"):
        ask(thunder.jit(lambda a: a))
    with pytest.raises(TypeError, match="has not been called"):
        ask(thunder.jit(nn.Linear(2, 2)))


# Prologue


def prologue(compiled: Any) -> TraceCtx:
    return thunder.last_prologue_traces(compiled)[-1]


def test_prologue_of_a_function():
    shift = torch.ones(3)

    def fn(x, tree, *rest, mode="up", **more):
        return x * tree["k"][0] + rest[0] + more["z"] + shift if mode == "up" else x

    compiled = thunder.jit(fn)
    z = torch.zeros(3, requires_grad=True)
    compiled(X, {"k": [X + 1]}, X + 2, z=z)
    text = str(prologue(compiled))
    assert "def prologue(L, G):" in text
    assert "= L['x']  #" in text
    assert "= L['tree']['k'][0]  #" in text
    assert "= L['rest'][0]  #" in text
    assert "= L['more']['z']  #" in text
    assert "(2, 3), 'cpu', torch.float32, False)" in text.replace('"', "'")
    assert "(3,), 'cpu', torch.float32, True)" in text.replace('"', "'")
    assert "# Checked: L['mode'] has the value that it had" in text
    assert "the grad mode" in text


def test_prologue_runs():
    compiled = thunder.jit(lambda x, y: x * y)
    y = torch.full((3,), 2.0)
    compiled(X, y)
    run = prologue(compiled).python_callable()
    got = run({"x": X, "y": y}, {})
    assert got[0] is X
    assert got[1] is y
    for wrong in (X[:1], X.double(), X.clone().requires_grad_(), 3):
        with pytest.raises(GuardError, match="expected a tensor"):
            run({"x": wrong, "y": y}, {})


def test_prologue_of_a_module():
    compiled = thunder.jit(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    compiled(X)
    text = str(prologue(compiled))
    assert "['weight']" in text
    assert "t_0_weight" in text
    assert ".training has the value that it had" in text
    assert "has no hooks" in text


def test_prologue_of_symbolic_sizes():
    compiled = thunder.jit(lambda x: x * 2, cache="symbolic values")
    compiled(X)
    assert "(-1, -1)" in str(prologue(compiled))


# Statistics and options


def test_compile_data_and_stats():
    compiled = trained(fusion_type="dataflow")
    data, stats = thunder.compile_data(compiled), thunder.compile_stats(compiled)
    assert data.compile_options == {"fusion_type": "dataflow"}
    assert data.cache_option is thunder.CACHE_OPTIONS.CONSTANT_VALUES
    assert thunder.pytorch_executor in data.executors_list
    assert not data.is_module
    assert thunder.compile_data(thunder.jit(nn.Linear(2, 2))).is_module
    assert (stats.calls, stats.cache_hits, stats.cache_misses) == (1, 0, 1)
    assert len(stats.interpreter_cache) == 1
    assert thunder.compile_data(torch.sin) is None
    assert thunder.compile_stats(torch.sin) is None


def test_phase_times():
    stats = thunder.compile_stats(trained())
    times = stats.phase_times
    assert {"capture", "lowering", "autodiff", "transform_for_execution"} <= set(times)
    assert all(ns >= 0 for ns in times.values())
    assert 0 < sum(times.values()) <= stats.last_trace_construction_time()
    assert 0 < stats.last_trace_tracing_time() <= stats.last_trace_construction_time()
    assert 0 < stats.last_prologue_transformation_time() < stats.last_trace_tracing_time()


def test_times_are_those_of_the_last_compilation():
    compiled = trained()
    stats = thunder.compile_stats(compiled)
    before = stats.last_trace_host_stop
    compiled(X, torch.ones(3, 4, requires_grad=True))
    assert stats.last_trace_host_stop == before
    compiled(X.double(), torch.ones(3, 4, requires_grad=True, dtype=torch.float64))
    assert stats.last_trace_host_stop > before


def test_last_compile_options(capsys):
    thunder.last_compile_options(trained(fusion_type="dataflow"))
    text = capsys.readouterr().out
    used, unused = text.split("Unused compile options:")
    assert "fusion_type='dataflow'" in used
    assert "nv_enable_linear" in unused
    assert "fusion_type" not in unused
    with pytest.raises(TypeError, match="is not compiled by thunder"):
        thunder.last_compile_options(torch.sin)


def test_auto_registered_operations():
    compiled = thunder.jit(lambda a: torch.special.i0(a) + 1)
    compiled(X)
    assert any("i0" in name for name in thunder.get_auto_registered_torch_op_names(compiled))


def test_interpreter_logs_are_empty():
    stats = thunder.compile_stats(trained())
    assert stats.last_interpreter_log == []
    assert stats.last_interpreted_instructions == []


# Status line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_status_line_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with StatusLine("compiling f", after_s=0.01):
        time.sleep(0.1)
    text = terminal.getvalue()
    assert "thunder: compiling f, 0 s" in text
    assert text.endswith("\r\x1b[2K")


def test_no_status_line_for_what_is_quick_or_elsewhere(monkeypatch):
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        with StatusLine("compiling f", after_s=0.01 if stream is file else 10):
            time.sleep(0.03)
        assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    with StatusLine("compiling f"):
        pass


# Transforms


class Rename(Transform):
    """Replaces sin by cos, and counts the calls of its hooks."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def transform_module(self, model: Any) -> None:
        self.calls.append("module")

    def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
        self.calls.append("pre prologue")
        assert "def prologue(" in str(prologue_trace)
        nodes = []
        for b in computation_trace.bound_symbols:
            swapped = b.sym.name == "sin"
            nodes.append(b.from_bsym(sym=thunder.torch.registry.symbol_for(torch.cos)) if swapped else b)
        return prologue_trace, computation_trace.with_nodes(nodes, "sin to cos"), epilogue_trace

    def transform_trace_post_optimization(self, computation_trace, **kwargs):
        self.calls.append("post optimization")
        return computation_trace


class SinModule(nn.Module):
    def forward(self, x):
        return x.sin() * 2


def test_transform_changes_the_program_and_its_gradient():
    transform = Rename()
    compiled = thunder.jit(lambda a: a.sin() * 2, transforms=[transform])
    a = torch.linspace(0, 1, 4, requires_grad=True)
    out = compiled(a)
    torch.testing.assert_close(out, a.cos() * 2)
    out.sum().backward()
    torch.testing.assert_close(a.grad, -a.detach().sin() * 2)
    assert transform.calls == ["pre prologue", "post optimization", "post optimization"]
    assert thunder.list_transforms(compiled) == [transform]
    assert any("Rename" in str(t) for t in thunder.last_traces(compiled))


def test_transform_of_a_module_is_told_at_jit_time():
    transform = Rename()
    compiled = thunder.jit(SinModule(), transforms=[transform])
    assert transform.calls == ["module"]
    torch.testing.assert_close(compiled(X), X.cos() * 2)


def test_transforms_apply_in_order():
    order = []

    class Note(Transform):
        def __init__(self, name):
            self.name = name

        def transform_traces_pre_prologue(self, prologue_trace, computation_trace, epilogue_trace, **kwargs):
            order.append(self.name)
            return prologue_trace, computation_trace, epilogue_trace

    thunder.jit(torch.sin, transforms=[Note("first"), Note("second")])(X)
    assert order == ["first", "second"]


def test_transform_that_changes_nothing_is_not_recorded():
    compiled = thunder.jit(torch.sin, transforms=[Transform()])
    compiled(X)
    assert not any("Transform (took" in str(t) for t in thunder.last_traces(compiled))


@pytest.mark.parametrize("make", [lambda: lambda a: a.sin() * 2, SinModule], ids=["function", "module"])
def test_add_transform_keeps_the_options(make):
    compiled = thunder.jit(make(), cache="symbolic values", fusion_type="dataflow", transforms=[Transform()])
    transform = Rename()
    changed = add_transform(compiled, transform=transform)
    torch.testing.assert_close(changed(X), X.cos() * 2)
    torch.testing.assert_close(compiled(X), X.sin() * 2)
    assert thunder.cache_option(changed) is thunder.CACHE_OPTIONS.SYMBOLIC_VALUES
    assert thunder.compile_data(changed).compile_options == {"fusion_type": "dataflow"}
    assert thunder.list_transforms(changed)[-1] is transform
    assert len(thunder.list_transforms(changed)) == 2
    assert len(thunder.list_transforms(compiled)) == 1


def test_add_transform_to_what_is_not_compiled():
    with pytest.raises(RuntimeError, match="is not compiled by thunder"):
        add_transform(torch.sin, transform=Transform())
    with pytest.raises(ValueError, match="Transform"):
        add_transform(thunder.jit(torch.sin), transform=3)


class Doubled(Transform):
    """Keeps twice the weight in the module; state dicts of the original are halved and doubled on the way."""

    def transform_module(self, model: Any) -> None:
        w = model.get_parameter("weight")
        model._overrides_parameters["weight"] = nn.Parameter(w.detach() * 2)

    def transform_state_dict_for_submodule(self, model, submodule_name, state_dict):
        return {k: v * 2 if k == "weight" else v for k, v in state_dict.items()}

    def reverse_transform_state_dict_for_submodule(self, model, submodule_name, state_dict):
        return {k: v / 2 if k == "weight" else v for k, v in state_dict.items()}


def test_transform_of_parameters_and_state_dicts():
    weight = torch.arange(6.0).reshape(2, 3)
    model = nn.Linear(3, 2, bias=False)
    model.weight.data = weight.clone()
    compiled = thunder.jit(model, transforms=[Doubled()])
    torch.testing.assert_close(compiled(X), X @ weight.T * 2)
    torch.testing.assert_close(compiled.state_dict()["weight"], weight * 2)
    torch.testing.assert_close(compiled.original_state_dict()["weight"], weight)
    assert list(compiled.original_state_dict(prefix="net.")) == ["net.weight"]
    compiled.load_original_state_dict({"weight": weight + 1})
    torch.testing.assert_close(compiled.state_dict()["weight"], (weight + 1) * 2)


def test_compile_options_are_there_for_whatever_takes_part_in_a_compilation():
    seen = {}

    def note(where):
        seen[where] = (get_compile_option("sdpa_debug", "for this test"), get_compile_data() is not None)

    class Noted(thunder.Transform):
        def transform_traces_pre_prologue(self, prologue, computation, epilogue, **kwargs):
            note("transform")
            return prologue, computation, epilogue

        def transform_trace_post_optimization(self, computation, **kwargs):
            note("final transform")
            return computation

    class Fuser(FusionExecutor):
        def fusion_pass(self, trace):
            note("fuser")
            return trace

    ex = OperatorExecutor("noted")

    def checker(x):
        note("checker")
        return True

    def sine_vjp(x):
        note("gradient rule")
        return ltorch.sin(x), lambda g: g * ltorch.cos(x)

    ex.implements(torch.sin, torch.sin, checker=checker, vjp=sine_vjp)
    replaced = ex.register_operator("replaced", like=torch.cos, fn=torch.cos, replaces=torch.cos)
    ex.register_implementation(replaced, replaced, checker=lambda x: note("replacement's checker") or True)
    compiled = thunder.jit(
        lambda x: (x.sin(), torch.cos(x).detach()),
        executors=[ex, Fuser("noting")],
        transforms=[Noted()],
        sdpa_debug=True,
    )
    compiled(torch.rand(3, requires_grad=True))
    places = {"transform", "final transform", "fuser", "checker", "gradient rule", "replacement's checker"}
    assert seen == dict.fromkeys(places, (True, True))
    assert get_compile_data() is None
