"""A fuser that needs no compiler: it shows which nodes are fused, and runs them one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import has_aten_tag
from thunder.executors.fusion_regions import Region, RegionFusionExecutor, run_nodes
from thunder.torch.fakes import to_real_leaf


def uncompiled(fn: Callable, *_: Any) -> tuple[Callable, None, Callable]:
    """Stands for `compile_with_inductor`: the code of a region is the region."""
    return fn, None, lambda: None


def is_pointwise(node: BoundSymbol) -> bool:
    """Whether aten declares the node's operation elementwise."""
    if node.sym.torch_fn is None or not all(isinstance(o, TensorProxy) for o in node.flat_outs):
        return False
    return has_aten_tag(node.sym.base_name, torch.Tag.pointwise)


def call_node(node: BoundSymbol, env: dict[str, Any]) -> Any:
    """The results of a node on the values in `env`."""

    def real(x: Any) -> Any:
        return env[x.name] if isinstance(x, Proxy) else to_real_leaf(x)

    args, kwargs = tree_map(real, (node.args, node.kwargs))
    return node.sym.torch_fn(*args, **kwargs)


class ElementwiseFuser(RegionFusionExecutor):
    """Fuses elementwise operations; `regions` lists the regions made, `calls` the names of those run."""

    def __init__(self, name: Hashable = "elementwise_fuser", min_region_size: int = 1):
        super().__init__(name)
        self.min_region_size = min_region_size
        self.regions: list[Region] = []
        self.calls: list[str] = []

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        return is_pointwise(bsym)

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        self.regions.append(region)
        name = f"Elementwise{fusion_counter}"

        def run(*values: Any) -> list[Any]:
            self.calls.append(name)
            env = dict(zip((p.name for p in region.inputs), values, strict=True))
            run_nodes(region.bsyms, env, call_node)
            return [env[o.name] for o in region.outputs]

        return self.register_temporary_operation(
            name, run, inputs=region.inputs, outputs=region.outputs, bsyms=region.bsyms
        )
