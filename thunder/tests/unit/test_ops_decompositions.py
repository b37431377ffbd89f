"""Hand-written operations against torch: metadata, and the values that the decomposition gives, on op_db's samples."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.common_methods_invocations import op_db

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.proxies import Proxy, TensorProxy, tensorproxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.executors import torchex
from thunder.executors.passes import transform_for_execution

SAMPLES_PER_DTYPE = 4
MOST_SAMPLES = 60
OPS = {}
for _info in op_db:
    OPS.setdefault(_info.name, _info)

# Operations whose values are undefined or random: only metadata is compared.
RANDOM = {
    "rand", "randn", "rand_like", "randn_like", "randint", "bernoulli", "multinomial", "empty", "empty_like", "new_empty",
    "dropout",
}  # fmt: skip


# op_db's samples for some operations are in another order than torch's arguments.
REORDERED = {
    "einsum": lambda tensors, equation: (equation, *tensors),
    "where": lambda a, condition, b: (condition, a, b),
    "embedding": lambda weight, indices: (indices, weight),
}


def _samples(name: str, dtype: torch.dtype) -> list:
    operation = ltorch.operations[name]
    info = OPS.get(operation.samples)
    if info is None:
        prefixed = [p + operation.samples for p in ("nn.functional.", "special.", "linalg.")]
        info = next((OPS[p] for p in prefixed if p in OPS), None)
    if info is None or dtype not in info.supported_dtypes("cpu"):
        return []
    found = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), MOST_SAMPLES))
    return found[:: -(-len(found) // SAMPLES_PER_DTYPE) or 1]


def _as_program(sym: Symbol, args: tuple, kwargs: dict) -> tuple[TraceCtx, list[torch.Tensor], Any]:
    """The decomposition of one call as a trace, its inputs, and what the meta rule says that it gives."""
    trace = TraceCtx(name="decomposed")
    tensors: dict[int, tuple[TensorProxy, torch.Tensor]] = {}

    def proxied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in tensors:
            tensors[id(x)] = (tensorproxy(x, name=trace.make_name(prefix="x")), x)
        return tensors[id(x)][0]

    proxy_args, proxy_kwargs = tree_map(proxied, args), tree_map(proxied, kwargs)
    trace.args = tuple(p for p, _ in tensors.values())
    with tracectx(trace):
        result = sym.meta(*proxy_args, **proxy_kwargs)
        trace.emit(prims.python_return, (tuple(tree_flatten([result])[0]),), {}, None)
    return trace, [t for _, t in tensors.values()], result


def _compare(name: str, dtype: torch.dtype) -> int:
    """Compares all samples; the number of those that had a decomposition."""
    sym = ltorch.operations[name]
    decomposed = 0
    for sample in _samples(name, dtype):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        args = REORDERED[name](*args) if name in REORDERED else args
        if any(isinstance(v, torch.Generator) for v in tree_flatten((args, kwargs))[0]):
            continue
        torch.manual_seed(0)
        expected = tree_flatten([sym.torch_fn(*args, **kwargs)])[0]
        try:
            trace, inputs, result = _as_program(sym, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            continue
        metas = tree_flatten([result])[0]
        assert len(metas) == len(expected)
        for meta, real in zip(metas, expected, strict=True):
            if isinstance(real, torch.Tensor):
                where = f"{name}{tree_map(_short, (args, kwargs))}"
                assert (tuple(meta.shape), dtypes.to_torch_dtype(meta.dtype)) == (tuple(real.shape), real.dtype), where
        if len(trace.bound_symbols) == 1 and any(isinstance(m, Proxy) for m in metas):
            continue
        decomposed += 1
        if name in RANDOM:
            continue
        torch.manual_seed(0)
        run = transform_for_execution(trace, [torchex.ex]).python_callable()
        got = run(*(t.clone() for t in inputs))
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e, equal_nan=True, msg=lambda m: f"{name}{tree_map(_short, (args, kwargs))}: {m}")
    return decomposed


def _short(x: Any) -> Any:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x


NAMES = sorted(n for n in ltorch.operations if ltorch.operations[n].torch_fn is not None)


@pytest.mark.parametrize("name", NAMES)
def test_decomposition_is_torchs(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.int64):
            _compare(name, dtype)
