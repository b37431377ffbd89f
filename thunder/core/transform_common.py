"""Old homes of `Transform` and of passes."""

from thunder.core.dataflow import canonicalize_proxies as canonicalize_proxies
from thunder.core.dataflow import order_proxies as order_proxies
from thunder.core.transform_base import Transform as Transform
from thunder.core.transforms.cse import cse as cse
from thunder.core.transforms.dce import dce as dce
from thunder.core.transforms.dce import dce_bsyms as dce_bsyms
from thunder.core.transforms.rules import VJPDual as VJPDual
