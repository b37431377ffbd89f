"""Primitives for memory: writes, new names for written memory, views and their inverses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thunder.core.prims.base import make_prim
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Traits
from thunder.core.tracing import get_tracectx

ViewChain = tuple[tuple[Callable, tuple, dict, Any], ...]


def fresh(like: TensorProxy, **changes: Any) -> TensorProxy:
    """A new tensor with the metadata of `like` and no layout."""
    changes.setdefault("layout", None)
    changes.setdefault("name", get_tracectx().make_name(prefix="t"))
    return like.replace(**changes)


def _copy_impl(src: torch.Tensor, dst: torch.Tensor, *, grad_enabled: bool = False) -> torch.Tensor:
    return dst.copy_(src)


copy_ = make_prim(
    "COPY_", "copy_",
    meta=lambda src, dst, *, grad_enabled=False: fresh(dst),
    torch_fn=_copy_impl, python_impl=_copy_impl,
    traits=Traits(writes=(1,), is_kept=True, is_barrier=True), tags=(OpTags.DONT_DCE,),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AliasRule:
    """What a write through one tensor means for the other names of its memory: how their gradient flows.

    views: for each alias the views that give it from the root. The first alias is the root, unless the root was
    written.
    written: the views that give the written tensor from the root.
    is_seen: autograd sees the write.
    """

    views: tuple[ViewChain, ...]
    written: ViewChain
    is_seen: bool


def _update_aliases_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    names = [", ".join(p.name for p in group) + ("," if len(group) == 1 else "") for group in (out, args[0], args[1])]
    return f"({names[0]}) = prims.update_aliases(({names[1]}), after=({names[2]}))"


def _update_aliases_meta(aliases: Any, after: Any = (), rule: Any = None) -> Any:
    return tuple(fresh(a, layout=a.layout) for a in aliases)


update_aliases = make_prim(
    "UPDATE_ALIASES", "update_aliases", meta=_update_aliases_meta, python_printer=_update_aliases_printer,
    python_impl=lambda aliases, after=(), rule=None: tuple(aliases), traits=Traits(is_barrier=True),
)  # fmt: skip

shallow_copy = make_prim(
    "SHALLOW_COPY", "shallow_copy", meta=lambda a: fresh(a), python_impl=lambda a: a, tags=(OpTags.SHAPE_OP,)
)


def _same_value(old: Any, new: Any) -> Any:
    return new


update_data = make_prim(
    "UPDATE_DATA", "update_data", meta=lambda old, new: fresh(new, requires_grad=old.requires_grad),
    python_impl=_same_value,
)  # fmt: skip
update_data.__dict__["__doc__"] = (
    "The value of `new` with the autograd history of `old`: a write that autograd does not see."
)


def _strided_view(base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    return torch.as_strided(base, size, stride, base.storage_offset() + offset)


overwritten = make_prim(
    "OVERWRITTEN", "overwritten", meta=lambda old, new: fresh(new, requires_grad=old.requires_grad),
    python_impl=_same_value,
)  # fmt: skip
overwritten.__dict__["__doc__"] = "The value of `new` in the place of `old`, which gets a gradient of zero."

strided_view = make_prim(
    "STRIDED_VIEW", "strided_view",
    meta=lambda base, size, stride, offset: fresh(base, shape=size),
    torch_fn=_strided_view, python_impl=_strided_view,
)  # fmt: skip


def apply_views(base: Any, views: ViewChain) -> Any:
    """The view that a chain of view operations gives of `base`; each step is (function, arguments, keywords, output).
    """
    for fn, args, kwargs, index in views:
        base = fn(base, *args, **kwargs)
        base = base if index is None else base[index]
    return base


def _view_update(base: torch.Tensor, src: Any, views: ViewChain, strides: Any = None) -> torch.Tensor:
    if strides is not None and tuple(base.stride()) != tuple(strides):
        result = torch.empty_strided(base.shape, strides, dtype=base.dtype, device=base.device).copy_(base)
    else:
        result = base.clone()
    window = apply_views(result, views)
    if isinstance(src, torch.Tensor):
        window.copy_(src)
    else:
        window.fill_(src)
    return result


view_update = make_prim(
    "VIEW_UPDATE", "view_update",
    meta=lambda base, src, views, strides=None: fresh(
        base, requires_grad=base.requires_grad or getattr(src, "requires_grad", False)
    ),
    torch_fn=_view_update, python_impl=_view_update,
)  # fmt: skip


def _write_through(
    base: torch.Tensor, views: ViewChain, fn: Callable, where: tuple, args: tuple, kwargs: dict, strides: Any = None
) -> torch.Tensor:
    same = strides is None or tuple(base.stride()) == tuple(strides)
    result = (
        base.clone()
        if same
        else torch.empty_strided(base.shape, strides, dtype=base.dtype, device=base.device).copy_(base)
    )
    window = apply_views(result, views)
    by_position = [window if n in where else a for n, a in enumerate(args)]
    fn(*by_position, **kwargs, **{name: window for name in where if isinstance(name, str)})
    return result


write_through = make_prim(
    "WRITE_THROUGH", "write_through", meta=None, torch_fn=_write_through, python_impl=_write_through,
    traits=Traits(is_barrier=True),
)  # fmt: skip
random_write_through = make_prim(
    "RANDOM_WRITE_THROUGH", "random_write_through", meta=None, torch_fn=_write_through, python_impl=_write_through,
    traits=Traits(is_barrier=True, is_random=True),
)  # fmt: skip


def _view_of(base: torch.Tensor, views: ViewChain, strides: Any = None) -> torch.Tensor:
    if strides is not None and tuple(base.stride()) != tuple(strides):
        base = torch.empty_strided(base.shape, strides, dtype=base.dtype, device=base.device).copy_(base)
    return apply_views(base, views).clone()


view_of = make_prim("VIEW_OF", "view_of", meta=None, torch_fn=_view_of, python_impl=_view_of)


def _view_of_grad(g: torch.Tensor, views: ViewChain, shape: tuple, strides: Any) -> torch.Tensor:
    make = torch.empty if strides is None else partial(torch.empty_strided, stride=tuple(strides))
    with torch.enable_grad():
        base = make(tuple(shape), dtype=g.dtype, device=g.device).requires_grad_()
        window = apply_views(base, views)
    return torch.autograd.grad(window, base, g)[0]


view_of_grad = make_prim(
    "VIEW_OF_GRAD", "view_of_grad", meta=None, torch_fn=_view_of_grad, python_impl=_view_of_grad
)
view_of_grad.__dict__["__doc__"] = (
    "The gradient of a base of these sizes and strides whose view has the gradient `g`, summed where the view shows an "
    "element more than once."
)


def _copy_with_strides(a: torch.Tensor, strides: tuple) -> torch.Tensor:
    return torch.empty_strided(a.shape, strides, dtype=a.dtype, device=a.device).copy_(a)


copy_with_strides = make_prim(
    "COPY_WITH_STRIDES", "copy_with_strides", meta=lambda a, strides: fresh(a), torch_fn=_copy_with_strides,
    python_impl=_copy_with_strides,
)  # fmt: skip


def _setitem(a: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    result = a.clone()
    result[key] = value
    return result


copy_with_setitem = make_prim(
    "COPY_WITH_SETITEM",
    "copy_with_setitem",
    meta=lambda a, key, value: fresh(a),
    torch_fn=_setitem,
    python_impl=_setitem,
)


def _view_update_in_place(base: torch.Tensor, src: Any, views: ViewChain) -> torch.Tensor:
    window = apply_views(base, views)
    if isinstance(src, torch.Tensor):
        window.copy_(src)
    else:
        window.fill_(src)
    return base


def _setitem_in_place(a: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    a[key] = value
    return a


_WRITES_FIRST = Traits(writes=(0,), is_barrier=True)
view_update_ = make_prim(
    "VIEW_UPDATE_", "view_update_", meta=lambda base, src, views: fresh(base), python_impl=_view_update_in_place,
    traits=_WRITES_FIRST, tags=(OpTags.IN_PLACE,),
)  # fmt: skip
setitem_ = make_prim(
    "SETITEM_", "setitem_", meta=lambda a, key, value: fresh(a), python_impl=_setitem_in_place,
    traits=_WRITES_FIRST, tags=(OpTags.IN_PLACE,),
)  # fmt: skip


def _setitem_value_grad(g: torch.Tensor, key: Any, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    window = g[key]
    leading = max(len(shape) - window.ndim, 0)  # a value may have further dimensions of size 1 in front
    return window.sum_to_size(shape[leading:]).reshape(shape).to(dtype)


setitem_value_grad = make_prim(
    "SETITEM_VALUE_GRAD", "setitem_value_grad", meta=None, torch_fn=_setitem_value_grad, python_impl=_setitem_value_grad
)


def _clone_with_strides(x: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of `x`, which decide in what order random numbers are drawn.

    Dense where elements overlap.
    """
    new = x.clone()
    if x.layout is not torch.strided or new.stride() == x.stride() or 0 in x.stride():
        return new
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _run_on_clones(fn: Callable, writes: tuple, args: tuple, kwargs: dict) -> tuple[Any, tuple]:
    args_list, kwargs = list(args), dict(kwargs)
    clones: list[torch.Tensor] = []

    def cloned(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            clones.append(_clone_with_strides(x))
            return clones[-1]
        return type(x)(cloned(v) for v in x) if isinstance(x, list | tuple) else x

    for where in writes:
        if isinstance(where, int):
            args_list[where] = cloned(args_list[where])
        else:
            kwargs[where] = cloned(kwargs[where])
    result = fn(*args_list, **kwargs)
    return _without(clones, result), tuple(clones)


def _without(written: list[torch.Tensor], result: Any) -> Any:
    """A result without the tensors that were written, which have their own place."""
    if isinstance(result, tuple | list):
        kept = [_without(written, r) for r in result]
        return tuple(kept) if type(result) is tuple else kept
    return None if any(result is w for w in written) else result


run_on_clones = make_prim(
    "RUN_ON_CLONES", "run_on_clones", meta=None, torch_fn=_run_on_clones, python_impl=_run_on_clones,
)  # fmt: skip
random_on_clones = make_prim(
    "RANDOM_ON_CLONES", "random_on_clones", meta=None, torch_fn=_run_on_clones, python_impl=_run_on_clones,
    traits=Traits(is_random=True), tags=(OpTags.RANDOM_OP,),
)  # fmt: skip


def _redrawn(a: torch.Tensor, fn: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    return fn(torch.empty_like(a), *args, **kwargs)


redrawn = make_prim(
    "REDRAWN", "redrawn", meta=lambda a, fn, args, kwargs: fresh(a, requires_grad=False), torch_fn=_redrawn,
    python_impl=_redrawn, traits=Traits(is_random=True), tags=(OpTags.RANDOM_OP,),
)  # fmt: skip
redrawn.__dict__["__doc__"] = (
    "A tensor with the shape, dtype and strides of `a`, filled by the random in-place method `fn`, which draws in the "
    "order of memory."
)
