"""A factor of the potential: its table, failures, and the cost of derivatives; other tests have one in their forces."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.pm import potential_factor
from pmwd_dist.pm.status import Code

COSMO = problems.cosmology()


def configure(**options: Any) -> pmd.Config:
    return pmd.Config(**({"box_size": 24.0, "mesh_shape": 8, "steps": 2, "decomposition": (1, 1)} | options))


def wave(config: pmd.Config) -> pmd.Particles:
    x = jnp.arange(config.mesh_shape[0]) * 2 * jnp.pi / config.mesh_shape[0]
    disp = jnp.broadcast_to(jnp.sin(x)[:, None, None, None], (*config.particle_shape, 3))
    return pmd.Particles(disp, disp)


@pytest.mark.parametrize("k_scale", [0.02, 0.3, 2.0])
def test_smooth_factors_are_interpolated_to_1e_4(k_scale: float, single: pmd.Decomposition) -> None:
    config = configure(box_size=200.0, mesh_shape=64, decomposition=single)

    def factor(k: Any, a: Any) -> Any:
        return 1 + 0.2 * a * k**2 / (k_scale**2 + k**2)

    def block() -> jax.Array:
        return potential_factor.on_modes(potential_factor.tabulate(factor, jnp.asarray(0.5), config), config)

    found = single.shard_map(block, (), single.spectrum_spec)()
    k = np.sqrt(sum(np.asarray(x) ** 2 for x in pmd.fftfreq3d(config.mesh_shape, single, config.box_size)))
    np.testing.assert_allclose(found.ravel()[1:], factor(k, 0.5).ravel()[1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("bad", "steps"), [(0.0, 2), (jnp.nan, 2), (1.0, 4)])
def test_a_factor_that_is_not_positive_fails_the_step(bad: Any, steps: int) -> None:
    config, factor = configure(steps=4), lambda k, a: jnp.where((a < 0.5) | (k < 0.6), 1, bad)
    status = pmd.nbody(wave(config), COSMO, config, potential_factor=factor).status
    code = Code.SUCCESSFUL if steps == 4 else Code.NOT_FINITE
    assert (status.code, status.step) == (code, steps)


def test_derivatives_of_the_particles_alone_need_no_more_transforms() -> None:
    config = configure()

    def transforms(strength: float | None, wanted: int = 0) -> int:
        def loss(particles: pmd.Particles, strength: Any) -> Any:
            factor = None if strength is None else lambda k, a: 1 + strength * a * k
            adjoint = pmd.ReversibleAdjoint(stored_potentials=0)
            run = pmd.nbody(particles, COSMO, config, potential_factor=factor, adjoint=adjoint)
            return jnp.mean(run.particles.disp**2)

        text = jax.jit(jax.grad(loss, argnums=wanted)).lower(wave(config), strength).as_text()
        return len(re.findall(r"@jaxdecomp_ops_i?rfft\(|stablehlo\.fft", text))

    without = transforms(None)
    assert transforms(0.1) == without > 0
    assert transforms(0.1, 1) > without
