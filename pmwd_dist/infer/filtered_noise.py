"""Gaussian noise of a field that is compared up to a wavenumber where its noise varies, or is hidden by a mask.

In units of the standard deviation of each cell the noise is M (n + t H m), with white noise n and m and the mask M. The
filter H keeps only the mean and modes beyond k_max. The covariance of the noise on the cells that the mask shows is

  C = 1 + t^2 M H M.

Modes of no interest have a large variance in place of an infinite one (mode projection: Rybicki & Press 1992, ApJ 398,
169, sec. 4; Leistedt et al. 2013, 1306.0005). An infinite one would leave nothing where a mask hides more cells than
modes are compared: on the others, modes beyond k_max can add up to any field. The eigenvalues of C are between 1 and 1
+ t^2, so that a fixed number of Chebyshev iterations, each with a transform and its inverse, gives C^-1 (Saad 2003,
algorithm 12.1).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import pirfft3d, prfft3d
from pmwd_dist.pm.fourier import counted_modes

SMALL_SCALE_NOISE = 5.0  # default: densities beyond k_max with up to 25 times the power of the noise
_ROUNDINGS = 10  # error of C^-1 in units of the rounding of a number


def compared_modes(k_max: float | None, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Number of modes per value of a spectrum, 0 beyond k_max [h/Mpc] and then for the mean."""
    k2, counts = counted_modes(config.mesh_shape, config, dtype)
    return counts if k_max is None else jnp.where((k2 <= k_max**2) & (k2 > 0), counts, 0)


def long_waves(field: Array, k_max: float, config: Config, *, mean: bool = False) -> Float[Array, "nx ny nz"]:
    """The field's modes up to k_max [h/Mpc], with or without its mean."""
    kept = compared_modes(k_max, config, field.dtype) > 0
    if mean:
        kept = kept | (counted_modes(config.mesh_shape, config, field.dtype)[0] == 0)
    modes = jnp.where(kept, prfft3d(field, config.decomposition), 0)
    return pirfft3d(modes, config.mesh_shape, config.decomposition)


def weighted(
    chi: Array, mask: Array | float, config: Config, *, k_max: float, excess: float
) -> Float[Array, "nx ny nz"]:
    """C^-1 chi, for a field that is 0 behind the mask.

    Args:
      chi: field in units of the standard deviation of each cell.
      mask: 1 where there are data, else 0.
      config: configuration of the simulation.
      k_max: largest wavenumber of the comparison [h/Mpc].
      excess: standard deviation t of the additional noise.
    """

    def times(x: Array) -> Array:
        return x + excess**2 * mask * (x - long_waves(x, k_max, config))

    def step(state: tuple[Array, Array, Array], factors: Array) -> tuple[tuple[Array, Array, Array], None]:
        x, rest, change = state
        x, rest = x + change, rest - times(change)
        return (x, rest, factors[0] * change + factors[1] * rest), None

    centre, half = 1 + excess**2 / 2, excess**2 / 2
    factors = jnp.asarray(_chebyshev(centre / half, half, float(jnp.finfo(chi.dtype).eps)), chi.dtype)
    x, _, change = jax.lax.scan(step, (jnp.zeros_like(chi), chi, chi / centre), factors)[0]
    return x + change


def _chebyshev(ratio: float, half: float, rounding: float) -> np.ndarray:
    """Factors of last change and residual in each iteration; `ratio` is the centre of an interval over its half."""
    gain = ratio + math.sqrt(ratio**2 - 1)
    count = math.ceil(math.log(2 / (_ROUNDINGS * rounding)) / math.log(gain))
    factors, rho = np.empty((count, 2)), 1 / ratio
    for i in range(count):
        following = 1 / (2 * ratio - rho)
        factors[i], rho = (following * rho, 2 * following / half), following
    return factors


@partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def chi_squared(chi: Array, mask: Array | float, config: Config, k_max: float, excess: float) -> Float[Array, ""]:
    """chi . C^-1 chi, whose gradient 2 C^-1 chi needs no further iterations; arguments as in `weighted`."""
    return jnp.sum(chi * weighted(chi, mask, config, k_max=k_max, excess=excess))


@chi_squared.defjvp
def _(config: Config, k_max: float, excess: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    chi, mask = primals
    solved = weighted(chi, mask, config, k_max=k_max, excess=excess)
    return jnp.sum(chi * solved), 2 * jnp.sum(tangents[0] * solved)
