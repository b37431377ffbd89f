"""Broadcasting and type promotion over primitives: functions that leave only primitives in a trace."""

# ruff: noqa: I001  (several names a line, so that the file stays within its limit)

from thunder.clang.creation import (
    arange, construct_tuple, convolution, empty, full, full_like, tensor_from_sequence, uniform, uniform_like,
    uniform_philox,
)  # fmt: skip
from thunder.clang.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_left_shift, bitwise_not,
    bitwise_or, bitwise_right_shift, bitwise_xor, ceil, copysign, cos, cosh, digamma, eq, erf, erfc, erfcinv,
    erfinv, exp, exp2, expm1, floor, floor_divide, fmod, frexp, ge, gt, imag, isfinite, isnan, le, lerp, lgamma,
    log, log1p, log2, log10, logical_and, logical_not, logical_or, logical_xor, lt, maximum, minimum, mod, mul,
    ndtri, ne, neg, nextafter, pow, real, reciprocal, remainder, round, rsqrt, sigmoid, sign, signbit, silu,
    sin, sinh, sqrt, sub, tan, tanh, true_divide, trunc, trunc_divide, where, zeta,
)  # fmt: skip
from thunder.clang.indexing import (
    argmax, argmin, copy_with_setitem, gather, getitem, index_add, index_copy, index_put, scatter, scatter_add,
    sort, take, take_along_axis, topk,
)  # fmt: skip
from thunder.clang.shape import (
    cat, device_put, diagonal, flatten, flip, matrix_transpose, movedim, pad, reshape, slice_in_dim, squeeze,
    stack, stride_order, transpose, unfold, unsqueeze,
)  # fmt: skip
from thunder.clang.utils import TensorLike, clangop, expand, maybe_broadcast, maybe_convert_to_dtype
from thunder.core.dims import compute_broadcast_shape

__all__ = [
    "TensorLike", "abs", "acos", "acosh", "add", "arange", "argmax", "argmin", "asin", "asinh", "atan", "atan2",
    "atanh", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "cat", "ceil", "clangop", "compute_broadcast_shape", "construct_tuple", "convolution", "copy_with_setitem",
    "copysign", "cos", "cosh", "device_put", "diagonal", "digamma", "empty", "eq", "erf", "erfc", "erfcinv",
    "erfinv", "exp", "exp2", "expand", "expm1", "flatten", "flip", "floor", "floor_divide", "fmod", "frexp", "full",
    "full_like", "gather", "ge", "getitem", "gt", "imag", "index_add", "index_copy", "index_put", "isfinite",
    "isnan", "le", "lerp", "lgamma", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "matrix_transpose", "maximum", "maybe_broadcast", "maybe_convert_to_dtype", "minimum",
    "mod", "movedim", "mul", "ndtri", "ne", "neg", "nextafter", "pad", "pow", "real", "reciprocal", "remainder",
    "reshape", "round", "rsqrt", "scatter", "scatter_add", "sigmoid", "sign", "signbit", "silu", "sin", "sinh",
    "slice_in_dim", "sort", "sqrt", "squeeze", "stack", "stride_order", "sub", "take", "take_along_axis", "tan",
    "tanh", "tensor_from_sequence", "topk", "transpose", "true_divide", "trunc", "trunc_divide", "unfold",
    "uniform", "uniform_like", "uniform_philox", "unsqueeze", "where", "zeta",
]  # fmt: skip
