"""`ThunderCompiler`, `thunderfx`, the backend "thunder": whole graphs, options, introspection, scripts and reports."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.origin import BACKWARD
from thunder.dynamo import ThunderCompiler, ThunderFXCompiledObject, thunderfx
from thunder.dynamo.report import FXReport, analyze_thunder_splits, fx_report
from thunder.dynamo.utils import example_input_meta_to_input, get_split_reasons_string, input_to_example_input_meta
from thunder.tests.fusers import ElementwiseFuser
from thunder.tests.integration.dynamo_harness import assert_same, check, compiled_and_backend, kinds, leaf

# Dynamo's own, where a graph starts with a tensor of the graph before.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

# Options of the program that this compiler is judged by: writes are kept, and aliases of what is written renamed.
KEEP_WRITES = {
    "skip_inplace_alias_updates": False,
    "skip_inplace_functionalization": True,
    "disable_inplace_copy_check": True,
}


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w).sum(-1) * 2


def test_whole_graph_is_one_piece() -> None:
    backend = check(mlp, lambda: (leaf(4, 3), leaf(3, 5)))
    assert kinds(backend) == [["thunder"]]
    (info,) = backend.subgraph_infos
    assert info.split_reasons == []
    assert "entirely" in get_split_reasons_string(info)
    assert isinstance(info.original_graph_module, torch.fx.GraphModule)
    assert list(info.submodule_to_compiled_functions) == [info.original_graph_module]
    metas = info.thunder_compiled_fns_example_inputs[0]
    assert [m.shape for m in metas] == [[4, 3], [3, 5]]
    assert all(m.requires_grad for m in metas)
    for module in (info.original_split_graph_module, info.split_graph_module):
        assert [n for n, _ in module.named_children()] == ["thunder_0"]
        x, w = leaf(4, 3), leaf(3, 5)
        torch.testing.assert_close(module(x, w)[0], mlp(x, w))


def test_backend_by_name() -> None:
    torch._dynamo.reset()
    assert "thunder" in torch._dynamo.list_backends()
    assert_same(mlp, torch.compile(mlp, backend="thunder"), lambda: (leaf(4, 3), leaf(3, 5)))


def test_backend_by_name_with_options() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(mlp, backend="thunder", options={"executors": ["torch"], "fusion_type": "consecutive"})
    assert_same(mlp, compiled, lambda: (leaf(4, 3), leaf(3, 5)))


def test_options_are_checked_when_given() -> None:
    with pytest.raises(TypeError, match="fusion_type"):
        ThunderCompiler(fusion_typ="dataflow")
    with pytest.raises(ValueError, match="fusion_type"):
        ThunderCompiler(fusion_type="sideways")
    with pytest.raises(ValueError, match="no_such_executor"):
        ThunderCompiler(executors=["no_such_executor"])
    with pytest.raises(ValueError, match="Transform"):
        ThunderCompiler(transforms=[3])
    with pytest.raises(ValueError, match="fallback"):
        ThunderCompiler(fallback="elsewhere")
    with pytest.raises(TypeError, match="thunderfx"):
        thunderfx(3)


def test_defaults_and_lists_of_the_caller() -> None:
    transforms: list[Any] = []
    executors = ["torch"]
    backend = ThunderCompiler(transforms=transforms, executors=executors)
    torch._dynamo.reset()
    torch.compile(mlp, backend=backend)(leaf(4, 3), leaf(3, 5))
    assert transforms == []
    assert executors == ["torch"]
    assert backend.thunder_options["fusion_type"] == "dataflow"
    assert ThunderCompiler(fusion_type="consecutive").thunder_options["fusion_type"] == "consecutive"


def test_graph_break_in_the_middle() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).sin()
        torch._dynamo.graph_break()
        return y.cos() * w.sum(0) + y

    backend = check(fn, lambda: (leaf(4, 3), leaf(3, 5)))
    assert kinds(backend) == [["thunder"], ["thunder"]]


def test_view_written_after_a_graph_break() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        v = y.view(-1)
        torch._dynamo.graph_break()
        v.mul_(3)
        return y + 1, v

    check(fn, lambda: (leaf(4, 3),))


def test_int_argument_is_a_constant_at_first() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n + n

    compiled, backend = compiled_and_backend(fn)
    for n in (4, 5, 9):
        assert_same(fn, compiled, lambda n=n: (leaf(3), n))
    assert len(backend.subgraph_infos) == 2


def test_checkpointed_regions() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def region(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            h = a @ b
            h.add_(1.0)
            return F.dropout(F.gelu(h).sin(), 0.5)

        y = checkpoint(region, x, w, use_reentrant=False)
        return checkpoint(region, y, w, use_reentrant=False) + x

    backend = check(fn, lambda: (leaf(3, 3), leaf(3, 3)))
    assert kinds(backend) == [["thunder"]]


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "autocast"])
def test_under_a_mode(mode: str) -> None:
    make = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }[mode]
    compiled, backend = compiled_and_backend(mlp)
    x, w = leaf(4, 3), leaf(3, 5)
    with make():
        want, got = mlp(x, w), compiled(x, w)
        assert torch.is_grad_enabled() is (mode == "autocast")
    assert got.requires_grad is want.requires_grad
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(compiled(x, w), mlp(x, w))
    assert len(backend.subgraph_infos) == 2


def test_nested_compile() -> None:
    inner = torch.compile(lambda x: x.sin() * 2, backend=ThunderCompiler())
    check(lambda x: inner(x).cos() + x, lambda: (leaf(4),))


def test_module_with_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    other.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    compiled = thunderfx(other)
    for _ in range(2):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x), model(x))
    model(x).sum().backward()
    compiled(x).sum().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    for p, q in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(q, p)


# thunderfx


def test_thunderfx_traces() -> None:
    torch._dynamo.reset()
    compiled = thunderfx(mlp, dynamic=False, fusion_type="consecutive")
    assert isinstance(compiled, ThunderFXCompiledObject)
    with pytest.raises(TypeError, match="not been called"):
        _ = compiled.last_traces
    assert_same(mlp, compiled, lambda: (leaf(4, 3), leaf(3, 5)))
    assert compiled._backend.thunder_options["fusion_type"] == "consecutive"
    (forward,), (backward,) = compiled.last_traces, compiled.last_backward_traces
    assert "matmul" in str(forward)
    assert all(BACKWARD in n.tags for n in backward.bound_symbols if n.sym.name == "mm")
    piece = compiled._backend.subgraph_infos[0].thunder_compiled_fns[0]
    assert thunder.last_traces(piece)[-1] is forward
    assert thunder.cache_misses(piece) == 1


def test_thunderfx_without_gradient_has_no_backward() -> None:
    torch._dynamo.reset()
    compiled = thunderfx(mlp)
    compiled(torch.randn(4, 3), torch.randn(3, 5))
    assert compiled.last_backward_traces == []


# The program of the report: a router that picks one expert, with a backward that writes in place


class PickedGate(torch.autograd.Function):
    """A gate value, multiplied by a mask; its gradient is added into the masked gates at the picked expert."""

    @staticmethod
    def forward(ctx: Any, scores: Any, gate: Any, expert: Any, gates: Any, mask: Any) -> torch.Tensor:
        ctx.save_for_backward(expert, gates)
        return gate * mask

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        expert, gates = ctx.saved_tensors
        gates.scatter_add_(dim=-1, index=expert, src=grad)
        return gates, None, None, None, None


def pick(scores: torch.Tensor, saves_a_copy: bool) -> Any:
    threshold, _ = scores.max(dim=-1, keepdim=True)
    nothing = torch.zeros_like(threshold).to(torch.bool)
    gates = scores.masked_fill(nothing, float("-inf"))
    expert = gates.max(dim=-1)[1].unsqueeze(-1)
    gate = gates.gather(dim=-1, index=expert)
    best, best_index = gates.max(dim=-1, keepdim=True)
    mask = torch.logical_or(expert == best_index, torch.rand_like(best) > 0.75)
    picked = PickedGate.apply(scores, gate, expert, gates.clone() if saves_a_copy else gates, mask)
    others = torch.scatter(scores, -1, expert, float("-inf")).masked_fill(nothing, float("-inf"))
    second, second_index = others.max(dim=-1, keepdim=True)
    mask_of_second = torch.logical_or(second_index == second_index, torch.rand_like(second).uniform_() > 0.75)
    return picked, expert, mask_of_second


class Router(torch.nn.Module):
    """The first part of a mixture-of-experts block: jitter in place, then the choice of an expert per token."""

    def __init__(self, saves_a_copy: bool) -> None:
        super().__init__()
        self.width, self.experts, self.saves_a_copy = 16, 4, saves_a_copy
        self.gate = torch.nn.Linear(self.width, self.experts, bias=False)

    def forward(self, hidden: torch.Tensor) -> Any:
        hidden *= torch.empty_like(hidden).uniform_(0.1, 1.0)
        return pick(self.gate(hidden.view(-1, self.width)), self.saves_a_copy)


OPTIONS = {
    "kept writes": KEEP_WRITES,
    "functional": {},
    "as written": {"skip_inplace_alias_updates": True, "skip_inplace_functionalization": True},
}


EXECUTORS = {"torch": ["torch"], "fuser": [ElementwiseFuser()], "inductor": ["torchcompile"]}


@pytest.mark.parametrize("kind", ["torch", "fuser", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fusion_type", ["dataflow", "consecutive"])
@pytest.mark.parametrize("how", list(OPTIONS))
def test_router_of_the_report(how: str, fusion_type: str, kind: str) -> None:
    torch.manual_seed(0)
    model = Router(saves_a_copy=True)
    x = torch.rand(8, 16)
    seen = []
    for through in ("eager", "thunder"):
        torch._dynamo.reset()
        model.zero_grad()
        fn: Any = model
        if through == "thunder":
            backend = ThunderCompiler(fusion_type=fusion_type, executors=EXECUTORS[kind], **OPTIONS[how])
            fn = torch.compile(model, backend=backend)
        torch.manual_seed(3)
        hidden = x.clone()
        outs = fn(hidden)
        outs[0].sum().backward()
        seen.append(([o.detach() for o in outs], hidden, model.gate.weight.grad.clone()))
    torch.testing.assert_close(seen[1], seen[0])
    assert kinds(backend) == [["thunder"]]
    piece = backend.subgraph_infos[0].thunder_compiled_fns[0]
    for trace in thunder.last_backward_traces(piece)[-1:]:
        body = [n for n in trace.bound_symbols if n.sym.name not in ("python_return", "python_del")]
        assert all(BACKWARD in n.tags for n in body)


def test_router_that_saves_what_others_have_saved() -> None:
    """The report's own program. Its results are compared; eager's backward refuses it: `gates` is saved twice."""
    model = Router(saves_a_copy=False)
    compiled, backend = compiled_and_backend(model, options=KEEP_WRITES)
    assert_same(model, compiled, lambda: (torch.rand(8, 16),), backward=False)
    assert kinds(backend) == [["thunder"]]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(torch.rand(8, 16))[0].sum().backward()


class ScatteredBack(torch.autograd.Function):
    """The values as they are; the backward adds the gradient into a tensor of zeros, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index, x)
        return x.gather(-1, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        index, x = ctx.saved_tensors
        total = torch.zeros_like(x)
        total.scatter_add_(-1, index, grad)
        total.mul_(2)
        return total, None


@pytest.mark.parametrize("fusion_type", ["dataflow", "consecutive"])
@pytest.mark.parametrize("how", list(OPTIONS))
def test_custom_function_with_backward_in_place(how: str, fusion_type: str) -> None:
    def fn(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1)
        return ScatteredBack.apply(y, index).sin() * y[:, :2]

    check(
        fn, lambda: (leaf(4, 3), torch.tensor([[0, 2], [1, 1], [2, 0], [0, 0]])),
        options={"fusion_type": fusion_type, **OPTIONS[how]},
    )  # fmt: skip


# Reproducers and reports


def _run(path: Path, capsys: pytest.CaptureFixture) -> str:
    """What the script prints when it is run as a program."""
    torch._dynamo.reset()
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def test_reproducers_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = torch.arange(3.0)
    compiled, backend = compiled_and_backend(
        lambda x: F.relu(x @ torch.eye(3)) * table, options={"executors": ["torch"]}
    )
    compiled(leaf(2, 3))
    backend.save_reproducer_to_folder(tmp_path)
    backend.save_reproducer_to_folder(tmp_path, use_pytest_benchmark=True, serialize_inputs=True)
    assert {p.name for p in tmp_path.glob("*.py")} == {"graph0_thunder_0_repro.py", "graph0_thunder_0_benchmark.py"}
    text = (tmp_path / "graph0_thunder_0_repro.py").read_text()
    assert "executors=['torch']" in text
    assert "thunder.jit(model" in text
    assert "tensor(" in _run(tmp_path / "graph0_thunder_0_repro.py", capsys)
    assert "compiled" in _run(tmp_path / "graph0_thunder_0_benchmark.py", capsys)


def test_reproducer_of_a_graph_with_inner_graphs(tmp_path: Path) -> None:
    """The script has the checkpointed region as a class of its own."""
    compiled, backend = compiled_and_backend(
        lambda x: checkpoint(lambda a: a.sin() @ a.t(), x, use_reentrant=False) * 2
    )
    compiled(leaf(2, 3))
    backend.save_reproducer_to_folder(tmp_path)
    (path,) = tmp_path.glob("*.py")
    compile(path.read_text(), str(path), "exec")
    assert path.read_text().count("class DynamoModule") == 2


def test_reproducer_before_the_first_call(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not been called"):
        ThunderCompiler().save_reproducer_to_folder(tmp_path)


def test_inputs_from_metadata() -> None:
    given = [
        torch.randn(4, 6, requires_grad=True)[:, ::2].detach().t(),
        torch.randint(0, 5, (3,)),
        7,
        torch.randn(2, 2).to(torch.bfloat16),
    ]
    for value in given:
        made = example_input_meta_to_input(input_to_example_input_meta(value))
        if isinstance(value, torch.Tensor):
            assert (made.shape, made.stride(), made.dtype) == (value.shape, value.stride(), value.dtype)
        else:
            assert made == value


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    torch._dynamo.reset()
    report = fx_report(fn)(leaf(4, 3))
    assert isinstance(report, FXReport)
    assert [r.graph_name for r in report.fx_graph_reports] == ["graph0", "graph1"]
    first = report.fx_graph_reports[0]
    assert first.ops[0] == "sin"
    assert "graph0" in str(report)
    torch.testing.assert_close(first.graph(*first.make_example_inputs())[0].shape, torch.Size([4, 3]))
    assert "tensor(" in _run(first.write_eager_repro(tmp_path), capsys)
    assert 'backend="inductor"' in first.write_inductor_repro(tmp_path).read_text()
    assert "thunder.jit" in first.write_thunder_repro(tmp_path).read_text()


def test_report_of_something_compiled() -> None:
    with pytest.raises(ValueError, match="not compiled"):
        fx_report(thunder.jit(mlp))


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_analysis_of_splits(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        z = torch.vmap(lambda row: row * 2)(y)
        return z.sin()

    torch._dynamo.reset()
    (graph,) = fx_report(fn)(leaf(4, 3)).fx_graph_reports
    analysis = analyze_thunder_splits(graph, fusion_type="consecutive")
    assert "UNSUPPORTED_NODE" in analysis.split_reason
    assert len(analysis.subgraph_reports) == 2
    first = analysis.subgraph_reports[0]
    assert "exp" in str(first.fwd_trc)
    assert first.bwd_trc is not None
    assert "fusion_type='consecutive'" in first.write_thunder_repro(tmp_path).read_text()
