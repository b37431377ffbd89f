"""Flattening of nested containers, on optree.

The containers optree knows (tuple, list, dict, OrderedDict, defaultdict, deque, namedtuples, torch.return_types) are
nodes, and so are slice, torch.Size, torch.fx's immutable_list and immutable_dict, and registered dataclasses. None is a
leaf, as every other object.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import optree
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

from thunder.core.baseutils import ProxyInterface
from thunder.core.devices import Device
from thunder.core.dtypes import dtype
from thunder.core.errors import ThunderTypeError

OPTREE_NAMESPACE: Final = "thunder"

PyTreeSpec = optree.PyTreeSpec
T = TypeVar("T")

_COMMON_LEAVES: Final = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None)})
_KNOWN_LEAVES: Final = (
    type(None),
    numbers.Number,
    str,
    bytes,
    type(Ellipsis),
    range,
    enum.Enum,
    ProxyInterface,
    dtype,
    Device,
    np.ndarray,
    np.generic,
    np.dtype,
    torch.Tensor,
    torch.Generator,
)


def tree_flatten(args: Any, namespace: str = OPTREE_NAMESPACE) -> tuple[list[Any], PyTreeSpec]:
    """The leaves of `args`, and what `tree_unflatten` needs to rebuild it.

    Leaves come in the order of the containers; those of a dict in the order of its sorted keys.

    Raises: ThunderTypeError if `args` itself is a leaf of a class not known to be one, such as a set or an unregistered
        dataclass: that is a container whose contents would be overlooked.
    """
    leaves, spec = optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)
    if len(leaves) == 1 and leaves[0] is args and type(args) not in _COMMON_LEAVES:
        _check_root(args)
    return leaves, spec


def _check_root(x: Any) -> None:
    if isinstance(x, _KNOWN_LEAVES) or type(x).__module__.partition(".")[0] == "torch" or callable(x):
        return
    raise ThunderTypeError(
        f"cannot flatten an object of type {type(x).__name__}: it is not a known container or leaf. "
        "A dataclass can be made a container with register_pytree_node_dataclass; proxies derive from ProxyInterface"
    )


def tree_unflatten(values: Iterable[Any], spec: PyTreeSpec) -> Any:
    """The structure that `spec` describes, with `values` as its leaves. Raises ValueError if their number is wrong."""
    return optree.tree_unflatten(spec, values)


tree_map: Callable[..., Any] = functools.partial(optree.tree_map, none_is_leaf=True, namespace=OPTREE_NAMESPACE)
"""`tree_map(fn, tree, *rests)`: the structure of `tree` with `fn` applied to its leaves."""

tree_iter: Callable[..., Iterable[Any]] = functools.partial(
    optree.tree_iter, none_is_leaf=True, namespace=OPTREE_NAMESPACE
)
"""`tree_iter(tree)`: an iterator over the leaves of `tree`."""


def register_pytree_node_dataclass(cls: type[T]) -> type[T]:
    """Makes instances of the dataclass `cls` nodes, whose children are their fields. Returns `cls`; may be repeated.

    Rebuilding runs neither `__init__` nor `__post_init__`, and carries over fields only. A field without a value stays
    without one.

    Raises: ThunderTypeError if `cls` is not a dataclass.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ThunderTypeError(f"expected a dataclass, but got {cls!r}")
    _register_dataclass(cls)
    return cls


@functools.cache
def _register_dataclass(cls: type[Any]) -> None:
    names = tuple(field.name for field in dataclasses.fields(cls))

    def flatten(x: Any) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]]:
        present = tuple(name for name in names if hasattr(x, name))
        return [getattr(x, name) for name in present], present, present

    def unflatten(present: Any, children: Iterable[Any]) -> Any:
        x = object.__new__(cls)
        for name, child in zip(present, children, strict=True):
            object.__setattr__(x, name, child)
        return x

    optree.register_pytree_node(cls, flatten, unflatten, namespace=OPTREE_NAMESPACE)


def tree_flatten_with_dataclass(tree: Any) -> tuple[list[Any], PyTreeSpec]:
    """As `tree_flatten`, but every dataclass met is registered first, so its fields are leaves and not itself.

    Proxies stay leaves even if their class is a dataclass.
    """
    while True:
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=OPTREE_NAMESPACE)
        new = {type(leaf) for leaf in leaves if _is_open_dataclass(leaf)}
        if not new:
            break
        for cls in new:
            register_pytree_node_dataclass(cls)
    if len(leaves) == 1 and leaves[0] is tree and type(tree) not in _COMMON_LEAVES:
        _check_root(tree)
    return leaves, spec


def _is_open_dataclass(x: Any) -> bool:
    return hasattr(type(x), "__dataclass_fields__") and not isinstance(x, _KNOWN_LEAVES)


def _flatten_slice(x: slice) -> tuple[tuple[Any, Any, Any], None, tuple[str, ...]]:
    return (x.start, x.stop, x.step), None, ("start", "stop", "step")


def _unflatten_slice(_: None, children: Sequence[Any]) -> slice:
    return slice(*children)


def _flatten_sequence(x: Sequence[Any]) -> tuple[tuple[Any, ...], None]:
    return tuple(x), None


def _unflatten_size(_: None, children: Sequence[Any]) -> tuple[Any, ...]:
    # A torch.Size holds integers only; a mapped one may hold proxies.
    return torch.Size(children) if all(type(child) is int for child in children) else tuple(children)


def _unflatten_immutable_list(_: None, children: Sequence[Any]) -> Any:
    return immutable_list(children)


def _flatten_immutable_dict(x: dict[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    keys = tuple(x)
    return tuple(x.values()), keys, keys


def _unflatten_immutable_dict(keys: tuple[Any, ...], children: Sequence[Any]) -> Any:
    return immutable_dict(zip(keys, children, strict=True))


def _register_builtin_nodes() -> None:
    register: Callable[..., Any] = functools.partial(optree.register_pytree_node, namespace=OPTREE_NAMESPACE)
    register(slice, _flatten_slice, _unflatten_slice)
    register(torch.Size, _flatten_sequence, _unflatten_size)
    register(immutable_list, _flatten_sequence, _unflatten_immutable_list)
    register(immutable_dict, _flatten_immutable_dict, _unflatten_immutable_dict)


_register_builtin_nodes()


def flatten_func(
    func: Callable, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable, list[Any], PyTreeSpec]:
    """`func` as a function of the leaves of one call's (args, kwargs), these leaves, and their structure.

    The function takes as many positional arguments as there are leaves, and gives what `func` gives.
    """
    flat, spec = tree_flatten((tuple(args), dict(kwargs)))

    @functools.wraps(func)
    def flat_func(*leaves: Any) -> Any:
        inner_args, inner_kwargs = tree_unflatten(list(leaves), spec)
        return func(*inner_args, **inner_kwargs)

    return flat_func, flat, spec
