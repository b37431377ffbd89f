"""thunder.core.options and thunder.core.log."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from typing import Literal

import pytest

from thunder.core import log, options
from thunder.core.errors import ThunderTypeError, ThunderValueError
from thunder.core.options import CACHE_OPTIONS, SHARP_EDGES_OPTIONS, CompileOptions, env


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(options, "_registered_options", {})


@pytest.fixture
def debug_options():
    """A fresh class of debug options, so that the library's own stays as it is."""

    class Fresh(options.DebugOptions):
        _defaults = {}
        _docs = {}

    Fresh.__annotations__ = {}
    return Fresh


@pytest.fixture
def loggers():
    """Restores the level and handlers of every logger of thunder."""
    saved = [(logger, logger.level, list(logger.handlers)) for logger in map(logging.getLogger, logger_names())]
    yield
    for logger, level, handlers in saved:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def logger_names():
    return ["thunder", *(f"thunder.{area}" for area in options.LOG_AREAS)]


def test_resolve_cache_option():
    assert options.resolve_cache_option("No Caching") is CACHE_OPTIONS.NO_CACHING
    assert options.resolve_cache_option("symbolic values") is CACHE_OPTIONS.SYMBOLIC_VALUES
    assert options.resolve_cache_option(CACHE_OPTIONS.SAME_INPUT) is CACHE_OPTIONS.SAME_INPUT
    assert options.resolve_cache_option(None) is CACHE_OPTIONS.CONSTANT_VALUES
    assert repr(CACHE_OPTIONS.NO_CACHING) == "CACHE_OPTIONS.NO_CACHING"


def test_unknown_cache_option():
    with pytest.raises(ThunderValueError, match=r'did you mean "no caching".*"same input".*CACHE_OPTIONS'):
        options.resolve_cache_option("no cache")
    with pytest.raises(ThunderValueError, match='"constant values"'):
        options.resolve_cache_option(3)
    with pytest.raises(ThunderValueError):
        options.resolve_cache_option(SHARP_EDGES_OPTIONS.WARN)


def test_resolve_sharp_edges_option():
    assert options.resolve_sharp_edges_option("ERROR") is SHARP_EDGES_OPTIONS.ERROR
    assert options.resolve_sharp_edges_option(None) is SHARP_EDGES_OPTIONS.ALLOW
    with pytest.raises(ThunderValueError, match='"allow", "warn", "error"'):
        options.resolve_sharp_edges_option("off")


def test_debug_options(debug_options):
    debug_options.register_option("level", int, 3, "how much")
    debug_options.register_option("names", list[str] | None, None)
    assert debug_options().level == 3
    chosen = debug_options(level=4, names=["a"])
    assert (chosen.level, chosen.names) == (4, ["a"])
    assert repr(chosen) == "Fresh(level=4, names=['a'])"
    assert repr(debug_options(level=3)) == "Fresh()"
    assert debug_options.list_options() == "level: int = 3  how much\nnames: list[str] | None = None"
    assert "    level: int = 3  how much" in debug_options.__doc__
    assert debug_options.__annotations__ == {"level": int, "names": list[str] | None}


def test_debug_options_reject(debug_options):
    debug_options.register_option("level", int, 3)
    with pytest.raises(AttributeError, match="already registered"):
        debug_options.register_option("level", int, 3)
    with pytest.raises(AttributeError, match="already registered"):
        debug_options.register_option("list_options", int, 3)
    with pytest.raises(TypeError, match="must be of type str"):
        debug_options.register_option("text", str, 3)
    with pytest.raises(TypeError, match='unknown debug option "levl"; did you mean "level"'):
        debug_options(levl=1)
    for wrong in ("1", True, None):
        with pytest.raises(TypeError, match='"level" must be of type int'):
            debug_options(level=wrong)


def test_instances_get_options_registered_later(debug_options):
    earlier = debug_options()
    debug_options.register_option("late", bool, True)
    assert earlier.late is True


def test_builtin_debug_options():
    assert options.DebugOptions().check_traces is False
    assert options.DebugOptions(check_traces=True).check_traces is True
    assert options.DebugOptions(check_traces=2).check_traces == 2
    with pytest.raises(TypeError):
        options.DebugOptions(check_traces="yes")
    assert "check_traces" in options.DebugOptions.__doc__


def test_compile_options_defaults():
    chosen = CompileOptions.from_kwargs({})
    assert chosen == CompileOptions()
    assert chosen.fusion_type == "consecutive"
    assert chosen.torch_compile_fullgraph is True
    assert chosen.skip_inplace_functionalization is False
    assert chosen.is_differentiable_outputs is None
    assert hash(chosen) == hash(CompileOptions())


def test_compile_options_values():
    chosen = CompileOptions.from_kwargs(
        {"fusion_type": "dataflow", "nv_enable_options": ["a"], "is_differentiable_outputs": (True, False)}
    )
    assert chosen.fusion_type == chosen.get("fusion_type") == "dataflow"
    assert chosen.nv_enable_options == ("a",)
    assert hash(chosen) != hash(CompileOptions())
    assert pickle.loads(pickle.dumps(chosen)) == copy.deepcopy(chosen) == chosen
    assert dataclasses.replace(chosen, fusion_type="consecutive").nv_enable_options == ("a",)
    with pytest.raises(AttributeError):
        chosen.sdpa_debug = True


@pytest.mark.parametrize(
    "kwargs,error,message",
    [
        (
            {"fusion_typ": "dataflow"},
            ThunderTypeError,
            'unknown compile option "fusion_typ"; did you mean "fusion_type"',
        ),
        ({"zzz": 1}, ThunderTypeError, 'unknown compile option "zzz"$'),
        ({"extra": {}}, ThunderTypeError, "unknown compile option"),
        ({"fusion_type": "dataflw"}, ThunderValueError, "'consecutive', 'dataflow'.*did you mean \"dataflow\""),
        ({"fusion_type": None}, ThunderValueError, "must be one of"),
        ({"sdpa_debug": 1}, ThunderTypeError, '"sdpa_debug" must be of type bool, but got 1'),
        ({"nv_enable_options": "a"}, ThunderTypeError, "must be of type"),
    ],
)
def test_compile_options_reject(kwargs, error, message):
    with pytest.raises(error, match=message):
        CompileOptions.from_kwargs(kwargs)


def test_constructor_checks_too():
    with pytest.raises(ThunderValueError):
        CompileOptions(fusion_type="other")


def test_registered_compile_options(registry):
    options.register_compile_option("my_level", int, 3, "how much")
    options.register_compile_option("my_level", int, 3, "how much")
    options.register_compile_option("my_kind", Literal["a", "b"], "a", "which")
    chosen = CompileOptions.from_kwargs({"my_level": 4})
    assert chosen.extra == {"my_level": 4}
    assert chosen.get("my_level") == 4
    assert chosen.get("my_kind") == "a"
    assert chosen != CompileOptions()
    assert hash(chosen) == hash(CompileOptions.from_kwargs({"my_level": 4}))
    assert options.option_docs()["my_level"] == "how much"
    with pytest.raises(ThunderTypeError, match="must be of type int"):
        CompileOptions.from_kwargs({"my_level": "4"})
    with pytest.raises(ThunderValueError, match="must be one of"):
        CompileOptions.from_kwargs({"my_kind": "c"})
    with pytest.raises(ThunderTypeError, match='did you mean "my_level"'):
        CompileOptions.from_kwargs({"my_levl": 4})
    with pytest.raises(ThunderTypeError, match='unknown compile option "other"'):
        chosen.get("other")


def test_registering_a_taken_name(registry):
    options.register_compile_option("mine", int, 3, "")
    for name in ("mine", "fusion_type", "extra"):
        with pytest.raises(ThunderValueError, match="already a compile option"):
            options.register_compile_option(name, int, 4, "")
    with pytest.raises(ThunderValueError, match="identifier"):
        options.register_compile_option("not a name", int, 4, "")
    with pytest.raises(ThunderTypeError, match="must be of type int"):
        options.register_compile_option("other", int, "4", "")


def test_every_option_has_a_doc():
    docs = options.option_docs()
    names = {field.name for field in dataclasses.fields(CompileOptions)} - {"extra"}
    assert set(docs) >= names
    assert all(docs.values())
    assert all(variable.doc for variable in options.ENV.values())


@pytest.mark.parametrize(
    "name,text,value",
    [
        ("THUNDER_CHECKS", None, 0),
        ("THUNDER_CHECKS", "", 0),
        ("THUNDER_CHECKS", "2", 2),
        ("THUNDER_LOGS", None, ()),
        ("THUNDER_LOGS", " passes,,cache ", ("passes", "cache")),
        ("THUNDER_DISABLE", None, False),
        ("THUNDER_DISABLE", "1", True),
        ("THUNDER_DISABLE", "False", False),
        ("THUNDER_DISABLE_PASS", "cse", ("cse",)),
        ("THUNDER_ANNOTATE_TRACES", "on", True),
        ("THUNDER_CACHE_DIR", None, None),
        ("THUNDER_CACHE_DIR", "/tmp/a,b", "/tmp/a,b"),
        ("THUNDER_ANNOTATE_TRACES", "0", False),
    ],
)
def test_env(monkeypatch, name, text, value):
    if text is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, text)
    assert env(name) == value


@pytest.mark.parametrize(
    "name,text,message",
    [
        ("THUNDER_CHECKS", "3", "THUNDER_CHECKS must be from 0 to 2, but is 3"),
        ("THUNDER_CHECKS", "all", "must be an integer"),
        ("THUNDER_DISABLE", "maybe", "THUNDER_DISABLE must be 1 or 0"),
    ],
)
def test_env_rejects(monkeypatch, name, text, message):
    monkeypatch.setenv(name, text)
    with pytest.raises(ThunderValueError, match=message):
        env(name)


def test_unknown_environment_variable():
    with pytest.raises(ThunderValueError, match='did you mean "THUNDER_CHECKS"'):
        env("THUNDER_CHECK")


def test_logging_is_switched_on_by_area(monkeypatch, loggers):
    monkeypatch.setenv("THUNDER_LOGS", "passes")
    log.configure_from_env()
    log.configure_from_env()
    assert log.get_logger("passes").name == "thunder.passes"
    assert log.get_logger("passes").isEnabledFor(logging.DEBUG)
    assert not log.get_logger("fusions").isEnabledFor(logging.DEBUG)


def test_logging_all(monkeypatch, loggers):
    monkeypatch.setenv("THUNDER_LOGS", "all")
    log.configure_from_env()
    assert log.get_logger("fusions").isEnabledFor(logging.DEBUG)


def test_logging_has_a_handler_only_if_there_is_none(monkeypatch, loggers):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging.getLogger("thunder"), "handlers", [])
    monkeypatch.setenv("THUNDER_LOGS", "passes")
    log.configure_from_env()
    log.configure_from_env()
    assert len(logging.getLogger("thunder").handlers) == 1


def test_logging_off(monkeypatch, loggers):
    monkeypatch.delenv("THUNDER_LOGS", raising=False)
    before = list(logging.getLogger("thunder").handlers)
    log.configure_from_env()
    assert logging.getLogger("thunder").handlers == before
    assert not log.get_logger("passes").isEnabledFor(logging.DEBUG)


def test_unknown_log_area_warns(monkeypatch, loggers):
    monkeypatch.setenv("THUNDER_LOGS", "pases,cache")
    with pytest.warns(UserWarning, match=r'unknown area "pases"; did you mean "passes"\? Allowed: '):
        log.configure_from_env()
    assert log.get_logger("cache").isEnabledFor(logging.DEBUG)
