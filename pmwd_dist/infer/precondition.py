"""Preconditioning in linear theory: per mode of the noise, the variance that data leave it (Wiener 1949).

Where data are d(k) = R(k) w(k) + n(k), with white noise w of unit variance, n of variance s^2 in each cell, and the
response R of a forward model, w(k) has the posterior mean R d / (R^2 + s^2) and the variance 1 / (1 + R^2 / s^2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import pirfft3d, prfft3d


class Preconditioner(eqx.Module):
    """The standard deviation of each mode of the noise, given data, in linear theory at fiducial parameters.

    Args:
      forward: with a method `response(parameters)`: modes of the field per mode of the noise, real.
      likelihood: with a method `noise_variance(parameters, config)`.
      parameters: fiducial.
      config: the simulation.

    Raises:
      ValueError: a forward model without a response, or a mesh other than the lattice.
    """

    scale: Float[Array, "nx ny nk"]

    def __init__(self, forward: Any, likelihood: Any, parameters: Mapping[str, ArrayLike], config: Config):
        if not callable(getattr(forward, "response", None)):
            remedy = "use one of pmwd_dist.infer, give it a method response(parameters), or precondition=None"
            raise ArgumentError("precondition", "wiener", "needs a forward model with a response", remedy)
        if config.mesh_shape != config.particle_shape:
            constraint = f"needs mesh_shape={config.mesh_shape} to be particle_shape={config.particle_shape}"
            raise ArgumentError("precondition", "wiener", constraint, "use precondition=None")
        variance, gain = wiener(forward, likelihood, parameters, config)
        del gain
        self.scale = jnp.sqrt(variance)


@eqx.filter_jit
def wiener(
    forward: Any, likelihood: Any, parameters: Mapping[str, ArrayLike], config: Config
) -> tuple[Float[Array, "nx ny nk"], Float[Array, "nx ny nk"]]:
    """Posterior variance of each mode of the noise, and what its posterior mean is per mode of the data."""
    response = forward.response(parameters)
    noise = likelihood.noise_variance(parameters, config)
    sharding = config.decomposition.spectrum_sharding
    variance, gain = noise / (response**2 + noise), response / (response**2 + noise)
    return jax.lax.with_sharding_constraint((variance, gain), (sharding, sharding))


def filtered(field: Array, factor: Array, config: Config) -> Float[Array, "nx ny nz"]:
    """A field on the lattice, its modes multiplied by a real factor."""
    decomposition = config.decomposition
    modes = prfft3d(field, decomposition) * factor.astype(field.dtype)
    return pirfft3d(modes, config.particle_shape, decomposition)


def wiener_draw(
    key: Array,
    noise: Array,
    data: Array,
    parameters: Mapping[str, ArrayLike],
    forward: Any,
    likelihood: Any,
    config: Config,
) -> Float[Array, "nx ny nz"]:
    """White noise drawn from its posterior in linear theory: a prior draw, moved to the data (Hoffman & Ribak 1991)."""
    _, gain = wiener(forward, likelihood, parameters, config)
    variance = likelihood.noise_variance(parameters, config)
    errors = jnp.sqrt(variance).astype(data.dtype) * jax.random.normal(key, data.shape, data.dtype)
    mock = filtered(noise, forward.response(parameters), config) + errors
    return noise + filtered(likelihood.contrast(data, parameters) - mock, gain, config)
