"""The gradient of a simulation against differences, in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.parameters import Parameters, parameters
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import linear_modes
from pmwd_dist.pm.nbody import nbody
from pmwd_dist.pm.noise import white_noise
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.status import Status
from pmwd_dist.run.settings import SimulationSetup

TOLERANCE = 1e-4
_STEP = 1e-5  # of noise and parameters; the kinks of cloud-in-cell spoil differences over larger ones
_NOISE = "noise"


class Comparison(NamedTuple):
    """A derivative of mean((1 + delta)^2) at the end of a simulation.

    Args:
      name: "noise" for the derivative along another white noise, or a parameter of the cosmology.
      gradient: derivative by automatic differentiation.
      difference: central difference between two simulations.
    """

    name: str
    gradient: float
    difference: float

    @property
    def error(self) -> float:
        """Relative difference of the two; 0 if both vanish."""
        most = max(abs(self.gradient), abs(self.difference))
        return abs(self.gradient - self.difference) / most if most > 0 else 0.0

    @property
    def good(self) -> bool:
        """Whether they agree; NaN does not."""
        return self.error <= TOLERANCE


def compare_gradient(simulation: SimulationSetup) -> list[Comparison]:
    """The gradient by a direction of the noise and by each parameter, against differences, in double precision."""
    config = simulation.config

    def loss(values: dict[str, Array], noise: Array, direction: Array) -> tuple[Array, Status]:
        table = growth_table_to(config.lpt_order, Parameters(**own | {k: x for k, x in values.items() if k != _NOISE}))
        total = noise + values[_NOISE] * direction
        modes = linear_modes(total, table, config, linear_power=simulation.power, f_nl=simulation.f_nl)
        start, factor = lpt(modes, table, config), simulation.potential_factor
        solution = nbody(start, table, config, solver=simulation.solver, potential_factor=factor)
        return jnp.mean(density(solution.particles, config) ** 2), solution.status

    with jax.enable_x64(True):
        noises = [white_noise(jax.random.key(simulation.seed + i), config) for i in (0, 1)]
        own: dict[str, Any] = vars(parameters(simulation.cosmo))
        numbers = {name: jnp.asarray(float(x)) for name, x in own.items() if x is not None and x.ndim == 0}
        values = {_NOISE: jnp.zeros(())} | numbers
        gradient, status = jax.jit(jax.grad(loss, has_aux=True))(values, *noises)
        status.raise_if_failed()
        run = jax.jit(loss)

        def end(name: str, change: float) -> float:
            found, status = run(values | {name: values[name] + change}, *noises)
            status.raise_if_failed()
            return float(found)

        return [
            Comparison(name, float(gradient[name]), (end(name, _STEP) - end(name, -_STEP)) / (2 * _STEP))
            for name in values
        ]


def table_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each derivative, and one that says which are off."""
    yield ""
    yield "derivatives of mean((1 + delta)^2) at the end, in float64, against central differences:"
    yield f"  {'':8} {'gradient':>14} {'difference':>14} {'relative error':>15}"
    for c in comparisons:
        yield f"  {c.name:8} {c.gradient:14.6e} {c.difference:14.6e} {c.error:15.1e}"
    if off := [c.name for c in comparisons if not c.good]:
        yield f"{', '.join(off)}: off by more than {TOLERANCE:g}"
