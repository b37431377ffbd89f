"""What captured programs say through `print`, `warnings` and `logging`: played back after the program, in its order.

Dynamo's own way (`reorderable_logging_functions`) loses what inlined functions say, refuses keywords and containers,
and prints tensors as later writes leave them; loggers it ignores or refuses.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, WrapperDescriptorType
from typing import Any, NamedTuple

import torch
import torch._dynamo
from torch._dynamo.exc import unimplemented
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, DictGetItemSource, GlobalSource, Source
from torch._dynamo.variables import (
    ConstantVariable,
    ConstDictVariable,
    SkipFunctionVariable,
    SymNodeVariable,
    TensorVariable,
    VariableTracker,
)
from torch._dynamo.variables.misc import ExceptionVariable, LoggingLoggerVariable, StringFormatVariable
from torch._dynamo.variables.user_defined import UserDefinedExceptionObjectVariable
from torch._higher_order_ops.wrap import TagActivationCheckpoint

from thunder.core.torch_compat import functorch_is_active

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
_TOLD_BY_RECORD = (*_LEVELS, "log")
# Methods of loggers that log something; the last ones are added to Logger by libraries.
_LOG_METHODS = (*_TOLD_BY_RECORD, "warning_once", "info_once")
_LOG_FUNCTIONS = {getattr(logging, name): name for name in _TOLD_BY_RECORD}
# What Dynamo is to take for one call, instead of looking into it.
MESSAGE_FUNCTIONS = {
    print,
    warnings.warn,
    warnings.simplefilter,
    warnings.filterwarnings,
    warnings.resetwarnings,
    logging.getLogger,
    *_LOG_FUNCTIONS,
}
# Code that is between the user's call and the program, or between the program and what plays back.
_BETWEEN = tuple(str(path) for path in (Path(torch._dynamo.__file__).parent, Path(__file__).parents[1]))


class _Value(NamedTuple):
    """Stands for a value of the program's, by its place among those that are given to `_Messages.play`."""

    number: int


class _Call(NamedTuple):
    """A call to be made when the program has run; among the arguments are `_Value`s and other calls."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Block(NamedTuple):
    """`with warnings.catch_warnings(**kwargs)` around what the program says in it."""

    kwargs: dict[str, Any]
    said: list[_Call | _Block]


class _Place(NamedTuple):
    """A line of code that something is said in or about."""

    file: str
    line: int
    function: str
    globals: dict[str, Any]


class _Messages:
    """What one program says; filled where Dynamo traces it."""

    def __init__(self) -> None:
        self.blocks = [_Block({}, [])]  # the program as a whole, and the blocks that Dynamo is in

    def play(self, *values: Any) -> None:
        """Says it, with the values that `_Recorder` asked for."""
        _play(self.blocks[0].said, values)


def _play(said: list[_Call | _Block], values: tuple[Any, ...]) -> None:
    for one in said:
        if isinstance(one, _Block):
            with warnings.catch_warnings(**one.kwargs):
                _play(one.said, values)
        else:
            _known(one, values)


def _known(template: Any, values: tuple[Any, ...]) -> Any:
    if isinstance(template, _Value):
        return values[template.number]
    if isinstance(template, _Call):
        args = [_known(a, values) for a in template.args]
        return template.fn(*args, **{name: _known(a, values) for name, a in template.kwargs.items()})
    return template


class _Copied(VariableTracker):
    """A tensor as it is when this is made: its copy, if the program writes it afterwards."""

    def __init__(self, tensor: TensorVariable, copy: VariableTracker):
        super().__init__()
        self.tensor, self.copy = tensor, copy
        self.version = self._version

    @property
    def _version(self) -> int:
        return self.tensor.as_proxy().node.meta["example_value"]._version

    def reconstruct(self, codegen: Any) -> None:
        codegen(self.tensor if self._version == self.version else self.copy)


class _Recorder:
    """Notes the messages of the program that `tx`, a translator of Dynamo's, is in."""

    def __init__(self, tx: Any):
        self.tx = tx
        self.messages: _Messages = vars(tx.output).setdefault("messages_of_program", _Messages())

    def call(self, fn: Callable, args: list[VariableTracker], kwargs: dict[str, VariableTracker]) -> None:
        if fn is warnings.warn and any("record" in block.kwargs for block in self.messages.blocks):
            _refuse("warnings in catch_warnings(record=True)")
        if not _runs_once(self.tx.output.current_tracer):
            _refuse("what the body of a higher-order operator or a backward says")
        self.values = self._values_to_play_with()
        if fn is warnings.warn:
            call = self._warning(*args, **kwargs)
        else:
            call = self._call(fn, args, kwargs)
        self.messages.blocks[-1].said.append(call)

    def _values_to_play_with(self) -> list[VariableTracker]:
        """What Dynamo passes to `play` after the program, to be added to. Without this list it does not call `play`."""
        output = self.tx.output
        calls_at_end = output.root_tx.debug_locals
        if not calls_at_end:
            play = torch._dynamo.disable(self.messages.play)
            player = SkipFunctionVariable(play, source=GlobalSource(output.install_global("__messages", play)))
            calls_at_end.append((player, []))
        return calls_at_end[0][1]

    def _call(self, fn: Callable, args: list[VariableTracker], kwargs: dict[str, VariableTracker]) -> _Call:
        return _Call(fn, tuple(map(self._template, args)), {name: self._template(v) for name, v in kwargs.items()})

    def _template(self, variable: VariableTracker) -> Any:
        """The value as it is at this point of the program."""
        variable = variable.realize()
        if variable.is_python_constant():
            return variable.as_python_constant()
        if isinstance(variable, StringFormatVariable):
            return self._call(variable.format_string.format, variable.sym_args, variable.sym_kwargs)
        if isinstance(variable, ExceptionVariable):
            return self._call(variable.exc_type, variable.args, {})
        if isinstance(variable, UserDefinedExceptionObjectVariable) and _is_its_arguments(variable.value_type):
            return self._call(variable.value_type, variable.exc_vt.args, {})
        if isinstance(variable, ConstDictVariable) and variable.python_type() is dict:
            keys = [key.vt.as_python_constant() for key in variable.items]
            return self._call(lambda *items: dict(zip(keys, items, strict=True)), list(variable.items.values()), {})
        if hasattr(variable, "items") and (made := variable.python_type()) in (list, tuple, torch.Size):
            return self._call(lambda *items: made(items), variable.items, {})
        return self._value(variable)

    def _value(self, variable: VariableTracker) -> _Value:
        if isinstance(variable, TensorVariable | SymNodeVariable):
            if self.tx.output.current_tracer.parent is not None or functorch_is_active():
                _refuse("values inside a function that another one transforms")
            if isinstance(variable, TensorVariable):
                variable = _Copied(variable, variable.call_method(self.tx, "clone", [], {}))
        elif variable.source is None:
            _refuse(f"an object of class {variable.python_type_name()} that the program makes")
        self.values.append(variable)
        return _Value(len(self.values) - 1)

    def _warning(
        self,
        message: VariableTracker,
        category: VariableTracker | None = None,
        stacklevel: VariableTracker | None = None,
        source: VariableTracker | None = None,
        **others: VariableTracker,
    ) -> _Call:
        if others:
            _refuse(f"warnings.warn with {', '.join(others)}")
        kind = None if category is None else category.as_python_constant()
        level = 1 if stacklevel is None else stacklevel.as_python_constant()
        return self._call(partial(_warn, kind, self._place(level)), [message], {})

    def log(self, logger: logging.Logger, method: str, args: list[VariableTracker], kwargs: dict[str, Any]) -> None:
        """Notes a call of one of `_LOG_METHODS`."""
        if getattr(type(logger), method) is not getattr(logging.Logger, method, None) or method not in _TOLD_BY_RECORD:
            return self.call(getattr(logger, method), args, kwargs)
        known = {name: value.as_python_constant() for name, value in kwargs.items() if name != "extra"}
        if method == "exception" or any(known.pop(name, None) for name in ("exc_info", "stack_info")):
            _refuse("a traceback of the program")
        place = self._place(known.pop("stacklevel", 1))
        level = _LEVELS[method] if method in _LEVELS else args[0].as_python_constant()
        extra = {name: value for name, value in kwargs.items() if name == "extra"}
        self.call(partial(_log, logger, level, place), args if method in _LEVELS else args[1:], extra)
        return None

    def _place(self, level: int) -> Callable[[], _Place]:
        """Where the frame is that is `level - 1` above the one that speaks."""
        tx = self.tx
        while level > 1 and tx.parent is not None:
            tx, level = tx.parent, level - 1
        if level > 1:
            return partial(_place_outside, level)
        position = tx.current_instruction.positions
        line = position.lineno if position else tx.lineno
        place = _Place(tx.f_code.co_filename, line, tx.f_code.co_name, tx.f_globals)
        return lambda: place


def _is_its_arguments(exception: Any) -> bool:
    """Whether what there is to know about an exception of this class are its arguments: no `__init__` of the user's."""
    return isinstance(exception.__init__, WrapperDescriptorType)


def _runs_once(tracer: Any) -> bool:
    """Whether what Dynamo traces into `tracer`'s graph runs once, where it stands: no branch, no backward."""
    while tracer.parent is not None:
        if isinstance(tracer.source_target, str):  # of a custom function, whose backward is traced inside its forward
            if tracer.source_target == tracer.parent.source_target:
                return False
        elif not isinstance(tracer.source_target, TagActivationCheckpoint):
            return False
        tracer = tracer.parent
    return True


def _place_outside(level: int) -> _Place:
    """The place that called the program, for `level` 2, or one further up."""
    frame: FrameType | None = sys._getframe()
    for _ in range(level):
        frame = _next_outside(frame)
    if frame is None:  # more levels than frames
        return _Place("sys", 1, "<sys>", vars(sys))
    return _Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, frame.f_globals)


def _next_outside(frame: FrameType | None) -> FrameType | None:
    """The next frame up that belongs to a program or to who called it."""
    while frame is not None:
        frame = frame.f_back
        if frame is not None and not frame.f_code.co_filename.startswith(_BETWEEN):
            return frame
    return None


def _warn(category: type[Warning] | None, where: Callable[[], _Place], message: Any) -> None:
    """As `warnings.warn` there: shown once or always, as the filters say, counted where that module counts."""
    place = where()
    registry = place.globals.setdefault("__warningregistry__", {})
    module = place.globals.get("__name__") or "<string>"
    warnings.warn_explicit(message, category or UserWarning, place.file, place.line, module, registry)


def _log(
    logger: logging.Logger, level: int, where: Callable[[], _Place], message: Any, *args: Any, extra: Any = None
) -> None:
    """As `logger.log(level, message, *args)` there."""
    if logger is logging.root and not logger.handlers:
        logging.basicConfig()
    if logger.isEnabledFor(level):
        place = where()
        logger.handle(
            logger.makeRecord(
                logger.name, level, place.file, place.line, message, args, None, place.function, extra
            )
        )


def _guard_level(logger: logging.Logger, source: Source) -> None:
    """Guards what decides which levels `logger` logs."""
    of_chain: logging.Logger | None = logger
    install_guard(AttrSource(AttrSource(source, "manager"), "disable").make_guard(GuardBuilder.EQUALS_MATCH))
    install_guard(AttrSource(source, "disabled").make_guard(GuardBuilder.EQUALS_MATCH))
    while of_chain is not None:
        install_guard(AttrSource(source, "level").make_guard(GuardBuilder.EQUALS_MATCH))
        if of_chain.level:
            return
        of_chain, source = of_chain.parent, AttrSource(source, "parent")


def _refuse(what: str) -> None:
    unimplemented(
        gb_type="A message of the program that cannot be said later",
        context=what,
        explanation=f"messages of a program are said when it has run, which does not work for {what}.",
        hints=[],
    )


# What replaces methods of Dynamo's, in `dynamo_compat.capture_setting`: functions from the method to its replacement.


def noting_messages(original: Callable) -> Callable:
    """Dynamo's calls of what is in `MESSAGE_FUNCTIONS`."""

    def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.value is logging.getLogger:
            return _logger(tx, *args, **kwargs)
        if self.value in _LOG_FUNCTIONS:
            return _logger(tx).call_method(tx, _LOG_FUNCTIONS[self.value], list(args), kwargs)
        _Recorder(tx).call(self.value, list(args), kwargs)
        return ConstantVariable.create(None)

    return call_function


def _logger(tx: Any, name: VariableTracker | None = None) -> LoggingLoggerVariable:
    """The logger of that name, for the program."""
    logger = logging.getLogger(None if name is None else name.as_python_constant())
    root = AttrSource(tx.import_source("logging"), "root")
    loggers = AttrSource(AttrSource(root, "manager"), "loggerDict")
    source = root if logger is logging.root else DictGetItemSource(loggers, logger.name)
    return LoggingLoggerVariable(logger, source=source)


def noting_logs(original: Callable) -> Callable:
    """Dynamo's calls of loggers' methods."""

    def call_method(self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name in ("isEnabledFor", "getEffectiveLevel") and self.source is not None:
            _guard_level(self.value, self.source)
            return ConstantVariable.create(getattr(self.value, name)(*(a.as_python_constant() for a in args)))
        if name not in _LOG_METHODS:
            return original(self, tx, name, args, kwargs)
        _Recorder(tx).log(self.value, name, list(args), kwargs)
        return ConstantVariable.create(None)

    return call_method


def noting_start(original: Callable) -> Callable:
    """Dynamo's entering of a `warnings.catch_warnings`."""

    def enter(self: Any, tx: Any) -> Any:
        kwargs = {name: value.as_python_constant() for name, value in self.catch_warnings_args.items()}
        _Recorder(tx).messages.blocks.append(_Block({name: value for name, value in kwargs.items() if value}, []))
        return original(self, tx)

    return enter


def noting_end(original: Callable) -> Callable:
    """Dynamo's leaving of a `warnings.catch_warnings`."""

    def leave(self: Any, tx: Any, *args: Any) -> Any:
        blocks = _Recorder(tx).messages.blocks
        block = blocks.pop()
        if block.said:
            blocks[-1].said.append(block)
        return original(self, tx, *args)

    return leave
