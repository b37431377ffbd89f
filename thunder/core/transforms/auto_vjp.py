"""Gradients from torch's own autograd.

For an operation without a gradient rule of its own, the operation and its backward run once on fake tensors, and the
aten operations seen are the rule: a template, kept by operation and input metadata, that is emitted wherever the
operation is met again. So every operation that torch can differentiate has the gradient that eager has, as readable
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from thunder.core import prims
from thunder.core.devices import Device, to_torch_device
from thunder.core.errors import UnsupportedOpError
from thunder.core.origin import BACKWARD, origin
from thunder.core.prims.base import make_prim
from thunder.core.proxies import AnyProxy, TensorProxy, tensors_among
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.sizes import SYMBOLIC_TYPES, concrete
from thunder.core.symbol import BoundSymbol, Traits
from thunder.core.torch_compat import (
    OpOverload,
    TorchDispatchMode,
    asks_for_values,
    aten_packet,
    has_aten_tag,
    storage_key,
)
from thunder.core.trace import TraceCtx
from thunder.core.tracing import get_tracectx
from thunder.core.transforms.templates import (
    Ref,
    Template,
    TemplateNode,
    TensorMeta,
    finished_template,
    stride_agnostic,
    with_other_strides,
)
from thunder.torch.fakes import call_key, fake_mode, quiet_autocast, symbolic_dispatch, to_fake, to_real_leaf
from thunder.torch.registry import symbol_for


class NeedsAutograd(Exception):
    """The operation cannot be written as a template; torch's autograd has to run it."""


_SILENT = {"detach", "alias", "lift_fresh"}
_SAVES_IN_GRAD_MODE = {"mkldnn_rnn_layer"}  # gives an empty workspace to backward where autograd is off


class _Recorder(TorchDispatchMode):
    """Writes down the aten calls on fake or meta tensors. Writes to temporaries are recorded as their functional twins.

    stands_for: the device that meta tensors are on; None where there are none.
    """

    def __init__(self, stands_for: torch.device | None = None) -> None:
        super().__init__()
        self.stands_for = stands_for
        self.nodes: list[TemplateNode] = []
        self.refs: dict[int, Ref] = {}
        self._alive: list[Any] = []
        self._members: dict[int, set[int]] = {}
        self._next = 0

    def enter(self, t: torch.Tensor) -> Ref:
        """A new value for the tensor."""
        ref = Ref(self._next)
        self._next += 1
        self.refs[id(t)] = ref
        self._alive.append(t)
        key = storage_key(t)
        if key is not None:
            self._members.setdefault(key, set()).add(ref.n)
        return ref

    def meta_of(self, t: torch.Tensor) -> TensorMeta:
        device = t.device if self.stands_for is None else self.stands_for
        return TensorMeta(tuple(concrete(s) for s in t.shape), t.dtype, device)

    def ref_of(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            is_meta = isinstance(x, torch.device) and x.type == "meta"
            return self.stands_for if is_meta and self.stands_for is not None else concrete(x)
        if id(x) not in self.refs:
            raise NeedsAutograd("a tensor that is not the result of a recorded call")
        return self.refs[id(x)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if name in _SILENT:
            out = func(*args, **kwargs)
            self.refs[id(out)] = self.ref_of(args[0])
            self._alive.append(out)
            return out
        if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
            raise NeedsAutograd(f"{func} has a result whose shape depends on data")
        if name in _SAVES_IN_GRAD_MODE:
            raise NeedsAutograd(f"{func} gives what its backward reads only where autograd is on, which it is not here")
        template_args = tree_map(self.ref_of, tuple(args))
        template_kwargs = tree_map(self.ref_of, dict(kwargs))
        out = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._write(func, args, template_args, template_kwargs, out)
        else:
            self._add(func, template_args, template_kwargs, out, args)
        return out

    def _add(self, func: Any, args: Any, kwargs: Any, out: Any, real_args: Any) -> None:
        shared = {storage_key(a) for a in tree_flatten(real_args)[0] if isinstance(a, torch.Tensor)} - {None}
        metas: dict[int, TensorMeta] = {}
        is_view = False

        def entered(o: Any) -> Any:
            nonlocal is_view
            if not isinstance(o, torch.Tensor):
                return o
            ref = self.enter(o)
            metas[ref.n] = self.meta_of(o)
            is_view = is_view or storage_key(o) in shared
            return ref

        outs = tree_map(entered, out)
        self.nodes.append(TemplateNode(stride_agnostic(func), args, kwargs, outs, metas, is_view))

    def _write(self, func: Any, real_args: Any, args: Any, kwargs: Any, out: Any) -> None:
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        functional = func if is_random else _functional_overload(func)
        target = real_args[0] if real_args else None
        written = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if functional is None or not isinstance(target, torch.Tensor) or out is not target or len(written) > 1:
            raise NeedsAutograd(f"{func} writes to memory")
        key = storage_key(target)
        old = self.refs[id(target)]
        if key is None or old.n < self.n_inputs or len(self._members.get(key, ())) != 1:
            raise NeedsAutograd(f"{func} writes to memory that has other names")
        ref = Ref(self._next)
        self._next += 1
        self._members[key] = {ref.n}
        for known, r in list(self.refs.items()):
            if r == old:
                self.refs[known] = ref
        meta = self.meta_of(target)
        if not is_random:  # a twin of these would draw in another order
            args = (*args, *_defaults_after(func, functional, len(args)))
        self.nodes.append(TemplateNode(functional, args, kwargs, ref, {ref.n: meta}, False))

    n_inputs = 0


def _functional_overload(func: OpOverload) -> OpOverload | None:
    name = func._schema.name.split("::")[1]
    if not name.endswith("_") or func.namespace != "aten":
        return None
    packet = aten_packet(name[:-1])
    if packet is None:
        return None
    wanted = [str(a.type) for a in func._schema.arguments]
    names = sorted(packet.overloads(), key=lambda o: o != func._overloadname)
    for twin in (getattr(packet, o) for o in names):
        if not twin._schema.is_mutable and [str(a.type) for a in twin._schema.arguments] == wanted:
            return twin
    return None


def _defaults_after(func: OpOverload, twin: OpOverload, n: int) -> list[Any]:
    """Defaults of a writing call that its twin demands (`bernoulli_(p=0.5)`, `bernoulli(p)`)."""
    arguments = list(zip(func._schema.arguments, twin._schema.arguments, strict=True))[n:]
    return [a.default_value for a, t in arguments if not t.kwarg_only and not t.has_default_value()]


# Operations whose gradients have the same formulas on all devices, the meta device among them, beside those that aten
# marks as elementwise or as reductions. A test compares them.
_SAME_ON_ALL_DEVICES = frozenset(
    {
        "linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "outer", "einsum", "tensordot",
        "reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "permute", "transpose", "t", "movedim",
        "expand", "expand_as", "broadcast_to", "squeeze", "unsqueeze", "chunk", "split", "split_with_sizes", "unbind",
        "select", "slice", "narrow", "contiguous", "cat", "stack", "repeat", "roll", "flip", "pad", "tril", "triu",
        "gather", "scatter", "scatter_add", "index_select", "embedding", "topk", "sort", "cumsum", "softmax",
        "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm", "normalize", "conv1d", "conv2d", "conv3d",
        "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "cross_entropy", "nll_loss", "mse_loss",
        "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity",
        "glu", "prelu", "hardswish",
    }
)  # fmt: skip
_OTHERWISE_ON_META = frozenset({"mish", "to", "bernoulli", "rrelu"})
_NORMS = frozenset({"layer_norm", "rms_norm", "group_norm"})  # statistics of half-precision values differ in dtype
_TORCH = (torch, torch.Tensor, torch.nn.functional, torch.special)


def _meta_stands_for(fn: Callable, flat: list) -> torch.device | None:
    """The device of a call that may as well be recorded on meta tensors, which takes a fraction of the time that fake
    tensors take; None for others.
    """
    name = getattr(fn, "__name__", "")
    is_torchs = any(fn is getattr(owner, name, None) for owner in _TORCH)
    is_known = name in _SAME_ON_ALL_DEVICES or has_aten_tag(name, torch.Tag.pointwise, torch.Tag.reduction)
    tensors = tensors_among(flat)
    is_half = any(t.torch_dtype.itemsize == 2 for t in tensors)
    if not (is_torchs and is_known) or name in _OTHERWISE_ON_META or (is_half and name in _NORMS):
        return None
    devices = {t.device for t in tensors}
    static = all(type(s) is int for t in tensors for s in t.shape)
    if len(devices) != 1 or not static or any(isinstance(v, (Device, torch.device, *SYMBOLIC_TYPES)) for v in flat):
        return None
    return to_torch_device(tensors[0].device)


_templates: dict[Hashable, Template | NeedsAutograd] = {}
_TEMPLATE_LIMIT = 10_000


def template_for(fn: Callable, args: tuple, kwargs: dict, wanted: Sequence[bool]) -> Template:
    """The template of a call; `wanted` says which outputs have a cotangent. Raises NeedsAutograd."""
    flat, spec = tree_flatten((args, kwargs))
    key = call_key((fn, tuple(wanted)), flat, spec)
    found = _templates.get(key) if key is not None else None
    if found is None:
        try:
            found = _recorded(fn, flat, spec, wanted)
        except NeedsAutograd as reason:
            found = reason
        except (NotImplementedError, RuntimeError) as e:
            if "derivative for" not in str(e) and not asks_for_values(e):
                raise
            found = NeedsAutograd(str(e))  # torch's autograd, which has values, runs it, or refuses it as in eager
        if key is not None:
            if len(_templates) >= _TEMPLATE_LIMIT:
                _templates.clear()
            _templates[key] = found
    if isinstance(found, NeedsAutograd):
        raise found
    return found


def _default_saving() -> Any:
    """Saved tensors are kept as they are inside, whatever hooks the user has set around the call."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def _recorded(fn: Callable, flat: list, spec: Any, wanted: Sequence[bool]) -> Template:
    """The template of a call, from meta tensors where they do, else from fake ones."""
    device = _meta_stands_for(fn, flat)
    if device is not None:
        try:
            return _careful(fn, flat, spec, wanted, device)
        except (NeedsAutograd, NotImplementedError, RuntimeError):
            pass  # fake tensors may do, and say why where they do not
    return _careful(fn, flat, spec, wanted)


def _careful(
    fn: Callable, flat: list, spec: Any, wanted: Sequence[bool], device: torch.device | None = None
) -> Template:
    """A template that is good for all strides that inputs of unknown layout may have; `device` as for `_record`.

    A call that takes another path for other strides (attention picks its kernel by them) keeps the one for row-major
    inputs, which is what nearly all are; its kernels take any strides.
    """
    plain = _record(fn, flat, spec, wanted, device, row_major=True)
    if all(not isinstance(v, TensorProxy) or v.layout is not None or v.ndim == 0 for v in flat):
        return plain
    try:
        careful = _record(fn, flat, spec, wanted, device, row_major=False)
    except (NeedsAutograd, RuntimeError, ValueError):
        return plain
    operations = _operations(careful)
    reads_strides = torch.ops.aten.as_strided.default in operations
    return careful if operations == _operations(plain) and not reads_strides else plain


def _operations(template: Template) -> list[Any]:
    """What a template computes, copies for the sake of strides left out."""
    strides_only = (torch.ops.aten.clone.default, torch.ops.aten.contiguous.default)
    return [n.op for n in (*(template.forward or ()), *template.backward) if n.op not in strides_only]


def _record(
    fn: Callable, flat: list, spec: Any, wanted: Sequence[bool], device: torch.device | None, *, row_major: bool
) -> Template:
    """device: what meta tensors stand for; None to record on fake tensors."""
    recorder = _Recorder(device)
    fakes: dict[str, torch.Tensor] = {}
    # Some operations draw random numbers even when run on fake tensors.
    unseeded = torch.random.fork_rng(devices=())
    no_modes = torch._C.DisableTorchFunction()  # a mode that traces must not see what happens here
    with (
        no_modes,
        fake_mode() if device is None else nullcontext(),
        quiet_autocast(),
        torch.enable_grad(),
        _default_saving(),
        torch.autograd.set_detect_anomaly(False),  # which reads gradients to find NaN in them
        unseeded,
        symbolic_dispatch(flat),
    ):

        def real(leaf: Any) -> Any:
            if not isinstance(leaf, TensorProxy):
                return to_real_leaf(leaf)
            if leaf.name not in fakes:
                fake = to_fake(leaf, on_meta=device is not None)
                fake = fake if row_major or leaf.layout is not None else with_other_strides(fake)
                fakes[leaf.name] = fake.requires_grad_(leaf.requires_grad)
                recorder.enter(fakes[leaf.name])
            return fakes[leaf.name]

        real_args, real_kwargs = tree_unflatten([real(v) for v in flat], spec)
        recorder.n_inputs = len(fakes)
        with recorder:
            result = fn(*real_args, **real_kwargs)
        outs = [o for o in tree_flatten(result)[0] if isinstance(o, torch.Tensor)]
        cotangents = [with_other_strides(o) if w else None for o, w in zip(outs, wanted, strict=True)]
        first_backward = len(recorder.nodes)
        cotangent_refs = [recorder.enter(c) if c is not None else None for c in cotangents]
        output_refs = [recorder.ref_of(o) for o in outs]
        inputs = [f for f in fakes.values() if f.requires_grad]
        pairs = [(o, c) for o, c in zip(outs, cotangents, strict=True) if c is not None and o.requires_grad]
        grads: Sequence[Any] = [None] * len(inputs)
        if pairs:
            with recorder:
                grads = torch.autograd.grad([p[0] for p in pairs], inputs, [p[1] for p in pairs], allow_unused=True)
    grad_refs = tuple(None if g is None else recorder.ref_of(g) for g in grads)
    forward, backward = recorder.nodes[:first_backward], recorder.nodes[first_backward:]
    return finished_template(len(fakes), output_refs, cotangent_refs, forward, backward, grad_refs)


# Emission


def _emit_nodes(trace: TraceCtx, nodes: Sequence[TemplateNode], env: dict[int, Any]) -> None:
    for node in nodes:

        def value(v: Any) -> Any:
            return env[v.n] if isinstance(v, Ref) else v

        def result(v: Any, node: TemplateNode = node) -> Any:
            if not isinstance(v, Ref):
                return v
            meta = node.metas[v.n]
            env[v.n] = TensorProxy(trace.make_name(prefix="t"), shape=meta.shape, dtype=meta.dtype, device=meta.device)
            return env[v.n]

        args, kwargs = tree_map(value, node.args), tree_map(value, node.kwargs)
        if node.op._schema.is_mutable:
            trace.emit(prims.redrawn, (args[0], node.op, args[1:], kwargs), {}, tree_map(result, node.outs))
        else:
            trace.emit(symbol_for(node.op), args, kwargs, tree_map(result, node.outs))


Pullback = Callable[[Sequence[Any]], list[tuple[TensorProxy, Any]]]


def auto_vjp(node: BoundSymbol, args: tuple, kwargs: dict) -> tuple[Any, Pullback]:
    """Emits the forward of a node; gives its outputs and a function from cotangents to (input, gradient) pairs."""
    fn = node.sym.torch_fn
    assert fn is not None
    trace = get_tracectx()
    inputs = _distinct_tensors((args, kwargs))
    outs = _output_tensors(node)
    wanted = [o.requires_grad for o in outs]
    try:
        template = template_for(fn, args, kwargs, wanted)
    except NeedsAutograd:
        return _autograd_call(trace, node, args, kwargs, inputs, outs)
    env: dict[int, Any] = dict(enumerate(inputs))
    if template.forward is None:
        trace.emit(node.sym, args, kwargs, node.output, call_ctx=node.call_ctx)
    else:
        _emit_nodes(trace, template.forward, env)
    refs = template.outputs[: template.n_outputs]
    result = node.output
    if template.forward is not None:
        result = _rename_outputs(trace, node, outs, refs, env)
    for o, ref in zip(outs, refs, strict=True):
        env[ref.n] = o

    def pullback(cotangents: Sequence[Any]) -> list[tuple[TensorProxy, Any]]:
        played = template
        present = [c is not None and w for c, w in zip(cotangents, wanted, strict=True)]
        if present != wanted and template.forward is None:
            played = template_for(fn, args, kwargs, present)
        trace = get_tracectx()
        local = dict(env)
        if played.forward is None:
            for o, ref in zip(outs, played.outputs[: played.n_outputs], strict=True):
                local[ref.n] = o
        else:
            played = template
        for o, c, ref in zip(outs, cotangents, played.outputs[played.n_outputs :], strict=True):
            if ref.n >= 0:
                local[ref.n] = c if c is not None else zeros_for(trace, o)
        _emit_nodes(trace, played.backward, local)
        tracked = [p for p in inputs if p.requires_grad]
        return [(p, None if r is None else local[r.n]) for p, r in zip(tracked, played.grads, strict=True)]

    return result, pullback


def operator_vjp(node: BoundSymbol) -> Pullback:
    """`auto_vjp` of an executor's operator, whose function may be out of autograd's reach: UnsupportedOpError says so.
    """
    fn, sym = node.sym.torch_fn, node.sym
    advice = "give it one: register_implementation(op, op, vjp=...)"
    try:
        template = template_for(fn, node.args, node.kwargs, [p.requires_grad for p in _output_tensors(node)])  # type: ignore[arg-type]
    except NeedsAutograd:
        template = None
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as e:
        raise UnsupportedOpError(
            f"the operator {sym.name} of the executor {sym.executor.name} has no gradient rule, and autograd cannot "
            f"follow its function ({e}); {advice}"
        ) from e
    if template is not None and not any(template.grads):
        raise UnsupportedOpError(
            f"the operator {sym.name} of the executor {sym.executor.name} has no gradient rule, and its function gives "
            f"a result that autograd does not track; {advice}"
        )
    return auto_vjp(node, node.args, node.kwargs)[1]


def _output_tensors(node: BoundSymbol) -> list[TensorProxy]:
    return [o for o in node.flat_outs if isinstance(o, TensorProxy)]


def _rename_outputs(trace: TraceCtx, node: BoundSymbol, outs: list, refs: list, env: dict[int, Any]) -> Any:
    """Gives the template's results the names of the node's outputs."""
    names: dict[str, Any] = {}
    extra = []
    for o, ref in zip(outs, refs, strict=True):
        made = env[ref.n]
        if made.name in names or ref.n < 0 or not _made_here(trace, made, node):
            extra.append((o, made))
        else:
            names[made.name] = o
    start = len(trace.bound_symbols)
    while start > 0 and not any(o.name in names for o in trace.bound_symbols[start - 1].flat_proxy_outs):
        start -= 1
    wanted = set(names)
    first = start
    while wanted and first > 0:
        first -= 1
        wanted -= {o.name for o in trace.bound_symbols[first].flat_proxy_outs}
    for k in range(first, len(trace.bound_symbols)):
        trace.bound_symbols[k] = trace.bound_symbols[k].renamed(names)
    for n, value in list(env.items()):
        if getattr(value, "name", None) in names:
            env[n] = names[value.name]
    for o, made in extra:
        trace.emit(symbol_for(torch.ops.aten.alias.default), (names.get(made.name, made),), {}, o)
    return node.output


def _made_here(trace: TraceCtx, p: TensorProxy, node: BoundSymbol) -> bool:
    return all(p.name != a.name for a in node.flat_proxy_args)


def zeros_for(trace: TraceCtx, p: TensorProxy) -> TensorProxy:
    """A tensor of zeros like `p`."""
    out = p.replace(name=trace.make_name(prefix="t"), requires_grad=False, layout=None)
    kwargs = {"dtype": p.torch_dtype, "device": torch.device(p.device.device_str())}
    trace.emit(symbol_for(torch.zeros), (p.shape,), kwargs, out)
    return out


def _distinct_tensors(x: Any) -> list[TensorProxy]:
    return list({p.name: p for p in tree_flatten(x)[0] if isinstance(p, TensorProxy)}.values())


# Operations that only torch's autograd can differentiate


class AutogradGraph:
    """What torch's autograd keeps between the forward and the backward of one opaque call."""

    def __init__(self, inputs: list[torch.Tensor], outs: list[torch.Tensor]):
        self.inputs, self.outs = inputs, outs

    def grads(self, cotangents: Sequence[Any]) -> list[Any]:
        pairs = [(o, c) for o, c in zip(self.outs, cotangents, strict=True) if c is not None and o.requires_grad]
        if not pairs:
            return [torch.zeros_like(i) for i in self.inputs]
        found = torch.autograd.grad(
            [p[0] for p in pairs], self.inputs, [p[1] for p in pairs], allow_unused=True, retain_graph=True
        )
        return [torch.zeros_like(i) if g is None else g for i, g in zip(self.inputs, found, strict=True)]


def _run_autograd_call(fn: Callable, args: tuple, kwargs: dict, tracked: tuple) -> tuple[Any, AutogradGraph]:
    leaves: dict[int, torch.Tensor] = {}
    flat, spec = tree_flatten((args, kwargs))
    wanted = {id(t) for t in tracked}

    def leaf(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or id(t) not in wanted:
            return t
        if id(t) not in leaves:
            leaves[id(t)] = t.detach().requires_grad_()
        return leaves[id(t)]

    args, kwargs = tree_unflatten([leaf(v) for v in flat], spec)
    with torch.enable_grad():
        result = fn(*args, **kwargs)
    outs = [o for o in tree_flatten(result)[0] if isinstance(o, torch.Tensor)]
    detached = tree_map(lambda o: o.detach() if isinstance(o, torch.Tensor) else o, result)
    return detached, AutogradGraph([leaves[id(t)] for t in tracked], outs)


autograd_call = make_prim(
    "AUTOGRAD_CALL", "autograd_call", meta=None, python_impl=_run_autograd_call, traits=Traits(is_barrier=True)
)
random_autograd_call = make_prim(
    "RANDOM_AUTOGRAD_CALL", "random_autograd_call", meta=None, python_impl=_run_autograd_call,
    traits=Traits(is_barrier=True, is_random=True),
)  # fmt: skip
autograd_backward = make_prim(
    "AUTOGRAD_BACKWARD", "autograd_backward", meta=None,
    python_impl=lambda graph, cotangents: graph.grads(cotangents), traits=Traits(is_barrier=True),
)  # fmt: skip


def _autograd_call(
    trace: TraceCtx, node: BoundSymbol, args: tuple, kwargs: dict, inputs: list, outs: list
) -> tuple[Any, Pullback]:
    tracked = [p for p in inputs if p.requires_grad]
    graph = AnyProxy(None, name=trace.make_name(prefix="graph"))
    call = random_autograd_call if node.sym.traits.is_random else autograd_call
    trace.emit(call, (node.sym.torch_fn, args, kwargs, tuple(tracked)), {}, (node.output, graph))

    def pullback(cotangents: Sequence[Any]) -> list[tuple[TensorProxy, Any]]:
        trace = get_tracectx()
        grads = [p.replace(name=trace.make_name(prefix="t"), requires_grad=False, layout=None) for p in tracked]
        trace.emit(autograd_backward, (graph, tuple(cotangents)), {}, list(grads))
        return list(zip(tracked, grads, strict=True))

    return node.output, pullback


def backward_origin(node: BoundSymbol) -> Any:
    """The origin of what a node's gradient is made of: the node's line and tags, and BACKWARD."""
    return origin(node.origin, add_tags=(BACKWARD,), pass_name="autodiff")
