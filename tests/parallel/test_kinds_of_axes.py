"""Simulations, derivatives, observables and posteriors on device meshes with Auto, Explicit and Manual axes."""

from __future__ import annotations

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

pytestmark = pytest.mark.slow

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
AXES = {"slabs": {"x": 4}, "pencils": {"x": 2, "y": 2}}


def mesh_of(kind: str, division: str) -> jax.sharding.Mesh:
    axes = AXES[division]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(KINDS[kind],) * len(axes))


def config_of(decomposition: Any, mesh: int = 16) -> pmd.Config:
    return pmd.Config(box_size=4.0 * mesh, mesh_shape=mesh, steps=2, lpt_order=1, decomposition=decomposition)


def evolve(modes: Any, cosmo: Any, config: pmd.Config, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A simulation from modes, and what every test compares."""
    solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config, saveat=[0.5, 1.0], **options)
    density = pmd.density(solution.particles, config)
    return solution, {"density": density, "snapshots": solution.snapshots.disp, "code": solution.status.code}


def simulate(noise: Any, cosmo: Any, config: pmd.Config) -> dict[str, Any]:
    """A whole simulation with observables."""
    modes = pmd.linear_modes(noise, cosmo, config)
    flat = observe.FlatSkyLightCone(config, edges=(0.0, 32.0, 64.0), pixels=8, shell_assignment="linear")
    sphere = observe.SphericalLightCone(config, edges=(8.0, 24.0), nside=2)
    solution, results = evolve(modes, cosmo, config, accumulate=lambda *step: (flat(*step), sphere(*step)))
    planes, shells = solution.accumulated
    # What follows has no part in the gradient.
    modes, particles, density = jax.lax.stop_gradient((modes, solution.particles, results["density"]))
    galaxies = observe.redshift_space(particles, cosmo, config, a=1.0)
    weights = observe.bias_weights(modes, observe.LagrangianBias(b1=1.0, b2=0.3), cosmo, config, smoothing=4.0)
    redshifted = observe.tracer_density(galaxies, weights, config)
    return results | {
        "convergence": observe.convergence(planes, cosmo, flat, source=0.02, field=20.0, pixels=4),
        "shells": shells,
        "galaxies": redshifted,
        "multipoles": observe.power_multipoles(redshifted, config).power,
        "bispectrum": observe.bispectrum(density, config, edges=(0.1, 0.2)).bispectrum,
    }


@partial(jax.jit, static_argnames="config")
def with_gradient(noise: Any, cosmo: Any, config: pmd.Config) -> dict[str, Any]:
    """The same, and the gradient of a function of density and convergence in which both weigh alike."""

    def loss(noise: Any) -> Any:
        results = simulate(noise, cosmo, config)
        return (results["density"] ** 2).mean() + jnp.log((results["convergence"] ** 2).mean()), results

    slope, results = jax.grad(loss, has_aux=True)(noise)
    return results | {"gradient": slope}


def close(results: Any, expected: Any) -> None:
    pairs = zip(jax.tree.leaves_with_path(results), map(np.asarray, jax.tree.leaves(expected)), strict=True)
    for (path, x), wanted in pairs:
        name, atol = jax.tree_util.keystr(path), 1e-9 * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(x), wanted, rtol=0, atol=atol, err_msg=name)


def test_simulations_on_explicit_axes(cosmo: Any, single: pmd.Decomposition) -> None:
    """On a mesh that is the current one in a program with its gradient, and on one that is not call by call."""
    config = config_of(single)
    noise = pmd.white_noise(jax.random.key(0), config)
    expected = with_gradient(noise, cosmo, config)
    with jax.set_mesh(mesh_of("explicit", "pencils")):
        config = config_of(pmd.Decomposition())
        noise = pmd.white_noise(jax.random.key(0), config)
        results = with_gradient(noise, cosmo, config)
        close(results, expected)
        typed(results, noise, config)
    config = config_of(pmd.Decomposition(mesh=mesh_of("explicit", "slabs")))
    noise = pmd.white_noise(jax.random.key(0), config)
    solution, results = evolve(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    assert [x.origin.a for x in (solution.particles, *solution.snapshots)] == [1.0, 0.5, 1.0]
    close(results, {name: expected[name] for name in results})
    typed(results, noise, config)


def typed(results: dict[str, Any], noise: Any, config: pmd.Config) -> None:
    """Fields have the sharding of the noise, in their types too."""
    for name in {"density", "galaxies", "gradient"} & results.keys():
        assert results[name].sharding.is_equivalent_to(config.decomposition.sharding, 3), name
        assert jax.typeof(results[name]).sharding.spec == jax.typeof(noise).sharding.spec != P(None, None, None)


def test_simulations_on_auto_axes_and_in_blocks(cosmo: Any, single: pmd.Decomposition) -> None:
    def with_slope(config: pmd.Config) -> Any:
        def loss(noise: Any) -> Any:
            results = evolve(pmd.linear_modes(noise, cosmo, config), cosmo, config)[1]
            return (results["density"] ** 2).sum() / 16**3, results

        return jax.grad(loss, has_aux=True)

    config = config_of(single)
    expected = jax.jit(with_slope(config))(pmd.white_noise(jax.random.key(0), config))
    with jax.set_mesh(mesh_of("auto", "pencils")):
        config, spec = config_of(pmd.Decomposition()), P("x", "y")
        noise = pmd.white_noise(jax.random.key(0), config)
        specs = spec, {"density": spec, "snapshots": P(None, "x", "y"), "code": P()}
        for run in (with_slope(config), jax.shard_map(with_slope(config), in_specs=spec, out_specs=specs)):
            close(jax.jit(run)(noise), expected)


def posterior_of(forward: Any, likelihood: Any) -> tuple[infer.Posterior, Any]:
    priors = {"sigma8": infer.Normal(0.8, 0.1, low=0.1), "b1": infer.Normal(1.0, 0.3)}
    model = infer.Model(forward.config, forward, priors, likelihood)
    data = model.mock(jax.random.key(1), model.draw(jax.random.key(0), sigma8=0.8))
    position, sharding = model.draw(jax.random.key(2)), forward.config.decomposition.sharding
    assert all(x.sharding.is_equivalent_to(sharding, 3) for x in (data, position["noise"]))
    return model.condition(data), position


def slopes(config: pmd.Config, cosmo: Any) -> Any:
    """The log density of galaxies and its gradient; those of steps are compared above."""
    forward = infer.Simulation(config, cosmo, gravity="lpt", observable=infer.LagrangianGalaxies("b1"))
    posterior, z = posterior_of(forward, infer.Poisson(1.0))
    return jax.jit(jax.value_and_grad(posterior.logdensity))(z)


def chains(config: pmd.Config, cosmo: Any) -> Any:
    """Parameters, log densities and mean noise of two chains of `sample`."""
    posterior, position = posterior_of(infer.LinearField(config, cosmo, bias="b1"), infer.Gaussian(0.5))
    starts = jax.tree.map(lambda x: jnp.stack([x, x]), position)
    key = jax.random.key(5)
    with TemporaryDirectory() as folder:
        chain = infer.sample(posterior, starts, key=key, steps=2, chunk=2, tuning_steps=40, output=folder)
    return chain.parameters, chain.logdensity, chain.noise_mean


@pytest.mark.filterwarnings("ignore:chains have not mixed")  # of two steps
@pytest.mark.parametrize("results", [slopes, chains])
def test_posteriors(results: Any, cosmo: Any, single: pmd.Decomposition) -> None:
    wanted = results(config_of(single, 8), cosmo)
    with jax.set_mesh(mesh_of("explicit", "pencils")):
        found = results(config_of(pmd.Decomposition(), 8), cosmo)
    close(found, wanted)
