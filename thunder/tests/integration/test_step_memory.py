"""What `thunder.examine` says about memory is what torch's profiler measures."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import thunder
from thunder.benchmarks.measure import Step, peak_bytes, saved_bytes
from thunder.benchmarks.models import Workload, make
from thunder.core.options import CACHE_OPTIONS
from thunder.examine import examine, step_memory


def memory_of(compiled):
    backward = thunder.last_backward_traces(compiled)
    return step_memory(thunder.last_traces(compiled)[-1], backward[-1] if backward else None)


def assert_as_measured(workload: Workload, **options):
    """A step with its loss inside the program, predicted and measured."""
    compiled = thunder.jit(lambda *batch: workload.loss(workload.model(*batch)), **options)
    step = Step(compiled, Workload(workload.model, workload.batch, loss=lambda result: result))
    measured = peak_bytes(step)
    found = memory_of(compiled)
    assert found.peak == pytest.approx(measured, rel=0.05)
    assert found.saved == pytest.approx(saved_bytes(step), rel=0.05)
    assert sum(line.at_peak for line in found.lines.values()) == found.peak
    assert sum(line.saved for line in found.lines.values()) == found.saved
    return found


@pytest.mark.parametrize("rematerialize", [True, False])
@pytest.mark.parametrize("model", ["llama:4", "gpt2:4", "resnet:6", "moe:4", "mlp:8"])
def test_peak_and_saved_bytes_of_models(model, rematerialize):
    found = assert_as_measured(make(model), rematerialize=rematerialize)
    assert found.saved > 0


@pytest.mark.slow
def test_fused_regions_count_with_their_results():
    assert_as_measured(make("gpt2:1"), executors=["torchcompile", "torch"])


def test_what_a_fused_backward_reads_is_given_up_inside():
    workload = make("mlp:8")
    peaks = [peak_bytes(Step(compile(workload.model), workload)) for compile in (lambda f: f, fused)]
    assert peaks[1] < 1.1 * peaks[0]


def fused(model):
    return thunder.jit(model, executors=["torchcompile"])


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("cache", torch.zeros(256, 64))

    def forward(self, x):
        y = x @ self.weight
        self.cache[: x.shape[0]].copy_(y.detach())
        y = y * 2
        y[:128].relu_()
        return torch.cat(y.chunk(4)).transpose(0, 1).reshape(-1)


@pytest.mark.parametrize("options", [{}, {"skip_inplace_functionalization": True}], ids=["functional", "aliases"])
def test_writes_and_views(options):
    workload = Workload(Writing(), (torch.randn(256, 64),), loss=lambda result: result.square().mean())
    assert_as_measured(workload, **options)


def test_sizes_that_vary_count_as_at_capture():
    workload = Workload(nn.Linear(64, 64), (torch.randn(128, 64),), loss=lambda result: result.square().mean())
    assert_as_measured(workload, cache=CACHE_OPTIONS.SYMBOLIC_VALUES)


def test_lines():
    def fn(x):
        a = x.exp()  # saved, and alive at the peak
        b = torch.zeros(1000) + a.sum()  # alive at the peak
        return b.sum() + a.max()

    first = inspect.getsourcelines(fn)[1]
    compiled = thunder.jit(fn, rematerialize=False)
    compiled(torch.ones(100, requires_grad=True))
    lines = memory_of(compiled).lines
    exp, zeros = lines[f"{__file__}:{first + 1}"], lines[f"{__file__}:{first + 2}"]
    assert (exp.saved, zeros.saved) == (400, 0)
    assert zeros.at_peak >= 4000
    assert zeros.allocated >= zeros.at_peak


def test_without_backward():
    compiled = thunder.jit(lambda x: (x + 1).sin())
    compiled(torch.ones(16))
    found = memory_of(compiled)
    assert (found.peak, found.saved) == (128, 0)


def test_examine_reports_memory(capsys):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    found = examine(model, torch.randn(128, 64))
    text = capsys.readouterr().out
    assert found.memory is not None
    assert found.memory.saved == 2 * 128 * 64 * 4
    assert "It takes " in text
    assert " KiB at its peak, and keeps 64.0 KiB for backward." in text
    assert {"module 0", "module 2"} <= found.memory.lines.keys()


@pytest.mark.parametrize(
    "fn, reason",
    [(lambda x: 3, "it computes nothing with tensors"), (torch.nonzero, "it does not run on fake tensors")],
    ids=["no tensors", "sizes from data"],
)
def test_examine_says_why_memory_is_not_known(fn, reason, capsys):
    found = examine(fn, torch.ones(3))
    assert found.error is None
    assert found.memory is None
    assert f"Its memory is not known: {reason}" in capsys.readouterr().out
