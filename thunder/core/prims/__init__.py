"""Primitives: the operations that everything else decomposes into."""

from thunder.core.prims.autograd import custom_vjp, get_grad, late_saved, put_grad, set_grad_enabled
from thunder.core.prims.base import ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND, PrimIDs, make_prim, prim_by_id
from thunder.core.prims.inplace import (
    copy_,
    copy_with_setitem,
    random_on_clones,
    run_on_clones,
    setitem_value_grad,
    shallow_copy,
    strided_view,
    update_aliases,
    update_data,
    view_of,
    view_update,
)
from thunder.core.prims.structure import (
    clear_mutable_collection,
    comment,
    python_del,
    python_return,
    shape,
    sink,
    tensor_constant,
    unpack_sequence,
    unpack_trivial,
)

__all__ = [
    "ELEMENTWISE_PRIM_OUTPUT_DTYPE_KIND", "PrimIDs", "clear_mutable_collection", "comment", "copy_",
    "copy_with_setitem", "custom_vjp", "get_grad", "late_saved", "make_prim", "prim_by_id",
    "put_grad", "python_del", "python_return", "random_on_clones", "run_on_clones", "set_grad_enabled", "setitem_value_grad", "view_of", "shallow_copy", "shape", "sink", "strided_view",
    "tensor_constant", "unpack_sequence", "unpack_trivial", "update_aliases", "update_data", "view_update",
]  # fmt: skip
