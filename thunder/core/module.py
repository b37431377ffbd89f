"""ThunderModule, under the path that users import."""

from thunder.core.transform_base import Transform as Transform
from thunder.frontend.module import ThunderModule as ThunderModule
from thunder.frontend.module import get_thunder_module as get_thunder_module
