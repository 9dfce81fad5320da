"""A small call of each public function of arrays, and this call under the transforms of JAX."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer, observe

Cases = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]
BOX, EDGES = 64.0, [0.0, 50.0, 100.0]


def inputs(pdims: tuple[int, int] = (1, 1)) -> SimpleNamespace:
    """What the calls need, on a division over devices."""
    n = SimpleNamespace()
    n.config = pmd.Config(BOX, 8, a_start=0.5, steps=1, lpt_order=2, decomposition=pmd.Decomposition(pdims), halo=2)
    n.division = n.config.decomposition
    n.put = lambda x: jax.device_put(x, n.division.sharding)
    rng = np.random.default_rng(0)
    n.field = n.put(0.1 * rng.standard_normal((8, 8, 8)))
    n.disp, n.vel = (n.put(rng.uniform(-3, 3, (8, 8, 8, 3))) for _ in range(2))
    n.modes = pmd.prfft3d(10 * n.field, n.division)
    n.omega = jnp.asarray(0.26)
    n.plane = observe.FlatSkyLightCone(n.config, EDGES, pixels=8)
    n.sphere = observe.SphericalLightCone(n.config, EDGES, nside=2)
    n.flat = n.plane.config.decomposition
    n.mass = jax.device_put(1 + 0.1 * rng.random((2, 8, 8)), jax.NamedSharding(n.flat.mesh, n.flat.spectrum_spec))
    n.map = jnp.asarray(1 + 0.1 * rng.random((2, 48)))
    forward = infer.Simulation(n.config, jax_cosmo.Planck15())
    n.model = infer.Model(n.config, forward, {"sigma8": infer.Normal(0.8, 0.1, low=0.1)}, infer.Gaussian(sigma=1.0))
    n.posterior = n.model.condition(1 + n.field)
    n.position = {"noise": n.field, "parameters": {"sigma8": jnp.asarray(0.1)}}
    return n


def normal(x: Any) -> Any:
    """Log density of a standard normal distribution."""
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))


def cosmology(omega: Any) -> Any:
    return jax_cosmo.Planck15(Omega_c=omega)


def power(k: Any) -> Any:
    return 1e4 * k / (0.02 + k) ** 3


def particles(disp: Any, vel: Any) -> pmd.Particles:
    return pmd.Particles(disp, vel)


def cases(n: SimpleNamespace) -> Cases:
    """A function of arrays and its arguments, by public name."""
    return of_simulations(n) | of_fields(n) | of_skies(n) | of_inferences(n)


def of_simulations(n: SimpleNamespace) -> Cases:
    c, d = n.config, n.division
    a, k = jnp.array([0.5, 0.9]), jnp.array([0.02, 0.2])
    moving = (n.disp, n.vel, n.omega)
    return {
        "with_neutrinos": (lambda m: pmd.growth(0.5, pmd.with_neutrinos(jax_cosmo.Planck15(), m_nu=m)), (n.omega,)),
        "with_dark_energy": (lambda w: pmd.growth(0.5, pmd.with_dark_energy(jax_cosmo.Planck15(), a, w)), (-a,)),
        "linear_power": (lambda k, o: pmd.linear_power(k, cosmology(o)), (k, n.omega)),
        "growth_table": (lambda o: pmd.growth_table(cosmology(o)).D1(0.5), (n.omega,)),
        "growth": (lambda a, o: pmd.growth(a, cosmology(o)), (a, n.omega)),
        "growth_rate": (lambda a, o: pmd.growth_rate(a, cosmology(o)), (a, n.omega)),
        "comoving_distance": (lambda a, o: pmd.comoving_distance(a, cosmology(o)), (a, n.omega)),
        "white_noise": (lambda key: pmd.white_noise(key, c), (jax.random.key(0),)),
        "linear_modes": (lambda x, o: pmd.linear_modes(x, cosmology(o), c), (n.field, n.omega)),
        "lpt": (lambda x, o: pmd.lpt(x, cosmology(o), c), (n.modes, n.omega)),
        "nbody": (lambda x, v, o: pmd.nbody(particles(x, v), cosmology(o), c).particles, moving),
        "density": (lambda x: pmd.density(particles(x, x), c), (n.disp,)),
        "cic_paint": (lambda x, w: pmd.cic_paint(x, c, w), (n.disp, n.field)),
        "cic_read": (lambda f, x: pmd.cic_read(f, x, c), (n.field, n.disp)),
        "power_spectrum": (lambda f: pmd.power_spectrum(f, c).power, (n.field,)),
        "prfft3d": (lambda f: pmd.prfft3d(f, d), (n.field,)),
        "pirfft3d": (lambda f: pmd.pirfft3d(f, (8, 8, 8), d), (n.modes,)),
        "pfft3d": (lambda f: pmd.pfft3d(f, d), (n.field,)),
        "pifft3d": (lambda f: pmd.pifft3d(f, d), (pmd.pfft3d(n.field, d),)),
        "halo_pad": (lambda f: pmd.halo_pad(f, 1, d), (n.field,)),
        "halo_reduce": (lambda f: pmd.halo_reduce(f, 1, d), (pmd.halo_pad(n.field, 1, d),)),
    }


def of_fields(n: SimpleNamespace) -> Cases:
    """Observables of boxes."""
    c, moving = n.config, (n.disp, n.vel, n.omega)
    return {
        "observe.redshift_space": (
            lambda x, v, o: observe.redshift_space(particles(x, v), cosmology(o), c, a=0.8).disp,
            moving,
        ),
        "observe.momentum_field": (lambda x, v: observe.momentum_field(particles(x, v), c, a=0.8), moving[:2]),
        "observe.velocity_field": (lambda x, v: observe.velocity_field(particles(x, v), c, a=0.8), moving[:2]),
        "observe.bias_weights": (
            lambda m, b: observe.bias_weights(m, observe.LagrangianBias(b1=b), jax_cosmo.Planck15(), c, smoothing=8.0),
            (n.modes, n.omega),
        ),
        "observe.tracer_density": (lambda x, w: observe.tracer_density(particles(x, x), w, c), (n.disp, 1 + n.field)),
        "observe.eulerian_bias": (lambda f, b: observe.eulerian_bias(f, b, c), (1 + n.field, n.omega)),
        "observe.expected_counts": (
            lambda f, nbar: observe.expected_counts(f, c, number_density=nbar),
            (1 + n.field, n.omega),
        ),
        "observe.counts_from_catalogue": (lambda x: observe.counts_from_catalogue(x, c), (10 + n.disp[0, 0],)),
        "observe.with_window": (lambda f: observe.with_window(f, c, "nearest"), (1 + n.field,)),
        "observe.weighted_overdensity": (
            lambda f, w: observe.weighted_overdensity(f, w, c),
            (1 + n.field, 1 / (1 + n.field**2)),
        ),
        "observe.smoothed": (lambda f, r: observe.smoothed(f, c, r), (n.field, 30 * n.omega)),
        "observe.interlaced_density": (lambda x: observe.interlaced_density(particles(x, x), c), (n.disp,)),
        "observe.power_multipoles": (lambda f: observe.power_multipoles(f, c).power, (n.field,)),
        "observe.kaiser_multipoles": (
            lambda b, o: observe.kaiser_multipoles(power, cosmology(o), c, bias=b),
            (n.omega, n.omega),
        ),
        "observe.cross_power": (lambda f, g: observe.cross_power(f, g, c).correlation, (n.field, n.field**2)),
        "observe.one_point_pdf": (
            lambda f: observe.one_point_pdf(f, c, np.linspace(-1, 1, 5)).density,
            (n.field,),
        ),
        "observe.bispectrum": (
            lambda f: observe.bispectrum(f, c, edges=[0.05, 0.15, 0.25]).bispectrum,
            (n.field,),
        ),
        "observe.tinker_mass_function": (
            lambda m: observe.tinker_mass_function(m, power, jax_cosmo.Planck15(), 1.0),
            (jnp.array([1e13, 1e14]),),
        ),
        "observe.comoving_positions": (
            lambda z: observe.comoving_positions({"RA": z, "DEC": z, "Z": z}, jax_cosmo.Planck15()),
            (jnp.array([0.5, 0.9]),),
        ),
        "observe.survey_selection": (
            lambda o: observe.survey_selection(observe.Survey(n_z=([0.0, 0.1], [1.0, 1.0])), cosmology(o), c),
            (n.omega,),
        ),
        "observe.friends_of_friends": (
            lambda x: (
                observe.friends_of_friends(
                    particles(x, x), jax_cosmo.Planck15(), c, a=1.0, linking_length=0.6, min_particles=4
                ).mass
            ),
            (n.disp,),
        ),
        "observe.galaxy_catalogue": (
            lambda x: observe.galaxy_catalogue(
                particles(x, x), jax_cosmo.Planck15(), c, key=jax.random.key(0), number_density=1e-4, a=1.0
            ).columns["Position"],
            (n.disp,),
        ),
    }


def of_skies(n: SimpleNamespace) -> Cases:
    """Light cones and lensing."""
    moving, view = (n.disp, n.vel, n.omega), {"source": 0.03, "field": 5.0, "pixels": 8}

    def evolved(cone: Any, disp: Any, vel: Any, omega: Any) -> Any:
        return pmd.nbody(particles(disp, vel), cosmology(omega), n.config, accumulate=cone).accumulated

    return {
        "observe.FlatSkyLightCone": (partial(evolved, n.plane), moving),
        "observe.SphericalLightCone": (partial(evolved, n.sphere), moving),
        "observe.lensing_weights": (
            lambda z, o: observe.lensing_weights(EDGES, cosmology(o), z),
            (0.1 * n.omega, n.omega),
        ),
        "observe.convergence": (lambda m, o: observe.convergence(m, cosmology(o), n.plane, **view), (n.mass, n.omega)),
        "observe.shear": (lambda m, o: observe.shear(m, cosmology(o), n.plane, **view), (n.mass, n.omega)),
        "observe.kaiser_squires": (observe.kaiser_squires, (n.mass,)),
        "observe.angular_power": (lambda f: observe.angular_power(f, side=5.0, bins=2).power, (n.field[0],)),
        "observe.limber_power": (
            lambda z, o: observe.limber_power(jnp.array([100.0]), power, cosmology(o), EDGES, z),
            (0.1 * n.omega, n.omega),
        ),
    }


def of_inferences(n: SimpleNamespace) -> Cases:
    def step(module: Any, key: Any, position: Any, **options: float) -> Any:
        state = infer.mclmc.init(key, position, normal)
        return module.step(key, state, normal, step_size=0.1, **options)[0].position

    return {
        "infer.Model.predict": (lambda x, s: n.model.predict(x, {"sigma8": s})[0], (n.field, 3 * n.omega)),
        "infer.Posterior.logdensity": (lambda x: n.posterior.logdensity(x), (n.position,)),
        "infer.Posterior.from_latent": (lambda x: n.posterior.from_latent(x), (n.position,)),
        "infer.mclmc.step": (partial(step, infer.mclmc, L=1.0), (jax.random.key(2), n.position)),
        "infer.hmc.step": (partial(step, infer.hmc, num_integration_steps=2), (jax.random.key(2), n.position)),
    }


def square(function: Callable[..., Any]) -> Callable[..., Any]:
    """Sum of the squares of all results."""
    return lambda *x: sum(jnp.sum(jnp.abs(leaf) ** 2) for leaf in jax.tree.leaves(function(*x)))


def tangents(x: Any) -> Any:
    """A direction in which to differentiate."""
    return jax.tree.map(lambda leaf: leaf * jnp.cos(jnp.arange(leaf.size).reshape(leaf.shape)), x)


def transforms(
    function: Callable[..., Any], x: tuple[Any, ...]
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The function under each transform, with its arguments; derivatives by floating-point numbers only."""
    found: dict[str, Any] = {"jit": (function, x)}
    if all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(x)):
        found["grad"] = jax.grad(square(function), argnums=tuple(range(len(x)))), x
        found["jvp"] = lambda *x: jax.jvp(square(function), x, tangents(x))[1], x
    found["vmap"] = jax.vmap(function), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), x)
    return found


def main() -> None:
    """Under mpirun: values of all functions on two processes; tests of inferences have those of infer."""
    pmd.distributed.initialize()
    called = {name: call for name, call in cases(inputs((2, 1))).items() if not name.startswith("infer.")}
    found = {name: float(square(function)(*x)) for name, (function, x) in called.items()}
    if pmd.distributed.is_main():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
