"""The errors thunder raises, and the text that points a reader to their own line of code.

Every error class derives from `ThunderError` and from the builtin exception that eager PyTorch or Python would raise in
the same situation, so `except IndexError` written for eager code keeps working.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

SourceLine: TypeAlias = "tuple[str, int, str | None]"
"""(filename, line number from 1, source text or None to read it from the file)."""


class ThunderError(Exception):
    """Base of all errors that thunder itself raises."""

    def __str__(self) -> str:
        # Next in the method resolution order may be KeyError, whose text is the repr of the message.
        return BaseException.__str__(self)


class UnsupportedOpError(ThunderError, NotImplementedError):
    """The program uses an operation, or a form of one, that thunder cannot compile."""


class OpaqueRegionError(UnsupportedOpError):
    """Part of the program cannot be compiled, though torch can run it between two compiled parts."""


class DataDependentControlFlowError(UnsupportedOpError):
    """The program branches on, or sizes something by, the value of a tensor."""


class NoDecompositionError(UnsupportedOpError):
    """This form of an operation is not made of simpler ones, so it is run as a whole."""


class ThunderTypeError(ThunderError, TypeError):
    """An argument is of the wrong kind."""


class ThunderValueError(ThunderError, ValueError):
    """An argument is of the right kind, but its value is not allowed."""


class ThunderRuntimeError(ThunderError, RuntimeError):
    """A condition that eager PyTorch reports as RuntimeError."""


class ThunderIndexError(ThunderError, IndexError):
    """A dimension or an index is out of range."""


class GuardError(ThunderError, RuntimeError):
    """The inputs do not fit the compiled program they were given to."""


class TraceVerificationError(ThunderError, AssertionError):
    """A pass produced an invalid trace: a bug in thunder or in a user's transform."""


class CaptureError(ThunderError, RuntimeError):
    """The program could not be captured as a graph."""


class JITSharpEdgeError(ThunderError, RuntimeError):
    """The program depends on something that the guards do not see, and `sharp_edges="error"` is set."""


class DoubleBackwardError(ThunderRuntimeError):
    """A gradient of a gradient was asked of a compiled program that has none."""


_like_classes: dict[type[Exception], type[ThunderError]] = {
    NotImplementedError: UnsupportedOpError,
    TypeError: ThunderTypeError,
    ValueError: ThunderValueError,
    RuntimeError: ThunderRuntimeError,
    IndexError: ThunderIndexError,
}


def like_exception(exc: Exception, message: str) -> ThunderError:
    """An error with text `message` that is caught by both `except ThunderError` and `except type(exc)`.

    Attributes of `exc` are carried over, so handlers that read them work. `exc` itself is left alone; raise the result
    `from exc`. The result can be pickled if `type(exc)` and its attributes can.

    >>> isinstance(like_exception(KeyError("k"), "no such key"), KeyError)
    True
    """
    cls = _like_class(type(exc))
    result = cls.__new__(cls, *exc.args)
    result.args = (message,)
    result.__dict__.update(exc.__dict__)
    return result


def _like_class(cls: type[Exception]) -> type[ThunderError]:
    if issubclass(cls, ThunderError):
        return cls
    if (found := _like_classes.get(cls)) is None:
        found = _like_classes.setdefault(cls, _make_like_class(cls))
    return found


def _make_like_class(cls: type[Exception]) -> type[ThunderError]:
    namespace = {
        "__module__": __name__,
        "__doc__": f"A {cls.__name__} raised by thunder.",
        "__reduce__": _reduce_like,
        "_like": cls,
    }
    try:
        return type(f"Thunder{cls.__name__}", (ThunderError, cls), namespace)
    except TypeError:
        # The class forbids subclasses: its nearest base is the most specific type that can still be kept.
        return _like_class(next(base for base in cls.__mro__[1:] if issubclass(base, Exception)))


def _reduce_like(self: Any) -> tuple[Any, ...]:
    return _rebuild_like, (self._like, self.args, dict(self.__dict__))


def _rebuild_like(cls: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> ThunderError:
    like = _like_class(cls)
    result = like.__new__(like, *args)
    result.args = args
    result.__dict__.update(state)
    return result


UNKNOWN_LOCATION = "<unknown location>"

_FRAME = re.compile(r'^\s*File "(?P<filename>.+)", line (?P<lineno>\d+)(?:, in .*)?$')
_MARKERS = re.compile(r"^\s*[~^][~^\s]*$")
_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def user_location(location: str | SourceLine | None) -> str:
    """Three lines that show where in the user's program something happened.

    Args:
        location: the text of a stack trace in Python's format, outermost frame first, such as `node.stack_trace` of
            torch.fx (the innermost frame outside torch is shown), or a single (filename, lineno, code).
    Returns: "file:line", the source line and carets below it; only the first if there is no source text, and
        "<unknown location>" if there is no frame.

    >>> print(user_location(("model.py", 3, "return a + b")))
    model.py:3
        return a + b
        ^^^^^^^^^^^^
    """
    if location is None:
        return UNKNOWN_LOCATION
    if not isinstance(location, str):
        filename, lineno, code = location
        return _render(filename, lineno, code, None)
    frames = _parse_frames(location.splitlines())
    if not frames:
        return UNKNOWN_LOCATION
    users = [frame for frame in frames if not frame[0].startswith(_TORCH_ROOT)]
    return _render(*(users or frames)[-1])


def _parse_frames(lines: Sequence[str]) -> list[tuple[str, int, str | None, str | None]]:
    """(filename, line number, source text, markers) of each frame; markers are aligned to the unstripped source."""
    frames: list[tuple[str, int, str | None, str | None]] = []
    for position, line in enumerate(lines):
        if (match := _FRAME.match(line)) is None:
            continue
        code = markers = None
        following = lines[position + 1 : position + 3]
        if following and not _FRAME.match(following[0]):
            code = following[0]
            if len(following) == 2 and _MARKERS.match(following[1]):
                markers = following[1]
        frames.append((match["filename"], int(match["lineno"]), code, markers))
    return frames


def _render(filename: str, lineno: int, code: str | None, markers: str | None) -> str:
    where = f"{filename}:{lineno}"
    source = code if code else linecache.getline(filename, lineno)
    text = source.strip().partition("\n")[0].rstrip()
    if not text:
        return where
    if markers is None:
        carets = "^" * len(text)
    else:
        carets = markers[len(source) - len(source.lstrip()) :].rstrip()
    return f"{where}\n    {text}\n    {carets}"
