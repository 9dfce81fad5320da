"""Cosmology, linear P(k) and gravity of forward models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._checks import check_flag
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.linear_power import DEFAULT, check_sigma8_range, normalised_power
from pmwd_dist.cosmology.parameters import Cosmology, Parameters
from pmwd_dist.cosmology.sampled import COSMOLOGY, cosmology_at
from pmwd_dist.infer.forward import ForwardModel
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
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.status import Status


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


class SimulatedModel(CosmologicalModel):
    """A model of particles evolved by gravity."""

    _: KW_ONLY
    solver: Any = eqx.field(static=True, default=None)
    potential_factor: PotentialFactor | None = None

    def __post_init__(self):
        super().__post_init__()
        as_solver(self.solver)
        if self.potential_factor is not None and not callable(self.potential_factor):
            raise ArgumentError("potential_factor", self.potential_factor, "must be a function of (k, a)")

    def _nbody(self, modes: Array, table: GrowthTable, accumulate: Any = None) -> Solution:
        options: Any = {"solver": self.solver, "potential_factor": self.potential_factor, "accumulate": accumulate}
        return nbody(lpt(modes, table, self.config), table, self.config, **options)

    def status(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> Status:
        """Status of the simulation."""
        return self._nbody(*self.linear_modes(noise, parameters)).status


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
