"""Which nodes of a Dynamo graph thunder can run: found by lowering them, with the rules that compilation uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from thunder.core.errors import TraceVerificationError, UnsupportedOpError
from thunder.core.proxies import AnyProxy, TensorProxy
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.torch_compat import HigherOrderOperator, is_functorch_value
from thunder.core.trace import TraceCtx
from thunder.core.tracing import tracectx
from thunder.dynamo.utils import SplitReason, SplitReasonType
from thunder.extend.executor import lookasides_of
from thunder.frontend.autocasting import AutocastState
from thunder.frontend.lowering import Lowering, changes_state, example_value, input_name

Reasons = dict[fx.Node, SplitReason]

_OPENING = ("increment", "enter", "push", "disable")
_CLOSING = ("decrement", "exit", "pop", "enable")


class SupportProbe(Lowering):
    """Lowers a graph into a scratch trace and goes on after a node that cannot be lowered.

    reasons: the nodes that failed, with the reason.
    grad_at: whether autograd is on where a node runs.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.reasons: Reasons = {}
        self.grad_at: dict[fx.Node, bool] = {}
        self._depth = 0

    def run(self, graph: fx.Graph, owner: torch.nn.Module, inputs: Sequence[Any]) -> Any:
        self._depth += 1
        try:
            return super().run(graph, owner, inputs)
        finally:
            self._depth -= 1

    def _node(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if self._depth > 1:
            return super()._node(node, env)
        self.grad_at[node] = self.grad_enabled
        try:
            result = super()._node(node, env)
            self._check_backward_body(node)
            return result
        except TraceVerificationError:
            raise
        except Exception as e:
            self.reasons[node] = _reason(node, e)
            self.grad_enabled = self.grad_at[node]
        return self._assumed(node, env)

    def _assumed(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        """Values for the results of a node that failed, so that the nodes which read them can be tried."""
        values = [env[n] for n in node.all_input_nodes]
        tracked = self.grad_enabled and any(isinstance(v, TensorProxy) and v.requires_grad for v in tree_iter(values))
        example = tree_map(lambda o: None if is_functorch_value(o) else o, example_value(node))
        if example is None:
            return AnyProxy(None, name=self.trace.unique_name(node.name))
        return self.output_proxies(example, node.name, tracked)

    def _check_backward_body(self, node: fx.Node) -> None:
        """A custom function's backward is lowered only when its gradient is built; whether it can be, is asked now."""
        if not isinstance(node.target, HigherOrderOperator) or node.target.name() != "autograd_function_apply":
            return
        body = node.graph.owning_module.get_submodule(str(node.args[1].target))  # type: ignore[union-attr]
        trace = TraceCtx()
        probe = Lowering(trace, grad_enabled=False, lookasides=self.lookasides)
        inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
        with tracectx(trace):
            probe.run(body.graph, body, [probe.input_proxy(example_value(n), input_name(n.name)) for n in inputs])


def _reason(node: fx.Node, e: Exception) -> SplitReason:
    name = _label(node)
    if node.op == "call_module" or _is_state_change(node) or _is_functorch(node):
        kind, info = SplitReasonType.UNSUPPORTED_NODE, f"{name} cannot be part of a trace"
    elif isinstance(node.target, HigherOrderOperator):
        kind, info = (
            SplitReasonType.MISSING_OP_SUPPORT,
            f"the operator {name}, or an operation inside, is not supported",
        )
    elif isinstance(e, UnsupportedOpError):
        kind, info = SplitReasonType.MISSING_OP_SUPPORT, f"{name} is not supported"
    else:
        kind, info = SplitReasonType.EXCEPTION_PROXY_THUNDER_OP, f"{name} could not be lowered"
    return SplitReason(kind, info, f"{type(e).__name__}: {e}", node.name)


def failed_to_compile(node: fx.Node, e: Exception) -> SplitReason:
    """The reason for a node that was lowered but that a later pass could not handle."""
    info = f"{_label(node)} could not be compiled"
    return SplitReason(SplitReasonType.EXCEPTION_META_THUNDER_OP, info, f"{type(e).__name__}: {e}", node.name)


def _label(node: fx.Node) -> str:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return target if target == node.name else f"{target} (node {node.name})"


def _is_functorch(node: fx.Node) -> bool:
    return any(is_functorch_value(o) for n in (node, *node.all_input_nodes) for o in tree_iter(example_value(n)))


def _is_state_change(node: fx.Node) -> bool:
    if node.op != "call_function" or not changes_state(node.target) or example_value(node) is not None:
        return False
    return not any(isinstance(o, torch.Tensor) for n in node.all_input_nodes for o in tree_iter(example_value(n)))


def _state_regions(nodes: Sequence[fx.Node], reasons: Reasons) -> Iterator[tuple[int, int]]:
    """First and last index of the regions in which torch is in a state that only eager execution can give it.

    A call that opens a state lasts to the one that closes it; of calls that do neither by name (`_sdpa_kernel`), each
    region is from the first to the last.
    """
    depth, start = 0, 0
    others: dict[Any, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        if node not in reasons or not _is_state_change(node):
            continue
        name = getattr(node.target, "__name__", "")
        if any(word in name for word in _CLOSING):
            depth = max(depth - 1, 0)
            if depth == 0:
                yield start, index
        elif any(word in name for word in _OPENING):
            start = index if depth == 0 else start
            depth += 1
        else:
            first, _ = others.get(node.target, (index, index))
            others[node.target] = (first, index)
    if depth:
        yield start, len(nodes) - 1
    yield from others.values()


def _linked_regions(nodes: Sequence[fx.Node]) -> Iterator[tuple[int, int]]:
    """Regions that a node opens and a node reading its result closes: autocast, inference mode."""
    position = {n: k for k, n in enumerate(nodes)}
    for index, node in enumerate(nodes):
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name in ("_enter_autocast", "_enter_inference_mode"):
            yield index, max((position[u] for u in node.users if u in position), default=len(nodes) - 1)


def close_regions(nodes: Sequence[fx.Node], reasons: Reasons) -> Reasons:
    """`reasons` with all nodes of the regions that cannot be cut and hold an unsupported node. O(nodes × regions)."""
    reasons = dict(reasons)
    changed = True
    while changed:
        changed = False
        for first, last in (*_state_regions(nodes, reasons), *_linked_regions(nodes)):
            region = nodes[first : last + 1]
            if not any(n in reasons for n in region):
                continue
            for n in region:
                if n not in reasons:
                    info = f"{_label(n)} stands in the region that {_label(nodes[first])} opens, which cannot be cut"
                    reasons[n] = SplitReason(SplitReasonType.UNSUPPORTED_NODE, info, None, n.name)
                    changed = True
    return reasons


def probe_graph(gm: fx.GraphModule, executors: Sequence[Any], example_inputs: Sequence[Any]) -> SupportProbe:
    """Tries to lower every node of a graph."""
    trace = TraceCtx(name="probe")
    probe = SupportProbe(
        trace,
        grad_enabled=torch.is_grad_enabled(),
        autocast=AutocastState.from_surroundings(),
        lookasides=lookasides_of(executors),
    )
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    inputs = []
    for node, example in zip(placeholders, example_inputs, strict=True):
        tracked = isinstance(example, torch.Tensor) and example.requires_grad
        inputs.append(probe.input_proxy(example_value(node), input_name(node.name), requires_grad=tracked))
    with tracectx(trace):
        probe.run(gm.graph, gm, inputs)
    return probe
