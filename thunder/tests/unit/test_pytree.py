"""thunder.core.pytree: what is a node, what is a leaf, and that both directions fit together."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

import pytest
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from thunder.core import devices, dtypes
from thunder.core.baseutils import ProxyInterface
from thunder.core.errors import ThunderTypeError
from thunder.core.pytree import (
    register_pytree_node_dataclass,
    tree_flatten,
    tree_flatten_with_dataclass,
    tree_iter,
    tree_map,
    tree_unflatten,
)

Point = collections.namedtuple("Point", ["x", "y"])


@dataclass(frozen=True)
class Frozen:
    a: object
    b: object = None


@dataclass
class WithInit:
    a: object
    computed: int = field(init=False)

    def __post_init__(self):
        self.computed = 7


@dataclass
class Unregistered:
    a: object


@pytest.mark.parametrize(
    "tree,leaves",
    [
        ((1, [2, {"b": 3, "a": 4}]), [1, 2, 4, 3]),
        ((None, (), [None]), [None, None]),
        (Point(1, [2]), [1, 2]),
        (collections.OrderedDict(b=1, a=2), [1, 2]),
        (collections.deque([1, 2]), [1, 2]),
        (slice(1, None, 2), [1, None, 2]),
        (torch.Size([2, 3]), [2, 3]),
        (immutable_list([1, immutable_dict(b=2, a=3)]), [1, 2, 3]),
        (torch.return_types.max([4, 5]), [4, 5]),
        ({}, []),
    ],
)
def test_nodes_round_trip(tree, leaves):
    flat, spec = tree_flatten(tree)
    assert flat == list(tree_iter(tree)) == leaves
    rebuilt = tree_unflatten(flat, spec)
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)


def test_dict_keeps_insertion_order():
    tree = {"b": 1, "a": 2}
    assert list(tree_map(lambda x: x, tree)) == ["b", "a"]


@pytest.mark.parametrize(
    "leaf",
    [
        *(None, 1, 2.5, True, 3j, "text", ..., range(3), float, len),
        *(torch.ones(2), torch.float32, torch.device("cpu"), torch.strided, torch.nn.Linear(1, 1)),
        *(devices.cpu, dtypes.float32, Point),
    ],

)
def test_leaf_at_the_root(leaf):
    flat, spec = tree_flatten(leaf)
    assert len(flat) == 1
    assert flat[0] is leaf
    assert tree_unflatten(flat, spec) is leaf


def test_proxy_is_a_leaf():
    class Proxy(ProxyInterface):
        pass

    proxy = Proxy()
    assert tree_flatten(proxy)[0] == [proxy]


@pytest.mark.parametrize("tree", [{1, 2}, frozenset(), iter([1]), Unregistered(1), object()])
def test_unknown_container_at_the_root_is_rejected(tree):
    with pytest.raises(ThunderTypeError, match="cannot flatten an object of type"):
        tree_flatten(tree)


def test_unknown_object_inside_is_a_leaf():
    tree = [Unregistered(1)]
    assert tree_flatten(tree)[0] == tree


def test_wrong_number_of_leaves():
    _, spec = tree_flatten((1, 2))
    with pytest.raises(ValueError):
        tree_unflatten([1], spec)


def test_tree_map_over_several_trees():
    assert tree_map(lambda a, b: (a, b), {"x": [1, None]}, {"x": [3, 4]}) == {"x": [(1, 3), (None, 4)]}
    with pytest.raises(ValueError):
        tree_map(lambda a, b: a, [1, 2], [1])


def test_size_of_other_values_becomes_a_tuple():
    mapped = tree_map(str, torch.Size([2, 3]))
    assert type(mapped) is tuple
    assert mapped == ("2", "3")


def test_registered_dataclass():
    assert register_pytree_node_dataclass(Frozen) is Frozen
    register_pytree_node_dataclass(Frozen)
    flat, spec = tree_flatten(Frozen(1, [2, 3]))
    assert flat == [1, 2, 3]
    assert tree_unflatten([4, 5, 6], spec) == Frozen(4, [5, 6])


def test_only_dataclasses_can_be_registered():
    for x in (int, Frozen(1), None):
        with pytest.raises(ThunderTypeError, match="expected a dataclass"):
            register_pytree_node_dataclass(x)


def test_flatten_with_dataclass():
    @dataclass
    class Outer:
        inner: Inner
        other: object = None

    @dataclass
    class Inner:
        value: int

    tree = [Outer(Inner(1)), Outer]
    flat, spec = tree_flatten_with_dataclass(tree)
    assert flat == [1, None, Outer]
    assert tree_unflatten([2, 3, 4], spec) == [Outer(Inner(2), 3), 4]
    with pytest.raises(ThunderTypeError):
        tree_flatten_with_dataclass({1})


def test_rebuilding_a_dataclass_runs_no_code_of_its_own():
    original = WithInit(1)
    original.computed = 9
    flat, spec = tree_flatten_with_dataclass(original)
    assert flat == [1, 9]
    assert tree_unflatten(flat, spec) == original
    del original.computed
    flat, spec = tree_flatten(original)
    assert flat == [1]
    assert not hasattr(tree_unflatten(flat, spec), "computed")


def test_dataclass_that_is_a_proxy_stays_a_leaf():
    @dataclass(frozen=True)
    class DataProxy(ProxyInterface):
        name: str

    proxy = DataProxy("t0")
    assert tree_flatten_with_dataclass([proxy])[0] == [proxy]


def test_namespaces_are_separate():
    register_pytree_node_dataclass(Frozen)
    assert tree_flatten([Frozen(1)], namespace="other")[0] == [Frozen(1)]
