"""Density of galaxies as forward models: linear theory, and simulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, Literal, cast, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import LARGEST_TRACER_BIAS
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.distance import comoving_distance, scale_factor_at
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.infer.cosmological import CosmologicalModel, SimulatedModel
from pmwd_dist.infer.forward import Observable, wavevectors
from pmwd_dist.infer.values import names_of, number_or_name, value_of
from pmwd_dist.observe.bias import eulerian_bias
from pmwd_dist.observe.density_cone import DensityCone, in_block_order, reach, redshift_series
from pmwd_dist.observe.passage import weight_nodes
from pmwd_dist.observe.redshift_space import LineOfSight, direction, kaiser_factor
from pmwd_dist.observe.shells import checked_observer, is_traced
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.fft import pirfft3d
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.paint import density, halo_limit
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import Status, failure, successful

Gravity = Literal["nbody", "lpt"]


class LinearField(CosmologicalModel):
    """Galaxies in linear theory: 1 + (b + f mu^2) D1 delta, linear and Gaussian in the noise (Kaiser 1987).

    Args:
      config: configuration of the simulation; the field is at `a_stop`.
      cosmo: cosmology, for the parameters that are not sampled.
      bias: linear bias, a number or the name of a parameter; default: 1.
      line_of_sight: direction of redshift distortions, "x", "y", "z" or three numbers; default: real space.
      linear_power: linear P(k), as in `linear_modes`.
      normalise: whether to scale a table of P(k) to sigma8, sampled or of the cosmology.

    Raises:
      ValueError: a lattice other than the mesh, or an argument out of its range.
    """

    _: KW_ONLY
    bias: str | float = eqx.field(static=True, default=1.0)
    line_of_sight: LineOfSight | None = eqx.field(static=True, default=None)

    def __post_init__(self):
        super().__post_init__()
        self.bias, config = number_or_name(self.bias, "bias", -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS), self.config
        if config.particle_shape != config.mesh_shape:
            constraint = f"must be mesh_shape={config.mesh_shape} for a linear field"
            raise ArgumentError("particle_shape", config.particle_shape, constraint, "leave it out")
        if self.line_of_sight is not None:
            self.line_of_sight = direction(self.line_of_sight)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the bias, if it is a parameter."""
        return names_of(self.bias)

    def __call__(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> Float[Array, "nx ny nz"]:
        """Density of galaxies, in units of the mean, on the lattice of the noise."""
        modes, table = self.linear_modes(noise, parameters)
        modes = modes * self._factor(parameters, table).astype(noise.dtype)
        return 1 + pirfft3d(modes, self.config.particle_shape, self.config.decomposition)

    def response(self, parameters: Mapping[str, ArrayLike]) -> Float[Array, "nx ny nk"]:
        """Ratio of the modes of the field to the modes of the noise, in the layout of `prfft3d`."""
        amplitude, table = self._amplitude(parameters)
        return amplitude * self._factor(parameters, table)

    def _factor(self, parameters: Mapping[str, ArrayLike], table: GrowthTable) -> Array:
        return kaiser_factor(value_of(self.bias, parameters), table, self.config, self.line_of_sight)


class Simulation(SimulatedModel):
    """Particles evolved by gravity, and an observable of them.

    Args:
      config: configuration of the simulation, which is observed at `a_stop`.
      cosmo: cosmology, for the parameters that are not sampled.
      gravity: "nbody", the default, or "lpt" for the particles of `lpt` at a_stop.
      bias: linear Eulerian bias, a number or the name of a parameter: the field is 1 + bias delta; default: 1.
      observable: function of (particles, linear modes, parameters, growth table, config) that gives a field on the mesh
        in units of its mean, or an `Observable` such as `LagrangianGalaxies`; default: the biased density.
      linear_power: linear P(k), as in `linear_modes`.
      normalise: whether to scale a table of P(k) to sigma8, sampled or of the cosmology.
      solver: solver, as in `nbody`.
      potential_factor: factor of the potential, as in `nbody`.
      observer: position of an observer in the box [Mpc/h], who sees the galaxies on the light cone in place of those at
        a_stop: the field has them in their directions at the distances of their observed redshifts in `cosmo`, the
        fiducial cosmology, out to the sides of the box. The observable is None or `LagrangianGalaxies`.
    """

    _: KW_ONLY
    gravity: Gravity = eqx.field(static=True, default="nbody")
    bias: str | float = eqx.field(static=True, default=1.0)
    observable: Callable[..., Array] | None = eqx.field(static=True, default=None)
    observer: Sequence[float] | None = eqx.field(static=True, default=None)

    def __post_init__(self):
        super().__post_init__()
        self.bias = number_or_name(self.bias, "bias", -LARGEST_TRACER_BIAS, LARGEST_TRACER_BIAS)
        if self.observer is not None:
            self.observer = checked_observer(self.observer, self.config.box_size)
            self._check_light_cone()
        if self.observable is not None and not callable(self.observable):
            remedy = "use LagrangianGalaxies, or a function of (particles, modes, parameters, table, config)"
            raise ArgumentError("observable", self.observable, "must be a function", remedy)
        if self.observable is not None and self.bias != 1.0:
            raise ArgumentError("bias", self.bias, "has no effect beside an observable", "leave one of them out")
        if self.gravity not in get_args(Gravity):
            constraint = 'must be "nbody" or "lpt"'
            raise ArgumentError("gravity", self.gravity, constraint, "for linear theory use LinearField")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bias parameters."""
        return *names_of(self.bias), *(self.observable.names if isinstance(self.observable, Observable) else ())

    def __call__(
        self, noise: Array, parameters: Mapping[str, ArrayLike]
    ) -> tuple[Float[Array, "nx ny nz"], Status | None]:
        """The observable in units of its mean, and the status of the simulation."""
        modes, table = self.linear_modes(noise, parameters)
        observe = self.observable
        if isinstance(observe, Observable):
            observe = observe.with_power(self.of_cosmology or self.linear_power)
        if self.observer is not None:
            return self._on_light_cone(modes, table, observe, parameters)
        particles, status = self._evolved(modes, table)
        if observe is not None:
            return observe(particles, modes, parameters, table, self.config), status
        return eulerian_bias(density(particles, self.config), value_of(self.bias, parameters), self.config), status

    def _evolved(self, modes: Array, table: GrowthTable) -> tuple[Particles, Status | None]:
        if self.gravity == "lpt":
            return lpt(modes, table, self.config, a=self.config.a_stop), None
        solution = self._nbody(modes, table)
        return solution.particles, solution.status

    def _check_light_cone(self) -> None:
        """Raise ValueError unless the simulation spans the light cone out to the farthest corner of its box."""
        config, observe = self.config, self.observable
        if self.gravity != "nbody" or self.bias != 1.0:
            remedy = 'use gravity="nbody", and a bias of LagrangianGalaxies'
            raise ArgumentError("observer", self.observer, "needs an N-body simulation without bias", remedy)
        if observe is not None and (not isinstance(observe, Observable) or observe.line_of_sight is not None):
            constraint = "must be LagrangianGalaxies without line_of_sight, which starts at the observer"
            raise ArgumentError("observable", observe, constraint, show_value=False)
        if abs(config.a_stop - 1) > 1e-6:
            raise ArgumentError("a_stop", config.a_stop, "must be 1, where the observer is")
        if is_traced(self.table):
            return
        far, most = float(comoving_distance(config.a_start, self.table)), reach(config, cast("Any", self.observer))
        if far < most:
            constraint = f"begins the light cone {far:.5g} Mpc/h away, and the box reaches {most:.5g} Mpc/h"
            raise ArgumentError("a_start", config.a_start, constraint, "use an earlier one")

    def _on_light_cone(
        self, modes: Array, table: GrowthTable, observe: Any, parameters: Mapping[str, ArrayLike]
    ) -> tuple[Array, Status]:
        """Density of galaxies on the light cone, and the status."""
        config, observer = self.config, cast("Any", self.observer)
        first = scale_factor_at(reach(config, observer), self.table)
        logs = jnp.stack([jnp.full_like(first, -0.05), -jnp.log(jnp.maximum(first / 1.2, config.a_start))])
        (a, nodes), weights = weight_nodes(first, 1.0, table), list[Array]()
        for at in () if observe is None else a:
            assert isinstance(observe, Observable)
            found = observe.weights(modes, parameters, table, config, at)
            if found is None:
                raise ArgumentError("observable", observe, "has no weights for a light cone", show_value=False)
            weights.append(in_block_order(found, config))
        series = (redshift_series(x, logs) for x in (table, self.table))
        cone = DensityCone(config, observer, tuple(weights), nodes, logs, *series)
        solution = self._nbody(modes, table, cone)
        field = solution.accumulated
        return (field if observe is None else observe.windowed(field, config)), solution.status

    def status(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> Status:
        """Status of the simulation; of LPT, whether its displacements are within the halo."""
        particles, status = self._evolved(*self.linear_modes(noise, parameters))
        if status is not None:
            return status
        largest, limit = max_abs(particles.disp) / min(self.config.cell_size), halo_limit(self.config)
        like = successful(largest.dtype)
        return Status(failure(largest, limit, jnp.inf), like.step, largest, jnp.full_like(largest, limit))

    def response(self, parameters: Mapping[str, ArrayLike]) -> Float[Array, "nx ny nk"]:
        """Ratio of the modes of the field to the modes of the noise in linear theory, painted by cloud-in-cell.

        An observable that is a plain function is taken as matter.
        """
        amplitude, table = self._amplitude(parameters)
        bias, line_of_sight = value_of(self.bias, parameters), None
        if isinstance(self.observable, Observable):
            bias, line_of_sight = self.observable.linear_bias(parameters), self.observable.line_of_sight
        elif self.observable is not None:
            bias = 1.0
        factor = kaiser_factor(bias, table, self.config, line_of_sight)
        k = zip(wavevectors(self.config), self.config.cell_size, strict=True)
        return amplitude * factor * math.prod(jnp.sinc(component * side / (2 * np.pi)) ** 2 for component, side in k)
