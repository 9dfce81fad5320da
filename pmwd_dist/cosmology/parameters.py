"""The parameters of a cosmology, as a pytree.

jax_cosmo keeps tables on the Cosmology object and so leaks tracers out of jit. Here the parameters are copied from the
object, and every table is a pytree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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
LARGEST_W, LARGEST_MASS = 5.0, 10.0  # of |w| in a table, and of the sum of the masses of neutrinos [eV]
_DENSITY, _STATE = "a density per critical density", "an equation of state"
RANGES = {  # of the values of a cosmology, and of the priors of an inference
    "Omega_m": (0.0, 10.0, _DENSITY),
    "Omega_c": (0.0, 10.0, _DENSITY),
    "Omega_b": (0.0, 10.0, _DENSITY),
    "h": (0.1, 3.0, "the Hubble constant in 100 km/s/Mpc"),
    "sigma8": (0.0, 100.0, "a standard deviation"),
    "n_s": (-1.0, 3.0, "a spectral index"),
    "Omega_k": (-1.0, 1.0, _DENSITY),
    "w0": (-LARGEST_W, LARGEST_W, _STATE),
    "wa": (-LARGEST_W, LARGEST_W, _STATE),
    "m_nu": (0.0, LARGEST_MASS, "a sum of masses in eV"),
}
_ROUNDING = 1e-5  # tolerance of densities
_DERIVED = "Omega_?(m|M|[lL]|[lL]ambda|de|DE|nu|r|g)0?"  # attributes that depend on neutrinos


class Cosmology(Protocol):
    """Any object with these attributes of a `jax_cosmo.Cosmology`.

    Matter is cold, there is no radiation, and gravity is general relativity. The optional attributes `n_eff` and `m_nu`
    add photons and neutrinos, see `with_neutrinos`, and `w_table` a table of w, see `with_dark_energy`. Other
    attributes that change growth or matter, such as `Omega_r` or `gamma`, must be 0 or None; `gamma` must be None.
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


def with_neutrinos(cosmo: Cosmology, *, m_nu: ArrayLike | None = None, n_eff: ArrayLike = N_EFF) -> Parameters:
    """A cosmology with photons and neutrinos beside its cold matter, which stays the same; a pytree.

    Neutrinos are three species of one temperature and mass, and photons have 2.7255 K. The density of dark energy
    closes the budget.

    Args:
      cosmo: cosmology.
      m_nu: sum of the masses [eV]; None: no mass.
      n_eff: effective number of neutrino species.

    Raises:
      ValueError: the cosmology lacks a parameter, or a value is not a finite number, or negative.

    Examples:
      >>> cosmo = pmd.with_neutrinos(jax_cosmo.Planck15(), m_nu=0.06)
      >>> pmd.growth(0.5, cosmo)
    """
    changed: Any = SimpleNamespace(**vars(parameters(cosmo)) | {"m_nu": m_nu, "n_eff": n_eff})
    return parameters(changed)


def with_dark_energy(
    cosmo: Cosmology, a: ArrayLike | Sequence[ArrayLike], w: ArrayLike | Sequence[ArrayLike]
) -> Parameters:
    """A cosmology with a table of the equation of state w(a) of dark energy, in place of w0 and wa; a pytree.

    w is linear in a between the nodes and after the last, and constant before the first. Growth and
    distances are differentiable in it.

    Args:
      cosmo: cosmology.
      a: scale factors of the nodes, ascending.
      w: equation of state at the nodes.

    Raises:
      ValueError: the cosmology lacks a parameter, or a table with fewer than two nodes, unsorted, infinite,
        |w| > 5, or w >= 0 at its start.

    Examples:
      >>> cosmo = pmd.with_dark_energy(jax_cosmo.Planck15(), [0.3, 0.7, 1.0], [-0.8, -0.9, -1.0])
    """
    nodes, values = as_array(a), as_array(w)
    if nodes.ndim != 1 or nodes.shape != values.shape:
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
        remedy = "it is the second argument, as in growth(a, cosmo) or lpt(modes, cosmo, config)"
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
        for name in sorted({*filter(_OTHERS.fullmatch, dir(cosmo))} - {field.name for field in fields(Parameters)}):
            if checked.n_eff is None or not re.fullmatch(_DERIVED, name):
                _check_other(name, getattr(cosmo, name), cosmo)
    return checked


def _neutrinos(cosmo: Cosmology) -> dict[str, Array]:
    """m_nu and n_eff of a cosmology; masses need radiation, and a mass of 0 that isn't traced is none."""
    values = {name: value for name in ("m_nu", "n_eff") if (value := getattr(cosmo, name, None)) is not None}
    if _is_number(values.get("m_nu")):
        check_number(values["m_nu"], "cosmo.m_nu", 0, LARGEST_MASS, unit="eV")
    if _is_number(n_eff := values.get("n_eff")) and np.ndim(n_eff) == 0 and n_eff <= 0:
        raise ArgumentError("cosmo.n_eff", n_eff, "must be positive", "leave it out for a universe without radiation")
    if _is_number(m_nu := values.get("m_nu")) and m_nu == 0:
        del values["m_nu"]
    if "m_nu" in values:
        values.setdefault("n_eff", N_EFF)
    return {name: _number(name, value) for name, value in values.items()}


def _checked_table(value: Any) -> Array | None:
    """A table of w, checked; values on a device, or traced, are not."""
    if value is None:
        return None
    table = as_array(value)
    good = table.ndim == 2 and table.shape[1] == 2 and len(table) > 1
    if good and not isinstance(value, jax.Array):
        a, w = np.asarray(value, float).T
        good = a[0] > 0 and (np.diff(a) > 0).all() and math.isfinite(a[-1]) and (np.abs(w) <= LARGEST_W).all()
        good = good and w[0] < 0
    if not good:
        constraint = (
            f"must hold two or more pairs of a and w, with positive, finite a that ascend, and w within "
            f"{LARGEST_W:g} that begins below 0"
        )
        raise ArgumentError("cosmo.w_table", value, constraint, show_value=False)
    return table


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is known here: neither traced nor on a device."""
    return isinstance(value, int | float | np.number | np.ndarray)


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
        remedy = "leave it out; Omega_c and Omega_b are all matter, and with_neutrinos adds neutrinos and radiation"
        raise ArgumentError(f"cosmo.{name}", value, constraint, remedy)


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
    if number.shape != () or (_is_number(value) and not math.isfinite(value)):
        raise wrong
    low, high, kind = RANGES.get(name, (-math.inf, math.inf, ""))
    if _is_number(value) and not low <= value <= high:
        raise ArgumentError(f"cosmo.{name}", value, f"must be {kind}, {low:g} to {high:g}")
    return number
