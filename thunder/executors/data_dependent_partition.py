"""The search for fusion regions, under the path that users import it from."""

from thunder.executors.fusion_regions import Region as Region
from thunder.executors.fusion_regions import RegionSearch as RegionSearch
from thunder.executors.fusion_regions import fuse_bound_symbols as fuse_bound_symbols
