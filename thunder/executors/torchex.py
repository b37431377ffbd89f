"""The torch executor: runs every operation that stands for a torch callable by calling it."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.printer import dotted_path
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.torch_compat import OpOverload
from thunder.core.torch_compat import no_autocast as no_autocast
from thunder.extend.executor import ImplInfo, OperatorExecutor
from thunder.extend.registry import add_always_executor, register_executor
from thunder.torch.bindings import python_function


class TorchExecutor(OperatorExecutor):
    """Claims whatever has a torch callable; implementations may also be registered as with any executor."""

    def __init__(self) -> None:
        super().__init__("torch", version=torch.__version__)
        self._made: dict[Any, ImplInfo] = {}

    def _impl(self, bsym: BoundSymbol) -> ImplInfo | None:
        known = super()._impl(bsym)
        if known is not None:
            return known
        fn = bsym.sym.torch_fn
        if fn is None or bsym.sym.executor is not None:
            return None
        if bsym.sym not in self._made:
            self._made[bsym.sym] = ImplInfo(_execution_symbol(self, bsym.sym, fn))
        return self._made[bsym.sym]


def _execution_symbol(ex: OperatorExecutor, sym: Symbol, fn: Any) -> Symbol:
    called = (python_function(fn) or fn) if isinstance(fn, OpOverload) else fn
    path = dotted_path(called)
    if path is None:
        module, name = None, sym.name.replace(".", "_")
    elif isinstance(called, OpOverload):  # "torch.ops.aten", "add.Tensor"
        module, packet, overload = path.rsplit(".", 2)
        name = f"{packet}.{overload}"
    else:
        module, name = path.rsplit(".", 1)
    return Symbol(
        name=name, meta=sym.meta, id=sym.id, is_prim=True, tags=sym.tags, executor=ex, python_impl=called,
        module=module, torch_fn=fn, traits=sym.traits,
    )  # fmt: skip


ex = register_executor(TorchExecutor())
torch_ex = ex
add_always_executor(ex)
