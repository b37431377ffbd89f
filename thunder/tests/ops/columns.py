"""What is checked of an entry of torch's op_db, column by column.

A column turns an entry into calls: (sample number, Call). Where eager torch refuses a call there is nothing to compare,
and the sample does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._utils import wrapper_set_seed

from thunder.core.pytree import tree_flatten, tree_iter, tree_map, tree_unflatten
from thunder.tests.ops.harness import Call, jit, quiet

Calls = Iterator[tuple[int, Call]]
Column = Callable[[OpInfo, int], Calls]

# Results that are uninitialized memory: their metadata is all that can be compared.
_WITHOUT_VALUES = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_",
     "resize_as_"}
)  # fmt: skip
_INTEGRAL = (torch.int64, torch.bool)


def name_of(op: OpInfo) -> str:
    """The entry's name, unique in op_db."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


@cache
def entries() -> dict[str, OpInfo]:
    """The entries of op_db by name, without those that no dtype on CPU has."""
    return {name_of(op): op for op in op_db if op.supported_dtypes("cpu")}


def main_dtype(op: OpInfo) -> torch.dtype:
    """float32, or what the operation takes in its place."""
    dtypes = op.supported_dtypes("cpu")
    order = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)
    return next((d for d in order if d in dtypes), min(dtypes, key=str))


def _spread(items: list, limit: int) -> list[tuple[int, Any]]:
    """At most `limit` of the items, from the first to the last at equal distances, with their positions."""
    if len(items) <= limit:
        return list(enumerate(items))
    if limit == 1:
        return [(0, items[0])]
    return [(n, items[n]) for n in sorted({round(k * (len(items) - 1) / (limit - 1)) for k in range(limit)})]


def samples(
    op: OpInfo, dtype: torch.dtype, limit: int, *, requires_grad: bool = False
) -> list[tuple[int, SampleInput]]:
    """Samples of the entry, spread over all that it has; the same ones in each run."""
    torch.manual_seed(0)
    with quiet():
        return _spread(list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)), limit)


def _call(op: OpInfo, sample: SampleInput, fn: Callable | None = None, **facts: Any) -> Call:
    return Call(
        fn or op.op, (sample.input, *sample.args), sample.kwargs, has_values=op.name not in _WITHOUT_VALUES, **facts
    )


def _values(dtype: torch.dtype) -> Column:
    def column(op: OpInfo, limit: int) -> Calls:
        if dtype in op.supported_dtypes("cpu") and dtype != main_dtype(op):
            for n, sample in samples(op, dtype, limit):
                yield n, _call(op, sample)

    return column


def _forward(op: OpInfo, limit: int) -> Calls:
    for n, sample in samples(op, main_dtype(op), limit):
        yield n, _call(op, sample)


def _jit(op: OpInfo, limit: int) -> Calls:
    for n, call in _forward(op, min(limit, 2)):
        yield n, replace(call, compiler=jit)


def _method(op: OpInfo, limit: int) -> Calls:
    if op.get_method() is not None:
        for n, sample in samples(op, main_dtype(op), limit):
            yield n, _call(op, sample, op.get_method())


def _noncontiguous(op: OpInfo, limit: int) -> Calls:
    for n, sample in samples(op, main_dtype(op), limit):
        tensors = [a for a in tree_iter((sample.input, sample.args, sample.kwargs)) if isinstance(a, torch.Tensor)]
        if all(a.layout is torch.strided for a in tensors):
            with quiet():
                yield n, _call(op, sample.noncontiguous())


def _inplace_samples(op: OpInfo, dtype: torch.dtype, limit: int, **options: Any) -> Iterator[tuple[int, SampleInput]]:
    if op.get_inplace() is not None:
        for n, sample in samples(op, dtype, limit, **options):
            if not sample.broadcasts_input:
                yield n, sample


def _inplace(op: OpInfo, limit: int) -> Calls:
    for n, sample in _inplace_samples(op, main_dtype(op), limit):
        yield n, _call(op, sample, op.get_inplace())


class OnCopy:
    """An in-place method on a copy of its first argument, which leaves may be."""

    def __init__(self, method: Callable):
        self.method = method

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        x = x.clone()
        result = self.method(x, *args, **kwargs)
        return result, x * 2


def _inplace_gradient(op: OpInfo, limit: int) -> Calls:
    if op.supports_inplace_autograd and torch.float64 in op.supported_backward_dtypes("cpu"):
        for n, sample in _inplace_samples(op, torch.float64, limit, requires_grad=True):
            yield n, _call(op, sample, OnCopy(op.get_inplace()), has_gradient=True)


def _out(op: OpInfo, limit: int) -> Calls:
    if not op.supports_out:
        return
    for n, sample in samples(op, main_dtype(op), limit):
        call = _call(op, sample)
        try:
            with quiet():
                flat, spec = tree_flatten(call.fn(*call.args, **call.kwargs))
        except Exception:
            # Eager refuses the sample; the forward column has counted it.
            continue
        if all(isinstance(o, torch.Tensor) for o in flat):
            out = tree_unflatten([torch.empty_like(o.detach()) for o in flat], spec)
            yield n, replace(call, kwargs={**call.kwargs, "out": out})


class Processed:
    """The operation followed by what makes its gradient well defined (a phase or sign taken out), as op_db says."""

    def __init__(self, op: OpInfo, sample: SampleInput):
        self.op, self.sample = op, sample

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.op.gradcheck_wrapper is wrapper_set_seed:  # `check` sets a seed around each run
            return self.sample.output_process_fn_grad(self.op.op(*args, **kwargs))
        return self.sample.output_process_fn_grad(self.op.gradcheck_wrapper(self.op.op, *args, **kwargs))


def _gradient_of(dtype: torch.dtype) -> Column:
    def column(op: OpInfo, limit: int) -> Calls:
        if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
            for n, sample in samples(op, dtype, limit, requires_grad=True):
                yield n, _call(op, sample, Processed(op, sample), has_gradient=True)

    return column


def _partial_gradient(op: OpInfo, limit: int) -> Calls:
    """Only the last of the tensors that could have a gradient wants one."""
    if not op.supports_autograd or torch.float64 not in op.supported_backward_dtypes("cpu"):
        return
    for n, sample in samples(op, torch.float64, limit, requires_grad=True):
        call = _call(op, sample, Processed(op, sample), has_gradient=True)
        flat, spec = tree_flatten((call.args, call.kwargs))
        tracked = [k for k, a in enumerate(flat) if isinstance(a, torch.Tensor) and a.requires_grad and a.is_leaf]
        if len(tracked) > 1:
            for k in tracked[:-1]:
                flat[k] = flat[k].detach()
            args, kwargs = tree_unflatten(flat, spec)
            yield n, replace(call, args=args, kwargs=kwargs)


def _repeated(op: OpInfo, limit: int) -> Calls:
    """The same tensor given twice."""
    if not op.supports_autograd or torch.float64 not in op.supported_backward_dtypes("cpu"):
        return
    for n, sample in samples(op, torch.float64, limit, requires_grad=True):
        first = sample.input
        rest = [a for a in sample.args if isinstance(a, torch.Tensor)]
        if isinstance(first, torch.Tensor) and rest and all(a.shape == first.shape for a in rest):
            args = tree_map(
                lambda a, f=first: f if isinstance(a, torch.Tensor) and a.dtype == f.dtype else a, tuple(sample.args)
            )
            if any(a is first for a in args):
                yield n, Call(Processed(op, sample), (first, *args), sample.kwargs, has_gradient=True)


def _errors(op: OpInfo, limit: int) -> Calls:
    if op.error_inputs_func is not None:
        torch.manual_seed(0)
        with quiet():
            found = list(op.error_inputs("cpu"))
        for n, error in _spread(found, limit):
            yield n, replace(_call(op, error.sample_input), raises=error.error_type)


COLUMNS: dict[str, Column] = {
    "forward": _forward,
    "float64": _values(torch.float64),
    "bfloat16": _values(torch.bfloat16),
    "int64": _values(torch.int64),
    "bool": _values(torch.bool),
    "complex64": _values(torch.complex64),
    "noncontiguous": _noncontiguous,
    "method": _method,
    "in-place": _inplace,
    "out": _out,
    "gradient": _gradient_of(torch.float64),
    "complex gradient": _gradient_of(torch.complex128),
    "partial gradient": _partial_gradient,
    "repeated": _repeated,
    "in-place gradient": _inplace_gradient,
    "errors": _errors,
    "jit": _jit,
}
GRADIENT_COLUMNS = ("gradient", "complex gradient", "partial gradient", "repeated", "in-place gradient")
