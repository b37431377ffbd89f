"""A custom backward that scatters in place, beside a write that no fuser can cross: the smallest program of its kind.

The operations of the backward must stay backward operations however the write is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import TraceVerificationError
from thunder.core.origin import BoundSymbolTag, tag_inheritance_disabled
from thunder.dynamo import ThunderCompiler
from thunder.tests.fusers import ElementwiseFuser
from thunder.tests.inplace.harness import (
    REWRITES,
    assert_same,
    check,
    every_device,
    every_fusion,
    every_rewrite,
    observe,
)


class ScatterBackward(torch.autograd.Function):
    """Backward adds its gradient into what forward kept, at the places that forward chose."""

    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, picked: torch.Tensor, index: torch.Tensor, gates: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(index, gates)
        return picked * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple:
        index, gates = ctx.saved_tensors
        gates.scatter_add_(-1, index, g)
        return gates, None, None, None


def program(scores: torch.Tensor, buffer: torch.Tensor) -> tuple:
    gates = scores.detach().clone() * 0.5
    index = gates.max(dim=-1)[1].unsqueeze(-1)
    picked = gates.gather(-1, index)
    out = ScatterBackward.apply(scores, picked, index, gates)
    buffer.add_(1)
    return out * buffer.sum(), index, buffer.sin()


def make(device: str = "cpu") -> tuple:
    return torch.rand(4, 6, requires_grad=True, device=device), torch.rand(3, device=device)


def by_hand(scores: torch.Tensor) -> tuple:
    """The same with `autograd_function_apply` called by hand."""
    gates = scores.masked_fill(torch.zeros(4, 6, dtype=torch.bool, device=scores.device), float("-inf"))
    index = gates.max(dim=-1)[1].unsqueeze(-1)
    picked = gates.gather(-1, index)
    masked = torch.scatter(scores, -1, index, float("-inf"))
    same = masked.max(dim=-1, keepdim=True)[1] == index

    def forward(ctx: Any, scores: Any, picked: Any, index: Any, gates: Any) -> tuple:
        return picked * torch.ones(4, 1, dtype=torch.bool, device=picked.device), [gates, index]

    def backward(ctx: Any, g: Any, gates: Any, index: Any) -> tuple:
        gates.scatter_add_(dim=-1, index=index, src=g)
        return gates, None, None, None

    out = torch.ops.higher_order.autograd_function_apply(
        forward, backward, scores, picked, index, gates, args_tensor_mask=[True] * 4, non_differentiable_idx=[]
    )
    return same, out


class ByHand(torch.autograd.Function):
    """What `by_hand` calls, as a function that eager can run."""

    @staticmethod
    def forward(ctx: Any, scores: Any, picked: Any, index: Any, gates: Any) -> Any:
        ctx.gates, ctx.index = gates, index
        return picked * torch.ones(4, 1, dtype=torch.bool, device=picked.device)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple:
        gates = ctx.gates
        with torch.no_grad():
            gates.scatter_add_(dim=-1, index=ctx.index, src=g)
        return gates, None, None, None


def by_hand_in_eager(scores: torch.Tensor) -> tuple:
    # Detached: eager refuses a backward that writes to what another gradient needs. No gradient flows here anyway.
    gates = scores.detach().masked_fill(torch.zeros(4, 6, dtype=torch.bool, device=scores.device), float("-inf"))
    index = gates.max(dim=-1)[1].unsqueeze(-1)
    picked = gates.gather(-1, index)
    masked = torch.scatter(scores, -1, index, float("-inf"))
    same = masked.max(dim=-1, keepdim=True)[1] == index
    return same, ByHand.apply(scores, picked, index, gates)


def executors_of(kind: str) -> list[Any]:
    return {"torch": ["torch"], "fuser": [ElementwiseFuser()], "inductor": ["torchcompile"]}[kind]


# Inductor compiles C++, about two seconds a region.
every_executor = pytest.mark.parametrize("kind", ["torch", "fuser", pytest.param("inductor", marks=pytest.mark.slow)])


def has_run(kind: str, executors: list[Any]) -> bool:
    """Whether the tests' fuser, where it is the one, has run regions of the program."""
    return kind != "fuser" or bool(executors[0].calls)


@every_device
@every_executor
@every_rewrite
@every_fusion
def test_minimal_program(fusion_type: str, rewrite: str, kind: str, device: str) -> None:
    executors = executors_of(kind)
    check(program, lambda: make(device), fusion_type=fusion_type, executors=executors, **REWRITES[rewrite])
    assert has_run(kind, executors)


@every_device
@every_executor
@every_rewrite
@every_fusion
def test_minimal_program_by_hand(fusion_type: str, rewrite: str, kind: str, device: str) -> None:
    torch.manual_seed(0)
    want = observe(by_hand_in_eager, make(device)[:1])
    torch.manual_seed(0)
    executors = executors_of(kind)
    compiled = thunder.jit(by_hand, fusion_type=fusion_type, executors=executors, **REWRITES[rewrite])
    got = observe(compiled, make(device)[:1])
    assert_same(got, want)
    assert has_run(kind, executors)


@every_device
@every_executor
@every_rewrite
@every_fusion
def test_minimal_program_through_torch_compile(fusion_type: str, rewrite: str, kind: str, device: str) -> None:
    executors = executors_of(kind)
    backend = ThunderCompiler(fusion_type=fusion_type, executors=executors, **REWRITES[rewrite])
    compiled = torch.compile(program, backend=backend)
    torch.manual_seed(0)
    want = observe(program, make(device))
    torch.manual_seed(0)
    assert_same(observe(compiled, make(device)), want)
    assert has_run(kind, executors)


@every_rewrite
def test_every_operation_of_the_backward_is_tagged(rewrite: str) -> None:
    compiled = thunder.jit(program, **REWRITES[rewrite])
    compiled(*make())
    compiled_program = compiled._lc_cs.last_program
    names = {n.sym.name for t in compiled_program.traces for n in t.bound_symbols if "scatter_add" in n.sym.name}
    assert names, "the scatter is in no trace"
    for trace in compiled_program.traces:
        for node in trace.bound_symbols:
            if "scatter_add" in node.sym.name:
                assert BoundSymbolTag.BACKWARD in node.tags
    assert not any("scatter_add" in n.sym.name for n in thunder.last_traces(compiled)[-1].bound_symbols)


def _without_tags(fn: Callable, **options: Any) -> None:
    with tag_inheritance_disabled():
        out = thunder.jit(fn, **options)(*make())
        out[0].sum().backward()


@every_rewrite
def test_without_tag_inheritance_the_verifier_fails(rewrite: str) -> None:
    with pytest.raises(TraceVerificationError, match="BACKWARD"):
        _without_tags(program, **REWRITES[rewrite])


@every_rewrite
def test_without_tag_inheritance_and_verifier_the_split_is_wrong(rewrite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_CHECKS", "0")
    with pytest.raises((NameError, UnboundLocalError, TraceVerificationError)):
        _without_tags(program, **REWRITES[rewrite])
