"""What programs say through `print` and `warnings` is what eager says, call for call."""
# ruff: noqa: B028

from __future__ import annotations

import logging
import sys
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers.utils import logging as transformers_logging

import thunder
from thunder.core.errors import CaptureError, UnsupportedOpError


class OwnWarning(UserWarning):
    """Of the user."""


class Settings:
    """Of the user."""

    def __repr__(self):
        return "own settings"


SETTINGS = Settings()


def said_by_inlined(a):
    print("inner", a.shape)
    warnings.warn("inner", stacklevel=2)
    return a * 2


def nested(a):
    print("before")
    b = said_by_inlined(a)
    print("after")
    return b


def written_later(a):
    b = a.clone()
    print(b, [b, {"rows": b[:1]}], f"{b}", flush=True)
    b.add_(1)
    print(b)
    return b


def containers(a):
    names = ["x"]
    print(names, {"a": 1}, (a.dtype, a.shape), (), SETTINGS, sep="|", end="!\n")
    names.append("y")
    print(names, file=sys.stderr)
    return a + len(names)


def numbers(a):
    total = a.sum()
    print("total", total.item(), f"{total.item():.2f}", f"mean {a.mean()}")
    return a * total


def warned(a):
    warnings.warn("plain")
    warnings.warn("with a kind", DeprecationWarning)
    warnings.warn(OwnWarning("an instance", 3))
    warnings.warn(FutureWarning("an instance"))
    warnings.warn(f"formatted {a.sum():.1f}", category=OwnWarning, stacklevel=1)
    return a + 1


def in_blocks(a):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("ignored")
        with warnings.catch_warnings():
            warnings.filterwarnings("default", message="heard")
            warnings.warn("heard")
            warnings.warn("not he*rd")
    warnings.warn("outside")
    return a.sin()


def in_a_loop(a):
    for n in range(3):
        warnings.warn("each time")
        print(n, end=" ")
        a = a * n
    return a


LOG = logging.getLogger("thunder_tests.messages")


def said_by_helper(text):
    LOG.warning("helped: %s", text, stacklevel=2)


def logged(a):
    LOG.debug("not %s", "heard")
    LOG.info("shape %s, sum %.1f", a.shape, a.sum())
    LOG.log(logging.ERROR, f"{a.sum()}", extra={"run": 3})
    logging.getLogger("thunder_tests.messages").critical({"rows": [len(a)]})
    logging.getLogger().warning("to all")
    logging.warning("to all, too")
    if LOG.isEnabledFor(logging.DEBUG) or LOG.getEffectiveLevel() > logging.INFO:
        a = a + 1
    said_by_helper("twice")
    return a * 2


def under_checkpoint(a):
    return checkpoint(lambda x: (warnings.warn("recomputed"), x.sin())[1], a, use_reentrant=False)


class Spoken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        warnings.warn("custom")
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


PROGRAMS = [
    nested,
    written_later,
    containers,
    numbers,
    warned,
    in_blocks,
    in_a_loop,
    logged,
    under_checkpoint,
    Spoken.apply,
]


class Records(logging.Handler):
    """What it is told of records."""

    def __init__(self):
        super().__init__()
        self.told = []

    def emit(self, record):
        where = (record.pathname, record.lineno, record.funcName)
        self.told.append((record.name, record.levelno, record.getMessage(), where, getattr(record, "run", None)))


def heard(fn, capsys, action="always", calls=2):
    """What `fn` says in some calls: the texts on both streams, the warnings and log records with their places, results.
    """
    records = Records()
    level = LOG.level
    LOG.setLevel(level or logging.INFO)
    logging.root.addHandler(records)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            results = [fn(torch.ones(2, 2) * n) for n in range(1, calls + 1)]
    finally:
        logging.root.removeHandler(records)
        LOG.setLevel(level)
    about = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
    ours = [told for told in records.told if not told[0].startswith("torch")]
    return capsys.readouterr(), about, ours, torch.stack(results)


@pytest.mark.parametrize("action", ["always", "default", "ignore"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: getattr(fn, "__qualname__", None))
def test_programs_say_what_they_say_in_eager(fn, action, capsys):
    for compiled in (fn, thunder.jit(fn)):
        globals().pop("__warningregistry__", None)
        heard_now = heard(compiled, capsys, action)
        if compiled is fn:
            expected = heard_now
    assert heard_now[:3] == expected[:3]
    assert any((expected[0].out, *expected[1:3])) or action == "ignore"
    torch.testing.assert_close(heard_now[3], expected[3])


def test_levels_of_loggers_are_guarded(capsys):
    compiled = thunder.jit(logged)
    for level in (logging.INFO, logging.DEBUG, logging.CRITICAL):
        LOG.setLevel(level)
        try:
            expected, now = (heard(fn, capsys) for fn in (logged, compiled))
        finally:
            LOG.setLevel(logging.NOTSET)
        assert now[2] == expected[2]
        torch.testing.assert_close(now[3], expected[3])
    logging.disable(logging.CRITICAL)
    try:
        assert heard(compiled, capsys)[2] == []
    finally:
        logging.disable(logging.NOTSET)


class Shouting(logging.Logger):
    def warning(self, message, *args, **kwargs):
        super().warning(message.upper(), *args, **kwargs)


def test_loggers_with_methods_of_their_own():
    log = Shouting("thunder_tests.shouting")
    log.addHandler(records := Records())

    def fn(a):
        log.warning("loud")
        log.error("quiet")
        return a + 1

    torch.testing.assert_close(thunder.jit(fn)(torch.ones(2)), torch.full((2,), 2.0))
    assert [told[2] for told in records.told] == ["LOUD", "quiet"]


def test_loggers_of_libraries(capsys):
    # transformers gives Logger a method that says something once.
    log = transformers_logging.get_logger("transformers.thunder_tests")

    def fn(a):
        log.warning_once("once")
        log.info("seldom")
        return a + 1

    compiled = thunder.jit(fn)
    log.addHandler(records := Records())
    try:
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        log.removeHandler(records)
    assert [told[2] for told in records.told] == ["once"]


CALLER = """
import warnings

def fn(a):
    warnings.warn("caller", stacklevel=2)
    warnings.warn("caller's caller", stacklevel=3)
    warnings.warn("nobody", stacklevel=500)
    return a + 1

def call(fn, a):
    for n in range(2):
        r = fn(
            a
        )
    return r

def call_it(fn, a):
    return call(fn, a)
"""


@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_are_about_the_callers_that_they_name(action, capsys):
    # A file of its own, since frames of thunder's do not count as callers.
    about = []
    for maybe_jit in (lambda fn: fn, thunder.jit):
        own = {"__name__": "own"}
        exec(compile(CALLER, "own.py", "exec"), own)
        fn = maybe_jit(own["fn"])
        about.append(heard(lambda a: own["call_it"](fn, a), capsys, action)[1])
    assert about[0] == about[1]
    assert {line for _, _, file, line in about[0] if file == "own.py"} == {12, 18}


def test_filters_that_a_program_sets(capsys):
    compiled = thunder.jit(in_blocks)
    heard(compiled, capsys, "ignore")  # libraries that are imported set filters, too
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        filters = warnings.filters[:]
        compiled(torch.ones(2))
        assert warnings.filters == filters

    def silence(a):
        warnings.filterwarnings("ignore", message="silenced here")
        return a + 1

    with warnings.catch_warnings():
        thunder.jit(silence)(torch.ones(2))
        assert "silenced here" in str(warnings.filters[0])


def test_a_warning_made_an_error_is_raised_and_the_next_call_works(capsys):
    compiled = thunder.jit(warned)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="plain"):
                compiled(torch.ones(2))
    result = heard(compiled, capsys, "ignore")[3]
    torch.testing.assert_close(result[0], torch.full((2, 2), 2.0))


def test_gradients_pass_what_is_said(capsys):
    a = torch.ones(2, 2, requires_grad=True)
    with pytest.warns(UserWarning, match="custom"):
        thunder.jit(Spoken.apply)(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.full((2, 2), 2.0))
    a.grad = None
    thunder.jit(written_later)(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(2, 2))
    assert capsys.readouterr().out.count("[2., 2.]") == 2


def of_a_recorded_block(a):
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("recorded")
    return a + len(caught)


def of_an_object_made_here(a):
    print(Settings())
    return a


def in_a_branch(a):
    def spoken(x):
        warnings.warn("taken")
        return x.sin()

    return torch.cond(a.sum() > 0, spoken, lambda x: x.cos(), (a,))


def of_a_traceback(a):
    LOG.error("failed", exc_info=True)
    return a


def of_an_exception(a):
    try:
        raise ValueError
    except ValueError:
        LOG.exception("failed")
    return a


def of_values_in_vmap(a):
    return torch.func.vmap(lambda row: (print(row), row * 2)[1])(a)


def of_values_in_checkpoint(a):
    return checkpoint(lambda x: (print(x), x.sin())[1], a, use_reentrant=False)


class OwnInit(UserWarning):
    def __init__(self, text):
        self.text = text


def of_a_warning_made_by_its_own_init(a):
    warnings.warn(OwnInit("x"))
    return a


REFUSED = [
    of_a_recorded_block,
    of_an_object_made_here,
    in_a_branch,
    of_a_traceback,
    of_an_exception,
    of_values_in_vmap,
    of_values_in_checkpoint,
    of_a_warning_made_by_its_own_init,
]


@pytest.mark.parametrize("fn", REFUSED)
def test_what_cannot_be_said_later_is_refused(fn):
    with pytest.raises((CaptureError, UnsupportedOpError), match="said when it has run"):
        thunder.jit(fn)(torch.ones(2))
