"""What reverse mode keeps of a forward run instead of computing it again, within bounds that no number of steps moves.

Potentials of the last steps are held as whole numbers, the bits of their values: they have no derivatives of their own,
those of what is read from them are taken at the particles.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Integer

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.varying import unify_varying
from pmwd_dist.config import Config
from pmwd_dist.parallel.inputs import whole_number
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


def keeps_second_derivatives(config: Config, dtype: Any, platform: str | None = None) -> bool:
    """Whether a gradient keeps the six fields of 2LPT: where they are small, and no mesh that potentials would fill.

    Computed again they cost a step's transforms twice.
    """
    particles = np.prod(config.particle_shape, dtype=np.int64)
    cells = np.prod(config.mesh_shape, dtype=np.int64)
    count = max(6, _MOST * num_force_meshes(config)) if cells <= particles else 6
    return _bytes_of_device(count * particles, config, dtype) <= _small(config, platform)


def _small(config: Config, platform: str | None) -> int:
    return _SMALL_ON_CPUS if (platform or config.decomposition.platform) == "cpu" else _SMALL


def num_force_meshes(config: Config) -> int:
    """The number of fields from which the force is read: the potential, or three components."""
    return 3 if config.gradient == "spectral" else 1


def _bytes_of_device(count: Any, config: Config, dtype: Any) -> float:
    return float(count) / config.decomposition.size * np.dtype(dtype).itemsize


def as_bits(field: Float[Array, "nx ny nz"]) -> Integer[Array, "nx ny nz"]:
    """The bits of a field, as whole numbers."""
    return jax.lax.bitcast_convert_type(field, _integers(field.dtype))


def from_bits(bits: Integer[Array, "nx ny nz"]) -> Float[Array, "nx ny nz"]:
    """The field of these bits."""
    return jax.lax.bitcast_convert_type(bits, np.dtype(f"float{8 * bits.dtype.itemsize}"))


def room(count: int, disp: Float[Array, "px py pz 3"], config: Config) -> tuple[Array, ...]:
    """Room for what the force is read from in so many steps, shape (count, nx, ny, nz) each."""
    if count == 0:
        return ()
    decomposition, number = config.decomposition, num_force_meshes(config)
    parts = (*decomposition.pdims, 1)
    cells = tuple(n // p for n, p in zip(config.mesh_shape, parts, strict=True))

    def block(disp: Array) -> tuple[Array, ...]:
        zeros = jnp.zeros((count, *cells), _integers(disp.dtype))
        return (unify_varying(zeros, disp)[0],) * number

    return decomposition.shard_map(block, decomposition.spec, (stored_spec(config),) * number)(disp)


def store(potentials: tuple[Array, ...], bits: tuple[Array, ...], place: Array, config: Config) -> tuple[Array, ...]:
    """Put the bits of a step in their place."""
    if not potentials:
        return ()
    spec, number = stored_spec(config), len(potentials)

    def block(place: Array, *arrays: Array) -> tuple[Array, ...]:
        pairs = zip(arrays[:number], arrays[number:], strict=True)
        return tuple(jax.lax.dynamic_update_index_in_dim(old, new, place, 0) for old, new in pairs)

    specs = (P(), *(spec,) * number, *(config.decomposition.spec,) * number)
    return config.decomposition.shard_map(block, specs, (spec,) * number)(place, *potentials, *bits)


def recalled(bits: tuple[Array, ...], place: Array) -> tuple[Array, ...]:
    """What the force of a step was read from, on local blocks, from the bits of all steps that are kept."""
    return tuple(from_bits(jax.lax.dynamic_index_in_dim(b, place, keepdims=False)) for b in bits)


def stored_spec(config: Config) -> P:
    """Partition of what `room` gives."""
    return P(None, *config.decomposition.spec)


def _integers(dtype: Any) -> Any:
    return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")
