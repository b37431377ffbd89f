"""What went wrong in a call, in the user's terms: one typed error with the user's line."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import re
import traceback
from collections.abc import Callable
from typing import Any

import torch

from thunder.core.errors import (
    CaptureError,
    DataDependentControlFlowError,
    ThunderError,
    ThunderTypeError,
    UnsupportedOpError,
    like_exception,
    user_location,
)
from thunder.core.torch_compat import asks_for_values, dynamo_errors

_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_RAISED = re.compile(rf"got (?P<kind>\w+)\((?P<text>{_STRING})", re.DOTALL)
_EXPLANATION = re.compile(r"Explanation: (?P<text>.*?)(?=\n\s*(?:Hint|Developer debug context|\n)|\Z)", re.DOTALL)
_GRAPH_BREAK = re.compile(r"Dynamo determined that a graph break should occur when calling (.*?)\. Reason: ")
_DOCS = re.compile(r"\n\s*(Hint|Developer debug context|For more details|Set TORCHDYNAMO|from user code).*", re.DOTALL)
# What Dynamo leaves in exceptions that pass through it.
_CAPTURE_ATTRIBUTES = frozenset(
    {"real_stack", "_torch_dynamo_tracer_output", "innermost_user_frame_summary", "compile_id", "frame_exec_strategy"}
)
FROM_CAPTURE = "\n\nfrom user code:\n"
_PROGRAM_ID = re.compile(r"^\d+/\d+(_\d+)?: ")
_COMMENT = re.compile(r"\s+#\s.*$")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_THUNDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TESTS = _THUNDER + "tests" + os.sep

_DATA_DEPENDENT = (
    "the course of this program depends on the values of a tensor, which are not known while it is compiled.{where}\n"
    "Choose between values with torch.where, between computations with torch.cond, or leave this line out of the "
    "compiled function."
)


def guard_reasons(reason: str) -> list[str]:
    """What did not fit, as Python: `reason` without Dynamo's numbering and remarks, one item per line."""
    text = reason.partition("User stack trace:")[0]
    lines = (_COMMENT.sub("", _PROGRAM_ID.sub("", line)).strip() for line in text.splitlines())
    return [line for line in lines if line]


def is_capture_failure(e: BaseException) -> bool:
    """Whether capturing, rather than the captured program, has failed."""
    return isinstance(e, dynamo_errors().TorchDynamoException) or FROM_CAPTURE in str(e)


def is_user_frame(filename: str) -> bool:
    """Whether a file is the user's, rather than torch's or thunder's."""
    return not filename.startswith((_TORCH, _THUNDER)) or filename.startswith(_TESTS)


def _shown(frame: Any) -> str:
    return "\n" + user_location((frame.filename, frame.lineno or 0, frame.line))


def _line_of(e: Any, fn: Callable) -> str:
    """The user's line: the innermost one outside torch and thunder, else torch's, else where the function begins."""
    frames = [f for f in getattr(e, "real_stack", None) or () if f is not None]
    innermost = getattr(e, "innermost_user_frame_summary", None)
    if innermost is not None and innermost not in frames:
        frames.append(innermost)
    # torch.nn's own line says more than thunder's call of the module.
    chosen = [f for f in frames if is_user_frame(f.filename)]
    if chosen := chosen or [f for f in frames if "nn" in f.filename.split(os.sep)]:
        return _shown(chosen[-1])
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or not is_user_frame(code.co_filename):
        return ""
    return "\n" + user_location((code.co_filename, code.co_firstlineno, None))


def data_dependent_error(e: BaseException) -> DataDependentControlFlowError:
    """The error for one that a program has raised by asking for values of tensors without data."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if is_user_frame(f.filename)]
    return DataDependentControlFlowError(_DATA_DEPENDENT.format(where=_shown(frames[-1]) if frames else ""))


def _summary(e: BaseException) -> str:
    return _DOCS.sub("", str(e)).strip()


def _explanation(e: BaseException) -> str:
    """What Dynamo says about why, without its advice to torch.compile's users."""
    match = _EXPLANATION.search(str(e))
    text = match["text"].strip() if match is not None else ""
    text = re.sub(r"\s+", " ", text or _summary(e))
    return _GRAPH_BREAK.sub(r"\1: ", text).replace("Dynamo ", "torch's capture ")


def _exception_class(name: str) -> type:
    for place in (builtins, torch, torch.cuda, torch.linalg):
        found = getattr(place, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return RuntimeError


def _plain(text: str) -> str:
    """A message of torch without the words that it has from being run on stand-ins for tensors."""
    return text.replace("FakeTensor", "Tensor").rstrip()


# Where the errors of tensors without data are defined, which stand for RuntimeErrors.
_STAND_INS = ("torch._subclasses.fake_tensor",)


def _raised_by_torch(e: Any) -> Exception | None:
    """The exception of torch's that Dynamo has turned into `e`."""
    for link in (e, e.__context__):
        cause = getattr(link, "__cause__", None)
        if isinstance(cause, Exception) and not isinstance(cause, dynamo_errors().TorchDynamoException):
            return cause
    if (match := _RAISED.search(str(e))) is None:
        return None
    return _exception_class(match["kind"])(ast.literal_eval(match["text"]))


def _operation_error(e: Any, where: str) -> ThunderError:
    """An operation that torch itself refuses: the same class, torch's text, the user's line."""
    raised = _raised_by_torch(e)
    text = _plain(_summary(e).rpartition(": got ")[2] if raised is None else str(raised))
    # What torch's kernels refuse by RuntimeError, its rules for tensors without data may refuse by an assertion.
    is_kernel = "call_function <built-in" in str(e) or "call_method" in str(e)
    if raised is None or (is_kernel and isinstance(raised, AssertionError)) or type(raised).__module__ in _STAND_INS:
        raised = RuntimeError(text)
    return like_exception(raised, f"{text}{where}")


_TORCH_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
_SOURCE_COMMENT = re.compile(r"^\s*# (?P<file>.+):(?P<line>\d+): *\t(?P<code>.*)$")


def program_error(e: Exception) -> ThunderError | None:
    """The error that stands for one that torch has raised in generated code: the same class and text, the user's line.

    None for other errors, such as those that hooks or operators of the user raise.
    """
    if type(e) not in _TORCH_ERRORS:
        return None
    frames = traceback.extract_tb(e.__traceback__)
    if not frames or not frames[-1].filename.startswith("<thunder."):
        return None
    frame = frames[-1]
    lines = linecache.getlines(frame.filename)
    for text in reversed(lines[: frame.lineno or 0]):
        if (match := _SOURCE_COMMENT.match(text)) is not None:
            where = user_location((match["file"], int(match["line"]), match["code"]))
            return like_exception(e, f"{e}\n{where}")
    return None


def check_arguments(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raises ThunderTypeError if `fn` does not take these arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        name = getattr(fn, "__qualname__", None) or type(fn).__name__
        raise ThunderTypeError(f"{name}{signature} does not take these arguments: {e}") from None


def _is_data_dependent(e: BaseException) -> bool:
    kind = str(getattr(e, "gb_type", ""))
    return "ata-dependent" in kind or "ata-dependent" in str(e)[:400] or isinstance(e, dynamo_errors().UserError)


def _raised_by_program(e: Any) -> bool:
    """Whether the program itself raises, so that it has nothing to compile for such a call."""
    if isinstance(e.__cause__, dynamo_errors().ObservedException) or "Observed exception" in str(e):
        return True
    return "assertion failed" in str(getattr(e, "gb_type", "")) and "ConstantVariable" in str(e)


def raise_user_error(e: Any, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Raises the error that stands for a failed capture. An exception of the user's own code is raised by that code.

    Args:
        e: what the capture has raised.
        fn: what was to be captured.
        args, kwargs: of the call.
    Returns: what `fn` returns in the one case that it raises nothing after all.
    """
    if isinstance(e, dynamo_errors().BackendCompilerFailed):
        if asks_for_values(e.inner_exception):
            raise DataDependentControlFlowError(_DATA_DEPENDENT.format(where=_line_of(e, fn))) from None
        raise e.inner_exception from None
    if _raised_by_program(e):
        return fn(*args, **kwargs)
    where = _line_of(e, fn)
    if isinstance(e, dynamo_errors().TorchRuntimeError) or "NotImplementedError/" in str(getattr(e, "gb_type", "")):
        raise _operation_error(e, where) from None
    if not isinstance(e, dynamo_errors().TorchDynamoException):
        for name in _CAPTURE_ATTRIBUTES & vars(e).keys():
            delattr(e, name)
        raise like_exception(e, f"{_plain(str(e).partition(FROM_CAPTURE)[0])}{where}") from None
    if isinstance(e.__cause__, TypeError):
        raise ThunderTypeError(f"{_plain(str(e.__cause__))}{where}") from None
    if _is_data_dependent(e):
        raise DataDependentControlFlowError(_DATA_DEPENDENT.format(where=where)) from None
    if isinstance(e, dynamo_errors().Unsupported):
        raise UnsupportedOpError(f"this program cannot be captured: {_explanation(e)}{where}") from None
    raise CaptureError(f"this program cannot be captured: {_summary(e)}{where}") from e

