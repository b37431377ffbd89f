"""Executors that come with thunder."""

from thunder.executors.torchex import ex as _torch_executor
from thunder.extend.executor import Executor


def get_torch_executor() -> Executor:
    """The executor that runs what no other one claims, by torch."""
    return _torch_executor


def get_nvfuser_executor() -> None:
    """None: nvFuser is not part of this build."""


def nvfuser_available() -> bool:
    """Whether nvFuser can be used: it is not part of this build."""
    return False
