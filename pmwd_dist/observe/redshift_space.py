"""Redshift space: particles moved along the line of sight by their peculiar velocity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.shells import checked_observer
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import fftfreq3d
from pmwd_dist.pm import inputs
from pmwd_dist.pm.particles import Origin, Particles, is_number, site_positions

_AXES = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}

LineOfSight = str | Sequence[Any] | np.ndarray


@on_auto_axes
def redshift_space(
    particles: Particles,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    line_of_sight: LineOfSight = "z",
    observer: Sequence[Any] | np.ndarray | Array | None = None,
    a: ArrayLike | None = None,
) -> Particles:
    """Move particles to redshift space, s = x + (u . n) n / (a H) with the peculiar velocity u (Kaiser 1987).

    In terms of the momenta, u / (a H) = vel / (a^2 E(a)) [Mpc/h]. Particles may move by several cells. A fixed halo of
    the config must hold that, too; `density` is NaN otherwise.

    Args:
      particles: particles at scale factor a.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      line_of_sight: direction n, the same everywhere: "x", "y", "z" or a vector of any length.
      observer: position in the box [Mpc/h] from which lines of sight start instead, to the position of each particle
        within the box, not to its nearest image.
      a: scale factor of the particles; default: the one that they are made for.

    Returns:
      Particles with other displacements and the same momenta.

    Raises:
      ValueError: the particles are not Particles of this config, or in redshift space already, or don't know their
        scale factor, as inside jit and in functions of saveat, or another argument is out of its range.

    Examples:
      >>> density = pmd.density(pmd.observe.redshift_space(particles, cosmo, config), config)
    """
    inputs.check_config(config)
    at: Any = inputs.scale_factor_of(particles, a)
    particles = inputs.checked_particles(particles, config, at, real_space=True)
    if observer is not None:
        if not (isinstance(line_of_sight, str) and line_of_sight == "z"):
            constraint = "can't be given together with observer, where lines of sight start"
            raise ArgumentError("line_of_sight", line_of_sight, constraint, "leave one of them out")
        where = _observer(observer, config)
        moved = _radial(particles, growth_table_to(config.lpt_order, cosmo), at, where, config)
    else:
        moved = _plane_parallel(particles, growth_table_to(config.lpt_order, cosmo), at, direction(line_of_sight))
    known = float(at) if is_number(at) else None
    return Particles(moved.disp, moved.vel, origin=Origin(known, config.box_size, redshift_space=True))


def cosine_moments(
    k: Sequence[Array], shape: Sequence[int], box: Sequence[float], n: tuple[float, float, float]
) -> tuple[Array, Array]:
    """mu^2 and mu^4 of wavevectors and a direction, as means over both signs of components at the Nyquist frequency.

    Let b_i = k_i n_i for these components and a the sum of all other k_i n_i. The means are a^2 + sum b_i^2 and
    a^4 + 6 a^2 sum b_i^2 + 3 (sum b_i^2)^2 - 2 sum b_i^4, over k^2 and k^4. Both are 0 at k = 0.

    Args:
      k: components of the wavevectors, which broadcast [h/Mpc].
      shape: number of cells along each axis.
      box: length of each axis [Mpc/h].
      n: unit vector of the direction.
    """
    k2: Any = sum(component**2 for component in k)
    inverse = 1 / jnp.where(k2 > 0, k2, 1)
    a = b2 = b4 = jnp.zeros((), k2.dtype)
    for component, cells, length, along in zip(k, shape, box, n, strict=True):
        if not along:
            continue
        signless = jnp.abs(component) > math.pi * (cells - 0.5) / length
        a += jnp.where(signless, 0, along * component)
        b = jnp.where(signless, along * component, 0)
        b2, b4 = b2 + b**2, b4 + b**4
    a2 = a**2
    return (a2 + b2) * inverse, (a2**2 + 6 * a2 * b2 + 3 * b2**2 - 2 * b4) * inverse**2


def kaiser_factor(bias: Any, table: GrowthTable, config: Config, line_of_sight: LineOfSight | None) -> Array:
    """(b + f mu^2) D1 at `a_stop` on the lattice, with mu the cosine of wavevector and line of sight (Kaiser 1987)."""
    k = fftfreq3d(config.particle_shape, config.decomposition, config.box_size)
    growth, rate = table.linear(jnp.sqrt(k[0] ** 2 + k[1] ** 2 + k[2] ** 2), config.a_stop)
    if line_of_sight is None:
        return bias * growth
    mu2, _ = cosine_moments(k, config.particle_shape, config.box_size, direction(line_of_sight))
    return (bias + rate * mu2) * growth


def direction(line_of_sight: LineOfSight) -> tuple[float, float, float]:
    """Unit vector of a line of sight: "x", "y", "z" or three numbers."""
    if isinstance(line_of_sight, str) and line_of_sight in _AXES:
        return _AXES[line_of_sight]
    try:
        vector = np.asarray(line_of_sight, float)
    except (TypeError, ValueError):
        vector = np.zeros(0)
    length = float(np.sqrt(np.sum(vector**2)))
    if vector.shape != (3,) or not (np.isfinite(length) and length > 0):
        raise ArgumentError("line_of_sight", line_of_sight, "must be 'x', 'y', 'z' or three numbers, not all zero")
    x, y, z = (float(v) for v in vector / length)
    return x, y, z


def _observer(observer: Any, config: Config) -> Array:
    if not isinstance(observer, Tracer):
        return jnp.asarray(checked_observer(observer, config.box_size))
    if observer.shape != (3,):
        raise ArgumentError("observer.shape", observer.shape, "must be (3,)", "pass three coordinates [Mpc/h]")
    return observer


def _per_momentum(table: GrowthTable, a: ArrayLike, dtype: Any) -> Array:
    """Displacement in redshift space per unit of momentum, 1 / (a^2 E)."""
    return (1 / (jnp.asarray(a) ** 2 * table.E(a))).astype(dtype)


@partial(jit, static_argnames="n")
def _plane_parallel(particles: Particles, table: GrowthTable, a: ArrayLike, n: tuple[float, float, float]) -> Particles:
    disp, vel = particles.disp, particles.vel
    factor = _per_momentum(table, a, disp.dtype)
    along = sum(vel[..., axis] * n[axis] for axis in range(3) if n[axis]) * factor
    return Particles(disp + jnp.stack([along * component for component in n], -1), vel)


@partial(jit, static_argnames="config")
def _radial(particles: Particles, table: GrowthTable, a: ArrayLike, observer: Array, config: Config) -> Particles:
    decomposition, dtype = config.decomposition, particles.disp.dtype

    def block(disp: Array, vel: Array, observer: Array, factor: Array) -> Array:
        box = jnp.asarray(config.box_size, dtype)
        axes = [site_positions(config, axis, n, dtype) for axis, n in enumerate(disp.shape[:3])]
        sites = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), -1)
        x = jnp.mod(sites + disp, box.reshape(1, 1, 1, 3))
        r = x - observer.reshape(1, 1, 1, 3)
        square = jnp.sum(r**2, -1, keepdims=True)
        # A particle at the observer stays: its line of sight has no direction.
        speed = jnp.sum(vel * r, -1, keepdims=True) / jnp.where(square > 0, square, 1)
        return disp + factor * speed * r

    spec = decomposition.spec
    run = decomposition.shard_map(block, (spec, spec, P(), P()), spec)
    factor = _per_momentum(table, a, dtype)
    return Particles(run(particles.disp, particles.vel, observer.astype(dtype), factor), particles.vel)
