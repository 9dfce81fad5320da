"""Expansion of the universe: E^2 and its slope, from its parameters."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.cosmology.parameters import Parameters
from pmwd_dist.cosmology.radiation import fermi_dirac


class Background(NamedTuple):
    """Parameters of the expansion; densities are those of today [Omega_cb].

    Args:
      curvature, dark_energy: densities.
      w: equation of state of dark energy, (w0, wa) or pairs of scale factor and w.
      radiation: density of photons and of neutrinos if they had no mass, or None.
      neutrinos: part of neutrinos in `radiation` where they have mass, and their mass over their temperature, or None.
    """

    curvature: Array
    dark_energy: Array
    w: Array
    radiation: Array | None = None
    neutrinos: Array | None = None


def background(cosmo: Parameters) -> Background:
    """Parameters of the expansion of a cosmology."""
    matter = cosmo.Omega_cb
    w = jnp.stack([cosmo.w0, cosmo.wa]) if cosmo.w_table is None else cosmo.w_table
    universe = Background(cosmo.Omega_k / matter, cosmo.Omega_de / matter, w)
    if cosmo.n_eff is None:
        return universe
    photons, neutrinos = cosmo.radiation
    universe = universe._replace(radiation=(photons + neutrinos) / matter)
    if cosmo.m_nu is None:
        return universe
    return universe._replace(neutrinos=jnp.stack([neutrinos / matter, cosmo.mass_over_temperature]))


def expansion(universe: Background, x: Array) -> tuple[Array, Array, Array]:
    """E^2 / (Omega_cb a^-3), E'/E + 3/2 and m - 3/2 at x = ln a, without cancellation."""
    a = jnp.exp(x)
    w, integral = _equation_of_state(universe.w, a, x)
    curvature, dark_energy = universe.curvature * a, universe.dark_energy * jnp.exp(-3 * integral)
    square = 1 + curvature + dark_energy
    slope = curvature - 3 * w * dark_energy
    others = curvature + dark_energy
    if universe.radiation is not None:
        density, slopes = _radiation(universe.radiation, universe.neutrinos, a)
        square, slope, others = square + density, slope + slopes, others + density
    inverse = 1 / square
    return square, 0.5 * slope * inverse, -1.5 * others * inverse


def _equation_of_state(w: Array, a: Array, x: Array) -> tuple[Array, Array]:
    """w and its integral over ln a from a = 1.

    A table is linear in a between its nodes and beyond the last one, and constant before the first one.
    """
    if w.ndim == 1:
        w0, wa = w
        return w0 + wa * (1 - a), (w0 + wa) * x + wa * (1 - a)
    nodes, values = w.T
    slope = jnp.diff(values) / jnp.diff(nodes)
    start = values[:-1] - slope * nodes[:-1]  # at a = 0
    ends = jnp.append(nodes[1:-1], jnp.inf)
    low, high, slope, start = (jnp.reshape(y, (1,) * a.ndim + (-1,)) for y in (nodes[:-1], ends, slope, start))

    def integral(a: Array) -> Array:
        """From the first node."""
        inside = jnp.clip(a[..., None], low, high)
        terms = start * jnp.log(inside / low) + slope * (inside - low)
        return jnp.sum(terms, -1) + values[0] * jnp.log(jnp.minimum(a / nodes[0], 1))

    integrated = integral(a) - integral(jnp.ones((1,) * a.ndim, a.dtype))
    return jnp.interp(a, nodes, values, right="extrapolate"), integrated


def _radiation(radiation: Array, neutrinos: Array | None, a: Array) -> tuple[Array, Array]:
    """Density of photons and neutrinos over cold matter, and its slope with ln a."""
    density = radiation / a
    if neutrinos is None:
        return density, -density
    massless, mass = neutrinos
    excess, slope = fermi_dirac(mass * a)
    excess = (excess - 1) * massless / a  # by their mass
    return density + excess, -density - excess + slope * massless / a


def meszaros_excess(universe: Background, x: Array) -> Array:
    """u - 1 at x = ln a for the growing mode u = D1 / a = 1 + 2/3 rho_radiation / rho_matter (Meszaros 1974)."""
    assert universe.radiation is not None
    return 2 / 3 * universe.radiation * jnp.exp(-x)
