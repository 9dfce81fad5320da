"""Adaptation of a preconditioner to a posterior that is not that of linear theory, from slopes of its log density.

Three things that small scales change are found from slopes g along a chain, since E[g g^T] = -E[Hessian]:

- Long waves are known far better with all others held than in linear theory, by what they displace: bands of modes of
  curvature c, where linear theory has 1, are scaled so that they have sqrt(c), or `STIFFEST` if that is less. Their
  widths are so the geometric mean of that with others held, c^-1/2, and that in linear theory, which is nearly that of
  the posterior. The few modes that are left stiff cost a sampler hardly any energy.
- Modes should follow the parameters by another share of their Wiener mean than in linear theory. With the mean of a
  band times 1 + t (u - centre), the slope along u has t r added, r being the sum of slopes times means: the t are the
  regression of the slope of u on those sums, which leaves the least curvature along u.
- The parameters are scaled along the eigenvectors of what curvature is left, by the same rule as the modes.

All of it is linear in position at given parameters, with a volume that doesn't change: the posterior stays exact.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.pm import fourier

BANDS = 12  # of the wavenumber, of equal width in its logarithm
STIFFEST = 4.0  # curvature left; the step of MCLMC at its target is stable up to about ten


class Adaptation(eqx.Module):
    """What is changed of a preconditioner in linear theory.

    Args:
      scale: of the modes of each band.
      shift: change of the Wiener mean of each band with each parameter of the position.
      centre: parameters where there is none.
      factor: parameters in linear theory's scales, per parameter of the position.
    """

    scale: Float[Array, " bands"]
    shift: Float[Array, "p bands"]
    centre: Float[Array, " p"]
    factor: Float[Array, "p p"]

    @classmethod
    def none(cls, count: int) -> Adaptation:
        """That of linear theory, for so many parameters."""
        return cls(jnp.ones(BANDS), jnp.zeros((count, BANDS)), jnp.zeros(count), jnp.eye(count))

    def gain(self, parameters: Float[Array, " p"]) -> Float[Array, " bands"]:
        """Factor of the Wiener mean of each band."""
        return 1 + jnp.sum(self.shift * (parameters - self.centre)[:, None], axis=0)


def bands(config: Config) -> Array:
    """Band of each mode, in the layout of `prfft3d`."""
    k2, (smallest, width) = sum(component**2 for component in wavevectors(config)), _span(config)
    place = 0.5 * jnp.log(jnp.maximum(k2, smallest**2) / smallest**2) / width
    return jnp.clip(jnp.floor(place + 1e-3), 0, BANDS - 1).astype(int)


def band_centres(config: Config) -> np.ndarray:
    """Wavenumbers in the middle of the bands, in their logarithm [h/Mpc]."""
    smallest, width = _span(config)
    return smallest * np.exp(width * (np.arange(BANDS) + 0.5))


def _span(config: Config) -> tuple[float, float]:
    """The smallest wavenumber, and the width of a band in the logarithm."""
    smallest = 2 * np.pi / max(config.box_size)
    largest = np.pi * np.sqrt(sum(side**-2 for side in config.cell_size))
    return smallest, np.log(largest / smallest) / BANDS


def mode_counts(config: Config, dtype: Any) -> Array:
    """Number of modes of the lattice that each value of a spectrum stands for."""
    decomposition, shape = config.decomposition, config.particle_shape

    def counts() -> Array:
        return jnp.zeros_like(fourier.k_squared(shape, config, dtype)) + fourier.mode_count(shape, config, dtype)

    return decomposition.shard_map(counts, (), decomposition.spectrum_spec)()


def at_bands(values: Float[Array, " bands"], index: Array) -> Array:
    """The value of each mode's band: by selects, whose transposes are sums, where that of a look-up scatters."""
    return sum((jnp.where(index == b, values[b], 0) for b in range(BANDS)), jnp.zeros((), values.dtype))


def band_sums(x: Array, index: Array) -> Float[Array, " bands"]:
    """Sums over the modes of each band; sums of each part of a divided spectrum, so that none is gathered."""
    return jax.lax.map(lambda b: jnp.sum(jnp.where(index == b, x, 0)), jnp.arange(BANDS))


def unpacked(observed: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slopes along so many parameters, sums of slopes times means, and mean squares of slopes, of each band."""
    return observed[..., :count], observed[..., count : count + BANDS], observed[..., count + BANDS :]


def adapt_to(seen: tuple[np.ndarray, Any], old: Adaptation, *, follow: bool) -> Adaptation:
    """The adaptation to what a stage of a tuning has shown (`Search.observed`) of chains that ran with another."""
    observed, means = seen
    parameters = [np.mean(means["parameters"][name]) for name in sorted(means["parameters"])]
    centre = np.asarray(old.factor) @ np.array(parameters)
    return adapt(old, observed, centre, follow=follow)


def adapt(old: Adaptation, observed: np.ndarray, centre: np.ndarray, *, follow: bool) -> Adaptation:
    """The adaptation after chains have run with another.

    Args:
      old: with which the chains ran.
      observed: what they have shown (`Preconditioner.observe`), of shape (chains, steps, ...).
      centre: mean of the parameters in linear theory's scales.
      follow: whether to find how modes follow the parameters, which takes chains near the posterior.
    """
    factor, shift = np.asarray(old.factor, float), np.asarray(old.shift, float)
    slopes, sums, squares = unpacked(np.asarray(observed, float), factor.shape[0])
    slopes = np.linalg.solve(factor.T, slopes[..., None])[..., 0]
    # About the mean of each chain, so that one that still drifts does not seem to be stiff.
    slopes, sums = (x - x.mean(axis=1, keepdims=True) for x in (slopes, sums))
    sums = sums.reshape(-1, BANDS)
    slopes = slopes.reshape(len(sums), slopes.shape[-1])  # of no parameters, too
    if follow:
        change = _regression(sums, slopes)
        shift, slopes = shift - change.T, slopes - sums @ change
    # Along parameters that the field doesn't see as linear theory does there is at least its curvature, 1.
    curvature, axes = np.linalg.eigh(slopes.T @ slopes / len(slopes) + np.eye(slopes.shape[-1]))
    seen = squares.reshape(-1, BANDS).mean(axis=0) / np.asarray(old.scale, float) ** 2
    scale = np.where(seen > 0, _widths(np.where(seen > 0, seen, 1)), 1)
    arrays = scale, shift, centre, axes * _widths(curvature)
    return Adaptation(*(jnp.asarray(x, y.dtype) for x, y in zip(arrays, jax.tree.leaves(old), strict=True)))


def _widths(curvature: np.ndarray) -> np.ndarray:
    return np.sqrt(np.minimum(curvature**-0.5, STIFFEST / curvature))


def _regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of y on x, drawn to zero where there are few data."""
    size = np.sqrt(np.mean(x**2, axis=0))
    size = np.where(size > 0, size, 1)
    normal = (x / size).T @ (x / size) + (0.01 * len(x) + x.shape[-1]) * np.eye(x.shape[-1])
    return np.linalg.solve(normal, (x / size).T @ y) / size[:, None]


def start(posterior: Any) -> Adaptation | None:
    """The adaptation of a posterior, if its preconditioner is one that is adapted."""
    return None if posterior.preconditioner is None else posterior.preconditioner.adaptation
