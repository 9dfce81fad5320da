"""Coefficients of a drift-kick-drift step, and rates of drift and kick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array

from pmwd_dist.cosmology.growth import GrowthTable


class Coefficients(NamedTuple):
    """Coefficients of a step from a lower to a higher scale factor.

    disp += drift_before * vel;  vel = 2^log_scale * vel + kick * acceleration;  disp += drift_after * vel

    `factor` is the factor of the potential, from `potential_factor.tabulate`; None for 1.
    """

    drift_before: Array
    kick: Array
    log_scale: Array
    drift_after: Array
    factor: Array | None = None


# Coefficients of the step between two scale factors.
Formula = Callable[[GrowthTable, Array, Array], Coefficients]


def rates(table: GrowthTable, a: Any) -> tuple[Array, Array]:
    """Drift rate 1 / (a^3 E) and kick rate 3/2 Omega_cb / (a^2 E), per unit of the scale factor."""
    E = table.E(a)
    return 1 / (a**3 * E), 1.5 * table.cosmo.Omega_cb / (a**2 * E)
