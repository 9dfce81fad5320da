"""The parameters of a cosmology, as a pytree.

jax_cosmo keeps tables on the Cosmology object and so leaks tracers out of jit. Here the parameters are copied from the
object, and every table is a pytree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any, Protocol, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.cosmology.radiation import MASSLESS, N_EFF, PHOTONS, fermi_dirac, neutrino_temperature

# Attributes of other codes that change growth or matter; with radiation, n_eff and m_nu give those but the first.
_OTHERS = ("gamma", "Omega_r", "Omega_nu", "M_nu", "N_eff")
CRITICAL_DENSITY = 27.7536627  # 3 H0^2 / (8 pi G) [1e10 Msun/h (Mpc/h)^-3]
LARGEST_W, LARGEST_MASS = 5.0, 10.0  # of |w| in a table, and of the sum of the masses of neutrinos [eV]
NODES = 1e-6, 1e6  # range of the scale factors of a table of w
_DENSITY, _STATE = "a density per critical density", "an equation of state"
RANGES = {  # of the values of a cosmology, and of the priors of an inference
    "Omega_m": (0.0, 10.0, _DENSITY),
    "Omega_c": (0.0, 10.0, _DENSITY),
    "Omega_b": (0.0, 10.0, _DENSITY),
    "h": (0.1, 3.0, "the Hubble constant in 100 km/s/Mpc"),
    "sigma8": (0.0, 5.0, "a standard deviation"),
    "n_s": (-1.0, 3.0, "a spectral index"),
    "Omega_k": (-1.0, 1.0, _DENSITY),
    "w0": (-LARGEST_W, LARGEST_W, _STATE),
    "wa": (-LARGEST_W, LARGEST_W, _STATE),
    "m_nu": (0.0, LARGEST_MASS, "a sum of masses in eV"),
    "n_eff": (1e-3, 100.0, "a number of species"),
}


class Cosmology(Protocol):
    """Any object with these attributes of a `jax_cosmo.Cosmology`.

    Matter is cold, there is no radiation, and gravity is general relativity. The optional attributes `n_eff` and `m_nu`
    add photons and neutrinos, see `with_neutrinos`, and `w_table` a table of w, see `with_dark_energy`. `Omega_r`,
    `Omega_nu`, `M_nu` and `N_eff` of other codes must be 0 or None beside them; `gamma` must be None.
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
    """The parameters of a cosmology, as a pytree without caches.

    Without `n_eff` there is no radiation, and without `m_nu` neutrinos have no mass. `w_table` holds pairs of scale
    factor and w of dark energy, in place of w0 and wa.
    """

    Omega_c: Array
    Omega_b: Array
    h: Array
    n_s: Array
    sigma8: Array
    Omega_k: Array
    w0: Array
    wa: Array
    m_nu: Array | None = None
    n_eff: Array | None = None
    w_table: Float[Array, "nodes 2"] | None = None

    @property
    def Omega_cb(self) -> Array:
        """Density of cold matter: dark matter and baryons."""
        return self.Omega_c + self.Omega_b

    @property
    def Omega_m(self) -> Array:
        """Density of matter, neutrinos with mass included."""
        return self.Omega_cb if self.m_nu is None else self.Omega_cb + self.Omega_nu

    @property
    def Omega_de(self) -> Array:
        """Dark energy density, which closes the budget."""
        rest = 1 - self.Omega_k - self.Omega_m
        if self.n_eff is None:
            return rest
        photons, neutrinos = self.radiation
        return rest - photons - (neutrinos if self.m_nu is None else 0)

    @property
    def radiation(self) -> tuple[Array, Array]:
        """Densities of photons and of neutrinos if they had no mass."""
        assert self.n_eff is not None
        return PHOTONS / self.h**2, MASSLESS * self.n_eff / self.h**2

    @property
    def mass_over_temperature(self) -> Array:
        """Mass of a neutrino over the temperature of neutrinos today."""
        assert self.m_nu is not None
        assert self.n_eff is not None
        return self.m_nu / 3 / neutrino_temperature(self.n_eff)

    @property
    def Omega_nu(self) -> Array:
        """Density of neutrinos with mass."""
        if self.m_nu is None:
            return jnp.zeros_like(self.h)
        return self.radiation[1] * fermi_dirac(self.mass_over_temperature)[0]


def with_neutrinos(
    cosmo: Cosmology, *, m_nu: ArrayLike | None = None, n_eff: ArrayLike = N_EFF, omega_m: ArrayLike | None = None
) -> Parameters:
    """A cosmology with photons and neutrinos beside its cold matter; a pytree.

    By default cold matter (Omega_c, Omega_b) stays the same, and massive neutrinos add to the total Omega_m. With
    omega_m the total is this, and Omega_c is what neutrinos and baryons leave. Neutrinos are three species of one
    temperature and mass, for each n_eff, and photons have 2.7255 K. The density of dark energy closes the budget.

    Args:
      cosmo: cosmology.
      m_nu: sum of the masses [eV]; None: no mass.
      n_eff: effective number of neutrino species.
      omega_m: density of all matter, neutrinos with mass included [critical density]; None: cold matter stays.

    Raises:
      ValueError: the cosmology lacks a parameter, or a value is not a finite number, or negative.

    Examples:
      >>> cosmo = pmd.with_neutrinos(jax_cosmo.Planck15(), m_nu=0.06)
      >>> pmd.growth(0.5, cosmo)
      >>> cosmo = pmd.with_neutrinos(jax_cosmo.Planck15(), m_nu=0.06, omega_m=0.3075)  # the total stays
    """
    changed: Any = SimpleNamespace(**vars(parameters(cosmo)) | {"m_nu": m_nu, "n_eff": n_eff})
    found = parameters(changed)
    if omega_m is None:
        return found
    check_number(omega_m, "omega_m", *RANGES["Omega_m"][:2])
    changed.Omega_c = as_array(omega_m) - found.Omega_b - found.Omega_nu
    if not isinstance(changed.Omega_c, Tracer) and changed.Omega_c < 0:
        rest = float(found.Omega_b + found.Omega_nu)
        raise ArgumentError("omega_m", omega_m, f"is less than baryons and neutrinos, {rest:.4g}", "use a larger one")
    return parameters(changed)


def with_dark_energy(
    cosmo: Cosmology, a: ArrayLike | Sequence[ArrayLike], w: ArrayLike | Sequence[ArrayLike]
) -> Parameters:
    """A cosmology with a table of the equation of state w(a) of dark energy, in place of w0 and wa; a pytree.

    w is linear in a between the nodes and after the last, and constant before the first. Growth and
    distances are differentiable in it.

    Args:
      cosmo: cosmology.
      a: scale factors of the nodes, ascending, from 1e-6 to 1e6.
      w: equation of state at the nodes.

    Raises:
      ValueError: the cosmology lacks a parameter, or a table with fewer than two nodes, unsorted, infinite,
        |w| > 5, or w >= 0 at its start.

    Examples:
      >>> cosmo = pmd.with_dark_energy(jax_cosmo.Planck15(), [0.3, 0.7, 1.0], [-0.8, -0.9, -1.0])
    """
    check_number(a, "a", *NODES, several=True)
    check_number(w, "w", -LARGEST_W, LARGEST_W, several=True)
    nodes, values = as_array(a), as_array(w)
    if nodes.ndim != 1 or nodes.size == 0 or nodes.shape != values.shape:
        constraint = f"has shape {values.shape}, and a has {nodes.shape}"
        raise ArgumentError("w", w, constraint, "pass two equal 1-D arrays", show_value=False)
    table = jnp.stack([nodes, values], 1)
    changed: Any = SimpleNamespace(**vars(parameters(cosmo)) | {"w0": jnp.interp(1.0, nodes, values), "wa": 0.0})
    changed.w_table = table if isinstance(table, Tracer) else np.asarray(table)
    return parameters(changed)


_REQUIRED = [field.name for field in fields(Parameters) if field.default is MISSING]


def parameters(cosmo: Cosmology) -> Parameters:
    """The parameters of any object with jax_cosmo's attributes.

    Raises:
      ValueError: an attribute is missing or not a finite number, or another attribute changes growth or matter, see
        `Cosmology`. Values on a device, or traced, are not checked to be finite.
    """
    missing = [name for name in _REQUIRED if not hasattr(cosmo, name)]
    if len(missing) == len(_REQUIRED):
        constraint = f"is a {type(cosmo).__name__} and must be a cosmology, such as jax_cosmo.Planck15()"
        remedy = "look at the order of the arguments, as in growth(a, cosmo) or lpt(modes, cosmo, config)"
        raise ArgumentError("cosmo", cosmo, constraint, remedy, show_value=False)
    if missing:
        raise ValueError(
            f"cosmo={type(cosmo).__name__} lacks {', '.join(missing)}; pass a jax_cosmo.Cosmology or a similar object"
        )
    w_table = _checked_table(getattr(cosmo, "w_table", None))
    numbers = (_number(name, getattr(cosmo, name)) for name in _REQUIRED)
    checked = Parameters(*numbers, **_neutrinos(cosmo), w_table=w_table)
    w0, wa = cosmo.w0, cosmo.wa
    if w_table is None and _is_number(w0) and _is_number(wa) and w0 + wa >= 0:
        constraint = "must be less than -w0: with w0 + wa >= 0 dark energy dominates early"
        raise ArgumentError("cosmo.wa", wa, constraint)
    if not isinstance(cosmo, Parameters):
        for name in _OTHERS if checked.n_eff is None else _OTHERS[:1]:
            _check_other(name, getattr(cosmo, name, None))
    return checked


def _neutrinos(cosmo: Cosmology) -> dict[str, Array]:
    """m_nu and n_eff of a cosmology; masses need radiation, and a mass of 0 that isn't traced is none."""
    values = {name: getattr(cosmo, name, None) for name in ("m_nu", "n_eff")}
    found = {name: _number(name, value) for name, value in values.items() if value is not None}
    if _is_number(values["m_nu"]) and values["m_nu"] == 0:
        del found["m_nu"]
    return {"n_eff": as_array(N_EFF), **found} if "m_nu" in found else found


def _checked_table(value: Any) -> Array | None:
    """A table of w, checked; values on a device, or traced, are not."""
    if value is None:
        return None
    with np.errstate(over="ignore"):
        table = as_array(value)
        rounded = None if isinstance(value, jax.Array) else np.asarray(value, table.dtype)
    good = table.ndim == 2 and table.shape[1] == 2 and len(table) > 1
    if good and rounded is not None:
        a, w = rounded.T
        good = a[0] >= np.float32(NODES[0]) and (np.diff(a) > 0).all() and a[-1] <= NODES[1]
        good = good and (np.abs(w) <= LARGEST_W).all() and w[0] < 0
    if not good:
        constraint = (
            f"must hold two or more pairs of a and w, with a from {NODES[0]:g} to {NODES[1]:g} that ascend, and w "
            f"within {LARGEST_W:g} that begins below 0"
        )
        raise ArgumentError("cosmo.w_table", value, constraint, show_value=False)
    return table


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is known here: neither traced nor on a device."""
    return isinstance(value, int | float | np.number | np.ndarray)


def _check_other(name: str, value: Any) -> None:
    """Raise ArgumentError unless an attribute that is not used is absent, None, a function, or 0 but for gamma."""
    if value is None or callable(value):
        return
    if name == "gamma" or isinstance(value, Tracer) or np.any(np.asarray(value) != 0):
        constraint = f"must be {'None' if name == 'gamma' else 0}: matter is cold, and gravity is general relativity"
        raise ArgumentError(f"cosmo.{name}", value, constraint, "leave it out; with_neutrinos adds neutrinos")


def _number(name: str, value: Any) -> Array:
    if not isinstance(value, jax.Array):
        low, high, kind = RANGES.get(name, (-math.inf, math.inf, ""))
        check_number(value, f"cosmo.{name}", low, high, remedy=f"it is {kind}" if kind else "")
    number = as_array(value)
    if number.shape != ():
        raise ArgumentError(f"cosmo.{name}", value, "must be one finite number")
    return number
