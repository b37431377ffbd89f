"""Passes, one file each (the list of them is `thunder/pipeline.py`), and the tools to write more.

The names that users import from here live in the modules of `_HOMES` and are looked up there when first asked for: the
passes below this package must not load the compiler above it.
"""

import importlib
from typing import Any

_VISIT = "thunder.core.transforms.visit"
_FUNCTIONS = "thunder.core.transforms.function_transforms"
_RULES = "thunder.core.rules"
_HOMES = {
    **dict.fromkeys(("VISIT_TYPE", "visitor_transform", "insert_inplace", "replace_inplace", "Node", "bsym_list_to_dag",
                     "TOPOSORT_ORDER", "toposort_bsym_dag", "unwrap_one_level_of_subsymbols", "eval_trace"), _VISIT),
    **dict.fromkeys(("vjp", "value_and_grad", "grad", "populate_grads", "extract_grads", "clear_grads",
                     "put_grads"), _FUNCTIONS),
    **dict.fromkeys(("register_grad", "register_augmented_forward", "register_backward", "augmented_forward_impls",
                     "backward_impls", "VJPDual"), _RULES),
    **dict.fromkeys(("get_grad", "put_grad"), "thunder.core.prims"),
    "Transform": "thunder.core.transform_base",
    "add_transform": "thunder.jit",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
