"""Potentials of the last steps, stored for the backward pass; memory does not depend on the number of steps.

They are held as integers, the bits of their values, and have no derivatives of their own: derivatives of the force are
taken at the particles.
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

# Bytes of a device that are nothing: ten potentials of 188^3 cells in single precision, or of 94^3 on CPUs. There a
# gradient of 128^3 with ten potentials and the second derivatives of 2LPT would take 142 bytes a particle, not 106.
_SMALL, _SMALL_ON_CPUS = 2**28, 2**25
# Potentials that "auto" keeps if they are small. No more, so that memory is the same for ten steps and for a thousand.
_MOST = 10
# Numbers a particle that "auto" keeps of large ones, by device: a gradient then takes 108 bytes a particle on one GPU
# with as many cells (112 with all ten).
_NUMBERS, _NUMBERS_ON_GPU, _NUMBERS_DIVIDED = 6, 9, 3
# Numbers a particle that a gradient takes on one of several GPUs, with as many cells: at most, for particles, and for
# each painted cell, by XLA's plans for an H100.
_BOUND, _PARTICLES_DIVIDED, _PAINTED = 30, 15.5, 4


def stored_potentials(wanted: Stored, steps: int, config: Config, dtype: Any, platform: str | None = None) -> int:
    """The number of steps, the last ones, whose potentials a gradient keeps.

    Args:
      wanted: the number, or "auto".
      steps: of the run.
      config: the simulation.
      dtype: of the particles.
      platform: of the devices; default: of those of the configuration.
    """
    if wanted != "auto":
        return min(wanted, steps)
    cells = num_force_meshes(config) * np.prod(config.mesh_shape, dtype=np.int64)
    few = min(steps, _MOST)
    if few * _bytes_of_device(cells, config, dtype) <= _small(config, platform):
        return few
    particles = np.prod(config.particle_shape, dtype=np.int64)
    more = cells <= num_force_meshes(config) * particles and (platform or config.decomposition.platform) == "gpu"
    if config.decomposition.size > 1:
        numbers = _spare_when_divided(config) if more else _NUMBERS_DIVIDED
    else:
        numbers = _NUMBERS_ON_GPU if more else _NUMBERS
    return min(few, int(numbers * particles // cells))


def _spare_when_divided(config: Config) -> int:
    """Numbers a particle up to the bound of a gradient on several GPUs, which depends on the halos."""
    parts, widths = (*config.decomposition.pdims, 1), halo_widths(config)
    blocks = [n / p for n, p in zip(config.mesh_shape, parts, strict=True)]
    painted = math.prod(1 + 2 * (widths[-1] + 1) * (p > 1) / n for n, p in zip(blocks, parts, strict=True))
    choice, pencils = len(widths) > 1, parts[1] > 1
    return max(0, int(_BOUND - _PARTICLES_DIVIDED - _PAINTED * painted - choice - pencils))


def checked(stored: Any) -> Stored:
    """A number of potentials to keep, or "auto".

    Raises:
      ValueError: anything else.
    """
    if isinstance(stored, str) and stored != "auto":
        raise ArgumentError("stored_potentials", stored, 'must be a number of steps or "auto"', 'pass "auto" or 0')
    return "auto" if isinstance(stored, str) else whole_number(stored, "stored_potentials", least=0)


def _small(config: Config, platform: str | None) -> int:
    return _SMALL_ON_CPUS if (platform or config.decomposition.platform) == "cpu" else _SMALL


def _bytes_of_device(count: Any, config: Config, dtype: Any) -> float:
    return float(count) / config.decomposition.size * np.dtype(dtype).itemsize


class Entry(NamedTuple):
    """The potential of a step in the cache.

    Args:
      potentials: for each force mesh, the potentials of all steps that are stored, from `empty`, or nothing.
      slot: index of the step among them.
    """

    potentials: tuple[Array, ...]
    slot: Array


def entry_spec(entry: Entry, config: Config) -> Any:
    """Partition of an entry."""
    return Entry((_spec(config),) * len(entry.potentials), P())  # type: ignore[arg-type]


def empty(count: int, disp: Float[Array, "px py pz 3"], config: Config) -> tuple[Array, ...]:
    """A cache for the potentials of so many steps, shape (count, nx, ny, nz) for each force mesh."""
    if count == 0:
        return ()
    decomposition, number = config.decomposition, num_force_meshes(config)
    parts = (*decomposition.pdims, 1)
    cells = tuple(n // p for n, p in zip(config.mesh_shape, parts, strict=True))

    def block(disp: Array) -> tuple[Array, ...]:
        zeros = jnp.zeros((count, *cells), _integers(disp.dtype))
        return (unify_varying(zeros, disp)[0],) * number

    return decomposition.shard_map(block, decomposition.spec, (_spec(config),) * number)(disp)


def _spec(config: Config) -> P:
    return P(None, *config.decomposition.spec)


def _integers(dtype: Any) -> Any:
    return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")


# --- on local blocks, inside shard_map ---------------------------------------------------------------------


def stored(entry: Entry, meshes: Sequence[Array]) -> tuple[Array, ...]:
    """The cache with the force meshes of a step."""
    if not entry.potentials:
        return ()
    bits = (jax.lax.bitcast_convert_type(mesh, _integers(mesh.dtype)) for mesh in meshes)
    pairs = zip(entry.potentials, bits, strict=True)
    return tuple(jax.lax.dynamic_update_index_in_dim(old, new, entry.slot, 0) for old, new in pairs)


def sources(entry: Entry, config: Config) -> tuple[Array, ...]:
    """What `padded_force` reads: the force meshes of a step, or where they are read in place, the cache."""
    if _in_place(config):
        return *entry.potentials, entry.slot
    bits = (jax.lax.dynamic_index_in_dim(b, entry.slot, keepdims=False) for b in entry.potentials)
    return tuple(jax.lax.bitcast_convert_type(b, np.dtype(f"float{8 * b.dtype.itemsize}")) for b in bits)


def padded_force(config: Config, halo: int, *sources: Array) -> Array:
    """`gravity.padded_force` of a stored step; not differentiable."""
    if _in_place(config):
        potentials, index = sources
        return gradient_at(potentials, index, config.cell_size)
    return gravity.padded_force(config, halo, *sources)


def _in_place(config: Config) -> bool:
    """Whether the force is read from the cache itself: a potential that needs no halo."""
    return config.decomposition.size == 1 and config.gradient != "spectral"
