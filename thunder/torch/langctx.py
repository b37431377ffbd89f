"""The torch language: what methods, properties and operators of a tensor proxy mean, and torch functions of one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from thunder import clang
from thunder.core import prims
from thunder.core.dims import numel
from thunder.core.langctxs import Languages, MethodTable, register_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.torch.op import call_torch, extra_methods
from thunder.torch.registry import operator_call

# Methods of the operators' own names, with the operator that says what a number on the left does.
_OPERATORS: dict[str, Any] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "true_divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "matmul": operator.matmul,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "bitwise_left_shift": operator.lshift, "bitwise_right_shift": operator.rshift,
}  # fmt: skip


class _Property:
    """A method that is read without a call."""

    is_property = True

    def __init__(self, read: Callable[[TensorProxy], Any]):
        self.read = read

    def __call__(self, a: TensorProxy) -> Any:
        return self.read(a)


def _reversed_dims(a: TensorProxy) -> TensorProxy:
    return torch_method("permute")(a, tuple(range(a.ndim - 1, -1, -1)))


def _size(a: TensorProxy, dim: int | None = None) -> Any:
    return a.shape if dim is None else a.shape[dim]


# What is known of a proxy without a node.
_FACTS: dict[str, Callable] = {
    "dim": lambda a: a.ndim, "ndimension": lambda a: a.ndim, "size": _size, "nelement": lambda a: numel(a.shape),
    "is_floating_point": lambda a: a.torch_dtype.is_floating_point, "is_complex": lambda a: a.torch_dtype.is_complex,
    "is_signed": lambda a: a.torch_dtype.is_signed, "element_size": lambda a: a.torch_dtype.itemsize,
    "item": lambda a: prims.item(a), "get_device": lambda a: -1 if a.device.index is None else a.device.index,
    "is_contiguous": lambda a, memory_format=torch.contiguous_format: True,
}  # fmt: skip
_PROPERTIES: dict[str, Callable] = {
    "T": _reversed_dims, "mT": lambda a: torch_method("transpose")(a, -2, -1), "H": _reversed_dims,
    "is_cuda": lambda a: a.device.type == "cuda", "is_cpu": lambda a: a.device.type == "cpu",
    "is_meta": lambda a: a.device.type == "meta", "is_nested": lambda a: False, "is_sparse": lambda a: False,
    "is_quantized": lambda a: False, "layout": lambda a: torch.strided, "itemsize": lambda a: a.torch_dtype.itemsize,
    "nbytes": lambda a: numel(a.shape) * a.torch_dtype.itemsize, "real": lambda a: call_torch(torch.real, (a,), {}),
    "imag": lambda a: call_torch(torch.imag, (a,), {}), "data": lambda a: call_torch(torch.Tensor.detach, (a,), {}),
    "is_leaf": lambda a: not a.requires_grad, "grad_fn": lambda a: None,
}  # fmt: skip


@cache
def torch_method(name: str) -> Callable | None:
    """The function on proxies that a tensor method, property or operator is, or None where torch has none."""
    if name in _PROPERTIES:
        return _Property(_PROPERTIES[name])
    if name in _FACTS:
        return _FACTS[name]
    if name == "getitem":
        return lambda a, key: call_torch(torch.Tensor.__getitem__, (a, key), {})
    if name == "setitem_":
        return lambda a, key, value: call_torch(torch.Tensor.__setitem__, (a, key, value), {})
    if name == "positive":
        return lambda a: call_torch(torch.positive, (a,), {})
    if name in _OPERATORS:
        return _with_operator(name)
    if name in extra_methods:
        return extra_methods[name]
    if not callable(getattr(torch.Tensor, name, None)):
        return None
    return _named(name)


def _named(name: str) -> Callable:
    def method(*args: Any, **kwargs: Any) -> Any:
        return call_torch(getattr(torch.Tensor, name), args, kwargs)

    return method


def _with_operator(name: str) -> Callable:
    """A method that is an operator too, where a number may stand on the left."""

    def method(a: Any, *rest: Any, **kwargs: Any) -> Any:
        if isinstance(a, TensorProxy) or kwargs or len(rest) != 1:
            return call_torch(getattr(torch.Tensor, name), (a, *rest), kwargs)
        fn, args = operator_call(_OPERATORS[name], (a, *rest), lambda x: isinstance(x, TensorProxy))  # type: ignore[misc]
        if name == "floor_divide":
            return clang.floor_divide(a, rest[0])
        return call_torch(fn, args, {})

    return method


_PLAIN = {
    torch.Tensor.size: _size, torch.Tensor.dim: lambda a: a.ndim, torch.Tensor.numel: lambda a: numel(a.shape),
    torch.numel: lambda input: numel(input.shape), torch.is_tensor: lambda a: True,
    torch.is_floating_point: lambda input: input.torch_dtype.is_floating_point,
    torch.is_complex: lambda input: input.torch_dtype.is_complex,
    torch.Tensor.is_floating_point: lambda a: a.torch_dtype.is_floating_point,
    torch.Tensor.is_complex: lambda a: a.torch_dtype.is_complex,
}  # fmt: skip


def torch_function(fn: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
    """A torch function or method called with proxies: a node of the current trace, or a fact of the proxy."""
    kwargs = kwargs or {}
    if fn in _PLAIN:
        return _PLAIN[fn](*args, **kwargs)
    name = getattr(fn, "__name__", "")
    if name == "__get__" and isinstance(args[0], TensorProxy):
        return getattr(args[0], fn.__self__.__name__)
    if isinstance(fn, Symbol):
        return fn(*args, **kwargs)
    return call_torch(fn, args, kwargs)


class TorchCtx(MethodTable):
    """Torch's methods; those registered by name come first."""

    def __init__(self) -> None:
        super().__init__("torch")

    def has_method(self, id: str) -> bool:
        return id in self._methods or id == "__torch_function__" or torch_method(id) is not None

    def get_method(self, id: str, *args: Any, **kwargs: Any) -> Callable:
        found = self._methods.get(id) or (torch_function if id == "__torch_function__" else torch_method(id))
        if found is None:
            raise AttributeError(f"torch tensors have no method {id!r}")
        return found


torchctx = TorchCtx()
register_langctx(Languages.TORCH, torchctx)


def register_method(method_name: str, method: Callable, /) -> None:
    """Makes `method` what `tensor.<method_name>` means."""
    torchctx.register_method(method_name, method)


def register_property(property_name: str, property: Callable, /) -> None:
    """Makes `property(tensor)` what `tensor.<property_name>`, without a call, means."""
    torchctx.register_method(property_name, _Property(property))
