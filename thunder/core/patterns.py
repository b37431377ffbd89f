"""Finding groups of nodes in a trace: sequences of conditions, met by nodes that can be moved together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.fx.operator_schemas import get_signature_for_torch_op

from thunder.core.dataflow import producers
from thunder.core.errors import ThunderTypeError, ThunderValueError, UnsupportedOpError
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx

UNBOUNDED = -1
Match = list[tuple[int, BoundSymbol]]


def bind_names(bsym: BoundSymbol) -> SimpleNamespace:
    """The arguments of a node by name, defaults included: `bind_names(node).dim` is what the node was given as `dim`.

    Names are those of the symbol's rule, else of the torch schema that the arguments fit.
    """
    for signature in _signatures(bsym.sym):
        try:
            bound = signature.bind(*bsym.args, **bsym.kwargs)
        except TypeError:
            continue
        bound.apply_defaults()
        return SimpleNamespace(**bound.arguments)
    raise ThunderTypeError(f"the arguments of {bsym.sym.name} have no names: no signature of it is known")


def _signatures(sym: Symbol) -> Iterator[inspect.Signature]:
    if sym.meta is not None:
        signature = inspect.signature(sym.meta)
        if all(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
            yield signature
    fn = sym.torch_fn
    packet = getattr(torch.ops.aten, getattr(fn, "__name__", ""), None)
    for op in (fn, *(getattr(packet, name) for name in (packet.overloads() if packet is not None else ()))):
        yield from get_signature_for_torch_op(op) or () if op is not None else ()


@dataclass(frozen=True)
class _Step:
    matcher: Callable
    min_times: int
    max_times: int


class Pattern:
    """Conditions on nodes, in order: `Pattern().match(is_linear).match(is_gelu, min_times=0)`.

    A condition is `matcher(bsym, previously_matched=[...], match_ctx={...})` and returns (whether the node fits, a dict
    to add to `match_ctx` for the conditions after it). `previously_matched` holds (position, node) pairs.
    """

    def __init__(self) -> None:
        self.matchers: list[_Step] = []

    def match(self, matcher: Callable, *, min_times: int = 1, max_times: int = 1) -> Pattern:
        """Adds a condition that `min_times` to `max_times` nodes fit; -1: any number. Returns the pattern.

        Raises: UnsupportedOpError if the first condition may be met by no node.
        """
        if min_times < 0 or (max_times != UNBOUNDED and max_times < max(min_times, 1)):
            raise ThunderValueError(f"min_times={min_times} and max_times={max_times} leave nothing to match")
        if not self.matchers and min_times == 0:
            raise UnsupportedOpError("the first condition of a pattern must be met by a node")
        self.matchers.append(_Step(matcher, min_times, max_times))
        return self

    def __call__(
        self, trace: TraceCtx, *, restricted_indices: Collection[int] | None = None, window: int = 5
    ) -> list[Match]:
        """Matches that share no node, each a list of (position, node), in the order of their first nodes.

        Nodes of a match need not be neighbours, but no other node may both read from and feed them, so that they can be
        moved together.

        Args:
            restricted_indices: only nodes at these positions may be matched.
            window: how many positions after the last matched node the next one may be.
        """
        search = _Search(self.matchers, trace, restricted_indices, window)
        found: list[Match] = []
        for start in range(len(trace.bound_symbols)):
            match = search.starting_at(start)
            if match:
                search.used.update(n for n, _ in match)
                found.append(match)
        return found


class _Search:
    """One pass over one trace."""

    def __init__(self, steps: list[_Step], trace: TraceCtx, allowed: Collection[int] | None, window: int):
        self.steps, self.nodes, self.window = steps, trace.bound_symbols, window
        self.allowed = None if allowed is None else frozenset(allowed)
        self.used: set[int] = set()
        made = producers(trace, _map_to_numbers=True)
        self.parents = [
            {made[p] for p in node.flat_proxy_args if p in made and made[p] != n} for n, node in enumerate(self.nodes)
        ]

    def starting_at(self, start: int) -> Match | None:
        """The longest match whose first node is at `start`."""
        return self._extend([], {}, 0, 0, range(start, start + 1)) if self.steps else None

    def _extend(self, match: Match, context: dict, step: int, times: int, positions: range) -> Match | None:
        """`match` completed from condition `step` on, which `times` nodes fit so far; None where it cannot be."""
        if step == len(self.steps):
            return match if self._can_be_moved([n for n, _ in match]) else None
        current = self.steps[step]
        if current.max_times == UNBOUNDED or times < current.max_times:
            for n in positions:
                if n >= len(self.nodes) or not self._is_free(n):
                    continue
                fits, more = current.matcher(self.nodes[n], previously_matched=list(match), match_ctx=dict(context))
                if not fits:
                    continue
                after = range(n + 1, n + 1 + self.window)
                longer = [*match, (n, self.nodes[n])]
                complete = self._extend(longer, {**context, **more}, step, times + 1, after)
                if complete is not None:
                    return complete
        return self._extend(match, context, step + 1, 0, positions) if times >= current.min_times else None

    def _is_free(self, n: int) -> bool:
        return n not in self.used and (self.allowed is None or n in self.allowed)

    def _can_be_moved(self, positions: list[int]) -> bool:
        """Whether no node outside depends on one of `positions` and is needed by another."""
        inside = set(positions)
        between: set[int] = set()
        for n in range(positions[0] + 1, positions[-1] + 1):
            depends = any(p in inside or p in between for p in self.parents[n])
            if n not in inside and depends:
                between.add(n)
            elif n in inside and self.parents[n] & between:
                return False
        return True
