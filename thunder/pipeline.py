"""THE list of passes: what happens to a captured trace, in order, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from thunder.core.options import CompileOptions
from thunder.core.passes import FunctionPass, PassContext, run_pass, run_passes
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.core.transforms.autodiff import joint_trace
from thunder.core.transforms.cse import CommonSubexpressionElimination
from thunder.core.transforms.dce import DeadCodeElimination
from thunder.core.transforms.del_last_used import DeleteLastUsed, HandOverToRegions
from thunder.core.transforms.inplace import ProgramParts, split_effects
from thunder.core.transforms.markers import RemoveMarkers
from thunder.core.transforms.protect import ProtectOverwritten
from thunder.core.transforms.recompute import RecomputeInBackward
from thunder.core.transforms.reinplace import Reinplace
from thunder.core.transforms.rematerialize import Rematerialize
from thunder.core.transforms.split import SplitTraces, split_forward_backward
from thunder.core.transforms.view_chains import SimplifyViews
from thunder.core.update_aliases import alias_engine
from thunder.executors.einsum import DecomposeEinsum
from thunder.executors.passes import Fusion, TransformForExecution, operator_executors
from thunder.program import Differentiated, PartialBackwards, saved_names
from thunder.program import Program as Program


def compile_program(
    captured: TraceCtx,
    ctx: PassContext,
    *,
    differentiable: bool,
    transforms: Sequence[Any] = (),
    make_prologue: Callable[[], TraceCtx | None] = lambda: None,
) -> Program:
    """From a captured trace to functions. `differentiable`: outputs get a gradient where an input has one."""
    prologues = _Prologues(make_prologue)
    captured.set_provenance("capture")
    ctx.history.append(captured)
    trace = run_pass(DeadCodeElimination(), captured, ctx)
    parts = ProgramParts(trace, None)

    def in_place(trace: TraceCtx, _: PassContext) -> TraceCtx:
        nonlocal parts
        parts = split_effects(trace, alias_engine(ctx.options))
        return parts.computation

    trace = run_pass(FunctionPass(in_place, "functionalization"), trace, ctx)
    for transform in transforms:
        trace, parts = _user_transform(transform, trace, parts, prologues, ctx)
    trace = run_passes([CommonSubexpressionElimination(), DeadCodeElimination(), DecomposeEinsum()], trace, ctx)
    compiled = _with_gradient if differentiable and _is_differentiable(trace) else _without_gradient
    program = compiled(trace, parts, ctx, transforms)
    program.make_prologue_traces = prologues.all
    return program


def execution_passes(options: CompileOptions) -> list[Any]:
    """What follows once the program, or the joint program, is complete."""
    in_program_order = options.skip_inplace_functionalization and options.skip_inplace_alias_updates
    return [
        RemoveMarkers(in_program_order),
        DeadCodeElimination(after="joint"),
        Reinplace(),
        TransformForExecution(),
        Fusion(),
    ]


def _with_gradient(trace: TraceCtx, parts: ProgramParts, ctx: PassContext, transforms: Sequence[Any]) -> Program:
    def differentiate(
        given: Sequence[int] | None, ctx: PassContext, saved: frozenset | None = None
    ) -> tuple[TraceCtx, TraceCtx]:
        """The joint trace before and after the execution passes."""
        joint = run_passes(
            [
                FunctionPass(lambda t, c: joint_trace(t, c.executors, given), "autodiff", "joint"),
                SimplifyViews(),
                RecomputeInBackward(),
                *([Rematerialize(parts.epilogue_writes, saved)] if ctx.options.rematerialize else []),
                ProtectOverwritten(parts.epilogue_writes),
            ],
            trace,
            ctx,
        )
        return joint, run_passes(execution_passes(ctx.options), joint, ctx)

    def compile_backward(split: SplitTraces, executable: TraceCtx, ctx: PassContext) -> Callable | None:
        if split.backward is None:
            return None
        backward = run_passes(_final_passes(split.backward, transforms), executable, ctx)
        return backward.python_callable(include_decorators=False)

    def differentiate_partly(given: Sequence[int]) -> Differentiated:
        new = [PassContext(ctx.options, ctx.executors, check_level=ctx.check_level) for _ in range(2)]
        joint, executable = differentiate(given, new[0], saved_names(full.split))
        split = split_forward_backward(executable)
        return Differentiated(joint, split, compile_backward(split, executable, new[1]))

    joint, executable = differentiate(None, ctx)
    split = split_forward_backward(executable)
    forward = run_passes(_final_passes(split.forward, transforms), joint, ctx)
    backward_ctx = PassContext(ctx.options, ctx.executors, phase_ns=ctx.phase_ns, check_level=ctx.check_level)
    full = Differentiated(joint, split, compile_backward(split, executable, backward_ctx))
    epilogue, epilogue_traces = _epilogue(parts, ctx)
    return Program(
        forward.python_callable(include_decorators=False),
        full.backward,
        epilogue,
        split.differentiable,
        ctx.history,
        backward_ctx.history,
        epilogue_traces,
        partial=PartialBackwards(full, differentiate_partly),
    )


def _without_gradient(trace: TraceCtx, parts: ProgramParts, ctx: PassContext, transforms: Sequence[Any]) -> Program:
    trace = run_passes([SimplifyViews(), *execution_passes(ctx.options)], trace, ctx)
    forward = run_passes(_final_passes(trace, transforms), trace, ctx)
    epilogue, epilogue_traces = _epilogue(parts, ctx)
    return Program(
        forward.python_callable(include_decorators=False),
        None,
        epilogue,
        (),
        ctx.history,
        epilogue_traces=epilogue_traces,
    )


def _final_passes(trace: TraceCtx, transforms: Sequence[Any]) -> list[Any]:
    hooks = [
        FunctionPass(
            lambda t, c, tr=tr: tr.transform_trace_post_optimization(t, executors_list=c.executors),
            type(tr).__name__,
            "executable",
        )
        for tr in transforms
    ]
    return [FunctionPass(lambda t, c: trace, "split", "executable"), DeleteLastUsed(), *hooks, HandOverToRegions()]


def _epilogue(parts: ProgramParts, ctx: PassContext) -> tuple[Callable | None, list[TraceCtx]]:
    if parts.epilogue is None:
        return None, []
    # Views and writes, in the order of the program: nothing is fused.
    epilogue_ctx = replace(ctx, executors=operator_executors(ctx.executors), history=[], observers=())
    implemented = FunctionPass(TransformForExecution().apply, "epilogue", "executable")
    trace = run_pass(implemented, parts.epilogue, epilogue_ctx)
    trace.include_decorators = False
    return trace.python_callable(), [parts.epilogue, trace]


def _is_differentiable(trace: TraceCtx) -> bool:
    outs = [o for o in trace.bound_symbols[-1].flat_args if isinstance(o, TensorProxy)]
    return any(o.requires_grad for o in outs) and any(
        isinstance(a, TensorProxy) and a.requires_grad for a in trace.args
    )


class _Prologues:
    """The prologue's traces; the first is made when somebody asks."""

    def __init__(self, make: Callable[[], TraceCtx | None]):
        self._make = make
        self._traces: list[TraceCtx] = []

    def all(self) -> list[TraceCtx]:
        if not self._traces and (first := self._make()) is not None:
            self._traces.append(first)
        return self._traces

    def replace(self, new: Any) -> None:
        if new is not None and new not in self._traces:
            self._traces.append(new)


def _user_transform(
    transform: Any, trace: TraceCtx, parts: ProgramParts, prologues: _Prologues, ctx: PassContext
) -> tuple[TraceCtx, ProgramParts]:
    """A Transform's hook on the three traces."""
    epilogue = parts.epilogue

    def apply(t: TraceCtx, _: PassContext) -> TraceCtx:
        nonlocal epilogue
        prologue = next(reversed(prologues.all()), None)
        prologue, new, epilogue = transform.transform_traces_pre_prologue(
            prologue, t, epilogue, executors_list=ctx.executors
        )
        prologues.replace(prologue)
        return new

    trace = run_pass(FunctionPass(apply, type(transform).__name__), trace, ctx)
    return trace, replace(parts, epilogue=epilogue)
