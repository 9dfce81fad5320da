"""The parameters of a cosmology, as a pytree.

jax_cosmo keeps tables on the Cosmology object itself and so leaks tracers out of jit; here the parameters are
taken off the object at the boundary and every table is a pytree of its own.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError


class Cosmology(Protocol):
    """Any object with these attributes of a `jax_cosmo.Cosmology`."""

    @property
    def Omega_c(self) -> ArrayLike:
        """Density of cold dark matter [critical density]."""
        ...

    @property
    def Omega_b(self) -> ArrayLike:
        """Density of baryons [critical density]."""
        ...

    @property
    def h(self) -> ArrayLike:
        """Hubble constant [100 km/s/Mpc]."""
        ...

    @property
    def n_s(self) -> ArrayLike:
        """Spectral index of the primordial fluctuations."""
        ...

    @property
    def sigma8(self) -> ArrayLike:
        """Root of the variance of the linear density in spheres of 8 Mpc/h."""
        ...

    @property
    def Omega_k(self) -> ArrayLike:
        """Density of curvature [critical density]."""
        ...

    @property
    def w0(self) -> ArrayLike:
        """Dark energy equation of state today."""
        ...

    @property
    def wa(self) -> ArrayLike:
        """Its slope: w(a) = w0 + wa (1 - a)."""
        ...


class Parameters(eqx.Module):
    """The parameters of a cosmology, as a pytree without caches."""

    Omega_c: Array
    Omega_b: Array
    h: Array
    n_s: Array
    sigma8: Array
    Omega_k: Array
    w0: Array
    wa: Array

    @property
    def Omega_m(self) -> Array:
        """Matter density."""
        return self.Omega_c + self.Omega_b

    @property
    def Omega_de(self) -> Array:
        """Dark energy density, which closes the budget."""
        return 1 - self.Omega_k - self.Omega_m


def parameters(cosmo: Cosmology) -> Parameters:
    """The parameters of any object with jax_cosmo's attributes.

    Raises:
      ValueError: an attribute is missing, or no finite number; values on a device, or traced, are not looked at.
    """
    names = [field.name for field in fields(Parameters)]
    missing = [name for name in names if not hasattr(cosmo, name)]
    if missing:
        raise ValueError(
            f"cosmo={type(cosmo).__name__} lacks {', '.join(missing)}; pass a jax_cosmo.Cosmology or alike"
        )
    return Parameters(*(_number(name, getattr(cosmo, name)) for name in names))


def _number(name: str, value: Any) -> Array:
    wrong = ArgumentError(f"cosmo.{name}", value, "must be one finite number")
    try:
        number = jnp.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise wrong from error
    if number.shape != () or (isinstance(value, int | float | np.number) and not math.isfinite(value)):
        raise wrong
    return number
