"""The motion of initial conditions: velocities against linear growth of the displacements, by scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.parallel.fft import prfft3d
from pmwd_dist.pm import fourier
from pmwd_dist.pm.particles import Particles

_LINEAR = 0.3  # largest rms density of waves for which velocities of linear growth are right to 3 %
_DOUBTFUL, _WRONG = 0.03, 0.1  # differences from linear growth


def compare_with_linear_growth(
    particles: Particles, path: Path, cosmo: Cosmology, config: Config, warn: Callable[[str], None]
) -> None:
    """Compare velocities with displacements in octaves of wavenumbers, of linear waves. Collective.

    The difference is the larger one of |s - 1| and 1 - r, with the slope s = <v d*> / <d d*> over that of linear growth
    and the correlation coefficient r. One of 3 % is a warning.

    Raises:
      ValueError: a difference of 10 % or more.
    """
    run = jit(partial(_octave_sums, config=config), out_shardings=config.decomposition.replicated)
    dd, dv, vv, density2 = np.asarray(run(particles.disp, particles.vel), float).sum(-1)
    a, table = config.a_start, growth_table_to(config.lpt_order, cosmo)
    k = _nyquist(config) * 0.75 * 0.5 ** np.arange(_octaves(config).start, _octaves(config).stop)[::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = dv / dd / np.asarray(a**2 * table.E(a) * table.linear(jnp.asarray(k), a)[1])
        r = np.nan_to_num(dv / np.sqrt(dd * vv))
    linear = np.cumsum(density2) <= (_LINEAR * math.prod(config.particle_shape)) ** 2
    linear[0] = True
    difference = np.where(linear & (dd > 0), np.maximum(abs(slope - 1), 1 - r), 0)
    i = int(difference.argmax())
    text = (
        f"{path}: its velocities are {slope[i]:.3g} of those of linear growth at a = {a:g}, with a correlation of "
        f"{r[i]:.3f} with the displacements, near k = {k[i]:.2g} h/Mpc: "
    )
    if not difference[i] < _WRONG:
        raise ValueError(
            f"{text}their unit is another one, or displacements and velocities are of different times or particles; "
            "name the unit in the file, or set check_motion to false"
        )
    if difference[i] > _DOUBTFUL:
        warn(f"{text}P(k) may be off by as much")


def _nyquist(config: Config) -> float:
    """Smallest Nyquist frequency of the lattice [h/Mpc]."""
    return min(math.pi * n / side for n, side in zip(config.particle_shape, config.box_size, strict=True))


def _octaves(config: Config) -> range:
    """Numbers of halvings of the Nyquist frequency at the ends of the octaves, without the last octave if possible."""
    longest = math.floor(math.log2(_nyquist(config) * max(config.box_size) / (2 * math.pi)) + 1e-6)
    return range(min(1, longest), max(longest, 0) + 1)


def _octave_sums(disp: Array, vel: Array, config: Config) -> Float[Array, "4 octaves nx"]:
    """Sums over planes of the modes in each octave, the longest waves first: |d|^2, d v*, |v|^2 and k^2 |d|^2."""
    k2, count = fourier.counted_modes(config.particle_shape, config, disp.dtype)
    halvings = -jnp.log2(jnp.sqrt(k2) / _nyquist(config)) + 1e-6  # infinite at k = 0
    dd, dv, vv = (jnp.zeros_like(k2) for _ in range(3))
    for axis in range(3):
        d, v = (prfft3d(x[..., axis], config.decomposition) for x in (disp, vel))
        dd, dv, vv = dd + jnp.abs(d) ** 2, dv + (d * v.conj()).real, vv + jnp.abs(v) ** 2
    values = [count * x for x in (dd, dv, vv, k2 * dd)]
    octaves = [jnp.floor(halvings) == i for i in reversed(_octaves(config))]
    return jnp.stack([jnp.stack([jnp.where(octave, x, 0).sum((1, 2)) for octave in octaves]) for x in values])
