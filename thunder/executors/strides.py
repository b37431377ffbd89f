"""Strides of the values of a trace, and which are views, as far as it can be known before it runs."""

from __future__ import annotations

from typing import Any

from thunder.core.proxies import Layout, TensorProxy, tensors_among
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.sizes import without_guards
from thunder.core.symbol import BoundSymbol
from thunder.torch.fakes import TensorMeta, contiguous_strides, result_metadata


class PredictedStrides:
    """Grown node by node. Values have the strides that capture knows, or that fake tensors get; else row-major ones."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}
        self._copied: set[str] = set()

    def of(self, p: TensorProxy) -> tuple[int, ...]:
        """Of a value that a node seen before makes, or of an input."""
        if p.layout is not None:
            return tuple(p.layout.strides)
        return self._known.get(p.name) or contiguous_strides(p.shape)

    def copies(self, node: BoundSymbol) -> bool:
        """Whether results of a node seen before lie in memory of their own, as those of some `reshape` do."""
        return any(o.name in self._copied for o in tensors_among(node.flat_outs))

    def see(self, node: BoundSymbol) -> None:
        """Finds out about the results of a node; memoized over nodes with equal arguments."""
        if node.written:
            return
        made = tensors_among(node.flat_outs)
        given = [p.layout for p in tensors_among(node.flat_args)]
        if all(o.layout is not None for o in made) and None not in given:
            storages = {layout.storage for layout in given if layout is not None}
            self._copied.update(o.name for o in made if o.layout is not None and o.layout.storage not in storages)
            return
        if node.sym.is_fusion:
            for part in node.subsymbols:
                self.see(part)
            return
        if node.sym.torch_fn is None:
            return
        try:
            with without_guards([s for p in tensors_among(node.flat_args) for s in p.shape]):
                found = result_metadata(node.sym.torch_fn, *tree_map(self._with_layout, (node.args, node.kwargs)))
        except Exception:  # an operation may ask for what fake tensors do not have
            return
        results = [r for r in tree_flatten([found])[0] if isinstance(r, TensorMeta)]
        if len(results) == len(made):  # a node need not name all that its function gives
            for o, r in zip(made, results, strict=True):
                self._known[o.name] = r.strides
                if not r.is_view:
                    self._copied.add(o.name)

    def _with_layout(self, x: Any) -> Any:
        if not isinstance(x, TensorProxy) or x.layout is not None:
            return x
        return with_strides(x, self.of(x))


def with_strides(p: TensorProxy, strides: tuple[int, ...]) -> TensorProxy:
    """The value with these strides."""
    return p.replace(name=p.name, layout=Layout(0, strides))
