"""thunder.core.errors: what each error is caught by, and how a user's line is shown."""

from __future__ import annotations

import pickle
import traceback

import pytest
import torch

from thunder.core import errors
from thunder.core.errors import ThunderError, like_exception, user_location


class UserError(Exception):
    def __init__(self, code, *, detail):
        super().__init__(code)
        self.code = code
        self.detail = detail


@pytest.mark.parametrize(
    "name,builtin",
    [
        ("UnsupportedOpError", NotImplementedError),
        ("DataDependentControlFlowError", errors.UnsupportedOpError),
        ("ThunderTypeError", TypeError),
        ("ThunderValueError", ValueError),
        ("ThunderRuntimeError", RuntimeError),
        ("ThunderIndexError", IndexError),
        ("GuardError", RuntimeError),
        ("TraceVerificationError", AssertionError),
        ("CaptureError", RuntimeError),
        ("JITSharpEdgeError", RuntimeError),
        ("DoubleBackwardError", errors.ThunderRuntimeError),
    ],
)
def test_hierarchy(name, builtin):
    cls = getattr(errors, name)
    assert issubclass(cls, builtin)
    assert issubclass(cls, ThunderError)
    error = pickle.loads(pickle.dumps(cls("text")))
    assert type(error) is cls
    assert str(error) == "text"


@pytest.mark.parametrize(
    "exc,cls",
    [
        (IndexError("a"), errors.ThunderIndexError),
        (TypeError("a"), errors.ThunderTypeError),
        (NotImplementedError("a"), errors.UnsupportedOpError),
        (errors.GuardError("a"), errors.GuardError),
    ],
)
def test_like_exception_uses_thunders_own_classes(exc, cls):
    error = like_exception(exc, "message")
    assert type(error) is cls
    assert str(error) == "message"
    assert str(exc) == "a"


@pytest.mark.parametrize(
    "exc",
    [
        KeyError("k"),
        ZeroDivisionError("a"),
        OSError(2, "no such file"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
        StopIteration(3),
        UserError(7, detail="d"),
        torch.cuda.OutOfMemoryError("a"),
        torch.linalg.LinAlgError("a"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_like_exception_of_any_class(exc):
    error = like_exception(exc, "message")
    assert isinstance(error, type(exc))
    assert isinstance(error, ThunderError)
    assert str(error) == "message"
    assert error.__dict__ == exc.__dict__
    assert type(like_exception(exc, "other")) is type(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "message"
    assert again.__dict__ == exc.__dict__


def test_like_exception_of_a_class_without_subclasses():
    class Final(KeyError):
        def __init_subclass__(cls):
            raise TypeError("final")

    error = like_exception(Final("k"), "message")
    assert isinstance(error, KeyError)
    assert str(error) == "message"


def test_location_of_a_line():
    assert user_location(("m.py", 3, "    return a + b\n")) == "m.py:3\n    return a + b\n    ^^^^^^^^^^^^"
    assert user_location(("m.py", 3, "f(a,\n  b)")) == "m.py:3\n    f(a,\n    ^^^^"
    assert user_location(("no such file.py", 3, None)) == "no such file.py:3"
    first = user_location((__file__, 1, None)).splitlines()
    assert first[0] == f"{__file__}:1"
    assert first[1].startswith('    """thunder.core.errors')


def test_location_in_a_stack_trace():
    text = '  File "a.py", line 1, in main\n    f(x)\n  File "b.py", line 22, in f\n    return g(x)\n'
    assert user_location(text) == "b.py:22\n    return g(x)\n    ^^^^^^^^^^^"


def test_location_keeps_markers():
    text = '  File "b.py", line 22, in f\n    return g(x) + 1\n           ~~~~~^^^\n'
    assert user_location(text) == "b.py:22\n    return g(x) + 1\n           ~~~~~^^^"


def test_location_skips_frames_of_torch():
    library = torch.nn.functional.__file__
    text = f'  File "a.py", line 1, in main\n    f(x)\n  File "{library}", line 9, in relu\n    return g(x)\n'
    assert user_location(text).startswith("a.py:1\n    f(x)\n")
    only_library = text.splitlines(keepends=True)[2:]
    assert user_location("".join(only_library)).startswith(f"{library}:9\n")


def test_location_without_source():
    text = 'Traceback:\n  File "a.py", line 1, in main\n  File "no such file.py", line 22\n'
    assert user_location(text) == "no such file.py:22"


@pytest.mark.parametrize("location", [None, "", "no frames here"])
def test_unknown_location(location):
    assert user_location(location) == "<unknown location>"


def test_location_of_a_real_traceback():
    stack = traceback.extract_stack(limit=2)
    shown = user_location("".join(stack.format())).splitlines()
    assert shown[0] == f"{__file__}:{stack[-1].lineno}"
    assert shown[1] == "    stack = traceback.extract_stack(limit=2)"
    assert "^" in shown[2]


def test_location_of_an_fx_node():
    def f(x):
        return torch.sin(x)

    graphs = []

    def backend(gm, _):
        graphs.append(gm.graph)
        return gm

    torch._dynamo.reset()
    torch.compile(f, backend=backend)(torch.ones(2))
    (sin,) = (node for node in graphs[0].nodes if node.op == "call_function")
    assert user_location(sin.stack_trace).splitlines()[:2] == [
        f"{__file__}:{f.__code__.co_firstlineno + 1}",
        "    return torch.sin(x)",
    ]
