"""Side effects as in eager, compiled functions inside others, and threads."""

from __future__ import annotations

import collections
import threading
from typing import Any

import torch

import thunder
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_iter
from thunder.tests.integration.test_functions import Batch, assert_same, check, tensors

# Side effects


def test_list_argument_is_changed_as_in_eager():
    (x,) = tensors((3,))

    def f(items, a):
        items.append(a + 1)
        items[0] = a * 2
        items.extend([a, 3])
        items.insert(0, "first")
        return a.sum()

    compiled = thunder.jit(f)
    for _ in range(2):
        mine, theirs = [0, 1], [0, 1]
        assert_same(compiled(mine, x), f(theirs, x))
        assert_same(mine, theirs)


def test_list_argument_is_shortened():
    (x,) = tensors((3,))

    def f(items, a):
        last = items.pop()
        items.reverse()
        del items[0]
        return last + a

    compiled = thunder.jit(f)
    for _ in range(2):
        mine, theirs = [1, 2, 3, x], [1, 2, 3, x]
        assert_same(compiled(mine, x), f(theirs, x))
        assert_same(mine, theirs)


def test_dict_argument_is_changed_as_in_eager():
    (x,) = tensors((3,))

    def f(d, a):
        d["new"] = a + 1
        d["old"] = d["old"] * 2
        d.update(extra=a, number=3)
        del d["gone"]
        d.setdefault("default", []).append(a - 1)
        return a * d.pop("popped")

    compiled = thunder.jit(f)
    for _ in range(2):
        mine, theirs = ({"old": x, "gone": 1, "popped": 2.0} for _ in range(2))
        assert_same(compiled(mine, x), f(theirs, x))
        assert_same(mine, theirs)


class Box:
    def __init__(self, value: Any):
        self.value = value
        self.count = 0
        self.items: list[Any] = []


def test_object_argument_is_changed_as_in_eager():
    (x,) = tensors((3,))

    def f(box, a):
        box.value = box.value + a
        box.count += 1
        box.items.append(a * box.count)
        box.fresh = "new"
        return a - 1

    compiled = thunder.jit(f)
    mine, theirs = Box(x), Box(x)
    for _ in range(3):
        assert_same(compiled(mine, x), f(theirs, x))
        assert_same(vars(mine), vars(theirs))


def test_global_and_closure_state_is_changed_as_in_eager():
    (x,) = tensors((3,))
    seen: list[Any] = []
    count = 0

    def f(a):
        nonlocal count
        count += 1
        seen.append(a + count)
        return a * count

    compiled = thunder.jit(f)
    for n in range(1, 4):
        assert_same(compiled(x), x * n)
        assert count == n
    assert_same(seen, [x + 1, x + 2, x + 3])


def test_set_argument_is_changed_as_in_eager():
    (x,) = tensors((3,))

    def f(names, a):
        names.add("new")
        return a * len(names)

    compiled = thunder.jit(f)
    mine, theirs = {"a"}, {"a"}
    assert_same(compiled(mine, x), f(theirs, x))
    assert mine == theirs


def test_dataclass_and_nested_arguments_are_changed_as_in_eager():
    (x,) = tensors((3,))

    def f(tree, a):
        tree["batch"].inputs = a * 2
        tree["list"][0].append(a)
        tree["list"][1]["k"] = (a + 1, None)
        return a

    compiled = thunder.jit(f)
    for _ in range(2):
        mine, theirs = ({"batch": Batch(x), "list": [[], {}]} for _ in range(2))
        assert_same(compiled(mine, x), f(theirs, x))
        assert_same(mine, theirs)
        assert not any(isinstance(v, Proxy) for v in tree_iter(mine))


def test_side_effects_carry_gradients():
    (x,) = tensors((3,))
    w = torch.ones(3, requires_grad=True)
    kept: list[torch.Tensor] = []

    def f(a, w):
        kept.append(a * w)
        return (a + w).sum()

    loss = thunder.jit(f)(x, w)
    (loss + kept[0].sum()).backward()
    assert_same(w.grad, x + 1)


# Compiled functions together


def test_compiled_function_calls_compiled_function():
    x, y = tensors((3,), (3,))
    inner = thunder.jit(lambda a, b: a * b + 1)

    def f(a, b):
        return inner(a, b).sin() + inner(b, b)

    outer = thunder.jit(f)
    assert_same(outer(x, y), (x * y + 1).sin() + (y * y + 1))
    assert thunder.cache_misses(outer) == 1
    assert len(thunder.last_traces(outer)) > 1
    assert_same(inner(x, y), x * y + 1)


def test_compiled_function_of_a_compiled_function():
    (x,) = tensors((3,))
    once = thunder.jit(lambda a: a + 1)
    assert_same(thunder.jit(once)(x), x + 1)


def test_eager_graph_around_and_between():
    (x,) = tensors((4,))
    first, second = thunder.jit(lambda a: a.sin() * 2), thunder.jit(lambda a: (a**2).sum())

    def run(f, g):
        a = x.clone().requires_grad_()
        hidden = f(a * 3).exp()
        g(hidden + a).backward()
        return a.grad

    expected = run(lambda a: a.sin() * 2, lambda a: (a**2).sum())
    torch.testing.assert_close(run(first, second), expected)


def test_recursion():
    (x,) = tensors((3,))

    def power(a, n):
        return a if n == 0 else a * power(a, n - 1)

    check(power, x, 3)


def test_threads_share_a_compiled_function():
    fn = thunder.jit(lambda a, b: (a @ b).relu().sum(0))
    inputs = [[torch.randn(n, 3), torch.randn(3, 4).requires_grad_()] for n in (2, 3, 2, 4)]
    expected = [(a @ b).relu().sum(0) for a, b in inputs]
    results: dict[int, list[Any]] = collections.defaultdict(list)
    failures: list[BaseException] = []
    start = threading.Barrier(len(inputs))

    def work(n: int) -> None:
        try:
            start.wait()
            for _ in range(5):
                results[n].append(fn(*inputs[n]))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    for n, e in enumerate(expected):
        for got in results[n]:
            torch.testing.assert_close(got, e)


def test_call_inside_a_thread_pool_with_gradients():
    fn = thunder.jit(lambda a, w: (a * w).sum())
    grads: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        w = torch.full((3,), float(n), requires_grad=True)
        fn(torch.arange(3.0) + n, w).backward()
        grads[n] = w.grad

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in range(4):
        assert_same(grads[n], torch.arange(3.0) + n)
