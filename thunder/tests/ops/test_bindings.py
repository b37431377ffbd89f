"""The functions of torch that run overloads of aten operations: the same operations with the same arguments."""

import itertools
import warnings
from collections import Counter
from contextlib import suppress

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from thunder.core.torch_compat import aten_packet
from thunder.torch.bindings import python_function
from thunder.torch.registry import aten_overloads

# What the argument parser writes out, and what the dispatcher leaves away.
_DEFAULTS = {"pin_memory": False, "layout": torch.strided}


class Recorded(TorchDispatchMode):
    """The operations that run, with metadata in the place of tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = {k: v for k, v in kwargs.items() if k not in _DEFAULTS or v != _DEFAULTS[k]}
        self.calls.append((fn, *metadata((args, given))))
        return fn(*args, **kwargs)


def metadata(values):
    described = tree_map(lambda x: (x.shape, x.dtype, x.stride()) if isinstance(x, torch.Tensor) else x, values)
    return [repr(x) for x in described]


def run_recorded(fn, args, kwargs):
    with Recorded() as recorded:
        result = fn(*args, **kwargs)
    return recorded.calls, metadata(tree_leaves(result))


class Comparing(TorchDispatchMode):
    """Calls each operation a second time as torch's function, if it has one."""

    def __init__(self):
        super().__init__()
        self.compared = Counter()

    def compare(self, op, args, kwargs):
        fn = python_function(op)
        if fn is None:
            return
        args, kwargs = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        assert run_recorded(fn, args, kwargs) == run_recorded(op, args, kwargs), op
        self.compared[op] += 1

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.compare(op, args, kwargs or {})
        return op(*args, **(kwargs or {}))


def fits(op, args, kwargs):
    """Whether a call is one of this overload as it stands in a trace, without conversions of its arguments."""
    parameters = op._schema.arguments
    pairs = [*zip(args, parameters), *((v, p) for k, v in kwargs.items() for p in parameters if p.name == k)]
    tensors_fit = all(isinstance(v, torch.Tensor) <= ("Tensor" in str(p.type)) for v, p in pairs)
    return tensors_fit and not any(isinstance(v, str) for v, _ in pairs)


def compare_overloads(comparing, name, args, kwargs):
    """Each overload of an operation that takes the call: composite operations are not seen while they run."""
    packet = aten_packet(name)
    for op in [] if packet is None else aten_overloads(packet):
        if python_function(op) is None or not fits(op, args, kwargs):
            continue
        with suppress(RuntimeError, TypeError, NotImplementedError, IndexError):
            op(*args, **kwargs)
            comparing.compare(op, args, kwargs)


@pytest.mark.slow
def test_functions_run_the_operations_that_they_stand_for():
    comparing = Comparing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            for dtype in (torch.float32, torch.int64):
                if info.supports_dtype(dtype, "cpu") and not info.name.startswith("jiterator"):  # CUDA only
                    _compare_samples(comparing, info, dtype)
    assert len(comparing.compared) > 350
    # What models' backward passes consist of.
    aten = torch.ops.aten
    for op in (aten.mm.default, aten.t.default, aten.sum.dim_IntList, aten.expand.default, aten.mul.Tensor):
        assert comparing.compared[op] > 0


def _compare_samples(comparing, info, dtype):
    tracked = info.supports_autograd and dtype is torch.float32
    for sample in itertools.islice(info.sample_inputs_func(info, "cpu", dtype, tracked), 5):
        args = (sample.input, *sample.args)
        with torch.no_grad():
            compare_overloads(comparing, info.name.split(".")[-1], args, sample.kwargs)
        with suppress(RuntimeError, NotImplementedError), comparing:
            result = info.op(*args, **sample.kwargs)
            outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


@pytest.mark.parametrize(
    "op, fn",
    [
        (torch.ops.aten.mm.default, torch.mm),
        (torch.ops.aten.expand.default, torch.Tensor.expand),
        (torch.ops.aten.mul.Scalar, None),  # torch.mul would take the number for a tensor
        (torch.ops.aten.index_put.default, None),  # no None among the indices
        (torch.ops.aten.add_.Tensor, None),
        (torch.ops.aten.gelu_backward.default, None),
        (torch.ops.aten.zeros.default, None),
    ],
)
def test_function_of_an_overload(op, fn):
    assert python_function(op) is fn
