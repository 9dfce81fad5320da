"""Many simulations at once: vmap beside the mesh and, with `spmd_axis_name`, along an axis of it."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from simulations import COSMO, configure

import pmwd_dist as pmd

pytestmark = pytest.mark.slow


def mesh_of(**axes: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: np.prod([*axes.values()])]).reshape(*axes.values()), tuple(axes))


def configured(layout: Any) -> pmd.Config:
    return configure(layout, steps=2, a_stop=0.5, halo="auto")


def draw() -> np.ndarray:
    """Noise of two chains whose displacements ask for halos of different widths."""
    return np.random.default_rng(0).standard_normal((2, 8, 8, 8)) * np.array([1, 0.1])[:, None, None, None]


def work(before: Any, after: Any, table: Any) -> Any:
    return table.D1(after.a) * before.particles.disp * (after.particles.vel - before.particles.vel)


def value_and_gradient(config: pmd.Config) -> Any:
    table = pmd.growth_table(COSMO)

    def loss(noise: Any) -> tuple[Any, Any]:
        modes = pmd.linear_modes(noise, COSMO, config, linear_power=lambda k: 1e7 * k / (1 + (k / 0.02) ** 2) ** 1.3)
        particles = pmd.lpt(modes, table, config)
        solution = pmd.nbody(particles, table, config, solver=pmd.FastPM(), accumulate=work)
        density = pmd.density(solution.particles, config)
        return jnp.mean(density**2) + jnp.mean(solution.accumulated**2), solution.status

    return jax.value_and_grad(loss, has_aux=True)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """Each chain alone, on one device."""
    run = jax.jit(value_and_gradient(configured((1, 1))))
    return [run(noise) for noise in draw()]


def test_simulation_and_gradient(expected: list[Any]) -> None:
    mesh = mesh_of(chains=2, x=2)
    config = configured(pmd.Decomposition(mesh=mesh, spec=PartitionSpec("x")))
    noise = jax.device_put(draw(), NamedSharding(mesh, PartitionSpec("chains", "x")))
    run = jax.jit(jax.vmap(value_and_gradient(config), spmd_axis_name="chains")).lower(noise).compile()
    (values, status), gradients = run(noise)
    assert status.max_displacement[0] > 2 > status.max_displacement[1]  # the narrowest halo is 2 cells
    for i, ((value, alone), gradient) in enumerate(expected):
        np.testing.assert_allclose(values[i], value, rtol=1e-12)
        np.testing.assert_allclose(gradients[i], gradient, rtol=0, atol=1e-10 * np.abs(gradient).max())
        np.testing.assert_allclose(status.max_displacement[i], alone.max_displacement, rtol=1e-12)
    np.testing.assert_array_equal(status.code, 0)
    assert problems.has_sharding(gradients, noise.sharding)
    text = run.as_text()
    assert "conditional(" in text  # one width for all chains, not a select of all widths
    assert not re.search(r"all-gather(-start)?\(", text)


def test_paint_and_read_inside_a_shard_map_over_chains() -> None:
    """All devices take the same width: else the exchanges of one would wait for those of another forever."""
    mesh = mesh_of(chains=2, x=2)
    config = configured(pmd.Decomposition(mesh=mesh, spec=PartitionSpec("x")))
    single = configured((1, 1))
    disp = np.random.default_rng(1).uniform(-1, 1, (2, 8, 8, 8, 3)) * np.array([1, 20])[:, None, None, None, None]

    def one(disp: Any, config: pmd.Config) -> Any:
        return pmd.cic_read(pmd.cic_paint(disp, config), disp, config)

    run = jax.shard_map(
        lambda disp: one(disp[0], config)[None],
        mesh=mesh,
        in_specs=PartitionSpec("chains"),
        out_specs=PartitionSpec("chains"),
        axis_names={"chains"},
    )
    given = jax.device_put(disp, NamedSharding(mesh, PartitionSpec("chains", "x")))
    ours = jax.jit(run)(given)
    for i in range(2):
        np.testing.assert_allclose(ours[i], one(disp[i], single), rtol=1e-12)
