"""Adaptation of a preconditioner to a posterior beyond linear theory, from gradients g of its log density.

The derivation is in docs/explanation/tuning.md. The unknowns of each band of modes are

- `scale`: width of the modes, for a curvature c = E[g^2] of sqrt(c), or `LARGEST_CURVATURE` if that is less;
- `shift`: slope of the Wiener mean with a parameter, which leaves the parameter the least curvature;
- `stretch`: slope of the logarithm of the width with a parameter, which keeps c constant; without linear theory only.

Without linear theory the `mean` of the noise x is the mean of x + d log p / dx along the chains. Parameters are scaled
along the eigenvectors of the remaining curvature (`factor`). All maps are linear in the position at given parameters,
and their volume depends on these alone: the posterior stays exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._jax.program import filter_jit
from pmwd_dist.infer.constants import BANDS, CURVATURE_DIFFERENCE, LARGEST_CURVATURE, RIDGE
from pmwd_dist.parallel.distributed import to_host
from pmwd_dist.parallel.fft import prfft3d


class Adaptation(eqx.Module):
    """Changes of a preconditioner in linear theory.

    Args:
      scale: scale factor of the modes of each band.
      stretch: derivative of the logarithm of the scale with each parameter of the position.
      shift: derivative of the gain of each band with each parameter, or of its logarithm if there is a mean.
      centre: parameters at which these changes are zero.
      factor: matrix from the parameters of the position to linear theory's scales.
      mean: mean of the noise, where there is no linear theory.
    """

    scale: Float[Array, " bands"]
    stretch: Float[Array, "p bands"]
    shift: Float[Array, "p bands"]
    centre: Float[Array, " p"]
    factor: Float[Array, "p p"]
    mean: Float[Array, "nx ny nz"] | None

    @classmethod
    def none(cls, count: int, bands: int = BANDS, mean: Array | None = None) -> Adaptation:
        """No change, for `count` parameters."""
        zeros = jnp.zeros((count, bands))
        return cls(jnp.ones(bands), zeros, zeros, jnp.zeros(count), jnp.eye(count), mean)

    def gain(self, parameters: Float[Array, " p"]) -> Float[Array, " bands"]:
        """Factor of the mean of each band."""
        change = jnp.sum(self.shift * (parameters - self.centre)[:, None], axis=0)
        return 1 + change if self.mean is None else jnp.exp(change)

    def stretched(self, parameters: Float[Array, " p"]) -> Float[Array, " bands"]:
        """Logarithm of the parameter-dependent scale factor of each band."""
        return jnp.sum(self.stretch * (parameters - self.centre)[:, None], axis=0)


class Observations(NamedTuple):
    """Statistics of a gradient of the log density, or of gradients along chains with shape (chains, steps, ...).

    Args:
      slopes: gradients along the parameters of the position.
      sums: gradients times means of the modes, summed over each band.
      spreads: gradients times positions, summed over each band, plus the number of modes.
      squares: squared gradients, summed over each band.
      parameters: parameters in linear theory's scales.
      scaled: parameters of the position.
    """

    slopes: Any
    sums: Any
    spreads: Any
    squares: Any
    parameters: Any
    scaled: Any


def adapt(old: Adaptation, observed: Observations, mean: Any, modes: Any, changes: Any = None) -> Adaptation:
    """The adaptation after chains have run with another.

    `observed` has the shapes (chains, steps, ...). `mean` is the mean of the noise of each chain
    (`Preconditioner.observe`), used if the old adaptation has a mean. Without `changes`, the derivatives of the
    logarithm of the curvature of each band with each parameter (`changes_of_curvature`), modes do not follow the
    parameters yet.
    """
    factor, shift, stretch = (np.array(x, float) for x in (old.factor, old.shift, old.stretch))
    centre = observed.parameters.mean(axis=(0, 1))
    away = centre - np.asarray(old.centre, float)
    squares = observed.squares.mean(axis=(0, 1)) / np.maximum(modes, 1)
    old_scale = np.asarray(old.scale, float) * np.exp(away @ stretch)
    scale = np.where(squares > 0, _widths(np.where(squares > 0, squares, 1) / old_scale**2), 1)
    # About the mean of each chain, so that a drift is not taken for curvature.
    slopes = _about_mean(np.linalg.solve(factor.T, observed.slopes[..., None])[..., 0])
    if changes is not None:
        changes, slopes = np.asarray(changes, float), slopes.copy()
        sums = _about_mean(observed.sums.reshape(*slopes.shape[:2], -1, BANDS).sum(axis=2))
        for i, stretch_i in enumerate(-0.5 * changes):
            regressors = np.concatenate([sums, _about_mean(observed.spreads @ stretch_i)[..., None]], axis=-1)
            coefficients = -_regression(regressors.reshape(-1, BANDS + 1), slopes[..., i].ravel())
            slopes[..., i] += regressors @ coefficients
            shift[i] += np.tile(coefficients[:-1], len(scale) // BANDS)
            stretch[i] += coefficients[-1] * stretch_i
        weight = modes * squares * (scale / old_scale) ** 2
        common = -0.5 * ((changes + 2 * stretch) @ weight / np.sum(weight))
        stretch += common[:, None]
        slopes += _about_mean(observed.spreads.sum(axis=-1))[..., None] * common
    slopes = slopes.reshape(math.prod(slopes.shape[:2]), slopes.shape[-1])  # also without parameters
    # The curvature of linear theory, 1, is a lower bound where the field constrains parameters otherwise.
    curvature, axes = np.linalg.eigh(slopes.T @ slopes / len(slopes) + np.eye(slopes.shape[-1]))
    arrays = [scale, stretch, shift, centre, axes * _widths(curvature)]
    arrays += [] if old.mean is None else [np.mean(mean, axis=0)]
    leaves, structure = jax.tree.flatten(old)
    return jax.tree.unflatten(structure, [np.asarray(x, y.dtype) for x, y in zip(arrays, leaves, strict=True)])


@filter_jit
def _mode_numbers(posterior: Any) -> Array:
    return posterior.preconditioner.sums(jnp.ones(()), posterior.model.config)


def mode_numbers(posterior: Any) -> np.ndarray:
    """Number of modes of each band of a posterior's preconditioner. Collective."""
    return to_host(_mode_numbers(posterior))


@filter_jit
def changes_of_curvature(
    key: Array, posterior: Any, positions: Any, spmd_axis_name: str | None = None
) -> Float[Array, "p bands"]:
    """Derivatives of the logarithm of each band's curvature with each parameter in linear theory's scales.

    The curvature of the data is the mean square of gradients of the log density of mocks (Fisher 1925), to which the
    curvature of the prior is added. Its derivative is a difference between mocks with the same random numbers at two
    values of a parameter. It is zero in linear theory, whose widths follow the parameters, and if a simulation fails.
    """
    model, preconditioner = posterior.model, posterior.preconditioner
    config, likelihood = model.config, model.likelihood
    counts = jnp.maximum(preconditioner.sums(jnp.ones(()), config), 1)

    def curvature(key: Array, position: Any, away: Array) -> Array:
        moved = position | {"parameters": preconditioner.away(position["parameters"], away)}
        noise, parameters = posterior.from_latent(moved)
        field, back, fine = jax.vjp(lambda noise: model.predict(noise, parameters), noise, has_aux=True)
        data = likelihood.draw(key, field, parameters, config)
        slope = jax.grad(lambda field: likelihood.logdensity(data, field, parameters, config))(field)
        modes = prfft3d(back(slope)[0], config.decomposition, norm="ortho")
        square = preconditioner.sums(1 + modes.real**2 + modes.imag**2, config)
        return jnp.where(fine, square / counts, jnp.nan)

    def logarithm(away: Array) -> Array:
        keys = jax.random.split(key, positions["noise"].shape[0])
        each = jax.vmap(lambda k, z: curvature(k, z, away), spmd_axis_name=spmd_axis_name)(keys, positions)
        return jnp.log(jnp.maximum(jnp.mean(each, axis=0), 1e-30))

    unit = jnp.eye(len(positions["parameters"]))
    if preconditioner.linear or not len(unit):
        return jnp.zeros((len(unit), preconditioner.band_count))
    step = CURVATURE_DIFFERENCE
    steps = jnp.concatenate([-step * unit, step * unit])
    before, after = jnp.split(jax.lax.map(logarithm, steps), 2)
    changes = (after - before) / (2 * step)
    return jnp.where(jnp.isfinite(changes), changes, 0)


def _about_mean(x: np.ndarray) -> np.ndarray:
    """Differences from the mean of each chain."""
    return x - x.mean(axis=1, keepdims=True)


def _widths(curvature: np.ndarray) -> np.ndarray:
    return np.sqrt(np.minimum(curvature**-0.5, LARGEST_CURVATURE / curvature))


def _regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of y on x, about 1 in size, shrunk to zero where there are few data."""
    every = x.T @ x
    every += (RIDGE + x.shape[1] / len(x)) * np.diag(np.diag(every)) + np.mean(y**2) * np.eye(len(every))
    return np.linalg.solve(every, x.T @ y)
