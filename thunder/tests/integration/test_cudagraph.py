"""CUDA graphs: on a CPU with an emulation that reads and writes the addresses it was recorded with, as a graph does."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.core.proxies import ProxyTag
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.plugins import get_plugin
from thunder.plugins.reduce_overhead import ReduceOverhead
from thunder.tests.fusion_programs import PROGRAMS, check_program
from thunder.tests.unit.traces import add, cos, make_trace, mul, sin
from thunder.torch.registry import symbol_for
from thunder.transforms.cudagraph import (
    ArgsDescriptor,
    CUDAGraphRunner,
    CUDAGraphTransform,
    can_record,
    reads_values,
    to_arg_descriptor,
)

X = torch.linspace(-1, 1, 12).reshape(3, 4)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def at_address_of(t: Any) -> Any:
    """A tensor in the memory of `t` that does not keep it alive."""
    if not isinstance(t, torch.Tensor) or not t.numel():
        return t
    count = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    memory = (ctypes.c_char * (count * t.element_size())).from_address(t.data_ptr())
    return torch.frombuffer(memory, dtype=t.dtype).as_strided(t.shape, t.stride())


class EmulatedGraph:
    """Runs a function as a CUDA graph does: from fixed addresses to fixed addresses."""

    def __init__(self, runner: EmulatedRunner, fn: Any, inputs: list[Any], outputs: list[Any]):
        self.runner, self.fn = runner, fn
        self.inputs, self.outputs = [[at_address_of(t) for t in ts] for ts in (inputs, outputs)]

    def replay(self) -> None:
        self.runner.launches += 1
        results = self.fn(*self.inputs)
        if self.runner.share_mem_pool:  # what a later recording left may lie where this one computes
            graphs = self.runner.graphs
            for graph in graphs[graphs.index(self) + 1 :]:
                for o in graph.outputs:
                    o.fill_(77)
        for o, value in zip(self.outputs, results, strict=True):
            if isinstance(o, torch.Tensor):
                o.copy_(value)


class EmulatedRunner(CUDAGraphRunner):
    def __init__(self, **options: Any):
        super().__init__(**options)
        self.graphs: list[EmulatedGraph] = []
        self.launches = 0

    def build_cuda_graph(self, fn, args, static_args_mask):
        inputs = [a if same else self.get_static_buffer(a) for a, same in zip(args, static_args_mask, strict=True)]
        outputs = fn(*inputs)
        self.graphs.append(EmulatedGraph(self, fn, inputs, outputs))
        for o in outputs:
            if isinstance(o, torch.Tensor):
                o.fill_(99)  # recording computes nothing
        return self.graphs[-1], inputs, outputs


class EmulatedTransform(CUDAGraphTransform):
    def __init__(self, **options: Any):
        super().__init__(**options)
        self.cuda_graph_runner: EmulatedRunner = EmulatedRunner(**options)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return can_record(bsym, "cpu")


shared_or_not = pytest.mark.parametrize("options", [{}, {"share_mem_pool": True}], ids=["own pools", "one pool"])


def graphs_of(trace: TraceCtx) -> list[BoundSymbol]:
    return [n for n in trace.bound_symbols if n.sym.name.startswith("CUDAGraph")]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh())


def compiled_and_eager(**options: Any) -> tuple[nn.Module, thunder.ThunderModule, EmulatedRunner]:
    transform = EmulatedTransform(**options)
    return make_model(), thunder.jit(make_model(), transforms=[transform]), transform.cuda_graph_runner


def assert_same_gradients(actual: nn.Module, expected: nn.Module) -> None:
    for a, e in zip(actual.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a.grad, e.grad)


@pytest.mark.parametrize("fusion_type", ["consecutive", "dataflow"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_as_in_eager(name, fusion_type):
    transform = EmulatedTransform()
    check_program(name, transforms=[transform], fusion_type=fusion_type)
    assert transform.cuda_graph_runner.launches


@shared_or_not
@pytest.mark.parametrize("clear_first", [True, False])
def test_training(options, clear_first):
    eager, compiled, runner = compiled_and_eager(**options)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, compiled)]
    losses = [None, None]
    for step in range(6):
        for n, (m, optimizer) in enumerate(zip((eager, compiled), optimizers, strict=True)):
            if clear_first:
                optimizer.zero_grad()
            losses[n] = m(X + step).square().sum()  # the last loss and its gradients live until now
            if not clear_first:
                optimizer.zero_grad()
            losses[n].backward()
            optimizer.step()
        assert_same_gradients(compiled, eager)
        if step == 2:
            made = len(runner.graphs)
    assert 2 <= made <= 4
    assert len(runner.graphs) == made, "nothing is recorded again"
    assert made == 2 or not options


@shared_or_not
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_accumulated(options, set_to_none):
    eager, compiled, runner = compiled_and_eager(**options)
    for m in (eager, compiled):
        for step in range(6):
            if step % 3 == 0:
                m.zero_grad(set_to_none)
            m(X * (step + 1)).sum().backward()
    assert_same_gradients(compiled, eager)
    assert not runner._not_recorded


@shared_or_not
def test_two_forwards_before_their_backwards(options):
    eager, compiled, _ = compiled_and_eager(**options)
    for m in (eager, compiled):
        for _ in range(3):
            losses = [m(X * n).square().sum() for n in (1, 2, 3)]
            losses[1].backward()
            losses[0].backward()
            losses[2].backward()
    assert_same_gradients(compiled, eager)


@shared_or_not
def test_results_last(options):
    eager, compiled, runner = compiled_and_eager(**options)
    with torch.no_grad():
        results = [compiled(X * n) for n in range(5)]
        views = [compiled(X * n)[1:].t() for n in range(5)]
        for n in range(5):
            torch.testing.assert_close(results[n], eager(X * n))
            torch.testing.assert_close(views[n], eager(X * n)[1:].t())
        made = len(runner.graphs)
        assert made == (1 if options else 10)
        del results, views
        for n in range(5):
            torch.testing.assert_close(compiled(X - n), eager(X - n))
    assert len(runner.graphs) == made


def test_results_may_be_written_and_fed_back():
    _, compiled, runner = compiled_and_eager()
    eager = make_model()
    with torch.no_grad():
        a, e = X, X
        for _ in range(8):
            a, e = compiled(a).mul_(2), eager(e).mul_(2)
            torch.testing.assert_close(a, e)
    assert len(runner.graphs) == 2, "one is launched while the result of the other is read"


def test_an_input_laid_out_otherwise_is_another_recording():
    _, compiled, runner = compiled_and_eager()
    eager = make_model()
    with torch.no_grad():
        for x in (X, X.t().contiguous().t(), X[:1].expand(3, 4), X, torch.randn(6, 4)[::2]):
            torch.testing.assert_close(compiled(x), eager(x))
    assert len(runner.graphs) == 4


def test_parameters_are_read_where_they_are():
    _, compiled, runner = compiled_and_eager()
    eager = make_model()
    with torch.no_grad():
        compiled(X)
        for p, q in zip(compiled.parameters(), eager.parameters(), strict=True):
            p.mul_(1.5)
            q.mul_(1.5)
        torch.testing.assert_close(compiled(X), eager(X))
        assert len(runner.graphs) == 1
        for p, q in zip(compiled.parameters(), eager.parameters(), strict=True):
            p.data = p.data * 0.5
            q.data = q.data * 0.5
        torch.testing.assert_close(compiled(X), eager(X))
        assert len(runner.graphs) == 2, "they have moved"
    (recording,) = next(iter(runner.cuda_graph_cache.values()))
    assert [type(i) for i in recording.static_inputs].count(torch.Tensor) == 1
    (name,) = runner.python_callables
    assert sum(runner.python_callables[name][1]) == 6


def test_what_backward_reads_of_a_forward_graph_is_not_copied():
    _, compiled, runner = compiled_and_eager()
    compiled(X).sum().backward()
    backward = list(runner.cuda_graph_cache.values())[1][0]
    copied = [i for i in backward.static_inputs if i is not None]
    assert len(copied) <= 2, "the cotangent and the program's input"


def test_too_many_recordings():
    _, compiled, runner = compiled_and_eager()
    runner.max_recordings = 2
    eager = make_model()
    with torch.no_grad():
        results = [compiled(X), compiled(X * 2)]
        with pytest.warns(UserWarning, match="CUDAGraph0 is not recorded .* there are 2 recordings of it already"):
            results.append(compiled(X * 3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results.append(compiled(X * 4))
        for n, result in enumerate(results):
            torch.testing.assert_close(result, eager(X * (n + 1)))


def test_what_cannot_be_recorded_runs_all_the_same(monkeypatch):
    _, compiled, runner = compiled_and_eager()

    def fail(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(runner, "build_cuda_graph", fail)
    with torch.no_grad(), pytest.warns(UserWarning, match="runs operation by operation: RuntimeError: operation not"):
        torch.testing.assert_close(compiled(X), make_model()(X))


def test_symbolic_sizes_are_recorded_one_by_one():
    transform = EmulatedTransform()
    fn = thunder.jit(lambda a: (a.sin() * a.shape[0] + 1).cos(), cache="symbolic values", transforms=[transform])
    for size in (3, 5, 3, 7):
        a = torch.arange(float(size))
        torch.testing.assert_close(fn(a), (a.sin() * size + 1).cos())
    assert len(transform.cuda_graph_runner.graphs) == 3
    assert thunder.cache_misses(fn) == 1


def test_inference_mode_has_recordings_of_its_own():
    _, compiled, _ = compiled_and_eager()
    eager = make_model()
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), eager(X))
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), eager(X))
    out = compiled(X)
    out.sum().backward()
    assert not out.is_inference()


def test_effects_are_in_no_graph():
    def f(a, b):
        c = (a.sin() + 1).cos()
        b.add_(c)
        d = torch.nn.functional.dropout(c, 0.5) * 2 + 1
        return d.sin() * 3

    transform = EmulatedTransform()
    compiled = thunder.jit(f, transforms=[transform])
    ours, theirs = X.clone(), X.clone()
    torch.manual_seed(0)
    actual = compiled(X, ours)
    torch.manual_seed(0)
    torch.testing.assert_close(actual, f(X, theirs))
    torch.testing.assert_close(ours, theirs)
    names = {s.sym.name for n in graphs_of(thunder.last_traces(compiled)[-1]) for s in n.subsymbols}
    assert names
    assert not any("dropout" in name or "copy_" in name for name in names)


def test_views_of_inputs_stay_views():
    transform = EmulatedTransform()
    fn = thunder.jit(lambda a: (a.t(), (a.t() + 1).sin(), a[0]), transforms=[transform])
    a = X.clone()
    t, _, first = fn(a)
    a.zero_()
    assert not t.any()
    assert not first.any()
    assert transform.cuda_graph_runner.launches == 1


def test_a_graph_prints_with_its_parts():
    compiled = compiled_and_eager()[1]
    compiled(X)
    text = str(thunder.last_traces(compiled)[-1])
    assert "= CUDAGraph0(input, t_0_weight" in text
    assert "#   input_1 = torch.nn.functional.linear(" in text


def test_regions_of_a_fuser_are_recorded():
    transform = EmulatedTransform()
    fn = thunder.jit(lambda a, b: ((a @ b).sin() + 1).cos() @ b, executors=["torchcompile"], transforms=[transform])
    a, b = torch.randn(150, 150), torch.randn(150, 150)
    torch.testing.assert_close(fn(a, b), ((a @ b).sin() + 1).cos() @ b)
    (graph,) = graphs_of(thunder.last_traces(fn)[-1])
    assert [s.sym.name for s in graph.subsymbols][1:2] == ["TorchCompile0"]
    assert len(graph.subsymbols) == 3


def test_forward_hook_comes_first():
    seen = []

    class Watch(thunder.Transform):
        def transform_trace_post_optimization(self, computation_trace, **kwargs):
            seen.append(computation_trace.name)
            return computation_trace

    thunder.jit(lambda a: a.sin().sum(), transforms=[Watch()])(X.clone().requires_grad_())
    assert seen == ["computation", "backward_fn"]


def test_one_operation_is_no_graph():
    trace = make_trace(lambda x, y: add(x, y))
    assert EmulatedTransform().transform_trace_post_optimization(trace) is trace


def test_a_region_spans_no_two_devices():
    trace = make_trace(lambda x, y: mul(sin(cos(x)), y))
    parts = trace.bound_symbols[:-1]
    moved = [n.from_bsym(output=n.output.replace(name=n.output.name, device="meta")) for n in parts]
    assert all(can_record(n, "cpu") for n in parts)
    assert not any(can_record(n, "cpu") for n in moved)


@shared_or_not
def test_results_that_share_memory_do_so(options):
    def f(a):
        b = a * 2
        c = b.t()
        return b, c, c.sin() + 1

    fn = thunder.jit(f, transforms=[EmulatedTransform(**options)])
    for _ in range(2):
        b, c, _ = fn(X)
        b.zero_()
        assert not c.any()


@pytest.mark.parametrize(
    "fn, args, expected",
    [
        (torch.nonzero, (X,), True),
        (torch.masked_select, (X, X > 0), True),
        (torch.index_select, (X, 0, torch.tensor([0, 1])), False),
        (torch.unique, (X,), True),
        (torch.linalg.inv, (torch.eye(3),), True),
        (torch.linalg.vector_norm, (X,), False),
        (torch.tensordot, (X, X), False),
        (torch.tensor_split, (X, 3), False),
        (torch.tensor, (X,), True),
        (torch.cumsum, (X, 0), False),
        (torch.ops.aten.index.Tensor, (X, [torch.tensor([0, 1])]), False),
        (torch.ops.aten.index.Tensor, (X, [torch.tensor([True, False, True])]), True),
        (torch.allclose, (X, X), True),
    ],
)
def test_which_operations_read_values(fn, args, expected):
    proxies = thunder.core.pytree.tree_map(
        lambda a: thunder.core.proxies.tensorproxy(a, name="a") if isinstance(a, torch.Tensor) else a, args
    )
    node = symbol_for(fn).bind(*proxies, output=thunder.core.proxies.tensorproxy(X, name="out"))
    assert reads_values(node) is expected


def test_descriptor():
    found = to_arg_descriptor(X, 3, X.t(), None)
    dtypes, sizes, strides = (torch.float32, torch.float32), ((3, 4), (4, 3)), ((4, 1), (1, 4))
    assert found == ArgsDescriptor(dtypes, sizes, strides, (3, None))
    assert hash(found) == hash(to_arg_descriptor(X + 1, 3, X.t() * 2, None))
    assert found != to_arg_descriptor(X, 4, X.t(), None)
    assert found != to_arg_descriptor(X, 3, X.t().contiguous(), None)


def test_inputs_of_modules_are_static():
    compiled = thunder.jit(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    compiled(X)
    static = {a.name for a in thunder.last_traces(compiled)[-1].args if ProxyTag.STATIC_MEMORY_LOCATION in a.tags}
    others = {a.name for a in thunder.last_traces(compiled)[-1].args} - static
    assert others == {"input"}
    assert "t_1_running_mean" in static


def test_plugin():
    assert get_plugin("reduce-overhead") is ReduceOverhead
    compiled = thunder.compile(make_model(), plugins="reduce-overhead")
    torch.testing.assert_close(compiled(X), make_model()(X))
    assert type(thunder.list_transforms(compiled)[-1]) is CUDAGraphTransform
    assert not graphs_of(thunder.last_traces(compiled)[-1]), "there are no CUDA tensors"


@pytest.mark.cuda
@needs_cuda
@shared_or_not
@pytest.mark.parametrize("fuser", [None, "torch.compile"])
def test_training_on_a_gpu(options, fuser):
    eager, other = make_model().cuda(), make_model().cuda()
    transform = CUDAGraphTransform(**options)
    executors = ["torchcompile"] if fuser else None
    compiled = thunder.jit(other, transforms=[transform], executors=executors)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, compiled)]
    for step in range(5):
        results = []
        for m, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            results.append(m(X.cuda() + step))
            results[-1].square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(results[1], results[0])
        assert_same_gradients(compiled, eager)
    assert len(graphs_of(thunder.last_traces(compiled)[-1])) == 1
    assert transform.cuda_graph_runner.cuda_graph_cache
    assert not transform.cuda_graph_runner._not_recorded


@pytest.mark.cuda
@needs_cuda
def test_programs_on_a_gpu_last_and_accumulate():
    eager, other = make_model().cuda(), make_model().cuda()
    compiled = thunder.compile(other, plugins="reduce-overhead")
    for m in (eager, compiled):
        losses = [m(X.cuda() * n).square().sum() for n in (1, 2, 3)]
        for loss in losses[::-1]:
            loss.backward()
    assert_same_gradients(compiled, eager)
