"""The executor of user operators: `torch.library.custom_op`s that were registered with it.

Every custom operator works without being registered. One that is has a symbol with a tag, which fusers may ask for, and
this executor's name in the trace.
"""

from __future__ import annotations

from dataclasses import replace

from torch.library import CustomOpDef

from thunder.core.errors import ThunderTypeError
from thunder.core.symbol import OpTags, Symbol
from thunder.core.torch_compat import OpOverload, overload_of
from thunder.extend.executor import OperatorExecutor, symbol_key
from thunder.extend.registry import add_default_executor, register_executor
from thunder.torch.registry import forget_symbol, register_symbol, symbol_for

custom_op_ex = OperatorExecutor("custom_op")
register_executor(custom_op_ex)
add_default_executor(custom_op_ex)


def register_custom_op(custom_op: CustomOpDef) -> Symbol:
    """The symbol that stands for a `torch.library.custom_op` from now on, claimed by the executor "custom_op".

    Metadata comes from the operator's `register_fake`, its gradient from `register_autograd`, its writes from
    `mutates_args`. Registering it again gives the same symbol.

    Raises: ThunderTypeError if `custom_op` is not what `torch.library.custom_op` made.
    """
    overload = _overload_of(custom_op)
    sym = symbol_for(overload)
    tag = OpTags.TORCH_COMPILE_COMPLIANT_CUSTOM_OP
    if tag in (sym.tags or ()):
        return sym
    sym = register_symbol(replace(sym, tags=(*(sym.tags or ()), tag)), overload)
    run = custom_op_ex.register_operator(sym.name, like=sym, fn=overload)
    custom_op_ex.register_implementation(sym, run)
    return sym


def deregister_custom_op(custom_op: CustomOpDef) -> None:
    """Undoes `register_custom_op`: the operator is one like any other again. Nothing happens if it was not registered.

    Raises: ThunderTypeError if `custom_op` is not what `torch.library.custom_op` made.
    """
    overload = _overload_of(custom_op)
    sym = symbol_for(overload)
    registered = custom_op_ex.implmap.get(symbol_key(sym))
    if registered is not None and registered.symbol is not None:
        custom_op_ex.forget(sym)
        custom_op_ex.forget_operator(registered.symbol)
        forget_symbol(overload)


def _overload_of(custom_op: CustomOpDef) -> OpOverload:
    if not isinstance(custom_op, CustomOpDef):
        raise ThunderTypeError(f"{custom_op!r} is not what torch.library.custom_op makes")
    return overload_of(custom_op)
