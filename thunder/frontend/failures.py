"""What went wrong in a call, in the user's terms: one typed error with the user's line."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import exc

from thunder.core.errors import (
    CaptureError,
    DataDependentControlFlowError,
    ThunderError,
    UnsupportedOpError,
    like_exception,
    user_location,
)

_RAISED = re.compile(r"got (?P<kind>\w+)\((?P<args>.*)\)", re.DOTALL)
_DOCS = re.compile(r"\n\s*(Hint|Developer debug context|For more details|Set TORCHDYNAMO|from user code).*", re.DOTALL)


def is_dynamo_failure(e: BaseException) -> bool:
    """Whether capturing, rather than the captured program, has failed."""
    return isinstance(e, exc.TorchDynamoException)


_PROGRAM_ID = re.compile(r"^\d+/\d+(_\d+)?: ")
_COMMENT = re.compile(r"\s+#\s.*$")


def guard_reasons(reason: str) -> list[str]:
    """What did not fit, as Python: `reason` without Dynamo's numbering and remarks, one item per line."""
    text = reason.partition("User stack trace:")[0]
    lines = (_COMMENT.sub("", _PROGRAM_ID.sub("", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _line_of(e: Any) -> str:
    frame = getattr(e, "innermost_user_frame_summary", None)
    if frame is None:
        stack = getattr(e, "real_stack", None)
        frame = stack[-1] if stack else None
    if frame is None:
        return ""
    return "\n" + user_location((frame.filename, frame.lineno or 0, frame.line))


def _summary(e: BaseException) -> str:
    return _DOCS.sub("", str(e)).strip()


def _exception_class(name: str) -> type:
    for place in (builtins, torch, torch.cuda, torch.linalg):
        found = getattr(place, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return RuntimeError


def _operation_error(e: Any) -> ThunderError:
    """An operation that torch itself refuses: the same class, torch's text, the user's line."""
    match = _RAISED.search(str(e))
    kind, text = RuntimeError, _summary(e)
    if match is not None:
        kind = _exception_class(match["kind"])
        try:
            text = str(ast.literal_eval(match["args"].rstrip(",")))
        except (SyntaxError, ValueError):
            text = match["args"]
    return like_exception(kind(text), f"{text}{_line_of(e)}")


def raise_user_error(e: Any, fn: Callable, args: tuple, kwargs: dict) -> Any:
    """Raises the error that stands for a failed capture. An exception of the user's own code is raised by that code.

    Returns what `fn` returns in the one case that it raises nothing after all.
    """
    if isinstance(e, exc.BackendCompilerFailed):
        raise e.inner_exception from None
    if isinstance(e.__cause__, exc.ObservedException) or "Observed exception" in str(e):
        return fn(*args, **kwargs)
    if isinstance(e, exc.TorchRuntimeError):
        raise _operation_error(e) from None
    kind = str(getattr(e, "gb_type", ""))
    where = _line_of(e)
    if "ata-dependent" in kind or "ata-dependent" in str(e)[:200] or isinstance(e, exc.UserError):
        raise DataDependentControlFlowError(
            f"the program's course depends on the values of a tensor, which are not known while it is traced.{where}\n"
            f"{_summary(e)}\nUse torch.where or torch.cond, or leave this part out of the compiled function."
        ) from None
    if isinstance(e, exc.Unsupported):
        raise UnsupportedOpError(f"this program cannot be captured: {_summary(e)}{where}") from None
    raise CaptureError(f"{_summary(e)}{where}") from e
