"""Who makes and who reads each proxy of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx


class ProxyDict:
    """A dict whose keys are proxies, compared by name."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __setitem__(self, key: Proxy, value: Any) -> None:
        self._values[key.name] = value

    def __getitem__(self, key: Proxy) -> Any:
        return self._values[key.name]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Proxy) and key.name in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"ProxyDict({self._values!r})"

    def append(self, key: Proxy, value: Any) -> None:
        """Adds `value` to the list under `key`, which is made where there is none."""
        self._values.setdefault(key.name, []).append(value)

    def remove(self, key: Proxy, value: Any) -> None:
        """Removes `value` from the list under `key`. ValueError if it is not there."""
        self._values[key.name].remove(value)

    def get(self, key: Proxy, default: Any = None) -> Any:
        """The value under `key`, else `default`."""
        return self._values.get(key.name, default)

    def get_by_name(self, name: str) -> Any:
        """The value under the proxy called `name`. KeyError if there is none."""
        return self._values[name]


def _nodes(trace_or_bsyms: TraceCtx | Sequence[BoundSymbol]) -> Sequence[BoundSymbol]:
    return trace_or_bsyms.bound_symbols if isinstance(trace_or_bsyms, TraceCtx) else trace_or_bsyms


def producers(trace_or_bsyms: TraceCtx | Sequence[BoundSymbol], *, _map_to_numbers: bool = False) -> ProxyDict:
    """From each proxy to the node that defines it; to the node's position with `_map_to_numbers`. O(nodes).

    A node that returns its argument as it is does not define it.
    """
    made = ProxyDict()
    for n, node in enumerate(_nodes(trace_or_bsyms)):
        for p in node.defined:
            made[p] = n if _map_to_numbers else node
    return made


def consumers(trace_or_bsyms: TraceCtx | Sequence[BoundSymbol], *, _map_to_numbers: bool = False) -> ProxyDict:
    """From each proxy that is read to the list of nodes (positions with `_map_to_numbers`) that read it. O(nodes)."""
    read = ProxyDict()
    for n, node in enumerate(_nodes(trace_or_bsyms)):
        for p in {p.name: p for p in node.flat_proxy_args}.values():
            read.append(p, n if _map_to_numbers else node)
    return read


def producers_and_consumers(trace_or_bsyms: TraceCtx | Sequence[BoundSymbol]) -> tuple[ProxyDict, ProxyDict]:
    """Both `producers` and `consumers`."""
    return producers(trace_or_bsyms), consumers(trace_or_bsyms)


def find_producer_symbols(
    trace: TraceCtx, proxies: Sequence[Proxy], stop_proxies: Sequence[Proxy]
) -> tuple[BoundSymbol, ...]:
    """The nodes that compute `proxies` from `stop_proxies` and from inputs, in the order of the trace. O(nodes)."""
    made, stops = producers(trace), {p.name for p in stop_proxies}
    found: dict[int, BoundSymbol] = {}
    waiting = [p for p in proxies if p.name not in stops]
    while waiting:
        p = waiting.pop()
        node = made.get(p)
        if node is None or id(node) in found:
            continue
        found[id(node)] = node
        waiting.extend(a for a in node.flat_proxy_args if a.name not in stops)
    return tuple(node for node in trace.bound_symbols if id(node) in found)


def order_proxies(bsyms: Sequence[BoundSymbol]) -> dict[str, int]:
    """Proxy names in the order in which they are first met, arguments of a node before its outputs, numbered from 0."""
    names = (p.name for b in bsyms for p in (*b.flat_proxy_args, *b.flat_proxy_outs))
    return {name: n for n, name in enumerate(dict.fromkeys(names))}


def canonicalize_proxies(bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """The nodes with each proxy named by when it is first met, p0, p1, ...: equal for programs that differ in names."""
    order = order_proxies(bsyms)
    proxies = {p.name: p for b in bsyms for p in (*b.flat_proxy_args, *b.flat_proxy_outs)}
    new = {name: proxies[name].replace(name=f"p{n}") for name, n in order.items()}
    return [b.renamed(new) for b in bsyms]
