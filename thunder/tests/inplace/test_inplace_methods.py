"""Every in-place method that torch has, on the samples of torch's own operator database."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import thunder
from thunder.core.pytree import tree_map
from thunder.tests.inplace.harness import REWRITES, check, every_rewrite

# In-place methods without a sample in the database, or whose sample says little: arguments after the tensor.
_EXTRA: dict[str, tuple[tuple, ...]] = {
    "bernoulli_": ((0.5,), (torch.full((3, 4), 0.25),)),
    "cauchy_": ((), (0.5, 2.0)),
    "exponential_": ((), (2.0,)),
    "geometric_": ((0.5,),),
    "log_normal_": ((), (0.5, 0.25)),
    "normal_": ((), (1.0, 2.0)),
    "uniform_": ((), (-1.0, 1.0)),
    "copy_": ((torch.arange(4.0),), (torch.arange(4),)),
    "fill_": ((2.0,), (torch.tensor(3.0),)),
    "zero_": ((),),
    "fill_diagonal_": ((0.5,),),
    "masked_scatter_": ((torch.ones(3, 4, dtype=torch.bool), torch.arange(12.0)),),
    "relu_": ((),),
    "addbmm_": ((torch.rand(2, 3, 5), torch.rand(2, 5, 4)),),
}
# Methods that a traced program cannot have, with what eager does in the place of them.
_NOT_TRACED = {
    "apply_": "calls Python on every element",
    "map_": "calls Python on every element",
    "map2_": "calls Python on every element",
    "requires_grad_": "changes a flag",
    "rename_": "named tensors",
    "resize_": "changes the storage",
    "resize_as_": "changes the storage",
    "resize_as_sparse_": "sparse",
    "sparse_resize_": "sparse",
    "sparse_resize_and_clear_": "sparse",
    "set_": "changes the storage",
    "share_memory_": "changes the storage",
    "coalesce_": "sparse",
    "_coalesced_": "sparse",
    "detach_": "changes history",
    "as_strided_": "metadata",
    "t_": "metadata",
    "transpose_": "metadata",
    "swapaxes_": "metadata",
    "swapdims_": "metadata",
    "squeeze_": "metadata",
    "unsqueeze_": "metadata",
    "module_load_": "not a method",
    "retain_grad_": "not a method",
    "random_": "Dynamo does not capture it",
}


def in_place_methods() -> list[str]:
    """The public methods of Tensor that end in an underscore and write elements."""
    names = [
        n for n in dir(torch.Tensor) if n.endswith("_") and not n.startswith("_") and callable(getattr(torch.Tensor, n))
    ]
    return [n for n in names if n not in _NOT_TRACED]


def _from_database(name: str) -> list[tuple]:
    """(tensor, arguments, keywords) of the first samples of the operator with this in-place variant."""
    for op in op_db:
        if op.name == name[:-1] or name[:-1] in [a.name for a in op.aliases]:
            dtype = (
                torch.float64 if torch.float64 in op.supported_dtypes("cpu") else next(iter(op.supported_dtypes("cpu")))
            )
            samples = list(op.sample_inputs("cpu", dtype))
            fitting = [
                s for s in samples if isinstance(s.input, torch.Tensor) and s.input.numel() and "out" not in s.kwargs
            ]
            return [(s.input, s.args, s.kwargs) for s in fitting]
    return []


def samples_of(name: str) -> list[tuple]:
    """Up to three samples that eager accepts in place."""
    if name in _EXTRA:
        return [(torch.rand(3, 4), args, {}) for args in _EXTRA[name]]
    found = []
    for tensor, args, kwargs in _from_database(name):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                getattr(tensor.detach().clone(), name)(*args, **kwargs)
        except Exception:  # a sample for the functional variant only
            continue
        found.append((tensor.detach(), args, kwargs))
        if len(found) == 3:
            break
    return found


def _program(name: str, args: tuple, kwargs: dict[str, Any]) -> Callable:
    def f(x: torch.Tensor, *tensors: torch.Tensor) -> tuple:
        given = iter(tensors)
        a, k = tree_map(lambda v: next(given) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        y = x.clone()
        view = y.view(-1) if y.is_contiguous() else y
        result = getattr(y, name)(*a, **k)
        return y, view[:1] if view.dim() else view, result

    return f


def _inputs(tensor: torch.Tensor, args: tuple, kwargs: dict[str, Any], requires_grad: bool) -> Callable:
    def make() -> tuple:
        found: list[torch.Tensor] = []
        tree_map(lambda v: found.append(v.detach().clone()) if isinstance(v, torch.Tensor) else None, (args, kwargs))
        x = tensor.detach().clone()
        return (x.requires_grad_() if requires_grad and x.is_floating_point() else x, *found)

    return make


@pytest.mark.parametrize("name", in_place_methods())
def test_in_place_method(name: str) -> None:
    torch.manual_seed(3)
    samples = samples_of(name)
    assert samples or name in _EXTRA, f"no sample of Tensor.{name}; add one to _EXTRA, or to _NOT_TRACED with a reason"
    for tensor, args, kwargs in samples[:2]:
        check(_program(name, args, kwargs), _inputs(tensor, args, kwargs, True), calls=1)


@pytest.mark.parametrize("name", in_place_methods())
def test_in_place_method_on_a_transposed_tensor(name: str) -> None:
    """What is written lies in memory as before, though the functional twin lays out its result as it likes."""
    torch.manual_seed(3)
    found = [s for s in samples_of(name) if s[0].dim() >= 2 and min(s[0].shape[:2]) > 1]
    for tensor, args, kwargs in found[:1]:
        transposed = tensor.transpose(0, 1).contiguous().transpose(0, 1)

        def f(x: torch.Tensor, *tensors: torch.Tensor, args: tuple = args, kwargs: dict = kwargs) -> torch.Tensor:
            given = iter(tensors)
            a, k = tree_map(lambda v: next(given) if isinstance(v, torch.Tensor) else v, (args, kwargs))
            y = x.clone()
            getattr(y, name)(*a, **k)
            return y

        check(f, _inputs(transposed, args, kwargs, True), calls=1)


@every_rewrite
@pytest.mark.parametrize(
    "name", ["add_", "index_add_", "uniform_", "masked_fill_", "cumsum_", "copy_", "lerp_", "exp_"]
)
def test_in_place_method_on_an_input(name: str, rewrite: str) -> None:
    torch.manual_seed(3)
    tensor, args, kwargs = next((s for s in samples_of(name) if s[0].dim()), samples_of(name)[0])

    def f(x: torch.Tensor, *tensors: torch.Tensor) -> tuple:
        given = iter(tensors)
        a, k = tree_map(lambda v: next(given) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        getattr(x, name)(*a, **k)
        return x * 2, x[:1] if x.dim() else x.view(1)

    check(f, _inputs(tensor, args, kwargs, False), **REWRITES[rewrite])


RANDOM_IN_PLACE = {
    "rrelu": lambda x: F.rrelu(x * 1, 0.0, 1.0, training=True, inplace=True),
    "rrelu_": lambda x: torch.rrelu_(x * 1, 0.0, 1.0, training=True),
    "dropout": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "dropout_": lambda x: torch.dropout_(x * 1, 0.5, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x * 1, 0.5, training=True, inplace=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x * 1, 0.5, training=True, inplace=True),
    "dropout1d": lambda x: F.dropout1d(x * 1, 0.5, inplace=True),
    "bernoulli_": lambda x: (x * 1).bernoulli_(0.5) + x,
    "normal_": lambda x: (x * 1).normal_() * x,
}


@pytest.mark.parametrize("name", RANDOM_IN_PLACE)
def test_random_in_place_operations(name):
    fn = RANDOM_IN_PLACE[name]
    compiled = thunder.jit(fn)
    x = torch.randn(4, 6, requires_grad=True)
    results = []
    for run in (fn, compiled, compiled):
        torch.manual_seed(0)
        out = run(x)
        results.append((out, torch.autograd.grad(out.sin().sum(), x)[0]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
