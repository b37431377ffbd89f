"""thunder.core.dtypes, compared with the facts torch gives about its own dtypes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._prims_common import corresponding_complex_dtype, corresponding_real_dtype, dtype_to_type

from thunder.core import dtypes
from thunder.core.errors import ThunderTypeError, ThunderValueError

PAIRS = sorted(dtypes._torch_to_thunder_dtype_map.items(), key=lambda pair: str(pair[0]))
all_pairs = pytest.mark.parametrize("torch_dtype,strong", PAIRS, ids=[str(t) for t, _ in PAIRS])


def test_every_plain_torch_dtype_has_a_counterpart():
    names = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64"
    names += " complex32 complex64 complex128"
    floats8 = {name for name in dir(torch) if name.startswith(("float8", "float4"))}
    expected = {getattr(torch, name) for name in [*names.split(), *floats8]}
    assert set(dtypes._torch_to_thunder_dtype_map) == expected


@all_pairs
def test_facts_agree_with_torch(torch_dtype, strong):
    assert strong.bytes == torch_dtype.itemsize
    assert strong.bits == 8 * torch_dtype.itemsize
    assert dtypes.is_float_dtype(strong) == torch_dtype.is_floating_point
    assert dtypes.is_complex_dtype(strong) == torch_dtype.is_complex
    assert dtypes.is_inexact_dtype(strong) == (torch_dtype.is_floating_point or torch_dtype.is_complex)
    assert dtypes.is_exact_dtype(strong) != dtypes.is_inexact_dtype(strong)
    if dtypes.is_exact_dtype(strong):
        assert dtypes.is_unsigned_dtype(strong) != torch_dtype.is_signed


@pytest.mark.parametrize(
    "torch_dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64]
)
def test_python_type_agrees_with_torch(torch_dtype):
    assert dtypes.to_dtype(torch_dtype).python_type is dtype_to_type(torch_dtype)
    assert dtypes.dtype_to_numbertype(torch_dtype) is dtype_to_type(torch_dtype)


@all_pairs
def test_conversions_between_forms(torch_dtype, strong):
    weak = dtypes.to_weak_dtype(strong)
    assert dtypes.to_dtype(torch_dtype) is strong
    assert dtypes.to_torch_dtype(strong) is dtypes.to_torch_dtype(weak) is torch_dtype
    assert not strong.is_weak
    assert weak.is_weak
    assert dtypes.to_strong_dtype(weak) is dtypes.to_strong_dtype(strong) is strong
    assert dtypes.to_weak_dtype(weak) is weak
    assert type(weak) is type(strong)
    assert (weak.bytes, weak.python_type) == (strong.bytes, strong.python_type)
    assert weak.full_name == strong.full_name + "_"
    assert weak.shortname() == strong.shortname() + "_"


@all_pairs
def test_singletons(torch_dtype, strong):
    for form in (strong, dtypes.to_weak_dtype(strong)):
        assert getattr(dtypes, form.full_name) is form
        assert copy.copy(form) is form
        assert copy.deepcopy({"a": form})["a"] is form
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(form, protocol)) is form


def test_names():
    assert repr(dtypes.float32) == str(dtypes.float32) == "thunder.dtypes.float32"
    assert repr(dtypes.int8_) == "thunder.dtypes.int8_"
    shortnames = {
        "b8": dtypes.bool8,
        "ui8": dtypes.uint8,
        "i64": dtypes.int64,
        "bf16": dtypes.bfloat16,
        "f32": dtypes.float32,
        "c64": dtypes.complex64,
        "f8_e4m3fn": dtypes.float8_e4m3fn,
    }
    assert {name: d.shortname() for name, d in shortnames.items()} == {name: name for name in shortnames}
    assert len({d.shortname() for d in dtypes.all_dtypes}) == len(dtypes.all_dtypes) == 2 * len(PAIRS)


def test_dtypes_cannot_be_changed():
    with pytest.raises(AttributeError):
        dtypes.float32.bytes = 8


@pytest.mark.parametrize(
    "x,expected",
    [
        (None, None),
        (float, dtypes.float32_),
        (bool, dtypes.bool8_),
        (True, dtypes.bool8_),
        (3, dtypes.int64_),
        (1.5, dtypes.float32_),
        (2j, dtypes.complex64_),
        (torch.ones(1, dtype=torch.float16), dtypes.float16),
        (np.ones(1, dtype=np.int16), dtypes.int16),
        (np.float64(1), dtypes.float64),
        (np.dtype("complex128"), dtypes.complex128),
        (np.bool_, dtypes.bool8),
    ],
)
def test_to_dtype(x, expected):
    assert dtypes.to_dtype(x) is expected


def test_to_dtype_of_proxies():
    class TensorLike:
        dtype = dtypes.float32
        true_dtype = dtypes.float32_

    class NumberLike:
        python_type = int

    assert dtypes.to_dtype(TensorLike()) is dtypes.float32
    assert dtypes.to_dtype(TensorLike(), true_dtype=True) is dtypes.float32_
    assert dtypes.to_dtype(NumberLike()) is dtypes.int64_
    assert dtypes.to_dtype(torch.ones(1), true_dtype=True) is dtypes.float32


@pytest.mark.parametrize("x", ["float32", object(), str, [torch.float32]])
def test_to_dtype_rejects_other_objects(x):
    with pytest.raises(ThunderTypeError, match="dtype"):
        dtypes.to_dtype(x)


@pytest.mark.parametrize("x", [torch.quint8, torch.bits8, np.dtype("M8[ns]"), np.dtype("U3")])
def test_to_dtype_rejects_unsupported_dtypes(x):
    with pytest.raises(ThunderValueError, match="no counterpart"):
        dtypes.to_dtype(x)


@pytest.mark.parametrize("function", [dtypes.to_strong_dtype, dtypes.to_weak_dtype, dtypes.is_weak_dtype])
def test_none_is_no_dtype(function):
    with pytest.raises(ThunderTypeError, match="None"):
        function(None)


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@all_pairs
def test_numpy(torch_dtype, strong):
    try:
        expected = torch.empty(0, dtype=torch_dtype).numpy().dtype
    except TypeError:
        with pytest.raises(ThunderValueError, match="numpy has no counterpart"):
            dtypes.to_numpy_dtype(strong)
        return
    assert dtypes.to_numpy_dtype(strong) == dtypes.to_numpy_dtype(dtypes.to_weak_dtype(strong)) == expected
    assert dtypes.to_dtype(expected) is strong


def test_conversion_to_foreign_dtypes_passes_through():
    assert dtypes.to_torch_dtype(None) is None
    assert dtypes.to_torch_dtype(torch.quint8) is torch.quint8
    assert dtypes.to_torch_dtype(int) is torch.int64
    assert dtypes.to_numpy_dtype(None) is None
    assert dtypes.to_numpy_dtype(np.dtype("U3")) == np.dtype("U3")


@pytest.mark.parametrize("torch_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_corresponding_complex(torch_dtype):
    expected = dtypes.to_dtype(corresponding_complex_dtype(torch_dtype))
    strong = dtypes.to_dtype(torch_dtype)
    assert dtypes.corresponding_complex_dtype(strong) is expected
    assert dtypes.corresponding_complex_dtype(dtypes.to_weak_dtype(strong)) is dtypes.to_weak_dtype(expected)


@pytest.mark.parametrize("torch_dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_corresponding_real(torch_dtype):
    expected = dtypes.to_dtype(corresponding_real_dtype(torch_dtype))
    strong = dtypes.to_dtype(torch_dtype)
    assert dtypes.corresponding_real_dtype(strong) is expected
    assert dtypes.corresponding_real_dtype(dtypes.to_weak_dtype(strong)) is dtypes.to_weak_dtype(expected)


def test_corresponding_of_number_types_and_others():
    assert dtypes.corresponding_real_dtype(complex) is float
    assert dtypes.corresponding_complex_dtype(float) is complex
    with pytest.raises(ThunderValueError, match="complex"):
        dtypes.corresponding_real_dtype(dtypes.float32)
    with pytest.raises(ThunderValueError, match="floating point"):
        dtypes.corresponding_complex_dtype(dtypes.int32)


def test_number_types():
    assert dtypes.all_numbertypes == {bool, int, float, complex}
    for numbertype in dtypes.all_numbertypes:
        weak = dtypes.numbertype_to_dtype(numbertype)
        assert weak.is_weak
        assert dtypes.is_weak_dtype(numbertype)
        assert dtypes.to_weak_dtype(numbertype) is numbertype
        assert dtypes.dtype_to_numbertype(weak) is dtypes.dtype_to_numbertype(numbertype) is numbertype
        assert dtypes.is_numbertype(numbertype)
        assert dtypes.is_dtype(numbertype)
    assert not dtypes.is_numbertype(str)
    assert not dtypes.is_numbertype(dtypes.int64_)
    assert not dtypes.is_dtype(torch.float32)
    with pytest.raises(ThunderTypeError, match="bool, int, float"):
        dtypes.numbertype_to_dtype(str)


PREDICATES = {
    "boolean_dtypes": dtypes.is_boolean_dtype,
    "integer_dtypes": dtypes.is_integer_dtype,
    "nonboolean_integer_dtypes": dtypes.is_nonboolean_integer_dtype,
    "exact_dtypes": dtypes.is_exact_dtype,
    "low_precision_dtypes": dtypes.is_low_precision_dtype,
    "float_dtypes": dtypes.is_float_dtype,
    "complex_dtypes": dtypes.is_complex_dtype,
    "inexact_dtypes": dtypes.is_inexact_dtype,
    "weak_dtypes": dtypes.is_weak_dtype,
}


@pytest.mark.parametrize("name", PREDICATES)
def test_sets_agree_with_predicates(name):
    members = {d for d in dtypes.all_dtypes_and_numbertypes if PREDICATES[name](d)}
    assert getattr(dtypes, name) == members
    assert members


def test_sets():
    assert dtypes.weak_dtypes | dtypes.strong_dtypes == dtypes.all_dtypes_and_numbertypes
    assert not dtypes.weak_dtypes & dtypes.strong_dtypes
    assert len(dtypes.float_8bit_dtypes) == 10
    assert len(dtypes.low_precision_dtypes) == 18
    assert len(dtypes.float_math_dtypes) == 8
    signed = {d for d in dtypes.all_dtypes if dtypes.is_signedinteger_dtype(d)}
    assert {d.shortname() for d in signed & dtypes.strong_dtypes} == {"i8", "i16", "i32", "i64"}


def test_resolve_dtypes():
    assert dtypes.resolve_dtypes([dtypes.bool_, torch.float32]) == {dtypes.bool8, dtypes.bool8_, dtypes.float32}
    assert dtypes.resolve_dtypes((dtypes.exact, dtypes.inexact)) == dtypes.all_dtypes
    assert dtypes.resolve_dtypes([]) == set()
    with pytest.raises(ThunderTypeError):
        dtypes.resolve_dtypes(["float32"])


def test_has_subdtype():
    assert dtypes.has_subdtype(torch.float16, dtypes.inexact)
    assert dtypes.has_subdtype(bool, dtypes.exact)
    assert not dtypes.has_subdtype(dtypes.int8, dtypes.unsignedinteger)


def test_are_same_dtypes():
    assert dtypes.are_same_dtypes(dtypes.float32, dtypes.float32_)
    assert dtypes.are_same_dtypes(torch.float32, float)
    assert not dtypes.are_same_dtypes(dtypes.float32, dtypes.float32_, weak_and_strong_are_equivalent=False)
    assert not dtypes.are_same_dtypes(dtypes.int32, int)
