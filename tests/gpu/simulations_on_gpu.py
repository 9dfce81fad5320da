"""Run by `test_programs.py`: light cones, lensing, changed forces and gradients, on a GPU and the CPU.

XLA_PYTHON_CLIENT_PREALLOCATE=false python tests/gpu/simulations_on_gpu.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd

jax.config.update("jax_enable_x64", True)
NOISE = np.random.default_rng(0).standard_normal((16, 16, 16))
EDGES = (0.0, 30.0, 60.0, 90.0)


def close(got: Any, expected: Any, what: str, tolerance: float) -> None:
    """Equal relative to the largest value."""
    got, expected = np.asarray(got), np.asarray(expected)
    atol = tolerance * float(np.abs(expected).max())
    assert atol > 0, what
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=what)


def configure(kind: str, **changes: Any) -> pmd.Config:
    decomposition = pmd.Decomposition((1, 1), jax.devices(kind)[:1])
    settings: dict[str, Any] = {"box_size": 60.0, "mesh_shape": 16, "a_start": 0.8, "steps": 3, "lpt_order": 2}
    return pmd.Config(**settings | changes, decomposition=decomposition)


def light_cone(kind: str, sky: str) -> Any:
    """Mass of the shells, convergence, and the gradient of a sum of its squares."""
    config, cosmo = configure(kind), jax_cosmo.Planck15()
    flat = pmd.observe.FlatSkyLightCone(config, EDGES, pixels=24)
    cone: Any = flat if sky == "flat" else pmd.observe.SphericalLightCone(config, EDGES, nside=8)
    view: Any = {"field": 20.0, "pixels": 16} if sky == "flat" else {}

    def loss(noise: Any) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        mass = pmd.nbody(particles, cosmo, config, accumulate=cone).accumulated
        kappa = pmd.observe.convergence(mass, cosmo, cone, source=0.025, **view)
        return jnp.sum(kappa**2) / 1e-6, (mass, kappa)

    (_, seen), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(placed(kind))
    return (*seen, gradient)


def changed_forces(kind: str, compensated: bool) -> Any:
    """Density and its gradient with forces that make up for their windows, or with a correction of small scales."""
    config, cosmo = configure(kind, compensated=compensated, a_start=0.1), jax_cosmo.Planck15()
    correction = None if compensated else pmd.ForceCorrection(3.75, np.full((9, 5), 0.2))

    def loss(noise: Any) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        end = pmd.nbody(particles, cosmo, config, potential_factor=correction).particles
        density = pmd.density(end, config)
        return jnp.mean(density**2), density

    (_, density), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(placed(kind))
    return density, gradient


def placed(kind: str) -> jax.Array:
    return jax.device_put(NOISE, jax.devices(kind)[0])


def main() -> None:
    """Compare; the order in which a GPU adds up the mass of the shells is not that of the CPU."""
    for sky in ("flat", "sphere"):
        for name, got, expected in zip(
            ("mass", "convergence", "gradient"), light_cone("cuda", sky), light_cone("cpu", sky), strict=True
        ):
            close(got, expected, f"{name} of the {sky} light cone", 1e-10)
    for compensated in (False, True):
        results = (changed_forces(kind, compensated) for kind in ("cuda", "cpu"))
        for name, got, expected in zip(("density", "gradient"), *results, strict=True):
            close(got, expected, f"{name} with changed forces", 1e-11)
    print("simulations are fine")


if __name__ == "__main__":
    main()
