"""How much a program compiles, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import problems

import pmwd_dist as pmd


def loss(noise: Any, values: dict[str, Any], config: pmd.Config) -> Any:
    table = pmd.growth_table(SimpleNamespace(**values))
    particles = pmd.lpt(pmd.linear_modes(noise, table, config), table, config)
    solution = pmd.nbody(particles, table, config, saveat=[0.5, 1.0])
    return jnp.mean(pmd.density(solution.particles, config) ** 2) + pmd.growth(0.5, table)


def configure() -> pmd.Config:
    return pmd.Config(box_size=16.0, mesh_shape=8, steps=2, decomposition=pmd.Decomposition((1, 1)))


def test_one_table_serves_a_whole_program() -> None:
    config = configure()
    noise = pmd.white_noise(jax.random.key(0), config)
    jaxpr = str(jax.make_jaxpr(lambda n, v: loss(n, v, config))(noise, vars(problems.cosmology())))
    assert jaxpr.count("name=_tabulate") == 1


def test_an_optimiser_on_one_device_compiles_one_program() -> None:
    config, values = configure(), vars(problems.cosmology())
    gradient = jax.jit(jax.grad(lambda x: loss(x, values, config)))
    for start in (pmd.white_noise(jax.random.key(0), config), jnp.zeros(config.particle_shape)):
        x = start
        for _ in range(2):
            x = x - 0.1 * gradient(x)
        assert x.sharding == start.sharding
    assert gradient._cache_size() == 1
