"""Comoving distances of a cosmology."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_number
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist._jax.arrays import as_array, on_host
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology.growth import LAST, GrowthTable, growth_table_to, hermite, parameters_of
from pmwd_dist.cosmology.parameters import Cosmology

HUBBLE_DISTANCE = 2997.92458  # c / H0 [Mpc/h]
_FIRST = 0.999e-3  # redshift 1000

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_STEP, _BELOW, _ABOVE = 1 / 128, 885, 89  # nodes in ln a, with a = 1, of tables for many numbers
_TIMES = np.exp(_STEP * np.arange(-_BELOW, _ABOVE + 1))
_SERIES = [1 / math.factorial(2 * n + 1) for n in range(14)]


def comoving_distance(a: ArrayLike | Sequence[float], cosmo: Cosmology | GrowthTable) -> Array:
    """Comoving distance along the line of sight from scale factor a to a = 1 [Mpc/h]; negative beyond a = 1.

    c / H0 int da / (a^2 E(a)), by Gauss-Legendre quadrature in the root of a, for 0.001 <= a <= 2; more than a thousand
    numbers are interpolated from a table by cubics. Differentiable in a and in the parameters; the result has the shape
    of a.

    Raises:
      ValueError: the cosmology lacks a parameter, or has a component that is not modelled (`Cosmology`), or a scale
        factor is out of this range; an array on a device, or traced, is not checked.

    Examples:
      >>> pmd.comoving_distance(0.5, jax_cosmo.Planck15())
    """
    check_number(a, "a", _FIRST, LAST, remedy="call comoving_distance(a, cosmo)", several=True)
    return _comoving_distance(_floats(a), growth_table_to(2, cosmo))


@jit
def _comoving_distance(a: Array, table: GrowthTable) -> Array:
    is_explicit = AxisType.Explicit in jax.typeof(a).sharding.mesh.axis_types  # and can't be used as an index
    if a.size <= len(_TIMES) or is_explicit:
        return _integrated(a, table)
    times = jnp.asarray(_TIMES, a.dtype)
    slopes = -_STEP * HUBBLE_DISTANCE / (times * table.E(times))  # of the distance, a node
    t = jnp.log(a) / _STEP + _BELOW
    i = jnp.clip(t.astype(jnp.int32), 0, len(_TIMES) - 2)
    distances = jnp.stack([_integrated(times, table), slopes], -1)
    (y0, m0), (y1, m1) = (jnp.moveaxis(rows(distances, n), -1, 0) for n in (i, i + 1))
    return hermite(t - i.astype(t.dtype), y0, y1, m0, m1)


def _integrated(a: Array, table: GrowthTable) -> Array:
    root = jnp.sqrt(a)[..., None]
    half = (1 - root) / 2
    u = 1 - half * (1 - jnp.asarray(_NODES, a.dtype).reshape((1,) * a.ndim + (-1,)))
    rate = 2 / (u**3 * table.E(u**2))  # of the distance, in u
    return HUBBLE_DISTANCE * jnp.sum(half * _WEIGHTS.astype(a.dtype).reshape((1,) * a.ndim + (-1,)) * rate, axis=-1)


def _floats(x: ArrayLike | Sequence[float]) -> Array:
    return as_array(x, jnp.result_type(float, *jax.tree.leaves(x)))


def distances_at(z: Any, cosmo: Cosmology | GrowthTable) -> np.ndarray:
    """Comoving distances at redshifts, on the host [Mpc/h]."""
    return on_host(lambda z: comoving_distance(1 / (1 + z), cosmo), z, 8192)


def scale_factor_at(distance: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Scale factor at a comoving distance [Mpc/h], the inverse of `comoving_distance` from a = 0.001 to a = 1."""
    return _scale_factor_at(_floats(distance), growth_table_to(2, cosmo))


@jit
def _scale_factor_at(distance: Array, table: GrowthTable) -> Array:
    roots = jnp.linspace(1.0, math.sqrt(1e-3), 64, dtype=distance.dtype)
    fixed, at = jax.lax.stop_gradient((table, distance))
    root = jnp.interp(at, comoving_distance(roots**2, fixed), roots)

    def newton(root: Array, table: GrowthTable, distance: Array) -> Array:
        slope = -2 * HUBBLE_DISTANCE / (root**3 * table.E(root**2))
        return root - (comoving_distance(root**2, table) - distance) / slope

    root = newton(newton(root, fixed, at), fixed, at)
    # Derivatives through the last two steps only are exact to third order at the solution.
    root = newton(newton(root, table, distance), table, distance)
    return root**2


def transverse_distance(distance: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Comoving distance across the line of sight per radian [Mpc/h], at a comoving distance along it.

    sin(sqrt(-Omega_k) x) / sqrt(-Omega_k) with x in Hubble distances, as a power series in Omega_k x^2: differentiable
    in flat universes too.
    """
    return _transverse_distance(_floats(distance), parameters_of(cosmo).Omega_k)


@jit
def _transverse_distance(distance: Array, curvature: Array) -> Array:
    x = curvature * (distance / HUBBLE_DISTANCE) ** 2
    return distance * jnp.polyval(jnp.asarray(_SERIES[::-1], distance.dtype), x)
