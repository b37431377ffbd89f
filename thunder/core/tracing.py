"""The current trace and the current language: the only two context variables of the IR beside the origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

_trace: ContextVar[Any] = ContextVar("thunder_trace", default=None)
_grad_enabled: ContextVar[bool] = ContextVar("thunder_grad_enabled", default=True)
_method_resolvers: list[Callable[[str, Any], Any]] = []


def get_tracectx() -> Any:
    """The trace being built, or None."""
    return _trace.get()


def set_tracectx(trace: Any) -> Token:
    """Makes `trace` current; the token is for `reset_tracectx`."""
    return _trace.set(trace)


def reset_tracectx(token: Token) -> None:
    """Restores the trace that was current before the `set_tracectx` that gave `token`."""
    _trace.reset(token)


def is_tracing() -> bool:
    """Whether a trace is being built in this thread."""
    return _trace.get() is not None


@contextmanager
def tracectx(trace: Any) -> Iterator[Any]:
    """Makes `trace` current inside the block."""
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def is_grad_enabled() -> bool:
    """Whether values made now are tracked by autograd (the traced program's mode, not torch's)."""
    return _grad_enabled.get()


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Sets whether values made inside are tracked by autograd."""
    token = _grad_enabled.set(enabled)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


def register_method_resolver(resolver: Callable[[str, Any], Any]) -> None:
    """Adds the function that finds what `proxy.<name>` means; language contexts register theirs here."""
    _method_resolvers.append(resolver)


def resolve_method(name: str, value: Any) -> Any:
    """The callable behind a method or operator of a proxy, or None."""
    for resolver in reversed(_method_resolvers):
        found = resolver(name, value)
        if found is not None:
            return found
    return None
