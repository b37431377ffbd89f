"""Primitives that give a trace its frame: inputs, returns, deletions, comments, constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.prims.base import make_prim
from thunder.core.proxies import CollectionProxy, NumberProxy, Proxy
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol, OpTags, Traits

_KEPT = Traits(is_kept=True)
_Print = Callable[[Any], str]


def _return_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    if not args:
        return "return None"
    return lambda show: "return " + (show(args[0]) if len(args) == 1 else show(tuple(args)))


python_return = make_prim(
    "RETURN", "python_return", meta=lambda *args: None, python_printer=_return_printer,
    python_impl=lambda *args: args, traits=_KEPT, tags=(OpTags.DONT_DCE,),
)  # fmt: skip


def _del_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> str:
    return "del " + ", ".join(a.name for a in args)


python_del = make_prim(
    "DEL", "python_del", meta=lambda *args: None, python_printer=_del_printer, python_impl=lambda *args: None,
    traits=_KEPT,
)  # fmt: skip


def _comment_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> list[str]:
    return [f"# {line}" for line in str(args[0]).splitlines()]


comment = make_prim(
    "COMMENT", "comment", meta=lambda text: None, python_printer=_comment_printer, python_impl=lambda text: None,
    traits=_KEPT,
)  # fmt: skip

sink = make_prim(
    "SINK", "sink", meta=lambda *args: None, python_impl=lambda *args: None, traits=_KEPT, tags=(OpTags.DONT_DCE,)
)


def _unpack_trivial_meta(x: Any, /, *, name: str | None = None) -> Any:
    return x


def _unpack_trivial_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> str:
    shown = out.type_string() if isinstance(out, Proxy) else type(out).__name__
    return f'# {kwargs.get("name") or getattr(out, "name", out)}: "{shown}"'


unpack_trivial = make_prim(
    "UNPACK_TRIVIAL", "unpack_trivial", meta=_unpack_trivial_meta, python_printer=_unpack_trivial_printer,
    python_impl=lambda x, **_: x, traits=_KEPT,
)  # fmt: skip


def _unpack_sequence_meta(seq: Any, n: int) -> Any:
    return list(seq.collection() if isinstance(seq, CollectionProxy) else seq)


def _unpack_sequence_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    names = ", ".join(o.name if isinstance(o, Proxy) else "_" for o in out)
    return f"{names}{',' if len(out) == 1 else ''} = {args[0].name}" if out else f"# {args[0].name} is empty"


unpack_sequence = make_prim(
    "UNPACK_SEQUENCE", "unpack_sequence", meta=_unpack_sequence_meta, python_printer=_unpack_sequence_printer,
    python_impl=lambda seq, n: list(seq), traits=_KEPT,
)  # fmt: skip


def _pack_list_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    return lambda show: f"{out.name} = [{', '.join(map(show, args))}]"


pack_list = make_prim(
    "PACK_LIST", "pack_list", meta=lambda *args: CollectionProxy(list(args)), python_printer=_pack_list_printer,
    python_impl=lambda *args: list(args), traits=_KEPT, tags=(OpTags.DONT_DCE,),
)  # fmt: skip


def _clear_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> str:
    return f"{args[0].name}.clear()"


clear_mutable_collection = make_prim(
    "CLEAR_MUTABLE_COLLECTION", "clear_mutable_collection", meta=lambda coll: None, python_printer=_clear_printer,
    python_impl=lambda coll: coll.clear(), traits=_KEPT,
)  # fmt: skip


def _constant_printer(bsym: BoundSymbol, out: Any, args: Any, kwargs: Any) -> Any:
    return lambda show: f'{out.name} = {show(args[0])}  # {out.name}: "{out.type_string()}"'


tensor_constant = make_prim(
    "TENSOR_CONSTANT", "tensor_constant", meta=lambda x: x, python_printer=_constant_printer, python_impl=lambda x: x
)


def _shape_meta(a: Any) -> Any:
    return tuple(NumberProxy(value=s, python_type=int) for s in a.shape)


shape = make_prim("SHAPE", "shape", meta=_shape_meta, python_impl=lambda a: tuple(a.shape))


def returned_proxies(bsym: BoundSymbol) -> list[Proxy]:
    """The proxies that a return node gives back, in order."""
    return [p for p in tree_iter((bsym.args, bsym.kwargs)) if isinstance(p, Proxy)]
