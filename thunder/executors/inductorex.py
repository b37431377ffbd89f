"""The fusers that compile regions with Inductor: `torchcompile`, and two for CUDA that look for certain operations.

Which operations are fused follows from what they cost: elementwise operations, reductions, normalizations and data
movement among them are bound by memory traffic, which fusing saves. Small matrix products are fused for the sake of the
calls between them. Large ones, convolutions and attention are left to the libraries, and so is what reads at positions
given by a tensor, whose errors differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import torch

from thunder.core.proxies import Proxy, TensorProxy, tensors_among
from thunder.core.sizes import hint
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import OpOverload, has_aten_tag
from thunder.core.trace import TraceCtx
from thunder.core.transforms.rematerialize import has_unknown_size, size_bytes
from thunder.executors.fusion_regions import Region, RegionFusionExecutor
from thunder.executors.memory_format import with_channels_last
from thunder.executors.onednn_products import with_onednn_products
from thunder.executors.region_cache import RegionTable, has_text, region_text, settings_text
from thunder.executors.region_program import RegionProgram
from thunder.executors.strides import PredictedStrides
from thunder.extend.registry import register_executor

# Composite operations and those without a tag in their schema that Inductor turns into elementwise code and reductions.
_FUSED_BY_NAME = frozenset(
    {
        "softmax", "_softmax", "_softmax_backward_data", "log_softmax", "_log_softmax", "_log_softmax_backward_data",
        "softmin", "layer_norm", "native_layer_norm", "native_layer_norm_backward", "rms_norm", "_fused_rms_norm",
        "_fused_rms_norm_backward", "_native_batch_norm_legit_functional", "native_batch_norm_backward",
        "threshold_backward", "group_norm", "native_group_norm", "native_group_norm_backward", "normalize",
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div",
        "cosine_similarity", "glu", "glu_backward", "_to_copy", "sum_to_size", "cat", "concat", "stack", "tril", "triu",
        "repeat", "flip", "roll", "pad", "constant_pad_nd", "slice_backward", "select_backward", "zeros_like",
        "ones_like", "full_like", "zeros", "ones", "full", "outer", "prelu", "float", "half", "bfloat16", "double",
        "type_as", "__rtruediv__", "__rsub__", "__rpow__", "relu6", "hardswish", "mish", "selu", "celu", "elu",
        "softsign", "tanhshrink", "logsigmoid", "rsub", "convert_element_type", "iota",
    }
)  # fmt: skip
# Tagged as elementwise or as reductions, and yet not fused: they write, or are slower or different when fused.
_NEVER_FUSED = frozenset({"copy", "bernoulli", "native_dropout", "nextafter"})
_VIEWS = frozenset(
    {
        "reshape", "view", "view_as", "reshape_as", "permute", "transpose", "t", "expand", "expand_as", "slice",
        "select", "squeeze", "unsqueeze", "flatten", "unflatten", "narrow", "contiguous", "alias", "detach", "split",
        "chunk", "unbind", "swapaxes", "swapdims", "movedim", "moveaxis", "ravel", "split_with_sizes", "_unsafe_view",
        "mT", "T", "broadcast_in_dim", "slice_prim",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "mv", "dot", "__matmul__"})
_SMALL_PRODUCT_FLOPS = 1 << 21  # a product of so many takes about as long as ten calls from Python
_SMALL_BYTES = 1 << 19  # so many are moved in about the time of ten calls
_CASTS = frozenset({"to", "type"})
_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16,
        torch.int32, torch.int64,
    }
)  # fmt: skip


def _is_tagged(name: str) -> bool:
    """Whether aten declares the operation elementwise or a reduction."""
    return name not in _NEVER_FUSED and has_aten_tag(name, torch.Tag.pointwise, torch.Tag.reduction)


def _is_static_index(node: BoundSymbol) -> bool:
    """Whether the node is `a[key]` with ints and slices, which is a view."""
    if node.sym.base_name != "__getitem__":
        return False
    key = node.args[1]
    parts = key if isinstance(key, tuple) else (key,)
    return all(k is None or k is Ellipsis or isinstance(k, slice) or type(k) is int for k in parts)


def is_view(node: BoundSymbol) -> bool:
    """Whether the node is cheap as it is: its result is, or may be, a view of its input."""
    if node.sym.base_name in _CASTS:
        source = node.args[0]
        return isinstance(source, TensorProxy) and all(o.dtype == source.dtype for o in tensors_among(node.flat_outs))
    return node.sym.base_name in _VIEWS or _is_static_index(node)


def _is_small_product(node: BoundSymbol) -> bool:
    """Whether the node is a matrix product that takes no longer than the calls around it, by the sizes of capture."""
    if node.sym.base_name not in _PRODUCTS or not isinstance(node.output, TensorProxy):
        return False
    left = node.args[1:2] if node.sym.base_name in ("addmm", "baddbmm") else node.args[:1]
    sizes = [*node.output.shape, *(a.shape[-1] for a in left if isinstance(a, TensorProxy))]
    return bool(left) and 2 * math.prod(map(hint, sizes)) <= _SMALL_PRODUCT_FLOPS


def is_fusible(node: BoundSymbol) -> bool:
    """Whether Inductor gains by having the node in a region, and may: dense tensors of one device, no sizes of data."""
    name = node.sym.base_name
    fn = node.sym.torch_fn
    if isinstance(fn, OpOverload) and fn.namespace != "aten":
        return False
    if not (name in _FUSED_BY_NAME or name in _CASTS or is_view(node) or _is_tagged(name) or _is_small_product(node)):
        return False
    tensors = tensors_among((*node.flat_args, *node.flat_outs))
    if not tensors or any(t.torch_dtype not in _DTYPES for t in tensors):
        return False
    kinds = {t.device.type for t in tensors}
    if len(kinds) != 1 or kinds.isdisjoint({"cpu", "cuda"}):
        return False
    return all(o is None or isinstance(o, TensorProxy) for o in node.flat_outs) and has_text(node)


region_table = RegionTable()


def make_compiled(
    bsyms: Sequence[BoundSymbol],
    sorted_unique_inputs: Sequence[Proxy],
    sorted_unique_outputs: Sequence[Proxy],
    *,
    mode: str | None = None,
) -> RegionProgram:
    """A callable that runs nodes, compiled by Inductor at its first call; the one made before for an equal region.

    Every node must be one that `is_fusible` accepts.
    """
    text = region_text(bsyms, sorted_unique_inputs, sorted_unique_outputs)
    text = f"{text}\nmode {mode}\n{settings_text()}"
    return region_table.get(
        text, lambda: RegionProgram(text, bsyms, sorted_unique_inputs, sorted_unique_outputs, mode=mode)
    )


class TorchCompileExecutor(RegionFusionExecutor):
    """Compiles regions with Inductor.

    Args:
        name: the executor's.
        required_ops: names of operations of which a region must contain one; None for no such condition.
        mode: as that of `torch.compile`.
        device_type: fuse on this kind of device only.
        extra_ops: names of operations that are fused beside those that `is_fusible` accepts.
    """

    def __init__(
        self,
        name: Hashable,
        required_ops: set | None = None,
        *,
        mode: str | None = None,
        device_type: str | None = None,
        extra_ops: Collection[str] = (),
    ):
        super().__init__(name, version=torch.__version__)
        self.required_ops = required_ops
        self.mode = mode
        self.device_type = device_type
        self.extra_ops = frozenset(extra_ops)
        if required_ops is not None:
            self.min_region_size = 1

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a node may be in a region of this executor."""
        if self.device_type is not None:
            tensors = tensors_among((*bsym.flat_args, *bsym.flat_outs))
            if any(t.device.type != self.device_type for t in tensors):
                return False
        return is_fusible(bsym) or (bsym.sym.base_name in self.extra_ops and has_text(bsym)) or self.can_execute(bsym)

    def is_free(self, node: BoundSymbol) -> bool:
        return is_view(node)

    def is_small(self, node: BoundSymbol) -> bool:
        tensors = tensors_among((*node.flat_args, *node.flat_outs))
        if self.required_ops is not None or any(map(has_unknown_size, tensors)):
            return False
        return sum(map(size_bytes, tensors)) <= _SMALL_BYTES

    def is_worth_fusing(self, nodes: Sequence[BoundSymbol], work: int) -> bool:
        if self.required_ops is not None and not any(n.sym.base_name in self.required_ops for n in nodes):
            return False
        return super().is_worth_fusing(nodes, work)

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """The trace with its regions replaced; the trace itself where there are none to look for.

        The compilation of regions is started, for inputs with the strides that they will have as far as that is known;
        one that meets others compiles again.
        """
        if self.required_ops is not None and not any(n.sym.base_name in self.required_ops for n in trace.bound_symbols):
            return trace
        if self.required_ops is None:
            trace = with_channels_last(trace)
        strides = PredictedStrides()
        for node in trace.bound_symbols:
            strides.see(node)
        if self.required_ops is None:
            trace = with_onednn_products(trace, strides)
        new = self.with_regions(trace, lambda n: self.is_free(n) and not strides.copies(n))
        for node in new.bound_symbols:
            if isinstance(region := node.sym.python_impl, RegionProgram):
                region.compile_ahead(node.flat_args, [strides.of(p) for p in tensors_among(node.flat_args)])
        return new

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        """The node that runs a region."""
        fn = make_compiled(region.bsyms, region.inputs, region.outputs, mode=self.mode)
        return self.register_temporary_operation(
            f"TorchCompile{fusion_counter}", fn, inputs=region.inputs, outputs=region.outputs, bsyms=region.bsyms
        )


required_ops = {"cross_entropy", "nll_loss", "log_softmax", "_log_softmax", "nll_loss_forward"}
_cat_ops = {"cat", "concat", "stack"}
_loss_ops = ("cross_entropy", "nll_loss", "nll_loss_forward", "nll_loss_backward", "gather")

torch_compile_ex = register_executor(TorchCompileExecutor("torchcompile"))
torch_compile_cat_ex = register_executor(TorchCompileExecutor("torchcompile_cat", _cat_ops, device_type="cuda"))
torch_compile_xentropy_ex = register_executor(
    TorchCompileExecutor("torchcompile_xentropy", required_ops, device_type="cuda", extra_ops=_loss_ops)
)
