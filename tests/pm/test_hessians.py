"""Second and third derivatives of the whole pipeline: Hessians against differences of gradients, and symmetric.

The chain rule is applied in two parts, for programs to be shared: a jet of the cosmology (linear power and growth
table), and derivatives of the simulation from them. Every adjoint is differentiated in the modes that it supports:
the reversible one in all, DirectAdjoint forward over reverse, ForwardMode forward, along the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.linear_power import linear_power
from pmwd_dist.pm.modes import power_nodes

pytestmark = pytest.mark.slow

THETA = np.array(
    [0.81, 0.26, 0.0]
)  # sigma8, Omega_c and the amplitude of a direction of the noise and of the potential
UNITS = np.eye(3)
# Cloud-in-cell has kinks where a particle crosses a cell's face: over so small a step none does.
STEP = 1e-5


class Case(NamedTuple):
    """A simulation: layout, solver, adjoint, and order of its initial conditions."""

    pdims: tuple[int, int]
    solver: Any
    adjoint: Any = None
    lpt_order: int = 1


def configure(pdims: tuple[int, int], lpt_order: int = 1) -> pmd.Config:
    decomposition = pmd.Decomposition(pdims=pdims)
    return pmd.Config(box_size=24.0, mesh_shape=8, steps=2, halo=3, lpt_order=lpt_order, decomposition=decomposition)


def cosmology(theta: Any) -> Any:
    """Linear power, growth table and amplitude: what the simulation takes from theta."""
    cosmo = SimpleNamespace(**(vars(problems.cosmology()) | {"sigma8": theta[0], "Omega_c": theta[1]}))
    return linear_power(power_nodes(configure((1, 1))), cosmo), growth_table_to(2, cosmo), theta[2]


def simulation(case: Case) -> Callable[[Any], Any]:
    """mean((1 + delta)^2) at the end, a function of what `cosmology` returns."""
    config = configure(case.pdims, case.lpt_order)
    noise, direction = np.random.default_rng(0).standard_normal((2, 8, 8, 8))

    def loss(inputs: Any) -> Any:
        power, table, amplitude = inputs
        total = jax.lax.with_sharding_constraint(noise + amplitude * direction, config.decomposition.sharding)
        modes = pmd.linear_modes(total, problems.cosmology(), config, linear_power=lambda k: power)
        particles = pmd.lpt(modes, table, config)
        options = {"solver": case.solver, "adjoint": case.adjoint}
        factor = lambda k, a: 1 + (0.2 + amplitude) * a * k**2 / (1 + k**2)  # noqa: E731
        particles = pmd.nbody(particles, table, config, **options, potential_factor=factor).particles
        return jnp.mean(pmd.density(particles, config) ** 2)

    return loss


# --- jets of the cosmology, compiled once ---------------------------------------------------------------------


@jax.jit
def push(theta: Any, v: Any) -> Any:
    return jax.jvp(cosmology, (theta,), (v,))


@jax.jit
def _pull(theta: Any, v: Any, gradient: Any, change: Any) -> Any:
    return jax.jvp(lambda t, g: jax.vjp(cosmology, t)[1](g)[0], (theta, gradient), (v, change))


def pull(theta: Any, v: Any, gradient: Any, change: Any) -> Any:
    """The gradient by theta and its change along v, from those of the simulation, on whichever devices that was."""
    return _pull(theta, v, *jax.device_get((gradient, change)))


# --- Hessians ----------------------------------------------------------------------------------------------------

# Of theta and a direction: the gradient and its change along the direction.
Derivatives = Callable[[Any, Any], tuple[Any, Any]]


def forward_over_reverse(case: Case) -> Derivatives:
    loss = simulation(case)

    @jax.jit
    def product(inputs: Any, change: Any) -> Any:
        return jax.jvp(jax.grad(loss), (inputs,), (change,))

    return lambda theta, v: pull(theta, v, *product(*push(theta, v)))


def reverse_over_reverse(case: Case) -> Derivatives:
    loss = simulation(case)

    @jax.jit
    def product(inputs: Any, change: Any) -> Any:
        def along(x: Any) -> Any:
            gradient = jax.grad(loss)(x)
            slopes = jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, change)
            return sum(jax.tree.leaves(slopes)), gradient

        return jax.grad(along, has_aux=True)(inputs)[::-1]

    return lambda theta, v: pull(theta, v, *product(*push(theta, v)))


def check(derivatives: Derivatives) -> None:
    hessian = np.array([derivatives(THETA, v)[1] for v in UNITS])
    ends = [[derivatives(THETA + sign * STEP * v, v)[0] for sign in (1, -1)] for v in UNITS]
    expected = np.array([(high - low) / (2 * STEP) for high, low in ends])
    np.testing.assert_allclose(hessian, expected, rtol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-12 * np.abs(hessian).max())


# Every adjoint, and pencils: all pairs would take six times as long to compile.
REVERSE = [Case((2, 2), pmd.BullFrog(), lpt_order=2), Case((1, 1), diffrax.Heun(), diffrax.DirectAdjoint())]
REVERSE_TWICE = [Case((1, 1), pmd.FastPM())]
FORWARD = [Case((1, 1), pmd.LeapFrog()), Case((1, 1), diffrax.Heun(), diffrax.ForwardMode())]


def name(case: Case) -> str:
    adjoint = type(case.adjoint).__name__ if case.adjoint else "default"
    return f"{case.pdims[0]}x{case.pdims[1]}-{type(case.solver).__name__}-{adjoint}"


@pytest.mark.parametrize("case", REVERSE, ids=name)
def test_forward_over_reverse(case: Case) -> None:
    check(forward_over_reverse(case))


@pytest.mark.parametrize("case", REVERSE_TWICE, ids=name)
def test_reverse_over_reverse(case: Case) -> None:
    check(reverse_over_reverse(case))


@pytest.mark.parametrize("case", FORWARD, ids=name)
def test_third_derivative_along_a_direction(case: Case) -> None:
    """Along the noise, of a whole simulation: the derivative of its second derivative."""
    loss = simulation(case)
    power, table, _ = cosmology(THETA)

    def derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda t: jax.jvp(function, (t,), (jnp.ones_like(t),))[1]

    second = derivative(derivative(lambda t: loss((power, table, t))))

    @jax.jit
    def both(t: Any) -> Any:
        return jax.jvp(second, (t,), (jnp.ones_like(t),))

    third = both(0.0)[1]
    difference = (both(STEP)[0] - both(-STEP)[0]) / (2 * STEP)
    np.testing.assert_allclose(third, difference, rtol=1e-6)
