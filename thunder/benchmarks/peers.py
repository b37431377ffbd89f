"""Who is compared: eager PyTorch, torch.compile with three backends, and thunder with two lists of executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from thunder.extend.registry import get_executor
from thunder.jit import jit


@dataclass(frozen=True)
class Peer:
    """A way to compile.

    compiler: from a module or function to a callable that is used in its place.
    executor: the thunder executor without which the peer does not exist.
    """

    name: str
    compiler: Callable
    executor: str | None = None

    @property
    def is_available(self) -> bool:
        return self.executor is None or get_executor(self.executor) is not None

    @property
    def is_thunder(self) -> bool:
        return self.name.startswith("thunder")


def _itself(fn: Callable) -> Callable:
    return fn


def _with_backend(backend: str) -> Callable:
    return lambda fn: torch.compile(fn, backend=backend, fullgraph=True)


def _thunder_fused(fn: Callable) -> Callable:
    return jit(fn, executors=["torchcompile"])


EAGER, DYNAMO, AOT, INDUCTOR = "eager", "torch.compile[eager]", "torch.compile[aot_eager]", "torch.compile[inductor]"
THUNDER, THUNDER_FUSED = "thunder", "thunder[torchcompile]"

PEERS: dict[str, Peer] = {
    p.name: p
    for p in (
        Peer(EAGER, _itself),
        Peer(DYNAMO, _with_backend("eager")),
        Peer(AOT, _with_backend("aot_eager")),
        Peer(INDUCTOR, _with_backend("inductor")),
        # All executors named: the default list may come to include a fuser.
        Peer(THUNDER, lambda fn: jit(fn, executors=["torch", "python"])),
        Peer(THUNDER_FUSED, _thunder_fused, "torchcompile"),
    )
}


def available_peers() -> list[str]:
    """Names of the peers that this installation can run, in the order of the tables."""
    return [name for name, peer in PEERS.items() if peer.is_available]
