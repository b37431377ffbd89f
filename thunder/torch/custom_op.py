"""Old home of the registration of user operators."""

from thunder.executors.custom_op_ex import deregister_custom_op as _deregister_custom_op
from thunder.executors.custom_op_ex import register_custom_op as _register_custom_op

__all__ = ["_deregister_custom_op", "_register_custom_op"]
