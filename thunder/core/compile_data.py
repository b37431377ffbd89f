"""The compilation that is running: what passes, executors and rules may ask without being handed its options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from thunder.core.errors import ThunderTypeError
from thunder.core.options import CACHE_OPTIONS, CompileOptions, option_docs, register_compile_option


@dataclass(frozen=True)
class CompilationSettings:
    """Stands for the settings of a compilation where only its options are known."""

    options: CompileOptions = field(default_factory=CompileOptions)
    cache_option: CACHE_OPTIONS = CACHE_OPTIONS.CONSTANT_VALUES
    using_jit: bool = False


_current: ContextVar[tuple[Any, Any]] = ContextVar("thunder_compile_data", default=(None, None))


def get_compile_data() -> Any:
    """The settings of the running compilation (a CompileData), or None outside one."""
    return _current.get()[0]


def get_compile_stats() -> Any:
    """The counters of the running compilation (a CompileStats), or None."""
    return _current.get()[1]


def set_compile_data_and_stats(cd: Any, cs: Any, /) -> Token:
    """Makes a compilation current; the token is for `reset_compile_data_and_stats`."""
    return _current.set((cd, cs))


def reset_compile_data_and_stats(token: Token, /) -> None:
    """Restores what was current before the `set_compile_data_and_stats` that gave `token`."""
    _current.reset(token)


@contextmanager
def compile_data_and_stats(cd: Any, cs: Any, /) -> Iterator[None]:
    """Makes a compilation current inside the block."""
    token = set_compile_data_and_stats(cd, cs)
    try:
        yield
    finally:
        reset_compile_data_and_stats(token)


@contextmanager
def compile_options(options: CompileOptions) -> Iterator[None]:
    """Makes `options` current inside the block, unless a compilation with these very options is current already."""
    cd, cs = _current.get()
    if cd is None or cd.options is not options:
        cd, cs = CompilationSettings(options), None
    with compile_data_and_stats(cd, cs):
        yield


def get_compile_option(option: str, description: str, /) -> Any:
    """The value of a compile option in the running compilation; its default outside one.

    Asking for an option that does not exist declares it: `thunder.jit` takes it from then on, `description` is what the
    list of options says of it, and its default is None.

    Raises: ThunderTypeError if `option` is no string or no identifier.
    """
    if not isinstance(option, str) or not option.isidentifier():
        raise ThunderTypeError(f"the name of a compile option must be an identifier, but got {option!r}")
    if option not in option_docs():
        register_compile_option(option, Any, None, description)
    cd = get_compile_data()
    return (CompileOptions() if cd is None else cd.options).get(option)


def get_cache_option() -> CACHE_OPTIONS:
    """The cache mode of the running compilation; "constant values" outside one."""
    cd = get_compile_data()
    return CACHE_OPTIONS.CONSTANT_VALUES if cd is None else cd.cache_option


def using_symbolic_values() -> bool:
    """Whether sizes and numbers may vary between calls of the program being compiled."""
    return get_cache_option() is CACHE_OPTIONS.SYMBOLIC_VALUES


def using_jit() -> bool:
    """Whether the running compilation is one of `thunder.jit`."""
    cd = get_compile_data()
    return cd is not None and cd.using_jit
