"""The parameters of a cosmology, as a pytree.

jax_cosmo keeps tables on the Cosmology object itself and so leaks tracers out of jit; here the parameters are
taken off the object at the boundary and every table is a pytree of its own.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

_ATTRIBUTES = ("Omega_c", "Omega_b", "h", "n_s", "sigma8", "Omega_k", "w0", "wa")


class Parameters(eqx.Module):
    """The parameters of a cosmology, as a pytree without caches."""

    Omega_c: Any
    Omega_b: Any
    h: Any
    n_s: Any
    sigma8: Any
    Omega_k: Any
    w0: Any
    wa: Any

    @property
    def Omega_m(self) -> Any:
        """Matter density."""
        return self.Omega_c + self.Omega_b

    @property
    def Omega_de(self) -> Any:
        """Dark energy density, which closes the budget."""
        return 1 - self.Omega_k - self.Omega_m


def parameters(cosmo: Any) -> Parameters:
    """The parameters of any object with jax_cosmo's attributes.

    Raises:
      ValueError: an attribute is missing.
    """
    missing = [name for name in _ATTRIBUTES if not hasattr(cosmo, name)]
    if missing:
        raise ValueError(
            f"cosmo={type(cosmo).__name__} lacks {', '.join(missing)}; pass a jax_cosmo.Cosmology or alike"
        )
    return Parameters(*(jnp.asarray(getattr(cosmo, name), dtype=float) for name in _ATTRIBUTES))
