"""Where a node comes from: the user's line, the module, its tags and the passes that made it.

`Trace.emit` is the only constructor of nodes and reads the origin that is current when it runs, so no pass, rule or
executor ever copies a tag. Whoever rewrites a node does it inside `origin(node.origin, ...)`, and everything made there
is that node's child.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import ClassVar

from thunder.core.baseutils import TagBase


class BoundSymbolTag(TagBase):
    """Facts of one occurrence of an operation."""

    RECOMPUTE_IN_BACKWARD: ClassVar[BoundSymbolTag]
    BACKWARD: ClassVar[BoundSymbolTag]
    NO_GRAD: ClassVar[BoundSymbolTag]


NO_GRAD = BoundSymbolTag.NO_GRAD  # the user ran it with autograd switched off
BACKWARD = BoundSymbolTag.BACKWARD
RECOMPUTE_IN_BACKWARD = BoundSymbolTag.RECOMPUTE_IN_BACKWARD


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the user's program."""

    filename: str
    lineno: int
    code: str = ""
    function: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Provenance of a node. `passes` lists the rewrites that it went through, oldest first."""

    source: SourceLocation | None = None
    module_path: str = ""
    tags: frozenset = frozenset()
    passes: tuple[str, ...] = ()

    @staticmethod
    def join(parts: Iterable[Origin]) -> Origin:
        """The origin of a node that stands for several: the first source line, the tags that all parts share.

        BACKWARD is shared by construction, since fusers never mix forward and backward nodes.
        """
        parts = list(parts)
        if not parts:
            return Origin()
        tags = frozenset.intersection(*(p.tags for p in parts))
        source = next((p.source for p in parts if p.source is not None), None)
        module_path = parts[0].module_path if len({p.module_path for p in parts}) == 1 else ""
        return Origin(source, module_path, tags, parts[0].passes)


_EMPTY = Origin()
_current: ContextVar[Origin] = ContextVar("thunder_origin", default=_EMPTY)
_inherit_tags: ContextVar[bool] = ContextVar("thunder_inherit_tags", default=True)


def current_origin() -> Origin:
    """The origin that the next emitted node gets."""
    return _current.get()


@contextmanager
def origin(
    base: Origin | None = None,
    *,
    source: SourceLocation | None = None,
    module_path: str | None = None,
    add_tags: Iterable = (),
    pass_name: str | None = None,
) -> Iterator[Origin]:
    """Sets the origin of all nodes emitted inside.

    Args:
        base: the node origin to descend from; None descends from the current one.
        source, module_path: replace those of `base` when given.
        add_tags: tags added to those of `base`.
        pass_name: appended to `base.passes` unless it is the last one already.
    """
    new = _current.get() if base is None else base
    if not _inherit_tags.get():
        new = replace(new, tags=frozenset())
    if source is not None:
        new = replace(new, source=source)
    if module_path is not None:
        new = replace(new, module_path=module_path)
    if add_tags:
        new = replace(new, tags=new.tags | frozenset(add_tags))
    if pass_name is not None and new.passes[-1:] != (pass_name,):
        new = replace(new, passes=(*new.passes, pass_name))
    token = _current.set(new)
    try:
        yield new
    finally:
        _current.reset(token)


@contextmanager
def tag_inheritance_disabled() -> Iterator[None]:
    """Makes children forget their parent's tags. Exists so that tests can show what the inheritance prevents."""
    token = _inherit_tags.set(False)
    try:
        yield
    finally:
        _inherit_tags.reset(token)
