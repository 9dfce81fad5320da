"""Momentum and velocity on the mesh: against clouds in NumPy, linear theory and finite differences, on every layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist import observe


def test_values_and_derivatives(decomposition: pmd.Decomposition) -> None:
    """On a mesh that is finer along one axis and has empty cells, where the velocity is 0."""
    rng, a = np.random.default_rng(0), 0.5
    config = pmd.Config((16.0, 8.0, 8.0), (16, 12, 8), (8, 8, 8), decomposition=decomposition, halo=3)
    disp, vel, along, weight = rng.normal(scale=0.5, size=(4, 8, 8, 8, 3))
    place = decomposition.sharding

    def total(disp: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(weight * observe.velocity_field(pmd.Particles(disp, vel), config, a=a))

    @jax.jit
    def fields(disp: jax.Array, vel: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        particles = pmd.Particles(disp, vel)
        fields = observe.momentum_field(particles, config, a=a), observe.velocity_field(particles, config, a=a)
        ends = [total(disp + step * along, weight) for step in (-1e-6, 1e-6)]
        return *fields, (ends[1] - ends[0]) / 2e-6, jnp.sum(along * jax.grad(total)(disp, weight))

    weight = rng.normal(size=(3, *config.mesh_shape))
    particles = pmd.Particles(*jax.device_put((disp, vel), place))
    momentum, velocity, difference, derivative = fields(particles.disp, particles.vel, weight)
    block = tuple(n // p for n, p in zip(config.mesh_shape, (*decomposition.pdims, 1), strict=True))
    assert momentum.sharding.shard_shape(momentum.shape) == (3, *block)
    assert difference == pytest.approx(float(derivative), rel=1e-6)
    x, mass = np.asarray(particles.positions(config)).reshape(-1, 3), config.particles_per_cell
    density = np.asarray(observe.counts_from_catalogue(x, config, window="cloud-in-cell")) / mass
    assert (density == 0).any()
    for axis, u in enumerate(vel.reshape(-1, 3).T * 100 / a):
        above = np.asarray(observe.counts_from_catalogue(x, config, weights=u - u.min(), window="cloud-in-cell")) / mass
        expected = above + u.min() * density
        np.testing.assert_allclose(momentum[axis], expected, atol=1e-9)
        np.testing.assert_allclose(np.mean(momentum[axis]), np.mean(u))
        ratio = np.divide(expected, density, out=np.zeros_like(expected), where=density > 0)
        np.testing.assert_allclose(velocity[axis], ratio, rtol=1e-6, atol=1e-6)


def test_linear_velocities(cosmo: pmd.GrowthTable) -> None:
    """Velocity of a small field against i k / k^2 f a H delta."""
    config = pmd.Config(64.0, 8, lpt_order=1, decomposition=(1, 1))
    table, a = pmd.growth_table(cosmo), 0.5
    noise = jnp.asarray(problems.smooth_field(np.random.default_rng(0), (8, 8, 8)))
    modes = pmd.linear_modes(noise * 1e-4, table, config)
    velocity = observe.velocity_field(pmd.lpt(modes, table, config, a=a), config)
    k = pmd.fftfreq3d((8, 8, 8), config.decomposition, 64.0)
    k2 = sum(x**2 for x in k)
    delta = modes * table.D1(a)
    for axis in range(3):
        flow = 1j * k[axis] / np.where(k2 > 0, k2, 1) * pmd.growth_rate(a, table) * a * 100 * table.E(a) * delta
        expected = pmd.pirfft3d(flow, (8, 8, 8), config.decomposition)
        np.testing.assert_allclose(velocity[axis], expected, atol=1e-3 * float(jnp.abs(expected).max()))


def test_refusals() -> None:
    config = pmd.Config(8.0, 4, decomposition=(1, 1))
    particles = pmd.Particles(*jnp.zeros((2, 4, 4, 4, 3)))
    with pytest.raises(ValueError, match="a=None is not known for these particles; pass their scale factor"):
        observe.velocity_field(particles, config)
    with pytest.raises(ValueError, match=r"particles.disp.shape=\(4, 4, 4, 3\) must be \(8, 8, 8, 3\)"):
        observe.momentum_field(particles, pmd.Config(8.0, 8, decomposition=(1, 1)), a=1.0)
