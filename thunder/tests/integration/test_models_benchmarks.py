"""The benchmark's own parts: measurements that can be known beforehand, tables, and one run from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder
from thunder import benchmarks
from thunder.benchmarks.__main__ import default_peers, main
from thunder.benchmarks.measure import Step, make_step, peak_bytes, saved_bytes, steady_steps
from thunder.benchmarks.models import MODELS, Workload, make, parse
from thunder.benchmarks.peers import DYNAMO, EAGER, INDUCTOR, PEERS, THUNDER, THUNDER_FUSED
from thunder.benchmarks.plot import first_steps_by_depth, write_plot
from thunder.benchmarks.report import table, text

pytestmark = pytest.mark.integration


class Sines(nn.Module):
    """Two sines in a row: backward needs the input of each."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1000))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sin().sin().sum()


def _sines() -> Step:
    model = Sines()
    return Step(model, Workload(model, (torch.randn(1000),), lambda loss: loss))


def test_saved_bytes_count_each_storage_once_and_leave_out_inputs_and_parameters() -> None:
    # Saved are x and scale by the product, which do not count, and what each sine reads.
    assert saved_bytes(_sines()) == 2 * 1000 * 4


def test_peak_bytes_is_the_most_alive_at_one_time() -> None:
    # Both sines' inputs and the last result are alive together; a few bytes of scalars come on top.
    assert 3 * 4000 <= peak_bytes(_sines()) <= 6 * 4000


def test_backward_gives_memory_back_as_it_proceeds() -> None:
    eager, compiled = make_step("mlp:16", EAGER), make_step("mlp:16", THUNDER)
    assert saved_bytes(compiled) <= saved_bytes(eager)
    assert peak_bytes(compiled) <= 1.1 * peak_bytes(eager)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_and_is_the_same_for_the_same_seed(name: str) -> None:
    (full,) = parse(f"{name}:1")
    first, second = make(full), make(full)
    losses = [w.loss(w.model(*w.batch)) for w in (first, second)]
    torch.testing.assert_close(losses[0], losses[1])
    losses[0].backward()
    assert all(p.grad is not None for p in first.model.parameters())


@pytest.mark.parametrize("specification", ["nothing", "llama:", "llama:x", "llama:0", "llama:4,"])
def test_a_bad_model_is_refused(specification: str) -> None:
    if specification == "llama:":
        assert parse(specification) == ["llama:4"]
        return
    with pytest.raises(ValueError, match=r"no model|numbers of layers"):
        parse(specification)


def test_depths_are_expanded() -> None:
    assert parse("llama:4,16") == ["llama:4", "llama:16"]
    assert parse("gpt2") == ["gpt2:4"]


def test_steady_steps_compares_results_and_gives_ratios() -> None:
    found = steady_steps("mlp:1", [EAGER, THUNDER], repeats=1)
    assert found[EAGER]["ratio"] == 1.0
    assert found[THUNDER]["ratio"] > 0
    assert found[THUNDER]["saved_bytes"] > 0


def test_a_table_is_padded() -> None:
    assert table(["a", "bb"], [["ccc", "1"]]) == "| a   | bb |\n| --- | -: |\n| ccc |  1 |"


def _results(first: dict[str, Any]) -> dict[str, Any]:
    steady = {
        peer: {"step_s": 0.1, "ratio": ratio, "saved_bytes": 10, "peak_bytes": 20}
        for peer, ratio in ((EAGER, 1.0), (THUNDER, 1.25))
    }
    calls = {"no_grad_us": 1.0, "forward_us": 2.0, "step_us": 3.0}
    return {
        "environment": {"torch": "0"},
        "overhead": {EAGER: calls, DYNAMO: calls, THUNDER: {**calls, "forward_us": 40.0}},
        "models": {"llama:4": {"first": first, "steady": steady}},
    }


def test_budgets_are_judged_by_the_measured_ratios() -> None:
    one = {"setup_s": 0.1, "second_s": 0.1, "phases_s": {"autodiff": 0.2}}
    shown = text(_results({DYNAMO: {**one, "first_s": 1.0}, THUNDER: {**one, "first_s": 1.4}}))
    (first,) = [line for line in shown.splitlines() if line.startswith("| first step, thunder")]
    (warm,) = [line for line in shown.splitlines() if line.startswith("| warm step, thunder / eager")]
    (call,) = [line for line in shown.splitlines() if line.startswith("| warm tiny call")]
    assert "1.40" in first
    assert first.rstrip(" |").endswith("met")
    assert "1.25" in warm
    assert warm.rstrip(" |").endswith("missed")
    assert "38.0" in call
    assert call.rstrip(" |").endswith("missed")


def test_starts_with_a_warm_disk_are_compared_with_cold_ones() -> None:
    cold = {"setup_s": 12.0, "first_s": 8.0, "second_s": 0.1}
    results = _results({THUNDER_FUSED: {**cold, "warm_disk": {**cold, "setup_s": 2.0, "first_s": 1.0}}})
    shown = text(results)
    assert f"| llama:4, {THUNDER_FUSED} |      20.00 |      3.00 |  0.15 |" in shown
    (budget,) = [line for line in shown.splitlines() if line.startswith("| start, warm disk")]
    assert "0.15" in budget
    assert budget.rstrip(" |").endswith("met")
    assert "| start" not in text(_results({THUNDER_FUSED: cold}))


def test_a_quick_run_has_no_peer_with_a_compiler() -> None:
    assert not any(PEERS[p].compiles_kernels for p in default_peers("cpu", quick=True))
    assert {INDUCTOR, THUNDER_FUSED} <= set(default_peers("cpu", quick=False))


def test_a_failed_measurement_is_shown_and_leaves_the_others() -> None:
    one = {"setup_s": 0.1, "second_s": 0.1, "phases_s": {"autodiff": 0.2}}
    shown = text(_results({DYNAMO: {"error": "ValueError: no"}, THUNDER: {**one, "first_s": 1.4}}))
    assert "llama:4, first step, torch.compile[eager]: ValueError: no" in shown
    assert "1.40" in shown


def test_first_steps_against_depth_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    results = _results({THUNDER: {"first_s": 1.4}, DYNAMO: {"error": "ValueError: no"}})
    assert not write_plot(results, tmp_path / "one.png")
    results["models"]["llama:16"] = {"first": {THUNDER: {"first_s": 2.5}}, "steady": {}}
    results["models"]["gpt2:4"] = {"first": {"error": "no memory"}, "steady": {}}
    assert first_steps_by_depth(results) == {"llama": {THUNDER: [(4, 1.4), (16, 2.5)]}}
    assert write_plot(results, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_command_line_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["--quick", "--models", "mlp:1", "--threads", "1", "--peers", THUNDER, "--json", str(path)]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "## Warm step, forward and backward" in shown.out
    assert not shown.err, "a progress line where there is no terminal"
    results = json.loads(path.read_text())
    assert results["models"]["mlp:1"]["first"][THUNDER]["phases_s"]["autodiff"] > 0


class _Double(benchmarks.Benchmark):
    name, description = "double", "x + x"
    args = (benchmarks.BenchmarkArg("rows", "how many"),)

    def make_batch(self) -> tuple[list, dict]:
        return [torch.ones(4, requires_grad=True)], {}

    def fn(self) -> Any:
        return lambda x: x + x


def test_a_benchmark_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    runs = benchmarks.run_benchmark(_Double(), thunder.jit, warmup_iters=1, benchmark_iters=3)
    assert len(runs) == 3
    assert all(r.called_backward and 0 < r.host_stop_time - r.start_time <= r.total_time for r in runs)
    benchmarks.list_benchmarks(use_classname=False)
    benchmarks.describe_benchmark(_Double)
    shown = capsys.readouterr().out
    assert "double: x + x" in shown
    assert "rows: how many" in shown
