"""Source text to function, with the source registered so that tracebacks and debuggers show it."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable
from typing import Any

_serial = itertools.count()


def compile_source(source: str, name: str, context: dict[str, Any]) -> Callable:
    """Executes `source` and returns the function `name` that it defines.

    The source is entered into linecache under a name of its own, `<thunder.NAME_n>`, so that a traceback through
    generated code shows the generated line. The entry goes when the function does.

    Args:
        context: the objects that the source refers to; they win over what it imports.
    """
    filename = f"<thunder.{name}_{next(_serial)}>"
    namespace = dict(context)
    exec(compile(source, filename, "exec"), namespace)
    namespace.update(context)
    fn = namespace[name]
    fn.__thunder_source__ = source
    # Without a modification time, linecache.checkcache leaves the entry alone.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(fn, linecache.cache.pop, filename, None)
    return fn
