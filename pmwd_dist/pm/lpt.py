"""Lagrangian perturbation theory: particles at the start, from linear modes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Num

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.parallel.fft import irfft_block, rfft_block, sequence_after
from pmwd_dist.pm import fourier, inputs
from pmwd_dist.pm.particles import Particles, quantize


def lpt(
    modes: Num[Array, "nx ny nk"], cosmo: Cosmology | GrowthTable, config: Config, *, a: ArrayLike | None = None
) -> Particles:
    """Displace the lattice by LPT of order `config.lpt_order`.

    x = q + D1 psi1 + D2 psi2 with psi1 = ik/k^2 delta and div psi2 = sum_{i<j} (psi1_ii psi1_jj - psi1_ij^2)
    (Bouchet et al. 1995; Scoccimarro 1998).

    Args:
      modes: linear delta(k) at a = 1, from `linear_modes`.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      a: scale factor of the result; default: `config.a_start`.

    Returns:
      Particles, on the power-of-two grid of the solvers.

    Raises:
      ValueError: modes of another shape, or a scale factor outside the growth tables.
    """
    inputs.check_config(config)
    a = config.a_start if a is None else inputs.scale_factor(a)
    return _lpt(inputs.linear_modes(modes, config), growth_table(cosmo), a, config)


@partial(jax.jit, static_argnames="config")
def _lpt(modes: Array, table: GrowthTable, a: ArrayLike, config: Config) -> Particles:
    decomposition = config.decomposition
    a = jnp.asarray(a)
    rate = a**2 * table.E(a)
    factors = jnp.stack([table.D1(a), table.D2(a), rate * table.dD1(a), rate * table.dD2(a)])

    def block(modes: Array, factors: Array) -> tuple[Array, Array]:
        factors = factors.astype(modes.real.dtype)
        first = _displacement(modes, config)
        disp, vel = factors[0] * first, factors[2] * first
        if config.lpt_order == 2:
            second = _displacement(-rfft_block(_second_order_source(modes, config), decomposition), config)
            disp, vel = disp + factors[1] * second, vel + factors[3] * second
        return disp, vel

    run = decomposition.shard_map(block, (decomposition.spectrum_spec, P()), (decomposition.spec, decomposition.spec))
    return quantize(Particles(*run(modes, factors)), config)


def _displacement(modes: Array, config: Config) -> Array:
    """The field whose divergence is -modes and whose curl is zero: ik/k^2 modes, shape (nx, ny, nz, 3)."""
    shape, dtype = config.particle_shape, modes.real.dtype
    potential = modes * fourier.inverse_laplacian(shape, config, dtype)
    fields: list[Array] = []
    for k in fourier.wavevectors(shape, config, dtype, odd=True):
        fields.append(irfft_block(1j * k * potential, shape[2], config.decomposition))
        potential, fields = sequence_after(potential, fields)
    return jnp.stack(fields, -1)


def _second_order_source(modes: Array, config: Config) -> Array:
    """sum_{i<j} (phi_ii phi_jj - phi_ij^2) of the potential phi = -modes / k^2."""
    shape, dtype = config.particle_shape, modes.real.dtype
    potential = modes * fourier.inverse_laplacian(shape, config, dtype)
    even = fourier.wavevectors(shape, config, dtype)
    odd = fourier.wavevectors(shape, config, dtype, odd=True)
    nz = shape[2]

    source = trace = jnp.zeros((), dtype)
    for i in range(3):
        derivative = irfft_block(even[i] ** 2 * potential, nz, config.decomposition)
        source, trace = source + trace * derivative, trace + derivative
        potential, (source, trace) = sequence_after(potential, (source, trace))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        source = source - irfft_block(odd[i] * odd[j] * potential, nz, config.decomposition) ** 2
        potential, source = sequence_after(potential, source)
    return source
