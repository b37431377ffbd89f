"""thunder.core.proxies: values of a trace."""

from __future__ import annotations

import pytest
import torch

from thunder.core import devices, dtypes
from thunder.core.errors import DataDependentControlFlowError, ThunderTypeError
from thunder.core.proxies import (
    CONSTRAINT,
    AnyProxy,
    CollectionProxy,
    ComplexProxy,
    DistParallelType,
    FloatProxy,
    FutureTensorProxy,
    IntegerProxy,
    Layout,
    NumberProxy,
    Proxy,
    ProxyTag,
    StringProxy,
    TensorProxy,
    is_proxyable,
    numberproxy,
    proxy,
    pytype,
    pyval,
    tensorproxy,
    unvariableify,
    variableify,
)
from thunder.core.trace import TraceCtx, tracectx


def make(name="x", **facts):
    return TensorProxy(name, **{"shape": (2, 3), "device": "cpu", "dtype": torch.float32, **facts})


def test_facts_of_a_tensor():
    p = make(requires_grad=True, device=torch.device("cpu"), dtype=dtypes.float32)
    assert (p.shape, p.ndim, p.device, p.dtype) == ((2, 3), 2, devices.cpu, dtypes.float32)
    assert p.torch_dtype is torch.float32
    assert p.requires_grad
    assert p.grad is None
    assert p.distparallel_type is DistParallelType.NONE
    assert len(p) == 2
    assert (p.numel, p.numel()) == (6, 6)
    assert repr(p) == """<TensorProxy(name='x', "cpu f32[2, 3]")>"""


def test_weak_dtypes_are_strong_to_the_reader():
    p = make(dtype=dtypes.float32_)
    assert p.true_dtype is dtypes.float32_
    assert p.dtype is dtypes.float32


@pytest.mark.parametrize("missing", ["shape", "device", "dtype"])
def test_a_tensor_needs_shape_device_and_dtype(missing):
    facts = {"shape": (1,), "device": "cpu", "dtype": torch.float32}
    del facts[missing]
    with pytest.raises(ThunderTypeError, match="needs shape, device and dtype"):
        TensorProxy("x", **facts)


def test_like_gives_defaults():
    like = make(requires_grad=True, layout=Layout(3, (3, 1)))
    p = TensorProxy("y", like=like, dtype=torch.float64)
    assert (p.shape, p.dtype, p.requires_grad, p.layout) == ((2, 3), dtypes.float64, True, None)
    assert not TensorProxy("y", like=like, requires_grad=False).requires_grad


def test_replace_changes_some_facts_and_keeps_the_rest():
    p = make(requires_grad=True, tags={ProxyTag.DETACHED_AUTOGRAD_GRAPH}, layout=Layout(1, (3, 1), 2))
    q = p.replace(name="q", shape=(6,), requires_grad=False)
    assert (q.name, q.shape, q.requires_grad) == ("q", (6,), False)
    assert (q.tags, q.layout) == (p.tags, p.layout)
    assert (p.shape, p.requires_grad) == ((2, 3), True)
    assert p.replace_name("z").name == "z"


def test_only_the_same_value_stays_at_a_static_location():
    static = {ProxyTag.STATIC_MEMORY_LOCATION}
    p = make(tags=static)
    assert p.replace(name=p.name, requires_grad=True).tags == static
    assert p.replace(name="q").tags == frozenset()
    assert p.replace(name="q", tags=static).tags == static


def test_names_are_made_in_the_current_trace():
    with pytest.raises(ThunderTypeError, match="only be made while a trace is being built"):
        Proxy()
    with tracectx(TraceCtx()) as trace:
        made = [make(None), make(None), IntegerProxy(), FloatProxy(), ComplexProxy(), AnyProxy(), Proxy(prefix="q")]
        made += [StringProxy("a"), CollectionProxy([]), FutureTensorProxy(like=made[0]), NumberProxy()]
        assert [p.name for p in made] == ["t0", "t1", "i0", "f0", "c0", "any0", "q0", "s0", "C0", "ft0", "n0"]
        assert all(trace.has_name(p.name) for p in made)
        assert made[0].replace(dtype=torch.int64).name == "t2"
        assert made[0].replace_name("t0", disambiguate=True).name == "t0_0"


@pytest.mark.parametrize("convert", [bool, int, float, complex, range, [1].__getitem__])
def test_control_flow_on_values_is_an_error_with_advice(convert):
    with pytest.raises(DataDependentControlFlowError, match=r"of the tensor x: cpu f32\[\].*torch.where"):
        convert(make(shape=()))


def test_length_of_a_scalar():
    with pytest.raises(TypeError, match="0-dim tensor x"):
        len(make(shape=()))


def test_unknown_attributes():
    with pytest.raises(AttributeError):
        make()._private
    with pytest.raises(AttributeError, match=r"the tensor x: cpu f32\[2, 3\] has no attribute 'no_such_thing'"):
        make().no_such_thing


@pytest.mark.parametrize(
    "value, cls, text",
    [
        (2, IntegerProxy, "int 2"), (True, IntegerProxy, "bool True"), (1.5, FloatProxy, "float 1.5"),
        (2j, ComplexProxy, "complex 2j"), ("a", StringProxy, "str"), ([1], AnyProxy, "list"),
    ],
)  # fmt: skip
def test_a_proxy_for_any_value(value, cls, text):
    with tracectx(TraceCtx()):
        p = proxy(value)
        assert isinstance(p, cls)
        assert p.type_string() == text
        assert pyval(p) == value
        assert proxy(p) is p
    assert proxy(value, name="given").name == "given"


def test_a_proxy_for_a_tensor():
    t = torch.zeros(2, 1, dtype=torch.int64)
    p = tensorproxy(t, name="t")
    assert p.type_string() == "cpu i64[2, 1]"
    assert proxy(t.float().requires_grad_(), name="u").requires_grad
    assert is_proxyable(t)
    assert is_proxyable(1)
    assert not is_proxyable("a")
    assert not is_proxyable(p)


def test_numbers():
    n = NumberProxy("n", 3)
    assert n.known_value()
    assert n.is_dynamic()
    n.make_constrainable()
    assert not n.is_dynamic()
    n.make_static_constrained()
    assert n.is_static_constrained()
    assert n.replace(name="m").is_static_constrained()
    assert not NumberProxy("n").known_value()
    with tracectx(TraceCtx()):
        flag = numberproxy(bool, True, CONSTRAINT.STATIC)
        assert (flag.name, flag.type_string()) == ("b0", "bool True")
        assert type(flag.replace(name="other", value=False)) is IntegerProxy
    assert pytype(n) is int
    assert pytype(2.0) is float
    assert pytype("a") is None


def test_strings_equal_their_values():
    assert StringProxy("a", name="s") == "a"
    assert hash(StringProxy("a", name="s")) == hash("a")
    assert str(StringProxy("a", name="s")) == "a"


def test_variables_are_equal_by_name():
    a, b = variableify(make("a")), variableify(make("a", shape=(1,)))
    assert a == b
    assert hash(a) == hash(b)
    assert a != variableify(make("b"))
    assert unvariableify(a).name == "a"
    assert variableify(3) == 3
    assert unvariableify(3) == 3


def test_futures():
    like = make()
    assert FutureTensorProxy("f", like=like).replace(name="g").type_string() == "FUTURE cpu f32[2, 3]"


def test_tags_are_registered_once():
    with pytest.raises(AttributeError):
        ProxyTag.register_tag("STATIC_MEMORY_LOCATION")
