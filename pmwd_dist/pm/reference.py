"""A whole simulation and its gradient in plain JAX: the equations of this package, and an oracle of its tests.

One device, as many mesh cells as particles, an even number along each axis, no halos and no integers. `nbody` solves
the same equations on divided meshes, and reverses its steps exactly; here they are reversed up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.solvers.diffrax_solvers import BullFrog
from pmwd_dist.pm.time_steps import step_times


def wavevectors(config: Config, *, odd: bool = False) -> list[Array]:
    """Components of k [h/Mpc] of a real field's spectrum; odd: zero at the Nyquist frequency, for odd derivatives."""
    nx, ny, nz = config.mesh_shape
    numbers = jnp.fft.fftfreq(nx, 1 / nx), jnp.fft.fftfreq(ny, 1 / ny), jnp.arange(nz // 2 + 1.0)
    if odd:
        numbers = [jnp.where(2 * abs(n) == size, 0, n) for n, size in zip(numbers, config.mesh_shape, strict=True)]
    k = [2 * jnp.pi / length * n for n, length in zip(numbers, config.box_size, strict=True)]
    return list(jnp.meshgrid(*k, indexing="ij", sparse=True))


def inverse_laplacian(modes: Complex[Array, "nx ny nk"], config: Config) -> Complex[Array, "nx ny nk"]:
    """Modes of a potential from modes of its Laplacian, times -1 / k^2; 0 at k = 0. `pm.fourier` has +1 / k^2."""
    k2 = sum(ki**2 for ki in wavevectors(config))
    return -modes / jnp.where(k2 > 0, k2, jnp.inf)


def linear_modes(
    noise: Float[Array, "nx ny nz"], power: Callable[[Array], Array], config: Config
) -> Complex[Array, "nx ny nk"]:
    """delta(k) = sqrt(P(k) N / V) noise(k), for N particles in a volume V."""
    k = jnp.sqrt(sum(ki**2 for ki in wavevectors(config)))
    density = noise.size / math.prod(config.box_size)
    return jnp.where(k > 0, jnp.sqrt(power(jnp.where(k > 0, k, 1)) * density), 0) * jnp.fft.rfftn(noise)


def lpt(modes: Complex[Array, "nx ny nk"], table: GrowthTable, config: Config) -> Particles:
    """Second-order Lagrangian perturbation theory (Bouchet et al. 1995).

    disp = D1 grad phi1 + D2 grad phi2,  vel = a^2 E d(disp)/da, with
    laplacian phi1 = -delta,  laplacian phi2 = sum_{i<j} (d_ii phi1 d_jj phi1 - (d_ij phi1)^2).
    """
    k, k_odd, shape, a = wavevectors(config), wavevectors(config, odd=True), config.mesh_shape, config.a_start
    phi1 = inverse_laplacian(-modes, config)
    d = {(i, j): jnp.fft.irfftn(-k_odd[i] * k_odd[j] * phi1, shape) for i, j in ((0, 1), (0, 2), (1, 2))}
    d |= {(i, i): jnp.fft.irfftn(-(k[i] ** 2) * phi1, shape) for i in range(3)}
    source = sum(d[i, i] * d[j, j] - d[i, j] ** 2 for i, j in ((0, 1), (0, 2), (1, 2)))
    phi2 = inverse_laplacian(jnp.fft.rfftn(source), config)
    psi1, psi2 = (jnp.stack([jnp.fft.irfftn(1j * ki * phi, shape) for ki in k_odd], -1) for phi in (phi1, phi2))
    slope1, slope2 = a**2 * table.E(a) * table.dD1(a), a**2 * table.E(a) * table.dD2(a)
    return Particles(table.D1(a) * psi1 + table.D2(a) * psi2, slope1 * psi1 + slope2 * psi2)


def clouds(disp: Float[Array, "nx ny nz 3"], config: Config) -> Iterator[tuple[tuple[Array, ...], Array]]:
    """Cloud-in-cell: the eight cells around each particle, and weights prod_i (1 - |x_i - cell_i|)."""
    shape, sites = config.mesh_shape, jnp.indices(config.mesh_shape)
    x = [sites[i] + disp[..., i] / config.cell_size[i] for i in range(3)]
    for corner in product((0, 1), repeat=3):
        cell = [jnp.floor(xi) + ci for xi, ci in zip(x, corner, strict=True)]
        weights = [1 - abs(xi - ci) for xi, ci in zip(x, cell, strict=True)]
        yield tuple(ci.astype(int) % n for ci, n in zip(cell, shape, strict=True)), math.prod(weights)  # type: ignore[misc]


def density(disp: Float[Array, "nx ny nz 3"], config: Config) -> Float[Array, "nx ny nz"]:
    """1 + delta, painted with cloud-in-cell weights."""
    mesh = jnp.zeros(config.mesh_shape)
    for cell, weight in clouds(disp, config):
        mesh = mesh.at[cell].add(weight)
    return mesh


def acceleration(disp: Float[Array, "nx ny nz 3"], config: Config) -> Float[Array, "nx ny nz 3"]:
    """-grad phi at the particles, laplacian phi = delta.

    Two windows, prod_i (sin(x_i) / x_i)^2 with x_i = k_i h_i / 2 for painting and for reading, are deconvolved. A
    component of grad f is (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12 h (Hockney & Eastwood 1988).
    """
    cell = config.cell_size
    window = math.prod(jnp.sinc(k * h / (2 * jnp.pi)) ** 2 for k, h in zip(wavevectors(config), cell, strict=True))
    phi = inverse_laplacian(jnp.fft.rfftn(density(disp, config)) / window**2, config)
    phi = jnp.fft.irfftn(phi, config.mesh_shape)

    def slope(axis: int) -> Array:
        one, two = (jnp.roll(phi, -n, axis) - jnp.roll(phi, n, axis) for n in (1, 2))
        return (8 * one - two) / (12 * cell[axis])

    force = -jnp.stack([slope(axis) for axis in range(3)], -1)
    return sum((weight[..., None] * force[cell] for cell, weight in clouds(disp, config)), jnp.zeros_like(disp))


def step(particles: Particles, c: Coefficients, config: Config) -> Particles:
    """Drift, kick and drift: x += d0 p;  p = 2^s p + k acceleration(x);  x += d1 p."""
    middle = particles.disp + c.drift_before * particles.vel
    vel = 2**c.log_scale * particles.vel + c.kick * acceleration(middle, config)
    return Particles(middle + c.drift_after * vel, vel)


def inverse_step(particles: Particles, c: Coefficients, config: Config) -> Particles:
    """Inverse of `step`, operation by operation."""
    middle = particles.disp - c.drift_after * particles.vel
    vel = (particles.vel - c.kick * acceleration(middle, config)) / 2**c.log_scale
    return Particles(middle - c.drift_before * vel, vel)


def simulate(particles: Particles, table: GrowthTable, config: Config) -> tuple[Particles, Coefficients]:
    """Take all steps; returns the particles at a_stop and the coefficients of the steps."""
    times = step_times(table, config)
    coefficients = jax.vmap(BullFrog().coefficients, (None, 0, 0))(table, times[:-1], times[1:])
    return jax.lax.scan(lambda state, c: (step(state, c, config), None), particles, coefficients)[0], coefficients


def value_and_gradient(
    loss: Callable[[Particles], Array],
    noise: Float[Array, "nx ny nz"],
    power: Callable[[Array], Array],
    table: GrowthTable,
    config: Config,
) -> tuple[Array, Array]:
    """A loss of the final particles, and its gradient with respect to the noise: the reversible adjoint.

    From the last step to the first, the state before a step is computed from the state after it, and the VJP of the
    step is applied there. No intermediate state is stored.
    """
    start, pull_start = jax.vjp(lambda noise: lpt(linear_modes(noise, power, config), table, config), noise)
    final, coefficients = simulate(start, table, config)
    value, cotangents = jax.value_and_grad(loss)(final)

    def back(carry: tuple[Particles, Particles], c: Coefficients) -> tuple[Any, None]:
        after, cotangents = carry
        before = inverse_step(after, c, config)
        _, pull = jax.vjp(lambda particles: step(particles, c, config), before)
        return (before, pull(cotangents)[0]), None

    (_, cotangents), _ = jax.lax.scan(back, (final, cotangents), coefficients, reverse=True)
    return value, pull_start(cotangents)[0]
