"""Eager against compiled: values, gradients, written inputs and shared memory of one call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.dynamo import ThunderCompiler
from thunder.dynamo.utils import CompilerType

Tensors = list[torch.Tensor]


def leaf(*shape: int, **how: Any) -> torch.Tensor:
    """A random tensor that requires grad."""
    return torch.randn(*shape, requires_grad=True, **how)


def flat(x: Any) -> list[Any]:
    return [v for e in x for v in flat(e)] if isinstance(x, tuple | list) else [x]


def tensors(x: Any) -> Tensors:
    return [t for t in flat(x) if isinstance(t, torch.Tensor)]


def sharing(outs: Any, ins: Any) -> list[list[int]]:
    """For each output the positions, among outputs then inputs, of the tensors in the same memory."""
    pointers = [t.untyped_storage().data_ptr() for t in (*tensors(outs), *tensors(ins))]
    return [[k for k, p in enumerate(pointers) if p == pointers[n]] for n in range(len(tensors(outs)))]


def observed(fn: Callable, make: Callable[[], Sequence[Any]], *, backward: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    ins = make()
    grad_enabled = torch.is_grad_enabled()
    outs = fn(*ins)
    record: dict[str, Any] = {"grad mode": (grad_enabled, torch.is_grad_enabled())}
    torch.set_grad_enabled(grad_enabled)
    record["requires grad"] = [t.requires_grad for t in tensors(outs)]
    record["outputs"] = [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in flat(outs)]
    record["inputs"] = [t.detach().clone() for t in tensors(ins)]
    record["sharing"] = sharing(outs, ins)
    tracked = [t for t in tensors(outs) if t.requires_grad]
    if backward and tracked:
        torch.manual_seed(1)
        loss = sum((t * torch.rand_like(t)).sum() for t in tracked)
        loss.backward()
        record["gradients"] = [t.grad for t in tensors(ins) if t.is_leaf]
    return record


def assert_same(fn: Callable, compiled: Callable, make: Callable[[], Sequence[Any]], **how: Any) -> None:
    """Asserts that one call of `compiled` is like one of `fn`."""
    want, got = observed(fn, make, **how), observed(compiled, make, **how)
    assert want.keys() == got.keys()
    for key in ("grad mode", "requires grad", "sharing"):
        assert got[key] == want[key], key
    for key in ("outputs", "inputs", "gradients"):
        if key not in want:
            continue
        assert [type(v) for v in got[key]] == [type(v) for v in want[key]], key
        for g, w in zip(got[key], want[key], strict=True):
            if isinstance(w, torch.Tensor):
                torch.testing.assert_close(g, w, msg=lambda text, key=key: f"{key}: {text}")
            else:
                assert g == w, key


def compiled_and_backend(
    fn: Callable, *, options: dict[str, Any] | None = None, **kwargs: Any
) -> tuple[Callable, ThunderCompiler]:
    """`fn` through a new ThunderCompiler; Dynamo forgets what it had compiled."""
    torch._dynamo.reset()
    backend = ThunderCompiler(**(options or {}))
    return torch.compile(fn, backend=backend, **kwargs), backend


def check(
    fn: Callable, make: Callable[[], Sequence[Any]], *, options: dict[str, Any] | None = None, **kwargs: Any
) -> ThunderCompiler:
    """Compiles `fn`, compares one call with eager, gives the backend."""
    compiled, backend = compiled_and_backend(fn, options=options, **kwargs)
    assert_same(fn, compiled, make)
    return backend


def kinds(backend: ThunderCompiler) -> list[list[str]]:
    """For each graph, who runs its pieces, in order."""
    names = {CompilerType.THUNDER: "thunder", CompilerType.TORCH_INDUCTOR: "inductor", CompilerType.EAGER: "eager"}
    return [[names[c.compiler] for c in i.submodule_to_compiled_functions.values()] for i in backend.subgraph_infos]
