"""A source-to-source compiler for PyTorch: programs captured, shown, differentiated and run as readable Python."""

from thunder import clang, numpy, torch
from thunder.__about__ import __version__
from thunder.core import devices, dtypes, prims
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.dtypes import (
    bfloat16,
    bool8,
    complex32,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from thunder.core.log import configure_from_env
from thunder.core.options import CACHE_OPTIONS, SHARP_EDGES_OPTIONS, DebugOptions
from thunder.core.proxies import (
    AnyProxy,
    ComplexProxy,
    FloatProxy,
    IntegerProxy,
    NumberProxy,
    Proxy,
    StringProxy,
    TensorProxy,
)
from thunder.core.trace import TraceCtx
from thunder.core.transform_base import Transform
from thunder.core.transforms.function_transforms import grad
from thunder.executors.custom_op_ex import custom_op_ex as custom_op_executor
from thunder.executors.inductorex import torch_compile_ex as torch_compile_executor
from thunder.executors.pythonex import ex as pythonex
from thunder.executors.sdpaex import sdpa_ex as sdpa_executor
from thunder.executors.torchex import ex as pytorch_executor
from thunder.extend import (
    Executor,
    add_executor_lists,
    get_all_executors,
    get_always_executors,
    get_default_executors,
    get_executor,
    resolve_executors,
)
from thunder.frontend.module import ThunderModule
from thunder.frontend.records import CompileData, CompileStats
from thunder.frontend.tracer import trace
from thunder.introspection import (
    cache_hits,
    cache_misses,
    cache_option,
    compile_data,
    compile_stats,
    get_auto_registered_torch_op_names,
    last_backward_traces,
    last_compile_options,
    last_prologue_traces,
    last_traces,
    list_transforms,
)
from thunder.jit import jit
from thunder.recipes.compile import compile
from thunder.recipes.recipe import Plugin, Recipe

configure_from_env()

# Executors of other projects, which are not in this build.
nvfuser_executor = cudnn_executor = apex_executor = None

__all__ = [
    "AnyProxy", "CACHE_OPTIONS", "CompileData", "CompileStats", "ComplexProxy", "DebugOptions", "Executor",
    "FloatProxy", "IntegerProxy", "NumberProxy", "Plugin", "Proxy", "Recipe", "SHARP_EDGES_OPTIONS", "StringProxy",
    "TensorProxy", "ThunderModule", "TraceCtx", "Transform", "__version__", "add_executor_lists", "bfloat16", "bool8",
    "cache_hits", "cache_misses", "cache_option", "clang", "compile", "compile_data", "compile_data_and_stats",
    "compile_stats", "complex128", "complex32", "complex64", "custom_op_executor", "devices", "dtypes", "float16",
    "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "get_all_executors",
    "get_always_executors", "get_auto_registered_torch_op_names", "get_default_executors", "get_executor", "grad",
    "int16", "int32", "int64", "int8", "jit", "last_backward_traces", "last_compile_options", "last_prologue_traces",
    "last_traces", "list_transforms", "numpy", "prims", "pythonex", "pytorch_executor", "resolve_executors",
    "sdpa_executor", "torch", "torch_compile_executor", "trace", "uint8",
]  # fmt: skip
