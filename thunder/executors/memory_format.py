"""Convolutions on a CPU run faster on channels-last memory: what lies between them is kept in it.

Values of a program have the strides that they have in eager wherever somebody could tell: what is returned, written or
viewed, and what operations read whose results depend on the order in memory. In between, strides are free.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder.core import prims
from thunder.core.origin import origin
from thunder.core.proxies import TensorProxy, tensors_among
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import has_aten_tag
from thunder.core.trace import TraceCtx, from_trace
from thunder.core.tracing import tracectx
from thunder.core.transforms.protect import MemoryGroups
from thunder.executors.strides import PredictedStrides
from thunder.torch.fakes import contiguous_strides
from thunder.torch.shape import contiguous

_CONVOLUTIONS = frozenset({"conv2d", "convolution"})
# Results have the same values whatever the strides of the arguments; elementwise operations and reductions, which aten
# marks, are among them, too.
_ANY_STRIDES = frozenset(
    {
        "convolution_backward", "batch_norm", "native_batch_norm", "native_batch_norm_backward",
        "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
        "threshold_backward", "max_pool2d", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
        "avg_pool2d_backward", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "relu6",
        "hardswish", "mish", "cat", "concat", "upsample_nearest2d", "upsample_nearest2d_backward",
        "upsample_bilinear2d", "upsample_bilinear2d_backward", "_to_copy", "reshape", "flatten", "t", "constant_pad_nd",
    }
)  # fmt: skip
# They take any strides, too, and give row-major results.
_PRODUCTS = frozenset({"mm", "linear", "addmm", "matmul", "bmm"})


def _is_convolution(node: BoundSymbol) -> bool:
    if node.sym.base_name not in _CONVOLUTIONS or not isinstance(node.args[0], TensorProxy):
        return False
    x = node.args[0]
    return len(x.shape) == 4 and x.device.type == "cpu" and x.torch_dtype in (torch.float32, torch.bfloat16)


def _weight(node: BoundSymbol) -> TensorProxy | None:
    """The weight whose values a 2-D convolution, or the backward of one, reads, if its layout matters."""
    if _is_convolution(node):
        w = node.args[1]
    elif node.sym.base_name == "convolution_backward" and node.args[-1][0]:  # gives the gradient of the images
        w = node.args[2]
    else:
        return None
    return w if isinstance(w, TensorProxy) and len(w.shape) == 4 and any(s != 1 for s in w.shape[2:]) else None


def _is_agnostic(node: BoundSymbol) -> bool:
    """Whether the values of the node's results do not depend on the strides of its arguments."""
    name, traits = node.sym.base_name, node.sym.traits
    if name in _ANY_STRIDES:
        return True
    if traits.is_random or traits.is_kept or traits.is_barrier:
        return False
    return name in _PRODUCTS or has_aten_tag(name, torch.Tag.pointwise, torch.Tag.reduction)


def _is_row_major(p: TensorProxy, strides: Sequence[int]) -> bool:
    wanted = zip(p.shape, strides, contiguous_strides(p.shape), strict=True)
    return all(stride == row_major for size, stride, row_major in wanted if type(size) is not int or size != 1)


def with_channels_last(trace: TraceCtx) -> TraceCtx:
    """The joint trace with its 2-D convolutions on a CPU, and what lies between them, in channels-last memory.

    The trace itself where there are none, where the program chooses another layout for one of them, or where more
    copies would be needed than there are convolutions. O(nodes α).
    """
    convolutions = sum(map(_is_convolution, trace.bound_symbols))
    if not convolutions or not torch.backends.mkldnn.is_available():
        return trace
    plan = _Plan(trace)
    return _rewritten(trace, plan) if len(plan.convolutions) == convolutions >= plan.copies else trace


class _Plan:
    """Which values are made in free strides, and which of them are copied to those of eager for some reader.

    Attributes:
        convolutions: positions of those whose results are row-major in eager.
        readers: positions of these, and of what reads free strides.
        made: names of values with free strides.
        settled: those of them that are copied, and keep their names for it.
        fixed: names of values that no operation reads in free strides.
        written: names of memory that is written, whose copies hold for one reader.
        shared_weights: names of row-major weights that several readers would each copy.
        copies: how many copies between layouts this takes, without those of weights and their gradients, which are
            made anyway: within a convolution, and where gradients are accumulated.
    """

    def __init__(self, trace: TraceCtx):
        self.convolutions: set[int] = set()
        self.readers: set[int] = set()
        self.made: set[str] = set()
        self.settled: set[str] = set()
        self.written, self.fixed = _written_and_fixed_names(trace)
        self.shared_weights: set[str] = set()
        read_weights: set[str] = set()
        weight_grads: set[str] = set()
        entering: set[tuple[str, int]] = set()
        eager = PredictedStrides()
        for n, node in enumerate(trace.bound_symbols):
            free = {a.name for a in tensors_among(node.flat_args) if self.is_read_free(a.name)}
            eager.see(node)
            is_row_major = all(_is_row_major(o, eager.of(o)) for o in tensors_among(node.defined))
            if is_row_major and _is_convolution(node):
                self.convolutions.add(n)
                if (x := node.args[0]).name not in free:
                    entering.add((x.name, n if x.name in self.written else 0))
            elif not (is_row_major and free and _is_agnostic(node)):
                self.settled.update(free)
                continue
            self.readers.add(n)
            if (w := _weight(node)) is not None and w.name not in self.written and _is_row_major(w, eager.of(w)):
                (self.shared_weights if w.name in read_weights else read_weights).add(w.name)
            if node.sym.base_name in _PRODUCTS:
                continue
            outs = [o.name for o in tensors_among(node.flat_outs) if len(o.shape) > 1]
            self.made.update(outs)
            self.settled.update(self.fixed.intersection(outs))
            if node.sym.base_name == "convolution_backward":
                weight_grads.update(outs)
        self.shared_weights -= self.made
        self.copies = len(entering) + len(self.settled - weight_grads)

    def is_read_free(self, name: str) -> bool:
        """Whether operations that take any strides read the value in those that it was made in."""
        return name in self.made and name not in self.fixed


def _written_and_fixed_names(trace: TraceCtx) -> tuple[set[str], set[str]]:
    """Written memory; and with it what others show: views together with what is returned, and inputs."""
    memory = MemoryGroups(trace.args)
    for node in trace.bound_symbols:
        memory.see_views(node)
        # Normalizations write statistics, whose memory is not that of their results.
        for w in node.written if node.sym.base_name not in _ANY_STRIDES else ():
            for o in node.defined:
                memory.join(w.name, o.name)
    written: set[str] = set()  # of a group all or none, so that each is entered once
    for node in trace.bound_symbols:
        renamed = (*node.flat_proxy_args, *node.defined) if node.sym is prims.update_aliases else ()
        for p in renamed or node.written:
            if p.name not in written:
                written.update(memory.group(p.name))
    fixed = set(written)
    for p in trace.bound_symbols[-1].flat_proxy_args:
        if p.name not in fixed and len(group := memory.group(p.name)) > 1:
            fixed.update(group)
    return written, fixed.union(a.name for a in trace.args)


def _rewritten(trace: TraceCtx, plan: _Plan) -> TraceCtx:
    new = from_trace(trace)
    free: dict[str, TensorProxy] = {}  # what readers that take any strides read instead
    entered: dict[tuple[str, bool], TensorProxy] = {}

    def channels_last(p: TensorProxy, key: tuple[str, bool]) -> TensorProxy:
        if key not in entered or p.name in plan.written:
            entered[key] = p.replace(name=new.unique_name(f"{p.name}_channels_last"), layout=None)
            new.emit(contiguous, (p,), {"memory_format": torch.channels_last}, entered[key])
        return entered[key]

    with tracectx(new):
        for n, node in enumerate(trace.bound_symbols):
            if n not in plan.readers:
                new.bound_symbols.append(node)
                continue
            with origin(node.origin, pass_name="channels_last"):
                if n in plan.convolutions and (x := node.args[0]).name not in free:
                    node = node.renamed({x.name: channels_last(x, (x.name, node.is_backward))}, outputs=False)
                node = node.renamed(free, outputs=False)
                if (w := _weight(node)) is not None and w.name in plan.shared_weights:
                    # That of forward is saved for backward.
                    node = node.renamed({w.name: channels_last(w, (w.name, False))}, outputs=False)
                _emit(node, plan, free, new)
    return new


def _emit(node: BoundSymbol, plan: _Plan, free: dict[str, TensorProxy], new: TraceCtx) -> None:
    """Adds a node, whose results may be laid out freely, and copies of those that are needed as in eager."""
    made = {o.name: o for o in tensors_among(node.flat_outs) if o.name in plan.made}
    names = {n: new.unique_name(f"{n}_channels_last") if n in plan.settled else n for n in made}
    results = {n: o.replace(name=names[n], layout=None) for n, o in made.items()}
    new.bound_symbols.append(node.renamed(results, inputs=False))
    for name, result in results.items():
        if name in plan.settled:
            new.emit(contiguous, (result,), {}, made[name])
        if plan.is_read_free(name):
            free[name] = result
