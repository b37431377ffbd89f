"""Hand-written operations against torch: metadata, and the values that the decomposition gives, on op_db's samples."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.errors import DataDependentControlFlowError
from thunder.core.proxies import Proxy, TensorProxy, tensorproxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.executors import torchex
from thunder.executors.passes import transform_for_execution

SAMPLES_PER_DTYPE = 4
MOST_SAMPLES = 32
OPS = {}
for _info in op_db:
    OPS.setdefault(_info.name, _info)

# Operations whose values are undefined: only metadata is compared.
UNDEFINED = {
    "empty", "empty_like", "new_empty",
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
    """Compares op_db's samples; the number of those that had a decomposition."""
    calls = []
    for sample in _samples(name, dtype):
        args = (sample.input, *sample.args)
        calls.append((REORDERED[name](*args) if name in REORDERED else args, sample.kwargs))
    return compare_calls(name, calls)


def compare_calls(name: str, calls: list[tuple[tuple, dict]]) -> int:
    """Compares an operation with torch on given arguments; the number of calls that had a decomposition."""
    sym = ltorch.operations[name]
    decomposed = 0
    for args, kwargs in calls:
        if any(isinstance(v, torch.Generator) for v in tree_flatten((args, kwargs))[0]):
            continue
        if name == "tensor_split" and isinstance(args[1], torch.Tensor):
            continue  # the positions, and so the shapes, are not known to a trace
        torch.manual_seed(0)
        expected = tree_flatten([sym.torch_fn(*args, **kwargs)])[0]
        try:
            trace, inputs, result = _as_program(sym, args, kwargs)
        except DataDependentControlFlowError:
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
        if name in UNDEFINED:
            continue
        torch.manual_seed(0)
        run = transform_for_execution(trace, [torchex.ex]).python_callable()
        got = run(*(t.clone() for t in inputs))
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(
                g, e, equal_nan=True, msg=lambda m: f"{name}{tree_map(_short, (args, kwargs))}: {m}"
            )
    return decomposed


def _short(x: Any) -> Any:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x


NAMES = sorted(n for n in ltorch.operations if ltorch.operations[n].torch_fn is not None)


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
Z = torch.complex(X, X.flip(0))
I = torch.tensor([[0, 2], [1, 0]])
W = torch.ones(5, 3, 2) / 3
CALLS: list[tuple[str, tuple, dict]] = [
    ("adjoint", (X,), {}),
    ("imag", (Z,), {}),
    ("real", (Z,), {}),
    ("abs", (Z,), {}),
    ("sgn", (Z,), {}),
    ("mul", (X, 2j), {}),
    ("add", (X.to(torch.bfloat16), 1), {}),
    ("add", (X, torch.tensor(2.0, dtype=torch.float64)), {}),
    ("add", (I, True), {"alpha": 2}),
    ("div", (I, 3), {"rounding_mode": "floor"}),
    ("sum", (X,), {"axis": 1, "keepdims": True}),
    ("sum", (X.to(torch.float16), (0, 2)), {}),
    ("mean", (X.to(torch.bfloat16),), {}),
    ("max", (X, 1, True), {}),
    ("max", (X, X.flip(0)), {}),
    ("var", (X, 1, False), {}),
    ("var", (X, True), {}),
    ("std", (X,), {"dim": (0, 2), "correction": 2, "keepdim": True}),
    ("all", (I, 0), {}),
    ("convolution", (X, W, None, (1,), (1,), (1,), False, (0,), 1), {}),
    ("conv1d", (X, W, torch.ones(5)), {"padding": "same"}),
    ("conv1d", (X[0], W), {"stride": 2}),
    ("instance_norm", (X,), {"weight": torch.ones(3) * 2, "eps": 0.1}),
    ("batch_norm", (X, None, None), {"training": True}),
    ("batch_norm", (X, torch.zeros(3), torch.ones(3) * 2), {}),
    ("group_norm", (X, 3), {}),
    ("one_hot", (I,), {"num_classes": 3}),
    ("type_as", (X, I), {}),
    ("to", (X, torch.int32), {}),
    ("to", (X, I), {}),
    ("to", (X,), {"dtype": torch.float64, "copy": True}),
    ("tensor", ([[1, 2.5], [3, 4]],), {}),
    ("arange", (1, 7, 2), {}),
    ("arange", (5,), {"dtype": torch.float32}),
    ("full", ((2, 3), 4), {}),
    ("zeros", (2, 3), {"dtype": torch.int32}),
    ("new_full", (X, (2,), 3), {}),
    ("getitem", (X, (slice(None), I)), {}),
    ("getitem", (X, (0, slice(None), torch.tensor([1, -1]))), {}),
    ("getitem", (X, (torch.tensor([1, 0]), slice(None), torch.tensor([1, -1]))), {}),
    ("getitem", (X, (Ellipsis, None, -1)), {}),
    ("getitem", (X, (slice(-1, None), slice(5, 9), slice(None, None, 3))), {}),
    ("getitem", (X, [1, 0]), {}),
    ("expand", (X[:, :1], -1, 3, 4), {}),
    ("view", (X, 6, -1), {}),
    ("view", (X, (6, 4)), {}),
    ("view", (X, torch.int32), {}),
    ("permute", (X, (2, 0, 1)), {}),
    ("repeat", (X, 2, 1, 1, 3), {}),
    ("einsum", ("bij,bjk,kl->il", X, X.transpose(1, 2), torch.ones(3, 2)), {}),
    ("einsum", ("...i,ij->...j", X, torch.ones(4, 2)), {}),
    ("einsum", ("i,j", X[0, 0], X[0, 1]), {}),
    ("embedding", (I, X[0]), {"padding_idx": -1}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("gelu", (X.to(torch.bfloat16),), {}),
    ("relu", (torch.tensor([-1.0, float("nan"), 2.0]),), {}),
    ("floor_divide", (torch.tensor([5.0, -5.0, 0.0, 1.0]), torch.tensor([0.3, 0.3, -1.0, 0.0])), {}),
    ("cross_entropy", (X[0].requires_grad_(False), torch.tensor([0, -100, 3])), {"label_smoothing": 0.1}),
    ("cross_entropy", (X, torch.tensor([[0, 1, 2, 0], [2, 2, 1, -100]])), {"weight": torch.tensor([0.2, 0.3, 0.5])}),
    ("cross_entropy", (X[0], X[0].softmax(1)), {"reduction": "sum"}),
    ("cross_entropy", (X[0].to(torch.bfloat16), torch.tensor([0, 1, 3])), {}),
    ("nll_loss", (X[0], torch.tensor([0, 1, 3])), {"reduction": "none"}),
    ("scaled_dot_product_attention", (X, X, X), {"is_causal": True}),
    ("scaled_dot_product_attention", (X, X, X, torch.zeros(3, 3, dtype=torch.bool)), {"scale": 0.3}),
    ("scaled_dot_product_attention", (X.expand(2, 2, 3, 4), X[:1, None], X[:1, None]), {"enable_gqa": True}),
    ("dropout", (X, 0.3), {}),
    ("dropout", (X, 0.3, False), {}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name, args, kwargs", CALLS, ids=[f"{n}-{c[0]}" for n, c in enumerate(CALLS)])
def test_decomposition_of_this_call_is_torchs(name: str, args: tuple, kwargs: dict) -> None:
    assert compare_calls(name, [(args, kwargs)]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_decomposition_is_torchs(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.int64):
            _compare(name, dtype)
