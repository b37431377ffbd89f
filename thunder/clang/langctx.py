"""The clang language: the operators of numbers and tensors as functions of clang."""

from __future__ import annotations

from collections.abc import Callable

from thunder.core.langctxs import Languages, MethodTable, register_langctx


class ClangCtx(MethodTable):
    """Methods that `clangop(method_name=...)` registers."""

    def __init__(self) -> None:
        super().__init__("clang")


clangctx = ClangCtx()
register_langctx(Languages.CLANG, clangctx)


def register_method(method_name: str, method: Callable, /) -> None:
    """Makes `method` what `proxy.<method_name>` means in the clang language."""
    clangctx.register_method(method_name, method)
