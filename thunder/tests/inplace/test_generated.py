"""Generated programs in eager and compiled: values, gradients, written inputs, shared memory, errors.

`THUNDER_FUZZ_EXAMPLES=20000` for a long run. A failure is shrunk and printed as Python source.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import thunder
from thunder.core.options import CompileOptions
from thunder.extend.registry import resolve_executors
from thunder.frontend.capture import CaptureSettings
from thunder.frontend.direct import DirectCapture
from thunder.tests.inplace.harness import REWRITES, Observation, assert_same, observe
from thunder.tests.inplace.programs import INPUTS, SHAPE_CHANGES, GeneratedProgram, build

EXAMPLES = int(os.environ.get("THUNDER_FUZZ_EXAMPLES", "500"))
_number = st.integers(0, 999)
_steps = st.lists(st.tuples(_number, _number, _number, _number, _number, _number), min_size=1, max_size=9)
_programs = st.builds(
    build, st.integers(0, len(INPUTS) - 1), _steps, st.lists(st.integers(0, 9), min_size=1, max_size=3)
)
# What a traced program is allowed to refuse where eager runs it.
_REFUSED = ("shape or strides of an input", "depends on the values of a tensor", "in no_grad on a tensor",
            "shows an element more than once")  # fmt: skip
# Dynamo runs a node again on an example whose shape an operation has changed since.
_REFUSED_BY_DYNAMO = "Cannot view a tensor with shape"

_A_LEAF = "a leaf Variable that requires grad is being used in an in-place operation"


def fuzz(examples: int) -> settings:
    """Settings for a number of examples; the same ones each time unless a long run is asked for."""
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        derandomize="THUNDER_FUZZ_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        database=None,
    )


def run_both(
    program: GeneratedProgram, compile: Any, *, through_dynamo: bool = False
) -> tuple[Observation, Observation]:
    """What the compiled program does, and what eager does."""
    want = observe(program.function(), program.arguments(1))
    got = observe(compile(program.function()), program.arguments(1))
    return got, want


def assert_equal(program: GeneratedProgram, got: Observation, want: Observation) -> None:
    try:
        assert_same(got, want)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{program}") from None


def check_program(program: GeneratedProgram, compile: Any, *, through_dynamo: bool = False) -> None:
    """One program; discarded where torch itself refuses to look at eager's result."""
    got, want = run_both(program, compile, through_dynamo=through_dynamo)
    assume(want.error is None or want.error[0] != "inspection")
    refused = (*_REFUSED, _REFUSED_BY_DYNAMO) if through_dynamo else _REFUSED
    assume(not (got.error and any(text in got.message for text in refused)))
    # What nobody reads is not computed, and so does not fail for its values.
    assume(not (got.error is None and "Number of elements of source" in want.message))
    # Eager does not look at `expanded[0] = expanded[0]`, which changes nothing.
    assume(not (got.error and want.error is None and "more than one element of the written-to" in got.message))
    # A backward that fails is refused when it is recorded, which is in forward.
    assume(not (want.error and got.error and want.error[0] == "backward" and want.message in got.message))
    # A backward that writes what another gradient needs: eager notices in the order in which backward happens to run.
    assume(not (want.error and want.error[0] == "backward" and got.error is None and "Writes" in program.source))
    # Eager takes a view for a leaf that has just become a result: its history is renewed when somebody looks at it. Its
    # forward then ends there, so what the program does after that (backward failing, too) has nothing to compare with.
    is_past_forward = got.error is None or got.error[0] == "backward"
    assume(not (_A_LEAF in want.message and is_past_forward and any(t._is_view() for t in program.arguments(1))))
    # Fake tensors do not follow views of what changes its shape in place: a version error that eager raises is missed.
    changes_shape = any(f".{method}" in program.source for method in SHAPE_CHANGES)
    assume(not (changes_shape and got.error is None and "modified by an inplace operation" in want.message))
    # Dynamo takes an attribute that is read twice for one object.
    if through_dynamo and program.source.count(".mT") > 1:
        got.same_object = want.same_object
    assert_equal(program, got, want)


def direct(rewrite: str, executors: list[str] | None = None) -> Any:
    """Compiles by direct capture, which is quicker than Dynamo."""
    options = CompileOptions.from_kwargs(REWRITES[rewrite])
    capture = CaptureSettings(options=options, executors=resolve_executors(executors))
    return lambda fn: DirectCapture(fn, capture)


@pytest.mark.slow
@pytest.mark.parametrize("rewrite, share", [("functionalized", 0.6), ("alias_updates", 0.2), ("neither", 0.2)])
def test_generated_programs(rewrite: str, share: float) -> None:
    compile = direct(rewrite)

    @fuzz(int(EXAMPLES * share))
    @given(_programs)
    def run(program: GeneratedProgram) -> None:
        check_program(program, compile)

    run()


@pytest.mark.slow
def test_generated_programs_in_fused_regions(uncompiled_regions: None) -> None:
    compile = direct("functionalized", ["torchcompile"])

    @fuzz(EXAMPLES // 4)
    @given(_programs)
    def run(program: GeneratedProgram) -> None:
        check_program(program, compile)

    run()


@pytest.mark.slow
def test_generated_programs_through_dynamo() -> None:
    def compile(fn: Any) -> Any:
        torch._dynamo.reset()
        return thunder.jit(fn)

    @fuzz(EXAMPLES // 50)
    @given(_programs)
    def run(program: GeneratedProgram) -> None:
        check_program(program, compile, through_dynamo=True)

    run()


def test_programs_are_not_trivial() -> None:
    """The generator makes programs of several lines, with writes, views and custom functions."""
    program = build(0, [(3, 0, 0, 0, 1, 2), (1, 0, 0, 0, 0, 0), (6, 0, 0, 0, 0, 0)], [0])
    assert program.source == (
        "def f(x, y, z):\n    x.add_(y)\n    v1 = x[0]\n    v2 = ScaleInPlace.apply(x)\n    return v2,\n"
    )
