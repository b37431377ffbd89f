"""The executors that fuse with Inductor, under the path that users import them from."""

from thunder.core.symbol import BoundSymbol as BoundSymbol
from thunder.executors.fusion_regions import Region as Region
from thunder.executors.inductorex import TorchCompileExecutor as TorchCompileExecutor
from thunder.executors.inductorex import make_compiled as make_compiled
from thunder.executors.inductorex import required_ops as required_ops
from thunder.executors.inductorex import torch_compile_cat_ex as torch_compile_cat_ex
from thunder.executors.inductorex import torch_compile_ex as torch_compile_ex
from thunder.executors.inductorex import torch_compile_xentropy_ex as torch_compile_xentropy_ex
from thunder.extend.executor import FusionExecutor as FusionExecutor
from thunder.extend.registry import register_executor as register_executor
