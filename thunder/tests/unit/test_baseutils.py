"""thunder.core.baseutils and thunder.core.codeutils."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest
import torch

from thunder.core import baseutils, codeutils
from thunder.core.baseutils import FrozenDict, NumberProxyInterface, Singleton, TagBase, check
from thunder.core.errors import ThunderTypeError, ThunderValueError


class Colour(TagBase):
    RED: ClassVar[Colour]
    GREEN: ClassVar[Colour]


class Shade(TagBase):
    RED: ClassVar[Shade]


def test_check():
    check(True, lambda: pytest.fail("the message of a check that holds is not built"))
    with pytest.raises(RuntimeError, match="what"):
        check(False, lambda: "what")
    with pytest.raises(KeyError):
        check(False, lambda: "what", KeyError)


def test_check_type():
    baseutils.check_type(1, int)
    baseutils.check_types([1, "a"], (int, str))
    with pytest.raises(ValueError, match=r"expected int or str, but got 1\.5, which is of type float"):
        baseutils.check_types([1, 1.5], [int, str])


@pytest.mark.parametrize("shape", [(), (2, 3), [0], torch.Size([4]), (NumberProxyInterface(),)])
def test_valid_shapes(shape):
    baseutils.check_valid_shape(shape)


@pytest.mark.parametrize(
    "shape,error", [((1.0,), TypeError), ((True,), TypeError), (3, TypeError), ("ab", TypeError), ((-1,), RuntimeError)]
)
def test_invalid_shapes(shape, error):
    with pytest.raises(error):
        baseutils.check_valid_shape(shape)


def test_sequencify():
    for sequence in ([1], (1, 2), torch.Size([2]), range(2)):
        assert baseutils.sequencify(sequence) is sequence
    for single in (1, "text", b"bytes", None, {1}):
        assert baseutils.sequencify(single) == (single,)


def test_is_collection():
    assert all(baseutils.is_collection(x) for x in ((), [], {}, set(), torch.Size([1])))
    assert not any(baseutils.is_collection(x) for x in ("text", 1, None, torch.ones(2), range(2)))


def test_run_once():
    calls = []

    @baseutils.run_once
    def f(x):
        """Doc."""
        if x < 0:
            raise ValueError(x)
        calls.append(x)
        return x

    with pytest.raises(ValueError):
        f(-1)
    assert f(1) == f(2) == 1
    assert calls == [1]
    assert f.__doc__ == "Doc."


def test_extract_callable_name():
    def f():
        pass

    class Callable:
        def __call__(self):
            pass

    assert baseutils.extract_callable_name(f) == "f"
    assert baseutils.extract_callable_name(f.__code__) == "f"
    assert baseutils.extract_callable_name(functools.partial(functools.partial(f))) == "f"
    assert baseutils.extract_callable_name(torch.nn.ReLU()) == "ReLU"
    assert baseutils.extract_callable_name(Callable()) == "Callable"
    assert baseutils.extract_callable_name(torch.sin) == "sin"


def test_nearest_match():
    assert baseutils.nearest_match("FUSION_TYP", ["cache", "fusion_type"]) == "fusion_type"
    assert baseutils.nearest_match("zzz", ["cache"]) is None
    assert baseutils.nearest_match("zzz", []) is None
    assert baseutils.did_you_mean("cash", ["cache"]) == '; did you mean "cache"?'
    assert baseutils.did_you_mean("zzz", ["cache"]) == ""


def test_default_dataclass_params():
    @dataclass(**baseutils.default_dataclass_params)
    class Record:
        x: int

    assert hash(Record(1)) == hash(Record(1))
    with pytest.raises(AttributeError):
        Record(1).x = 2
    with pytest.raises(TypeError):
        baseutils.default_dataclass_params["frozen"] = False


def test_singleton():
    class One(metaclass=Singleton):
        def __init__(self, x=0):
            self.x = x

    class Other(One):
        pass

    assert One(1) is One(2)
    assert One().x == 1
    assert Other() is Other() is not One()


def test_frozen_dict():
    d = FrozenDict({"b": 1, "a": 2})
    assert dict(d) == d == {"b": 1, "a": 2}
    assert list(d) == ["b", "a"]
    assert hash(d) == hash(FrozenDict([("a", 2), ("b", 1)]))
    assert pickle.loads(pickle.dumps(d)) == copy.deepcopy(d) == d
    assert repr(d) == "FrozenDict({'b': 1, 'a': 2})"
    with pytest.raises(TypeError):
        d["b"] = 3
    with pytest.raises(TypeError):
        hash(FrozenDict({"a": []}))


def test_tags():
    assert Colour.members()[:2] == (Colour.RED, Colour.GREEN)
    assert repr(Colour.RED) == "Colour.RED"
    assert Colour.RED.name == "RED"
    assert len({Colour.RED, Colour.GREEN, Colour.RED, Shade.RED}) == 3
    assert Colour.RED != Shade.RED
    assert sorted([Colour.GREEN, Colour.RED]) == [Colour.RED, Colour.GREEN]
    assert copy.deepcopy(Colour.RED) is pickle.loads(pickle.dumps(Colour.RED)) is Colour.RED
    with pytest.raises(TypeError):
        sorted([Colour.RED, Shade.RED])
    with pytest.raises(ThunderTypeError, match="register_tag"):
        Colour("BLUE")


def test_register_tag():
    class Local(TagBase):
        pass

    blue = Local.register_tag("BLUE")
    assert Local.BLUE is blue
    assert Local.members() == (blue,)
    with pytest.raises(AttributeError, match="already has BLUE"):
        Local.register_tag("BLUE")
    with pytest.raises(AttributeError, match="already has members"):
        Local.register_tag("members")
    with pytest.raises(ThunderValueError, match="identifier"):
        Local.register_tag("not a name")
    assert not hasattr(Colour, "BLUE")


def test_module_shortname():
    assert codeutils.module_shortname("thunder.torch") == "ltorch"
    assert codeutils.module_shortname("thunder.numpy") == "lnp"
    assert codeutils.module_shortname("thunder.core.prims") == "prims"
    assert codeutils.module_shortname(numpy) == "numpy"


def test_get_source_line():
    assert codeutils.get_source_line(__file__, 1) == '"""thunder.core.baseutils and thunder.core.codeutils."""'
    assert codeutils.get_source_line(__file__, 10**6) == ""
    assert codeutils.get_source_line("no such file", 1) == ""


def test_get_siginfo():
    def f(a, b=2, *rest, c, d=4, **more):
        pass

    info = codeutils.get_siginfo(f, (1,), {"c": 3, "e": 5})
    assert info.name == "f"
    assert info.args == [("a", 1), ("b", 2)]
    assert info.varargs == ("rest", ())
    assert info.kwargs == {"c": 3, "d": 4}
    assert info.varkwargs == ("more", {"e": 5})
    assert info.defaultdict == {"b": 2, "d": 4}
    assert info.unwrapped_fn is f
    assert info.prettyprint() == "def f(a, b, *rest, c, d, **more):"
    assert info.prettyprint(print_default=repr) == "def f(a, b=2, *rest, c, d=4, **more):"


def test_get_siginfo_of_other_callables():
    def f(a, *, b):
        pass

    bound = codeutils.get_siginfo(functools.partial(f, b=3), (1,), {})
    assert (bound.name, bound.args, bound.kwargs, bound.unwrapped_fn) == ("f", [("a", 1)], {"b": 3}, f)
    assert bound.prettyprint() == "def f(a, *, b):"
    module = torch.nn.ReLU()
    assert codeutils.get_siginfo(module, (1,), {}).args == [("input", 1)]
    assert codeutils.get_siginfo(torch.sin, (1,), {}).args == [("arg0", 1)]
    with pytest.raises(ThunderTypeError, match=r"cannot call f\(a, \*, b\)"):
        codeutils.get_siginfo(f, (), {})


def test_siginfo_from_name_and_args():
    args = [Colour.RED, Colour.GREEN]
    info = codeutils.SigInfo.from_name_and_args("computation", args)
    assert info.args == [("RED", Colour.RED), ("GREEN", Colour.GREEN)]
    assert info.prettyprint() == "def computation(RED, GREEN):"
