"""Coordinates of a posterior (docs/explanation/tuning.md): linear theory of each mode, adapted by gradients g.

| parameters | are |
|---|---|
| `parameters` | of the model, as in its priors |
| `white` | whitened: standard normal in the prior |
| in linear scales | of unit covariance in linear theory, `white = factor @ linear` |
| `scaled`, of a position | adapted to the posterior, `linear = adaptation.factor @ scaled`; these are sampled |

The unknowns of the adaptation of each band of modes are

- `scale`: width of the modes, for a curvature c = E[g^2] of sqrt(c), or `LARGEST_CURVATURE` if that is less;
- `shift`: slope of the Wiener mean with a parameter, which leaves the parameter the least curvature;
- `stretch`: slope of the logarithm of the width with a parameter, which keeps c constant; without linear theory only.

Without linear theory the `mean` of the noise x is the mean of x + d log p / dx along the chains. Parameters are scaled
along the eigenvectors of the remaining curvature (`factor`). All maps are linear in the position at given parameters,
and their volume depends on these alone: the posterior stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import filter_jit
from pmwd_dist.config import Config
from pmwd_dist.infer.bands import bands, mode_counts
from pmwd_dist.infer.constants import (
    BANDS,
    CLASSES,
    CURVATURE_DIFFERENCE,
    LARGEST_CURVATURE,
    PARTS_OF_CHAIN,
    RIDGE,
    SLOPE,
)
from pmwd_dist.infer.forward import of_shape
from pmwd_dist.infer.priors import unwhiten
from pmwd_dist.parallel.distributed import to_devices
from pmwd_dist.parallel.fft import pirfft3d, prfft3d


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


class Preconditioner(eqx.Module):
    """Mean and standard deviation of each mode of the noise, given the data and parameters of a posterior.

    Args:
      model: model of the data. The moments are those of the prior until they are adapted, if the mesh is not the
        lattice or one of these is unknown: `response` of the forward model, `contrast` and `noise_variance` of the
        likelihood.
    """

    factor: Float[Array, "p p"] = eqx.field(metadata={"derived": True})
    adaptation: Adaptation
    along: int | None = eqx.field(static=True, metadata={"derived": True})  # axis along which modes differ

    def __init__(self, model: Any):
        config, medians = model.config, dict.fromkeys(model.priors, jnp.zeros(()))
        factor = _parameter_scales(model, medians) if config.mesh_shape == config.particle_shape else None
        linear = factor is not None
        self.factor = factor if linear else jnp.eye(len(medians))
        self.along = None if linear else model.forward.along
        if self.along not in (None, 0, 1, 2):
            raise ArgumentError("forward.along", self.along, "must be an axis of the box: 0, 1 or 2")
        place = config.decomposition.sharding
        mean = None if linear else jnp.zeros(config.particle_shape, float, device=place)
        none = Adaptation.none(len(medians), self.band_count)  # on the devices, as later ones are
        none = jax.tree.map(lambda x: to_devices(x, config.decomposition.replicated), none)
        self.adaptation = replace(none, mean=mean)

    @property
    def linear(self) -> bool:
        """Whether linear theory gives the moments."""
        return self.adaptation.mean is None

    @property
    def band_count(self) -> int:
        """Number of bands of the modes."""
        return BANDS * (1 if self.along is None else CLASSES)

    def sums(self, x: Array, config: Config) -> Float[Array, " bands"]:
        """Sums of a spectrum over the modes of each band."""
        return bands(config, self.along).sums(x * mode_counts(config, float))

    def away(self, parameters: Mapping[str, Array], by: Array) -> dict[str, Array]:
        """Parameters of a position, moved in linear theory's scales."""
        return _named(_vector(parameters) + _times(jnp.linalg.inv(self.adaptation.factor), by), parameters)

    def whitened(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Whitened parameters from the parameters of a position."""
        return _named(_times(self.factor, self.in_linear_scales(parameters)), parameters)

    def scaled(self, white: Mapping[str, Array]) -> dict[str, Array]:
        """Parameters of a position from whitened parameters."""
        vector = _times(jnp.linalg.inv(self.factor), _vector(white))
        return _named(_times(jnp.linalg.inv(self.adaptation.factor), vector), white)

    def in_linear_scales(self, parameters: Mapping[str, Array]) -> Array:
        """Parameters of a position in linear theory's scales, in the order of their names."""
        return _times(self.adaptation.factor, _vector(parameters))

    def noise(
        self, posterior: Any, position: Mapping[str, Any], parameters: Mapping[str, ArrayLike]
    ) -> tuple[Array, Array]:
        """White noise of a position, and the logarithm of the volume of the scales, up to a constant."""
        z, config = position["noise"], posterior.model.config
        width, mean, volume = self._moments(posterior, position["parameters"], parameters)
        modes = prfft3d(z, config.decomposition) * width.astype(z.dtype) + mean.astype(_complex(z))
        return pirfft3d(modes, config.particle_shape, config.decomposition), volume

    def position(self, posterior: Any, noise: Array, white: Mapping[str, Array]) -> dict[str, Any]:
        """The position of white noise and whitened parameters."""
        model, scaled = posterior.model, self.scaled(white)
        width, mean, _ = self._moments(posterior, scaled, unwhiten(white, model.priors))
        modes = (prfft3d(noise, model.config.decomposition) - mean) / width
        noise = pirfft3d(modes.astype(_complex(noise)), model.config.particle_shape, model.config.decomposition)
        return {"noise": noise, "parameters": scaled}

    def observe(
        self, posterior: Any, position: Mapping[str, Any], slope: Mapping[str, Any]
    ) -> tuple[Observations, Array]:
        """Observations from a gradient of the log density at a position.

        The second array is x + d log p / dx for the noise x, where the adaptation estimates the mean of the noise.
        """
        scaled, parameters, config = position["parameters"], posterior.parameters(position), posterior.model.config
        decomposition = config.decomposition
        width, mean, _ = self._moments(posterior, scaled, parameters, follow=not self.linear)
        slopes, modes = (prfft3d(tree["noise"], decomposition, norm="ortho") for tree in (slope, position))
        size = slope["noise"].size ** 0.5

        def times(other: Array) -> Array:
            return self.sums(jnp.real(jnp.conj(slopes) * other), config)

        observed = Observations(
            slopes=_vector(slope["parameters"]),
            sums=times(mean / (width * size)),
            spreads=times(modes) + self.sums(jnp.ones(()), config),
            squares=times(slopes),
            parameters=self.in_linear_scales(scaled),
            scaled=_vector(scaled),
        )
        if self.linear:
            return observed, jnp.zeros(0)
        noise = (modes * width + mean / size + slopes / width).astype(modes.dtype)
        return observed, pirfft3d(noise, config.particle_shape, decomposition, norm="ortho")

    def _moments(
        self, posterior: Any, scaled: Mapping[str, Array], parameters: Mapping[str, ArrayLike], *, follow: bool = True
    ) -> tuple[Array, Array, Array]:
        """Scale and mean of the modes of the noise, and the logarithm of their volume, up to a constant.

        The mean follows the parameters, or is fixed at the centre of the adaptation.
        """
        adaptation, config = self.adaptation, posterior.model.config
        if adaptation.mean is None:
            variance, gain = wiener(posterior.model, parameters)
            width, volume = jnp.sqrt(variance), 0.5 * jnp.sum(mode_counts(config, float) * jnp.log(variance))
            mean = gain * prfft3d(_contrast(posterior, parameters), config.decomposition)
        else:
            width, volume, mean = jnp.ones(()), 0.0, prfft3d(adaptation.mean, config.decomposition)
        each, u = bands(config, self.along), self.in_linear_scales(scaled)
        stretch = adaptation.stretched(u)
        width = width * each.at(adaptation.scale * jnp.exp(stretch))
        if follow:
            mean = mean * each.at(adaptation.gain(u))
        return width, mean, volume + jnp.sum(self.sums(jnp.ones(()), config) * stretch)


def wiener_draw(
    key: Array, noise: Array, posterior: Any, parameters: Mapping[str, ArrayLike]
) -> Float[Array, "nx ny nz"]:
    """White noise from its posterior in linear theory: a prior draw, moved to the data (Hoffman & Ribak 1991)."""
    model, data, decomposition = posterior.model, posterior.data, posterior.model.config.decomposition
    _, gain = wiener(model, parameters)
    variance = model.likelihood.noise_variance(parameters, model.config)
    size = jnp.sqrt(jnp.where(jnp.isinf(variance), 0, variance))  # the gain is 0 there
    errors = jax.random.normal(key, data.shape, data.dtype)
    contrast, drawn, errors = (prfft3d(x, decomposition) for x in (_contrast(posterior, parameters), noise, errors))
    change = gain * (contrast - model.forward.response(parameters) * drawn - size * errors)
    return noise + pirfft3d(change.astype(_complex(noise)), model.config.particle_shape, decomposition)


def _contrast(posterior: Any, parameters: Mapping[str, ArrayLike]) -> Array:
    contrast = posterior.model.likelihood.contrast(posterior.data, parameters)
    return of_shape(contrast, posterior.data.shape, "likelihood.contrast", "a field")


def _vector(numbers: Mapping[str, Array]) -> Array:
    """Parameters by their names' order."""
    return jnp.stack([jnp.asarray(numbers[name]) for name in sorted(numbers)]) if numbers else jnp.zeros(0)


def _named(vector: Array, like: Mapping[str, Any]) -> dict[str, Array]:
    return {name: vector[i] for i, name in enumerate(sorted(like))}


def _times(matrix: Array, vector: Array) -> Array:
    """Matrix product by single products: a matrix product has less precision on some devices."""
    return jnp.sum(matrix * vector.astype(matrix.dtype)[None, :], axis=1)


@filter_jit
def _parameter_scales(model: Any, white: dict[str, Array]) -> Float[Array, "p p"] | None:
    """Cholesky factor of the marginal covariance of the whitened parameters, by name; None without linear theory."""

    def linear_theory(white: dict[str, Array]) -> tuple[Any, ...]:
        parameters, data = unwhiten(white, model.priors), jnp.ones(model.forward.layout[0])
        response, contrast = model.forward.response(parameters), model.likelihood.contrast(data, parameters)
        return response, contrast, model.likelihood.noise_variance(parameters, model.config)

    def logarithm(white: dict[str, Array]) -> Array:
        parameters = unwhiten(white, model.priors)
        known = 1 / model.likelihood.noise_variance(parameters, model.config)  # 0 for modes that are not compared
        return jnp.log1p(model.forward.response(parameters) ** 2 * known) - jnp.log(jnp.where(known > 0, known, 1))

    if any(part is None for part in jax.eval_shape(linear_theory, white)):
        return None
    if not white:
        return jnp.zeros((0, 0))
    names = sorted(white)
    # In sequence, so that the tangent is compiled once.
    unit = jnp.eye(len(names), dtype=white[names[0]].dtype)
    along = {name: unit[:, i] for i, name in enumerate(names)}
    slopes = jax.lax.map(lambda direction: jax.jvp(logarithm, (white,), (direction,))[1], along)
    weight = mode_counts(model.config, slopes.dtype)
    fisher = jnp.stack([jnp.stack([0.5 * jnp.sum(weight * a * b) for b in slopes]) for a in slopes])
    return jnp.linalg.cholesky(jnp.linalg.inv(fisher + jnp.eye(len(names))))


@filter_jit
def wiener(
    model: Any, parameters: Mapping[str, ArrayLike]
) -> tuple[Float[Array, "nx ny nk"], Float[Array, "nx ny nk"]]:
    """Posterior variance of each mode of the noise, and the ratio of its posterior mean to the mode of the data."""
    response = model.forward.response(parameters)
    known = 1 / model.likelihood.noise_variance(parameters, model.config)  # 0 for modes that are not compared
    sharding = model.config.decomposition.spectrum_sharding
    variance = 1 / (1 + response**2 * known)
    gain = response * known * variance
    return jax.lax.with_sharding_constraint((variance, gain), (sharding, sharding))


def _complex(real: Array) -> Any:
    return jnp.result_type(real.dtype, jnp.complex64)


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
            coefficients = -_regression(regressors, slopes[..., i])
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
def mode_numbers(posterior: Any) -> Array:
    """Number of modes of each band of a posterior's preconditioner."""
    return posterior.preconditioner.sums(jnp.ones(()), posterior.model.config)


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
    """Coefficients of y, (chains, steps), on x, (chains, steps, n), about `SLOPE` in size, and 0 where data are few.

    Successive steps tell nearly the same: the variance of means over parts of a chain shows how many count as one.
    """
    length = max(y.shape[1] // PARTS_OF_CHAIN, 1)
    parts = y[:, : y.shape[1] // length * length].reshape(-1, length).mean(axis=1)
    alike = max(length * np.mean(parts**2) / max(np.mean(y**2), 1e-300), 1.0)
    x, y = x.reshape(-1, x.shape[-1]), y.ravel()
    every = x.T @ x
    every += (RIDGE + alike * x.shape[1] / len(x)) * np.diag(np.diag(every))
    every += alike * np.mean(y**2) / SLOPE**2 * np.eye(len(every))
    return np.linalg.solve(every, x.T @ y)
