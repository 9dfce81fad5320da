"""The programs that `sample` runs on divided fields: they gather none, and give the draws of one device."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.infer import sampling
from pmwd_dist.infer.chain.chain import Run, on_devices
from pmwd_dist.infer.tuning import loop
from pmwd_dist.observe.crossing import light_cone_in_step
from pmwd_dist.pm.time_steps import step_times

pytestmark = pytest.mark.slow


def posterior_of(decomposition: pmd.Decomposition, cosmo: Any) -> infer.Posterior:
    """Galaxies in redshift space, with an adapted preconditioner."""
    config = pmd.Config(80.0, 8, a_start=0.25, a_stop=0.5, steps=1, lpt_order=2, decomposition=decomposition, halo=2)
    observable = infer.LagrangianGalaxies(b1="b1", line_of_sight="z")
    forward = infer.Simulation(config, cosmo, observable=observable)
    model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5)}, infer.Gaussian(0.5))
    return model.condition(1 + np.random.default_rng(0).standard_normal((8, 8, 8)))


def begun(posterior: infer.Posterior, axis: str | None) -> Run:
    """Two chains as `sample` begins them, with a short step."""
    positions = {"noise": jnp.zeros((2, 8, 8, 8)), "parameters": {"b1": jnp.zeros(2)}}
    positions = on_devices(positions, posterior.model.config, axis)
    run = loop.begin(jax.random.key(0), positions, posterior, axis)
    return run._replace(tuning=run.tuning._replace(step_size=0.1 * run.tuning.step_size))


@pytest.mark.parametrize("method", ["mclmc", "hmc"])
def test_divided_chains_are_the_same_and_gather_no_field(method: Any, cosmo: Any) -> None:
    """A chunk of draws of galaxies: by MCLMC on pencils, and by HMC on slabs with an axis of the chains."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    chains = method == "hmc"
    axis, decomposition = ("chains", {"mesh": mesh, "spec": P("x")}) if chains else (None, {"pdims": (2, 2)})
    posterior, single = (posterior_of(pmd.Decomposition(**x), cosmo) for x in (decomposition, {"pdims": (1, 1)}))
    run = begun(posterior, axis)
    shards = [x.addressable_shards[0].data.size for x in jax.tree.leaves((run.states, run.moments)) if x.ndim > 2]
    assert shards == [256] * 3 + [256 if chains else 128] * 2  # none is whole, which a second program would be for
    arguments = jax.random.key(0), run, posterior, method, 1, 2, axis
    program = sampling._advance.lower(*arguments).compile()
    text = program.compiled.as_text()
    assert "all-to-all" in text or "collective-permute" in text  # transforms
    gathered = re.findall(r"= [a-z]*\d*\[([\d,]*)\][^=]*? all-gather", text)
    assert all(np.prod([int(n) for n in shape.split(",") if n]) < 16 for shape in gathered)  # keys, not fields
    ours = program(*arguments)
    expected = sampling._advance(jax.random.key(0), begun(single, None), single, method, 1, 2, None)
    assert np.ptp(expected[1]["parameter/b1"]) > 0
    for x, y in zip(
        jax.tree.leaves((ours[0].states, ours[1])), jax.tree.leaves((expected[0].states, expected[1])), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_a_narrow_halo_is_named_where_chains_begin(cosmo: Any) -> None:
    noise, shape = 5 * np.random.default_rng(0).standard_normal((1, 8, 8, 8)), (8, 8, 8)

    def narrow(halo: int) -> infer.Posterior:
        config = pmd.Config(80.0, shape, lpt_order=1, decomposition=pmd.Decomposition((1, 2)), halo=halo)
        forward = infer.Simulation(config, cosmo, gravity="lpt")
        return infer.Model(config, forward, {}, infer.Gaussian(0.5)).condition(1 + noise[0])

    posterior = narrow(1)
    white = posterior.from_latent({"noise": jnp.asarray(noise[0]), "parameters": {}})[0]
    config, linear_modes = posterior.model.config, posterior.model.forward.linear_modes
    disp = jax.jit(lambda x: pmd.lpt(*linear_modes(x, {}), config, a=1.0).disp)(white)
    cells = f"{float(jnp.abs(disp).max()) / 10:.2f} cells"
    where, remedy = sampling._at(posterior, {"noise": jnp.asarray(noise), "parameters": {}}, 0)
    assert where == ", where the prediction is not finite in 512 of 512 cells"
    assert remedy.startswith(f"a displacement of {cells} exceeds the halo of 1 cells in step 1; set halo to 7 or more")
    message = narrow(8).model.failure(white, {})  # of redshift space
    assert message.startswith(f"the largest displacement is {cells}, and redshift distortions may exceed the halo of 8")
    cone = pmd.observe.FlatSkyLightCone(config, (0.0, 80.0), shell_assignment="linear")
    maps = infer.Convergence(config, cosmo, cone, 0.02, field=5.0, pixels=8)
    lensed = infer.Model(config, maps, {}, infer.ShapeNoise(maps, 10.0))
    assert re.match(r"a displacement of .* exceeds the halo of 1 cells in step \d+; set", lensed.failure(white, {}))


# --- the same bits each time on GPUs -----------------------------------------------------------------------------


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
