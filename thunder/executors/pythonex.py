"""The python executor: numbers, containers and checks."""

from __future__ import annotations

from thunder.extend.executor import OperatorExecutor
from thunder.extend.registry import add_always_executor, get_always_executors, register_executor, set_always_executors

ex = register_executor(OperatorExecutor("python"))
add_always_executor(ex)
set_always_executors([e for e in get_always_executors() if e != ex] + [ex])
