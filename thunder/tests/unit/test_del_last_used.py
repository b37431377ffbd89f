"""Values are given up at their last use."""

from __future__ import annotations

import gc
import weakref

import torch

from thunder.core.transforms.del_last_used import del_last_used
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
