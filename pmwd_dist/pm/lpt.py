"""Lagrangian perturbation theory: particles at the start, from linear modes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Num

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.pm import displacement, inputs
from pmwd_dist.pm.particles import Particles, quantize


def lpt(
    modes: Num[Array, "nx ny nk"], cosmo: Cosmology | GrowthTable, config: Config, *, a: ArrayLike | None = None
) -> Particles:
    """Displace the lattice by LPT of order `config.lpt_order`.

    x = q + D1 psi1 + D2 psi2 + D3a psi3a + D3b psi3b + D3c psi3c with psi1 = ik/k^2 delta; `displacement` has the
    other fields and `GrowthTable` the factors (Bouchet et al. 1995; Catelan 1995). At third order all products are
    dealiased, also those of second order.

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
    return _lpt(inputs.linear_modes(modes, config), growth_table_to(config.lpt_order, cosmo), a, config)


@partial(jax.jit, static_argnames="config")
def _lpt(modes: Array, table: GrowthTable, a: ArrayLike, config: Config) -> Particles:
    decomposition = config.decomposition
    a = jnp.asarray(a)
    D1, D2, D3, *slopes = table.at(a)
    growth, slopes = (jnp.concatenate([jnp.stack(x[:2]), x[2]]) for x in ((D1, D2, D3), slopes))
    factors = jnp.stack([growth, a**2 * table.E(a) * slopes], -1)

    def block(modes: Array, factors: Array) -> tuple[Array, Array]:
        fields = _displacements(modes, config)
        first = next(fields)
        factors = factors.astype(first.dtype)
        disp, vel = factors[0, 0] * first, factors[0, 1] * first
        for factor, field in zip(factors[1:], fields, strict=False):
            disp, vel = disp + factor[0] * field, vel + factor[1] * field
        return disp, vel

    run = decomposition.shard_map(block, (decomposition.spectrum_spec, P()), (decomposition.spec, decomposition.spec))
    return quantize(Particles(*run(modes, factors)), config)


def _displacements(modes: Array, config: Config) -> Iterator[Array]:
    """The fields psi1, psi2, psi3a, psi3b and psi3c up to the order of the config, shape (nx, ny, nz, 3) each."""
    order = config.lpt_order
    p1 = displacement.potential(-modes, config)
    yield displacement.gradient(p1, config)
    if order == 1:
        return
    p2 = displacement.potential(displacement.second_order(p1, config, dealias=order > 2), config)
    yield displacement.gradient(p2, config)
    if order == 2:
        return
    determinant, mixed, *curl = displacement.third_order(p1, p2, config)
    yield displacement.gradient(displacement.potential(determinant, config), config)
    yield displacement.gradient(displacement.potential(mixed, config), config)
    yield displacement.inverse_curl(curl, config)
