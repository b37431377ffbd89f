"""A small numpy: shows how a language is added. Functions of tensors with numpy's names and rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder import clang
from thunder.core import langctxs
from thunder.core.dims import numel
from thunder.core.eager import run_on_tensors
from thunder.core.errors import UnsupportedOpError
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.tracing import get_tracectx
from thunder.numpy.langctx import register_method

__all__ = ["NumpySymbol", "add", "compute_len", "npsymbol", "size"]


class NumpySymbol(Symbol):
    """An operation of numpy. On real tensors it just runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if get_tracectx() is None:
            return run_on_tensors(self.meta, args, kwargs)  # type: ignore[arg-type]
        return super().__call__(*args, **kwargs)


class npsymbol:
    """Decorator: the function, on proxies, becomes an operation of numpy.

    Args:
        method_name: the method that it is, too.
    """

    def __init__(self, *, method_name: str | None = None):
        self.method_name = method_name

    def __call__(self, fn: Callable) -> NumpySymbol:
        sym = NumpySymbol(
            name=fn.__name__,
            meta=langctxs.langctx(langctxs.Languages.NUMPY)(fn),
            id=f"numpy.{fn.__name__}",
            module="lnp",
        )
        if self.method_name is not None:
            register_method(self.method_name, sym)
        return sym


def compute_len(a: TensorProxy, /) -> int:
    """The size of the first dim."""
    return len(a)


def size(a: TensorProxy, /) -> int:
    """The number of elements."""
    return numel(a.shape)


@npsymbol(method_name="add")
def add(a: Any, b: Any, /, *, where: Any = None) -> Any:
    """a + b, broadcast and promoted; `where` is not supported.

    Raises: UnsupportedOpError if `where` is given.
    """
    if where is not None:
        raise UnsupportedOpError("numpy.add takes no `where`")
    return clang.add(a, b)


register_method("size", size)
register_method("len", compute_len)
