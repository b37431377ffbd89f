"""Dead code elimination."""

from __future__ import annotations

from thunder.core import prims
from thunder.core.passes import PassContext
from thunder.core.transforms.dce import DeadCodeElimination, dce
from thunder.core.verify import verify
from thunder.tests.unit.traces import LINE, add, add_, body, clone, cos, lines, make_trace, mul, node_of, rand_like, sin


def run(trace):
    return DeadCodeElimination().apply(trace, PassContext())


def test_removes_what_nobody_reads_and_what_only_that_has_read():
    def program(x, y):
        dead = sin(x)
        mul(dead, dead)
        return cos(y)

    trace = make_trace(program)
    new = run(trace)
    assert body(new) == lines(
        """
        t2 = ltorch.cos(y)  # t2: "cpu f32[2, 3]"
        return t2
        """
    )
    assert len(trace.bound_symbols) == 6
    assert node_of(new, "cos") is node_of(trace, "cos")
    assert node_of(new, "cos").origin.source == LINE
    verify(new, level=2, before=trace)


def test_leaves_writes_random_numbers_and_kept_nodes():
    def program(x, y):
        buffer = clone(x)
        add_(buffer, y)
        rand_like(x)
        prims.sink(sin(x))
        return y

    new = run(make_trace(program))
    assert [n.sym.name for n in new.bound_symbols[2:]] == ["clone", "add_", "rand_like", "sin", "sink", "python_return"]


def test_a_trace_without_dead_code_is_returned_as_it_is():
    trace = make_trace(lambda x, y: mul(add(x, y), y))
    assert run(trace) is trace


def test_needed_proxies_are_roots_too():
    trace = make_trace(lambda x, y: (sin(x), cos(y))[1])
    t0 = node_of(trace, "sin").output
    assert [n.sym.name for n in dce(trace).bound_symbols[2:]] == ["cos", "python_return"]
    assert [n.sym.name for n in dce(trace, [t0]).bound_symbols[2:]] == ["sin", "cos", "python_return"]
    assert "Constructed by Dead Code Elimination" in dce(trace).python()
