"""What a program is made of: operations that thunder knows, fused regions, a trace as a graph, its memory."""

from thunder.examine.examination import CollectFunctionsUsed, Examination, examine
from thunder.examine.fusions import get_fusion_symbols, get_fusions
from thunder.examine.graph import make_trace_dot
from thunder.examine.memory_calculation import get_alloc_memory
from thunder.examine.step_memory import LineMemory, StepMemory, step_memory

__all__ = [
    "CollectFunctionsUsed", "Examination", "LineMemory", "StepMemory", "examine", "get_alloc_memory",
    "get_fusion_symbols", "get_fusions", "make_trace_dot", "step_memory",
]  # fmt: skip
