"""Primitives that draw random numbers. They advance torch's generator of the device, as torch's own calls do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import devices, dtypes
from thunder.core.baseutils import check
from thunder.core.errors import ThunderRuntimeError, UnsupportedOpError
from thunder.core.prims.base import make_prim
from thunder.core.prims.creation import _shaped
from thunder.core.prims.elementwise import new_tensor
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import OpTags, Traits
from thunder.core.tracing import get_tracectx

_RANDOM = Traits(is_random=True, is_differentiable=False)
_TAGS = (OpTags.RANDOM_OP,)


def _uniform_meta(shape: Sequence[Any], minval: Any, maxval: Any, *, device: Any, dtype: Any) -> TensorProxy:
    return _shaped(shape, device, dtype)


def _uniform(shape: Sequence[int], minval: Any, maxval: Any, *, device: Any, dtype: Any) -> torch.Tensor:
    made = torch.empty(tuple(shape), device=devices.to_torch_device(device), dtype=dtypes.to_torch_dtype(dtype))
    return made.uniform_(minval, maxval)


uniform = make_prim("UNIFORM", "uniform", meta=_uniform_meta, torch_fn=_uniform, traits=_RANDOM, tags=_TAGS)


def _philox_meta(
    shape: Sequence[Any], minval: Any, maxval: Any, *, device: Any, dtype: Any, seed: Any, offset: Any
) -> TensorProxy:
    return _shaped(shape, device, dtype)


def _uniform_philox(
    shape: Sequence[int], minval: Any, maxval: Any, *, device: Any, dtype: Any, seed: Any, offset: Any
) -> torch.Tensor:
    """Draws from a generator with the given state, leaving torch's own as it is."""
    where = devices.to_torch_device(device)
    generator = torch.Generator(where)
    if where.type == "cpu":
        generator.manual_seed(int(seed) * 0x9E3779B1 + int(offset))
    else:
        generator.manual_seed(int(seed))
        generator.set_offset(int(offset))
    made = torch.empty(tuple(shape), device=where, dtype=dtypes.to_torch_dtype(dtype))
    return made.uniform_(minval, maxval, generator=generator)


uniform_philox = make_prim(
    "UNIFORM_PHILOX", "uniform_philox", meta=_philox_meta, torch_fn=_uniform_philox,
    traits=Traits(is_differentiable=False),
)  # fmt: skip


def _rng_state_meta(seed: Any, offset: Any, device: Any) -> tuple[NumberProxy, NumberProxy]:
    trace = get_tracectx()
    made = [NumberProxy(trace.make_name(prefix="i"), python_type=int) for _ in range(2)]
    return made[0], made[1]


def _rng_state(seed: int | None, offset: int | None, device: Any) -> tuple[int, int]:
    """(seed, offset) before; the generator's offset moves on by 4, one draw for each thread."""
    where = devices.to_torch_device(device)
    if where.type != "cuda":
        raise UnsupportedOpError(f"the random state of {where} has no seed and offset")
    generator = torch.cuda.default_generators[where.index or 0]
    if seed is not None:
        generator.manual_seed(seed)
    if offset is not None:
        generator.set_offset(offset)
    before = generator.initial_seed(), generator.get_offset()
    generator.set_offset(before[1] + 4)
    return before


get_and_update_rng_state = make_prim(
    "GET_AND_UPDATE_RNG_STATE", "get_and_update_rng_state", meta=_rng_state_meta, torch_fn=_rng_state, traits=_RANDOM,
    tags=_TAGS,
)  # fmt: skip


def _randn(shape: Sequence[int], *, device: Any, dtype: Any) -> torch.Tensor:
    return torch.randn(tuple(shape), device=devices.to_torch_device(device), dtype=dtypes.to_torch_dtype(dtype))


randn = make_prim(
    "RANDN", "randn", meta=lambda shape, *, device, dtype: _shaped(shape, device, dtype), torch_fn=_randn,
    traits=_RANDOM, tags=_TAGS,
)  # fmt: skip


def _randint_meta(low: int, high: int, shape: Sequence[Any], *, device: Any, dtype: Any) -> TensorProxy:
    check(low < high, lambda: f"randint: there is no integer from {low} to below {high}", ThunderRuntimeError)
    return _shaped(shape, device, dtype)


def _randint(low: int, high: int, shape: Sequence[int], *, device: Any, dtype: Any) -> torch.Tensor:
    return torch.randint(
        low, high, tuple(shape), device=devices.to_torch_device(device), dtype=dtypes.to_torch_dtype(dtype)
    )


randint = make_prim("RANDINT", "randint", meta=_randint_meta, torch_fn=_randint, traits=_RANDOM, tags=_TAGS)


def _multinomial_meta(input: TensorProxy, num_samples: int, replacement: bool, seed: int | None = None) -> TensorProxy:
    check(input.ndim in (1, 2), lambda: f"multinomial takes one or two dims, not {input.ndim}", ThunderRuntimeError)
    return new_tensor((*input.shape[:-1], num_samples), like=input, dtype=dtypes.int64)


def _multinomial(input: torch.Tensor, num_samples: int, replacement: bool, seed: int | None = None) -> torch.Tensor:
    generator = None if seed is None else torch.Generator(input.device).manual_seed(seed)
    return torch.multinomial(input, num_samples, replacement, generator=generator)


multinomial = make_prim(
    "MULTINOMIAL", "multinomial", meta=_multinomial_meta, torch_fn=_multinomial, traits=_RANDOM, tags=_TAGS
)


def _bernoulli_meta(a: TensorProxy, /) -> TensorProxy:
    return new_tensor(a.shape, like=a)


bernoulli = make_prim(
    "BERNOULLI", "bernoulli", meta=_bernoulli_meta, torch_fn=torch.bernoulli, traits=_RANDOM, tags=_TAGS
)
bernoulli_mask = make_prim(
    "BERNOULLI_MASK", "bernoulli_mask", traits=_RANDOM, tags=_TAGS,
    meta=lambda a, /, p: new_tensor(a.shape, like=a),
    torch_fn=lambda a, p: torch.empty_like(a).bernoulli_(p),
)  # fmt: skip
bernoulli_mask.__dict__["__doc__"] = (
    "Ones with probability `p`, else zeros, in the layout of `a`: what dropout multiplies with."
)
