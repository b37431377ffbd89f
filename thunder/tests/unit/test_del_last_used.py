"""Values are given up at their last use."""

from __future__ import annotations

import gc
import weakref

import torch

from thunder.core.symbol import Symbol
from thunder.core.transforms.del_last_used import del_last_used, hand_over
from thunder.core.verify import verify
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import add, body, lines, make_trace, mul, node_of, sin


def claimed(fn, names="x y"):
    return transform_for_execution(make_trace(fn, names), [torchex])


def test_a_value_goes_right_after_its_last_use():
    trace = claimed(lambda x, y: add(mul(sin(x), y), y))
    new = del_last_used(trace)
    assert body(new) == lines(
        """
        t0 = torch.sin(x)  # t0: "cpu f32[2, 3]"
        del x
        t1 = torch.mul(t0, y)  # t1: "cpu f32[2, 3]"
        del t0
        t2 = torch.add(t1, y)  # t2: "cpu f32[2, 3]"
        del t1, y
        return t2
        """
    )
    verify(new, stage="executable", level=2, before=trace)
    assert "del " not in body(trace)


def test_outputs_and_unused_results():
    new = del_last_used(claimed(lambda x, y: (sin(x), x, mul(y, 2))[:2]))
    assert body(new) == lines(
        """
        t0 = torch.sin(x)  # t0: "cpu f32[2, 3]"
        t1 = torch.mul(y, 2)  # t1: "cpu f32[2, 3]"
        del t1, y
        return (t0, x)
        """
    )


def test_deletions_have_the_origin_of_the_use():
    new = del_last_used(claimed(lambda x, y: add(sin(x), y)))
    use = node_of(new, "add")
    deletion = new.bound_symbols[new.bound_symbols.index(use) + 1]
    assert deletion.sym.name == "python_del"
    assert deletion.origin.source == use.origin.source


def test_memory_is_free_while_the_function_runs():
    seen = []

    def watch(a):
        gc.collect()
        seen.append(ref() is None)
        return a.neg()

    def first(a):
        nonlocal ref
        out = a.sin()
        ref = weakref.ref(out)
        return out

    ref = None
    trace = del_last_used(claimed(lambda x: mul(add(sin(x), 1), 2), "x"))
    swap = {"sin": first, "mul": lambda a, _: watch(a)}
    nodes = list(trace.bound_symbols)
    for index, node in enumerate(nodes):
        if (name := node.sym.name) in swap:
            nodes[index] = node.from_bsym(call_ctx={name: swap[name]})
    trace.with_nodes(nodes).python_callable()(torch.ones(2, 3))
    assert seen == [True]


class Taking:
    """A region's callable."""

    def __call__(self, *values):
        return self.run_list(list(values))

    def run_list(self, values):
        return [sum(values)]


def with_region(fn):
    """A trace whose additions are regions."""
    trace = claimed(fn)
    nodes = []
    for n in trace.bound_symbols:
        if n.sym.name.startswith("add"):
            region = Taking()
            sym = Symbol("Region0", id="Region0", is_prim=True, is_fusion=True, python_impl=region)
            n = n.from_bsym(sym=sym, output=[n.output], subsymbols=(n,), call_ctx={"Region0": region})
        nodes.append(n)
    return trace.with_nodes(nodes, "regions")


def test_regions_own_what_nobody_reads_after_them():
    trace = del_last_used(with_region(lambda x, y: (add(sin(x), mul(y, 2)), y)))
    new = hand_over(trace)
    assert body(new) == lines(
        """
        t0 = torch.sin(x)  # t0: "cpu f32[2, 3]"
        del x
        t1 = torch.mul(y, 2)  # t1: "cpu f32[2, 3]"
        C0 = [t0, t1]
        del t0, t1
        [t2] = Region0(C0)
        return (t2, y)
        """
    )
    new.set_provenance("hand over")
    verify(new, stage="executable", level=2, before=trace)
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    torch.testing.assert_close(new.python_callable()(x, y)[0], x.sin() + 2 * y)


def test_regions_get_what_others_hold_one_by_one():
    trace = del_last_used(with_region(lambda x, y: add(x, y)))
    assert hand_over(trace) is trace, "the caller holds the arguments"
    trace = del_last_used(with_region(lambda x, y: (add(sin(x), y), mul(x, 2))))
    assert body(hand_over(trace)) == lines(
        """
        t0 = torch.sin(x)  # t0: "cpu f32[2, 3]"
        C0 = [t0, y]
        del t0
        [t1] = Region0(C0)
        del y
        t2 = torch.mul(x, 2)  # t2: "cpu f32[2, 3]"
        del x
        return (t1, t2)
        """
    )
