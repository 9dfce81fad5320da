"""Expansion of the universe: E^2 and its slope, from a short vector of parameters."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.cosmology.parameters import Parameters
from pmwd_dist.cosmology.radiation import fermi_dirac


def background(cosmo: Parameters) -> Array:
    """Parameters of the expansion: Omega_k and the density of dark energy [Omega_cb], w0 and wa.

    With radiation also its density [Omega_cb], and with massive neutrinos the part of neutrinos without their mass, and
    their mass over their temperature.
    """
    matter = cosmo.Omega_cb
    values = [cosmo.Omega_k / matter, cosmo.Omega_de / matter, cosmo.w0, cosmo.wa]
    if cosmo.n_eff is not None:
        photons, neutrinos = cosmo.radiation
        values += [(photons + neutrinos) / matter]
        values += [] if cosmo.m_nu is None else [neutrinos / matter, cosmo.mass_over_temperature]
    return jnp.stack(values)


def expansion(of: Array, x: Array) -> tuple[Array, Array, Array]:
    """E^2 / (Omega_cb a^-3), E'/E + 3/2 and m - 3/2 at x = ln a, without cancellation; of: see `background`."""
    curvature, dark_energy, w0, wa, *radiation = of
    a = jnp.exp(x)
    curvature, dark_energy = curvature * a, dark_energy * jnp.exp(-3 * ((w0 + wa) * x + wa * (1 - a)))
    square = 1 + curvature + dark_energy
    slope = curvature - 3 * (w0 + wa * (1 - a)) * dark_energy
    others = curvature + dark_energy
    if radiation:
        density, slopes = _radiation(radiation, a)
        square, slope, others = square + density, slope + slopes, others + density
    return square, slope / (2 * square), -1.5 * others / square


def _radiation(radiation: list[Array], a: Array) -> tuple[Array, Array]:
    """Density of photons and neutrinos over cold matter, and its slope with ln a."""
    density = radiation[0] / a
    if len(radiation) == 1:
        return density, -density
    _, neutrinos, mass = radiation
    excess, slope = fermi_dirac(mass * a)
    excess = (excess - 1) * neutrinos / a  # by their mass
    return density + excess, -density - excess + slope * neutrinos / a


def at_equality(of: Array, x: Array) -> Array:
    """u - 1 for u = D1 / a of Meszaros (1974): 2/3 of the density of radiation over matter."""
    return 2 / 3 * of[4] * jnp.exp(-x)
