"""The fusers that compile regions with Inductor: `torchcompile`, and two for CUDA that look for certain operations.

Which operations are fused follows from what they cost: elementwise operations, reductions, normalizations and data
movement among them are bound by memory traffic, which fusing saves. Small matrix products are fused for the sake of the
calls between them. Large ones, convolutions and attention are left to the libraries, and so is what reads at positions
given by a tensor, whose errors differ.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from thunder.core.log import get_logger
from thunder.core.proxies import Proxy, TensorProxy, tensors_among
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import (
    PLAIN_TENSORS,
    FakeTensorMode,
    OpOverload,
    call_compiled,
    compile_with_inductor,
    has_aten_tag,
    load_inductor_artifact,
    storage_key,
)
from thunder.core.trace import TraceCtx
from thunder.executors.fusion_regions import Region, RegionFusionExecutor, may_share_memory, run_nodes
from thunder.executors.memory_format import with_channels_last
from thunder.executors.region_cache import (
    DiskStore,
    RegionTable,
    default_store,
    has_text,
    machine_text,
    region_text,
    settings_text,
)
from thunder.executors.strides import PredictedStrides, with_strides
from thunder.extend.registry import register_executor
from thunder.torch.fakes import to_fake, to_real_leaf

_log = get_logger("fusions")

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
    """Whether the node is a matrix product that takes no longer than the calls around it."""
    if node.sym.base_name not in _PRODUCTS or not isinstance(node.output, TensorProxy):
        return False
    left = node.args[1:2] if node.sym.base_name in ("addmm", "baddbmm") else node.args[:1]
    sizes = [*node.output.shape, *(a.shape[-1] for a in left if isinstance(a, TensorProxy))]
    return all(type(s) is int for s in sizes) and bool(left) and 2 * math.prod(sizes) <= _SMALL_PRODUCT_FLOPS


def is_fusible(node: BoundSymbol) -> bool:
    """Whether Inductor gains by having the node in a region, and may: dense tensors of one device, static sizes."""
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


# Running and compiling a region


class _Started(NamedTuple):
    """A compilation: `finish()` waits for it, after which `run` can be called."""

    run: Callable[..., Sequence[torch.Tensor]]
    finish: Callable[[], None]


class RegionProgram:
    """A region as a callable on tensors, compiled when it first meets inputs with certain strides.

    Equal regions share one. Called with tensors of the region's shapes, dtypes and devices; gives a sequence of
    tensors, which are nobody else's memory unless the region's own views say so. When more than `max_variants` kinds of
    strides turn up, or Inductor fails, the operations run one by one, with the same results; so they do on what
    compiled code is not for: subclasses of tensors, and lazily negated ones. Safe under threads.
    """

    max_variants = 8

    def __init__(
        self,
        text: str,
        nodes: Sequence[BoundSymbol],
        inputs: Sequence[Proxy],
        outputs: Sequence[Proxy],
        *,
        mode: str | None = None,
        store: Callable[[], DiskStore | None] = default_store,
    ):
        self.text, self.mode = text, mode
        self.nodes = tuple(nodes)
        self.input_names = tuple(p.name for p in inputs)
        self.output_names = tuple(p.name for p in outputs)
        self.variants: dict[tuple, Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]] = {}
        self.compile_count = self.load_count = 0
        self._store = store
        self._lock = threading.Lock()
        self._started: dict[tuple, _Started] = {}
        self._linked = _linked_names(self.nodes, self.input_names, self.output_names)

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.run_list(list(tensors))

    def run_list(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The region's results; the list is emptied, and each tensor given up at its last use."""
        plain = PLAIN_TENSORS
        run = self.variants.get(tuple([t.stride() if type(t) in plain and not t.is_neg() else None for t in tensors]))
        return self._first_run(tensors) if run is None else run(tensors)

    def run_eagerly(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The region's operations, one by one."""
        return self._run_list_eagerly(list(tensors))

    def _run_list_eagerly(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[str, Any] = dict(zip(self.input_names, tensors, strict=True))
        tensors.clear()
        run_nodes(self.nodes, env, _call, keep=self.output_names)
        return [env[name] for name in self.output_names]

    def compile_ahead(self, inputs: Sequence[TensorProxy], strides: Sequence[tuple[int, ...]]) -> None:
        """Starts to compile for inputs with these strides; the first run on such inputs waits until that is done.

        C++ compilers run beside what the caller does next, which may be to start other regions.
        """
        key = tuple(strides)
        with self._lock:
            if key in self.variants or key in self._started or self._is_full:
                return
            try:
                with FakeTensorMode():
                    fakes = [to_fake(with_strides(p, s)) for p, s in zip(inputs, strides, strict=True)]
                self._started[key] = self._start(fakes)
            except Exception as e:
                self.variants[key] = self._failed(e)

    def _first_run(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        if any(type(t) not in PLAIN_TENSORS or t.is_neg() for t in tensors):
            return self._run_list_eagerly(tensors)
        key = tuple([t.stride() for t in tensors])
        with self._lock:
            if key not in self.variants:
                if key not in self._started and self._is_full:
                    return self._run_list_eagerly(tensors)
                self.variants[key] = self._variant(tensors, self._started.pop(key, None))
        return self.variants[key](tensors)

    @property
    def _is_full(self) -> bool:
        return len(self.variants) + len(self._started) >= self.max_variants

    def _variant(self, tensors: Sequence[torch.Tensor], started: _Started | None) -> Callable[[list], Any]:
        try:
            started = started or self._start(tensors)
            started.finish()
            outputs, run = call_compiled(started.run, tensors)
        except Exception as e:
            return self._failed(e)
        shared = self._wrongly_shared(tensors, outputs)
        return run if not shared else _cloning(run, shared)

    def _failed(self, e: Exception) -> Callable[[list], Any]:
        warnings.warn(
            f"Inductor could not compile a region, which runs uncompiled: {type(e).__name__}: {e}\n{self.text}",
            stacklevel=2,
        )
        _log.debug("Inductor failed", exc_info=True)
        return self._run_list_eagerly

    def _start(self, inputs: Sequence[torch.Tensor]) -> _Started:
        """From disk, or by Inductor and then to disk."""
        store = self._store()
        strides = ", ".join(str(t.stride()) for t in inputs)
        key = f"{self.text}\nstrides {strides}\n{machine_text()}"
        content = None if store is None else store.load(key)
        if store is not None and content is not None:
            try:
                run, finish = load_inductor_artifact(content, inputs)
            except Exception as e:
                _log.debug("a stored region is of no use and is compiled again: %s: %s", type(e).__name__, e)
                store.discard(key)
            else:
                self.load_count += 1
                return _Started(run, partial(self._finish_loading, finish, key))
        run, content, wait = compile_with_inductor(self.run_eagerly, inputs, self.mode)
        self.compile_count += 1

        def finish() -> None:
            wait()
            if store is not None and content is not None:
                store.save(key, content)

        return _Started(run, finish)

    def _finish_loading(self, finish: Callable[[], None], key: str) -> None:
        try:
            finish()
        except Exception:
            if (store := self._store()) is not None:
                store.discard(key)  # so that the next process compiles
            raise

    def _wrongly_shared(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[int]:
        """Positions of outputs in memory of an input or another output that the region's operations keep apart."""
        owner = {_storage(t): name for name, t in zip(self.input_names, tensors, strict=True)}
        wrong: list[int] = []
        for n, (name, o) in enumerate(zip(self.output_names, outputs, strict=True)):
            other = owner.setdefault(_storage(o), name)
            if other != name and self._linked[other] != self._linked[name]:
                wrong.append(n)
        return wrong


def _storage(t: torch.Tensor) -> Hashable:
    return storage_key(t) if t.numel() else ("empty", id(t))


def _cloning(run: Callable[[list], Sequence[torch.Tensor]], positions: Collection[int]) -> Callable[[list], Any]:
    """`run`, with some of its outputs in memory of their own."""

    def call(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [o.clone() if n in positions else o for n, o in enumerate(run(tensors))]

    return call


def _linked_names(nodes: Sequence[BoundSymbol], inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """For inputs and outputs, a representative of the names that they may share memory with through views."""
    group = {name: name for name in inputs}
    members: dict[str, list[str]] = {name: [name] for name in inputs}
    for node in nodes:
        names = [o.name for o in tensors_among(node.defined)]
        for name in names:
            group[name], members[name] = name, [name]
        if not may_share_memory(node):
            continue
        for p in (*tensors_among(node.flat_proxy_args), *tensors_among(node.defined)):
            a, b = group[names[0]], group[p.name]
            if a != b:
                small, large = sorted((a, b), key=lambda g: len(members[g]))
                for name in members[small]:
                    group[name] = large
                members[large].extend(members.pop(small))
    return {name: group[name] for name in (*inputs, *outputs)}


def _call(node: BoundSymbol, env: dict[str, Any]) -> Any:
    def real(x: Any) -> Any:
        return env[x.name] if isinstance(x, Proxy) else to_real_leaf(x)

    args, kwargs = tree_map(real, (node.args, node.kwargs))
    return node.sym.torch_fn(*args, **kwargs)  # type: ignore[misc]


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

    def is_worth_fusing(self, nodes: Sequence[BoundSymbol]) -> bool:
        if self.required_ops is not None and not any(n.sym.base_name in self.required_ops for n in nodes):
            return False
        return super().is_worth_fusing(nodes)

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """The trace with its regions replaced; the trace itself where there are none to look for."""
        if self.required_ops is not None and not any(n.sym.base_name in self.required_ops for n in trace.bound_symbols):
            return trace
        new = super().fusion_pass(with_channels_last(trace) if self.required_ops is None else trace)
        self._compile_ahead(new)
        return new

    def _compile_ahead(self, trace: TraceCtx) -> None:
        """Starts the compilation of regions, for inputs with the strides that they will have as far as that is known.

        A region that meets others compiles again.
        """
        nodes = trace.bound_symbols
        last = max((n for n, node in enumerate(nodes) if isinstance(node.sym.python_impl, RegionProgram)), default=-1)
        strides = PredictedStrides()
        for node in nodes[: last + 1]:
            if isinstance(region := node.sym.python_impl, RegionProgram):
                region.compile_ahead(node.flat_args, [strides.of(p) for p in node.flat_args])
            strides.see(node)

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
