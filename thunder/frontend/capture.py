"""Capture by Dynamo: one compiled graph per set of guards, one program per way in which its inputs share memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from thunder.core import prims
from thunder.core.alias_analysis import input_overlap_pattern, with_storage
from thunder.core.options import CompileOptions
from thunder.core.passes import PassContext
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.frontend.autocasting import AutocastState
from thunder.frontend.lowering import Lowering, example_value, input_name
from thunder.pipeline import Program, compile_program
from thunder.runtime import run


@dataclass
class CaptureSettings:
    """What all graphs of one compiled callable share."""

    options: CompileOptions = field(default_factory=CompileOptions)
    executors: Sequence[Any] = ()
    transforms: Sequence[Any] = ()
    disable_torch_autograd: bool = False
    on_compile: Callable[[CompiledGraph, Program], None] = lambda graph, program: None
    on_run: Callable[[Program], None] = lambda program: None


class CompiledGraph:
    """A captured graph, compiled; called with the graph's inputs."""

    def __init__(self, gm: fx.GraphModule, settings: CaptureSettings, example_inputs: Sequence[Any]):
        self.gm = gm
        self.settings = settings
        self.programs: dict[tuple, Program] = {}
        self.autocast = AutocastState.from_surroundings()
        self.grad_enabled = torch.is_grad_enabled()
        self._lock = threading.Lock()
        self._requires_grad = tuple(isinstance(e, torch.Tensor) and e.requires_grad for e in example_inputs)
        self.writes_memory = True
        pattern = input_overlap_pattern(list(example_inputs))
        self.programs[pattern] = self._compile(pattern)
        self.writes_memory = self._writes
        if not self.writes_memory:
            self.programs[()] = self.programs[pattern]

    def __call__(self, *args: Any) -> Any:
        pattern = input_overlap_pattern(list(args)) if self.writes_memory else ()
        program = self.programs.get(pattern)
        if program is None:
            with self._lock:
                program = self.programs.get(pattern)
                if program is None:
                    program = self.programs[pattern] = self._compile(pattern)
        self.settings.on_run(program)
        return run(program, args)

    def _compile(self, pattern: tuple) -> Program:
        start = time.perf_counter_ns()
        settings = self.settings
        trace = self._lower(pattern)
        ctx = PassContext(settings.options, settings.executors)
        ctx.phase_ns["lowering"] = time.perf_counter_ns() - start
        differentiable = self.grad_enabled and not settings.disable_torch_autograd
        program = compile_program(trace, ctx, differentiable=differentiable, transforms=settings.transforms)
        program.phase_ns = ctx.phase_ns  # type: ignore[attr-defined]
        settings.on_compile(self, program)
        return program

    def _lower(self, pattern: tuple) -> TraceCtx:
        """The graph as a trace, its inputs sharing memory as `pattern` says."""
        trace = TraceCtx(name="computation")
        lowering = Lowering(trace, grad_enabled=self.grad_enabled, autocast=self.autocast.copy())
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        inputs = []
        for node, requires_grad in zip(placeholders, self._requires_grad, strict=True):
            p = lowering.input_proxy(example_value(node), input_name(node.name), requires_grad=requires_grad)
            inputs.append(p)
        inputs = _share_memory(lowering, placeholders, inputs, pattern)
        trace.args = tuple(inputs)
        with tracectx(trace):
            for p in inputs:
                trace.emit(prims.unpack_trivial, (p,), {"name": p.name if hasattr(p, "name") else None}, p)
            result = lowering.run(self.gm.graph, self.gm, inputs)
            flat, _ = tree_flatten(result)
            trace.emit(prims.python_return, (tuple(flat),), {}, None)
        self._writes = any(n.written or n.sym is prims.custom_vjp for n in trace.bound_symbols)
        return trace


def _share_memory(lowering: Lowering, placeholders: list, inputs: list, pattern: tuple) -> list:
    """Gives inputs that overlap in this call one storage, and each of the others one of its own."""
    group: dict[int, tuple[int, int]] = {}
    for first, position, offset in pattern:
        base, known = group.get(first, (first, 0))
        group.setdefault(position, (base, known + offset))
    result = []
    for n, p in enumerate(inputs):
        if isinstance(p, TensorProxy) and p.layout is not None:
            first, offset = group.get(n, (n, 0))
            p = with_storage(p, -1 - first, offset)
            lowering.adopt_input(example_value(placeholders[n]), p)
        result.append(p)
    return result
