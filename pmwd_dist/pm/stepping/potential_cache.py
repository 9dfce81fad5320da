"""Potentials of the last n steps, reused in the backward pass; memory is independent of the number of steps.

They are integers, the bits of the values, and have no derivatives: the force is differentiated at the particles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.ops import unify_varying
from pmwd_dist.config import Config
from pmwd_dist.ops.stencil import gradient_at
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm import gravity
from pmwd_dist.pm.gravity import num_force_meshes
from pmwd_dist.pm.paint import halo_widths

Stored = int | Literal["auto"]

# Potentials stored by "auto". Their number is limited, so that memory does not grow with the number of steps.
_MOST = 10
# Size of the cache on a device below which "auto" does not limit it further [bytes].
_SMALL, _SMALL_ON_CPUS = 2**28, 2**25
# Size of a larger cache [numbers a particle]; the second and the third on GPUs with at most as many cells as particles,
# and on several devices.
_NUMBERS, _NUMBERS_ON_GPU, _NUMBERS_DIVIDED = 6, 9, 3
# Memory of a gradient on one GPU with as many cells as particles without potentials [numbers a particle], and the share
# of the memory for arrays that it may take with them.
_OTHERS_ON_GPU, _SHARE = 18, 0.95
# Memory of a gradient on one of several GPUs, with at most as many cells as particles [numbers a particle]: upper
# limit, particles, and each painted cell, as XLA plans it.
_BOUND, _PARTICLES_DIVIDED, _PAINTED = 30, 15.5, 4


def stored_potentials(
    wanted: Stored, steps: int, config: Config, dtype: Any, platform: str | None = None, *, sums: bool = False
) -> int:
    """Number of last steps whose potentials a gradient stores: the wanted one, or by the platform for "auto".

    With sums on the way only a small cache: their particles take its memory, and their backward pass knows the
    potential of a step.
    """
    if wanted != "auto":
        return min(wanted, steps)
    platform = platform or config.decomposition.platform
    steps, devices = min(steps, _MOST), config.decomposition.size
    cells, particles = (math.prod(shape) for shape in (config.mesh_shape, config.particle_shape))
    numbers = num_force_meshes(config) * cells  # of one step
    if steps * numbers / devices * np.dtype(dtype).itemsize <= (_SMALL_ON_CPUS if platform == "cpu" else _SMALL):
        return steps
    if sums:
        return 0
    more = cells <= particles and platform == "gpu"
    if devices > 1:
        limit = _spare_when_divided(config) if more else _NUMBERS_DIVIDED
    else:
        limit = _spare(config, dtype) if more else _NUMBERS
    return min(steps, limit * particles // numbers)


def _spare(config: Config, dtype: Any) -> int:
    """Numbers a particle within the memory of the GPU of a gradient."""
    numbers = _SHARE * _memory(config) / (math.prod(config.particle_shape) * np.dtype(dtype).itemsize)
    return int(max(0, min(numbers - _OTHERS_ON_GPU, _NUMBERS_ON_GPU)))


def _memory(config: Config) -> float:
    """Memory for arrays of the first device [bytes], infinite where it is not known."""
    if config.decomposition.is_abstract:
        return math.inf
    return (config.decomposition.mesh.devices.flat[0].memory_stats() or {}).get("bytes_limit", math.inf)


def _spare_when_divided(config: Config) -> int:
    """Numbers a particle within the memory limit of a gradient on several GPUs, which depends on the halos."""
    parts, widths = (*config.decomposition.pdims, 1), halo_widths(config)
    blocks = config.decomposition.block(config.mesh_shape)
    painted = math.prod(1 + 2 * (widths[-1] + 1) * (p > 1) / n for n, p in zip(blocks, parts, strict=True))
    choice, pencils = len(widths) > 1, parts[1] > 1
    return max(0, int(_BOUND - _PARTICLES_DIVIDED - _PAINTED * painted - choice - pencils))


def checked(stored: Any) -> Stored:
    """Check a number of stored potentials, or "auto"."""
    if isinstance(stored, str) and stored != "auto":
        raise ArgumentError("stored_potentials", stored, 'must be a number of steps or "auto"', 'pass "auto" or 0')
    return "auto" if isinstance(stored, str) else whole_number(stored, "stored_potentials", least=0)


class Entry(NamedTuple):
    """The potential of a step in the cache.

    Args:
      potentials: cache of `empty`, or empty: for each force mesh, the potentials of the stored steps.
      slot: index of the step in the cache.
    """

    potentials: tuple[Array, ...]
    slot: Array


def entry_spec(config: Config) -> Entry:
    """Partition specs of an entry."""
    return Entry(cache_spec(config), P())  # type: ignore[arg-type]


def cache_spec(config: Config) -> P:
    """Partition spec of the potentials of an entry."""
    return P(None, *config.decomposition.spec)


def empty(count: int, disp: Float[Array, "px py pz 3"], config: Config) -> tuple[Array, ...]:
    """Empty cache for a number of steps, shape (count, nx, ny, nz) for each force mesh."""
    if count == 0:
        return ()
    decomposition, number = config.decomposition, num_force_meshes(config)

    def block(disp: Array) -> tuple[Array, ...]:
        zeros = jnp.zeros((count, *decomposition.block(config.mesh_shape)), _integers(disp.dtype))
        return (unify_varying(zeros, disp)[0],) * number

    return decomposition.shard_map(block, decomposition.spec, (cache_spec(config),) * number)(disp)


def size(potentials: tuple[Array, ...]) -> int:
    """Number of stored steps."""
    return len(potentials[0]) if potentials else 0


def _integers(dtype: Any) -> Any:
    return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def of_meshes(meshes: Sequence[Array]) -> Entry:
    """Entry of a cache that holds these force meshes alone."""
    bits = (jax.lax.bitcast_convert_type(mesh, _integers(mesh.dtype))[None] for mesh in meshes)
    return Entry(tuple(bits), jnp.zeros((), jnp.int32))


def updated(entry: Entry, meshes: Sequence[Array]) -> tuple[Array, ...]:
    """Cache with the force meshes of a step."""
    if not entry.potentials:
        return ()
    bits = (jax.lax.bitcast_convert_type(mesh, _integers(mesh.dtype)) for mesh in meshes)
    pairs = zip(entry.potentials, bits, strict=True)
    return tuple(jax.lax.dynamic_update_index_in_dim(old, new, entry.slot, 0) for old, new in pairs)


def meshes(entry: Entry) -> tuple[Array, ...]:
    """The force meshes of a step."""
    bits = (jax.lax.dynamic_index_in_dim(b, entry.slot, keepdims=False) for b in entry.potentials)
    return tuple(jax.lax.bitcast_convert_type(b, np.dtype(f"float{8 * b.dtype.itemsize}")) for b in bits)


def sources(entry: Entry, config: Config) -> tuple[Array, ...]:
    """Operands of `cached_force`: the force meshes of a step, or the cache itself if they are read in place."""
    if _in_place(config):
        return *entry.potentials, entry.slot
    return meshes(entry)


def cached_force(config: Config, halo: int, *sources: Array) -> Array:
    """`gravity.padded_force` from the cache; not differentiable."""
    if _in_place(config):
        potentials, index = sources
        return gradient_at(potentials, index, config.cell_size)
    return gravity.padded_force(config, halo, *sources)


def _in_place(config: Config) -> bool:
    """Whether the force is read from the cache itself, which needs no halo."""
    return config.decomposition.size == 1 and config.gradient != "spectral"
