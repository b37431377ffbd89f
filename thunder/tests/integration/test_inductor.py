"""The fusers that compile with Inductor: whole programs, shared regions, strides, memory, the disk, failures."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.output_code import CompiledFxGraph
from torch._subclasses import FakeTensorMode

import thunder
from thunder.benchmarks.models import make
from thunder.core import prims
from thunder.core.inductor_compat import call_compiled
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.examine import get_fusions
from thunder.executors import region_program, torch_compile
from thunder.executors.fusion_regions import Region, producers_and_consumers
from thunder.executors.inductorex import is_fusible, is_view, region_table
from thunder.executors.region_cache import DiskStore, region_text
from thunder.executors.region_program import RegionProgram
from thunder.tests.fusers import uncompiled
from thunder.tests.fusion_programs import PROGRAMS, Block, check_program
from thunder.tests.unit.traces import add, cos, make_trace, mul, sin
from thunder.torch.registry import symbol_for

pytestmark = pytest.mark.integration
KINDS = ("consecutive", "dataflow")


@pytest.fixture(autouse=True)
def empty_table() -> Iterator[None]:
    region_table.clear()
    yield
    region_table.clear()


def fused_names(trace: TraceCtx) -> list[str]:
    return [n.sym.name for n in trace.bound_symbols if n.sym.is_fusion]


def entries() -> list[RegionProgram]:
    return list(region_table._entries.values())


def program_of(fn: Callable, names: str = "x y", *, store: DiskStore | None = None, **facts) -> RegionProgram:
    """The whole body of `fn` as one region, compiled by nobody yet."""
    trace = make_trace(fn, names, **facts)
    nodes = [n for n in trace.bound_symbols if n.sym not in (prims.unpack_trivial, prims.python_return)]
    region = Region(*producers_and_consumers(trace.bound_symbols), nodes)
    text = region_text(nodes, region.inputs, region.outputs)
    return RegionProgram(text, nodes, region.inputs, region.outputs, store=lambda: store)


# Whole programs


@pytest.mark.slow
@pytest.mark.parametrize("fusion_type", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_as_in_eager(name, fusion_type):
    check_program(name, executors=["torchcompile"], fusion_type=fusion_type)
    assert any(p.variants for p in entries())


@pytest.mark.slow
def test_layers_share_their_regions():
    layers = {}
    for depth in (2, 4):
        region_table.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(Block() for _ in range(depth)))
        compiled = thunder.jit(model, executors=["torchcompile"], fusion_type="dataflow")
        x = torch.rand(2, 3, 8)
        torch.testing.assert_close(compiled(x), model(x))
        layers[depth] = (len(region_table), len(fused_names(thunder.last_traces(compiled)[-1])))
    assert layers[4][0] == layers[2][0]
    assert layers[4][1] > layers[2][1]


@pytest.mark.slow
def test_what_is_left_to_the_libraries():
    def program(x, w):
        y = torch.nn.functional.linear(x, w).exp() + 1
        return y.transpose(0, 1) @ x

    f = thunder.jit(program, executors=["torchcompile"], fusion_type="dataflow")
    x, w = torch.rand(64, 256), torch.rand(256, 256)
    torch.testing.assert_close(f(x, w), program(x, w))
    names = [n.sym.name for n in thunder.last_traces(f)[-1].bound_symbols if n.sym is not prims.python_del]
    assert [n for n in names if n != "unpack_trivial"] == [
        "linear", "pack_list", "TorchCompile0", "transpose", "matmul", "python_return",
    ]  # fmt: skip


def test_a_region_frees_its_inputs_at_their_last_use():
    def program(x):
        a, b = x @ x, x @ x.t()
        return (a.exp().sum() + b).tanh()

    f = thunder.jit(program, executors=["torchcompile"])
    x = torch.rand(512, 512)
    torch.testing.assert_close(f(x), program(x))
    ((_, region),) = get_fusions(thunder.last_traces(f)[-1])
    assert isinstance(region, RegionProgram)
    torch.testing.assert_close(region(x @ x, x @ x.t())[0], program(x))
    taken = [x @ x, x @ x.t()]
    alive = [weakref.ref(t.untyped_storage()) for t in taken]
    (result,) = region.run_list(taken)
    assert not taken
    assert [r() for r in alive] == [None, None]
    torch.testing.assert_close(result, program(x))


@pytest.mark.parametrize("taken_as", ["fakes", "failed"])
def test_a_region_run_one_by_one_frees_its_inputs_too(taken_as, monkeypatch):
    f = thunder.jit(lambda x: ((x @ x).exp() + 1).sin(), executors=["torchcompile"])
    x = torch.rand(256, 256)
    f(x)
    ((_, region),) = get_fusions(thunder.last_traces(f)[-1])
    seen = []

    def watching(node, env):
        seen.append(sorted(env))
        return call(node, env)

    call = region_program._call
    monkeypatch.setattr(region_program, "_call", watching)
    if taken_as == "failed":
        region._run_list_eagerly([x @ x])
    else:
        with FakeTensorMode() as mode:
            region.run_list([mode.from_tensor(x)])
    assert [len(names) for names in seen] == [1, 1, 1]


def test_small_products_are_fused_for_the_sake_of_the_calls():
    def program(x, w, b):
        for _ in range(3):
            x = torch.addmm(b, torch.nn.functional.linear(x, w, b).relu(), w) @ w
        return torch.bmm(x[None], w[None]).sum()

    f = thunder.jit(program, executors=["torchcompile"])
    given = [torch.rand(8, 8, requires_grad=True) for _ in range(2)] + [torch.rand(8, requires_grad=True)]
    torch.testing.assert_close(f(*given), program(*given))
    grads = [torch.autograd.grad(fn(*given), given) for fn in (f, program)]
    torch.testing.assert_close(*grads)
    assert fused_names(thunder.last_traces(f)[-1]) == ["TorchCompile0"]
    assert len(fused_names(thunder.last_backward_traces(f)[-1])) <= 2


def test_deep_models_of_small_products_share_the_regions_of_their_layers(monkeypatch):
    started = []

    def compiler(fn, *_):
        started.append(fn)
        return uncompiled(fn)

    monkeypatch.setattr(region_program, "compile_with_inductor", compiler)
    monkeypatch.setenv("THUNDER_CACHE_DIR", "none")  # other tests may store one of its regions meanwhile
    counts = []
    for depth in (4, 12):
        region_table.clear()
        started.clear()
        torch.manual_seed(0)
        model = torch.nn.ModuleList([Block() for _ in range(depth)])

        def program(x, model=model):
            for block in model:
                x = block(x)
            return x.square().mean()

        compiled = thunder.jit(program, executors=["torchcompile", "torch"])
        x = torch.rand(2, 3, 8)
        torch.testing.assert_close(compiled(x), program(x))
        compiled(x).backward()
        counts.append(len(started))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("size, count, regions", [(64, 4, 1), (64, 3, 0), (512, 4, 0)])
def test_independent_operations_on_few_bytes_are_fused_for_the_sake_of_the_calls(size, count, regions):
    f = thunder.jit(lambda *xs: [x.sin() for x in xs], executors=["torchcompile"], fusion_type="dataflow")
    given = [torch.rand(size, size + n) for n in range(count)]
    torch.testing.assert_close(f(*given), [x.sin() for x in given])
    assert len(fused_names(thunder.last_traces(f)[-1])) == regions


def test_views_of_inputs_are_no_regions():
    """They are made after the program ran, of the caller's inputs."""
    f = thunder.jit(lambda x: (x.view(-1), x.t(), x[1:]), executors=["torchcompile"])
    x = torch.rand(3, 4)
    for result in f(x):
        assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert entries() == []


@pytest.mark.slow
def test_names_and_strides_of_results_are_those_of_eager():
    def program(x):
        y = x.t().sin() + 1
        return y, y.sum(0), (x * 2).cos().t()

    f = thunder.jit(program, executors=["torchcompile"], fusion_type="dataflow")
    for x in (torch.rand(3, 4), torch.rand(4, 3).t(), torch.rand(1, 4).expand(3, 4)):
        for actual, expected in zip(f(x), program(x), strict=True):
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride()


def test_cuda_fusers_fuse_nothing_on_cpu():
    for name in ("torchcompile", "torchcompile_cat", "torchcompile_xentropy"):
        assert thunder.get_executor(name) is not None
    fusers = [torch_compile.torch_compile_cat_ex, torch_compile.torch_compile_xentropy_ex]
    f = thunder.jit(lambda x: torch.cat([x.sin(), x]).log_softmax(0).cos(), executors=fusers)
    x = torch.rand(3)
    torch.testing.assert_close(f(x), torch.cat([x.sin(), x]).log_softmax(0).cos())
    assert fused_names(thunder.last_traces(f)[-1]) == []


@pytest.mark.slow
def test_regions_need_their_required_operations():
    ex = torch_compile.TorchCompileExecutor("with_cat", {"cat"})
    with_cat = thunder.jit(lambda x: torch.cat([x.sin(), x]).cos(), executors=[ex])
    without = thunder.jit(lambda x: x.sin().cos(), executors=[ex])
    x = torch.rand(3)
    torch.testing.assert_close(with_cat(x), torch.cat([x.sin(), x]).cos())
    torch.testing.assert_close(without(x), x.sin().cos())
    assert fused_names(thunder.last_traces(with_cat)[-1]) == ["TorchCompile0"]
    assert fused_names(thunder.last_traces(without)[-1]) == []


# Which nodes


@pytest.mark.parametrize(
    "fn, expected",
    [
        (torch.add, True),
        (torch.nn.functional.gelu, True),
        (torch.Tensor.sum, True),
        (torch.ops.aten.native_layer_norm_backward.default, True),
        (torch.matmul, True),
        (torch.nn.functional.embedding, False),
        (torch.nn.functional.scaled_dot_product_attention, False),
        (torch.ops.aten.embedding_dense_backward.default, False),
        (torch.topk, False),
        (torch.cumsum, False),
    ],
)
def test_operations_worth_fusing(fn, expected):
    node = make_trace(lambda x, y: add(x, y)).bound_symbols[2]
    assert is_fusible(node.from_bsym(sym=symbol_for(fn))) == expected


@pytest.mark.parametrize("size, expected", [(64, True), (256, False)])
def test_products_are_fused_by_their_size(size, expected):
    trace = make_trace(lambda x, y: add(x, y), shape=(size, size))
    node = trace.bound_symbols[2]
    for fn in (torch.matmul, torch.mm, torch.nn.functional.linear):
        assert is_fusible(node.from_bsym(sym=symbol_for(fn))) == expected


def test_dtypes_and_devices_that_are_not_fused():
    for facts in ({"dtype": torch.complex64}, {"device": "meta"}, {"dtype": torch.float8_e5m2}):
        trace = TraceCtx(name="computation")
        x = thunder.TensorProxy("x", shape=(2,), **{"device": "cpu", "dtype": torch.float32, **facts})
        assert not is_fusible(add.bind(x, x, output=x.replace(name="y"))), (facts, trace)


def test_casts_are_work_and_views_are_none():
    trace = make_trace(lambda x, y: add(x, y))
    x = trace.args[0]
    to = symbol_for(torch.Tensor.to)
    assert is_view(to.bind(x, torch.float32, output=x.replace(name="a")))
    assert not is_view(to.bind(x, torch.float16, output=x.replace(name="a", dtype=torch.float16)))
    getitem = symbol_for(torch.Tensor.__getitem__)
    assert is_view(getitem.bind(x, (0, slice(None), None), output=x.replace(name="a")))
    assert not is_view(getitem.bind(x, (x,), output=x.replace(name="a")))


@pytest.mark.parametrize(
    "reshaped, regions",
    [
        (lambda y: y.reshape(6, 4), []),
        (lambda y: y.transpose(0, 2).reshape(6, 4), ["TorchCompile0"]),
        (lambda y: y.transpose(0, 2).contiguous(), ["TorchCompile0"]),
        (lambda y: y.transpose(0, 2).flatten(1), ["TorchCompile0"]),
        (lambda y: y.contiguous(), []),
        (lambda y: y[:, :2].flatten(1).t(), []),
        (lambda y: y[:, :, :2].flatten(1).t(), ["TorchCompile0"]),
        (lambda y: y[0].flatten().view(3, 4), []),
    ],
)
def test_a_reshape_that_copies_is_work_and_one_that_views_is_none(reshaped, regions, monkeypatch):
    monkeypatch.setattr(region_program, "compile_with_inductor", uncompiled)
    f = thunder.jit(lambda x: reshaped(x.sin()), executors=["torchcompile"])
    x = torch.rand(2, 3, 4)
    torch.testing.assert_close(f(x), reshaped(x.sin()))
    assert f(x).stride() == reshaped(x.sin()).stride()
    assert fused_names(thunder.last_traces(f)[-1]) == regions


# One region


@pytest.mark.slow
def test_a_region_is_compiled_for_each_kind_of_strides():
    region = program_of(lambda x, y: cos(mul(x, y)), shape=(3, 3))
    x, y = torch.rand(3, 3), torch.rand(3, 3)
    for a, b in ((x, y), (x.t(), y), (x, y), (x, torch.rand(3).expand(3, 3))):
        torch.testing.assert_close(region(a, b)[0], torch.cos(a * b))
    assert region.compile_count == len(region.variants) == 3


@pytest.mark.slow
def test_too_many_kinds_of_strides_run_uncompiled():
    region = program_of(lambda x, y: cos(mul(x, y)), shape=(3, 3))
    region.max_variants = 1
    x, y = torch.rand(3, 3), torch.rand(3, 3)
    for a in (x, x.t()):
        torch.testing.assert_close(region(a, y)[0], torch.cos(a * y))
    assert region.compile_count == len(region.variants) == 1


@pytest.mark.slow
def test_results_have_memory_of_their_own():
    def program(x, y):
        return mul(sin(x), 2.0), mul(sin(x), 2.0), mul(y, 1.0), add(x, 0.0)

    region = program_of(program)
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    results = region(x, y)
    places = [t.untyped_storage().data_ptr() for t in (x, y, *results)]
    assert len(set(places)) == len(places)
    for actual, expected in zip(results, (x.sin() * 2, x.sin() * 2, y, x), strict=True):
        torch.testing.assert_close(actual, expected)


def test_results_that_a_compiler_lets_share_memory_are_cloned(monkeypatch):
    def careless(fn, *_):
        return lambda x: [x, x], None, lambda: None

    monkeypatch.setattr(region_program, "compile_with_inductor", careless)
    region = program_of(lambda x: (mul(x, 1.0), add(x, 0.0)), "x")
    x = torch.rand(2, 3)
    for results in (region(x), region(x)):
        assert len({t.untyped_storage().data_ptr() for t in (x, *results)}) == 3


def test_a_failure_of_the_compiler_is_told_and_survived(monkeypatch):
    def failing(fn, *_):
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(region_program, "compile_with_inductor", failing)
    region = program_of(lambda x, y: cos(mul(x, y)))
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    with pytest.warns(UserWarning, match="runs uncompiled: RuntimeError: no compiler found"):
        torch.testing.assert_close(region(x, y)[0], torch.cos(x * y))
    torch.testing.assert_close(region(x, y)[0], torch.cos(x * y))


@pytest.mark.parametrize("fails_at", ["start", "finish"])
def test_a_failure_ahead_of_the_first_run_is_told_and_survived(fails_at, monkeypatch):
    def fail(*_):
        raise RuntimeError("compiler killed")

    compiler = fail if fails_at == "start" else lambda fn, *_: (fn, b"never stored", fail)
    monkeypatch.setattr(region_program, "compile_with_inductor", compiler)
    compiled = thunder.jit(lambda x: (x.cos() * x).sin(), executors=["torchcompile"])
    x = torch.rand(2, 3)
    with pytest.warns(UserWarning, match="runs uncompiled: RuntimeError: compiler killed"):
        torch.testing.assert_close(compiled(x), (x.cos() * x).sin())
    torch.testing.assert_close(compiled(x), (x.cos() * x).sin())


# Regions are compiled before the program runs


class Attention(torch.nn.Module):
    """Its gradients are not row-major."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x * x.sigmoid()).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q * q.cos(), k.sin() * k, v, is_causal=True)
        return y.transpose(1, 2).reshape(2, 5, 16).exp() * x


@pytest.mark.parametrize("model", ["attention", "convolution", "llama"])
def test_all_regions_are_started_before_the_first_run_for_the_strides_they_meet(model, monkeypatch):
    events = []

    def compiler(fn, *_):
        events.append("start")
        return fn, None, lambda: events.append("finish")

    monkeypatch.setattr(region_program, "compile_with_inductor", compiler)
    if model == "llama":
        workload = make("llama:2")
        module, x = workload.model, workload.batch[0]
    elif model == "attention":
        module, x = Attention(), torch.rand(2, 5, 16)
    else:
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.Tanh()).to(
            memory_format=torch.channels_last
        )
        x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    # The gradients that a program is given may have any strides; those inside are known.
    thunder.jit(lambda x: module(x).square().mean(), executors=["torchcompile", "torch"])(x).backward()
    first = events.index("finish")
    assert events == ["start"] * first + ["finish"] * first
    assert first > 1


@pytest.mark.slow
def test_compilers_run_beside_what_comes_after(monkeypatch):
    """A C++ compiler that waits for the next region to be started."""
    started = threading.Event()
    regions = [program_of(lambda x, y: cos(mul(x, y))), program_of(lambda x, y: sin(mul(x, y)))]
    submit = AsyncCompile.submit

    def slow(task):
        def run():
            assert started.wait(60)
            return task()

        return submit(run)

    monkeypatch.setattr(AsyncCompile, "submit", staticmethod(slow))
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    with inductor_config.patch(compile_threads=2):
        for region in regions:
            region.compile_ahead([tensor_like("x", x), tensor_like("y", y)], [x.stride(), y.stride()])
    started.set()
    torch.testing.assert_close([r(x, y)[0] for r in regions], [torch.cos(x * y), torch.sin(x * y)])
    assert [r.compile_count for r in regions] == [1, 1]


@pytest.mark.slow
def test_regions_call_what_inductor_made_and_nothing_around_it():
    region = program_of(lambda x, y: cos(mul(x, y)))
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    region(x, y)
    with torch.profiler.profile() as profiler:
        torch.testing.assert_close(region(x, y)[0], torch.cos(x * y))
    assert not any("AOT" in event.name or "CompiledFxGraph" in event.name for event in profiler.events())


def test_what_changes_inputs_or_results_is_called_as_it_is():
    class Graph(CompiledFxGraph):
        def __init__(self):
            self._compile_context = self.compiled_fn_runner = None
            self.current_callable = lambda inputs: [torch.sub(*inputs)]

    graph = Graph()
    x, y = torch.rand(2), torch.rand(2)
    cases = [
        (lambda *given: graph(list(given)), True),
        (lambda a, b: graph([b, a]), False),
        (lambda *given: [graph(list(given))[0].clone()], False),
        (lambda *given: [*graph(list(given)), x], False),
        (lambda *given: graph([graph(list(given))[0], y]), False),
        (lambda a, b: [a - b], False),
    ]
    for compiled, is_direct in cases:
        outputs, call = call_compiled(compiled, [x, y])
        assert isinstance(call, functools.partial) == is_direct
        given = [x, y]
        torch.testing.assert_close(list(call(given)), list(outputs))
        assert is_direct or not given


def test_first_calls_in_two_threads_leave_torch_as_it_was():
    torchs_own = CompiledFxGraph.__call__
    x = torch.rand(2)
    other = threading.Thread(target=call_compiled, args=(lambda a: [a], [x]))

    def compiled(a):
        other.start()
        other.join(0.5)  # it waits for this call to end
        return [a]

    call_compiled(compiled, [x])
    other.join()
    assert CompiledFxGraph.__call__ is torchs_own


def tensor_like(name: str, t: torch.Tensor) -> TensorProxy:
    return TensorProxy(name, shape=tuple(t.shape), device=t.device, dtype=t.dtype)


# What compiled code does not take


def test_tensors_that_compiled_code_does_not_take_run_uncompiled():
    region = program_of(lambda x, y: cos(mul(x, y)))
    negated = torch.conj(torch.rand(2, 3, dtype=torch.complex64)).imag
    assert negated.is_neg()
    torch.testing.assert_close(region(negated, negated)[0], torch.cos(negated * negated))
    with FakeTensorMode():
        (result,) = region(torch.empty(2, 3), torch.empty(2, 3))
    assert result.shape == (2, 3)
    assert region.compile_count == 0


@pytest.mark.slow
def test_a_compiled_region_takes_fakes_and_negated_tensors_too():
    region = program_of(lambda x, y: mul(cos(x), y))
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    for a in (x, torch.nn.Parameter(x), torch._neg_view(x), x):
        torch.testing.assert_close(region(y, a)[0], torch.cos(y) * a.detach())
    assert region.compile_count == 1
    with FakeTensorMode():
        (result,) = region(torch.empty(2, 3), torch.empty(2, 3))  # the same strides, and no memory
    assert result.shape == (2, 3)


@pytest.mark.slow
def test_threads_compile_a_region_once():
    region = program_of(lambda x, y: sin(add(x, y)))
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    results: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            results.append(region(x, y)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4
    assert region.compile_count == 1
    for r in results:
        torch.testing.assert_close(r, torch.sin(x + y))


# On disk


@pytest.mark.slow
def test_a_region_comes_back_from_disk(tmp_path):
    store = DiskStore(tmp_path)
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    counts = []
    for damage in (False, False, True):
        if damage:
            for path in tmp_path.glob("*.region"):
                path.write_bytes(path.read_bytes()[:-10])
        region = program_of(lambda x, y: cos(add(x, mul(x, y))), store=store)
        torch.testing.assert_close(region(x, y)[0], torch.cos(x + x * y))
        counts.append((region.compile_count, region.load_count))
    assert counts == [(1, 0), (0, 1), (1, 0)]
    assert len(list(tmp_path.glob("*.region"))) == 1


def test_an_artifact_that_torch_refuses_is_compiled_again(tmp_path, monkeypatch):
    store = DiskStore(tmp_path)
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    monkeypatch.setattr(region_program, "compile_with_inductor", lambda fn, *_: (fn, b"no artifact", lambda: None))
    for _ in range(2):
        region = program_of(lambda x, y: cos(add(x, y)), store=store)
        torch.testing.assert_close(region(x, y)[0], torch.cos(x + y))
        assert (region.compile_count, region.load_count) == (1, 0)


# Import


@pytest.mark.slow
def test_importing_thunder_does_not_import_the_compiler():
    code = "import sys, thunder; print('torch._inductor.compile_fx' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "False"
