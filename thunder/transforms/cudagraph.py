"""CUDA graphs: runs of operations on a GPU, recorded once and launched as one.

What a graph computes lies in memory of its own, which the next launch overwrites. A graph is therefore launched only
when nobody holds what it gave before; while somebody does, a second recording is made and used in turn. So results,
saved tensors and gradients are as lasting as in eager, at the price of memory for each recording that is in use.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.log import get_logger
from thunder.core.proxies import Proxy, ProxyTag, tensors_among
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import PLAIN_TENSORS, has_aten_tag, storage_key, storage_use_count
from thunder.core.trace import TraceCtx, TraceTag
from thunder.core.tracing import tracectx
from thunder.core.transform_base import Transform
from thunder.core.transforms.del_last_used import del_last_used, hand_over
from thunder.core.transforms.protect import may_be_view
from thunder.executors.fusion_regions import Region, fuse_bound_symbols, replace_regions, runs_alone
from thunder.extend.executor import region_node

_log = get_logger("fusions")

_WARM_UP_RUNS = 2  # libraries set up their workspaces and Inductor compiles, neither of which can be recorded
# They wait where they are given a mask.
_MASKED = ("index", "index_put", "_index_put_impl", "_unsafe_index", "__getitem__", "masked_select", "take")
# They wait whatever they are given; in linear algebra, what factorizes looks at whether it has succeeded.
_READS_VALUES = frozenset({"repeat_interleave", "bincount", "histc", "tensor", "logdet", "slogdet"})
_FAMILIES_THAT_READ_VALUES = ("linalg_", "cholesky", "unique", "nonzero")
_WITHOUT_FACTORS = frozenset(
    {"linalg_vector_norm", "linalg_cross", "linalg_vecdot", "linalg_multi_dot", "linalg_diagonal", "linalg_matmul"}
)


# Recordings


@dataclass(frozen=True)
class ArgsDescriptor:
    """What a recording depends on. Entry n of `dtypes`, `sizes` and `strides` is of the n-th tensor.

    non_tensor_args: the other arguments, in order.
    """

    dtypes: tuple
    sizes: tuple
    strides: tuple
    non_tensor_args: tuple


def to_arg_descriptor(*args: Any) -> ArgsDescriptor:
    """The descriptor of arguments. Those that are no tensors must be hashable."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return ArgsDescriptor(
        tuple([t.dtype for t in tensors]),
        tuple([t.shape for t in tensors]),
        tuple([t.stride() for t in tensors]),
        tuple([a for a in args if not isinstance(a, torch.Tensor)]),
    )


class Recording:
    """A graph, the memory that it reads and that which it leaves its results in.

    Args:
        graph: `graph.replay()` launches it on the current stream.
        inputs: what it reads. It keeps no hold of those that `is_static` says stay where they are.
        outputs: tensors, and what else the operations give, which is the same at each launch.
        number: how many recordings of this memory pool came before.
    """

    def __init__(
        self, graph: Any, inputs: Sequence[Any], outputs: Sequence[Any], is_static: Sequence[bool], number: int
    ):
        self.graph, self.number = graph, number
        self.static_inputs = [None if same else i for i, same in zip(inputs, is_static, strict=True)]
        self.static_outputs = list(outputs)
        read = {storage_key(t) for t in inputs if isinstance(t, torch.Tensor)}
        made = {storage_key(t): t for t in outputs if isinstance(t, torch.Tensor)}
        self._storages = [t.untyped_storage() for key, t in made.items() if key not in read]
        self._unused_counts = [storage_use_count(s) for s in self._storages]

    @property
    def addresses(self) -> list[int]:
        """Where the results lie."""
        return [s.data_ptr() for s in self._storages]

    @property
    def is_unused(self) -> bool:
        """Whether nobody holds a result of the last launch, nor a view of one."""
        return all(storage_use_count(s) == n for s, n in zip(self._storages, self._unused_counts, strict=True))

    def launch(self, args: Sequence[Any]) -> list[Any]:
        """The results for `args`, in memory that the next launch overwrites."""
        for buffer, arg in zip(self.static_inputs, args, strict=True):
            if isinstance(buffer, torch.Tensor):
                _dense_part(buffer).copy_(_dense_part(arg))
        self.graph.replay()
        return [o.detach() if isinstance(o, torch.Tensor) else o for o in self.static_outputs]


def _dense_part(t: torch.Tensor) -> torch.Tensor:
    """`t` without the repetitions of an `expand`."""
    if 0 not in t.stride():
        return t
    return t[tuple([slice(0, 1) if s == 0 else slice(None) for s in t.stride()])]


def _copied_out(results: Sequence[Any], handed_out: Sequence[bool]) -> list[Any]:
    """`results` with those handed out in memory of their own, which they share with one another as before."""
    memory: dict[Hashable, torch.UntypedStorage] = {}

    def copied(t: torch.Tensor) -> torch.Tensor:
        key = storage_key(t)
        if key not in memory:
            memory[key] = t.untyped_storage().clone()
        return t.new_empty(0).set_(memory[key], t.storage_offset(), t.shape, t.stride())

    pairs = zip(results, handed_out, strict=True)
    return [copied(r) if out and isinstance(r, torch.Tensor) else r for r, out in pairs]


class _OnDevice:
    """A graph that is launched on its own device, whichever is current."""

    def __init__(self, graph: Any, device: torch.device):
        self.graph, self.device = graph, device

    def replay(self) -> None:
        with torch.cuda.device(self.device):
            self.graph.replay()


class CUDAGraphRunner:
    """Records functions as CUDA graphs and launches the recordings. Safe under threads.

    A recording is for one descriptor of the arguments, and for the addresses of those that are not copied: static ones,
    and results of recordings where the function says that it gets such. Functions on fake tensors or tensor
    subclasses, and all functions while a graph of the caller's is being recorded, run operation by operation; so does,
    with a warning, what cannot be recorded, or would need more than `max_recordings` recordings.

    Args:
        share_mem_pool: all recordings allocate from one memory pool, which takes less memory. Results that leave the
            program are then copied out, and a recording is launched only when what later recordings gave is unused,
            too, since that may lie where it computes.

    Attributes:
        cuda_graph_cache: from keys to the recordings made.
        python_callables: from names to functions and which of their arguments stay where they are.
        trace_symbols: from names to the nodes recorded, their inputs and outputs.
        mem_pool: the shared pool, or None. streams: for each device the one that recording happens on. Both are made
            when first needed.
    """

    max_recordings = 16

    def __init__(self, *, share_mem_pool: bool = False):
        self.cuda_graph_cache: dict[tuple, list[Recording]] = {}
        self.python_callables: dict[str, tuple[Callable, tuple[bool, ...]]] = {}
        self.trace_symbols: dict[str, tuple[list[BoundSymbol], list[Proxy], list[Proxy]]] = {}
        self.name_counter = itertools.count()
        self.share_mem_pool = share_mem_pool
        self.mem_pool: Any = None
        self.streams: dict[torch.device, Any] = {}
        self._from_recordings: dict[str, tuple[bool, ...]] = {}
        self._handed_out: dict[str, tuple[bool, ...]] = {}
        self._numbers = itertools.count()
        self._addresses: set[int] = set()
        self._not_recorded: set[str] = set()
        self._lock = threading.RLock()

    def get_static_buffer(self, x: Any) -> Any:
        """Memory for what is passed as `x`, laid out like it, with its values; what is no tensor stays itself."""
        if not isinstance(x, torch.Tensor):
            return x
        dense = _dense_part(x)
        buffer = torch.empty_strided(dense.shape, dense.stride(), dtype=x.dtype, device=x.device)
        return buffer.copy_(dense).expand(x.shape)

    def build_cuda_graph(
        self, fn: Callable, args: list[Any], static_args_mask: tuple[bool, ...]
    ) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """Records `fn`: the graph, the tensors that it reads (those of `args` where the mask is set), its results."""
        inputs = [a if same else self.get_static_buffer(a) for a, same in zip(args, static_args_mask, strict=True)]
        if self.share_mem_pool and self.mem_pool is None:
            self.mem_pool = torch.cuda.graph_pool_handle()
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cuda"))
        with torch.cuda.device(device):
            if device not in self.streams:
                self.streams[device] = torch.cuda.Stream()
            stream = self.streams[device]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP_RUNS):
                    fn(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as those of data loaders, may call CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self.mem_pool, stream=stream, capture_error_mode="thread_local"):
                outputs = fn(*inputs)
        return _OnDevice(graph, device) if torch.cuda.device_count() > 1 else graph, inputs, outputs

    def make_static_inputs_mask(self, fn_name: str, *args: Any) -> tuple[bool, ...]:
        """Which arguments are read where they are: static ones, and results of recordings."""
        _, static = self.python_callables[fn_name]
        recorded, addresses = self._from_recordings[fn_name], self._addresses
        return tuple(
            [
                s or (r and isinstance(a, torch.Tensor) and a.untyped_storage().data_ptr() in addresses)
                for a, s, r in zip(args, static, recorded, strict=True)
            ]
        )

    def make_cache_key(self, fn_name: str, *args: Any) -> tuple:
        """What a recording is found by."""
        mask = self.make_static_inputs_mask(fn_name, *args)
        return self._key(fn_name, args, mask)

    def _key(self, fn_name: str, args: Sequence[Any], mask: Sequence[bool]) -> tuple:
        fixed = [
            a.data_ptr() if same and isinstance(a, torch.Tensor) else None for a, same in zip(args, mask, strict=True)
        ]
        return fn_name, to_arg_descriptor(*args), tuple(fixed), torch.is_inference_mode_enabled()

    def call_cuda_graph(self, fn_name: str, *args: Any) -> Sequence[Any]:
        """The function's results, by a recording."""
        fn, _ = self.python_callables[fn_name]
        if fn_name in self._not_recorded or not self._may_record(args):
            return fn(*args)
        with self._lock:
            mask = self.make_static_inputs_mask(fn_name, *args)
            key = self._key(fn_name, args, mask)
            recordings = self.cuda_graph_cache.get(key, [])
            found = next((r for r in recordings if self._may_launch(r)), None)
            if found is None:
                found = self._record(fn_name, args, mask)
                if found is None:
                    return fn(*args)
                self.cuda_graph_cache.setdefault(key, []).append(found)
            results = found.launch(args)
            return _copied_out(results, self._handed_out[fn_name]) if self.share_mem_pool else results

    def _may_record(self, args: Sequence[Any]) -> bool:
        plain = all(type(a) in PLAIN_TENSORS for a in args if isinstance(a, torch.Tensor))
        return plain and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())

    def _may_launch(self, recording: Recording) -> bool:
        if not self.share_mem_pool:
            return recording.is_unused
        made = itertools.chain.from_iterable(self.cuda_graph_cache.values())
        return all(r.is_unused for r in made if r.number >= recording.number)

    def _record(self, fn_name: str, args: Sequence[Any], mask: tuple[bool, ...]) -> Recording | None:
        """A new recording, or None with a warning."""
        count = sum(len(made) for (name, *_), made in self.cuda_graph_cache.items() if name == fn_name)
        if count >= self.max_recordings:
            reason = f"there are {count} recordings of it already, for other arguments, or with results still in use"
            self._give_up(fn_name, reason)
            return None
        fn, _ = self.python_callables[fn_name]
        try:
            graph, inputs, outputs = self.build_cuda_graph(fn, list(args), mask)
        except Exception as e:
            self._give_up(fn_name, f"{type(e).__name__}: {e}")
            return None
        recording = Recording(graph, inputs, outputs, mask, next(self._numbers))
        self._addresses.update(recording.addresses)
        _log.debug("%s: recording %d", fn_name, count + 1)
        return recording

    def _give_up(self, fn_name: str, reason: str) -> None:
        self._not_recorded.add(fn_name)
        message = f"{fn_name} is not recorded as a CUDA graph and runs operation by operation: {reason}"
        warnings.warn(message, stacklevel=5)

    def make_python_callable_from_symbols(
        self, fn_name: str, bsyms: list[BoundSymbol], inputs: list[Proxy], outputs: list[Proxy]
    ) -> Callable:
        """A function from `inputs` to the tuple of `outputs` that runs nodes."""
        trace = TraceCtx(name=fn_name)
        trace.args = list(inputs)
        trace.names = {p.name for p in (*inputs, *(o for n in bsyms for o in n.defined))}
        with tracectx(trace):
            trace.bound_symbols = list(bsyms)
            prims.python_return(tuple(outputs))
        return hand_over(del_last_used(trace)).python_callable(include_decorators=False)

    def make_cuda_graph_callable_from_symbols(
        self,
        bsyms: list[BoundSymbol],
        inputs: list[Proxy],
        outputs: list[Proxy],
        static_inputs_mask: Sequence[bool] | None = None,
        *,
        from_recordings: Collection[str] = (),
        handed_out: Collection[str] = (),
    ) -> Callable:
        """A function from `inputs` to `outputs` that runs nodes as a graph.

        Args:
            static_inputs_mask: which inputs stay where they are from call to call; by default those with the tag
                STATIC_MEMORY_LOCATION.
            from_recordings: names of inputs that may be results of this runner's recordings, and then stay there, too.
            handed_out: names of outputs that leave the program.
        """
        fn_name = f"CUDAGraph{next(self.name_counter)}"
        if static_inputs_mask is None:
            static_inputs_mask = [ProxyTag.STATIC_MEMORY_LOCATION in p.tags for p in inputs]
        fn = self.make_python_callable_from_symbols(fn_name, bsyms, inputs, outputs)
        self.python_callables[fn_name] = fn, tuple(static_inputs_mask)
        self._from_recordings[fn_name] = tuple([p.name in from_recordings for p in inputs])
        self._handed_out[fn_name] = tuple([p.name in handed_out for p in outputs])
        self.trace_symbols[fn_name] = list(bsyms), list(inputs), list(outputs)

        def call(*args: Any) -> Sequence[Any]:
            return self.call_cuda_graph(fn_name, *args)

        call.__name__ = fn_name
        return call


# The transform


def reads_values(node: BoundSymbol) -> bool:
    """Whether the node's operation waits for the values of tensors, as sizes of results that depend on them do."""
    name = node.sym.base_name
    if name in _MASKED:
        return any(a.torch_dtype in (torch.bool, torch.uint8) for a in tensors_among(node.flat_args))
    if name in _READS_VALUES or (name.startswith(_FAMILIES_THAT_READ_VALUES) and name not in _WITHOUT_FACTORS):
        return True
    tags = torch.Tag
    return has_aten_tag(name, tags.data_dependent_output, tags.dynamic_output_shape, tags.cudagraph_unsafe)


def _devices_of(node: BoundSymbol) -> set[torch.device]:
    return {to_torch_device(t.device) for t in tensors_among((*node.flat_args, *node.flat_outs))}


def _of_one_device(nodes: Sequence[BoundSymbol]) -> Iterator[list[BoundSymbol]]:
    """Nodes in order, in parts without a change of device."""
    for _, part in itertools.groupby(nodes, _devices_of):
        yield list(part)


def can_record(node: BoundSymbol, device_type: str = "cuda") -> bool:
    """Whether a graph may contain the node: its tensors are on one device, of this type, and it reads no values."""
    devices = _devices_of(node)
    if len(devices) != 1 or devices.pop().type != device_type:
        return False
    return not any(reads_values(n) for n in (node, *node.subsymbols))


def _handed_out(trace: TraceCtx) -> set[str]:
    """Names of what leaves the program, and of values that it may be a view of. O(nodes)."""
    returned = trace.bound_symbols[-1].args
    if TraceTag.AUGMENTED_FORWARD in trace.tags:
        returned = returned[:1]
    found = {p.name for p in tree_flatten(returned)[0] if isinstance(p, Proxy)}
    for node in reversed(trace.bound_symbols[:-1]):
        if any(o.name in found for o in node.defined) and may_be_view(node):
            found.update(p.name for p in node.flat_proxy_args)
    return found


class CUDAGraphTransform(Transform):
    """Replaces runs of operations on CUDA devices by CUDA graphs, which save the launches between them.

    Regions that a fuser has made may be part of a graph. What writes memory, draws random numbers, talks to other
    processes or reads values on the CPU is in none. Runs are found by the compile option `fusion_type`. Override
    `can_fuse` to leave operations out.

    Args:
        share_mem_pool: see `CUDAGraphRunner`.

    Attributes:
        cuda_graph_runner: what records and launches.
        outputs_from_forward: names that the graphs of the current program define, those of its forward first.
    """

    min_region_size = 2  # of operations that are no views

    def __init__(self, *, share_mem_pool: bool = False):
        self.cuda_graph_runner = CUDAGraphRunner(share_mem_pool=share_mem_pool)
        self.outputs_from_forward: set[str] = set()
        self._handed_out: set[str] = set()

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a graph may contain the node."""
        return can_record(bsym)

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        """The node that runs a region as a graph. `fusion_counter`: how many graphs the trace has before it."""
        fn = self.cuda_graph_runner.make_cuda_graph_callable_from_symbols(
            region.bsyms,
            region.inputs,
            region.outputs,
            from_recordings=self.outputs_from_forward,
            handed_out=self._handed_out,
        )
        self.outputs_from_forward.update(o.name for o in region.outputs)
        return region_node(fn.__name__, fn, inputs=region.inputs, outputs=region.outputs, bsyms=region.bsyms)

    def generate_fused_trace(self, trace: TraceCtx, **kwargs: Any) -> TraceCtx:
        """The trace with graphs in it; the trace itself where there is nothing to record. O(nodes + edges)."""
        if TraceTag.BACKWARD not in trace.tags:
            self.outputs_from_forward = set()
        self._handed_out = _handed_out(trace)
        computing = trace.with_nodes(n for n in trace.bound_symbols if n.sym is not prims.python_del)
        groups = fuse_bound_symbols(computing, self.can_fuse, is_barrier=runs_alone)
        new, count = replace_regions(
            computing,
            (part for group in groups for part in _of_one_device(group)),
            is_free=may_be_view,
            is_wanted=self._is_wanted,
            fuse=self.fuse,
            pass_name=type(self).__name__,
        )
        return del_last_used(new) if count else trace

    def _is_wanted(self, group: Sequence[BoundSymbol], core: Sequence[BoundSymbol]) -> bool:
        return len(group) > 1 and sum(not may_be_view(n) for n in core) >= self.min_region_size

    def transform_trace_post_optimization(self, computation_trace: TraceCtx, **kwargs: Any) -> TraceCtx:
        return self.generate_fused_trace(computation_trace, **kwargs)
