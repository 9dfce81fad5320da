"""Forward models: from white noise and parameters to a field on the mesh, such as the density of galaxies.

A forward model is a function (noise, parameters) -> field, or -> (field, status), with the field in units of its mean.
As a subclass of `ForwardModel` it also has a linear response to the noise, for preconditioning, and a layout.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from numbers import Real
from typing import Any, Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_flag, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import comoving_distance, scale_factor_at
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.linear_power import DEFAULT, check_sigma8_range, normalised_power
from pmwd_dist.cosmology.parameters import Cosmology, Parameters
from pmwd_dist.cosmology.sampled import COSMOLOGY, cosmology_at
from pmwd_dist.observe.bias import eulerian_bias
from pmwd_dist.observe.density_cone import DensityCone, reach, redshift_series
from pmwd_dist.observe.passage import weight_nodes
from pmwd_dist.observe.redshift_space import LineOfSight, direction, kaiser_factor
from pmwd_dist.observe.shells import checked_observer, is_traced
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.fft import fftfreq3d, pirfft3d
from pmwd_dist.parallel.inputs import numbers
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import (
    LinearPower,
    add_local,
    check_table,
    depends_on_cosmology,
    linear_modes,
    log_power,
    log_transfer,
    power_nodes,
)
from pmwd_dist.pm.nbody import Solution, as_solver, nbody
from pmwd_dist.pm.paint import density, halo_limit
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.status import Status, failure, successful

Gravity = Literal["nbody", "lpt"]


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


class CosmologicalModel(ForwardModel):
    """Cosmology and linear P(k) of a forward model.

    A table of P(k) is scaled to sigma8, sampled or of the cosmology, if `normalise` is true. Parameters that are not
    sampled are those of the cosmology.
    """

    config: Config = eqx.field(static=True)
    cosmo: Cosmology | GrowthTable
    _: KW_ONLY
    linear_power: Any = None
    normalise: bool = eqx.field(static=True, default=False)

    def __post_init__(self):
        check_config(self.config)
        check_flag(self.normalise, "normalise")
        self.cosmo = growth_table_to(self.config.lpt_order, self.cosmo)
        power = self.of_cosmology or self.linear_power  # the former in `dataclasses.replace`
        self.linear_power = _fixed_power(self.config, self.table.cosmo, power, normalise=self.normalise)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the parameters of the cosmology, and f_nl."""
        return (*COSMOLOGY, "f_nl")

    @property
    def table(self) -> GrowthTable:
        """Growth table of the cosmology, computed once."""
        return growth_table_to(2, self.cosmo)

    @property
    def of_cosmology(self) -> Any:
        """Linear P(k) as a function of the cosmology; None where P(k) is fixed."""
        return self.linear_power.of_cosmology if isinstance(self.linear_power, _AtNodes) else None

    def linear_modes(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> tuple[Array, GrowthTable]:
        """Linear modes from white noise, and the growth table, in the cosmology with these parameters.

        The parameter f_nl is the primordial non-Gaussianity of the modes.
        """
        table = cosmology_at(parameters, self.table)
        if self.of_cosmology is not None:
            power = self.of_cosmology if parameters.keys() & set(COSMOLOGY) else self.linear_power
            return linear_modes(noise, table.cosmo, self.config, linear_power=power, f_nl=parameters.get("f_nl")), table
        idle = {"n_s", "h", "Omega_b"} | (set() if self.normalise else {"sigma8", "A_s"})
        if unused := sorted(parameters.keys() & idle):
            constraint = f"is fixed, and {', '.join(unused)} would not change it"
            remedy = "use normalise=True, or leave one of them out" if "sigma8" in unused else "leave one of them out"
            raise ArgumentError("linear_power", None, constraint, remedy, show_value=False)
        modes = linear_modes(noise, table.cosmo, self.config, linear_power=self.linear_power)
        if parameters.keys() & {"sigma8", "A_s"}:
            modes = scaled(modes, jnp.asarray(table.cosmo.sigma8 / self.table.cosmo.sigma8, modes.real.dtype))
        if "f_nl" in parameters:
            transfer = log_transfer(table, self.config, self.linear_power)
            modes = add_local(modes, jnp.asarray(parameters["f_nl"]), transfer, self.config)
        return modes, table

    def _amplitude(self, parameters: Mapping[str, ArrayLike]) -> tuple[Array, GrowthTable]:
        """Ratio of linear modes to modes of white noise, from an impulse, whose modes are all 1."""
        impulse = jnp.zeros(self.config.particle_shape).at[0, 0, 0].set(1)
        modes, table = self.linear_modes(impulse, {name: x for name, x in parameters.items() if name != "f_nl"})
        return modes.real, table


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
        self.bias, config = number_or_name(self.bias, "bias"), self.config
        if config.particle_shape != config.mesh_shape:
            constraint = f"must be mesh_shape={config.mesh_shape} for a linear field"
            raise ArgumentError("particle_shape", config.particle_shape, constraint, "leave it out")
        if self.line_of_sight is not None:
            self.line_of_sight = direction(self.line_of_sight)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the bias, if it is a parameter."""
        return _names(self.bias)

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


class Simulation(CosmologicalModel):
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
    solver: Any = eqx.field(static=True, default=None)
    potential_factor: PotentialFactor | None = None
    observer: Sequence[float] | None = eqx.field(static=True, default=None)

    def __post_init__(self):
        super().__post_init__()
        self.bias = number_or_name(self.bias, "bias")
        check_gravity(self.solver, self.potential_factor)
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
        return *_names(self.bias), *(self.observable.names if isinstance(self.observable, Observable) else ())

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

    def _nbody(self, modes: Array, table: GrowthTable, accumulate: Any = None) -> Solution:
        options: Any = {"solver": self.solver, "potential_factor": self.potential_factor, "accumulate": accumulate}
        return nbody(lpt(modes, table, self.config), table, self.config, **options)

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
            weights.append(found)
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


def number_or_name(value: Any, name: str) -> Any:
    """A finite number, on the host so that it may be static, or the name of a parameter."""
    if not isinstance(value, str | Tracer):
        check_number(value, name, constant=True, remedy="or pass the name of a parameter with a prior")
    return on_host(value)


def on_host(value: Any) -> Any:
    """A number of JAX as one of Python, which may be static; other values unchanged."""
    return value.item() if isinstance(value, jax.Array) and not isinstance(value, Tracer) else value


def check_gravity(solver: Any, potential_factor: Any) -> None:
    """Raise ValueError unless these are a solver and a factor of `nbody`, or None."""
    as_solver(solver)
    if potential_factor is not None and not callable(potential_factor):
        raise ArgumentError("potential_factor", potential_factor, "must be a function of (k, a)")


def _names(*values: Any) -> tuple[str, ...]:
    """Values that are names of parameters."""
    return tuple(value for value in values if isinstance(value, str))


class _AtNodes(eqx.Module):
    """P(k) at the wavenumbers of `linear_modes`, in the fiducial cosmology, and P(k) of other cosmologies."""

    power: Array = eqx.field(metadata={"derived": True})
    of_cosmology: Any

    def __call__(self, k: Array) -> Array:
        del k
        return self.power


def _fixed_power(config: Config, cosmo: Parameters, linear_power: LinearPower | None, *, normalise: bool) -> Any:
    """The given P(k), scaled to sigma8 if asked for; without one, P(k) of the fiducial cosmology, computed once."""
    of_cosmology = depends_on_cosmology(linear_power)
    if normalise and (of_cosmology or callable(linear_power)):
        constraint = "needs linear_power as a table"
        raise ArgumentError("normalise", normalise, constraint, "leave it out: without a table sigma8 scales P(k)")
    if of_cosmology:
        return _AtNodes(jnp.exp(log_power(cosmo, config, linear_power)), linear_power or DEFAULT)
    if callable(linear_power):
        return linear_power
    k, power = checked_table(linear_power, *power_nodes(config)[[0, -1]])
    if normalise:
        check_sigma8_range(np.asarray(k), cosmo)
        power = normalised_power(k, power, cosmo.sigma8)
    return k, power


def checked_table(linear_power: Any, low: float, high: float) -> tuple[Array, Array]:
    """A table of P(k) as arrays; ValueError unless it is sorted, positive and covers a range [h/Mpc]."""
    if not isinstance(linear_power, tuple | list | np.ndarray) or len(linear_power) != 2:
        constraint, remedy = "must be a table (k, P), a function, or a name", 'for example "boltzmann"'
        raise ArgumentError("linear_power", linear_power, constraint, remedy, show_value=False)
    k, power = (jnp.asarray(numbers(x, "linear_power"), float) for x in linear_power)
    check_table(k, power, low, high)
    return k, power


def value_of(value: Any, parameters: Mapping[str, ArrayLike]) -> Any:
    """A number, or the parameter with this name."""
    return parameters[value] if isinstance(value, str) else value


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
