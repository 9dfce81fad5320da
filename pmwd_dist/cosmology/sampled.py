"""The cosmology with other values of its parameters, and its growth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import jax.numpy as jnp
from jax.typing import ArrayLike

from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s
from pmwd_dist.cosmology.parameters import Parameters
from pmwd_dist.cosmology.radiation import N_EFF

COSMOLOGY = ("Omega_m", "A_s", *(field.name for field in fields(Parameters)))
_OF_GROWTH = {"Omega_m", "Omega_c", "Omega_b", "Omega_k", "w0", "wa", "w_table"}


def cosmology_at(parameters: Mapping[str, ArrayLike], table: GrowthTable) -> GrowthTable:
    """Growth table of the cosmology with these parameters and fiducial ones, recomputed only if it changes."""
    cosmo = parameters_at(parameters, table.cosmo)
    of_growth = _OF_GROWTH if cosmo.n_eff is None else _OF_GROWTH | {"h", "m_nu", "n_eff"}
    table = growth_table_to(table.order, cosmo) if of_growth & parameters.keys() else table
    table = replace(table, cosmo=cosmo)
    if "A_s" not in parameters:
        return table
    return replace(table, cosmo=replace(cosmo, sigma8=sigma8_of_A_s(parameters["A_s"], table)))


def parameters_at(parameters: Mapping[str, ArrayLike], fiducial: Parameters) -> Parameters:
    """A cosmology with these parameters, apart from A_s, and fiducial ones."""
    changes = {name: jnp.asarray(parameters[name]) for name in COSMOLOGY if name in parameters and name != "A_s"}
    if fiducial.w_table is not None and (unused := sorted(changes.keys() & {"w0", "wa"})):
        constraint = "has no effect beside the w_table of the cosmology"
        raise ArgumentError(unused[0], None, constraint, "leave it out", show_value=False)
    if "m_nu" in changes and fiducial.n_eff is None:
        changes.setdefault("n_eff", jnp.asarray(N_EFF))
    total = changes.pop("Omega_m", None)
    cosmo = replace(fiducial, **changes)
    if total is None:
        return cosmo
    cold = jnp.asarray(total) - cosmo.Omega_b
    return replace(cosmo, Omega_c=cold if cosmo.m_nu is None else cold - cosmo.Omega_nu)
