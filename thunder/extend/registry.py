"""The registry of executors: all of them, those used by default, and those always appended."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from thunder.core.baseutils import did_you_mean
from thunder.core.errors import ThunderValueError
from thunder.extend.executor import Executor


class ExecutorRegistry:
    """Executors by name, in order of registration, and the two lists. First in a list is asked first."""

    def __init__(self) -> None:
        self.executors: dict[Hashable, Executor] = {}
        self.default: list[Executor] = []
        self.always: list[Executor] = []

    def resolve(self, executors: Sequence[Executor | str] | None) -> tuple[Executor, ...]:
        """Executors for names; the default ones for None. The always-executors are appended.

        Raises ThunderValueError for an unknown name (with the nearest one) or a value that is no executor.
        """
        if executors is None:
            chosen = list(self.default)
        elif isinstance(executors, str):
            chosen = [self.named(executors)]
        else:
            chosen = [e if isinstance(e, Executor) else self.named(e) for e in executors]
        return tuple(dict.fromkeys([*chosen, *self.always]))

    def named(self, name: Any) -> Executor:
        if not isinstance(name, str) or name not in self.executors:
            known = ", ".join(sorted(str(k) for k in self.executors))
            hint = did_you_mean(name, [str(k) for k in self.executors]) if isinstance(name, str) else ""
            raise ThunderValueError(f"{name!r} is no executor{hint or '.'} Registered executors: {known}")
        return self.executors[name]


_registry = ExecutorRegistry()


def _name(ex: Hashable | Executor) -> Hashable:
    return ex.name if isinstance(ex, Executor) else ex


def register_executor(ex: Executor) -> Executor:
    """Makes an executor known by its name."""
    _registry.executors[ex.name] = ex
    return ex


def deregister_executor(ex: Hashable | Executor) -> None:
    """Forgets an executor, also in the default and always lists."""
    _registry.executors.pop(_name(ex), None)
    remove_default_executor(ex)
    remove_always_executor(ex)


def get_all_executors() -> tuple[Executor, ...]:
    """All registered executors."""
    return tuple(_registry.executors.values())


def get_default_executors() -> tuple[Executor, ...]:
    """The executors of a jit that names none."""
    return tuple(_registry.default)


def get_always_executors() -> tuple[Executor, ...]:
    """The executors that are appended to every list."""
    return tuple(_registry.always)


def get_executor(name: Any) -> Executor | None:
    """The executor of this name, or None."""
    return _registry.executors.get(name)


def set_default_executors(defaults: list[Executor]) -> list[Executor]:
    _registry.default = list(defaults)
    return list(_registry.default)


def set_always_executors(always: list[Executor]) -> list[Executor]:
    _registry.always = list(always)
    return list(_registry.always)


def add_default_executor(ex: Executor) -> list[Executor]:
    """Puts an executor in front of the default list."""
    _registry.default = [ex, *(e for e in _registry.default if e != ex)]
    return list(_registry.default)


def add_always_executor(ex: Executor) -> list[Executor]:
    """Puts an executor in front of the always list."""
    _registry.always = [ex, *(e for e in _registry.always if e != ex)]
    return list(_registry.always)


def remove_default_executor(ex: Hashable | Executor) -> list[Executor]:
    _registry.default = [e for e in _registry.default if e.name != _name(ex)]
    return list(_registry.default)


def remove_always_executor(ex: Hashable | Executor) -> list[Executor]:
    _registry.always = [e for e in _registry.always if e.name != _name(ex)]
    return list(_registry.always)


def resolve_executors(executors: Sequence[Executor | str] | None) -> tuple[Executor, ...]:
    """Executors for names and executors, the always-executors appended; None means the default ones."""
    return _registry.resolve(executors)


def add_executor_lists(
    exc_list: Sequence[Executor | str] | None, other_exc_list: Sequence[Executor | str] | None
) -> Sequence[Executor]:
    """The union of two lists in order."""
    both = [*(exc_list or ()), *(other_exc_list or ())]
    return tuple(dict.fromkeys(e if isinstance(e, Executor) else _registry.named(e) for e in both))
