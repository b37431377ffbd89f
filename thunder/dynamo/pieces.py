"""Compiles the pieces of a graph: the whole graph where that works, else what does, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from thunder.core.errors import TraceVerificationError, UnsupportedOpError
from thunder.core.log import get_logger
from thunder.dynamo.splitter import Piece, body_nodes, connect, extract, parent_module, partition
from thunder.dynamo.support import Reasons, close_regions, failed_to_compile, probe_graph
from thunder.dynamo.utils import CompiledFunction, CompilerType, SplitReasonType, has_symbolic_input
from thunder.extend.registry import resolve_executors
from thunder.frontend.capture import CaptureSettings, CompiledGraph
from thunder.frontend.lowering import example_value
from thunder.frontend.records import CompileData, CompileStats
from thunder.pipeline import Program

_log = get_logger("split")

# A piece smaller than this is not worth the seconds that Inductor takes.
_INDUCTOR_MIN_NODES = 8
# So many nodes of one graph are looked for one by one; after that the piece in question is run as it is.
_MAX_SEARCHES = 16


class ThunderPiece:
    """A piece that thunder runs, with what `thunder.last_traces` and its kin ask for."""

    def __init__(
        self, gm: fx.GraphModule, settings: CaptureSettings, data: CompileData, examples: Sequence[Any], **how: Any
    ):
        self._lc_cd = data
        self._lc_cs = CompileStats()
        self._lc_transforms = list(data.transforms)
        self._gm = gm
        self._told = settings
        settings = replace(settings, on_compile=self._compiled, on_run=self._ran)
        self._graph = CompiledGraph(gm, settings, examples, **how)

    def _compiled(self, graph: CompiledGraph, program: Program) -> None:
        self._lc_cs.cache_misses += 1
        self._lc_cs.programs.append(program)
        self._lc_cs.last_program = program
        self._told.on_compile(graph, program)

    def _ran(self, program: Program) -> None:
        self._lc_cs.last_program = program
        self._told.on_run(program)

    def __call__(self, *args: Any) -> Any:
        self._lc_cs.calls += 1
        try:
            return self._graph(*args)
        except UnsupportedOpError as e:
            # Raised before anything has run, by compiling for inputs that share memory in a new way.
            _log.debug("a call runs eagerly: %s", e)
            return self._gm.forward(*args)


class _PieceModule(torch.nn.Module):
    """A compiled piece as a submodule."""

    def __init__(self, fn: Callable):
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


class _LazyInductor:
    """A piece compiled by Inductor at its first call, under guards of its own."""

    def __init__(self, gm: fx.GraphModule):
        self._fn = torch.compile(gm, backend="inductor", dynamic=True if has_symbolic_input(gm) else None)

    def __call__(self, *args: Any) -> Any:
        return self._fn(*args)


@dataclass(eq=False)
class SplitProgram:
    """A compiled graph.

    original, split: the pieces as called graph modules, and as compiled ones.
    entry: what is called with the graph's inputs.
    """

    pieces: list[Piece]
    compiled: dict[Piece, CompiledFunction]
    reasons: Reasons
    original: fx.GraphModule
    split: fx.GraphModule
    entry: Callable = field(init=False)

    def __post_init__(self) -> None:
        self.entry = self._call

    def _call(self, *args: Any) -> Any:
        grad_enabled = torch.is_grad_enabled()
        try:
            return self.split.forward(*args)
        except BaseException:
            torch._C._set_grad_enabled(grad_enabled)
            raise


class PieceCompiler:
    """Compiles one graph for `ThunderCompiler`."""

    def __init__(
        self, gm: fx.GraphModule, examples: Sequence[Any], settings: CaptureSettings, data: CompileData, fallback: str
    ):
        self.gm, self.examples, self.settings, self.data, self.fallback = gm, list(examples), settings, data, fallback
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.grad_at: dict[fx.Node, bool] = {}
        self._done: dict[tuple, ThunderPiece] = {}
        self._searches = 0

    def compile(self) -> SplitProgram:
        """The compiled graph. Raises what a user's transform or executor raises, and TraceVerificationError."""
        try:
            whole = ThunderPiece(self.gm, self.settings, self.data, self.examples)
        except TraceVerificationError:
            raise
        except Exception as e:
            self._blame_user(e)
            _log.debug("the graph is split: %s: %s", type(e).__name__, e)
            return self._compile_pieces()
        return self._single(whole)

    def _blame_user(self, e: Exception) -> None:
        """Raises `e` again if it goes away without the transforms and executors that were given."""
        plain = replace(self.settings, transforms=(), executors=resolve_executors(()))
        if not self.settings.transforms and len(plain.executors) == len(self.settings.executors):
            return
        try:
            CompiledGraph(self.gm, replace(plain, on_compile=_ignore), self.examples)
        except Exception:
            return
        raise e

    def _single(self, whole: ThunderPiece) -> SplitProgram:
        result = next(n for n in self.gm.graph.nodes if n.op == "output")
        piece = Piece(body_nodes(self.gm), True, self.placeholders, list(result.all_input_nodes), self.gm)
        program = SplitProgram(
            [piece], {piece: CompiledFunction(whole, CompilerType.THUNDER)}, {}, *self._wrapped(whole)
        )
        program.entry = whole
        return program

    def _wrapped(self, whole: ThunderPiece) -> tuple[fx.GraphModule, fx.GraphModule]:
        modules = []
        for module in (self.gm, _PieceModule(whole)):
            graph = fx.Graph()
            inputs = tuple(graph.node_copy(n) for n in self.placeholders)
            graph.output(graph.call_module("thunder_0", inputs))
            modules.append(fx.GraphModule({"thunder_0": module}, graph))
        return modules[0], modules[1]

    # Pieces

    def _compile_pieces(self) -> SplitProgram:
        probe = probe_graph(self.gm, self.settings.executors, self.examples)
        self.grad_at = probe.grad_at
        nodes = body_nodes(self.gm)
        reasons = close_regions(nodes, probe.reasons)
        while True:
            pieces = partition(self.gm, reasons)
            connect(self.gm, pieces)
            found = self._first_failure(pieces)
            if found is None:
                break
            reasons = close_regions(nodes, {**reasons, **found})
        return self._assemble(pieces, reasons)

    def _first_failure(self, pieces: Sequence[Piece]) -> Reasons | None:
        """Compiles the supported pieces; the nodes to blame if one fails, None if all are compiled."""
        for piece in pieces:
            if not piece.is_supported or self._key(piece) in self._done:
                continue
            try:
                self._done[self._key(piece)] = self._compile_piece(piece)
            except TraceVerificationError:
                raise
            except Exception as e:
                return self._culprits(piece, e)
        return None

    @staticmethod
    def _key(piece: Piece) -> tuple:
        return (tuple(piece.nodes), tuple(piece.outputs))

    def _compile_piece(self, piece: Piece) -> ThunderPiece:
        assert piece.module is not None
        given = dict(zip(self.placeholders, self.examples, strict=True))
        examples = [given.get(n, example_value(n)) for n in piece.inputs]
        return ThunderPiece(piece.module, self.settings, self.data, examples, grad_enabled=self.grad_at[piece.nodes[0]])

    def _culprits(self, piece: Piece, e: Exception) -> Reasons:
        """The node without which a piece compiles: the last of the shortest beginning that fails. Tries O(log n)."""
        self._searches += 1
        if self._searches > _MAX_SEARCHES:
            return {n: failed_to_compile(n, e) for n in piece.nodes}
        low, high = 0, len(piece.nodes)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._compile_piece(self._beginning(piece, middle))
                low = middle
            except TraceVerificationError:
                raise
            except Exception as inner:
                high, e = middle, inner
        return {piece.nodes[high - 1]: failed_to_compile(piece.nodes[high - 1], e)}

    def _beginning(self, piece: Piece, count: int) -> Piece:
        nodes = piece.nodes[:count]
        later = {n for node in piece.nodes[count:] for n in node.all_input_nodes} | set(piece.outputs)
        outputs = [n for n in nodes if n in later]
        return Piece(nodes, True, piece.inputs, outputs, extract(self.gm, nodes, piece.inputs, outputs))

    def _assemble(self, pieces: list[Piece], reasons: Reasons) -> SplitProgram:
        compiled: dict[Piece, CompiledFunction] = {}
        names = []
        for index, piece in enumerate(pieces):
            fn = self._compiled_function(piece, reasons)
            compiled[piece] = fn
            kind = {
                CompilerType.THUNDER: "thunder",
                CompilerType.TORCH_INDUCTOR: "inductor",
                CompilerType.EAGER: "eager",
            }
            names.append(f"{kind[fn.compiler]}_{index}")
        original = parent_module(self.gm, pieces, names)
        split = parent_module(self.gm, pieces, names)
        for piece, name in zip(pieces, names, strict=True):
            if compiled[piece].compiler is not CompilerType.EAGER:
                setattr(split, name, _PieceModule(compiled[piece].compiled_fn))
        return SplitProgram(pieces, compiled, reasons, original, split)

    def _compiled_function(self, piece: Piece, reasons: Reasons) -> CompiledFunction:
        if piece.is_supported:
            return CompiledFunction(self._done[self._key(piece)], CompilerType.THUNDER)
        assert piece.module is not None
        if self._wants_inductor(piece, reasons):
            return CompiledFunction(_LazyInductor(piece.module), CompilerType.TORCH_INDUCTOR)
        return CompiledFunction(piece.module, CompilerType.EAGER)

    def _wants_inductor(self, piece: Piece, reasons: Reasons) -> bool:
        if self.fallback != "auto":
            return self.fallback == "inductor"
        in_region = any(reasons[n].reason_type is SplitReasonType.UNSUPPORTED_NODE for n in piece.nodes if n in reasons)
        return not in_region and len(piece.nodes) >= _INDUCTOR_MIN_NODES


def _ignore(graph: CompiledGraph, program: Program) -> None:
    """No one is told of an attempt."""
