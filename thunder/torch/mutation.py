"""Calls that write to their arguments, and the functional calls that compute the same values.

`writing_symbol` finds out that a call writes (from the schema, `inplace=True`, `out=`, running statistics); `twin_of`
gives a call without the write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from thunder.core.symbol import BoundSymbol, OpTags, Symbol, Traits
from thunder.core.torch_compat import OpOverload
from thunder.torch.registry import symbol_for, symbol_name, takes_tensor_first, traits_of

# Writes that torch's autograd takes no notice of: the gradient passes as if nothing had been written.
UNSEEN_WRITES = frozenset(
    getattr(torch.Tensor, n) for n in ("logical_and_", "logical_or_", "logical_xor_", "logical_not_")
)

# In-place methods that change what a tensor looks like and not its elements.
METADATA_METHODS = frozenset(
    getattr(torch.Tensor, n)
    for n in ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_",
              "requires_grad_", "resize_", "resize_as_", "set_", "rename_", "squeeze_", "retain_grad")
    if hasattr(torch.Tensor, n)
)  # fmt: skip


@cache
def _parameters(fn: Any) -> tuple[str, ...] | None:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (ValueError, TypeError):
        return None


def _argument(fn: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An argument of a Python function by name, given by position or keyword; None if it is not given."""
    if name in kwargs:
        return kwargs[name]
    parameters = _parameters(fn)
    if parameters and name in parameters and parameters.index(name) < len(args):
        return args[parameters.index(name)]
    return None


_STATISTICS = ("running_mean", "running_var")


def _statistics_written(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The running statistics that a normalization updates; no schema declares them."""
    if (fn is F.batch_norm and _argument(fn, "training", args, kwargs)) or (
        fn is F.instance_norm and _argument(fn, "use_input_stats", args, kwargs) in (None, True)
    ):
        pass
    else:
        return ()
    return tuple(n for n in _STATISTICS if _argument(fn, n, args, kwargs) is not None)


def _variant(fn: Any, writes: tuple[int | str, ...], suffix: str) -> Symbol:
    base = traits_of(fn)
    return Symbol(
        name=symbol_name(fn) + suffix,
        id=(symbol_for(fn).id, suffix, writes),
        is_prim=True,
        module="ltorch",
        tags=(OpTags.IN_PLACE,),
        torch_fn=fn,
        traits=Traits(
            writes=writes, is_random=base.is_random, is_barrier=True, is_differentiable=base.is_differentiable
        ),
    )


_variants: dict[Any, Symbol] = {}


def variant_of(fn: Any, writes: tuple[int | str, ...], suffix: str = "_") -> Symbol:
    key = (fn, writes, suffix)
    if key not in _variants:
        _variants[key] = _variant(fn, writes, suffix)
    return _variants[key]


def keyword_form(fn: Any, args: tuple, kwargs: dict[str, Any], names: tuple[str, ...]) -> tuple[tuple, dict[str, Any]]:
    """The call with the arguments `names` (and those after them) given by keyword."""
    parameters = _parameters(fn)
    if parameters is None:
        return args, kwargs
    first = min(parameters.index(n) for n in names)
    return args[:first], {**dict(zip(parameters[first:], args[first:], strict=False)), **kwargs}


def writing_symbol(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Symbol, tuple, dict[str, Any]]:
    """The symbol for a call, with its arguments in the form that the symbol's `writes` refer to."""
    if kwargs.get("out") is not None:
        return variant_of(fn, ("out",), "_out"), args, kwargs
    if _argument(fn, "inplace", args, kwargs) is True:
        return variant_of(fn, (0,)), args, kwargs
    statistics = _statistics_written(fn, args, kwargs)
    if statistics:
        args, kwargs = keyword_form(fn, args, kwargs, statistics)
        return variant_of(fn, statistics), args, kwargs
    return symbol_for(fn), args, kwargs


_EMBEDDINGS = frozenset((F.embedding, F.embedding_bag))


def renormalization(fn: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, tuple, dict[str, Any]] | None:
    """What `max_norm` means in an embedding: (arguments of `torch.embedding_renorm_`, those of the call without it).

    torch runs it in no_grad, whatever the weight requires. None for calls without it.
    """
    if fn not in _EMBEDDINGS or _argument(fn, "max_norm", args, kwargs) is None:
        return None
    norm_type = _argument(fn, "norm_type", args, kwargs)
    weight, indices = (_argument(fn, name, args, kwargs) for name in ("weight", "input"))
    renorm = (weight, indices, float(_argument(fn, "max_norm", args, kwargs)), 2.0 if norm_type is None else norm_type)
    args, kwargs = keyword_form(fn, args, kwargs, ("max_norm",))
    return renorm, args, {**kwargs, "max_norm": None}


@dataclass(frozen=True)
class Twin:
    """A call without writes that gives the values which the writing call leaves in memory.

    returns: "written" when its result is the written tensor's new value; "both" when it gives (result, new values).
    """

    fn: Callable
    args: tuple
    kwargs: dict[str, Any]
    returns: str = "written"
    is_random: bool = False


_SPECIAL_TWINS: dict[str, Any] = {
    "zero_": torch.zeros_like, "fill_": torch.fill, "squeeze_": None, "__setitem__": None,
    "embedding_renorm_": torch.ops.aten.embedding_renorm.default,
}  # fmt: skip


def _named_twin(fn: Any) -> Any:
    name = getattr(fn, "__name__", "")
    if name in _SPECIAL_TWINS:
        return _SPECIAL_TWINS[name]
    base = name[:-1]
    if isinstance(fn, OpOverload) or not name.endswith("_") or name.startswith("__"):
        return None
    method = getattr(torch.Tensor, base, None)
    roots = (torch, F, torch.special) if method is None or takes_tensor_first(base) else ()
    return next((getattr(root, base) for root in roots if hasattr(root, base)), method)


def twin_of(bsym: BoundSymbol) -> Twin:
    """The functional twin of a node that writes."""
    sym, args, kwargs = bsym.sym, bsym.args, bsym.kwargs
    fn, writes = sym.torch_fn, sym.traits.writes
    if sym.traits.is_random:
        return Twin(fn, args, kwargs, "both", True)
    if writes == ("out",) and not isinstance(kwargs["out"], list | tuple):
        return Twin(fn, args, {k: v for k, v in kwargs.items() if k != "out"})
    if writes == (0,) and _argument(fn, "inplace", args, kwargs) is True:
        args, kwargs = keyword_form(fn, args, kwargs, ("inplace",))
        return Twin(fn, args, {k: v for k, v in kwargs.items() if k != "inplace"})
    if writes == (0,):
        if fn is torch.Tensor.zero_ and args[0].requires_grad:
            # The result requires a gradient, as in eager, which `zeros_like` forgets; it is zero.
            return Twin(torch.fill, (*args, 0), kwargs)
        named = _named_twin(fn)
        if named is not None:
            return Twin(named, args, kwargs)
    return Twin(fn, args, kwargs, "both")
