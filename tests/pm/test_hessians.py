"""Second and third derivatives of the whole pipeline: Hessians against differences of gradients, and symmetric.

By sigma8, a factor of the growth table, and the amplitude of a direction of the noise and of the potential. Every
adjoint is differentiated in the modes that it supports: the reversible one in all, DirectAdjoint forward over reverse,
ForwardMode forward, along the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from simulations import configure

import pmwd_dist as pmd

pytestmark = pytest.mark.slow

TABLE, THETA = pmd.growth_table(problems.cosmology()), np.array([0.81, 1.0, 0.0])
# Cloud-in-cell has kinks where a particle crosses a cell's face: over so small a step none does.
STEP = 1e-5


class Case(NamedTuple):
    """A simulation: layout, solver, adjoint, and order of its initial conditions."""

    pdims: tuple[int, int]
    solver: Any
    adjoint: Any = None
    lpt_order: int = 1


def simulation(case: Case) -> Callable[[Any], Any]:
    """mean((1 + delta)^2) at the end."""
    config = configure(case.pdims, steps=2, lpt_order=case.lpt_order)
    noise, direction = np.random.default_rng(0).standard_normal((2, 8, 8, 8))

    def loss(theta: Any) -> Any:
        sigma8, growth, amplitude = theta
        table = eqx.tree_at(lambda table: table.factors, TABLE, replace_fn=lambda x: growth * x)
        total = jax.lax.with_sharding_constraint(noise + amplitude * direction, config.decomposition.sharding)
        modes = pmd.linear_modes(total, problems.cosmology(sigma8=sigma8), config)
        particles = pmd.lpt(modes, table, config)
        options = {"solver": case.solver, "adjoint": case.adjoint}
        factor = lambda k, a: 1 + (0.2 + amplitude) * a * k**2 / (1 + k**2)  # noqa: E731
        particles = pmd.nbody(particles, table, config, **options, potential_factor=factor).particles
        return jnp.mean(pmd.density(particles, config) ** 2)

    return loss


def name(case: Case) -> str:
    adjoint = type(case.adjoint).__name__ if case.adjoint else "default"
    return f"{case.pdims[0]}x{case.pdims[1]}-{type(case.solver).__name__}-{adjoint}"


# Every adjoint, and pencils: all pairs would take six times as long to compile.
HESSIANS = [
    (jax.jacfwd, Case((2, 2), pmd.BullFrog(), lpt_order=2)),
    (jax.jacfwd, Case((1, 1), diffrax.Heun(), diffrax.DirectAdjoint())),
    (jax.jacrev, Case((1, 1), pmd.FastPM())),
]


@pytest.mark.parametrize(("mode", "case"), HESSIANS, ids=lambda x: name(x) if isinstance(x, Case) else x.__name__)
def test_hessians_are_symmetric_differences_of_gradients(mode: Any, case: Case) -> None:
    """Forward over reverse, and reverse over reverse."""

    @jax.jit
    def both(theta: Any) -> Any:
        gradient = jax.grad(simulation(case))
        return mode(lambda x: (gradient(x),) * 2, has_aux=True)(theta)

    hessian, _ = both(THETA)
    ends = [[both(THETA + sign * STEP * v)[1] for sign in (1, -1)] for v in np.eye(3)]
    expected = np.array([(high - low) / (2 * STEP) for high, low in ends])
    np.testing.assert_allclose(hessian, expected, rtol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-12 * np.abs(hessian).max())


@pytest.mark.parametrize(
    "case", [Case((1, 1), pmd.LeapFrog()), Case((1, 1), diffrax.Heun(), diffrax.ForwardMode())], ids=name
)
def test_third_derivative_along_a_direction(case: Case) -> None:
    """Along the noise, of a whole simulation: the derivative of its second derivative."""

    def derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda t: jax.jvp(function, (t,), (jnp.ones_like(t),))[1]

    second = derivative(derivative(lambda t: simulation(case)((*THETA[:2], t))))

    @jax.jit
    def both(t: Any) -> Any:
        return jax.jvp(second, (t,), (jnp.ones_like(t),))

    third = both(0.0)[1]
    difference = (both(STEP)[0] - both(-STEP)[0]) / (2 * STEP)
    np.testing.assert_allclose(third, difference, rtol=1e-6)
