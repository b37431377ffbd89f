"""Small helpers with no knowledge of the IR: checks, singletons, tags, names."""

from __future__ import annotations

import collections
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from thunder.core.errors import ThunderTypeError, ThunderValueError

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)

default_dataclass_params: Mapping[str, bool] = MappingProxyType({"frozen": True})
"""Keywords for `dataclasses.dataclass` that symbols and executors' own records share."""


class ProxyInterface:
    """Marks a stand-in for a value of the traced program. Such an object is always a leaf of a pytree."""

    __slots__ = ()


class NumberProxyInterface(ProxyInterface):
    """Marks a stand-in for a Python number; has `python_type`."""

    __slots__ = ()


class TensorProxyInterface(ProxyInterface):
    """Marks a stand-in for a tensor; has `dtype` (strong) and `true_dtype`."""

    __slots__ = ()


def check(cond: bool, message: Callable[[], str], exception_type: type[Exception] = RuntimeError) -> None:
    """Raises `exception_type` with the text of `message()` unless `cond`. The text is built only on failure."""
    if not cond:
        raise exception_type(message())


def check_type(x: Any, types: type | Sequence[type]) -> None:
    """Raises ThunderValueError unless `x` is an instance of `types`."""
    allowed = (types,) if isinstance(types, type) else tuple(types)
    if not isinstance(x, allowed):
        names = " or ".join(cls.__name__ for cls in allowed)
        raise ThunderValueError(f"expected {names}, but got {x!r}, which is of type {type(x).__name__}")


def check_types(xs: Iterable[Any], types: type | Sequence[type]) -> None:
    """Raises ThunderValueError unless each of `xs` is an instance of `types`."""
    for x in xs:
        check_type(x, types)


def check_valid_length(length: Any) -> None:
    """Raises unless `length` can be the length of a dimension: an integer from 0, or a number proxy.

    Raises: ThunderTypeError if it is no integer, RuntimeError (as torch) if it is negative.
    """
    if isinstance(length, NumberProxyInterface):
        return
    if isinstance(length, bool) or not isinstance(length, int):
        raise ThunderTypeError(f"a length must be an integer, but got {length!r} of type {type(length).__name__}")
    check(length >= 0, lambda: f"a length must not be negative, but got {length}")


def check_valid_shape(shape: Any) -> None:
    """Raises unless `shape` is a tuple or list of valid lengths; see `check_valid_length`."""
    if not isinstance(shape, (tuple, list)):
        raise ThunderTypeError(f"a shape must be a tuple or list, but got {shape!r} of type {type(shape).__name__}")
    for length in shape:
        check_valid_length(length)


def is_collection(x: Any) -> bool:
    """Whether `x` is a builtin container (or a subclass of one) that holds other values; strings are not."""
    return isinstance(x, (tuple, list, dict, set, frozenset, collections.deque))


def sequencify(x: Any) -> Sequence[Any]:
    """`x` itself if it is a sequence other than a string or bytes, else `(x,)`; None gives `(None,)`."""
    if isinstance(x, Sequence) and not isinstance(x, (str, bytes)):
        return x
    return (x,)


def run_once(f: Callable[P, T]) -> Callable[P, T]:
    """`f`, but its body runs only at the first call that returns; later calls give that result again."""
    results: list[T] = []

    @functools.wraps(f)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if not results:
            results.append(f(*args, **kwargs))
        return results[0]

    return wrapper


def extract_callable_name(fn: Callable[..., Any] | CodeType) -> str:
    """A short name for `fn`: its own if it has one, of the wrapped function for a partial, else of its class."""
    if isinstance(fn, CodeType):
        return fn.co_name
    if isinstance(fn, functools.partial):
        return extract_callable_name(fn.func)
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def nearest_match(name: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `name` is most likely a misspelling of, or None. Case is ignored.

    >>> nearest_match("fusion_typ", ["cache", "fusion_type"])
    'fusion_type'
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """'; did you mean "<nearest>"?' to append to a message, or '' if nothing is near."""
    nearest = nearest_match(name, choices)
    return "" if nearest is None else f'; did you mean "{nearest}"?'


class Singleton(type):
    """Metaclass of classes with one instance: every call of the class gives the first one made."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._instance: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls._instance is None:
            cls._instance = super().__call__(*args, **kwargs)
        return cls._instance


class FrozenDict(Mapping[K, V_co]):
    """An immutable mapping in insertion order, hashable if its values are."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V_co] | Iterable[tuple[K, V_co]] = ()) -> None:
        self._items: dict[K, V_co] = dict(items)

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"


Tag = TypeVar("Tag", bound="TagBase")


class TagBase:
    """Base of an open enumeration: like `enum.Enum`, but anyone may add members with `register_tag`.

    A subclass declares its first members as annotations without a value. Members are singletons, hashable, ordered by
    registration, and can be pickled and copied.

    >>> class Colour(TagBase):
    ...     RED: ClassVar[Colour]
    >>> Colour.register_tag("BLUE") is Colour.BLUE
    True
    >>> Colour.members()
    (Colour.RED, Colour.BLUE)
    """

    __slots__ = ("name", "order")
    name: str
    order: int
    _members: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        cls._members = {}
        for name in inspect.get_annotations(cls):
            if not name.startswith("_") and name not in cls.__dict__:
                cls.register_tag(name)

    def __new__(cls, *args: Any, **kwargs: Any) -> TagBase:
        raise ThunderTypeError(f'use {cls.__name__}.register_tag("NAME") to make a new tag')

    @classmethod
    def register_tag(cls: type[Tag], name: str) -> Tag:
        """Adds a member `name` to this class and returns it.

        Raises: AttributeError if the class already has an attribute of that name, ThunderValueError if `name` is not
            an identifier.
        """
        check(name.isidentifier(), lambda: f"a tag's name must be an identifier, but got {name!r}", ThunderValueError)
        check(not hasattr(cls, name), lambda: f"{cls.__name__} already has {name}", AttributeError)
        tag = object.__new__(cls)
        tag.name = name
        tag.order = len(cls._members)
        cls._members[name] = tag
        setattr(cls, name, tag)
        return tag

    @classmethod
    def members(cls: type[Tag]) -> tuple[Tag, ...]:
        """All members, in the order of their registration."""
        return tuple(cls._members.values())

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.order < other.order

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)
