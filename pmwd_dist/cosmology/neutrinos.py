"""Clustering of massive neutrinos in linear response to cold matter (Ali-Haimoud & Bird 2013, arXiv:1209.0461).

With ds = da / (a^3 E), cold matter and neutrinos move in the potential of both:

  delta_cb(s) = initial + 3/2 int ds' a (s - s') S(s'),   S = Omega_cb delta_cb + Omega_nu delta_nu
  delta_nu(s) = initial + 3/2 int ds' a (s - s') S(s') I(k (l - l')),

with I the Fourier transform of the Fermi-Dirac distribution and l the free path per temperature and mass. Omega_nu is
the density that neutrinos have by their mass: the clustering of massless ones is a part of transfer functions. Outside
of the horizon, contrasts of a fluid with w = P / rho are (1 + w) delta_cb, and its pressure adds 3 w to its gravity.
Omega_nu is there the excess of (1 + w) (1 + 3 w) rho over its value without mass, 8/3 rho_massless.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.derivatives import forward_derivatives
from pmwd_dist.cosmology.collocation import matmul, solve_volterra
from pmwd_dist.cosmology.expansion import Background, expansion, meszaros_excess
from pmwd_dist.cosmology.radiation import fermi_dirac
from pmwd_dist.cosmology.transfer import cubic

_STEP, _BELOW, _ABOVE = 0.08, 115, 9
_X = _STEP * np.arange(-_BELOW, _ABOVE + 1)  # nodes in ln a, from 1e-4 to 2
_LEAST, _RATIO = 1e-3, 1.28  # nodes in wavenumber [h/Mpc], to 15
_LN_K = math.log(_LEAST) + math.log(_RATIO) * np.arange(40)
_SQUARINGS = 6  # exact for as many nodes; LAPACK's own solver can block the devices of a CPU
_HUBBLE_LENGTH = 2997.92458  # c / H0 [Mpc/h]
_MOMENTUM = 3.15  # mean momentum over temperature
_HORIZON, _LARGE = 1.5, 0.008  # ends of that, by CAMB: k times the conformal time, and wavenumber [h/Mpc]


class LinearResponse(eqx.Module):
    """Growth of cold matter and density of neutrinos, tabulated over wavenumber and scale factor.

    Args:
      growth: growth factor of cold matter over D1, 1 early.
      slope: its logarithmic slope with ln a.
      source: Omega_nu delta_nu / (Omega_cb delta_cb).
      density: Omega_nu / Omega_cb.
    """

    growth: Float[Array, "a k"]
    slope: Float[Array, "a k"]
    source: Float[Array, "a k"]
    density: Float[Array, " a"]

    def cold(self, k: ArrayLike, a: ArrayLike) -> Array:
        """Growth factor of cold matter over D1 today, at wavenumbers [h/Mpc] and one scale factor; D1 has its own."""
        return self._at(self.growth, k, a)

    def rate(self, k: ArrayLike, a: ArrayLike) -> Array:
        """Logarithmic slope of `cold` with ln a."""
        return self._at(self.slope, k, a)

    def force(self, k: ArrayLike, a: ArrayLike) -> Array:
        """Gravity of all matter over gravity of cold matter."""
        return 1 + self._at(self.source, k, a)

    def total(self, k: ArrayLike, a: ArrayLike) -> Array:
        """Density contrast of all matter over the one of cold matter."""
        return self.force(k, a) / (1 + _in_time(self.density, jnp.asarray(a)))

    def _at(self, table: Array, k: ArrayLike, a: ArrayLike) -> Array:
        t = jnp.log(as_array(k, table.dtype) / _LEAST) / math.log(_RATIO)
        return cubic(_in_time(table, as_array(a, table.dtype)), t)


def _in_time(table: Array, a: Array) -> Array:
    """Row of a table at a scale factor, linear in ln a."""
    t = jnp.clip(jnp.log(a) / _STEP + _BELOW, 0, len(_X) - 1)
    i = jnp.clip(t.astype(jnp.int32), 0, len(_X) - 2)
    t = t - i.astype(t.dtype)
    return (1 - t) * table[i] + t * table[i + 1]


def linear_response(universe: Background, Omega_cb: Array) -> LinearResponse:
    """The response in a universe with parameters of its expansion and a density of cold matter."""
    values, pack = ravel_pytree((universe, Omega_cb))
    tables = forward_derivatives(lambda values: _respond(*pack(values)))(values)
    return LinearResponse(tables[0], tables[1], tables[2], tables[3, :, 0])


def _respond(universe: Background, Omega_cb: Array) -> Array:
    """Tables of `LinearResponse`, stacked; the density has the same value at all wavenumbers."""
    assert universe.neutrinos is not None
    dtype, (neutrinos, mass) = Omega_cb.dtype, universe.neutrinos
    x = jnp.asarray(_X, dtype)
    a = jnp.exp(x)
    s, path = _paths(universe, mass)
    rho, slope = fermi_dirac(mass * a)
    w = (1 - slope / rho) / 3
    excess = (rho - 1) * neutrinos / a  # density of neutrinos by their mass, over cold matter
    outside = ((1 + w) * (1 + 3 * w) * rho - 8 / 3) * neutrinos / a - excess  # its change outside of the horizon
    speed = 1 / (a**2 * jnp.sqrt(a**-3 * expansion(universe, x)[0]))  # ds / d ln a
    time = (_STEP * jnp.cumsum(speed * a) + (1 - _STEP) * speed[0] * a[0]) * _HUBBLE_LENGTH / jnp.sqrt(Omega_cb)
    weight = jnp.asarray(np.where(np.arange(len(_X)) == 0, 0.5, 1) * _STEP, dtype)
    causal = jnp.asarray(np.tri(len(_X), k=-1), dtype)
    kernel = causal * (s[:, None] - s[None]) * (1.5 * a * speed * weight)[None]
    early = meszaros_excess(universe, x[:1])  # growing mode a (1 + early)
    start = a[0] * (1 + early) + a[0] / speed[:1] * (s - s[0])

    def contrasts(k: Array | None) -> tuple[Array, Array]:
        """delta_cb and its source Omega_nu delta_nu / Omega_cb; without neutrinos for k = None."""
        if k is None:
            return matmul(kernel, solve_volterra(-kernel, start, _SQUARINGS)) + start, jnp.zeros_like(start)
        free = _fermi_dirac_transform(k * _HUBBLE_LENGTH / jnp.sqrt(Omega_cb) * (path[:, None] - path[None]))
        streaming = kernel * free
        density = excess + outside * jnp.exp(-((k * time / _HORIZON) ** 2) - (k / _LARGE) ** 2)
        at_start = density * start * free[:, 0]
        S = solve_volterra(-kernel - density[:, None] * streaming, start + at_start, _SQUARINGS)
        return start + matmul(kernel, S), at_start + density * matmul(streaming, S)

    unclustered, _ = contrasts(None)
    cold, source = jax.vmap(contrasts)(jnp.asarray(np.exp(_LN_K), dtype))
    growth = (cold / unclustered[None]).T
    log = jnp.log(growth)
    slope = jnp.concatenate([log[1:2] - log[:1], (log[2:] - log[:-2]) / 2, log[-1:] - log[-2:-1]]) / _STEP
    density = jnp.broadcast_to(excess[:, None], growth.shape)
    return jnp.stack([growth, slope, (source / cold).T, density])


def _paths(universe: Background, mass: Array) -> tuple[Array, Array]:
    """s sqrt(Omega_cb) and the free path at the nodes, 0 at the last one, by Simpson's rule."""
    x = jnp.asarray(_STEP / 2 * np.arange(-2 * _BELOW, 2 * _ABOVE + 1), mass.dtype)
    a = jnp.exp(x)
    speed = 1 / (a**2 * jnp.sqrt(a**-3 * expansion(universe, x)[0]))
    rates = jnp.stack([speed, speed * a / jnp.sqrt((mass * a) ** 2 + _MOMENTUM**2)])
    steps = _STEP / 6 * (rates[:, :-1:2] + 4 * rates[:, 1::2] + rates[:, 2::2])
    past = jnp.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    s, path = -jnp.concatenate([past, jnp.zeros((2, 1), mass.dtype)], axis=1)
    return s, path


def _series() -> np.ndarray:
    """Weights that sum an alternating series from its first terms (Cohen, Rodriguez Villegas & Zagier 2000)."""
    n = 20
    d = ((3 + math.sqrt(8)) ** n + (3 - math.sqrt(8)) ** n) / 2
    b, c, weights = -1.0, -d, list[float]()
    for i in range(n):
        c = b - c
        weights.append(c / d)
        b *= (i + n) * (i - n) / ((i + 0.5) * (i + 1))
    return np.array(weights)


def _fermi_dirac_transform(x: Array) -> Array:
    """Fourier transform of the Fermi-Dirac distribution, 1 at x = 0: sum of (-1)^(n+1) n / (n^2 + x^2)^2."""
    n = np.arange(1, 21)
    terms = jnp.asarray(n, x.dtype), jnp.asarray(_series() * n * (4 / (3 * 1.2020569031595942)), x.dtype)

    def add(total: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
        return total + term[1] / (term[0] ** 2 + x**2) ** 2, None

    return jax.lax.scan(add, jnp.zeros_like(x), terms)[0]  # compiles and runs faster than the sum written out
