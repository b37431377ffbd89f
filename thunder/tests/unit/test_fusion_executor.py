"""Fusion executors inside the pipeline: whole programs with a fuser that needs no compiler."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.core.compile_data import (
    compile_data_and_stats,
    compile_options,
    get_compile_data,
    get_compile_option,
    using_jit,
)
from thunder.core.errors import ThunderTypeError
from thunder.core.options import CompileOptions
from thunder.core.passes import PassContext
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.executors.fusion_regions import Region, RegionFusionExecutor
from thunder.executors.passes import Fusion
from thunder.extend.executor import FUEL_LEVEL
from thunder.tests.fusers import ElementwiseFuser
from thunder.tests.fusion_programs import PROGRAMS, check_program
from thunder.tests.unit.traces import LINE, add, body, cos, lines, make_trace, mul, sin
from thunder.torch.registry import symbol_for

KINDS = ("consecutive", "dataflow")
INPLACE = {
    "functionalized": {},
    "alias updates": {"skip_inplace_functionalization": True},
    "neither": {"skip_inplace_functionalization": True, "skip_inplace_alias_updates": True},
}
matmul = symbol_for(torch.matmul)


def fused_nodes(trace: TraceCtx) -> list[BoundSymbol]:
    return [n for n in trace.bound_symbols if n.sym.is_fusion]


@pytest.mark.parametrize("fusion_type", KINDS)
@pytest.mark.parametrize("inplace", INPLACE)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_as_in_eager(name, inplace, fusion_type):
    fuser = ElementwiseFuser()
    check_program(name, executors=[fuser], fusion_type=fusion_type, **INPLACE[inplace])
    assert fuser.calls


@pytest.mark.parametrize("fusion_type", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_regions_never_mix_forward_and_backward(name, fusion_type):
    fuser = ElementwiseFuser()
    compiled = check_program(name, executors=[fuser], fusion_type=fusion_type)
    backward = {n.sym.name for n in fused_nodes(thunder.last_backward_traces(compiled)[-1])}
    assert backward
    for region in fuser.regions:
        assert len({n.is_backward for n in region.bsyms}) == 1
        assert region.outputs
        assert not any(n.has_effects for n in region.bsyms)


def fused(trace: TraceCtx, *fusers: RegionFusionExecutor, **options) -> TraceCtx:
    ctx = PassContext(CompileOptions(**options), (*fusers, thunder.pytorch_executor))
    with compile_options(ctx.options):
        trace = Fusion().apply(trace, ctx)
    trace.set_provenance("fusion")
    return trace


def test_fused_node_prints_with_its_parts_and_keeps_their_origin():
    trace = make_trace(lambda x, y: matmul(cos(mul(x, y)), y), shape=(3, 3))
    new = fused(trace, ElementwiseFuser())
    (node,) = fused_nodes(new)
    assert node.origin.source == LINE
    assert [s.sym.name for s in node.subsymbols] == ["mul", "cos"]
    assert body(new) == lines("""
        [t1] = Elementwise0(x, y)
        t2 = torch.matmul(t1, y)  # t2: "cpu f32[3, 3]"
        return t2
    """)
    inner = [line for line in body(new, print_depth=2).splitlines() if line.strip().startswith("#")]
    assert [line.split("(")[0].split()[-1] for line in inner[:2]] == ["ltorch.mul", "ltorch.cos"]


def test_only_outputs_that_somebody_reads_leave_a_region():
    def program(x, y):
        a = mul(x, y)
        b = cos(a)
        return matmul(a, b), sin(b)

    (region,) = [r for r in regions_of(program, "dataflow") if len(r.bsyms) > 1]
    assert [o.name for o in region.outputs] == ["t0", "t1", "t3"]
    (region,) = regions_of(lambda x, y: cos(mul(x, y)), "dataflow")
    assert [o.name for o in region.outputs] == ["t1"]


def regions_of(program, fusion_type: str, **facts) -> list[Region]:
    fuser = ElementwiseFuser(**facts)
    fused(make_trace(program, shape=(3, 3)), fuser, fusion_type=fusion_type)
    return fuser.regions


def test_regions_that_nobody_reads_are_not_made():
    def program(x, y):
        cos(mul(x, y))
        return x

    for fusion_type in KINDS:
        assert regions_of(program, fusion_type) == []


def test_small_regions_are_left_alone():
    assert regions_of(lambda x, y: matmul(cos(x), y), "dataflow", min_region_size=2) == []
    assert len(regions_of(lambda x, y: matmul(cos(x), y), "dataflow", min_region_size=1)) == 1


def test_fuel_limits_the_number_of_regions():
    def program(x, y):
        return cos(sin(matmul(cos(sin(y)), x)))

    fuser = ElementwiseFuser()
    fuser.set_fuel(1)
    fused(make_trace(program, shape=(3, 3)), fuser)
    assert len(fuser.regions) == 1
    fuser.set_fuel(FUEL_LEVEL.UNLIMITED)
    fused(make_trace(program, shape=(3, 3)), fuser)
    assert len(fuser.regions) == 1 + 2


def test_two_fusers_in_one_program_name_their_regions_apart():
    class Cosines(ElementwiseFuser):
        def can_fuse(self, bsym: BoundSymbol) -> bool:
            return bsym.sym.name == "cos"

    first, second = Cosines("cosines"), ElementwiseFuser("rest")
    f = thunder.jit(lambda x: torch.cos(torch.sin(x)) + 1, executors=[first, second])
    x = torch.rand(3)
    torch.testing.assert_close(f(x), torch.cos(torch.sin(x)) + 1)
    names = [n.sym.name for n in fused_nodes(thunder.last_traces(f)[-1])]
    assert len(names) == len(set(names)) == 3


def test_fused_traces_are_the_same_each_time():
    def program(x, y):
        return add(cos(sin(x)), mul(matmul(x, y), sin(y)))

    traces = [fused(make_trace(program, shape=(3, 3)), ElementwiseFuser(), fusion_type="dataflow") for _ in range(3)]
    assert len(set(map(str, traces))) == 1


# The options that executors ask for


def test_an_option_is_declared_by_asking_for_it():
    assert get_compile_option("fuser_test_option", "an option of this test") is None
    f = thunder.jit(lambda x: x + 1, fuser_test_option=3)
    torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ThunderTypeError, match="identifier"):
        get_compile_option("no identifier", "")


def test_fusers_see_the_options_of_their_compilation():
    seen = []

    class Asking(ElementwiseFuser):
        def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
            seen.append((get_compile_option("fusion_type", ""), get_compile_option("nv_enable_linear", "")))
            return super().fusion_pass(trace)

    f = thunder.jit(lambda x: x + 1, executors=[Asking()], fusion_type="dataflow", nv_enable_linear=True)
    f(torch.ones(2))
    assert seen == [("dataflow", True)]
    assert get_compile_data() is None
    assert not using_jit()


def test_a_compilation_is_current_inside_its_block():
    f = thunder.jit(lambda x: x + 1)
    with compile_data_and_stats(thunder.compile_data(f), thunder.compile_stats(f)):
        assert using_jit()
        assert get_compile_data() is thunder.compile_data(f)
    assert get_compile_data() is None


def test_unknown_fusion_type_is_an_error():
    with pytest.raises(ValueError, match="fusion_type"):
        thunder.jit(lambda x: x, fusion_type="horizontal")
