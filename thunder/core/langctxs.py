"""Languages: what a method or operator of a proxy means.

`x + y` in a trace asks the current language context for the method "add". torch's is the default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar, Token
from enum import Enum, auto
from typing import Any

from thunder.core.errors import ThunderValueError
from thunder.core.tracing import register_method_resolver


class LanguageContext:
    """A table of methods. Subclasses override `has_method` and `get_method`."""

    def __init__(self, name: str, /):
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def has_method(self, id: str) -> bool:
        """Whether `get_method(id, ...)` finds something for some arguments."""
        raise NotImplementedError

    def get_method(self, id: str, *args: Any, **kwargs: Any) -> Callable:
        """The method called `id` for these arguments. Raises AttributeError if there is none."""
        raise NotImplementedError


class MethodTable(LanguageContext):
    """A language whose methods are registered one by one."""

    def __init__(self, name: str, /):
        super().__init__(name)
        self._methods: dict[str, Callable] = {}

    def register_method(self, method_name: str, method: Callable, /) -> None:
        """Makes `method` what `proxy.<method_name>` means."""
        self._methods[method_name] = method

    def has_method(self, id: str) -> bool:
        return id in self._methods

    def get_method(self, id: str, *args: Any, **kwargs: Any) -> Callable:
        if id not in self._methods:
            raise AttributeError(f"the {self.name} language has no method {id!r}")
        return self._methods[id]


class Languages(Enum):
    """The languages that come with thunder."""

    NUMPY = auto()
    TORCH = auto()
    CLANG = auto()
    PRIMS = auto()


_contexts: dict[Any, LanguageContext] = {}
_current: ContextVar[LanguageContext | None] = ContextVar("thunder_langctx", default=None)


def register_langctx(id: Any, ctx: LanguageContext) -> None:
    """Names a language context; a later one of the same name replaces it."""
    _contexts[id] = ctx


def resolve_language(id: Any, /) -> LanguageContext:
    """The language of this name. Raises LookupError if there is none."""
    if id not in _contexts:
        raise LookupError(f"no language is registered as {id}")
    return _contexts[id]


def set_langctx(ctx: LanguageContext, /) -> Token:
    """Makes a language current; the token is for `reset_langctx`."""
    return _current.set(ctx)


def get_langctx() -> LanguageContext:
    """The current language, torch's unless another was set."""
    return _current.get() or resolve_language(Languages.TORCH)


def reset_langctx(token: Token, /) -> None:
    """Restores the language that was current before."""
    _current.reset(token)


def resolve_method(id: Any, *args: Any, **kwargs: Any) -> Callable | None:
    """The current language's method for these arguments, or None."""
    ctx = _current.get() or _contexts.get(Languages.TORCH)
    if ctx is None or not ctx.has_method(id):
        return None
    return ctx.get_method(id, *args, **kwargs)


class langctx:
    """Makes a language current inside a `with` block, or inside a decorated function.

    Args:
        _langctx: a LanguageContext, or the name of a registered one.
    Raises: ThunderValueError for an unknown name.
    """

    def __init__(self, _langctx: Any | LanguageContext, /):
        if not isinstance(_langctx, LanguageContext | Languages) and _langctx not in _contexts:
            raise ThunderValueError(f"unknown language {_langctx!r}")
        self.langctx = _langctx
        self._tokens: list[Token] = []

    def _resolved(self) -> LanguageContext:
        return self.langctx if isinstance(self.langctx, LanguageContext) else resolve_language(self.langctx)

    def __enter__(self) -> None:
        self._tokens.append(set_langctx(self._resolved()))

    def __exit__(self, *exc: Any) -> None:
        reset_langctx(self._tokens.pop())

    def __call__(self, fn: Callable, /) -> Callable:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            token = set_langctx(self._resolved())
            try:
                return fn(*args, **kwargs)
            finally:
                reset_langctx(token)

        return wrapper


def _resolver(name: str, value: Any) -> Callable | None:
    return resolve_method(name, value)


register_method_resolver(_resolver)
