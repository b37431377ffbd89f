"""Values of a trace: tensors, numbers and opaque objects that are known by type and name only.

A proxy is frozen; `replace` makes another. Facts of a value (shape, dtype, device, requires_grad, memory layout,
distributed layout) live here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from numbers import Number
from typing import Any, ClassVar

import torch

from thunder.core import devices, dtypes
from thunder.core.baseutils import NumberProxyInterface, ProxyInterface, TagBase, TensorProxyInterface
from thunder.core.errors import DataDependentControlFlowError, ThunderTypeError
from thunder.core.tracing import get_tracectx, resolve_method

ShapeLike = tuple[int, ...]


class ProxyTag(TagBase):
    """Facts of a value that transforms attach."""

    RECOMPUTE_IN_BACKWARD: ClassVar[ProxyTag]
    DETACHED_AUTOGRAD_GRAPH: ClassVar[ProxyTag]
    STATIC_MEMORY_LOCATION: ClassVar[ProxyTag]


class DistParallelType(Enum):
    """How a parameter is laid out over the processes of a group."""

    NONE = auto()
    REPLICATED = auto()
    FULLY_SHARDED = auto()
    COLUMN_WISE = auto()
    ROW_WISE = auto()


class CONSTRAINT(Enum):
    """How much a number proxy's value may vary between calls of one program."""

    DYNAMIC = auto()
    CONSTRAINABLE = auto()
    STATIC = auto()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: an id of its storage (equal ids share memory), strides and offset in elements.

    Strides and offset are of the captured program; a value that a rewrite makes carries none (`TensorProxy.layout` is
    None).
    """

    storage: int
    strides: tuple
    offset: Any = 0


class Variable:
    """A proxy as a dictionary key: equal when the names are."""

    __slots__ = ("proxy",)

    def __init__(self, proxy: Proxy):
        self.proxy = proxy

    @property
    def name(self) -> str:
        return self.proxy.name

    def __hash__(self) -> int:
        return hash(self.proxy.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variable) and self.proxy.name == other.proxy.name

    def __repr__(self) -> str:
        return f"Variable({self.proxy.name})"


def variableify(x: Any) -> Any:
    """`x` as a Variable when it is a proxy, else `x`."""
    return Variable(x) if isinstance(x, Proxy) else x


def unvariableify(x: Any) -> Any:
    """The inverse of `variableify`."""
    return x.proxy if isinstance(x, Variable) else x


def make_proxy_name(*, name: str | None = None, prefix: str = "p") -> str:
    """A name that is free in the current trace, or `name`, entered there (RuntimeError if it is taken)."""
    trace = get_tracectx()
    if trace is None:
        raise ThunderTypeError("a proxy without a name can only be made while a trace is being built")
    return trace.make_name(name, prefix=prefix)


class Proxy(ProxyInterface):
    """A named value of a trace, of any type.

    Raises ThunderTypeError when made without a name and outside a trace.
    """

    default_prefix = "p"

    def __init__(
        self, name: str | None = None, *, prefix: str | None = None, history: Any = None, tags: Any = None
    ) -> None:
        if name is None:
            name = make_proxy_name(prefix=prefix or self.default_prefix)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_tags", frozenset(tags or ()))
        self.history = history

    @property
    def name(self) -> str:
        return self._name  # type: ignore[attr-defined]

    @property
    def tags(self) -> frozenset:
        return self._tags  # type: ignore[attr-defined]

    @property
    def prefix(self) -> str:
        return self.default_prefix

    def get_default_prefix(self) -> str:
        return self.default_prefix

    def replace(self, **changes: Any) -> Proxy:
        """A proxy of the same type with some facts changed; a new name unless `name` is given."""
        return type(self)(changes.get("name"), history=self.history, tags=changes.get("tags", self.tags))

    def replace_name(self, name: str | None = None, *, disambiguate: bool = False) -> Proxy:
        """The same value under another name (`disambiguate`: a free one that starts with `name`)."""
        if name is None or disambiguate:
            name = make_proxy_name(prefix=f"{name}_" if name else self.default_prefix)
        return self.replace(name=name)

    def type_string(self) -> str:
        return "Any"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(name={self.name!r})>"


class AnyProxy(Proxy):
    """An opaque Python object that the program passes on."""

    default_prefix = "any"

    def __init__(self, o: Any = None, /, *, name: str | None = None, prefix: str | None = None, **kwargs: Any) -> None:
        super().__init__(name, prefix=prefix, **kwargs)
        self._o = o

    def replace(self, **changes: Any) -> AnyProxy:
        return AnyProxy(self._o, name=changes.get("name"), history=self.history, tags=changes.get("tags", self.tags))

    def type_string(self) -> str:
        return type(self._o).__name__ if self._o is not None else "Any"


class StringProxy(Proxy):
    """A string known when the trace is built."""

    default_prefix = "s"

    def __init__(self, s: str, /, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.value = s

    def replace(self, **changes: Any) -> StringProxy:
        return StringProxy(self.value, name=changes.get("name"), history=self.history)

    def type_string(self) -> str:
        return "str"

    def __str__(self) -> str:
        return self.value

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, StringProxy) else other)

    def __hash__(self) -> int:
        return hash(self.value)


class CollectionProxy(Proxy):
    """A container passed as one value, for example the saved tensors of a backward function."""

    default_prefix = "C"

    def __init__(self, coll: Any, *, name: str | None = None, tags: Any = None) -> None:
        super().__init__(name, tags=tags)
        self.coll = coll

    def collection(self) -> Any:
        """The container, with proxies in it."""
        return self.coll

    def replace(self, **changes: Any) -> CollectionProxy:
        return CollectionProxy(changes.get("coll", self.coll), name=changes.get("name"))

    def type_string(self) -> str:
        return "Collection"


class NumberProxy(Proxy, NumberProxyInterface):
    """A number. `value` is None when only the type is known (a dynamic number)."""

    default_prefix = "n"

    def __init__(
        self,
        name: str | None = None,
        value: Any = None,
        *,
        python_type: type = int,
        history: Any = None,
        constraint: CONSTRAINT | None = None,
        tags: Any = None,
    ) -> None:
        super().__init__(name, history=history, tags=tags)
        self.value = value
        self.python_type = python_type
        self.constraint = constraint or CONSTRAINT.DYNAMIC

    def replace(self, **changes: Any) -> NumberProxy:
        return type(self)(
            changes.get("name"),
            changes.get("value", self.value),
            python_type=changes.get("python_type", self.python_type),
            history=self.history,
            constraint=changes.get("constraint", self.constraint),
            tags=changes.get("tags", self.tags),
        )

    def known_value(self) -> bool:
        return self.value is not None

    def is_dynamic(self) -> bool:
        return self.constraint is CONSTRAINT.DYNAMIC

    def is_static_constrained(self) -> bool:
        return self.constraint is CONSTRAINT.STATIC

    def make_static_constrained(self) -> None:
        self.constraint = CONSTRAINT.STATIC

    def make_constrainable(self) -> None:
        self.constraint = CONSTRAINT.CONSTRAINABLE

    def type_string(self) -> str:
        value = "" if self.value is None else f" {self.value}"
        return f"{self.python_type.__name__}{value}"


def _number_class(python_type: type, prefix: str) -> type[NumberProxy]:
    def __init__(self: NumberProxy, name: str | None = None, value: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("python_type", python_type)
        NumberProxy.__init__(self, name, value, **kwargs)

    label = {"i": "IntegerProxy", "f": "FloatProxy", "c": "ComplexProxy"}[prefix]
    doc = f"A number of type {python_type.__name__}."
    return type(label, (NumberProxy,), {"__init__": __init__, "default_prefix": prefix, "__doc__": doc})


IntegerProxy = _number_class(int, "i")
FloatProxy = _number_class(float, "f")
ComplexProxy = _number_class(complex, "c")
NumberLike = Number | NumberProxy


def _data_dependent(kind: str) -> Callable[[TensorProxy], Any]:
    def conversion(self: TensorProxy) -> Any:
        raise DataDependentControlFlowError(
            f"{kind}() of the tensor {self.name}: {self.type_string()} needs its values, which are not known while "
            f"the program is traced. Use torch.where or keep the value in a tensor."
        )

    return conversion


class TensorProxy(Proxy, TensorProxyInterface):
    """A tensor of a trace.

    Args:
        name: a unique identifier; None takes a free one of the current trace.
        like: another tensor proxy whose facts are the defaults.
        shape: sizes, each an int or a torch.SymInt.
        device, dtype: thunder's or torch's objects; dtype in the strong form.
        requires_grad: whether autograd tracks it.
        layout: memory layout in the captured program, or None.
    """

    default_prefix = "t"

    def __init__(
        self,
        name: str | None = None,
        *,
        like: TensorProxy | FutureTensorProxy | None = None,
        shape: Any = None,
        device: Any = None,
        dtype: Any = None,
        requires_grad: bool | None = None,
        grad: TensorProxy | None = None,
        prefix: str | None = None,
        distparallel_type: DistParallelType | None = None,
        history: Any = None,
        tags: Any = None,
        thunder_fsdp_padding_size: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(name, prefix=prefix, history=history, tags=tags)
        if like is not None:
            shape = like.shape if shape is None else shape
            device = like.device if device is None else device
            dtype = like.true_dtype if dtype is None else dtype
            requires_grad = like.requires_grad if requires_grad is None else requires_grad
        if shape is None or device is None or dtype is None:
            raise ThunderTypeError("a TensorProxy needs shape, device and dtype, or `like`")
        self._shape = tuple(shape)
        self._device = devices.to_device(device)
        self._dtype = dtypes.to_dtype(dtype)
        self._requires_grad = bool(requires_grad)
        self._grad = grad
        self.distparallel_type = distparallel_type or DistParallelType.NONE
        self.thunder_fsdp_padding_size = thunder_fsdp_padding_size
        self.layout = layout

    @property
    def shape(self) -> tuple:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def device(self) -> devices.Device:
        return self._device

    @property
    def true_dtype(self) -> dtypes.dtype:
        return self._dtype

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @property
    def grad(self) -> TensorProxy | None:
        return self._grad

    @property
    def dtype(self) -> dtypes.dtype:
        return dtypes.to_strong_dtype(self._dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        return dtypes.to_torch_dtype(self._dtype)

    @property
    def numel(self) -> Any:
        return _Numel.of(self._shape)

    def replace(self, **changes: Any) -> TensorProxy:
        """A tensor with some facts changed; a new name unless `name` is given. The layout is kept unless given.

        A tensor of another name is another value, which STATIC_MEMORY_LOCATION says nothing about.
        """
        facts = {
            "shape": self._shape,
            "device": self._device,
            "dtype": self._dtype,
            "requires_grad": self._requires_grad,
            "distparallel_type": self.distparallel_type,
            "thunder_fsdp_padding_size": self.thunder_fsdp_padding_size,
            "tags": self.tags,
            "history": self.history,
            "layout": self.layout,
        }
        facts.update(changes)
        name = facts.pop("name", None)
        if name != self.name and "tags" not in changes:
            facts["tags"] = self.tags - {ProxyTag.STATIC_MEMORY_LOCATION}
        return TensorProxy(name, **facts)

    def type_string(self) -> str:
        dims = ", ".join(str(s) for s in self._shape)
        return f"{self._device.device_str()} {self.dtype.shortname()}[{dims}]"

    def __repr__(self) -> str:
        return f'<TensorProxy(name={self.name!r}, "{self.type_string()}")>'

    def __len__(self) -> int:
        if not self._shape:
            raise ThunderTypeError(f"len() of the 0-dim tensor {self.name}")
        return self._shape[0]

    def __iter__(self) -> Iterator[TensorProxy]:
        return iter(resolve_method("unbind", self)(self, 0))

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("__") or attr.startswith("_"):
            raise AttributeError(attr)
        method = resolve_method(attr, self)
        if method is None:
            raise AttributeError(f"the tensor {self.name}: {self.type_string()} has no attribute {attr!r}")
        if getattr(method, "is_property", False):
            return method(self)
        return lambda *args, **kwargs: method(self, *args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return resolve_method("__torch_function__", None)(func, args, kwargs or {})

    __bool__ = _data_dependent("bool")
    __int__ = _data_dependent("int")
    __float__ = _data_dependent("float")
    __complex__ = _data_dependent("complex")
    __index__ = _data_dependent("int")
    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> Any:
        return resolve_method("getitem", self)(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        resolve_method("setitem_", self)(self, key, value)


class _Numel(int):
    """An element count that can also be called, as `x.numel` and `x.numel()` are both in use."""

    @staticmethod
    def of(shape: tuple) -> Any:
        n: Any = 1
        for size in shape:
            n = n * size
        return _Numel(n) if isinstance(n, int) else n

    def __call__(self) -> int:
        return int(self)


def _operator(method: str, reflected: bool = False, inplace: bool = False) -> Callable:
    if inplace:
        return lambda self, other: resolve_method(method + "_", self)(self, other)
    if reflected:
        return lambda self, other: resolve_method(method, self)(other, self)
    return lambda self, *others: resolve_method(method, self)(self, *others)


_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "true_divide", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
for _op, _method in _BINARY.items():
    setattr(TensorProxy, f"__{_op}__", _operator(_method))
    setattr(TensorProxy, f"__r{_op}__", _operator(_method, reflected=True))
    setattr(TensorProxy, f"__i{_op}__", _operator({"truediv": "div"}.get(_op, _method), inplace=True))
for _op in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(TensorProxy, f"__{_op}__", _operator(_op))
for _op, _method in {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}.items():
    setattr(TensorProxy, f"__{_op}__", _operator(_method))
for _op in ("ceil", "floor", "trunc", "round"):
    setattr(TensorProxy, f"__{_op}__", _operator(_op))


class FutureTensorProxy(Proxy):
    """The result of an asynchronous collective; `wait()` gives the tensor."""

    default_prefix = "ft"
    shape: tuple
    device: devices.Device
    true_dtype: dtypes.dtype
    requires_grad: bool

    def __init__(
        self,
        name: str | None = None,
        *,
        like: TensorProxy | FutureTensorProxy | None = None,
        shape: Any = None,
        device: Any = None,
        dtype: Any = None,
        prefix: str | None = None,
        history: Any = None,
        tags: Any = None,
    ) -> None:
        super().__init__(name, prefix=prefix, history=history, tags=tags)
        if like is not None:
            shape, device, dtype = like.shape, like.device, like.true_dtype
        self.shape = tuple(shape)
        self.device = devices.to_device(device)
        self.true_dtype = dtypes.to_dtype(dtype)
        self.requires_grad = False

    dtype = property(lambda self: dtypes.to_strong_dtype(self.true_dtype))
    ndim = property(lambda self: len(self.shape))

    def wait(self) -> TensorProxy:
        return resolve_method("wait", self)(self)

    def replace(self, **changes: Any) -> FutureTensorProxy:
        return FutureTensorProxy(changes.get("name"), like=self)

    def type_string(self) -> str:
        dims = ", ".join(str(s) for s in self.shape)
        return f"FUTURE {self.device.device_str()} {self.dtype.shortname()}[{dims}]"


def tensors_among(values: Iterable[Any]) -> list[TensorProxy]:
    """The tensors among values, in order."""
    return [v for v in values if isinstance(v, TensorProxy)]


def pyval(x: Any) -> Any:
    """The Python value behind a number, string or opaque proxy; `x` itself otherwise."""
    if isinstance(x, NumberProxy | StringProxy):
        return x.value
    return x._o if isinstance(x, AnyProxy) else x


def pytype(x: Any) -> type | None:
    """The Python type of a number-like value."""
    if isinstance(x, NumberProxy):
        return x.python_type
    return type(x) if isinstance(x, Number) else None


def numberproxy(cls: type, value: Any, constraint: CONSTRAINT | None = None, *, name: str | None = None) -> NumberProxy:
    """A number proxy for values of the Python type `cls`."""
    table = {bool: IntegerProxy, int: IntegerProxy, float: FloatProxy, complex: ComplexProxy}
    if name is None and cls is bool:
        name = make_proxy_name(prefix="b")
    return table[cls](name, value, python_type=cls, constraint=constraint)


def tensorproxy(t: torch.Tensor, /, *, name: str | None = None, history: Any = None) -> TensorProxy:
    """A proxy with the metadata of the tensor `t`."""
    return TensorProxy(
        name, shape=tuple(t.shape), device=t.device, dtype=t.dtype, requires_grad=t.requires_grad, history=history
    )


def futuretensorproxy(t: Any, /, *, name: str | None = None, history: Any = None) -> FutureTensorProxy:
    """A future with the metadata of the tensor or proxy `t`."""
    like = t if isinstance(t, TensorProxy | FutureTensorProxy) else tensorproxy(t, name="_")
    return FutureTensorProxy(name, like=like, history=history)


def is_proxyable(x: Any, /) -> bool:
    """Whether `proxy(x)` makes a tensor or number proxy."""
    return isinstance(x, torch.Tensor | Number) and not isinstance(x, Proxy)


def proxy(x: Any, *, name: str | None = None, history: Any = None) -> Any:
    """A proxy for a Python value: tensors, numbers, strings; an AnyProxy for all else. A proxy is returned as it is."""
    if isinstance(x, Proxy):
        return x
    if isinstance(x, torch.Tensor):
        return tensorproxy(x, name=name, history=history)
    if isinstance(x, Number):
        return numberproxy(type(x), x, name=name)
    if isinstance(x, str):
        return StringProxy(x, name=name, history=history)
    return AnyProxy(x, name=name, history=history)
