"""What a compiled callable remembers, under the path that users import."""

from thunder.core.options import CACHE_OPTIONS as CACHE_OPTIONS
from thunder.core.options import SHARP_EDGES_OPTIONS as SHARP_EDGES_OPTIONS
from thunder.frontend.records import CompileData as CompileData
from thunder.frontend.records import CompileStats as CompileStats
