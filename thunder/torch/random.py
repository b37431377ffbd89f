"""Random tensors, drawn from torch's generators in torch's order: seeds give what they give in eager programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dims import extract_shape_from_varargs, to_device, to_dtype
from thunder.core.errors import NoDecompositionError
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.torch.creation import _check_options
from thunder.torch.op import Operation, op

_TAGS = (OpTags.RANDOM_OP,)


def _draw(kind: str, shape: tuple, device: Any, dtype: Any) -> TensorProxy:
    if kind == "rand":
        return prims.uniform(shape, 0.0, 1.0, device=device, dtype=dtype)
    return prims.randn(shape, device=device, dtype=dtype)


def _check(generator: Any, options: dict[str, Any]) -> None:
    if generator is not None:
        raise NoDecompositionError("a generator")
    _check_options({n: v for n, v in options.items() if not (n == "layout" and v is None)})


def _factory(name: str) -> Operation:
    def body(*size: Any, generator: Any = None, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
        if "size" in options:
            size = (options.pop("size"),)
        _check(generator, options)
        return _draw(name, extract_shape_from_varargs(size), to_device(device), to_dtype(dtype))

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"Numbers as torch.{name} draws them."
    return op(getattr(torch, name), tags=_TAGS)(body)


def _like(name: str) -> Operation:
    def body(input: TensorProxy, *, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
        _check(options.pop("generator", None), options)
        return _draw(name[:-5], input.shape, to_device(device, input.device), to_dtype(dtype, input.dtype))

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"Numbers as torch.{name} draws them, in a tensor like `input`."
    return op(getattr(torch, name), tags=_TAGS)(body)


rand, randn, rand_like, randn_like = _factory("rand"), _factory("randn"), _like("rand_like"), _like("randn_like")


@op(torch.randint, tags=_TAGS)
def randint(*args: Any, generator: Any = None, dtype: Any = None, device: Any = None, **options: Any) -> TensorProxy:
    """int64 numbers from `low` (0) to below `high`."""
    given = dict(zip(("high", "size") if len(args) == 2 else ("low", "high", "size"), args, strict=False))
    given |= {n: options.pop(n) for n in ("low", "high", "size") if n in options}
    _check(generator, options)
    kind = to_dtype(torch.int64 if dtype is None else dtype)
    return prims.randint(given.get("low", 0), given["high"], tuple(given["size"]), device=to_device(device), dtype=kind)


@op(torch.bernoulli, tags=_TAGS)
def bernoulli(input: TensorProxy, *, generator: Any = None) -> TensorProxy:
    """Ones with the probabilities in `input`, else zeros."""
    _check(generator, {})
    return prims.bernoulli(input)


@op(torch.multinomial, tags=_TAGS)
def multinomial(
    input: TensorProxy, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> TensorProxy:
    """Positions drawn with the weights in the rows of `input`."""
    _check(generator, {})
    return prims.multinomial(input, num_samples, bool(replacement))


def _of_prim(name: str, prim: Callable) -> Operation:
    """An operation that torch does not have."""

    def body(*args: Any, device: Any, dtype: Any, **kwargs: Any) -> TensorProxy:
        bounds = args[1:] if len(args) == 3 else (0.0, 1.0)
        return prim(tuple(args[0]), *bounds, device=to_device(device), dtype=to_dtype(dtype), **kwargs)

    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"Numbers from `minval` to below `maxval`: {name}(shape, minval=0.0, maxval=1.0, *, device, dtype)."
    return op(name=name, id=f"torch.{name}", traits=prim.traits, tags=_TAGS)(body)  # type: ignore[attr-defined]


uniform = _of_prim("uniform", prims.uniform)
uniform_philox = _of_prim("uniform_philox", prims.uniform_philox)
