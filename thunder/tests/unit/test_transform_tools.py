"""Tools for user-written transforms: thunder.core.transforms."""

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.patterns import Pattern, bind_names
from thunder.core.profile import add_markers, annotate_for_profile, profiling_enabled
from thunder.core.symbol import BoundSymbolTag
from thunder.core.trace import from_trace, tracectx
from thunder.core.transform_common import canonicalize_proxies, dce_bsyms, order_proxies
from thunder.core.transforms import (
    TOPOSORT_ORDER,
    VISIT_TYPE,
    bsym_list_to_dag,
    eval_trace,
    grad,
    replace_inplace,
    toposort_bsym_dag,
    value_and_grad,
    visitor_transform,
    vjp,
)
from thunder.core.utils import (
    ProxyDict,
    consumers,
    find_producer_symbols,
    flatten_func,
    producers,
    producers_and_consumers,
)
from thunder.core.vjp_utils import (
    get_saved_for_backward_tensors,
    make_aug_forward_and_backward,
    set_saved_for_backward_tensors,
)
from thunder.executors.passes import transform_for_execution
from thunder.extend import resolve_executors


def traced(fn, *args):
    return thunder.trace()(fn, *args)


def run(trace, *args):
    return transform_for_execution(trace, resolve_executors(None)).python_callable()(*args)


@pytest.fixture
def chain():
    return traced(lambda a, b: torch.sin(a * b) + a, torch.rand(3), torch.rand(3))


def names(trace):
    return [b.sym.name for b in trace.bound_symbols if b.sym.name not in ("unpack_trivial", "python_return")]


def test_visitor_inserts_and_replaces(chain):
    def visit(bsym):
        if bsym.sym.name == "sin":
            with tracectx(None):
                pass
            prims.comment("here")
            return VISIT_TYPE.INSERT_BEFORE
        return VISIT_TYPE.NO_OP

    new = visitor_transform(chain, visit, provenance="comments")
    assert names(new) == ["mul", "comment", "sin", "add"]
    assert names(chain) == ["mul", "sin", "add"]
    assert str(new).startswith("# Constructed by comments")


def test_visitor_children_inherit_tags(chain):
    backward = chain.with_nodes(
        b.from_bsym(origin=type(b.origin)(tags=frozenset({BoundSymbolTag.BACKWARD}))) if b.sym.name == "sin" else b
        for b in chain.bound_symbols
    )

    def visit(bsym):
        if bsym.sym.name != "sin":
            return VISIT_TYPE.NO_OP
        prims.comment("child")
        return VISIT_TYPE.INSERT_AFTER

    made = [b for b in visitor_transform(backward, visit).bound_symbols if b.sym.name == "comment"]
    assert [b.tags for b in made] == [frozenset({BoundSymbolTag.BACKWARD})]


def test_visitor_must_answer(chain):
    with pytest.raises(ThunderTypeError, match="VISIT_TYPE"):
        visitor_transform(chain, lambda bsym: None)


def test_dag_orders(chain):
    nodes = [b for b in chain.bound_symbols if b.sym.name in ("mul", "sin", "add")]
    roots, leaves = bsym_list_to_dag(nodes)
    assert [r.bsym.sym.name for r in roots] == ["mul"]
    assert [leaf.bsym.sym.name for leaf in leaves] == ["add"]
    for order, start in ((TOPOSORT_ORDER.TOP_DOWN, roots), (TOPOSORT_ORDER.BOTTOM_UP, leaves)):
        roots, leaves = bsym_list_to_dag(nodes)
        start = roots if order is TOPOSORT_ORDER.TOP_DOWN else leaves
        assert [b.sym.name for b in toposort_bsym_dag(start, order)] == ["mul", "sin", "add"]


def test_eval_trace_on_tensors(chain):
    a, b = torch.rand(3), torch.rand(3)
    torch.testing.assert_close(eval_trace(chain, a, b), torch.sin(a * b) + a)


def test_replace_inplace():
    trace = traced(lambda a: torch.sin(a), torch.rand(3))
    index = names(trace).index("sin") + sum(b.sym.name == "unpack_trivial" for b in trace.bound_symbols)
    replace_inplace(trace, index, lambda bsym: trace.emit(bsym.sym, bsym.args, bsym.kwargs, bsym.output))
    assert names(trace) == ["sin"]


def test_vjp_inside_a_trace():
    def f(x, w, g):
        return vjp(lambda x, w: torch.tanh(x @ w))((x, w), g)

    x, w, g = torch.rand(2, 3), torch.rand(3, 4), torch.rand(2, 4)
    value, grads = run(traced(f, x, w, g), x, w, g)
    xr, wr = x.clone().requires_grad_(), w.clone().requires_grad_()
    want = torch.tanh(xr @ wr)
    want.backward(g)
    torch.testing.assert_close(value, want.detach())
    torch.testing.assert_close(tuple(grads), (xr.grad, wr.grad))


def test_value_and_grad_inside_a_trace():
    def f(x, n):
        return value_and_grad(lambda x, n: (x * n).exp().sum())(x, n)

    x = torch.rand(3)
    value, grads = run(traced(f, x, torch.tensor(2.0)), x, torch.tensor(2.0))
    torch.testing.assert_close(value, (x * 2).exp().sum())
    torch.testing.assert_close(grads[0], 2 * (x * 2).exp())


@pytest.mark.parametrize("fn", [torch.sin, torch.mul, torch.nn.functional.silu])
def test_augmented_forward_and_backward_of_an_operation(fn):
    args = [torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2 if fn is torch.mul else 1)]
    node = next(n for n in traced(fn, *args).bound_symbols if n.sym.torch_fn is fn)
    forward, backward = make_aug_forward_and_backward(node)

    def f(*args):
        result, residuals = forward(*args)
        return result, backward(*residuals, result)

    result, grads = run(traced(f, *args), *args)
    expected = fn(*args)
    torch.testing.assert_close(result, expected)
    expected.backward(expected.detach())
    torch.testing.assert_close(list(grads) if len(args) > 1 else [grads], [a.grad for a in args])


def test_backward_before_its_forward():
    x = torch.rand(3)
    node = next(n for n in traced(torch.sin, x).bound_symbols if n.sym.torch_fn is torch.sin)
    with pytest.raises(ThunderValueError, match="before its augmented forward"):
        make_aug_forward_and_backward(node)[1](x)


def test_saved_tensors_of_a_trace():
    compiled = thunder.jit(lambda x: x.sin().exp())
    compiled(torch.rand(3, requires_grad=True))
    trace = thunder.last_traces(compiled)[-1]
    saved = get_saved_for_backward_tensors(trace)
    assert saved
    assert {p.name for p in saved} <= {o.name for n in trace.bound_symbols for o in n.defined} | {"x"}
    copied = from_trace(trace)
    copied.bound_symbols = list(trace.bound_symbols)
    set_saved_for_backward_tensors(copied, saved[:1])
    assert get_saved_for_backward_tensors(copied) == saved[:1]
    assert get_saved_for_backward_tensors(trace) == saved
    with pytest.raises(ThunderValueError, match="does not define"):
        set_saved_for_backward_tensors(copied, [saved[0].replace(name="elsewhere")])
    with pytest.raises(ThunderTypeError, match="forward trace"):
        get_saved_for_backward_tensors(thunder.last_backward_traces(compiled)[-1])


def test_wrong_number_of_cotangents():
    def f(x):
        return vjp(lambda x: (x.sin(), x.cos()))((x,), (x,))

    with pytest.raises(ThunderValueError, match="2 expected"):
        traced(f, torch.rand(3))


def test_outside_of_a_trace():
    with pytest.raises(ThunderTypeError, match="trace"):
        vjp(torch.sin)((torch.rand(3),), torch.rand(3))


# Who makes and reads what


def test_producers_and_consumers(chain):
    made, read = producers_and_consumers(chain)
    mul, sin, add = (b for b in chain.bound_symbols if b.sym.name in ("mul", "sin", "add"))
    a = mul.args[0]
    assert made[mul.output] is mul
    assert made[sin.output] is sin
    assert a not in made
    assert made.get(a) is None
    assert [b for b in read[a] if b in (mul, add)] == [mul, add]
    assert read[mul.output] == [sin]
    assert read.get_by_name(sin.output.name) == [add]
    position = producers(chain, _map_to_numbers=True)[sin.output]
    assert chain.bound_symbols[position] is sin
    assert consumers([mul, sin], _map_to_numbers=True)[mul.output] == [1]


def test_find_producer_symbols(chain):
    mul, sin, add = (b for b in chain.bound_symbols if b.sym.name in ("mul", "sin", "add"))
    found = find_producer_symbols(chain, [add.output], [mul.output])
    assert [b for b in found if b.sym.name != "unpack_trivial"] == [sin, add]
    assert find_producer_symbols(chain, [mul.output], [mul.output]) == ()


def test_proxy_dict_lists(chain):
    a = chain.bound_symbols[0].flat_proxy_args[0]
    values = ProxyDict()
    values.append(a, 1)
    values.append(a, 2)
    values.remove(a, 1)
    assert values[a] == [2]
    assert len(values) == 1
    assert a in values
    assert list(values) == [a.name]
    with pytest.raises(ValueError):
        values.remove(a, 7)


def test_dce_bsyms(chain):
    sin = next(b for b in chain.bound_symbols if b.sym.name == "sin")
    nodes = [b for b in chain.bound_symbols if b.sym.name in ("mul", "sin", "add")]
    assert [b.sym.name for b in dce_bsyms(nodes, {"out": (sin.output, 1)})] == ["mul", "sin"]


# Patterns


def named(*wanted):
    return lambda bsym, previously_matched, match_ctx: (bsym.sym.name in wanted, {})


def matched(pattern, trace, **options):
    return [[b.sym.name for _, b in match] for match in pattern(trace, **options)]


def test_pattern_of_a_chain():
    def fn(x, w):
        h = torch.nn.functional.gelu(torch.nn.functional.linear(x, w))
        return torch.nn.functional.gelu(torch.nn.functional.linear(h, w)).sum()

    trace = traced(fn, torch.rand(2, 2), torch.rand(2, 2))
    pattern = Pattern().match(named("linear")).match(named("gelu"))
    assert matched(pattern, trace) == [["linear", "gelu"]] * 2
    positions = [n for n, b in enumerate(trace.bound_symbols) if b.sym.name in ("linear", "gelu")]
    assert [n for match in pattern(trace) for n, _ in match] == positions
    assert matched(pattern, trace, restricted_indices=positions[2:]) == [["linear", "gelu"]]
    assert matched(pattern, trace, restricted_indices=positions[:1]) == []


def test_pattern_with_repeated_and_optional_steps():
    trace = traced(lambda x: torch.cos(torch.sin(torch.sin(torch.sin(x)))), torch.rand(3))
    assert matched(Pattern().match(named("sin"), max_times=-1), trace) == [["sin"] * 3]
    assert matched(Pattern().match(named("sin"), max_times=2), trace) == [["sin"] * 2, ["sin"]]
    optional = Pattern().match(named("sin"), max_times=-1).match(named("tanh"), min_times=0).match(named("cos"))
    assert matched(optional, trace) == [["sin", "sin", "sin", "cos"]]
    assert matched(Pattern().match(named("sin"), min_times=4, max_times=-1), trace) == []


def test_pattern_reads_what_was_matched():
    def doubles(bsym, previously_matched, match_ctx):
        return bsym.sym.name == "sin", {"made": bsym.output}

    def reads_it(bsym, previously_matched, match_ctx):
        assert [b.sym.name for _, b in previously_matched] == ["sin"]
        return bsym.sym.name == "mul" and bind_names(bsym).input is match_ctx["made"], {}

    def fn(x):
        a, b = torch.sin(x), torch.sin(x + 1)
        return torch.mul(b, 2), torch.mul(a, 3)

    trace = traced(fn, torch.rand(3))
    found = Pattern().match(doubles).match(reads_it)(trace)
    assert [match[1][1].args[1] for match in found] == [3, 2]


def test_pattern_takes_only_what_can_be_moved_together():
    def through(x):
        a = torch.sin(x)
        return a * torch.cos(a + 1)  # the addition depends on the one and is needed by the other

    def beside(x):
        a = torch.sin(x)
        b = a + 1
        return torch.cos(a), b

    pattern = Pattern().match(named("sin")).match(named("cos"))
    assert matched(pattern, traced(through, torch.rand(3))) == []
    assert matched(pattern, traced(beside, torch.rand(3))) == [["sin", "cos"]]


def test_pattern_window():
    def fn(x):
        a, b = torch.sin(x), x
        for n in range(6):
            b = b + n
        return torch.cos(a), b

    trace, pattern = traced(fn, torch.rand(3)), Pattern().match(named("sin")).match(named("cos"))
    assert matched(pattern, trace) == []
    assert matched(pattern, trace, window=7) == [["sin", "cos"]]


def test_pattern_errors():
    with pytest.raises(NotImplementedError, match="first condition"):
        Pattern().match(named("sin"), min_times=0)
    with pytest.raises(ValueError, match="nothing to match"):
        Pattern().match(named("sin"), min_times=2)
    assert Pattern()(traced(torch.sin, torch.rand(3))) == []


def test_bind_names():
    def fn(x):
        return torch.softmax(x, -1), torch.linalg.qr(x, mode="complete")[0], x.add(x, alpha=2)

    nodes = {b.sym.name: b for b in traced(fn, torch.rand(2, 2)).bound_symbols}
    softmax, qr, add = nodes["softmax"], nodes["linalg_qr"], nodes["add"]
    assert bind_names(softmax).dim == -1
    assert bind_names(softmax).dtype is None
    assert bind_names(qr).mode == "complete"
    assert bind_names(add).alpha == 2
    assert bind_names(add).other is add.args[1]


# Gradients of compiled callables


def test_grad_of_a_compiled_function():
    def fn(x, y, n):
        return (x * y).sin().sum(), y.detach() * n

    x, y, z = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True), torch.rand(3)
    jitted = thunder.jit(fn)
    gradients = grad(jitted)
    want = torch.autograd.grad((x * y).sin().sum(), (x, y))
    torch.testing.assert_close(gradients(x, y, n=2), list(want))
    torch.testing.assert_close(gradients(x, z, 2), [(x * z).cos().detach() * z])
    assert thunder.cache_misses(gradients) == 2
    assert thunder.last_backward_traces(gradients)
    assert x.grad is None


def test_grad_of_a_compiled_module():
    module = torch.nn.Linear(3, 2)
    x = torch.rand(4, 3)
    found = thunder.grad(thunder.jit(module))(x)
    torch.testing.assert_close(found, list(torch.autograd.grad(module(x).sum(), module.parameters())))


def test_grad_errors():
    with pytest.raises(TypeError, match=r"thunder\.jit"):
        grad(torch.sin)
    with pytest.raises(RuntimeError):
        grad(thunder.jit(torch.sin))(torch.rand(3))


def test_canonical_names():
    x = torch.rand(3)
    programs = (lambda a: (a.sin() + a).cos(), lambda b: (b.sin() + b).cos())
    one, other = (traced(f, x).bound_symbols[1:-1] for f in programs)
    assert one[0].flat_proxy_args[0].name != other[0].flat_proxy_args[0].name
    canonical = canonicalize_proxies(one)
    assert [str(b) for b in canonical] == [str(b) for b in canonicalize_proxies(other)]
    assert order_proxies(canonical) == {"p0": 0, "p1": 1, "p2": 2, "p3": 3}
    assert [b.origin for b in canonical] == [b.origin for b in one]


def test_flatten_func():
    def f(a, *, b):
        return a[0] - b["c"]

    flat_f, flat, spec = flatten_func(f, ((5, 1),), {"b": {"c": 3}})
    assert flat == [5, 1, 3]
    assert flat_f(*flat) == 2
    assert flat_f.__name__ == "f"
    assert spec.num_leaves == 3


@pytest.mark.parametrize("enabled", [False, True])
def test_marks_for_profilers(monkeypatch, enabled):
    monkeypatch.setenv("THUNDER_ANNOTATE_TRACES", "1" if enabled else "0")

    @annotate_for_profile("a function of mine")
    def f(x):
        with annotate_for_profile("a block of mine"):
            return x.sin()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        f(torch.rand(3))
    found = {e.name for e in profile.events()}
    assert ({"a function of mine", "a block of mine"} <= found) == enabled
    assert profiling_enabled() == enabled
    with pytest.raises(ValueError, match="one line"), add_markers("two\nlines"):
        pass
