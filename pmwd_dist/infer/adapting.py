"""Finds the adaptation of a preconditioner (`infer.adaptation`) in what chains have shown."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.infer.adaptation import BANDS, STIFFEST, Adaptation
from pmwd_dist.parallel.fft import prfft3d

_STEP = 0.5  # to each side, of a parameter in linear theory's scales


class Seen(NamedTuple):
    """What a slope of the log density shows, or slopes along chains, with arrays of shape (chains, steps, ...).

    Args:
      slopes: along the parameters of the position.
      sums: of each band, of slopes times means of the modes.
      spreads: of each band, of slopes times positions, and the number of modes: what a stretch of 1 adds to slopes.
      squares: of each band, of squares of the slopes.
      parameters: in linear theory's scales.
    """

    slopes: Any
    sums: Any
    spreads: Any
    squares: Any
    parameters: Any

    def packed(self) -> Array:
        """One array of all of it."""
        return jnp.concatenate([x.astype(self.sums.dtype) for x in self], axis=-1)

    @classmethod
    def unpacked(cls, observed: np.ndarray, count: int) -> Seen:
        """All of it, of so many parameters."""
        bands = (observed.shape[-1] - 2 * count) // 3
        return cls(*np.split(np.asarray(observed, float), np.cumsum([count, bands, bands, bands]), axis=-1))


def adapt(old: Adaptation, observed: np.ndarray, mean: Any, modes: Any, changes: Any = None) -> Adaptation:
    """The adaptation after chains have run with another.

    Args:
      old: with which the chains ran.
      observed: what they have shown (`Seen.packed`), of shape (chains, steps, ...).
      mean: of the noise, as each chain has shown it (`Preconditioner.observe`); used where the old one has a mean.
      modes: number of modes of each band.
      changes: of the logarithm of the curvature of each band with each parameter (`changes_of_curvature`), for modes to
        follow the parameters: of chains near the posterior.
    """
    factor, shift, stretch = (np.array(x, float) for x in (old.factor, old.shift, old.stretch))
    seen = Seen.unpacked(observed, len(factor))
    centre = seen.parameters.mean(axis=(0, 1))
    away = centre - np.asarray(old.centre, float)
    squares = seen.squares.mean(axis=(0, 1)) / np.maximum(modes, 1)
    old_scale = np.asarray(old.scale, float) * np.exp(away @ stretch)
    scale = np.where(squares > 0, _widths(np.where(squares > 0, squares, 1) / old_scale**2), 1)
    # About the mean of each chain, so that one that still drifts does not seem to be stiff.
    slopes = _about_mean(np.linalg.solve(factor.T, seen.slopes[..., None])[..., 0])
    if changes is not None:
        changes, slopes = np.asarray(changes, float), slopes.copy()
        sums = _about_mean(seen.sums.reshape(*slopes.shape[:2], -1, BANDS).sum(axis=2))
        for i, along in enumerate(-0.5 * changes):
            shown = np.concatenate([sums, _about_mean(seen.spreads @ along)[..., None]], axis=-1)
            by = -_regression(shown.reshape(-1, BANDS + 1), slopes[..., i].ravel())
            slopes[..., i] += shown @ by
            shift[i] += np.tile(by[:-1], len(scale) // BANDS)
            stretch[i] += by[-1] * along
        weight = modes * squares * (scale / old_scale) ** 2
        even = -0.5 * ((changes + 2 * stretch) @ weight / np.sum(weight))
        stretch += even[:, None]
        slopes += _about_mean(seen.spreads.sum(axis=-1))[..., None] * even
    slopes = slopes.reshape(math.prod(slopes.shape[:2]), slopes.shape[-1])  # of no parameters, too
    # Along parameters that the field doesn't see as linear theory does there is at least its curvature, 1.
    curvature, axes = np.linalg.eigh(slopes.T @ slopes / len(slopes) + np.eye(slopes.shape[-1]))
    arrays = [scale, stretch, shift, centre, axes * _widths(curvature)]
    arrays += [] if old.mean is None else [np.mean(mean, axis=0)]
    leaves, structure = jax.tree.flatten(old)
    return jax.tree.unflatten(structure, [np.asarray(x, y.dtype) for x, y in zip(arrays, leaves, strict=True)])


@eqx.filter_jit
def _mode_numbers(posterior: Any) -> Array:
    return posterior.preconditioner.sums(jnp.ones(()), posterior.model.config)


def mode_numbers(posterior: Any) -> np.ndarray:
    """Number of modes of each band of a posterior's preconditioner."""
    return np.asarray(_mode_numbers(posterior))


@eqx.filter_jit
def changes_of_curvature(
    key: Array, posterior: Any, positions: Any, spmd_axis_name: str | None = None
) -> Float[Array, "p bands"]:
    """Changes of the logarithm of each band's curvature with each parameter in linear theory's scales.

    They are zero where linear theory gives the widths, which follow the parameters there.

    The mean square of slopes of the log density of mocks is the curvature that data give modes on average (Fisher
    1925). Mocks with the same random numbers at parameters to both sides of those of a position differ by little but
    that; of chains, the means are compared. The curvature of the prior is added. Nothing where a simulation fails.

    Args:
      key: of jax.random.
      posterior: with a preconditioner.
      positions: of chains, with a leading axis.
      spmd_axis_name: axis of the device mesh over which chains are divided, if any.
    """
    model, preconditioner = posterior.model, posterior.preconditioner
    config, likelihood = model.config, model.likelihood
    counts = jnp.maximum(preconditioner.sums(jnp.ones(()), config), 1)

    def curvature(key: Array, position: Any, away: Array) -> Array:
        moved = position | {"parameters": preconditioner.away(position["parameters"], away)}
        noise, parameters = posterior.unwhiten(moved)
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
    steps = jnp.concatenate([-_STEP * unit, _STEP * unit])
    before, after = jnp.split(jax.lax.map(logarithm, steps), 2)
    changes = (after - before) / (2 * _STEP)
    return jnp.where(jnp.isfinite(changes), changes, 0)


def _about_mean(x: np.ndarray) -> np.ndarray:
    """Differences from the mean of each chain."""
    return x - x.mean(axis=1, keepdims=True)


def _widths(curvature: np.ndarray) -> np.ndarray:
    return np.sqrt(np.minimum(curvature**-0.5, STIFFEST / curvature))


def _regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Coefficients of y on x, of a size of about 1, drawn to zero where there are few data."""
    every = x.T @ x
    every += (0.01 + x.shape[1] / len(x)) * np.diag(np.diag(every)) + np.mean(y**2) * np.eye(len(every))
    return np.linalg.solve(every, x.T @ y)
