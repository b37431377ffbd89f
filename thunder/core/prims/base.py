"""How primitives are declared: `PrimIDs` names them, `make_prim` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from thunder.core.symbol import PURE, Symbol, Traits, default_python_printer


class _PrimIDs:
    """The namespace of primitive ids; families add theirs with `register_ids`."""

    def __init__(self) -> None:
        self._members: dict[str, Any] = {}

    def register_ids(self, *names: str) -> None:
        for name in names:
            if name in self._members:
                raise AttributeError(f"PrimIDs.{name} is registered twice")
            self._members[name] = PrimID(name)

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("_members", {})
        if name not in members:
            raise AttributeError(f"no primitive is called {name}")
        return members[name]

    def __iter__(self) -> Any:
        return iter(self._members.values())

    def __contains__(self, x: object) -> bool:
        return isinstance(x, PrimID)


class PrimID:
    """The id of a primitive; compared by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"PrimIDs.{self.name}"

    def __reduce__(self) -> Any:
        return (_lookup_id, (self.name,))


PrimIDs = _PrimIDs()


def _lookup_id(name: str) -> PrimID:
    return getattr(PrimIDs, name)


class ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND(Enum):
    """How the result dtype of an elementwise primitive follows from its inputs."""

    SAME = 1
    ALWAYS_BOOL = 2
    INT_FOR_NUMBER = 3
    COMPLEX_TO_FLOAT = 4


_prims_by_id: dict[Any, Symbol] = {}


def make_prim(
    id: Any,
    name: str,
    *,
    meta: Callable | None,
    python_printer: Callable = default_python_printer,
    python_impl: Callable | None = None,
    tags: Sequence[Any] | None = None,
    traits: Traits = PURE,
    torch_fn: Callable | None = None,
    method_name: str | None = None,
    _bind_postprocess: Callable | None = None,
) -> Symbol:
    """A primitive symbol.

    Args:
        id: a member of PrimIDs; a string registers it.
        meta: function on proxies that returns fresh proxies.
        python_impl: the function that runs it in generated code, for primitives that no executor has to claim.
        torch_fn: the same computation on torch tensors; the torch executor runs it and its gradient comes from there.
    """
    if isinstance(id, str):
        PrimIDs.register_ids(id)
        id = getattr(PrimIDs, id)
    sym = Symbol(
        name=name,
        meta=meta,
        id=id,
        is_prim=True,
        tags=tags,
        python_printer=python_printer,
        python_impl=python_impl,
        module="prims",
        traits=traits,
        torch_fn=torch_fn,
    )
    _prims_by_id[id] = sym
    return sym


def prim_by_id(id: Any) -> Symbol:
    """The primitive with this id."""
    return _prims_by_id[id]
