"""Helpers of the IR under one path: dims and shapes, dtypes, type promotion, collections, who reads what."""

from thunder.core.baseutils import FrozenDict, check, check_type, check_types, check_valid_length, check_valid_shape
from thunder.core.dataflow import ProxyDict, consumers, find_producer_symbols, producers, producers_and_consumers
from thunder.core.dims import (
    canonicalize_dim,
    canonicalize_dim_idx,
    canonicalize_dims,
    check_no_duplicates,
    check_same_device,
    check_same_dtype,
    check_same_shape,
    check_valid_permutation,
    extract_shape_from_varargs,
    is_cpu_scalar_tensor,
    is_numbertensor,
    same_shape,
    validate_idx,
)
from thunder.core.dtypes import (
    are_same_dtypes,
    corresponding_complex_dtype,
    corresponding_real_dtype,
    dtype_to_numbertype,
    is_boolean_dtype,
    is_complex_dtype,
    is_dtype,
    is_exact_dtype,
    is_float_dtype,
    is_inexact_dtype,
    is_integer_dtype,
    is_low_precision_dtype,
    is_numbertype,
    is_signedinteger_dtype,
    is_unsigned_dtype,
    is_weak_dtype,
    to_dtype,
)
from thunder.core.promotion import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    can_safe_cast_number_to,
    can_safe_cast_to,
    const_as,
    elementwise_type_promotion,
    get_computation_dtype,
    get_numberlike_type,
    get_numberlike_value,
)
from thunder.core.pytree import flatten_func

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND", "FrozenDict", "ProxyDict", "are_same_dtypes", "can_safe_cast_number_to",
    "can_safe_cast_to", "canonicalize_dim", "canonicalize_dim_idx", "canonicalize_dims", "check", "check_no_duplicates",
    "check_same_device", "check_same_dtype", "check_same_shape", "check_type", "check_types", "check_valid_length",
    "check_valid_permutation", "check_valid_shape", "const_as", "consumers", "corresponding_complex_dtype",
    "corresponding_real_dtype", "dtype_to_numbertype", "elementwise_type_promotion", "extract_shape_from_varargs",
    "find_producer_symbols", "flatten_func", "get_computation_dtype", "get_numberlike_type", "get_numberlike_value",
    "is_boolean_dtype", "is_complex_dtype", "is_cpu_scalar_tensor", "is_dtype", "is_exact_dtype", "is_float_dtype",
    "is_inexact_dtype", "is_integer_dtype", "is_low_precision_dtype", "is_numbertensor", "is_numbertype",
    "is_signedinteger_dtype", "is_unsigned_dtype", "is_weak_dtype", "producers", "producers_and_consumers",
    "same_shape", "to_dtype", "validate_idx",
]  # fmt: skip
