"""Galaxies as an observable of a forward model: Lagrangian bias, in real or redshift space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_choice
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.infer.cosmological import checked_table
from pmwd_dist.infer.forward import Observable
from pmwd_dist.infer.values import check_distinct, names_of, number_or_name, on_host, value_of
from pmwd_dist.observe.assignment import Window, with_window
from pmwd_dist.observe.bias import LagrangianBias, bias_weights, checked_smoothing, tracer_density
from pmwd_dist.observe.redshift_space import direction, redshift_space
from pmwd_dist.pm.particles import Particles


class LagrangianGalaxies(Observable):
    """Density of galaxies with a Lagrangian bias (`observe.LagrangianBias`), an `observable` of `Simulation`.

    Args:
      b1, b2, bs2, bnabla2, bphi, bphidelta, b3, bdeltas2, bs3: bias parameters, as numbers or names; bphi and bphidelta
        act where the model has f_nl.
      smoothing: radius of the filter on the linear density [Mpc/h], as in `observe.bias_weights`.
      line_of_sight: "x", "y" or "z" for redshift space; None: real space.
      linear_power: linear P(k), for bphi and bphidelta; None: the one of the `Simulation`.
      window: window of the data, as in `observe.counts_from_catalogue`.
    """

    b1: str | float = eqx.field(static=True, default=0.0)
    b2: str | float = eqx.field(static=True, default=0.0)
    bs2: str | float = eqx.field(static=True, default=0.0)
    bnabla2: str | float = eqx.field(static=True, default=0.0)
    bphi: str | float = eqx.field(static=True, default=0.0)
    bphidelta: str | float = eqx.field(static=True, default=0.0)
    b3: str | float = eqx.field(static=True, default=0.0)
    bdeltas2: str | float = eqx.field(static=True, default=0.0)
    bs3: str | float = eqx.field(static=True, default=0.0)
    smoothing: float | None = eqx.field(static=True, default=None)
    line_of_sight: str | None = eqx.field(static=True, default=None)
    linear_power: Any = None
    window: Window = eqx.field(static=True, default="cloud-in-cell")

    def __post_init__(self):
        given = {bias.name: number_or_name(getattr(self, bias.name), bias.name) for bias in fields(LagrangianBias)}
        for name, bias in given.items():
            setattr(self, name, bias)
        bias = LagrangianBias(**{name: 1.0 if isinstance(x, str) else x for name, x in given.items()})
        check_distinct(self.names)
        checked_smoothing(self.smoothing, bias)
        self.smoothing = on_host(self.smoothing)
        check_choice(self.window, "window", get_args(Window))
        if self.line_of_sight is not None:
            direction(self.line_of_sight)
        if isinstance(self.linear_power, tuple | list):
            self.linear_power = checked_table(self.linear_power, math.inf, 0)

    def __call__(
        self,
        particles: Particles,
        modes: Array,
        parameters: Mapping[str, ArrayLike],
        table: GrowthTable,
        config: Config,
    ) -> Array:
        """Density of galaxies in units of the mean, from particles at `config.a_stop`."""
        weights = self.weights(modes, parameters, table, config)
        if self.line_of_sight is not None:
            particles = redshift_space(particles, table, config, line_of_sight=self.line_of_sight, a=config.a_stop)
        return self.windowed(tracer_density(particles, weights, config), config)

    def windowed(self, density: Array, config: Config) -> Array:
        """A painted density with the window of the data."""
        return with_window(density, config, self.window)

    def weights(
        self, modes: Array, parameters: Mapping[str, ArrayLike], table: GrowthTable, config: Config, a: Any = None
    ) -> Array:
        """Weights of the particles as galaxies at a scale factor, by default at `config.a_stop`."""
        bias = LagrangianBias(**{b.name: value_of(getattr(self, b.name), parameters) for b in fields(LagrangianBias)})
        primordial: Any = {"f_nl": parameters.get("f_nl", 0.0), "linear_power": self.linear_power}
        return bias_weights(modes, bias, table, config, smoothing=self.smoothing, a=a, **primordial)

    def linear_bias(self, parameters: Mapping[str, ArrayLike]) -> Array:
        """Eulerian bias of long waves, 1 + b1."""
        return 1 + jnp.asarray(value_of(self.b1, parameters))

    def with_power(self, linear_power: Any) -> LagrangianGalaxies:
        """The galaxies with this linear P(k), unless they have one of their own."""
        return replace(self, linear_power=linear_power) if self.linear_power is None else self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bias parameters with a prior."""
        return names_of(*(getattr(self, b.name) for b in fields(LagrangianBias)))
