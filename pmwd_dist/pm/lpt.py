"""Lagrangian perturbation theory: initial particles from linear modes."""

from __future__ import annotations

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

      x = q + D1 psi1 + D2 psi2 + D3a psi3a + D3b psi3b,   vel = a^2 E dx/da,   psi1 = ik/k^2 delta

    `lpt_fields` has the other fields and `GrowthTable` the factors. Third order has no transverse part, and its psi2 is
    dealiased. With massive neutrinos the growth of delta and of psi1 depends on k.

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
    at = as_array(a, table.factors.dtype)
    return displaced(potentials(modes, table, at, config), table, at, config).made_for(config, a)


# Two programs, unless a caller compiles them within one: in one program the memory of the particles lies idle while the
# potentials are computed.
@partial(jit, static_argnames="config")
def potentials(modes: Array, table: GrowthTable, a: Array, config: Config) -> tuple[Array, Array] | tuple[Array]:
    """Modes of the potentials of displacements and momenta at a; at first order of one for both, without factors."""
    decomposition = config.decomposition
    factors = *_factors(table, a), *_by_wavenumber(table, a, config)

    def block(modes: Array, factors: tuple[Array, ...]) -> tuple[Array, ...]:
        growth, rates, *response = (x.astype(modes.real.dtype) for x in factors)
        by_k = [on_modes(x, config, config.particle_shape) for x in response]
        # Computed once: XLA would also store its real and its imaginary parts, for the sums.
        p1, _ = sequence_after(lpt_fields.potential(scaled(-modes, by_k[0]) if by_k else -modes, config), ())
        if config.lpt_order == 1 and not by_k:
            return (p1,)
        first = scaled(p1, growth[0]), scaled(scaled(p1, by_k[1]) if by_k else p1, rates[0])
        if config.lpt_order == 1:
            return first
        # The orders are summed in Fourier space: three transforms for each sum, and no fields of single orders.
        higher = _higher_orders(p1, jnp.stack([growth[1:], rates[1:]]), config)
        return tuple(one + others for one, others in zip(first, higher, strict=True))

    specs = (decomposition.spectrum_spec,) * (1 if config.lpt_order == 1 and len(factors) == 2 else 2)
    run = decomposition.shard_map(block, (decomposition.spectrum_spec, P()), specs, check_vma=False)
    return run(modes, factors)


@partial(jit, static_argnames="config")
def displaced(
    potentials: tuple[Array, Array] | tuple[Array], table: GrowthTable, a: Array, config: Config
) -> Particles:
    """Particles of the lattice, displaced by the gradients of `potentials`."""
    decomposition = config.decomposition
    spacing, unit = resolution(config, potentials[0].real.dtype), momentum_unit(config, potentials[0].real.dtype)

    def block(potentials: tuple[Array, ...], factors: tuple[Array, ...]) -> tuple[Array, Array]:
        if len(potentials) == 1:
            psi = lpt_fields.displaced(potentials[0], config)
            growth, rates = (x.astype(psi.dtype) for x in factors)
            return to_grid(growth[0] * psi, spacing), to_grid(rates[0] * psi, unit)
        disp = to_grid(lpt_fields.displaced(potentials[0], config), spacing)
        of_vel, disp = sequence_after(potentials[1], disp)
        return disp, to_grid(lpt_fields.displaced(of_vel, config), unit)

    specs = (decomposition.spectrum_spec,) * len(potentials), P()
    return Particles(*decomposition.shard_map(block, specs, (decomposition.spec,) * 2)(potentials, _factors(table, a)))


def _factors(table: GrowthTable, a: Array) -> tuple[Array, Array]:
    """Growth of the orders at a, and a^2 E times their slopes."""
    D1, D2, D3, *slopes = table.at(a)
    growth, slopes = (jnp.concatenate([jnp.stack(x[:2]), x[2]]) for x in ((D1, D2, D3), slopes))
    return growth, a**2 * table.E(a) * slopes


def _by_wavenumber(table: GrowthTable, a: Array, config: Config) -> tuple[Array, ...]:
    """Growth and growth rate of cold matter over the values of the table, with massive neutrinos."""
    response = table.response
    if response is None:
        return ()
    rate = table.dD1(a) / table.D1(a)
    growth = tabulate(lambda k, a: response.cold(k, a) / response.cold(k, 1.0), a, config)
    return growth, tabulate(lambda k, a: 1 + response.rate(k, a) / rate, a, config)


def _higher_orders(p1: Array, weights: Array, config: Config) -> list[Array]:
    """Modes of a weighted sum of the potentials beyond the first order, for each row of the weights."""
    if config.lpt_order > 2:
        return lpt_fields.third_order(p1, weights, config)
    p2 = lpt_fields.second_order(p1, config)
    return [scaled(p2, w[0]) for w in weights]
