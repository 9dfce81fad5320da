"""A simulation that is ready to run: its Config, cosmology, solver and linear P(k), and warnings about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array, on_host
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.linear_power import check_sigma8_range, interpolate_power, linear_power, normalised_power
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.cosmology.transfer import accuracy_warnings, expected_error
from pmwd_dist.io.snapshot.initial import InitialConditions
from pmwd_dist.observe.sources import LightCone
from pmwd_dist.parallel.distributed import to_devices
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.modes import wavenumber_range
from pmwd_dist.pm.noise import GAUSSIAN, NoiseKind

Table = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SimulationSetup:
    """Simulation that is ready to run on the devices of this program."""

    config: Config
    cosmo: Cosmology
    solver: str
    power: Table | str  # k [h/Mpc] and P(k) at a = 1 [(Mpc/h)^3] from a file, or the name of a transfer function
    seed: int
    light_cone: LightCone | None = None  # to fill during the run
    kind: NoiseKind = GAUSSIAN
    f_nl: float | None = None  # local primordial non-Gaussianity; None for Gaussian modes
    field: np.ndarray | None = None  # white noise of a file
    potential_factor: ForceCorrection | None = None
    start: InitialConditions | None = None  # particles of a file, in place of noise and LPT

    @property
    def noise(self) -> Array:
        """White noise of a file, on the devices, or the key of white noise."""
        if self.field is None:
            return self.key()
        dtype = np.dtype(jnp.result_type(float))
        return to_devices(self.field.astype(dtype), self.config.decomposition.sharding)

    def key(self, *numbers: int | np.integer) -> Array:
        """Key of the seed, with numbers folded in."""
        seed, *rest = (as_array(x, np.uint32) for x in (self.seed, *numbers))
        return reduce(jax.random.fold_in, rest, jax.random.key(seed))

    @property
    def growth(self) -> GrowthTable:
        """Growth of the cosmology, to the order of the LPT: one program for all that needs growth or distances."""
        return growth_table_to(self.config.lpt_order, self.cosmo)

    @property
    def table(self) -> Table | None:
        """k [h/Mpc] and P(k) at a = 1 [(Mpc/h)^3] from a file, or None."""
        return None if isinstance(self.power, str) else self.power

    @property
    def sigma8(self) -> float:
        """sigma8 of the linear P(k)."""
        if self.table is None:
            return float(np.asarray(self.cosmo.sigma8, float))
        k, power = map(jnp.asarray, self.table)
        return math.sqrt(float(power[0] / normalised_power(k, power, 1.0)[0]))

    def cosmology_warnings(self) -> list[str]:
        """Warnings about the linear P(k), and a correction of the force of another training."""
        return self.power_warnings() + [f"[cosmology]: {text}" for text in self.training_warnings(self.cosmo)]

    def power_warnings(self) -> list[str]:
        """Warnings about a P(k) beyond its fit, or a table of another amplitude than P(k) of the cosmology."""
        if self.table is None:
            return [f"[cosmology]: {text}" for text in accuracy_warnings(str(self.power), self.cosmo)]
        try:
            check_sigma8_range(self.table[0], self.cosmo)
        except ArgumentError as error:
            return [f"cosmology.linear_power: {error.reason}: its sigma8 can't be compared with cosmology.sigma8"]
        expected = float(np.asarray(self.cosmo.sigma8))
        if abs(self.sigma8 / expected - 1) <= 0.01:
            return []
        used = "not used" if self.potential_factor is None else "used by force.correction alone"
        text = f"has sigma8 = {self.sigma8:.4g}, and cosmology.sigma8 is {expected:.4g}, which is {used}"
        return [f"cosmology.linear_power: {text}; k is in h/Mpc, and P at z = 0 in (Mpc/h)^3"]

    @property
    def power_error(self) -> str:
        """Error of a transfer function at the wavenumbers of the box, for people; empty for a table."""
        if not isinstance(self.power, str):
            return ""
        k = wavenumber_range(self.config.particle_shape, self.config.box_size)
        error = expected_error(self.power, self.cosmo, k)
        return ", not compared with CAMB here" if error is None else f", within {error:g} % of CAMB"

    def training_warnings(self, cosmo: Cosmology) -> list[str]:
        """Warnings about parameters of a cosmology that are outside of the training of the correction of the force."""
        return [] if self.potential_factor is None else self.potential_factor.warnings(cosmo)

    def linear_power(self, k: ArrayLike) -> np.ndarray:
        """Linear P(k) at a = 1 [(Mpc/h)^3] at k [h/Mpc]; NaN beyond a table."""
        k = np.asarray(k, float)
        power = power_at(k, self.cosmo, self.power)
        if self.table is None:
            return power
        return np.where((k >= self.table[0][0]) & (k <= self.table[0][-1]), power, np.nan)


def power_at(k: np.ndarray, cosmo: Cosmology, source: Table | str) -> np.ndarray:
    """Linear P(k) at a = 1, in the precision of the program."""
    if isinstance(source, str):
        return on_host(lambda k: linear_power(k, cosmo, source), k)
    return on_host(lambda k: interpolate_power(k, *source), k)
