"""Gradients have the same bits each time on GPUs, too, where sums of floating-point numbers by atomics have not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.observe.crossing import light_cone_in_step
from pmwd_dist.pm.time_steps import step_times

pytestmark = pytest.mark.slow

PRIORS = {"sigma8": infer.Normal(0.8, 0.15, low=0.1), "Omega_m": infer.Normal(0.3, 0.05, low=0.06, high=1.0)}


def unordered_sums(function: Any, *arguments: Any) -> list[str]:
    """Types of the scatters of a program that may add floating-point numbers to one place in any order."""
    text = jax.jit(function).lower(*arguments).as_text()
    scatters = re.findall(r'"stablehlo\.scatter"(.*?)\}\) : \((.*?)\) ->', text, re.DOTALL)
    return [types for what, types in scatters if "unique_indices = true" not in what and re.search(r"xf\d", types)]


def configure(**changes: Any) -> pmd.Config:
    settings: dict[str, Any] = {"box_size": 80.0, "mesh_shape": 8, "decomposition": pmd.Decomposition(pdims=(1, 1))}
    return pmd.Config(**(settings | changes))


@pytest.mark.skipif(not pmd.native_available(), reason="without native ops particles are painted in floats")
def test_gradients_of_galaxies_add_in_a_fixed_order(cosmo: Any) -> None:
    """Counts in redshift space, with cosmology, bias and preconditioner."""
    config, priors = configure(a_stop=0.5), PRIORS | {"b1": infer.Normal(0.5, 0.5)}
    observable = infer.LagrangianGalaxies(b1="b1", line_of_sight="z")
    forward = infer.Simulation(config, cosmo, gravity="lpt", observable=observable)
    model = infer.Model(config, forward, priors, infer.Poisson(5.0))

    def logdensity(position: Any) -> Any:
        return model.condition(np.indices((8, 8, 8))[0].astype(float)).logdensity(position)

    position = {"noise": jnp.zeros((8, 8, 8)), "parameters": dict.fromkeys(priors, jnp.zeros(()))}
    assert not unordered_sums(jax.grad(logdensity), position)


def test_gradients_of_steps_and_lensing_add_in_a_fixed_order(cosmo: Any) -> None:
    """More rays than cells of the planes, sources spread in redshift, and steps in one bin of the growth table."""
    config = configure(box_size=40.0, a_start=0.9, steps=2, halo=3, lpt_order=1)
    cone = pmd.observe.FlatSkyLightCone(config, (0.0, 40.0, 80.0), pixels=4)
    spread = (jnp.linspace(0.01, 0.1, 20), jnp.ones(20))

    def total(mass: Any, Omega_c: Any) -> Any:
        table = pmd.growth_table(replace(parameters(cosmo), Omega_c=Omega_c))
        maps = pmd.observe.convergence(mass, table, cone, source=spread, field=20.0, pixels=16)
        times = step_times(table, configure(a_start=0.5, a_stop=0.505, steps=3))
        light = light_cone_in_step(times[1], times[2], table)
        return jnp.sum(maps**2) + jnp.sum(light.distance) + jnp.sum(table.at(times).dD2)

    assert not unordered_sums(jax.grad(total, (0, 1)), jnp.ones((2, 4, 4)), jnp.asarray(0.26))


def test_unordered_sums_are_detected() -> None:
    index = np.array([0, 1, 1])
    found = unordered_sums(jax.grad(lambda table: jnp.sum(table[index] ** 2)), jnp.ones(3))
    assert found == ["tensor<3xf64>, tensor<3x1xi32>, tensor<3xf64>"]
