"""Primitives: the operations that everything else decomposes into."""

# ruff: noqa: I001  (several names a line, so that the file stays within its limit)

from thunder.core.prims.autograd import (
    custom_vjp, detached, get_grad, late_saved, put_grad, save, set_grad_enabled, unversioned, with_history,
)  # fmt: skip
from thunder.core.prims.base import ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND, PrimIDs, make_prim, prim_by_id
from thunder.core.prims.creation import empty, exogenous_like, full, iota, tensor_from_sequence
from thunder.core.prims.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_left_shift, bitwise_not,
    bitwise_or, bitwise_right_shift, bitwise_xor, ceil, cos, cosh, digamma, div, eq, erf, erfc, erfcinv, erfinv,
    exp, exp2, expm1, floor, fmod, frexp, ge, gt, imag, isfinite, le, lerp, lgamma, log, log1p, log2, log10, lt,
    maximum, minimum, mul, ndtri, ne, neg, nextafter, pow, py_abs, py_floordiv, real, reciprocal, remainder,
    round, rsqrt, sign, signbit, sin, sinh, sqrt, sub, tan, tanh, trunc, where, zeta,
)  # fmt: skip
from thunder.core.prims.indexing import (
    cumsum, gather, index, index_add, index_copy, index_put, scatter, scatter_add, take, take_along_axis,
)  # fmt: skip
from thunder.core.prims.inplace import (
    copy_, copy_with_setitem, copy_with_strides, overwritten, random_on_clones, random_write_through, redrawn,
    run_on_clones, setitem_, setitem_value_grad, shallow_copy, strided_view, update_aliases, update_data,
    view_of, view_of_grad, view_update, view_update_, write_through,
)  # fmt: skip
from thunder.core.prims.linalg import _grouped_mm, convolution, linear, matmul
from thunder.core.prims.nn import embedding, embedding_backward
from thunder.core.prims.random import (
    bernoulli, bernoulli_mask, get_and_update_rng_state, multinomial, randint, randn, uniform, uniform_philox,
)  # fmt: skip
from thunder.core.prims.reduction import amax, amin, argmax, argmin, prod, sort, std, sum, topk, var, var_mean
from thunder.core.prims.shape import (
    bitcast, broadcast_in_dim, cat, clone, convert_element_type, device_put, flip, item, pad, reshape,
    slice_prim, squeeze, stride_order, transpose, unfold, view,
)  # fmt: skip
from thunder.core.prims.structure import (
    clear_mutable_collection, comment, pack_list, python_del, python_return, shape, sink, tensor_constant,
    unpack_sequence, unpack_trivial,
)  # fmt: skip
from thunder.core.prims.symbolic import assert_scalar, bind_symbol

__all__ = [
    "ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND", "PrimIDs", "_grouped_mm", "abs", "acos", "acosh", "add", "amax", "amin",
    "argmax", "argmin", "asin", "asinh", "assert_scalar", "atan", "atan2", "atanh", "bernoulli", "bernoulli_mask",
    "bind_symbol", "bitcast", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "broadcast_in_dim", "cat", "ceil", "clear_mutable_collection", "clone", "comment",
    "convert_element_type", "convolution", "copy_", "copy_with_setitem", "copy_with_strides", "cos", "cosh", "cumsum",
    "custom_vjp", "detached", "device_put", "digamma", "div", "embedding", "embedding_backward", "empty", "eq", "erf",
    "erfc", "erfcinv", "erfinv", "exogenous_like", "exp", "exp2", "expm1", "flip", "floor", "fmod", "frexp", "full",
    "gather", "ge", "get_and_update_rng_state", "get_grad", "gt", "imag", "index", "index_add", "index_copy",
    "index_put", "iota", "isfinite", "item", "late_saved", "le", "lerp", "lgamma", "linear", "log", "log10", "log1p",
    "log2", "lt", "make_prim", "matmul", "maximum", "minimum", "mul", "multinomial", "ndtri", "ne", "neg", "nextafter",
    "overwritten", "pack_list", "pad", "pow", "prim_by_id", "prod", "put_grad", "py_abs", "py_floordiv", "python_del",
    "python_return", "randint", "randn", "random_on_clones", "random_write_through", "real", "reciprocal", "redrawn",
    "remainder", "reshape", "round", "rsqrt", "run_on_clones", "save", "scatter", "scatter_add", "set_grad_enabled",
    "setitem_", "setitem_value_grad", "shallow_copy", "shape", "sign", "signbit", "sin", "sinh", "sink", "slice_prim",
    "sort", "sqrt", "squeeze", "std", "stride_order", "strided_view", "sub", "sum", "take", "take_along_axis", "tan",
    "tanh", "tensor_constant", "tensor_from_sequence", "topk", "transpose", "trunc", "unfold", "uniform",
    "uniform_philox", "unpack_sequence", "unpack_trivial", "unversioned", "update_aliases", "update_data", "var",
    "var_mean", "view", "view_of", "view_of_grad", "view_update", "view_update_", "where", "with_history",
    "write_through", "zeta",
]  # fmt: skip
