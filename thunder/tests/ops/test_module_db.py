"""torch's module_db: modules of torch.nn through `thunder.jit`, forward and gradient, against eager."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

import thunder
from thunder.core.pytree import tree_iter
from thunder.tests.ops.harness import copies, difference, quiet
from thunder.tests.ops.suite import is_full

pytestmark = pytest.mark.ops

def _cases(info: ModuleInfo) -> Iterator[tuple[torch.nn.Module, tuple, dict[str, Any]]]:
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=True)
    for given in inputs[: 3 if is_full() else 1]:
        call = given.forward_input
        if call is None:
            continue
        torch.manual_seed(0)
        made = given.constructor_input
        yield info.module_cls(*made.args, **made.kwargs).double(), call.args, call.kwargs


def _run(module: Any, args: tuple, kwargs: dict[str, Any], leaves: list[torch.Tensor]) -> tuple[Any, list]:
    torch.manual_seed(1)
    result = module(*args, **kwargs)
    outs = [o for o in tree_iter([result]) if isinstance(o, torch.Tensor) and o.requires_grad]
    grads = torch.autograd.grad([o.sum() for o in outs], leaves, allow_unused=True) if outs and leaves else ()
    return result, [torch.zeros_like(p) if g is None else g for g, p in zip(grads, leaves)]


def _leaves(module: torch.nn.Module, args: Any) -> list[torch.Tensor]:
    own = [p for p in module.parameters() if p.requires_grad]
    return own + [a for a in tree_iter(args) if isinstance(a, torch.Tensor) and a.requires_grad and a.is_leaf]


@pytest.mark.parametrize("info", module_db, ids=lambda m: m.name)
def test_module(info: ModuleInfo) -> None:
    with quiet():
        for module, args, kwargs in _cases(info):
            other = copy.deepcopy(module)
            torch._dynamo.reset()
            want_args, got_args = copies((args, kwargs)), copies((args, kwargs))
            want = _run(module, *want_args, _leaves(module, want_args))
            got = _run(thunder.jit(other), *got_args, _leaves(other, got_args))
            assert (found := difference(got, want)) is None, found
            assert (found := difference(list(other.buffers()), list(module.buffers()))) is None, found
