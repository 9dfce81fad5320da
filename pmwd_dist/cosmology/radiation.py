"""Photons and neutrinos: their densities.

Neutrinos are three species of one temperature, T_nu = (n_eff / 3)^(1/4) (4/11)^(1/3) T_CMB, with a third of the sum of
the masses each. With n_eff = 3.044 they are the "degenerate" neutrinos of CAMB.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

N_EFF = 3.044
T_CMB = 2.7255  # [K]
PHOTONS = 2.472822e-5  # Omega h^2 of photons
MASSLESS = 7 / 8 * (4 / 11) ** (4 / 3) * PHOTONS  # Omega h^2 of one massless species
_KELVIN = 8.617333e-5  # [eV]
# Quadrature of the Fermi-Dirac distribution in q, momentum over temperature, for the energy of massless neutrinos.
_Q, _LAGUERRE = np.polynomial.laguerre.laggauss(24)
_WEIGHTS = _LAGUERRE * _Q**2 / (1 + np.exp(-_Q)) * 120 / (7 * math.pi**4)


def neutrino_temperature(n_eff: ArrayLike) -> Array:
    """Temperature of the neutrinos today [eV]."""
    return (4 / 11) ** (1 / 3) * T_CMB * _KELVIN * (jnp.asarray(n_eff) / 3) ** 0.25


def fermi_dirac(y: Array) -> tuple[Array, Array]:
    """Energy density of neutrinos over its value without mass, and its slope with ln y, for y = mass / temperature.

    The density is the integral of q^2 sqrt(q^2 + y^2) / (e^q + 1).
    """
    q, weights = (jnp.asarray(x.reshape((1,) * y.ndim + (-1,)), y.dtype) for x in (_Q, _WEIGHTS))
    energy = jnp.sqrt(q**2 + y[..., None] ** 2)  # XLA on CPUs is slow to sum large arrays along another axis
    return jnp.sum(weights * energy, -1), jnp.sum(weights / energy, -1) * y**2
