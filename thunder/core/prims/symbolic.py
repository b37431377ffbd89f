"""Primitives for numbers that are known only when the program runs: sizes and items that depend on data."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import key_get

from thunder.core.errors import ThunderRuntimeError
from thunder.core.prims.base import make_prim
from thunder.core.symbol import OpTags, Traits

bind_symbol = make_prim("BIND_SYMBOL", "bind_symbol", meta=None, python_impl=key_get)
bind_symbol.__dict__["__doc__"] = (
    "The number found in a value along a path of keys (torch's `KeyPath`), such as the first size of `x.nonzero()`."
)


def _assert_scalar(condition: Any, message: str) -> None:
    if not condition:
        raise ThunderRuntimeError(message)


assert_scalar = make_prim(
    "ASSERT_SCALAR", "assert_scalar", meta=lambda condition, message: None, python_impl=_assert_scalar,
    traits=Traits(is_kept=True), tags=(OpTags.DONT_DCE,),
)  # fmt: skip
assert_scalar.__dict__["__doc__"] = (
    "Raises RuntimeError with `message` where a condition on such numbers does not hold."
)
