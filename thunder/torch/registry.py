"""Which symbol stands for which torch callable.

Hand-written operations register themselves with `@op`. Everything else in torch becomes a symbol the first time that it
is met: its metadata comes from fake tensors, its effects from the aten schema, its gradient from torch's autograd.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from thunder.core.printer import dotted_path
from thunder.core.symbol import OpTags, Symbol, Traits
from thunder.core.torch_compat import OpOverload, OpOverloadPacket, aten_packet
from thunder.torch.fakes import fake_meta

_torch_to_thunder_function_map: dict[Any, Symbol] = {}

# Python functions of torch that draw random numbers through other functions, so that no schema says so.
_RANDOM_PYTHON_FUNCTIONS = {
    "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d_with_indices", "multi_head_attention_forward", "dropout1d", "dropout2d", "dropout3d",
    "scaled_dot_product_attention",
}  # fmt: skip
# torch declares no write on these, though they fill tensors that they are given.
_UNDIFFERENTIABLE = {
    "detach", "detach_", "bucketize", "searchsorted", "zeros_like", "ones_like", "full_like", "empty_like",
    "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided",
    "new_tensor", "data",
}  # fmt: skip


def register_symbol(sym: Symbol, *callables: Any) -> Symbol:
    """Makes `sym` stand for torch callables."""
    for fn in callables:
        _torch_to_thunder_function_map[fn] = sym
    return sym


def forget_symbol(fn: Any) -> None:
    """Undoes `register_symbol` for a torch callable: its symbol is made from torch again when it is next met."""
    _torch_to_thunder_function_map.pop(fn, None)


def _schema_writes(op: OpOverload) -> tuple[int | str, ...]:
    writes: list[int | str] = []
    for n, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(argument.name if argument.kwarg_only else n)
    return tuple(writes)


def _is_random(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _is_data_dependent(op: OpOverload) -> bool:
    return torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags


def _packet_traits(packet: OpOverloadPacket, name: str) -> Traits:
    overloads = aten_overloads(packet)
    is_inplace_name = name.endswith("_") and not name.startswith("__")
    writes: tuple = (0,) if is_inplace_name and any(o._schema.is_mutable for o in overloads) else ()
    return Traits(
        writes=writes,
        is_random=any(_is_random(o) for o in overloads),
        is_barrier=bool(writes) or any(_is_data_dependent(o) for o in overloads),
        is_differentiable=name not in _UNDIFFERENTIABLE,
    )


def traits_of(fn: Any) -> Traits:
    """Effects of a torch callable, read from schemas."""
    if isinstance(fn, OpOverload):
        writes = _schema_writes(fn)
        barrier = bool(writes) or _is_data_dependent(fn)
        return Traits(writes=writes, is_random=_is_random(fn), is_barrier=barrier)
    if isinstance(fn, OpOverloadPacket):
        overloads = [getattr(fn, o) for o in fn.overloads()]
        default = next((o for o in overloads if not o._overloadname.startswith("out")), overloads[0])
        return traits_of(default)
    name = getattr(fn, "__name__", "")
    if name == "__setitem__":
        return Traits(writes=(0,), is_barrier=True)
    packet = aten_packet(name) or aten_packet(_FUNCTION_TO_ATEN.get(name, ""))
    if packet is not None:
        traits = _packet_traits(packet, name)
    else:
        inplace = name.endswith("_") and not name.startswith("_")
        traits = Traits(
            writes=(0,) if inplace else (), is_barrier=inplace, is_differentiable=name not in _UNDIFFERENTIABLE
        )
    if name in _RANDOM_PYTHON_FUNCTIONS:
        traits = Traits(traits.writes, True, traits.is_kept, traits.is_barrier, traits.is_differentiable)
    return traits


@cache
def is_pointwise(fn: Any) -> bool:
    """Whether torch's tags call an operation pointwise."""
    packet = aten_packet(getattr(fn, "__name__", ""))
    overloads = (fn,) if isinstance(fn, OpOverload) else [] if packet is None else aten_overloads(packet)
    return any(torch.Tag.pointwise in o.tags for o in overloads)


def aten_overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """All overloads of an aten operation."""
    return [getattr(packet, name) for name in packet.overloads()]


_FUNCTION_TO_ATEN = {"uniform_like": "uniform"}


def symbol_name(fn: Any) -> str:
    """The name printed for a callable."""
    if isinstance(fn, OpOverload):
        base = fn._schema.name.split("::")[1]
        return base if fn._overloadname == "default" else f"{base}.{fn._overloadname}"
    name = getattr(fn, "__name__", type(fn).__name__)
    return fn.__self__.__name__ if name == "__get__" else name


def symbol_id(fn: Any) -> Any:
    """The public path of a torch callable ("torch.nn.functional.gelu"), or the callable itself where it has none."""
    if isinstance(fn, OpOverload | OpOverloadPacket):
        return str(fn)
    path = dotted_path(fn)
    return fn if path is None else path.replace("torch._C._VariableFunctions.", "torch.")


def auto_symbol(fn: Any) -> Symbol:
    """A symbol for a callable without a hand-written one."""
    is_aten = isinstance(fn, OpOverload | OpOverloadPacket)
    return Symbol(
        name=symbol_name(fn),
        meta=lambda *args, **kwargs: fake_meta(fn, args, kwargs),
        id=symbol_id(fn),
        is_prim=True,
        tags=(OpTags.AUTO_REGISTERED,),
        module=f"torch.ops.{fn.namespace}" if isinstance(fn, OpOverload) else "torch.ops" if is_aten else "ltorch",
        torch_fn=fn,
        traits=traits_of(fn),
    )


def symbol_for(fn: Any) -> Symbol:
    """The symbol that stands for a torch callable, made now if there is none."""
    sym = _torch_to_thunder_function_map.get(fn)
    if sym is None:
        sym = _torch_to_thunder_function_map[fn] = auto_symbol(fn)
    return sym


# Calls by method name or operator


@cache
def _takes_sizes(name: str) -> bool:
    """Whether a method takes one list of ints and nothing else by position, so that they may also be given one by one.

    That is torch's own rule: `x.permute(1, 0)` is one list, `x.split(2, 0)` and `x.logsumexp(1, True)` are not.
    """
    packet = aten_packet(name)
    if packet is None:
        return False
    schemas = [o._schema.arguments for o in aten_overloads(packet)]
    positional = [[a for a in arguments if not a.kwarg_only] for arguments in schemas]
    # The real type: a dtype, as in `x.view(dtype)`, is an int to the schema.
    if any(len(p) > 1 and str(p[1].real_type) in ("int", "SymInt") for p in positional):
        return False
    return any(len(p) == 2 and str(p[1].type) in ("List[int]", "List[SymInt]") for p in positional)


@cache
def method_callable(name: str) -> Any:
    """The function that a Tensor method is the same as, or the method itself."""
    method = getattr(torch.Tensor, name)
    if method in _torch_to_thunder_function_map:
        return method
    function = getattr(torch, name, None)
    builtin = type(torch.add)
    same = isinstance(function, builtin) and isinstance(method, type(torch.Tensor.add)) and not name.endswith("_")
    return function if same and takes_tensor_first(name) else method


def takes_tensor_first(name: str) -> bool:
    """Whether the method's tensor is the function's first argument: x.polygamma(n) is torch.polygamma(n, x)."""
    packet = aten_packet(name)
    if packet is None:
        return False
    arguments = (o._schema.arguments for o in aten_overloads(packet))
    # The other overloads, as of lists and strings, are those of TorchScript.
    on_tensors = [a for a in arguments if any(str(x.type) in ("Tensor", "Optional[Tensor]") for x in a)]
    return bool(on_tensors) and all(a[0].name == "self" for a in on_tensors)


def method_call(name: str, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple]:
    """A Tensor method's call as (callable, arguments), with sizes given one by one collected in a tuple."""
    if (
        len(args) > 1
        and _takes_sizes(name)
        and isinstance(args[1], int | torch.SymInt)
        and not isinstance(args[1], bool)
    ):
        args = (args[0], tuple(args[1:]))
    fn = method_callable(name)
    if len(args) == 1 and fn is getattr(torch, name, None) and _takes_sizes(name) and not kwargs:
        fn = getattr(torch.Tensor, name)
    return fn, args


_OPERATORS: dict[Any, Any] = {
    operator.add: torch.add, operator.sub: torch.sub, operator.mul: torch.mul, operator.truediv: torch.true_divide,
    operator.floordiv: torch.floor_divide, operator.mod: torch.remainder, operator.pow: torch.pow,
    operator.matmul: torch.matmul, operator.and_: torch.bitwise_and, operator.or_: torch.bitwise_or,
    operator.xor: torch.bitwise_xor, operator.lshift: torch.bitwise_left_shift, operator.invert: torch.bitwise_not,
    operator.rshift: torch.bitwise_right_shift, operator.neg: torch.neg, operator.pos: torch.positive,
    operator.abs: torch.abs, operator.eq: torch.eq, operator.ne: torch.ne, operator.lt: torch.lt,
    operator.le: torch.le, operator.gt: torch.gt, operator.ge: torch.ge, abs: torch.abs,
    operator.getitem: torch.Tensor.__getitem__, operator.setitem: torch.Tensor.__setitem__,
    operator.iadd: torch.Tensor.add_, operator.isub: torch.Tensor.sub_, operator.imul: torch.Tensor.mul_,
    operator.itruediv: torch.Tensor.div_, operator.ifloordiv: torch.Tensor.floor_divide_,
    operator.imod: torch.Tensor.remainder_, operator.ipow: torch.Tensor.pow_, operator.iand: torch.Tensor.bitwise_and_,
    operator.ior: torch.Tensor.bitwise_or_, operator.ixor: torch.Tensor.bitwise_xor_,
    operator.ilshift: torch.Tensor.bitwise_left_shift_, operator.irshift: torch.Tensor.bitwise_right_shift_,
    operator.imatmul: torch.matmul,
}  # fmt: skip
_MIRRORED = {
    operator.lt: torch.gt, operator.le: torch.ge, operator.gt: torch.lt, operator.ge: torch.le, operator.eq: torch.eq,
    operator.ne: torch.ne, operator.add: torch.add, operator.mul: torch.mul, operator.sub: torch.rsub,
    operator.and_: torch.bitwise_and, operator.or_: torch.bitwise_or, operator.xor: torch.bitwise_xor,
}  # fmt: skip


def operator_call(fn: Any, args: tuple, is_tensor: Callable[[Any], bool]) -> tuple[Any, tuple] | None:
    """A Python operator's call as (torch callable, arguments); None where torch has no function for it."""
    if fn not in _OPERATORS:
        return None
    if len(args) == 2 and not is_tensor(args[0]) and is_tensor(args[1]):
        if fn in _MIRRORED:
            return _MIRRORED[fn], (args[1], args[0])
        if fn is operator.truediv:
            return torch.Tensor.__rtruediv__, (args[1], args[0])
    return _OPERATORS[fn], args
