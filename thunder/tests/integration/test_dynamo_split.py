"""Graphs that thunder runs in part: values, gradients, writes and aliasing across pieces, and the reasons reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.dynamo import SplitReasonType, ThunderCompiler
from thunder.tests.integration.dynamo_harness import assert_same, check, compiled_and_backend, kinds, leaf

# Dynamo's own, from eager's torch.cond and torch.vmap.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))


def times(x: torch.Tensor, k: float) -> torch.Tensor:
    """`x * k`, inside a region of torch.func, which thunder cannot run and which saves no input."""
    return torch.vmap(lambda row: row * k)(x)


def two_pieces(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return branch(y) * 2 + y.exp()


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("dynamic", [None, True])
def test_unsupported_operator_inside(requires_grad: bool, dynamic: bool | None) -> None:
    backend = check(two_pieces, lambda: (torch.randn(4, 3, requires_grad=requires_grad),), dynamic=dynamic)
    assert kinds(backend) == [["thunder", "eager", "thunder"]]
    (reason,) = backend.subgraph_infos[0].split_reasons
    assert reason.reason_type is SplitReasonType.MISSING_OP_SUPPORT
    assert "cond" in reason.info
    assert "OpaqueRegionError" in reason.exception
    assert reason.node == "cond"


@pytest.mark.slow
def test_unsupported_operator_by_inductor() -> None:
    backend = check(two_pieces, lambda: (leaf(4, 3),), options={"fallback": "inductor"})
    assert kinds(backend) == [["thunder", "inductor", "thunder"]]
    names = [n for n, _ in backend.subgraph_infos[0].split_graph_module.named_children()]
    assert names == ["thunder_0", "inductor_1", "thunder_2"]


def test_unsupported_operator_under_jit_runs_in_eager_between_pieces() -> None:
    x = leaf(4, 3)
    torch.testing.assert_close(thunder.jit(two_pieces)(x), two_pieces(x), rtol=0, atol=0)


def test_while_loop() -> None:
    def loop(x: torch.Tensor) -> torch.Tensor:
        steps = (torch.tensor(0), x.sin())
        return torch._higher_order_ops.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), steps)[1] + 1

    assert kinds(check(loop, lambda: (torch.randn(4, 3),))) == [["thunder", "eager", "thunder"]]


def test_torch_func_regions_are_not_cut() -> None:
    def mapped(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row.sin().sum())(x.exp()) + x.sum(1)

    def differentiated(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda t: t.sin().sum())(x.exp()) + 1

    for fn in (mapped, differentiated):
        backend = check(fn, lambda: (leaf(4, 3),))
        assert kinds(backend) == [["thunder", "eager", "thunder"]]
        reasons = {r.reason_type for r in backend.subgraph_infos[0].split_reasons}
        assert reasons == {SplitReasonType.UNSUPPORTED_NODE}


def test_attention_backend_region_is_not_cut() -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            y = F.scaled_dot_product_attention(x, x, x)
        return y.sin()

    assert kinds(check(attend, lambda: (leaf(1, 1, 4, 3),))) == [["eager", "thunder"]]


def test_autocast_region_is_not_cut() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a = x @ x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            w = branch(y) @ x
        return w.float() * x @ a

    backend = check(fn, lambda: (leaf(4, 4),))
    assert kinds(backend) == [["thunder", "eager", "thunder"]]
    eager_piece = list(backend.subgraph_infos[0].submodule_to_compiled_functions)[1]
    names = [getattr(n.target, "__name__", "") for n in eager_piece.graph.nodes]
    assert "_enter_autocast" in names
    assert "_exit_autocast" in names


def test_autocast_region_without_unsupported_nodes_stays_with_thunder() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return branch(y.float()) * x

    assert kinds(check(fn, lambda: (leaf(4, 4),))) == [["thunder", "eager", "thunder"]]


def test_pieces_know_whether_grad_is_enabled() -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = branch(x.sin())
            z = y * x
        return z * x, y, z

    backend = check(fn, lambda: (leaf(4, 3),))
    assert kinds(backend) == [["thunder", "eager", "thunder"]]


def test_grad_enabled_inside_no_grad() -> None:
    def fn(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            y = branch(x.sin()) * x
        return y, x * 2

    compiled, _ = compiled_and_backend(fn)
    with torch.no_grad():
        x = leaf(4, 3)
        y, z = compiled(x)
        assert not torch.is_grad_enabled()
    assert y.requires_grad
    assert not z.requires_grad
    y.sum().backward()
    expected = torch.autograd.grad(fn(x)[0].sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_grad_mode_left_changed() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = branch(x)
        torch.set_grad_enabled(False)
        return y * 2, y

    check(fn, lambda: (leaf(4, 3),))


def test_failing_piece_restores_grad_mode() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = times(x, 2.0)
            z = x[i]
        return y + z

    compiled, _ = compiled_and_backend(fn)
    with pytest.raises(IndexError):
        compiled(leaf(4, 3), torch.tensor([0, 1, 2, 9]))
    assert torch.is_grad_enabled()


def test_inference_mode_inside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = times(x, 2.0) + 1
        return y * 2

    check(fn, lambda: (leaf(4, 3),))


# Memory shared by pieces


def view_written(x: torch.Tensor) -> Any:
    y = x * 2
    v = y.view(-1)
    s = times(x, 2.0)
    v.mul_(2)
    t = times(y, 3.0)
    y.add_(1)
    return y + s + t, v


def written_in_eager(x: torch.Tensor) -> Any:
    y = x * 2
    v = y[1:]
    w = torch.vmap(lambda row: row.mul_(3))(v)
    return y + 1, w, v


def view_made_in_eager(x: torch.Tensor) -> Any:
    y = x * 2
    w = torch.vmap(lambda row: row.view(-1))(y)
    y.mul_(2)
    w.add_(1)
    return y, w


def row_assigned(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    s = times(y, 3.0)
    y[0] = s[1]
    return y


def detached_written(x: torch.Tensor) -> Any:
    d = x.sin().detach()
    s = times(d, 3.0)
    d.mul_(2)
    return s + 1, d


def inputs_returned(x: torch.Tensor) -> Any:
    s = times(x, 2.0)
    return x, s, x.t(), s, 3, None


PROGRAMS = [view_written, written_in_eager, view_made_in_eager, row_assigned, detached_written, inputs_returned]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_memory_shared_across_pieces(fn: Any, requires_grad: bool) -> None:
    backend = check(fn, lambda: (torch.randn(4, 3, requires_grad=requires_grad),))
    assert len(kinds(backend)[0]) > 1


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_memory_shared_across_pieces_without_functionalization(fn: Any) -> None:
    options = {"skip_inplace_functionalization": True, "skip_inplace_alias_updates": False}
    check(fn, lambda: (leaf(4, 3),), options=options)


def test_input_written_in_two_pieces() -> None:
    def fn(x: torch.Tensor, b: torch.Tensor) -> Any:
        b.add_(1)
        s = times(b, 3.0)
        b.mul_(2)
        return s * x + b, b[1]

    check(fn, lambda: (leaf(4, 3), torch.randn(4, 3)))


def test_running_statistics_written_in_two_pieces() -> None:
    def fn(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        y = times(F.batch_norm(x, mean, var, training=True), 2.0)
        return F.batch_norm(y, mean, var, training=True)

    check(fn, lambda: (leaf(6, 4), torch.zeros(4), torch.ones(4)))


def test_inputs_that_overlap_in_a_later_call() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = times(x, 2.0)
        x.add_(1)
        return s + y

    compiled, _ = compiled_and_backend(fn)
    assert_same(fn, compiled, lambda: (torch.randn(4, 3), torch.randn(4, 3)))

    def overlapping() -> Any:
        base = torch.randn(5, 3)
        return base[1:], base[:-1]

    assert_same(fn, compiled, overlapping)


# Values that are no tensors


def test_containers_and_sizes_across_pieces() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = x.sin().split(2)
        n = x.shape[0]
        s = branch(a)
        return (s + b).reshape(n, -1) * n + torch.zeros(n, 1)

    for dynamic in (None, True):
        check(fn, lambda: (leaf(4, 6),), dynamic=dynamic)


@pytest.mark.parametrize("name", ["nonzero", "item"])
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_sizes_that_depend_on_data_across_pieces(name: str) -> None:
    def nonzero(x: torch.Tensor) -> Any:
        i = x.nonzero()
        s = times(x, 3.0)
        return s.sum() + i.sum(), torch.zeros(i.shape[0]) + 1, i

    def item(x: torch.Tensor) -> Any:
        n = (x > 0).sum().item()
        torch._check(n >= 0)
        s = times(x, 3.0)
        return s * n, torch.ones(n)

    backend = check({"nonzero": nonzero, "item": item}[name], lambda: (torch.tensor([[1.0, 0], [0, 2]]),))
    assert len(backend.subgraph_infos) == 1


# What stands in the pieces


class Rows(torch.autograd.Function):
    """Selected rows, doubled; its backward writes to a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index] * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (index,) = ctx.saved_tensors
        out = torch.zeros(ctx.rows, g.shape[1], dtype=g.dtype)
        out.scatter_add_(0, index[:, None].expand_as(g), g * 2)
        return out, None


def test_custom_function_on_both_sides() -> None:
    def fn(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return Rows.apply(branch(Rows.apply(x, index)), index % 2)

    backend = check(fn, lambda: (leaf(4, 3), torch.tensor([1, 1, 3])))
    assert kinds(backend) == [["thunder", "eager", "thunder"]]


def test_unsupported_operator_in_a_checkpointed_region() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda a: times(a.sin(), 2.0).cos(), x, use_reentrant=False)
        return checkpoint(lambda a: a.sin().exp(), y, use_reentrant=False) * 2

    assert kinds(check(fn, lambda: (leaf(4, 4),))) == [["eager", "thunder"]]


def test_dropout_in_pieces_draws_what_eager_draws() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + times(F.dropout(x, 0.5), 2.0)

    check(fn, lambda: (leaf(4, 4),))


@pytest.mark.parametrize("depth, who", [(1, "eager"), (5, "inductor")])
def test_only_large_pieces_go_to_inductor_by_themselves(depth: int, who: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        is_positive = x.sum() > 0
        for _ in range(depth):
            x = torch.cond(is_positive, lambda t: t.sin(), lambda t: t.cos(), (x,))
        return x

    backend = ThunderCompiler()

    def backend_only(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        """Asks who is to run each piece; Inductor would compile its own at the first call, which is not made."""
        backend(gm, inputs)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend_only)(torch.randn(3))
    assert kinds(backend) == [["thunder", who]]


class Broken(thunder.Transform):
    """A transform that fails."""

    def transform_traces_pre_prologue(self, prologue: Any, computation: Any, epilogue: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("broken transform")


def test_failure_of_a_transform_is_no_reason_to_split() -> None:
    compiled, _ = compiled_and_backend(lambda x: x * 2, options={"transforms": [Broken()]})
    with pytest.raises(Exception, match="broken transform"):
        compiled(torch.randn(3))


def test_node_that_a_later_pass_refuses_is_found() -> None:
    def fn(x: torch.Tensor, bytes_of_x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        out = torch.empty(0)
        torch.mul(y, 2, out=out)
        return out.cos()

    backend = check(fn, lambda: (torch.randn(3), torch.zeros(1)))
    reasons = [r for i in backend.subgraph_infos for r in i.split_reasons]
    assert all(r.reason_type is SplitReasonType.EXCEPTION_META_THUNDER_OP for r in reasons)
