"""Regions as callables: compiled by Inductor for inputs of certain strides, or found on disk, or run node by node."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch

from thunder.core import devices
from thunder.core.inductor_compat import (
    SymbolicNumbers,
    call_compiled,
    compile_with_inductor,
    holds_for,
    load_inductor_artifact,
)
from thunder.core.log import get_logger
from thunder.core.proxies import Proxy, TensorProxy, tensors_among
from thunder.core.pytree import tree_map
from thunder.core.sizes import SYMBOLIC_TYPES, free_symbols, hint, size_expression, size_value
from thunder.core.symbol import BoundSymbol
from thunder.core.torch_compat import PLAIN_TENSORS, FakeTensorMode, likeness_check, storage_key
from thunder.executors.fusion_regions import numbers_among, run_nodes
from thunder.executors.order import may_share_memory
from thunder.executors.region_cache import DiskStore, default_store, machine_text, number_names
from thunder.torch.fakes import to_real_leaf

_log = get_logger("fusions")

_STORED_AS = "a line with the condition on the numbers, then the artifact"
Size = int | str  # a number, or an expression of the region's numbers as its text calls them
Run = Callable[[list], Sequence[torch.Tensor]]


class _Variant:
    """A region's code for inputs of certain strides, and for the numbers that a condition holds for.

    Usable when `finish()` has been called, which waits for compilers.
    """

    def __init__(
        self, compiled: Callable[..., Any], finish: Callable[[], None], condition: str, strides: list[tuple[Size, ...]]
    ):
        self.compiled, self.finish = compiled, finish
        self.condition, self.strides = condition, strides
        self.run: Run | None = None

    def fits(self, numbers: dict[str, int], strides: Sequence[tuple[int, ...]]) -> bool:
        """Whether the code is right for inputs like these."""
        if not holds_for(self.condition, list(numbers.values())):
            return False
        pairs = zip(self.strides, strides, strict=True)
        return all(tuple(size_value(s, numbers) for s in mine) == given for mine, given in pairs)


class RegionProgram:
    """A region as a callable on tensors, compiled when it first meets inputs with certain strides.

    Equal regions share one. Called with tensors of the region's shapes, dtypes and devices, after the numbers that
    these shapes are expressions of; gives a sequence of tensors, which are nobody else's memory unless the region's own
    views say so. One compilation serves all numbers for which its decisions are right, which is looked at once for each
    combination of numbers and strides.

    When more than `max_variants` compilations would be needed, or Inductor fails, the operations run one by one, with
    the same results; so they do on what compiled code is not for: subclasses of tensors, and lazily negated ones. Safe
    under threads.
    """

    max_variants = 8
    max_runs = 4096

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
        self.variants: list[_Variant] = []
        self.compile_count = self.load_count = 0
        self._tensors = tensors_among(inputs)
        names = number_names(inputs)
        self._number_names = list(names.values())
        found = numbers_among(nodes, inputs)
        facts = [found.get(name, (None, False)) for name in names]
        self._hints, self._are_sizes = [value for value, _ in facts], [is_size for _, is_size in facts]
        self._shapes = [_canonical(p.shape, names) for p in self._tensors]
        self._runs: dict[tuple, Run] = {}  # by numbers and strides
        self._newest: tuple[Callable[..., bool], Run] | None = None  # of these, with what tells that it fits
        self._store = store
        self._lock = threading.Lock()
        self._linked = _linked_names(self.nodes, [p.name for p in self._tensors], self.output_names)

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return self.run_list(list(inputs))

    def run_list(self, inputs: list) -> Sequence[torch.Tensor]:
        """The region's results; the list is emptied, and each tensor given up at its last use."""
        newest = self._newest
        if newest is not None and newest[0](*inputs):
            return newest[1](inputs)
        plain = PLAIN_TENSORS
        run = self._runs.get(
            tuple([t.stride() if type(t) in plain and not t.is_neg() else _number_key(t) for t in inputs])
        )
        return self._first_run(inputs) if run is None else run(inputs)

    def run_eagerly(self, *inputs: Any) -> list[torch.Tensor]:
        """The region's operations, one by one."""
        return self._run_list_eagerly(list(inputs))

    def _run_list_eagerly(self, inputs: list) -> list[torch.Tensor]:
        env: dict[str, Any] = dict(zip(self.input_names, inputs, strict=True))
        inputs.clear()
        run_nodes(self.nodes, env, _call, keep=self.output_names)
        return [env[name] for name in self.output_names]

    def compile_ahead(self, inputs: Sequence[Proxy], strides: Sequence[tuple]) -> None:
        """Starts to compile for inputs with these strides; the first run on such inputs waits until that is done.

        C++ compilers run beside what the caller does next, which may be to start other regions.

        Args:
            inputs: of this region, or of an equal one.
            strides: of the tensors among them; symbolic ones are expressions of the numbers among them.
        """
        names = number_names(inputs)
        numbers = dict(zip(self._number_names, self._hints, strict=True))
        expected = [_canonical(st, names) for st in strides]
        if None in self._hints or any(None in st for st in expected):
            return  # numbers that are known when the program runs
        given = [tuple(size_value(s, numbers) for s in st) for st in expected]
        with self._lock:
            if self._fitting(numbers, given) is None and not self._is_full:
                self._start(numbers, given, expected)

    def _first_run(self, inputs: list) -> Sequence[torch.Tensor]:
        count = len(self._number_names)
        tensors = inputs[count:]
        if any(type(t) not in PLAIN_TENSORS or t.is_neg() for t in tensors):
            return self._run_list_eagerly(inputs)
        if any(type(n) is not int for n in inputs[:count]):
            return self._run_list_eagerly(inputs)
        numbers = dict(zip(self._number_names, inputs, strict=False))
        strides = [t.stride() for t in tensors]
        with self._lock:
            variant = self._fitting(numbers, strides)
            if variant is None and self._is_full:
                return self._run_list_eagerly(inputs)
            run = self._usable(variant or self._start(numbers, strides), inputs)
            if len(self._runs) >= self.max_runs:
                self._runs.clear()
            self._runs[(*numbers.values(), *strides)] = run
            if tensors and not count:
                self._newest = likeness_check(tensors), run
        return run(inputs)

    @property
    def _is_full(self) -> bool:
        return len(self.variants) >= self.max_variants

    def _fitting(self, numbers: dict[str, int], strides: Sequence[tuple[int, ...]]) -> _Variant | None:
        return next((v for v in self.variants if v.fits(numbers, strides)), None)

    def _usable(self, variant: _Variant, inputs: list) -> Run:
        if variant.run is None:
            try:
                variant.finish()
                outputs, run = call_compiled(variant.compiled, inputs)
                shared = self._wrongly_shared(inputs[len(self._number_names) :], outputs)
                variant.run = _cloning(run, shared) if shared else run
            except Exception as e:
                variant.run = self._failed(e)
        return variant.run

    def _failed(self, e: Exception) -> Run:
        warnings.warn(
            f"Inductor could not compile a region, which runs uncompiled: {type(e).__name__}: {e}\n{self.text}",
            stacklevel=2,
        )
        _log.debug("Inductor failed", exc_info=True)
        return self._run_list_eagerly

    def _start(
        self,
        numbers: dict[str, int],
        strides: Sequence[tuple[int, ...]],
        expected: Sequence[tuple[Size, ...]] | None = None,
    ) -> _Variant:
        """Code from disk, or by Inductor and then to disk.

        expected: the strides as expressions, where they are known.
        """
        symbolic = SymbolicNumbers(list(numbers.values()), self._are_sizes) if numbers else None
        mode = FakeTensorMode() if symbolic is None else symbolic.fake_mode
        symbols = {} if symbolic is None else dict(zip(numbers, symbolic.numbers, strict=True))
        shapes = [tuple(size_value(s, symbols) for s in shape) for shape in self._shapes]
        if expected is None:
            wanted = [_stride_symbols(shape, given) for shape, given in zip(shapes, strides, strict=True)]
        else:
            wanted = [tuple(size_value(s, symbols) for s in st) for st in expected]
        own_names = {str(s): name for name, s in symbols.items()}
        found = [_canonical(st, own_names) for st in wanted]
        text = f"{self.text}\nstrides {', '.join(map(str, found))}\n{machine_text()}\nstored {_STORED_AS}"
        try:
            with mode:
                fakes = [_fake(p, *facts) for p, *facts in zip(self._tensors, shapes, wanted, strict=True)]
            inputs = [*symbols.values(), *fakes]
            stored, place = self._stored(text, list(numbers.values()))
            variant = None if stored is None else self._load(place, *stored, inputs, found)
            variant = variant or self._compile(place, inputs, symbolic, mode, found)
        except Exception as e:
            variant = _Variant(self.run_eagerly, lambda: None, "", found)
            variant.run = self._failed(e)
        self.variants.append(variant)
        return variant

    def _stored(self, text: str, numbers: list[int]) -> tuple[tuple[str, bytes] | None, str]:
        """What is on disk for these numbers, as a condition and code, and the text to keep it under."""
        store = self._store()
        place = text
        for n in range(self.max_variants if numbers else 1):
            place = f"{text}\ncondition {n}" if numbers else text
            content = None if store is None else store.load(place)
            if content is None:
                break
            condition, _, artifact = content.partition(b"\n")
            if holds_for(condition.decode(), numbers):
                return (condition.decode(), artifact), place
        return None, place

    def _load(self, place: str, condition: str, artifact: bytes, inputs: list, strides: list) -> _Variant | None:
        def discard() -> None:  # so that the next process compiles
            if (store := self._store()) is not None:
                store.discard(place)

        try:
            run, finish = load_inductor_artifact(artifact, inputs)
        except Exception as e:
            _log.debug("a stored region is of no use and is compiled again: %s: %s", type(e).__name__, e)
            discard()
            return None
        self.load_count += 1

        def finish_loading() -> None:
            try:
                finish()
            except Exception:
                discard()
                raise

        return _Variant(run, finish_loading, condition, strides)

    def _compile(
        self, place: str, inputs: list, symbolic: SymbolicNumbers | None, mode: FakeTensorMode, strides: list
    ) -> _Variant:
        run, artifact, wait = compile_with_inductor(self.run_eagerly, inputs, mode, self.mode)
        self.compile_count += 1
        condition = "" if symbolic is None else symbolic.condition

        def finish() -> None:
            wait()
            if artifact is not None and (store := self._store()) is not None:
                store.save(place, condition.encode() + b"\n" + artifact)

        return _Variant(run, finish, condition, strides)

    def _wrongly_shared(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[int]:
        """Positions of outputs in memory of an input or another output that the region's operations keep apart."""
        owner = {_storage(t): p.name for p, t in zip(self._tensors, tensors, strict=True)}
        wrong: list[int] = []
        for n, (name, o) in enumerate(zip(self.output_names, outputs, strict=True)):
            other = owner.setdefault(_storage(o), name)
            if other != name and self._linked[other] != self._linked[name]:
                wrong.append(n)
        return wrong


def _number_key(x: Any) -> int | None:
    return x if type(x) is int else None


def _canonical(sizes: Sequence[Any], names: dict[str, str]) -> tuple[Size, ...]:
    """Sizes with expressions of numbers that are called as in `names`; those of other numbers count as constants."""
    return tuple(
        size_expression(s, names) if isinstance(s, torch.SymInt) and names.keys() >= set(free_symbols(s)) else hint(s)
        for s in sizes
    )


def _fake(p: TensorProxy, shape: tuple, strides: tuple) -> torch.Tensor:
    device = devices.to_torch_device(p.device)
    return torch.empty_strided(shape, strides, dtype=p.torch_dtype, device=device)


def _stride_symbols(shape: Sequence[Any], strides: Sequence[int]) -> tuple[Any, ...]:
    """Strides as expressions of the sizes: each dim steps over those that lie closer together, where that is so by
    the numbers of now. Others are taken for constants.
    """
    found: list[Any] = list(strides)
    step: Any = 1
    for d in sorted((d for d, stride in enumerate(strides) if stride), key=lambda d: (strides[d], -d)):
        if hint(step) == strides[d]:
            found[d] = step
        step = found[d] * shape[d]
    return tuple(found)


def _storage(t: torch.Tensor) -> Hashable:
    return storage_key(t) if t.numel() else ("empty", id(t))


def _cloning(run: Run, positions: Collection[int]) -> Run:
    """`run`, with some of its outputs in memory of their own."""

    def call(inputs: list) -> Sequence[torch.Tensor]:
        return [o.clone() if n in positions else o for n, o in enumerate(run(inputs))]

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
        if isinstance(x, Proxy):
            return env[x.name]
        return size_value(size_expression(x), env) if isinstance(x, SYMBOLIC_TYPES) else to_real_leaf(x)

    args, kwargs = tree_map(real, (node.args, node.kwargs))
    return node.sym.torch_fn(*args, **kwargs)  # type: ignore[misc]
