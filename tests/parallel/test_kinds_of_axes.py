"""Simulations, derivatives, observables and posteriors on device meshes with Auto, Explicit and Manual axes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist import infer, observe

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
AXES = {"slabs": {"x": 4}, "pencils": {"x": 2, "y": 2}}


def mesh_of(kind: str, division: str) -> jax.sharding.Mesh:
    axes = AXES[division]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(KINDS[kind],) * len(axes))


def config_of(decomposition: Any, mesh: int = 16) -> pmd.Config:
    return pmd.Config(box_size=4.0 * mesh, mesh_shape=mesh, steps=3, decomposition=decomposition)


def simulate(noise: Any, cosmo: Any, config: pmd.Config) -> dict[str, Any]:
    """A whole simulation with observables."""
    modes = pmd.linear_modes(noise, cosmo, config)
    start = pmd.lpt(modes, cosmo, config)
    cone = observe.FlatSkyLightCone(config, edges=(20.0, 40.0, 60.0), pixels=8)
    solution = pmd.nbody(start, cosmo, config, saveat=[0.5, 1.0], accumulate=cone)
    density = pmd.density(solution.particles, config)
    galaxies = observe.redshift_space(solution.particles, cosmo, config, a=1.0)
    weights = observe.bias_weights(modes, observe.LagrangianBias(b1=1.0, b2=0.3), cosmo, config, smoothing=4.0)
    redshifted = observe.tracer_density(galaxies, weights, config)
    return {
        "density": density,
        "power": pmd.power_spectrum(density, config).power,
        "galaxies": redshifted,
        "multipoles": observe.power_multipoles(redshifted, config).power,
        "bispectrum": observe.bispectrum(density, config, edges=(0.1, 0.2, 0.5)).bispectrum,
        "correlation": observe.cross_power(density, redshifted, config).correlation,
        "shells": solution.accumulated,
        "snapshots": solution.snapshots.disp,
        "code": solution.status.code,
    }


@partial(jax.jit, static_argnames="config")
def with_gradient(noise: Any, cosmo: Any, config: pmd.Config) -> dict[str, Any]:
    """The same, and the gradient of the mean square of the density."""

    def loss(noise: Any) -> Any:
        results = simulate(noise, cosmo, config)
        return (results["density"] ** 2).mean(), results

    slope, results = jax.grad(loss, has_aux=True)(noise)
    return results | {"gradient": slope}


@pytest.fixture(scope="module")
def expected(cosmo: Any, single: pmd.Decomposition) -> dict[str, np.ndarray]:
    """Results on one device."""
    config = config_of(single)
    noise = pmd.white_noise(jax.random.key(0), config)
    results = with_gradient(noise, cosmo, config)
    return {name: np.asarray(x) for name, x in results.items()}


def close(results: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    for name, x in results.items():
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(np.asarray(x), expected[name], rtol=0, atol=1e-9 * scale, err_msg=name)


@pytest.mark.parametrize(("division", "current"), [("slabs", False), ("pencils", True)])
def test_simulations_on_explicit_axes(
    division: str, current: bool, cosmo: Any, expected: dict[str, np.ndarray]
) -> None:
    """On a mesh that is the current one in a program with its gradient, and on one that is not call by call."""
    mesh = mesh_of("explicit", division)
    with jax.set_mesh(mesh) if current else nullcontext():
        config = config_of(pmd.Decomposition() if current else pmd.Decomposition(mesh=mesh))
        noise = pmd.white_noise(jax.random.key(0), config)
        results = (with_gradient if current else simulate)(noise, cosmo, config)
        close(results, expected)
        for name in {"density", "galaxies", "gradient"} & results.keys():
            assert results[name].sharding.is_equivalent_to(config.decomposition.sharding, 3), name
            assert jax.typeof(results[name]).sharding.spec == jax.typeof(noise).sharding.spec != P(None, None, None)


@pytest.mark.parametrize("blocks", [False, True])
def test_simulations_on_auto_axes_and_in_blocks(blocks: bool, cosmo: Any, expected: dict[str, np.ndarray]) -> None:
    with jax.set_mesh(mesh_of("auto", "pencils")):
        config = config_of(pmd.Decomposition())
        noise = pmd.white_noise(jax.random.key(0), config)

        def loss(noise: Any) -> Any:
            particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
            solution = pmd.nbody(particles, cosmo, config, saveat=[0.5, 1.0])
            density = pmd.density(solution.particles, config)
            return (density**2).sum() / 16**3, {"density": density, "code": solution.status.code}

        both, spec = jax.grad(loss, has_aux=True), P("x", "y")
        if blocks:
            both = jax.shard_map(both, in_specs=spec, out_specs=(spec, {"density": spec, "code": P()}))
        slope, results = jax.jit(both)(noise)
    close(results | {"gradient": slope}, expected)


def posterior_of(forward: Any, likelihood: Any) -> tuple[infer.Posterior, Any]:
    priors = {"sigma8": infer.Normal(0.8, 0.1, low=0.1), "b1": infer.Normal(1.0, 0.3)}
    model = infer.Model(forward.config, forward, priors, likelihood)
    data = model.mock(jax.random.key(1), model.draw(jax.random.key(0), sigma8=0.8))
    return model.condition(data), model.draw(jax.random.key(2))


def slopes(config: pmd.Config, cosmo: Any) -> Any:
    """The log density of galaxies of a simulation and its gradient, with their derivatives along the position."""
    galaxies = infer.LagrangianGalaxies("b1")
    config = replace(config, lpt_order=1)
    posterior, z = posterior_of(infer.Simulation(config, cosmo, observable=galaxies), infer.Poisson(1.0))
    return jax.jit(lambda z: jax.jvp(jax.value_and_grad(posterior.logdensity), (z,), (z,)))(z)


def maps(config: pmd.Config, cosmo: Any) -> Any:
    """Shells on a sphere, convergence on a flat sky, and the gradient of its square by the noise."""
    config = replace(config, a_start=0.9, steps=1, lpt_order=1)
    sphere = observe.SphericalLightCone(config, edges=(4.0, 12.0), nside=2)
    flat = observe.FlatSkyLightCone(config, edges=(0.0, 32.0, 64.0), pixels=8, shell_assignment="linear")

    def seen(noise: Any) -> Any:
        start = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        mass = pmd.nbody(start, cosmo, config, accumulate=flat).accumulated
        kappa = observe.convergence(mass, cosmo, flat, source=0.02, field=20.0, pixels=4)
        return (kappa**2).sum(), (kappa, pmd.nbody(start, cosmo, config, accumulate=sphere).accumulated)

    return jax.jit(jax.value_and_grad(seen, has_aux=True))(pmd.white_noise(jax.random.key(0), config))


def chains(config: pmd.Config, cosmo: Any) -> Any:
    """Parameters, log densities and mean noise of two chains of `sample`."""
    posterior, position = posterior_of(infer.LinearField(config, cosmo, bias="b1"), infer.Gaussian(0.5))
    starts = jax.tree.map(lambda x: jnp.stack([x, x]), position)
    key = jax.random.key(5)
    with TemporaryDirectory() as folder:
        chain = infer.sample(posterior, starts, key=key, steps=4, chunk=2, tuning_steps=40, output=folder)
    return chain.parameters, chain.logdensity, chain.noise_mean


@pytest.mark.filterwarnings("ignore:chains have not mixed")  # of four steps
@pytest.mark.parametrize("results", [slopes, maps, chains])
def test_posteriors_and_light_cones(results: Any, cosmo: Any, single: pmd.Decomposition) -> None:
    wanted = results(config_of(single, 8), cosmo)
    with jax.set_mesh(mesh_of("explicit", "pencils")):
        found = results(config_of(pmd.Decomposition(), 8), cosmo)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=1e-9 * np.abs(theirs).max())
