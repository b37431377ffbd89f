"""The numpy language: methods of a tensor proxy as numpy has them."""

from __future__ import annotations

from collections.abc import Callable

from thunder.core.langctxs import Languages, MethodTable, register_langctx


class NumPyCtx(MethodTable):
    """Methods that `npsymbol(method_name=...)` registers."""

    def __init__(self) -> None:
        super().__init__("numpy")


numpyctx = NumPyCtx()
register_langctx(Languages.NUMPY, numpyctx)


def register_method(method_name: str, method: Callable, /) -> None:
    """Makes `method` what `array.<method_name>` means in the numpy language."""
    numpyctx.register_method(method_name, method)
