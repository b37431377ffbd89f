"""What the functions of clang share: the decorator, broadcasting, conversion to a dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from thunder.clang.langctx import clangctx
from thunder.core import dtypes, prims
from thunder.core.dims import compute_broadcast_shape, extract_shape_from_varargs, is_cpu_scalar_tensor, same_shape
from thunder.core.eager import has_tensors, run_on_tensors
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND, const_as, elementwise_type_promotion, is_numberlike
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.tracing import is_tracing

TensorLike = TensorProxy
Kind = ELEMENTWISE_TYPE_PROMOTION_KIND

functions: list[Callable] = []
"""All functions of clang."""


class clangop:
    """Decorator of clang's functions. They leave no node of their own in a trace; on real tensors they just run.

    Args:
        method_name: the method of the clang language that the function is.
    """

    def __init__(self, *, method_name: str | None = None):
        self.method_name = method_name

    def __call__(self, fn: Callable) -> Callable:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not is_tracing() and (has_tensors((args, kwargs)) or fn.__name__ in _CREATES):
                return run_on_tensors(fn, args, kwargs)
            return fn(*args, **kwargs)

        if self.method_name is not None:
            clangctx.register_method(self.method_name, wrapper)
        functions.append(wrapper)
        return wrapper


_CREATES = frozenset({"arange", "full", "empty", "uniform", "uniform_philox", "tensor_from_sequence"})


def maybe_convert_to_dtype(a: Any, dtype: Any, *, enforce_safe_casting: bool = False) -> Any:
    """`a` in `dtype`: itself where it is already, numbers as numbers of the dtype's Python type, None as None."""
    if a is None:
        return None
    if is_numberlike(a):
        return const_as(a, dtype)
    if a.dtype is dtypes.to_strong_dtype(dtype):
        return a
    return prims.convert_element_type(a, dtypes.to_strong_dtype(dtype))


def expand(a: TensorLike, *shape: Any) -> TensorLike:
    """`a` broadcast to `shape`, in which -1 keeps the size of a dim."""
    wanted = list(extract_shape_from_varargs(shape))
    lead = len(wanted) - a.ndim
    for n, size in enumerate(a.shape):
        if isinstance(wanted[lead + n], int) and wanted[lead + n] == -1:
            wanted[lead + n] = size
    if same_shape(wanted, a.shape):
        return a
    return prims.broadcast_in_dim(a, tuple(wanted), tuple(range(lead, len(wanted))))


def maybe_broadcast(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> tuple:
    """The arguments with tensors expanded to their common shape; numbers and None stay as they are."""
    tensors = [a for a in args if isinstance(a, TensorProxy)]
    shape = compute_broadcast_shape(*(a.shape for a in tensors))

    def expanded(x: Any) -> Any:
        if not isinstance(x, TensorProxy) or (treat_cpu_scalar_tensors_as_numbers and is_cpu_scalar_tensor(x)):
            return x
        return expand(x, shape)

    return tuple(expanded(a) for a in args)


def elementwise(prim: Callable, *args: Any, kind: Kind = Kind.DEFAULT) -> Any:
    """A primitive on arguments that are first promoted and broadcast; its result in the promoted dtype."""
    computation, result = elementwise_type_promotion(*args, type_promotion_kind=kind)
    if len(args) > 1:
        args = maybe_broadcast(*args)
    out = apply(prim, *(maybe_convert_to_dtype(a, computation) for a in args))
    return maybe_convert_to_dtype(out, result)


def apply(prim: Callable, *args: Any) -> Any:
    """A primitive's result: a node, or a number at once where all arguments are numbers."""
    if isinstance(prim, Symbol) and all(is_numberlike(a) for a in args):
        return prim.meta(*args)  # type: ignore[misc]
    return prim(*args)
