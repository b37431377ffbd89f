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
from thunder.core.compile_data import compile_options
from thunder.core.options import CompileOptions
from thunder.core.passes import PassContext
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.torch_compat import (
    FakeTensorMode,
    fake_mode_of_tracing,
    functorch_is_active,
    is_static_input,
    tracing_fake_mode,
    without_saved_tensor_hooks,
)
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.extend.executor import lookasides_of
from thunder.frontend.autocasting import AutocastState
from thunder.frontend.lowering import Lowering, example_value, input_name
from thunder.frontend.prologue import Prologue
from thunder.frontend.version_checks import Refusals, fake_like, refresh_examples, refusals_of_graph
from thunder.pipeline import Program, compile_program
from thunder.runtime import apply_directly, run


@dataclass
class CaptureSettings:
    """What all graphs of one compiled callable share."""

    options: CompileOptions = field(default_factory=CompileOptions)
    executors: Sequence[Any] = ()
    transforms: Sequence[Any] = ()
    disable_torch_autograd: bool = False
    argument_names: Sequence[str] = ()
    on_compile: Callable[[CompiledGraph, Program], None] = lambda graph, program: None
    on_run: Callable[[Program], None] = lambda program: None


class CompiledGraph:
    """A captured graph, compiled; called with the graph's inputs."""

    def __init__(
        self,
        gm: fx.GraphModule,
        settings: CaptureSettings,
        example_inputs: Sequence[Any],
        *,
        grad_enabled: bool | None = None,
        requires_grad: Sequence[bool] | None = None,
        refusals: Refusals | None = None,
    ):
        """Compiles `gm`.

        Args:
            example_inputs: real or fake inputs; they show which inputs share memory.
            grad_enabled: whether autograd is on where the graph starts; None for its state now.
            requires_grad: for each input whether it requires grad; None to ask the examples.
            refusals: where eager's backward raises; None to find out.
        """
        self.gm = gm
        self.settings = settings
        self.programs: dict[tuple, Program] = {}
        self.autocast = AutocastState.from_surroundings()
        self.grad_enabled = torch.is_grad_enabled() if grad_enabled is None else grad_enabled
        self.fake_mode = tracing_fake_mode()
        self._lock = threading.Lock()
        if requires_grad is None:
            requires_grad = [isinstance(e, torch.Tensor) and e.requires_grad for e in example_inputs]
        self._requires_grad = tuple(requires_grad)
        self.writes_memory = True
        self._first_pattern = pattern = input_overlap_pattern(list(example_inputs))
        if self.fake_mode is not None:
            refresh_examples(gm, self.fake_mode, self._fake_inputs(example_inputs, self.fake_mode))
        self.programs[pattern] = self._compile(pattern)
        self._refusals = self._find_refusals(example_inputs) if refusals is None else refusals
        self._grad_after = None if self._grad_at_end == self.grad_enabled else self._grad_at_end
        self.writes_memory = self._writes
        if not self.writes_memory:
            self.programs[()] = self.programs[pattern]

    def __call__(self, *args: Any) -> Any:
        """The results of one call. Leaves autograd switched on or off as the graph does."""
        pattern = input_overlap_pattern(list(args)) if self.writes_memory else ()
        program = self.programs.get(pattern)
        if program is None:
            with self._lock:
                program = self.programs.get(pattern)
                if program is None:
                    program = self.programs[pattern] = self._compile_late(pattern)
        self.settings.on_run(program)
        result = run(program, args)
        if self._refusals and torch.is_grad_enabled():
            self._refusals.attach(args, result)
        if self._grad_after is not None:
            torch._C._set_grad_enabled(self._grad_after)
        return result

    def as_function(self) -> Callable[..., Any]:
        """The graph's call as a plain function, for programs that need none of `__call__`'s care in most calls.

        What is called for each step of a training loop pays for every Python frame.
        """
        if self.writes_memory or self._refusals or self._grad_after is not None:
            return self.__call__
        program, ran = self.programs[()], self.settings.on_run
        if not program.differentiable or program.epilogue is not None:
            return self.__call__

        def run_graph(*args: Any) -> Any:
            ran(program)
            if torch.is_grad_enabled() and not functorch_is_active():
                return apply_directly(program, *args)
            return run(program, args)

        return run_graph

    def _find_refusals(self, example_inputs: Sequence[Any]) -> Refusals:
        """Where eager's backward raises because of a write; looked for in programs that write what autograd tracks."""
        if not self._writes_tracked or self.fake_mode is None:
            return Refusals()
        inputs = self._fake_inputs(example_inputs, self.fake_mode)
        return refusals_of_graph(self.gm, self.fake_mode, inputs)

    def _fake_inputs(self, example_inputs: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
        """Fake inputs like those of the capture, in memory of their own."""
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        inputs = []
        for node, example, requires_grad in zip(placeholders, example_inputs, self._requires_grad, strict=True):
            fake = example_value(node)
            is_leaf = not isinstance(example, torch.Tensor) or example.is_leaf
            is_tensor = isinstance(fake, torch.Tensor)
            inputs.append(fake_like(fake, mode, requires_grad, is_leaf) if is_tensor else fake)
        return inputs

    def _compile_late(self, pattern: tuple) -> Program:
        """The program for another way in which inputs share memory, met when Dynamo's compilation is long over.

        A decision about symbolic sizes can no longer become a guard, so a program that would need one runs as captured.
        """
        if self.fake_mode is None or self.fake_mode.shape_env is None:
            return self._compile(pattern)
        known = len(self.fake_mode.shape_env.guards)
        with fake_mode_of_tracing(self.fake_mode):
            program = self._compile(pattern)
        if len(self.fake_mode.shape_env.guards) != known:
            return Program(self.gm.forward, None, None, ())
        return program

    def _compile(self, pattern: tuple) -> Program:
        start = time.perf_counter_ns()
        settings = self.settings
        ctx = PassContext(settings.options, settings.executors)
        with without_saved_tensor_hooks(), compile_options(settings.options):
            trace = self._lower(pattern)
            ctx.phase_ns["lowering"] = time.perf_counter_ns() - start
            differentiable = self._is_tracked and not settings.disable_torch_autograd
            program = compile_program(
                trace,
                ctx,
                differentiable=differentiable,
                transforms=settings.transforms,
                make_prologue=self._prologue.trace,
            )
        program.phase_ns = ctx.phase_ns
        settings.on_compile(self, program)
        return program

    def _lower(self, pattern: tuple) -> TraceCtx:
        """The graph as a trace, its inputs sharing memory as `pattern` says."""
        trace = TraceCtx(name="computation")
        lowering = Lowering(
            trace,
            grad_enabled=self.grad_enabled,
            autocast=self.autocast.copy(),
            lookasides=lookasides_of(self.settings.executors),
        )
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        inputs = []
        for node, requires_grad in zip(placeholders, self._requires_grad, strict=True):
            p = lowering.input_proxy(
                example_value(node),
                input_name(node.name, self.settings.argument_names),
                requires_grad=requires_grad,
                is_static=is_static_input(node),
            )
            inputs.append(p)
        inputs = _share_memory(lowering, placeholders, inputs, pattern)
        trace.args = tuple(inputs)
        with tracectx(trace):
            for p in inputs:
                trace.emit(prims.unpack_trivial, (p,), {"name": p.name if hasattr(p, "name") else None}, p)
            lowering.bind_sizes(inputs)
            result = lowering.run(self.gm.graph, self.gm, inputs)
            flat, _ = tree_flatten(result)
            trace.emit(prims.python_return, (tuple(flat),), {}, None)
        if pattern is self._first_pattern:  # a later one is compiled when the capture is over
            self._prologue = Prologue.of_capture(placeholders, inputs)
        self._grad_at_end, self._is_tracked = lowering.grad_enabled, lowering.is_tracked
        self._writes_tracked = lowering.is_tracked and any(n.written for n in trace.bound_symbols)
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
