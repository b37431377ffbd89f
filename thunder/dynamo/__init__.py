"""thunder as a backend of torch.compile, and `thunderfx`."""

from thunder.dynamo.compiler import ThunderCompiler, ThunderFXCompiledObject, thunder_backend, thunderfx
from thunder.dynamo.utils import SplitReason, SplitReasonType, SubgraphInfo

__all__ = [
    "SplitReason", "SplitReasonType", "SubgraphInfo", "ThunderCompiler", "ThunderFXCompiledObject", "thunder_backend",
    "thunderfx",
]  # fmt: skip
