"""What is private in Inductor, and in the symbolic sizes that it compiles with, and used here."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from thunder.core.torch_compat import FakeTensorMode, enable_python_dispatcher, late_module

__all__ = ["SymbolicNumbers", "call_compiled", "compile_with_inductor", "holds_for", "load_inductor_artifact"]


class SymbolicNumbers:
    """Ints of one compilation that stand for others, too, with the conditions that its decisions put on them.

    Args:
        values: what the numbers are now; decisions are taken by these.
        are_sizes: which of them are sizes of at least 2, as all sizes are that Dynamo has symbols for.

    Attributes:
        numbers: a `torch.SymInt` for each value.
        fake_mode: makes fake tensors whose shapes and strides are expressions of the numbers.
    """

    def __init__(self, values: Sequence[int], are_sizes: Sequence[bool]):
        shapes = late_module("torch.fx.experimental.symbolic_shapes")
        source_named = late_module("torch._dynamo.source").ConstantSource
        self._env = shapes.ShapeEnv()
        self.fake_mode = FakeTensorMode(shape_env=self._env)
        self.numbers: list[torch.SymInt] = []
        for n, (value, is_size) in enumerate(zip(values, are_sizes, strict=True)):
            source = source_named(f"n{n}")
            make = self._env.create_symbol if is_size and value > 1 else self._env.create_unspecified_symbol
            symbol = make(value, source, dynamic_dim=shapes.DimDynamic.DYNAMIC)
            self.numbers.append(self._env.create_symintnode(symbol, hint=value, source=source))

    @property
    def condition(self) -> str:
        """For which other values the decisions taken so far are right, for `holds_for`; "" for all."""
        return self._env.produce_guards_expression(self.numbers) or ""


def holds_for(condition: str, values: Sequence[int]) -> bool:
    """Whether a condition that `SymbolicNumbers` gave holds for the values."""
    if not condition:
        return True
    return late_module("torch.fx.experimental.symbolic_shapes").ShapeEnv().evaluate_guards_expression(condition, values)


def compile_with_inductor(
    fn: Callable, inputs: Sequence[Any], fake_mode: FakeTensorMode, mode: str | None = None
) -> tuple[Callable[..., Any], bytes | None, Callable[[], None]]:
    """`fn` compiled by Inductor for inputs with the metadata, strides included, of `inputs`.

    Args:
        fn: a function of ints and tensors that returns a flat list of tensors and writes to none.
        inputs: fake tensors of `fake_mode`, and the numbers of the `SymbolicNumbers` whose mode it is.
        mode: as that of `torch.compile`, such as "max-autotune-no-cudagraphs".

    Returns: (a callable that gives a sequence of tensors, the same as bytes for `load_inductor_artifact`, or None where
        this program cannot be kept, what must be called before either is used: it waits for C++ compilers).
    """
    inductor = late_module("torch._inductor")
    make_fx = late_module("torch.fx.experimental.proxy_tensor").make_fx
    is_symbolic = any(isinstance(x, torch.SymInt) for x in inputs)
    with torch.no_grad(), torch._C._DisableAutocast(), _background_compilers(inputs) as finish:
        with fake_mode, enable_python_dispatcher() if is_symbolic else nullcontext():
            gm = make_fx(fn)(*inputs)
        for node in gm.graph.output_node().args[0] if is_symbolic else ():
            node.meta["example_value"] = node.meta["val"]  # where `standalone_compile` looks for the mode
        options = {} if mode is None else {"config_patches": inductor.list_mode_options(mode)}
        artifact = inductor.standalone_compile(gm, inputs, dynamic_shapes="from_graph", options=options)
        return artifact, _artifact_bytes(artifact), finish


def _artifact_bytes(artifact: Any) -> bytes | None:
    if not artifact.is_saveable():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "artifact")
        artifact.save(path=path, format="binary")
        with open(path, "rb") as f:
            return f.read()


def load_inductor_artifact(content: bytes, inputs: Sequence[Any]) -> tuple[Callable[..., Any], Callable[[], None]]:
    """The callable that `compile_with_inductor` gave as bytes, and what must be called before it is used.

    Raises whatever torch does if the bytes are not its own.
    """
    inductor = late_module("torch._inductor")
    with tempfile.TemporaryDirectory() as folder, _background_compilers(inputs) as finish:
        path = os.path.join(folder, "artifact")
        with open(path, "wb") as f:
            f.write(content)
        return inductor.CompiledArtifact.load(path=path, format="binary"), finish


_first_calls = threading.Lock()


def call_compiled(
    compiled: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[Sequence[torch.Tensor], Callable[[list], Any]]:
    """The results of a callable that Inductor gave, and a faster one that gives the same, out of a list of inputs.

    The second empties the list, and frees what nobody else holds at its last use.

    What torch puts around Inductor's code takes several times as long as a small kernel, and nothing of it is needed
    for functions that write to no input. Where this first call shows that it passes inputs and results on as they are,
    the second callable is Inductor's code itself; it must be called with autograd and autocast off.
    """
    graphs = late_module("torch._inductor.output_code").CompiledFxGraph
    thread = threading.get_ident()
    seen: list[tuple[Any, list, Any]] = []
    with _first_calls:  # the method read here is torch's, not another thread's watch
        call = graphs.__call__

        def watched(graph: Any, args: Any) -> Any:
            given = list(args)
            results = call(graph, args)
            if threading.get_ident() == thread:
                seen.append((graph, given, results))
            return results

        graphs.__call__ = watched
        try:
            outputs = compiled(*inputs)
        finally:
            graphs.__call__ = call
    if len(seen) != 1:
        return outputs, _taking_a_list(compiled)
    graph, given, results = seen[0]
    code = getattr(graph, "current_callable", None)
    if code is None or not (_same(given, inputs) and _same(results, outputs)):
        return outputs, _taking_a_list(compiled)
    return outputs, functools.partial(_run_code, code, compiled)


def _taking_a_list(fn: Callable[..., Any]) -> Callable[[list], Any]:
    """`fn` with its arguments in a list, which is emptied before it runs."""

    def run(inputs: list) -> Any:
        given = tuple(inputs)
        inputs.clear()
        return fn(*given)

    return run


def _run_code(code: Callable[[list], Any], owner: Any, inputs: list) -> Any:
    """Inductor's code, which takes its inputs out of a list. Dropping `owner` would end what the code runs on."""
    return code(inputs)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


_waiting = threading.local()


@functools.cache
def _leave_compilers_running() -> None:
    """Makes Inductor, where `_waiting.calls` is a list, enter there its waiting for compilers instead of waiting."""
    owner = late_module("torch._inductor.async_compile").AsyncCompile
    wait = owner.wait

    @functools.wraps(wait)
    def wait_or_not(self: Any, scope: dict[str, Any]) -> None:
        calls = getattr(_waiting, "calls", None)
        if calls is None:
            wait(self, scope)
        else:
            calls.append(functools.partial(wait, self, scope))

    owner.wait = wait_or_not


@contextmanager
def _background_compilers(inputs: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """In this block and this thread, Inductor's C++ compilers are started, and what it gives waits for them.

    Kernels of other devices are waited for here: Inductor looks at them while it compiles.
    """
    calls: list[Callable[[], None]] = []

    def finish() -> None:
        while calls:
            calls.pop()()

    if any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in inputs):
        yield finish
        return
    _leave_compilers_running()
    _waiting.calls = calls
    try:
        yield finish
    finally:
        _waiting.calls = None
