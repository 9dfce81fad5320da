"""The parameters of a cosmology, as a pytree.

jax_cosmo keeps tables on the Cosmology object and so leaks tracers out of jit. Here the parameters are copied from the
object, and every table is a pytree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Protocol

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array

# Attributes of other codes that change growth, matter or its power: neutrinos, radiation, modified gravity, running.
_OTHERS = re.compile(
    r"Omega\w*|omega_?(g|gamma|ncdm|nu|r|rad|ur)|gamma|[mM]_?nu|sum_?(m_?nu|nu_masses)|N_?(eff|ncdm|nu|ur)"
    r"|O(nu|gamma|r)0|alpha_?s|n_?run|mu_?0|[sS]igma_?0|f_?R0"
)
# Attributes that are sums of those in use.
_SUMS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "Omega": lambda cosmo: (1, -cosmo.Omega_k),
    "Omega_?(m|M|cb)0?": lambda cosmo: (cosmo.Omega_c, cosmo.Omega_b),
    "Omega_?c?dm0?": lambda cosmo: (cosmo.Omega_c,),
    "Omega_?([lL]|[lL]ambda|de|DE)0?": lambda cosmo: (1, -cosmo.Omega_k, -cosmo.Omega_c, -cosmo.Omega_b),
}
_ROUNDING = 1e-5  # tolerance of densities


class Cosmology(Protocol):
    """Any object with these attributes of a `jax_cosmo.Cosmology`.

    Matter is cold, there is no radiation, and gravity is general relativity. Other attributes that change growth or
    matter, such as `m_nu`, `Omega_r` or `gamma`, must be 0 or None; `gamma` must be None.
    """

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
        """Standard deviation of the linear density in spheres of 8 Mpc/h."""
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
        """Slope of the equation of state: w(a) = w0 + wa (1 - a)."""
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
      ValueError: an attribute is missing or not a finite number, or another attribute changes growth or matter, see
        `Cosmology`. Values on a device, or traced, are not checked to be finite.
    """
    names = [field.name for field in fields(Parameters)]
    missing = [name for name in names if not hasattr(cosmo, name)]
    if len(missing) == len(names):
        constraint = f"is a {type(cosmo).__name__} and must be a cosmology, such as jax_cosmo.Planck15()"
        remedy = "it is the second argument, as in growth(a, cosmo) or lpt(modes, cosmo, config)"
        raise ArgumentError("cosmo", cosmo, constraint, remedy, show_value=False)
    if missing:
        raise ValueError(
            f"cosmo={type(cosmo).__name__} lacks {', '.join(missing)}; pass a jax_cosmo.Cosmology or a similar object"
        )
    found = Parameters(*(_number(name, getattr(cosmo, name)) for name in names))
    if not isinstance(cosmo, Parameters):
        for name in sorted({*filter(_OTHERS.fullmatch, dir(cosmo))} - {*names}):
            _check_other(name, getattr(cosmo, name), cosmo)
    return found


def check_numbers(x: Any, name: str, call: str) -> None:
    """Raise ValueError if a cosmology, its table or a config is where numbers belong.

    Args:
      x: argument.
      name: name of the argument.
      call: right call, for the message.
    """
    if isinstance(x, eqx.Module) or hasattr(x, "Omega_c") or hasattr(x, "box_size"):
        constraint = f"is a {type(x).__name__} and must be one or more numbers"
        raise ArgumentError(name, x, constraint, f"call {call}", show_value=False)


def _check_other(name: str, value: Any, cosmo: Cosmology) -> None:
    """Raise ArgumentError unless an attribute agrees with `Parameters`."""
    if value is None or callable(value):
        return
    terms = next((terms(cosmo) for pattern, terms in _SUMS.items() if re.fullmatch(pattern, name)), ())
    if terms and any(isinstance(x, Tracer) for x in (value, *terms)):
        return
    expected = float(sum(jax.device_get(terms)))
    if isinstance(value, Tracer) or name == "gamma" or not _close(value, expected):
        wanted = "None" if name == "gamma" else f"{expected:.6g}"
        constraint = f"must be {wanted}: matter is cold, there is no radiation, and gravity is general relativity"
        raise ArgumentError(f"cosmo.{name}", value, constraint, "leave it out; Omega_c and Omega_b are all matter")


def _close(value: Any, expected: float) -> bool:
    try:
        return bool(np.all(np.abs(np.asarray(jax.device_get(value), float) - expected) < _ROUNDING))
    except (TypeError, ValueError):
        return False


def _number(name: str, value: Any) -> Array:
    wrong = ArgumentError(f"cosmo.{name}", value, "must be one finite number")
    try:
        number = as_array(value)
    except (TypeError, ValueError) as error:
        raise wrong from error
    if number.shape != () or (isinstance(value, int | float | np.number) and not math.isfinite(value)):
        raise wrong
    return number
