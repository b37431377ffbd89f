"""Type promotion against torch's own, and what dims and devices are checked for."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as TorchKind
from torch._prims_common import elementwise_dtypes

from thunder.core import dims, dtypes
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from thunder.core.promotion import can_safe_cast_to, const_as, elementwise_type_promotion
from thunder.core.proxies import TensorProxy

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip
NUMBERS = (True, 2, 2.5, 2j)
KINDS = {
    Kind.DEFAULT: TorchKind.DEFAULT,
    Kind.PRESERVE: TorchKind.NO_OPMATH,
    Kind.INT_TO_FLOAT: TorchKind.INT_TO_FLOAT,
    Kind.ALWAYS_BOOL: TorchKind.ALWAYS_BOOL,
    Kind.COMPLEX_TO_FLOAT: TorchKind.COMPLEX_TO_FLOAT,
    Kind.BOOL_TO_LONG: TorchKind.BOOL_TO_LONG,
}
# Comparisons are exact in any dtype, and eager's kernels convert a number to the tensor's dtype before they compare.
COMPUTED_AS_IS = (Kind.PRESERVE, Kind.ALWAYS_BOOL)


def proxied(x: object, n: int) -> object:
    if not isinstance(x, torch.Tensor):
        return x
    return TensorProxy(f"x{n}", shape=x.shape, dtype=x.dtype, device=x.device)


def torch_answer(args: tuple, kind: TorchKind) -> tuple[torch.dtype, torch.dtype]:
    return elementwise_dtypes(*args, type_promotion_kind=kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_promotion_is_torchs(kind):
    tensors = [torch.empty(shape, dtype=d) for d in DTYPES for shape in ((2,), ())]
    cases = [(t,) for t in tensors]
    cases += list(itertools.product(tensors, tensors))
    cases += list(itertools.product(tensors, NUMBERS))
    wrong = []
    for args in cases:
        want = torch_answer(args, KINDS[kind])
        got = elementwise_type_promotion(*(proxied(a, n) for n, a in enumerate(args)), type_promotion_kind=kind)
        result = dtypes.to_torch_dtype(got[1])
        if result is not want[1] or (kind not in COMPUTED_AS_IS and dtypes.to_torch_dtype(got[0]) is not want[0]):
            wrong.append((*(getattr(a, "dtype", a) for a in args), got, want))
    assert not wrong


def test_results_under_another_default_dtype():
    a = proxied(torch.empty(2, dtype=torch.int64), 0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert elementwise_type_promotion(a, type_promotion_kind=Kind.INT_TO_FLOAT)[1] is dtypes.float64
        assert elementwise_type_promotion(a, 1.5, type_promotion_kind=Kind.DEFAULT)[1] is dtypes.float64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "args, kind, expected",
    [
        ((1, 2.0), Kind.DEFAULT, (float, float)),
        ((True, True), Kind.BOOL_TO_LONG, (int, int)),
        ((1,), Kind.INT_TO_FLOAT, (float, float)),
        ((1.5,), Kind.NUMBER_TO_INT, (float, int)),
        ((2j,), Kind.COMPLEX_TO_FLOAT, (complex, float)),
        ((1, 2), Kind.ALWAYS_BOOL, (int, bool)),
    ],
)
def test_numbers_alone(args, kind, expected):
    assert elementwise_type_promotion(*args, type_promotion_kind=kind) == expected


def test_no_argument_and_no_number():
    with pytest.raises(TypeError):
        elementwise_type_promotion(type_promotion_kind=Kind.DEFAULT)
    with pytest.raises(TypeError, match="str"):
        elementwise_type_promotion("x", proxied(torch.ones(2), 0), type_promotion_kind=Kind.DEFAULT)


def test_casts_of_numbers():
    assert const_as(1, dtypes.float32) == 1.0
    assert type(const_as(2.0, dtypes.int64)) is int
    with pytest.raises(ValueError, match="complex"):
        const_as(2j, dtypes.float32)
    assert can_safe_cast_to(cast_to=dtypes.float32, cast_from=dtypes.int64)
    assert not can_safe_cast_to(cast_to=bool, cast_from=float)


def test_dims():
    assert dims.canonicalize_dim(3, -1) == 2
    assert dims.canonicalize_dims(3, (0, -2)) == (0, 1)
    assert dims.canonicalize_dim(0, -1) == 0
    assert dims.compute_broadcast_shape((2, 1), (3,), None, ()) == (2, 3)
    assert dims.compute_broadcast_shape((0, 1), (1, 4)) == (0, 4)
    assert dims.infer_minus_one((2, -1), 6) == (2, 3)
    assert dims.extract_shape_from_varargs(((2, 3),)) == dims.extract_shape_from_varargs((2, 3)) == (2, 3)
    with pytest.raises(IndexError, match="out of range"):
        dims.canonicalize_dim(2, 2)
    with pytest.raises(RuntimeError, match="broadcast"):
        dims.compute_broadcast_shape((2,), (3,))
    with pytest.raises(RuntimeError, match="twice"):
        dims.check_no_duplicates((1, 1))
    with pytest.raises(RuntimeError, match="permutation"):
        dims.check_valid_permutation(2, (0, 0))
    with pytest.raises(RuntimeError, match="invalid for input"):
        dims.infer_minus_one((4, -1), 6)
