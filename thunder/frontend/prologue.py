"""The prologue: what a program takes from a call, and what has to be so for the program to fit the call.

Dynamo's guards, compiled to C++, do the checking. The trace made here says the same in Python; run with the call's
locals and globals it gives the program's inputs, or raises GuardError where a tensor does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from thunder.core import prims
from thunder.core.prims.guards import check_tensor_shape_and_metadata, unpack_source
from thunder.core.proxies import AnyProxy, Proxy, TensorProxy
from thunder.core.torch_compat import expression_of, guards_of_capture, source_of_input
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx

# What Dynamo installs for itself, and says nothing about the user's values.
_INTERNAL = re.compile(r"__import_|__builtins_|___|^G\['__")
_MEANING = {
    "CONSTANT_MATCH": "has the value that it had",
    "EQUALS_MATCH": "has the value that it had",
    "TYPE_MATCH": "is of the same type",
    "SEQUENCE_LENGTH": "is of the same type and length",
    "DICT_KEYS_MATCH": "has the same keys",
    "DICT_CONTAINS": "has the same keys",
    "ID_MATCH": "is the same object",
    "BUILTIN_MATCH": "is the same object",
    "CLOSURE_MATCH": "is the same function",
    "FUNCTION_MATCH": "is the same function",
    "CLASS_MATCH": "is the same class",
    "MODULE_MATCH": "is the same module",
    "EMPTY_NN_MODULE_HOOKS_DICT": "has no hooks",
    "DUPLICATE_INPUT": "is the same tensor as another input",
    "NONE_MATCH": "is None",
    "HASATTR": "has, or does not have, an attribute",
    "NOT_PRESENT_IN_GENERIC_DICT": "has no attribute of its own that hides one of its class",
}
_STATE = {
    "GRAD_MODE": "the grad mode",
    "DETERMINISTIC_ALGORITHMS": "deterministic algorithms",
    "DEFAULT_DEVICE": "the default device",
    "GLOBAL_STATE": "default dtype, autocast and threads",
    "TORCH_FUNCTION_STATE": "torch function modes",
    "AUTOGRAD_SAVED_TENSORS_HOOKS": "saved tensor hooks",
}


@dataclass(frozen=True)
class Prologue:
    """What is known at the end of a capture. The trace is made when somebody asks for it.

    guards: (source, kind) pairs.
    sources: for each input of the computation where it comes from, None for what is computed from others.
    inputs: the computation's arguments.
    """

    guards: Sequence[tuple[Any, str]]
    sources: Sequence[Any]
    inputs: Sequence[Any]

    @classmethod
    def of_capture(cls, placeholders: Sequence[fx.Node], inputs: Sequence[Any]) -> Prologue:
        """Of the capture under way."""
        return cls(guards_of_capture(), [source_of_input(n) for n in placeholders], tuple(inputs))

    def trace(self) -> TraceCtx:
        """The prologue, with the arguments `L` and `G`: the call's locals and globals."""
        trace = TraceCtx(name="prologue")
        trace.include_decorators = False
        with tracectx(trace):
            trace.args = tuple(AnyProxy(None, name=trace.unique_name(name)) for name in ("L", "G"))
            if lines := self._checked():
                trace.emit(prims.comment, ("\n".join(f"Checked: {line}" for line in lines),), {}, None)
            outs = [_unpack(trace, s, p) for s, p in zip(self.sources, self.inputs, strict=True)]
            trace.emit(prims.python_return, (tuple(o for o in outs if o is not None),), {}, None)
        trace.set_provenance("prologue")
        trace.mark_complete()
        return trace

    def _checked(self) -> list[str]:
        """What is checked beside tensors, a line for each."""
        state, values = [], []
        for source, kind in self.guards:
            expression = expression_of(source)
            if not expression:
                state.append(_STATE.get(kind, ""))
            elif kind in _MEANING and not _INTERNAL.search(expression):
                values.append(f"{expression} {_MEANING[kind]}")
        together = ", ".join(dict.fromkeys(s for s in state if s))
        return [together, *dict.fromkeys(values)] if together else list(dict.fromkeys(values))


def _unpack(trace: TraceCtx, source: Any, p: Any) -> Any:
    if source is None or not isinstance(p, Proxy):
        return None
    trace.names.add(p.name)
    trace.emit(unpack_source, (expression_of(source), p), {}, p)
    if isinstance(p, TensorProxy):
        shape = tuple(s if type(s) is int else -1 for s in p.shape)
        args = (p, shape, str(p.device), p.torch_dtype, p.requires_grad)
        trace.emit(check_tensor_shape_and_metadata, args, {}, None)
    return p
