"""Forward models: from white noise and parameters to a field on the mesh, such as the density of galaxies.

A forward model is a function (noise, parameters) -> field, or -> (field, status), with the field in units of its mean.
As a subclass of `ForwardModel` it also has a linear response to the noise, for preconditioning, and a layout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.parallel.fft import fftfreq3d
from pmwd_dist.pm.particles import Particles


class ForwardModel(eqx.Module):
    """A function of white noise and parameters, in a simulation of one configuration. Abstract.

    Attributes:
      config: configuration of the simulation.
      names: names of the parameters that need a prior.
    """

    config: eqx.AbstractVar[Config]

    @abstractmethod
    def __call__(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> Any:
        """The field in units of its mean, or the field and the status of the simulation."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that need a prior."""
        return ()

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the parameters that it uses where they have a prior."""
        return ()

    @property
    def layout(self) -> tuple[tuple[int, ...], NamedSharding]:
        """Shape of the field, and its division over devices; by default as the mesh."""
        return self.config.mesh_shape, self.config.decomposition.sharding

    def response(self, parameters: Mapping[str, ArrayLike]) -> Array | None:
        """Real ratio of the modes of the field to the modes of the noise in linear theory; None: unknown."""
        del parameters
        return None

    @property
    def along(self) -> int | None:
        """Axis of the box along which the field is a sum, and modes differ in how they are seen; None: no axis."""
        return None


class Observable(eqx.Module):
    """A field on the mesh, observed in a simulation. Abstract.

    Attributes:
      line_of_sight: axis of redshift distortions, as in `LinearField`; None: real space.
    """

    line_of_sight = None  # without a type, so that a field of a subclass may replace it

    @abstractmethod
    def __call__(
        self,
        particles: Particles,
        modes: Array,
        parameters: Mapping[str, ArrayLike],
        table: GrowthTable,
        config: Config,
    ) -> Array:
        """The field in units of its mean, from particles at `config.a_stop` and linear modes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that need a prior."""
        return ()

    def linear_bias(self, parameters: Mapping[str, ArrayLike]) -> Any:
        """Eulerian bias of long waves; by default the one of matter."""
        del parameters
        return 1.0

    def weights(
        self, modes: Array, parameters: Mapping[str, ArrayLike], table: GrowthTable, config: Config, a: Any = None
    ) -> Array | None:
        """Weights of the particles at a scale factor, for a light cone; None: there are none."""
        del modes, parameters, table, config, a
        return None

    def windowed(self, density: Array, config: Config) -> Array:
        """A painted density with the window of the data; by default cloud-in-cell, as it is."""
        del config
        return density

    def with_power(self, linear_power: Any) -> Observable:
        """The observable of a simulation with this linear P(k)."""
        del linear_power
        return self


class Function(ForwardModel):
    """A function of (noise, parameters) as a forward model."""

    config: Config = eqx.field(static=True)
    function: Callable[..., Any]

    def __call__(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> Any:
        """The result of the function."""
        return self.function(noise, parameters)


def of_shape(x: Any, shape: tuple[int, ...], function: str, what: str) -> Any:
    """The result of a user's function; ValueError if it has another shape, or is complex."""
    got = () if isinstance(x, Real) else getattr(x, "shape", None)
    kind = "a complex array" if isinstance(x, jnp.ndarray) and jnp.iscomplexobj(x) else "an array"
    if got != shape or kind != "an array":
        result = f"{kind} of shape {got}" if got is not None else "None" if x is None else f"a {type(x).__name__}"
        constraint = f"returns {result}, and must return {what} of shape {shape}"
        raise ArgumentError(function, x, constraint, show_value=False)
    return x


def wavevectors(config: Config) -> tuple[Array, Array, Array]:
    """Wavevectors of the particle lattice [h/Mpc], in the layout of `prfft3d`."""
    return fftfreq3d(config.particle_shape, config.decomposition, config.box_size)
