"""Particles: displacements and momenta on a Lagrangian lattice, and the power-of-two grid on which they live."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number, check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config, Vector3
from pmwd_dist.ops.momenta import bits, momentum, pack, rounded
from pmwd_dist.ops.rounding import round_straight_through
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes


@dataclass(frozen=True)
class Origin:
    """Scale factor and box [Mpc/h] of particles, None where unknown, and whether `redshift_space` moved them.

    Snapshots have their scale factors in `times`. A pytree without leaves, which is unknown after a transformation of
    JAX. Static metadata would be out of date after an integration by diffrax.
    """

    a: float | None = None
    box_size: Vector3 | None = None
    redshift_space: bool = False
    times: tuple[float, ...] = ()


jax.tree_util.register_pytree_node(Origin, lambda _: ((), None), lambda *_: Origin())


class Particles(eqx.Module):
    """Particles of a simulation, in lattice order, divided over devices like the mesh.

    Args:
      disp: displacement from the lattice site, comoving [Mpc/h].
      vel: canonical momentum a^2 dx/d(H0 t) [Mpc/h].
      origin: box and scale factor for which functions of this package made them, and with which others compare theirs.
    """

    disp: Float[Array, "*saves nx ny nz 3"]
    vel: Float[Array, "*saves nx ny nz 3"]
    origin: Origin = eqx.field(default=Origin(), kw_only=True)

    def __getitem__(self, i: int) -> Particles:
        """A snapshot of `Solution.snapshots`, whose arrays have a leading axis of saves.

        Raises:
          TypeError: particles at one time.
          IndexError: an index beyond the last snapshot.
        """
        if self.disp.ndim != 5:
            raise TypeError("particles at one time have no snapshots; index their arrays, such as particles.disp[0]")
        count = len(self.disp)
        if not -count <= (i := operator.index(i)) < count:
            raise IndexError(f"[{i}]: there are {count} snapshots")
        a = self.origin.times[i] if self.origin.times else None
        return Particles(self.disp[i], self.vel[i], origin=Origin(a, self.origin.box_size))

    def made_for(self, config: Config, a: Any = None) -> Particles:
        """These particles in the box of a config, at a scale factor if it is a number outside jit."""
        return Particles(self.disp, self.vel, origin=Origin(float(a) if is_number(a) else None, config.box_size))

    def positions(self, config: Config) -> Float[Array, "nx ny nz 3"]:
        """Comoving positions in the box, from 0 to its sides, divided over devices like the particles [Mpc/h].

        Raises:
          ValueError: the config has another lattice or box.
        """
        check_type(config, Config, "config", "must be a Config")
        if (expected := (*config.particle_shape, 3)) != self.disp.shape:
            raise ArgumentError("particles.disp.shape", self.disp.shape, f"must be {expected}")
        self.check_box(config)
        return _positions(self.disp, config)

    def check_box(self, config: Config) -> None:
        """Raise ArgumentError if these particles are made for another box."""
        box = self.origin.box_size
        if box is not None and not np.allclose(box, config.box_size, rtol=1e-5, atol=0):
            constraint = f"is not the box of the config, {config.box_size}"
            raise ArgumentError("particles.origin.box_size", box, constraint, "pass the config of these particles")

    def velocities(self, a: Any = None) -> Float[Array, "nx ny nz 3"]:
        """Peculiar velocities a dx/dt [km/s] at a scale factor; default: the one that these particles are made for.

        Raises:
          ValueError: the scale factor must be given, is none, or another one than the particles have.
        """
        return self.vel * self.velocity_unit(a)

    def velocity_unit(self, a: Any = None) -> Array:
        """Peculiar velocity of a momentum of 1 Mpc/h [km/s], with the argument and errors of `velocities`."""
        at = self.scale_factor(a)
        check_number(at, "a", 1e-4, 10)
        if is_number(at) and self.origin.a is not None and abs(float(at) / self.origin.a - 1) > 1e-4:
            raise ArgumentError("a", a, f"is not the scale factor of the particles, {self.origin.a:.6g}")
        return 100 / jnp.asarray(at, self.vel.dtype)

    def scale_factor(self, a: Any = None) -> Any:
        """Scale factor of the particles: the argument, or by default the one that they are made for.

        Raises:
          ValueError: it is neither given nor known, as after a transformation of JAX.
        """
        if a is None and self.origin.a is None:
            remedy = "pass their scale factor, which transformations of JAX and functions of saveat don't keep"
            raise ArgumentError("a", a, "is not known for these particles", remedy)
        return self.origin.a if a is None else a


class ExactParticles(eqx.Module):
    """Particles during a step, with integer momenta.

    Args:
      disp: displacement from the lattice site, on its grid [Mpc/h].
      momenta: integer momenta in the bits of floats, see `ops.momenta`; their tangents have the unit Mpc/h.
    """

    disp: Float[Array, "nx ny nz 3"]
    momenta: Float[Array, "nx ny nz 3"]

    def with_unit(self, unit: Any) -> Particles:
        """Particles with momenta in Mpc/h, from the unit of the integers [Mpc/h]."""
        return Particles(self.disp, momentum(self.momenta, unit))


@on_auto_axes
@on_blocks(["field"], "field")
def _positions(disp: Array, config: Config) -> Array:
    box = np.asarray(config.box_size).reshape(1, 1, 1, 3)
    axes = [site_positions(config, axis, n, disp.dtype) for axis, n in enumerate(disp.shape[:3])]
    x = jnp.mod(jnp.stack(jnp.meshgrid(*axes, indexing="ij"), -1) + disp, box)
    x = x.astype(disp.dtype)  # which may round up to the sides
    return jnp.where(x >= box.astype(disp.dtype), 0, x)


def site_positions(config: Config, axis: int, count: int, dtype: Any) -> Array:
    """Positions of the local lattice sites along an axis [Mpc/h], inside shard_map."""
    names, parts = (*config.decomposition.axis_groups, ((), 1))[axis]
    every = np.arange(config.particle_shape[axis]) * (config.box_size[axis] / config.particle_shape[axis])
    first = jax.lax.axis_index(names) * count if parts > 1 else 0
    return jax.lax.dynamic_slice(jnp.asarray(every, dtype), (first,), (count,))


def is_number(a: Any) -> bool:
    """Whether a scale factor is a number on the host, not on a device or traced."""
    return isinstance(a, int | float | np.number | np.ndarray)


def resolution(config: Config, dtype: Any) -> float:
    """Spacing of the grid of displacements [Mpc/h], a power of two.

    Multiples up to `largest`, at least 16 cells and 64 Mpc/h, are exact, and so are their sums: every drift has an
    exact inverse. Displacements in LCDM are below 30 Mpc/h.
    """
    max_displacement = max(32 * min(config.cell_size), 64.0)
    return 2.0 ** (math.floor(math.log2(max_displacement)) - significant_bits(dtype))


def momentum_unit(config: Config, dtype: Any) -> float:
    """Unit of the integer momenta at the start of a run [Mpc/h]; their range is 64 times the largest displacement.

    Solvers may shrink the unit to 1/16. BullFrog does so to 1/9 where saves lengthen a first step from a = 0.02.
    """
    return 64 * largest(config, dtype) * 2.0 ** -bits(dtype)


def largest(config: Config, dtype: Any) -> float:
    """Largest displacement on the grid [Mpc/h]."""
    return resolution(config, dtype) * 2.0 ** significant_bits(dtype)


def significant_bits(dtype: Any) -> int:
    """Number of significant bits of a floating-point type."""
    return int(np.finfo(np.dtype(dtype)).nmant) + 1


def exact(particles: Particles, config: Config) -> ExactParticles:
    """Round displacements to their grid and momenta to integers; displacements are NaN where momenta aren't finite."""
    dtype = particles.disp.dtype
    momenta, missing = rounded(particles.vel / momentum_unit(config, dtype))
    disp = to_grid(particles.disp, resolution(config, dtype)) + missing
    return ExactParticles(disp, pack(momenta, particles.vel))


def to_grid(x: Array, q: float) -> Array:
    """Round to multiples of q, a power of two; derivatives pass straight through."""
    return round_straight_through(x / q) * q
