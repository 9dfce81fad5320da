"""Lagrangian perturbation theory: initial particles from linear modes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Num

from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.fft import sequence_after
from pmwd_dist.pm import inputs, lpt_fields
from pmwd_dist.pm.particles import Particles, momentum_unit, resolution, to_grid
from pmwd_dist.pm.potential_factor import on_modes, tabulate


@on_auto_axes
def lpt(
    modes: Num[Array, "nx ny nk"], cosmo: Cosmology | GrowthTable, config: Config, *, a: ArrayLike | None = None
) -> Particles:
    """Displace the lattice by LPT of order `config.lpt_order` (Bouchet et al. 1995; Catelan 1995).

      x = q + D1 psi1 + D2 psi2 + D3a psi3a + D3b psi3b + D3c psi3c,   vel = a^2 E dx/da,   psi1 = ik/k^2 delta

    `lpt_fields` has the other fields and `GrowthTable` the factors. At third order all products are dealiased. With
    massive neutrinos the growth of delta and of psi1 depends on k.

    Args:
      modes: linear delta(k) at a = 1, from `linear_modes`.
      cosmo: cosmology, or its `growth_table`.
      config: the simulation.
      a: scale factor of the result; default: `config.a_start`.

    Returns:
      Particles, on the grids of the steps.

    Raises:
      ValueError: modes of another shape, or a scale factor outside the growth tables.

    Examples:
      >>> modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
      >>> particles = pmd.lpt(modes, cosmo, config)  # at a_start
    """
    inputs.check_config(config)
    a = config.a_start if a is None else inputs.scale_factor(a)
    table = growth_table_to(config.lpt_order, cosmo)
    modes = inputs.checked_modes(modes, config)
    return _lpt(modes, table, as_array(a, table.factors.dtype), config).made_for(config, a)


@partial(jit, static_argnames="config")
def _lpt(modes: Array, table: GrowthTable, a: Array, config: Config) -> Particles:
    decomposition = config.decomposition
    D1, D2, D3, *slopes = table.at(a)
    growth, slopes = (jnp.concatenate([jnp.stack(x[:2]), x[2]]) for x in ((D1, D2, D3), slopes))
    factors = growth, a**2 * table.E(a) * slopes, *_by_wavenumber(table, a, config)
    spacing, unit = resolution(config, modes.real.dtype), momentum_unit(config, modes.real.dtype)

    def block(modes: Array, factors: tuple[Array, ...]) -> tuple[Array, Array]:
        growth, rates, *response = (x.astype(modes.real.dtype) for x in factors)
        by_k = [on_modes(x, config, config.particle_shape) for x in response]
        potentials, curl = _sources(scaled(modes, by_k[0]) if by_k else modes, config)
        moving = [scaled(potentials[0], by_k[1]), *potentials[1:]] if by_k else potentials
        if config.lpt_order == 1:
            psi = lpt_fields.displaced(potentials[0], (), config)
            rate = lpt_fields.displaced(moving[0], (), config) if by_k else psi
            return to_grid(growth[0] * psi, spacing), to_grid(rates[0] * rate, unit)
        # The orders are summed in Fourier space: three transforms for each sum, and no fields of single orders.
        disp_modes, vel_modes = (_weighted(w, p, curl) for w, p in ((growth, potentials), (rates, moving)))
        disp = to_grid(lpt_fields.displaced(*disp_modes, config), spacing)
        vel_modes, disp = sequence_after(vel_modes, disp)
        return disp, to_grid(lpt_fields.displaced(*vel_modes, config), unit)

    run = decomposition.shard_map(block, (decomposition.spectrum_spec, P()), (decomposition.spec, decomposition.spec))
    return Particles(*run(modes, factors))


def _by_wavenumber(table: GrowthTable, a: Array, config: Config) -> tuple[Array, ...]:
    """Growth and growth rate of cold matter over those of the table, with massive neutrinos."""
    response = table.response
    if response is None:
        return ()
    rate = table.dD1(a) / table.D1(a)
    growth = tabulate(lambda k, a: response.cold(k, a) / response.cold(k, 1.0), a, config)
    return growth, tabulate(lambda k, a: 1 + response.rate(k, a) / rate, a, config)


def _weighted(weights: Array, potentials: Sequence[Array], curl: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Weighted sum of the potentials, and the curl with the weight that follows."""
    weights = weights.reshape(-1, 1, 1, 1)
    first, *others = (scaled(p, weights[i]) for i, p in enumerate(potentials))
    return sum(others, start=first), [scaled(c, weights[len(potentials)]) for c in curl]


def _sources(modes: Array, config: Config) -> tuple[list[Array], list[Array]]:
    """Potentials of psi1, psi2, psi3a and psi3b, and the curl of psi3c, up to the order of the config."""
    order = config.lpt_order
    p1 = lpt_fields.potential(-modes, config)
    if order == 1:
        return [p1], []
    # Computed once: XLA would also store its real and its imaginary parts, for the sums.
    p1, _ = sequence_after(p1, ())
    source = lpt_fields.second_order(p1, config, dealias=order > 2)
    p1, source = sequence_after(p1, source)
    p2 = lpt_fields.potential(source, config)
    if order == 2:
        return [p1, p2], []
    determinant, mixed, *curl = lpt_fields.third_order(p1, p2, config)
    return [p1, p2, *(lpt_fields.potential(x, config) for x in (determinant, mixed))], curl
