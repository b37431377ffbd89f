"""Executors: who runs which operation. The registry is an object; the functions here are its public face."""

from thunder.extend.executor import (
    FUEL_LEVEL,
    Executor,
    FusionExecutor,
    ImplInfo,
    OperatorExecutor,
    StatefulExecutor,
    TemporaryExecutor,
    single_op_executor,
)
from thunder.extend.registry import (
    add_always_executor,
    add_default_executor,
    add_executor_lists,
    deregister_executor,
    get_all_executors,
    get_always_executors,
    get_default_executors,
    get_executor,
    register_executor,
    remove_always_executor,
    remove_default_executor,
    resolve_executors,
    set_always_executors,
    set_default_executors,
)

__all__ = [
    "FUEL_LEVEL", "Executor", "FusionExecutor", "ImplInfo", "OperatorExecutor", "StatefulExecutor",
    "TemporaryExecutor", "add_always_executor", "add_default_executor", "add_executor_lists", "deregister_executor",
    "get_all_executors", "get_always_executors", "get_default_executors", "get_executor", "register_executor",
    "remove_always_executor", "remove_default_executor", "resolve_executors", "set_always_executors",
    "set_default_executors", "single_op_executor",
]  # fmt: skip
