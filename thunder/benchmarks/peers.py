"""Who is compared: eager PyTorch, torch.compile with its backends, thunder with several executors, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from thunder.extend.registry import get_executor
from thunder.jit import jit
from thunder.recipes import BaseRecipe
from thunder.transforms.cudagraph import CUDAGraphTransform


@dataclass(frozen=True)
class Peer:
    """A way to compile.

    compiler: from a module or function to a callable that is used in its place.
    executor: the thunder executor without which the peer does not exist.
    device: the only kind of device that it is for, or None.
    compiles_kernels: whether it runs compilers of kernels, whose code it keeps on disk.
    """

    name: str
    compiler: Callable
    executor: str | None = None
    device: str | None = None
    compiles_kernels: bool = False

    def is_available(self, device: str = "cpu") -> bool:
        return self.device in (None, device) and (self.executor is None or get_executor(self.executor) is not None)

    @property
    def is_thunder(self) -> bool:
        return self.name.startswith("thunder")


def _itself(fn: Callable) -> Callable:
    return fn


def _with_backend(backend: str) -> Callable:
    return lambda fn: torch.compile(fn, backend=backend, fullgraph=True)


def _reduce_overhead(fn: Callable) -> Callable:
    return torch.compile(fn, mode="reduce-overhead", fullgraph=True)


_RECIPE = BaseRecipe().setup_config()  # what `thunder.compile` fuses by


def _with_executor(name: str) -> Callable:
    return lambda fn: jit(fn, executors=[name], **_RECIPE)


def _with_graphs(fn: Callable) -> Callable:
    return jit(fn, executors=["torchcompile"], transforms=[CUDAGraphTransform()], **_RECIPE)


EAGER, DYNAMO, AOT, INDUCTOR = "eager", "torch.compile[eager]", "torch.compile[aot_eager]", "torch.compile[inductor]"
INDUCTOR_GRAPHS = "torch.compile[reduce-overhead]"
THUNDER, THUNDER_FUSED, THUNDER_GRAPHS = "thunder", "thunder[torchcompile]", "thunder[reduce-overhead]"

PEERS: dict[str, Peer] = {
    p.name: p
    for p in (
        Peer(EAGER, _itself),
        Peer(DYNAMO, _with_backend("eager")),
        Peer(AOT, _with_backend("aot_eager")),
        Peer(INDUCTOR, _with_backend("inductor"), compiles_kernels=True),
        # All executors named: the default list may come to include a fuser.
        Peer(THUNDER, lambda fn: jit(fn, executors=["torch", "python"])),
        Peer(THUNDER_FUSED, _with_executor("torchcompile"), "torchcompile", compiles_kernels=True),
        *(Peer(f"thunder[{name}]", _with_executor(name), name, "cuda") for name in ("nvfuser", "cudnn")),
        Peer(INDUCTOR_GRAPHS, _reduce_overhead, device="cuda", compiles_kernels=True),
        Peer(THUNDER_GRAPHS, _with_graphs, "torchcompile", "cuda", compiles_kernels=True),
    )
}


def available_peers(device: str = "cpu") -> list[str]:
    """Names of the peers that this installation can run on a kind of device, in the order of the tables."""
    return [name for name, peer in PEERS.items() if peer.is_available(device)]
