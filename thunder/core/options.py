"""Every option of thunder: cache and sharp-edges modes, compile options, debug options, environment variables."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Final, Literal, TypeVar, overload

from thunder.core.baseutils import FrozenDict, check, did_you_mean
from thunder.core.errors import ThunderTypeError, ThunderValueError


class CACHE_OPTIONS(Enum):
    """When a compiled program may be used again."""

    NO_CACHING = "no caching"
    SAME_INPUT = "same input"
    CONSTANT_VALUES = "constant values"
    SYMBOLIC_VALUES = "symbolic values"

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class SHARP_EDGES_OPTIONS(Enum):
    """What to do when a program depends on something that the guards do not see."""

    ALLOW = "allow"
    WARN = "warn"
    ERROR = "error"

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


E = TypeVar("E", bound=Enum)


def _resolve_enum(cls: type[E], x: Any, default: E, what: str) -> E:
    if x is None:
        return default
    if isinstance(x, cls):
        return x
    choices = {str(member.value): member for member in cls}
    if isinstance(x, str):
        if (found := choices.get(x.lower())) is not None:
            return found
        hint = did_you_mean(x, choices)
    else:
        hint = ""
    allowed = ", ".join(f'"{choice}"' for choice in choices)
    raise ThunderValueError(f"unknown {what} {x!r}{hint or ';'} allowed are {allowed} and members of {cls.__name__}")


def resolve_cache_option(x: Any, /) -> CACHE_OPTIONS:
    """`x`, a member or its value as a string in any case, as a member; None is "constant values".

    Raises: ThunderValueError, naming what is allowed.
    """
    return _resolve_enum(CACHE_OPTIONS, x, CACHE_OPTIONS.CONSTANT_VALUES, "cache option")


def resolve_sharp_edges_option(x: Any, /) -> SHARP_EDGES_OPTIONS:
    """`x`, a member or its value as a string in any case, as a member; None is "allow".

    Raises: ThunderValueError, naming what is allowed.
    """
    return _resolve_enum(SHARP_EDGES_OPTIONS, x, SHARP_EDGES_OPTIONS.ALLOW, "sharp edges option")


def _is_of_type(value: Any, typ: Any) -> bool:
    """Whether `value` fits the annotation `typ`: a class, a union, or a generic whose arguments are not looked at.

    bool is not taken for int, nor int for bool.
    """
    if typ is Any:
        return True
    origin = typing.get_origin(typ)
    if origin in (typing.Union, UnionType):
        return any(_is_of_type(value, option) for option in typing.get_args(typ))
    if origin is Literal:
        return value in typing.get_args(typ)
    if typ is int and isinstance(value, bool):
        return False
    return value is None if typ is None else isinstance(value, origin or typ)


def _type_name(typ: Any) -> str:
    return typ.__name__ if isinstance(typ, type) and typing.get_origin(typ) is None else str(typ)


def _check_value(kind: str, name: str, value: Any, typ: Any) -> None:
    """Raises unless `value` fits `typ`: ThunderValueError if that lists the allowed values, else ThunderTypeError."""
    if _is_of_type(value, typ):
        return
    if typing.get_origin(typ) is Literal:
        allowed = typing.get_args(typ)
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ThunderValueError(f'{kind} "{name}" must be one of {allowed}, but got {value!r}{hint}')
    raise ThunderTypeError(f'{kind} "{name}" must be of type {_type_name(typ)}, but got {value!r}')


class DebugOptions:
    """Options that help to debug thunder."""

    _defaults: ClassVar[dict[str, Any]] = {}
    _docs: ClassVar[dict[str, str]] = {}

    def __init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            if name not in self._defaults:
                raise ThunderTypeError(f'unknown debug option "{name}"{did_you_mean(name, self._defaults)}')
            _check_value("debug option", name, value, type(self).__annotations__[name])
            setattr(self, name, value)

    @classmethod
    def register_option(cls, name: str, typ: Any, default: Any, doc: str = "") -> None:
        """Adds an option. Raises AttributeError if there is one, or another attribute, of that name."""
        check(not hasattr(cls, name), lambda: f'debug option "{name}" is already registered', AttributeError)
        _check_value("debug option", name, default, typ)
        cls.__annotations__[name] = typ
        cls._defaults[name] = default
        cls._docs[name] = doc
        # Instances made earlier have the option, too.
        setattr(cls, name, default)
        cls._set_docstring()

    @classmethod
    def _set_docstring(cls) -> None:
        cls.__doc__ = f"Options that help to debug thunder.\n\nKeyword arguments:\n{cls.list_options(docstr=True)}\n"

    @classmethod
    def list_options(cls, docstr: bool = False) -> str:
        """One line for each option: name, type, default and, if it has one, description; indented for `docstr`."""
        indent = "    " if docstr else ""
        return "\n".join(
            f"{indent}{name}: {_type_name(cls.__annotations__[name])} = {default!r}"
            + (f"  {cls._docs[name]}" if cls._docs[name] else "")
            for name, default in cls._defaults.items()
        )

    def __repr__(self) -> str:
        changed = {name: value for name in self._defaults if (value := getattr(self, name)) != self._defaults[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


DebugOptions.__annotations__ = {}
DebugOptions.register_option(
    "check_traces", bool | int, False, "check every trace; True for the newest rules, or the version of the rules"
)


def _option(default: Any, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class RegisteredOption:
    """A compile option that an executor or a transform added."""

    name: str
    type: Any
    default: Any
    doc: str


_registered_options: dict[str, RegisteredOption] = {}


def register_compile_option(name: str, type: Any, default: Any, doc: str) -> None:
    """Lets `thunder.jit` take the keyword `name`; its value is found in `CompileOptions.extra` and with `get`.

    Args:
        type: a class, a union or a Literal.
        default: hashable, of that type.
    Raises: ThunderValueError if there is a different option of that name; the same registration may be repeated.
    """
    check(name.isidentifier(), lambda: f"an option's name must be an identifier, but got {name!r}", ThunderValueError)
    _check_value("compile option", name, default, type)
    option = RegisteredOption(name, type, default, doc)
    taken = name == "extra" or name in _COMPILE_OPTION_TYPES or _registered_options.get(name, option) != option
    check(not taken, lambda: f'there is already a compile option "{name}"', ThunderValueError)
    _registered_options[name] = option


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The options that `thunder.jit` takes as free keywords, for one compilation. Hashable if those in `extra` are."""

    fusion_type: Literal["consecutive", "dataflow"] = _option(
        "consecutive", "how fusion regions grow: over neighbours in program order, or along the dependency graph"
    )
    skip_inplace_functionalization: bool = _option(False, "keep in-place operations instead of making them functional")
    skip_inplace_alias_updates: bool = _option(False, "do not analyse aliases for in-place operations that are kept")
    disable_inplace_copy_check: bool = _option(
        False, "do not check that the destination of a write is not read again inside one fusion region"
    )
    thunderfx_disable_split_autograd: bool = _option(False, "use one autograd.Function instead of two")
    is_differentiable_outputs: tuple[bool, ...] | None = _option(
        None, "for each flat output whether it has a gradient; needs thunderfx_disable_split_autograd"
    )
    rematerialize: bool = _option(True, "compute cheap values again in backward where that saves bytes")
    auto_recompute_intermediates: bool = _option(False, "recompute intermediates of decompositions in the backward")
    torch_compile_fullgraph: bool = _option(True, "`fullgraph` of the torch.compile executors")
    disable_replace_uniform: bool = _option(False, "keep `uniform` instead of its stateless form")
    nv_enable_linear: bool = _option(False, "let nvFuser take linear")
    nv_enable_matmul: bool = _option(False, "let nvFuser take matmul")
    nv_enable_sdpa: bool = _option(False, "let nvFuser take flash attention")
    nv_enable_scatter: bool = _option(False, "let nvFuser take scatter and its kin")
    nv_enable_embedding: bool | None = _option(None, "deprecated, without effect")
    nv_enable_shape_only_fusion: bool = _option(False, "allow nvFuser regions of shape operations only")
    nv_store_fusion_inputs: bool = _option(False, "keep the last inputs of nvFuser regions, for repro scripts")
    nv_save_fake_inputs: bool = _option(False, "keep fake copies of the last inputs of nvFuser regions")
    nv_enable_options: tuple[str, ...] = _option((), "features that nvFuser is to switch on")
    nv_disable_options: tuple[str, ...] = _option((), "features that nvFuser is to switch off")
    nv_skip_cache: bool = _option(False, "bypass nvFuser's cache of fusion definitions")
    cudnn_sdpa_bwd_may_cat_grad_qkv: bool = _option(
        False, "let cuDNN's attention write the gradients of q, k and v into one buffer"
    )
    sdpa_debug: bool = _option(False, "warn why an attention kernel is not eligible")
    use_apex_cross_entropy: bool = _option(True, "let the apex executor take cross entropy")
    extra: FrozenDict[str, Any] = dataclasses.field(
        default_factory=FrozenDict, metadata={"doc": "values given for options added with register_compile_option"}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", FrozenDict(self.extra))
        for name, typ in _COMPILE_OPTION_TYPES.items():
            value = getattr(self, name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            _check_value("compile option", name, value, typ)

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> CompileOptions:
        """The options that `kwargs` give, defaults for the rest. Lists become tuples.

        Raises: ThunderTypeError for an unknown keyword (with the nearest match) or a value of the wrong type,
            ThunderValueError for a value that is not allowed.
        """
        builtin: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in _COMPILE_OPTION_TYPES:
                builtin[name] = value
            elif (registered := _registered_options.get(name)) is not None:
                _check_value("compile option", name, value, registered.type)
                extra[name] = value
            else:
                raise _unknown_option(name)
        return cls(**builtin, extra=FrozenDict(extra))

    def get(self, name: str) -> Any:
        """The value of the option `name`, built in or registered. Raises ThunderTypeError if there is none."""
        if name in _COMPILE_OPTION_TYPES:
            return getattr(self, name)
        if name in self.extra:
            return self.extra[name]
        if name in _registered_options:
            return _registered_options[name].default
        raise _unknown_option(name)


_COMPILE_OPTION_TYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {name: typ for name, typ in typing.get_type_hints(CompileOptions).items() if name != "extra"}
)


def _unknown_option(name: str) -> ThunderTypeError:
    return ThunderTypeError(f'unknown compile option "{name}"{did_you_mean(name, option_docs())}')


def option_docs() -> dict[str, str]:
    """What each compile option means, built in and registered, by name."""
    builtin = {field.name: field.metadata["doc"] for field in dataclasses.fields(CompileOptions)}
    del builtin["extra"]
    return builtin | {option.name: option.doc for option in _registered_options.values()}


LOG_AREAS: Final = ("recompiles", "passes", "fusions", "guards", "cache", "split", "all")
"""What THUNDER_LOGS may name; "all" stands for all others."""

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class EnvVar:
    """An environment variable that thunder reads.

    Attributes:
        type: bool, int, str, or tuple (a comma separated list of strings).
        allowed: the values an int may have, or None for any.
    """

    name: str
    type: type
    default: Any
    doc: str
    allowed: range | None = None

    def parse(self, text: str) -> Any:
        """`text` as a value of the variable's type. Raises ThunderValueError if it is none."""
        if self.type is tuple:
            return tuple(item for part in text.split(",") if (item := part.strip()))
        if self.type is bool:
            return self._parse_bool(text)
        if self.type is int:
            return self._parse_int(text)
        return text

    def _parse_bool(self, text: str) -> bool:
        folded = text.strip().lower()
        if folded in _TRUE or folded in _FALSE:
            return folded in _TRUE
        raise ThunderValueError(f'{self.name} must be 1 or 0, but is "{text}"')

    def _parse_int(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError as e:
            raise ThunderValueError(f'{self.name} must be an integer, but is "{text}"') from e
        if self.allowed is not None and value not in self.allowed:
            raise ThunderValueError(f"{self.name} must be from {self.allowed[0]} to {self.allowed[-1]}, but is {value}")
        return value


_ENV_VARS: Final = (
    EnvVar("THUNDER_CHECKS", int, 0, "verify traces after each pass: 0 no, 1 structure, 2 everything", range(3)),
    EnvVar("THUNDER_LOGS", tuple, (), f"areas to log, comma separated: {', '.join(LOG_AREAS)}"),
    EnvVar("THUNDER_DISABLE", bool, False, "run programs as they are instead of compiling them"),
    EnvVar("THUNDER_DISABLE_PASS", tuple, (), "names of passes to leave out, comma separated"),
    EnvVar(
        "THUNDER_CACHE_DIR", str, None, "directory of compiled regions; unset: ~/.cache/thunder; none: keep nothing"
    ),
    EnvVar("THUNDER_ANNOTATE_TRACES", bool, False, "mark each operation of generated code for profilers"),
)
ENV: Final[Mapping[str, EnvVar]] = MappingProxyType({variable.name: variable for variable in _ENV_VARS})
"""The environment variables that thunder reads, by name."""


@overload
def env(name: Literal["THUNDER_CHECKS"]) -> int: ...
@overload
def env(name: Literal["THUNDER_LOGS", "THUNDER_DISABLE_PASS"]) -> tuple[str, ...]: ...
@overload
def env(name: Literal["THUNDER_DISABLE", "THUNDER_ANNOTATE_TRACES"]) -> bool: ...
@overload
def env(name: Literal["THUNDER_CACHE_DIR"]) -> str | None: ...
@overload
def env(name: str) -> Any: ...


def env(name: str) -> Any:
    """The value of the environment variable `name` now; its default if it is unset or empty.

    Raises: ThunderValueError if the text does not parse, or `name` is not in `ENV`.
    """
    if (variable := ENV.get(name)) is None:
        raise ThunderValueError(f'thunder has no environment variable "{name}"{did_you_mean(name, ENV)}')
    text = os.environ.get(name)
    return variable.parse(text) if text else variable.default
