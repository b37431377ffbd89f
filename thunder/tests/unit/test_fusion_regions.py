"""The search for fusion regions on small traces: what is merged, what is a barrier, the order, the cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from thunder.core import prims
from thunder.core.compile_data import compile_options, get_compile_option
from thunder.core.options import CompileOptions
from thunder.core.origin import BACKWARD, RECOMPUTE_IN_BACKWARD, origin
from thunder.core.proxies import FutureTensorProxy, Layout, TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.data_dependent_partition import Region, RegionSearch, fuse_bound_symbols
from thunder.executors.fusion_regions import (
    fusion_class,
    is_fusion_barrier,
    peel,
    producers_and_consumers,
    run_nodes,
)
from thunder.executors.order import order_edges
from thunder.tests.fusers import call_node, is_pointwise
from thunder.tests.unit.traces import add, add_, clone, cos, make_trace, mul, rand_like, sin, tanh, tensor
from thunder.torch.registry import symbol_for

matmul, transpose = symbol_for(torch.matmul), symbol_for(torch.transpose)
KINDS = ("consecutive", "dataflow")


def square(fn: Callable, names: str = "x y") -> TraceCtx:
    return make_trace(fn, names, shape=(3, 3))


def groups_of(trace: TraceCtx, fusion_type: Any, can_fuse: Any = is_pointwise, **options: Any) -> list[str]:
    """Each group as the names that it defines; a node without outputs by its own name. Inputs are left out."""
    found = []
    for group in fuse_bound_symbols(trace, can_fuse, fusion_type, **options):
        if group[0].sym is not prims.unpack_trivial:
            found.append(" ".join(o.name for n in group for o in n.defined) or group[0].sym.name)
    return found


def is_valid_order(trace: TraceCtx, groups: Sequence[Sequence[BoundSymbol]]) -> bool:
    """Whether the groups hold every node once and each node follows what it must follow, counting groups as one."""
    where = {id(n): g for g, group in enumerate(groups) for n in group}
    assert sorted(map(id, trace.bound_symbols)) == sorted(where)
    nodes = trace.bound_symbols
    return all(
        where[id(nodes[p])] <= where[id(nodes[n])] for n, before in enumerate(order_edges(trace)) for p in before
    )


# What is merged


def test_consecutive_takes_runs_of_neighbours():
    trace = square(lambda x, y: matmul(tanh(sin(x)), cos(y)))
    assert groups_of(trace, "consecutive") == ["t0 t1 t2", "t3", "python_return"]


def test_consecutive_stops_at_what_lies_between():
    def program(x, y):
        a = sin(x)
        b = matmul(x, y)
        return b, cos(a)

    assert groups_of(square(program), "consecutive") == ["t0", "t1", "t2", "python_return"]
    assert groups_of(square(program), "dataflow") == ["t1", "t0 t2", "python_return"]


def test_dataflow_never_merges_around_a_node_between():
    def program(x, y):
        a = sin(x)
        return mul(a, matmul(a, y))

    assert groups_of(square(program), "dataflow") == ["t0", "t1", "t2", "python_return"]


def test_dataflow_moves_a_producer_down_to_its_only_late_reader():
    def program(x, y):
        early = sin(x)
        late = matmul(matmul(y, y), y)
        return add(early, tanh(late))

    assert groups_of(square(program), "dataflow") == ["t1", "t2", "t0 t3 t4", "python_return"]


def test_dataflow_leaves_a_producer_that_is_read_early_as_well():
    def program(x, y):
        early = sin(cos(x))
        late = tanh(matmul(early, y))
        return add(early, late)

    assert groups_of(square(program), "dataflow") == ["t0 t1", "t2", "t3 t4", "python_return"]


def test_dataflow_ignores_a_reader_that_nothing_depends_on():
    def program(x, y):
        early = sin(x)
        leaf = matmul(early, y)
        other = tanh(matmul(matmul(y, y), y))
        return leaf, add(early, other)

    groups = groups_of(square(program), "dataflow")
    assert "t0 t4 t5" in groups
    assert groups.index("t1") > groups.index("t0 t4 t5")


def test_dataflow_merges_readers_of_one_tensor():
    def program(x, y):
        a = sin(x)
        b = matmul(y, y)
        return a, b, cos(x), cos(y)

    assert groups_of(square(program), "dataflow") == ["t1", "t0 t2", "t3", "python_return"]


def test_small_nodes_that_are_alone_join_an_independent_region():
    def program(x, y, z):
        return cos(sin(x)), tanh(y), matmul(y, z), sin(matmul(z, z))

    trace = square(program, "x y z")
    assert groups_of(trace, "dataflow") == ["t0 t1", "t2", "t3", "t4", "t5", "python_return"]
    joined = groups_of(trace, "dataflow", is_small=is_pointwise)
    assert joined == ["t0 t1 t2", "t3", "t4", "t5", "python_return"], "t5 starts later"
    assert groups_of(trace, "dataflow", is_small=lambda n: False) == groups_of(trace, "dataflow")
    assert groups_of(trace, "consecutive", is_small=is_pointwise) == groups_of(trace, "consecutive")


@pytest.mark.parametrize("count, expected", [(3, ["t0", "t1", "t2"]), (4, ["t0 t1 t2 t3"])])
def test_only_many_small_nodes_are_a_region_by_themselves(count, expected):
    names = ["a", "b", "c", "d"][:count]
    trace = square(lambda *inputs: [sin(x) for x in inputs], " ".join(names))
    assert groups_of(trace, "dataflow", is_small=is_pointwise) == [*expected, "python_return"]


def test_small_nodes_join_nothing_on_another_device_and_no_backward():
    trace = TraceCtx(name="computation")
    where = ["cpu", "cpu", "cuda", "cpu"]
    trace.args = tuple(tensor(trace, n, (3, 3), device=d) for n, d in zip("abcd", where, strict=True))
    with tracectx(trace):
        a, b, c, d = trace.args
        values = [cos(sin(a)), tanh(b), tanh(c)]
        with origin(add_tags=(BACKWARD,)):
            values.append(tanh(d))
        trace.emit(prims.python_return, (values,), {}, None)
    groups = groups_of(trace.mark_complete(), "dataflow", is_small=is_pointwise)
    assert groups == ["t0 t1 t2", "t3", "t4", "python_return"]


# Barriers


def test_a_read_does_not_cross_a_write():
    def program(x, y):
        a = sin(x)
        add_(x, y)
        return mul(a, cos(x))

    for fusion_type in KINDS:
        groups = fuse_bound_symbols(square(program), is_pointwise, fusion_type)
        assert [" ".join(n.sym.name for n in g) for g in groups[2:]] == ["sin", "add_", "cos mul", "python_return"]


@pytest.mark.parametrize("fusion_type", KINDS)
def test_a_read_of_a_view_does_not_cross_a_write_to_its_base(fusion_type):
    def program(x, y):
        v = transpose(x, 0, 1)
        a = sin(v)
        add_(x, y)
        return mul(a, cos(v))

    trace = square(program)
    groups = fuse_bound_symbols(trace, is_pointwise, fusion_type)
    names = [n.sym.name for group in groups for n in group]
    assert names.index("sin") < names.index("add_") < names.index("cos")
    assert is_valid_order(trace, groups)


def test_inputs_of_one_storage_are_one_memory():
    trace = TraceCtx(name="computation")
    x, y = (
        TensorProxy(n, shape=(3,), device="cpu", dtype=torch.float32, layout=Layout(-1, (1,), o))
        for n, o in (("x", 0), ("y", 1))
    )
    trace.args = (x, y)
    with tracectx(trace):
        a = sin(x)
        add_(y, y)
        b = cos(x)
        trace.emit(prims.python_return, ((mul(a, b),),), {}, None)
    names = [n.sym.name for g in fuse_bound_symbols(trace, is_pointwise, "dataflow") for n in g]
    assert names == ["sin", "add_", "cos", "mul", "python_return"]


def test_random_nodes_keep_their_order():
    def program(x, y):
        late = rand_like(matmul(x, y))
        early = rand_like(x)
        return add(sin(early), late)

    trace = square(program)
    groups = fuse_bound_symbols(trace, is_pointwise, "dataflow")
    drawn = [n.output.name for g in groups for n in g if n.sym is rand_like]
    assert drawn == ["t1", "t2"]
    assert all(len(g) == 1 for g in groups if g[0].sym is rand_like)


def test_a_switch_of_a_mode_is_a_fence():
    def program(x, y):
        a = sin(x)
        prims.set_grad_enabled(False)
        b = cos(a)
        prims.set_grad_enabled(True)
        return tanh(b)

    expected = ["t0", "set_grad_enabled", "t1", "set_grad_enabled", "t2", "python_return"]
    for fusion_type in KINDS:
        assert groups_of(square(program), fusion_type) == expected


@pytest.mark.parametrize("fusion_type", KINDS)
def test_a_region_is_forward_or_backward(fusion_type):
    def program(x, y):
        a = cos(sin(x))
        with origin(add_tags=(BACKWARD,)):
            b = mul(a, y)
            c = tanh(b)
        return c, tanh(a)

    trace = square(program)
    groups = fuse_bound_symbols(trace, is_pointwise, fusion_type)
    assert is_valid_order(trace, groups)
    for group in groups:
        assert len({fusion_class(n) for n in group}) == 1
    assert ["mul", "tanh"] in [[n.sym.name for n in g] for g in groups]


@pytest.mark.parametrize("fusion_type", KINDS)
def test_what_backward_computes_again_is_fused_with_it(fusion_type):
    def program(x, y):
        with origin(add_tags=(BACKWARD, RECOMPUTE_IN_BACKWARD)):
            a = cos(sin(x))
        with origin(add_tags=(BACKWARD,)):
            return mul(a, y)

    assert groups_of(square(program), fusion_type)[0] == "t0 t1 t2"


def test_forward_comes_before_backward_in_a_fused_trace():
    def program(x, y):
        with origin(add_tags=(BACKWARD,)):
            g = cos(y)
        return sin(x), g

    tags = [n.is_backward for g in fuse_bound_symbols(square(program), is_pointwise, "dataflow") for n in g[:1]]
    assert tags == [*sorted(tags[:-1]), False]


def barrier_nodes() -> list[BoundSymbol]:
    trace = TraceCtx()
    x = TensorProxy("x", shape=(3,), device="cpu", dtype=torch.float32)
    with tracectx(trace):
        add_(x, x)
        rand_like(x)
        prims.copy_(x, x)
        prims.get_grad(x)
        prims.update_aliases((x,))
        wait = Symbol("wait", meta=lambda f: TensorProxy(like=x), is_prim=True, torch_fn=torch.sin)
        trace.emit(wait, (FutureTensorProxy("f", like=x),), {}, TensorProxy("w", like=x))
    return trace.bound_symbols


@pytest.mark.parametrize("node", barrier_nodes(), ids=lambda n: n.sym.name)
def test_barriers_are_never_fused(node):
    assert is_fusion_barrier(node)
    trace = square(lambda x, y: cos(sin(x)))
    first, second = trace.bound_symbols[2:4]
    trace = trace.with_nodes([*trace.bound_symbols[:2], first, node, second, trace.bound_symbols[-1]])
    for fusion_type in KINDS:
        groups = fuse_bound_symbols(trace, lambda n: True, fusion_type)
        assert [node] in groups


def test_the_option_decides_where_no_type_is_given():
    def program(x, y):
        a = sin(x)
        b = matmul(x, y)
        return b, cos(a)

    trace = square(program)
    assert groups_of(trace, None) == groups_of(trace, "consecutive")
    with compile_options(CompileOptions(fusion_type="dataflow")):
        assert get_compile_option("fusion_type", "") == "dataflow"
        assert groups_of(trace, None) == groups_of(trace, "dataflow")
    assert get_compile_option("fusion_type", "") == "consecutive"


# Regions and their rims


def test_region_has_ordered_inputs_and_the_outputs_read_elsewhere():
    def program(x, y):
        a = mul(y, x)
        b = sin(a)
        return cos(b), b

    trace = square(program)
    producers, consumers = producers_and_consumers(trace.bound_symbols)
    region = Region(producers, consumers, trace.bound_symbols[2:5])
    assert [p.name for p in region.inputs] == ["y", "x"]
    assert [p.name for p in region.outputs] == ["t1", "t2"]
    assert repr(region) == "<Region of 3 nodes: y, x -> t1, t2>"


def test_peel_takes_views_off_the_rim():
    def program(x, y):
        a = transpose(x, 0, 1)  # read outside: before the region
        b = transpose(a, 0, 1)  # read inside and, through nothing else, outside: before the region as well
        c = transpose(y, 0, 1)  # read inside only: stays
        d = mul(add(b, c), c)
        e = transpose(d, 0, 1)  # read outside only: after the region
        return a, b, transpose(e, 0, 1)

    trace = square(program)
    _, consumers = producers_and_consumers(trace.bound_symbols)
    before, core, after = peel(trace.bound_symbols[2:-1], consumers, lambda n: n.sym is transpose)
    assert [[n.output.name for n in part] for part in (before, core, after)] == [
        ["t0", "t1"], ["t2", "t3", "t4"], ["t5", "t6"],
    ]  # fmt: skip


# Any program


def random_trace(rng: random.Random, size: int) -> TraceCtx:
    """A program of elementwise, other, writing and random nodes with tags, each reading earlier values."""
    trace = TraceCtx(name="computation")
    args = [TensorProxy(trace.make_name(n), shape=(3, 3), device="cpu", dtype=torch.float32) for n in ("x", "y")]
    trace.args = tuple(args)
    values, gradients = list(args), []
    with tracectx(trace):
        for n in range(size):
            is_backward = n > 0.6 * size
            tags = [BACKWARD] if is_backward else [RECOMPUTE_IN_BACKWARD] if rng.random() < 0.1 else []
            pool = values + gradients if is_backward else values
            a, b = rng.choice(pool[-8:]), rng.choice(pool)
            with origin(add_tags=tags):
                kind = rng.choices(("unary", "binary", "matmul", "view", "write", "random"), (4, 6, 3, 2, 0.7, 0.4))[0]
                if kind == "write":
                    add_(a, cos(b))
                    continue
                make = {
                    "unary": lambda: sin(a),
                    "binary": lambda: add(a, b),
                    "matmul": lambda: matmul(a, b),
                    "view": lambda: transpose(a, 0, 1),
                    "random": lambda: rand_like(a),
                }
                (gradients if is_backward else values).append(make[kind]())
        trace.emit(prims.python_return, (tuple(values + gradients),), {}, None)
    return trace


@pytest.mark.parametrize("is_small", [None, is_pointwise], ids=["", "small nodes"])
@pytest.mark.parametrize("fusion_type", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_no_cycles_and_no_lost_order_in_random_programs(seed, fusion_type, is_small):
    trace = random_trace(random.Random(seed), 60)
    groups = fuse_bound_symbols(trace, is_pointwise, fusion_type, is_small=is_small)
    assert is_valid_order(trace, groups)
    for group in groups:
        assert len(group) == 1 or all(is_pointwise(n) and not is_fusion_barrier(n) for n in group)
        assert len({fusion_class(n) for n in group}) == 1
    again = fuse_bound_symbols(random_trace(random.Random(seed), 60), is_pointwise, fusion_type, is_small=is_small)
    assert [[repr(n) for n in g] for g in groups] == [[repr(n) for n in g] for g in again]


def values_of(trace: TraceCtx, nodes: Sequence[BoundSymbol]) -> dict[str, torch.Tensor]:
    """What nodes compute, run one by one on fixed inputs, and what is left in the inputs."""
    torch.manual_seed(0)
    env = {a.name: torch.rand(3, 3) for a in trace.args}
    run_nodes([n for n in nodes if n.sym is not prims.python_return], env, call_node)
    return env


@pytest.mark.parametrize("fusion_type", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_the_same_values_in_the_new_order(seed, fusion_type):
    trace = random_trace(random.Random(seed), 40)
    groups = fuse_bound_symbols(trace, is_pointwise, fusion_type, is_small=is_pointwise)
    expected = values_of(trace, trace.bound_symbols)
    actual = values_of(trace, [n for g in groups for n in g])
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


def test_dataflow_finds_fewer_regions_than_neighbours_give():
    counts = dict.fromkeys(KINDS, 0)
    for seed in range(20):
        trace = random_trace(random.Random(seed), 60)
        for kind in KINDS:
            counts[kind] += len(fuse_bound_symbols(trace, is_pointwise, kind))
    assert counts["dataflow"] < counts["consecutive"]


def deep_program(layers: int) -> TraceCtx:
    """Residual layers, all of which read one more input."""

    def program(x, y):
        for _ in range(layers):
            x = add(x, tanh(mul(matmul(sin(x), y), y)))
        return x

    return square(program)


def mixed_program(layers: int) -> TraceCtx:
    return random_trace(random.Random(1), 5 * layers)


@pytest.mark.parametrize("make", [deep_program, mixed_program])
def test_edges_are_visited_a_constant_number_of_times(make):
    visits = {}
    for layers in (200, 400):
        trace = make(layers)
        nodes = trace.bound_symbols[:-1]
        before = order_edges(trace)
        search = RegionSearch(nodes, before, [fusion_class(n) if is_pointwise(n) else None for n in nodes])
        search.run()
        visits[layers] = search.edge_visits
        reads = sum(len(n.flat_proxy_args) for n in nodes)
        assert search.edge_visits <= 4 * sum(map(len, before)) + reads
    assert visits[400] <= 2.1 * visits[200]


def test_every_layer_of_a_deep_program_gets_the_same_region():
    trace = deep_program(6)
    sizes = [len(g) for g in fuse_bound_symbols(trace, is_pointwise, "dataflow") if is_pointwise(g[0])]
    assert sizes == [1, *[4] * 5, 3]


def test_copies_of_nodes_are_told_apart():
    trace = square(lambda x, y: clone(sin(x)))
    twice = trace.with_nodes([*trace.bound_symbols[:-1], replace(trace.bound_symbols[3]), trace.bound_symbols[-1]])
    assert sum(map(len, fuse_bound_symbols(twice, is_pointwise, "dataflow"))) == len(twice.bound_symbols)
