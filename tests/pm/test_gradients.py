"""The whole pipeline and its derivatives: against one device, differences and plain JAX, and what they communicate."""

from __future__ import annotations

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.cosmology.linear_power import linear_power
from pmwd_dist.pm import reference
from pmwd_dist.pm.modes import power_nodes

# Mesh and lattice differ, one axis is odd, and a block is thinner than its halo.
SHAPE, MESH, BOX = (8, 12, 10), (12, 12, 5), (24.0, 36.0, 20.0)
PARAMETERS = vars(problems.cosmology())
LAYOUTS = ((1, 1), (4, 1), (2, 2))
FORWARD = ((4, 1), (2, 2))  # layouts of which jvp is tested too
FIELDS = ("start", "disp", "vel", "density", "spectrum")


def configure(pdims: tuple[int, int]) -> pmd.Config:
    return pmd.Config(BOX, MESH, SHAPE, steps=2, lpt_order=2, halo=6, decomposition=pmd.Decomposition(pdims=pdims))


def loss(noise: Any, inputs: Any, config: pmd.Config) -> Any:
    """mean((1 + delta)^2) from white noise and what `cosmology` returns; the status and all fields on the side."""
    power, table = inputs
    modes = pmd.linear_modes(noise, problems.cosmology(), config, linear_power=lambda k: power)
    start = pmd.lpt(modes, table, config)
    solution = pmd.nbody(start, table, config)
    end, density = solution.particles, pmd.density(solution.particles, config)
    spectrum = pmd.power_spectrum(density, config).power
    fields = {"start": start.disp, "disp": end.disp, "vel": end.vel, "density": density, "spectrum": spectrum}
    return jnp.mean(density**2), (solution.status.code, fields)


# The chain rule is applied in two parts: that of the cosmology, a large part of the program, is compiled once.


@jax.jit
def cosmology(parameters: dict[str, Any]) -> Any:
    """Linear power and growth table of a cosmology: what the simulation takes from it."""
    cosmo = SimpleNamespace(**parameters)
    return linear_power(power_nodes(configure((1, 1))), cosmo), growth_table_to(2, cosmo)


@jax.jit
def by_parameters(by_inputs: Any) -> dict[str, Any]:
    """The gradient by the parameters from that by what `cosmology` returns."""
    return jax.vjp(cosmology, PARAMETERS)[1](by_inputs)[0]


def draw() -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(0).standard_normal((2, *SHAPE)))  # type: ignore[return-value]


def placed(x: np.ndarray, pdims: tuple[int, int]) -> jax.Array:
    return jax.device_put(x, configure(pdims).decomposition.sharding)


def replicated(tree: Any, pdims: tuple[int, int]) -> Any:
    return jax.device_put(tree, configure(pdims).decomposition.replicated)


@cache
def reverse(pdims: tuple[int, int]) -> Any:
    """value_and_grad of the loss by the noise and the cosmology, compiled."""
    config = configure(pdims)

    @jax.jit
    def run(noise: Any, inputs: Any) -> Any:
        function = lambda n, x: loss(n, x, config)  # noqa: E731
        return jax.value_and_grad(function, argnums=(0, 1), has_aux=True)(noise, inputs)

    return run.lower(placed(draw()[0], pdims), replicated(cosmology(PARAMETERS), pdims)).compile()


@cache
def forward(pdims: tuple[int, int]) -> Any:
    """jvp of the loss along a noise, compiled."""
    config, inputs = configure(pdims), cosmology(PARAMETERS)

    @jax.jit
    def run(noise: Any, direction: Any) -> Any:
        return jax.jvp(lambda n: loss(n, inputs, config)[0], (noise,), (direction,))

    return run.lower(*(placed(x, pdims) for x in draw())).compile()


def value(noise: np.ndarray, parameters: dict[str, Any], pdims: tuple[int, int]) -> float:
    return float(reverse(pdims)(placed(noise, pdims), replicated(cosmology(parameters), pdims))[0][0])


@cache
def derivatives(pdims: tuple[int, int]) -> dict[str, Any]:
    inputs = replicated(cosmology(PARAMETERS), pdims)
    (_, (code, fields)), (gradient, by_inputs) = reverse(pdims)(placed(draw()[0], pdims), inputs)
    assert code == 0
    return fields | {"gradient": gradient} | by_parameters(jax.device_get(by_inputs))


@pytest.mark.parametrize("pdims", [*LAYOUTS[1:], pytest.param((1, 4), marks=pytest.mark.slow)], ids=str)
def test_values_and_derivatives_agree_with_one_device(pdims: tuple[int, int]) -> None:
    ours, expected = derivatives(pdims), derivatives((1, 1))
    assert np.abs(expected["disp"]).max() > 2
    for name in ours:
        value, rtol = np.asarray(expected[name]), 1e-11 if name in FIELDS else 1e-9
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=rtol * np.abs(value).max(), err_msg=name)
    for name in (*FIELDS[:-1], "gradient"):
        assert problems.has_sharding(ours[name], configure(pdims).decomposition.sharding), name
    assert ours["spectrum"].sharding.is_fully_replicated


@pytest.mark.parametrize("pdims", FORWARD, ids=str)
def test_jvp_and_vjp_agree(pdims: tuple[int, int]) -> None:
    tangent = forward(pdims)(*(placed(x, pdims) for x in draw()))[1]
    np.testing.assert_allclose(np.vdot(derivatives(pdims)["gradient"], draw()[1]), tangent, rtol=1e-11)


@pytest.mark.parametrize("pdims", LAYOUTS, ids=str)
def test_gradient_agrees_with_differences(pdims: tuple[int, int]) -> None:
    noise, direction = draw()
    step = 1e-5  # small: cloud-in-cell has kinks at cell edges
    ends = [value(noise + sign * step * direction, PARAMETERS, pdims) for sign in (1, -1)]
    difference = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(np.vdot(derivatives(pdims)["gradient"], direction), difference, rtol=1e-7)


@pytest.mark.parametrize("name", ["Omega_c", "sigma8", "h", "w0"])
def test_derivatives_by_parameters_agree_with_differences(name: str) -> None:
    step = 1e-5
    changed = [PARAMETERS | {name: PARAMETERS[name] + sign * step} for sign in (1, -1)]
    ends = [value(draw()[0], parameters, (1, 1)) for parameters in changed]
    np.testing.assert_allclose(derivatives((1, 1))[name], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize(("mode", "pdims"), [(reverse, p) for p in LAYOUTS[1:]] + [(forward, p) for p in FORWARD])
def test_no_full_field_is_gathered(mode: Any, pdims: tuple[int, int]) -> None:
    """Neither forwards nor backwards: all-gathers, if any, are smaller than one block of the mesh."""
    text = mode(pdims).as_text()
    # This is how XLA spells them; pencils in one process are exchanged by permutations.
    assert "collective-permute" in text
    assert ("all-to-all" in text) == (min(pdims) == 1)
    block = np.prod(MESH) // 4
    for line in text.splitlines():
        if re.search(r"= .* all-gather(-start)?\(", line):
            sizes = [
                np.prod([int(n) for n in dims.split(",") if n])
                for dims in re.findall(r"\w\d+\[([\d,]*)\]", line.split(" all-gather")[0])
            ]
            assert max(sizes, default=1) < block, line


def power_law(k: Any) -> Any:
    """A power law, which tables that are linear in ln k hold exactly."""
    return 300 * k**-1.5


def test_nbody_and_its_gradient_agree_with_plain_jax(cosmo: Any) -> None:
    """The equations in plain JAX, on one device."""
    division = pmd.Decomposition((2, 2))
    config = pmd.Config((32.0, 40.0, 32.0), (8, 10, 8), steps=5, lpt_order=2, halo=4, decomposition=division)
    table, noise = pmd.growth_table(cosmo), pmd.white_noise(jax.random.key(0), config)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(config.mesh_shape))

    def ours(noise: Any) -> Any:
        modes = pmd.linear_modes(noise, table, config, linear_power=power_law)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config)
        loss = jnp.sum(weight * pmd.density(solution.particles, config) ** 2) + jnp.sum(solution.particles.vel**3)
        return loss, solution.particles

    def of_particles(particles: pmd.Particles) -> Any:
        return jnp.sum(weight * reference.density(particles.disp, config) ** 2) + jnp.sum(particles.vel**3)

    def plain(noise: Any) -> Any:
        particles = reference.lpt(reference.linear_modes(noise, power_law, config), table, config)
        return reference.simulate(particles, table, config)[0]

    (value, particles), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(noise)
    noise = jax.device_put(np.asarray(noise), jax.devices()[0])
    final = jax.jit(plain)(noise)
    expected = jax.jit(lambda noise: reference.value_and_gradient(of_particles, noise, power_law, table, config))(noise)
    direct = jax.jit(jax.grad(lambda noise: of_particles(plain(noise))))(noise)
    assert np.abs(final.disp).max() > config.cell_size[0]  # it is no linear problem
    np.testing.assert_allclose(particles.disp, final.disp, rtol=0, atol=1e-11)
    np.testing.assert_allclose(particles.vel, final.vel, rtol=0, atol=1e-11)
    np.testing.assert_allclose(value, expected[0], rtol=1e-11)
    for other in (gradient, direct):
        np.testing.assert_allclose(other, expected[1], rtol=0, atol=1e-10 * np.abs(direct).max())
