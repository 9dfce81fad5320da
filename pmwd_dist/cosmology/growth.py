"""Expansion and growth of a cosmology, tabulated as a pytree."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import rows
from pmwd_dist._jax.arrays import as_array
from pmwd_dist._jax.derivatives import forward_derivatives
from pmwd_dist._jax.program import jit
from pmwd_dist.cosmology import collocation, neutrinos
from pmwd_dist.cosmology.expansion import Background, background, expansion, meszaros_excess
from pmwd_dist.cosmology.parameters import Cosmology, Parameters, parameters

# Nodes of the tables in ln a, including a = 1.
_STEP = 0.02
_BELOW, _ABOVE = 460, 36
FIRST, LAST = 1e-4, 2.0  # scale factors of the tables
_NODES = _STEP * np.arange(-_BELOW, _ABOVE + 1)  # collocation.FIRST ... collocation.LAST
# Least E^2 per matter, and E'/E + 3/2: below, where expansion all but ends, collocation fails at all times.
_SLOWEST, _STEEPEST = 0.1, -8.0


class _Equation(NamedTuple):
    """Equation of a growth factor D of order n: L D = m (D + square D1^2 + cube D1^3 + mixed D1 D2)."""

    n: int
    square: int = 0
    cube: int = 0
    mixed: int = 0


_EQUATIONS = (
    _Equation(n=1),  # L D1 = m D1
    _Equation(n=2, square=-1),  # L D2 = m (D2 - D1^2)
    _Equation(n=3, cube=-2),  # L D3a = m (D3a - 2 D1^3)
    _Equation(n=3, cube=2, mixed=-2),  # L D3b = m (D3b + 2 D1 (D1^2 - D2))
)
_ORDERS = tuple(equation.n for equation in _EQUATIONS)


class Growth(NamedTuple):
    """Growth factors and their derivatives with ln a; D3 and dD3 have a leading axis for D3a and D3b."""

    D1: Array
    D2: Array
    D3: Array
    dD1: Array
    dD2: Array
    dD3: Array


class GrowthTable(eqx.Module):
    """Growth factors and expansion rate of a cosmology, tabulated in ln a.

    Let L D = D'' + (2 + E'/E) D' (primes are d/d ln a, E = H/H0) and m = 3/2 Omega_cb(a). The growth factors solve
      L D1 = m D1,   L D2 = m (D2 - D1^2),
      L D3a = m (D3a - 2 D1^3),   L D3b = m (D3b + 2 D1 (D1^2 - D2)).
    They are growing modes, with D1(a = 1) = 1 (Bouchet et al. 1995; Catelan 1995). In an Einstein-de Sitter universe
    they are a, -3/7 a^2, -1/3 a^3 and 10/21 a^3. Radiation and neutrinos enter by E alone: this is the growth of cold
    matter on scales below the free streaming of neutrinos.

    Args:
      cosmo: parameters of the cosmology.
      factors: D / a^n for each factor of order n, with its first and second derivative with ln a, at each node.
      response: growth that depends on k, with massive neutrinos.
    """

    cosmo: Parameters
    factors: Float[Array, "nodes 3 factors"] = eqx.field(metadata={"derived": True})  # of `cosmo`
    response: neutrinos.LinearResponse | None = eqx.field(default=None, metadata={"derived": True})

    @property
    def order(self) -> int:
        """Highest order of the factors, 2 or 3."""
        return _ORDERS[self.factors.shape[-1] - 1]

    def at(self, a: ArrayLike) -> Growth:
        """All growth factors and their derivatives; D3 and dD3 are empty where the table ends at second order."""
        return _growth_at(self.factors, as_array(a, self.factors.dtype))

    def D1(self, a: ArrayLike) -> Array:
        """Linear growth factor."""
        return self.at(a).D1

    @jit
    def linear(self, k: ArrayLike, a: ArrayLike) -> tuple[Array, Array]:
        """Linear growth factor and rate of cold matter at wavenumbers [h/Mpc] and one scale factor.

        They depend on k with massive neutrinos, and are numbers without them.
        """
        now, response = self.at(a), self.response
        if response is None:
            return now.D1, now.dD1 / now.D1
        return now.D1 * response.cold(k, a) / response.cold(k, 1.0), now.dD1 / now.D1 + response.rate(k, a)

    def D2(self, a: ArrayLike) -> Array:
        """Second-order growth factor."""
        return self.at(a).D2

    def dD1(self, a: ArrayLike) -> Array:
        """dD1 / d ln a."""
        return self.at(a).dD1

    def dD2(self, a: ArrayLike) -> Array:
        """dD2 / d ln a."""
        return self.at(a).dD2

    @property
    def since_matter_era(self) -> Array:
        """D1 / a in the matter era, radiation apart, where D1 = 1 today."""
        u = self.factors[0, 0, 0]
        if self.cosmo.n_eff is None:
            return u
        return u / (1 + meszaros_excess(background(self.cosmo), jnp.asarray(_NODES[0], u.dtype)))

    @jit
    def E(self, a: ArrayLike) -> Array:
        """Expansion rate H(a) [H0]."""
        a = jnp.asarray(a)
        return jnp.sqrt(self.cosmo.Omega_cb * a**-3 * expansion(background(self.cosmo), jnp.log(a))[0])

    def momentum(self, a: ArrayLike) -> Array:
        """a^2 dD1 / d(H0 t): canonical momentum of the linear mode, per unit of displacement at a = 1."""
        a = jnp.asarray(a)
        return a**2 * self.E(a) * self.dD1(a)

    def scale_factor(self, D1: ArrayLike) -> Array:
        """Scale factor at a value of the linear growth factor."""
        first = self.factors[..., :1]
        return _inverse(first, jnp.asarray(D1, first.dtype))


@jit
def _growth_at(factors: Array, a: Array) -> Growth:
    values, slopes = _interpolate(factors, a)
    u, v = jnp.moveaxis(values, -1, 0), jnp.moveaxis(slopes, -1, 0)
    n = np.reshape(_ORDERS[: len(u)], (-1, *(1,) * a.ndim)).astype(a.dtype)
    D, dD = a[None] ** n * u, a[None] ** n * (n * u + v)
    return Growth(D[0], D[1], D[2:], dD[0], dD[1], dD[2:])


@jax.custom_jvp
def _inverse(first: Array, D1: Array) -> Array:
    """Scale factor at a value of the tabulated linear growth factor."""
    x = jnp.asarray(_NODES, first.dtype)
    u, v, _ = jnp.moveaxis(first[..., 0], 1, 0)
    y, slope = x + jnp.log(u), u / (u + v)  # ln D1, and d ln a / d ln D1
    at = jnp.log(D1)
    i = jnp.searchsorted(y[1:-1], at, side="right", method="compare_all")
    h = y[i + 1] - y[i]
    a = jnp.exp(hermite((at - y[i]) / h, x[i], x[i + 1], h * slope[i], h * slope[i + 1]))
    u, v = _interpolate(first, a)
    return a - (a * u[..., 0] - D1) / (u + v)[..., 0]  # a Newton step


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # The implicit function theorem: a derivative of this rule, too, differentiates the table at the solution.
    first, D1 = primals
    a = _inverse(first, D1)
    moved = a * _interpolate(tangents[0], a)[0][..., 0]  # linear in the nodes
    _, slope = jax.jvp(lambda a: a * _interpolate(first, a)[0][..., 0], (a,), (jnp.ones_like(a),))
    return a, (tangents[1] - moved) / slope


def _interpolate(nodes: Array, a: Array) -> tuple[Array, Array]:
    """Values and slopes between nodes that hold values, slopes and second derivatives with ln a."""
    t = jnp.log(a) / _STEP + _BELOW
    i = jnp.clip(jnp.floor(t).astype(jnp.int32), 0, _BELOW + _ABOVE - 1)
    t = jnp.where(t > _BELOW + _ABOVE, jnp.nan, t - i.astype(t.dtype))[..., None, None]
    low, high = rows(nodes, i), rows(nodes, i + 1)
    y = hermite(t, low[..., :2, :], high[..., :2, :], _STEP * low[..., 1:, :], _STEP * high[..., 1:, :])
    return y[..., 0, :], y[..., 1, :]


def hermite(t: Array, y0: Array, y1: Array, m0: Array, m1: Array) -> Array:
    """Cubic through y0 at t = 0 and y1 at t = 1 with slopes m0 and m1."""
    return y0 + t * (m0 + t * ((3 * (y1 - y0) - 2 * m0 - m1) + t * (2 * (y0 - y1) + m0 + m1)))


def growth_table(cosmo: Cosmology | GrowthTable) -> GrowthTable:
    """Tabulate growth and expansion of a cosmology, from a = 1e-4 to a = 2; a table is returned as it is.

    The universe is flat or curved, with dark energy w(a) = w0 + wa (1 - a) or of a table (`with_dark_energy`), and with
    radiation and neutrinos where the cosmology has them (`with_neutrinos`). The equations are in `GrowthTable`.
    Differentiable in the parameters.

    Raises:
      ValueError: the cosmology lacks a parameter, has a component that is not modelled (`Cosmology`), or all but stops
        expanding before a = 2; the table of values on a device, or traced, is NaN then.

    Examples:
      >>> table = pmd.growth_table(jax_cosmo.Planck15())
      >>> table.D1(0.5), table.E(0.5)  # growth factor, expansion rate [H0]
    """
    return cosmo if isinstance(cosmo, GrowthTable) else _tabulate(_expanding(cosmo), order=3)


def growth_table_to(order: int, cosmo: Cosmology | GrowthTable) -> GrowthTable:
    """`growth_table` up to an order: gradients to the cosmology compile faster without the third.

    Args:
      order: highest order that is needed; a table up to the second has no D3.
      cosmo: cosmology, or its `growth_table`, which is returned as it is.

    Raises:
      ValueError: the table ends before the order.
    """
    if not isinstance(cosmo, GrowthTable):
        return _tabulate(_expanding(cosmo), order=max(order, 2))
    if cosmo.order < order:
        constraint = "ends at the second order, as made for a configuration with lpt_order=2"
        remedy = "pass growth_table(cosmo) in place of cosmo, or use lpt_order=3"
        raise ArgumentError("table", cosmo, constraint, remedy, show_value=False)
    return cosmo


def parameters_of(cosmo: Cosmology | GrowthTable) -> Parameters:
    """The parameters of a cosmology or of a table."""
    return cosmo.cosmo if isinstance(cosmo, GrowthTable) else parameters(cosmo)


def _expanding(cosmo: Cosmology) -> Parameters:
    """The parameters; ArgumentError if the universe all but stops expanding before a = 2. Only numbers are checked."""
    values = [getattr(cosmo, name, None) for name in ("Omega_c", "Omega_b", "Omega_k", "w0", "wa", "w_table")]
    found = parameters(cosmo)
    if values.pop() is None and all(isinstance(x, int | float | np.number) for x in values):
        c, b, curvature, w0, wa = map(float, cast("list[Any]", values))
        a = np.exp(collocation.nodes())
        dark = (1 - c - b - curvature) * a ** (-3 * (w0 + wa)) * np.exp(-3 * wa * (1 - a))
        square = c + b + curvature * a + dark
        slope = curvature * a - 3 * (w0 + wa * (1 - a)) * dark
        if (ends := (square <= _SLOWEST * (c + b)) | (slope <= 2 * _STEEPEST * square)).any():
            constraint = (
                f"all but stops expanding at a = {a[ends][0]:.3g}, with Omega_m={c + b:g}, Omega_k={curvature:g}"
            )
            remedy = "growth is tabulated to a = 2: change them"
            raise ArgumentError("cosmo", cosmo, constraint, remedy, show_value=False)
    return found


@partial(jit, static_argnames="order")
def _tabulate(cosmo: Parameters, order: int) -> GrowthTable:
    universe = background(cosmo)
    values, pack = ravel_pytree(universe)
    factors = forward_derivatives(lambda values: _factors(pack(values), order))(values)
    if cosmo.m_nu is None:
        return GrowthTable(cosmo, factors)
    return GrowthTable(cosmo, factors, neutrinos.linear_response(universe, cosmo.Omega_cb))


def _factors(universe: Background, order: int) -> Array:
    """The growth factors at the nodes of the table.

    With L D2 - m D2 = S and D2 = D1 g, (a^2 E D1^2 g')' = a^2 E D1 S: two first-order equations, one after the other.
    D3a and D3b are solved alike. All unknowns are relative to their powers of a, and the matrices
    act on differences from an Einstein-de Sitter universe.
    """
    dtype = universe.w.dtype
    nodes = jnp.asarray(collocation.nodes(), dtype)
    square, h, m = expansion(universe, nodes)
    E = jnp.sqrt(square)

    def integrate(rate: float, y: Array, constant: float) -> Array:
        """Solution of p' + rate p = y, for a y that is `constant` in an Einstein-de Sitter universe."""
        return constant / rate + collocation.matmul(collocation.inverse(rate), y - constant)

    # u = D1 / a and its slope v solve v' + 5/2 v = y with y = -h v - (h - m) u.
    # With radiation, u and v are differences from the solution of Meszaros, which holds for radiation and matter.
    slope = jnp.asarray(collocation.inverse(2.5), dtype)
    value = jnp.asarray(collocation.inverse(0.0) @ collocation.inverse(2.5), dtype)
    early = None if universe.radiation is None else meszaros_excess(universe, nodes)
    source = m - h if early is None else m - h + (1.5 + m) * early
    y = collocation.solve_volterra(h[:, None] * slope + (h - m)[:, None] * value, source)
    v, u = collocation.matmul(slope, y), 1 + collocation.matmul(value, y)
    if early is not None:
        v, u = v - early, u + early

    u = jnp.where(jnp.all((square > _SLOWEST) & (h > _STEEPEST)), u, jnp.nan)
    p2 = integrate(3.5, -1.5 * u**3 / E, -1.5) / (E * u**2)
    q2 = integrate(1.0, p2, -3 / 7)
    one, zero = jnp.ones_like(u), jnp.zeros_like(u)
    if order == 2:
        return _at_table_nodes(universe, jnp.stack([u, v]), jnp.stack([one, q2]), jnp.stack([zero, p2]))
    p3a = integrate(4.5, -3 * u**4 / E, -3.0) / (E * u**2)
    p3b = integrate(4.5, 3 * u**3 * (u - q2) / E, 30 / 7) / (E * u**2)
    q3a, q3b = integrate(2.0, p3a, -2 / 3), integrate(2.0, p3b, 20 / 21)
    return _at_table_nodes(universe, jnp.stack([u, v]), jnp.stack([one, q2, q3a, q3b]), jnp.stack([zero, p2, p3a, p3b]))


def _at_table_nodes(universe: Background, linear: Array, q: Array, p: Array) -> Array:
    """The growth factors over a^n, with two derivatives, from values at the nodes of collocation.

    One formula with coefficients for each factor: a formula for each factor is a kernel to compile for each.

    Args:
      universe: parameters of the expansion.
      linear: u = D1 / a and its slope.
      q: D / (a^n u) for each factor.
      p: q' + (n - 1) q for each factor.
    """
    x = jnp.asarray(_NODES, universe.w.dtype)
    known = collocation.matmul(collocation.interpolation(_NODES), jnp.concatenate([linear, q, p]).T).T
    u, v, (q, p) = known[:1], known[1:2], (known[2 : 2 + len(q)], known[2 + len(q) :])
    n, square, cube, mixed = np.array(_EQUATIONS[: len(q)], float).T[..., None].astype(x.dtype)
    U = u * q
    V = v * q + u * (p - (n - 1) * q)
    source = U + u**2 * (square + cube * u + mixed * q[1:2])
    _, h, m = expansion(universe, x)
    h, m = h[None] + 0.5, m[None] + 1.5
    W = m * source - (2 * n + h) * V - n * (n + h) * U
    return jnp.moveaxis(jnp.stack([U, V, W]) / (u[:, _BELOW, None] ** n)[None], -1, 0)


def growth(a: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Linear growth factor D1(a), 1 at a = 1, for 0.0001 <= a <= 2; the result has the shape of a.

    Raises:
      ValueError: a scale factor is out of this range; an array on a device, or traced, gives NaN there instead.

    Examples:
      >>> pmd.growth([0.5, 1.0], jax_cosmo.Planck15())
    """
    check_number(a, "a", FIRST, LAST, remedy="call growth(a, cosmo)", several=True)
    return growth_table_to(2, cosmo).D1(a)


def growth_rate(a: ArrayLike, cosmo: Cosmology | GrowthTable) -> Array:
    """Linear growth rate f = d ln D1 / d ln a, for a as in `growth`.

    Raises:
      ValueError: a scale factor is out of this range.

    Examples:
      >>> pmd.growth_rate([0.5, 1.0], jax_cosmo.Planck15())
    """
    check_number(a, "a", FIRST, LAST, remedy="call growth_rate(a, cosmo)", several=True)
    factors = growth_table_to(2, cosmo).at(a)
    return factors.dD1 / factors.D1
