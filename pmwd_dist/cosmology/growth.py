"""Expansion and growth of a cosmology, tabulated as a pytree."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist.cosmology.parameters import Cosmology, Parameters, parameters

# Growth is integrated in ln a by steps that hit a = 1; the first lies deep in matter domination.
_STEP = 0.02
_BELOW, _ABOVE = 460, 36  # a = 1.0e-4 ... 2.05

# Orders of D1, D2, D3a, D3b and D3c, and their coefficients in an Einstein-de Sitter universe.
_ORDERS = (1, 2, 3, 3, 3)
_EINSTEIN_DE_SITTER = (1, -3 / 7, -1 / 3, 10 / 21, -1 / 7)


class GrowthTable(eqx.Module):
    """Growth factors and expansion rate of a cosmology, tabulated in ln a.

    With L D = D'' + (2 + E'/E) D' (primes are d/d ln a, E = H/H0) and m = 3/2 Omega_m(a), the growth factors solve
      L D1 = m D1,   L D2 = m (D2 - D1^2),
      L D3a = m (D3a - 2 D1^3),   L D3b = m (D3b + 2 D1 (D1^2 - D2)),   L D3c = -m D1^3
    on the growing mode, with D1(a = 1) = 1 (Bouchet et al. 1995; Catelan 1995). In an Einstein-de Sitter universe they
    are a, -3/7 a^2, -1/3 a^3, 10/21 a^3 and -1/7 a^3.
    """

    cosmo: Parameters
    first: Float[Array, "nodes 3"]  # D1, D1', D1''
    second: Float[Array, "nodes 3"]
    third: Float[Array, "3 nodes 3"]  # of D3a, D3b and D3c

    def D1(self, a: ArrayLike) -> Array:
        """Linear growth factor."""
        return self._interpolate(self.first[:, :2], a)

    def D2(self, a: ArrayLike) -> Array:
        """Second-order growth factor."""
        return self._interpolate(self.second[:, :2], a)

    def dD1(self, a: ArrayLike) -> Array:
        """dD1 / d ln a."""
        return self._interpolate(self.first[:, 1:], a)

    def dD2(self, a: ArrayLike) -> Array:
        """dD2 / d ln a."""
        return self._interpolate(self.second[:, 1:], a)

    def D3(self, a: ArrayLike) -> Array:
        """Third-order growth factors D3a, D3b and D3c, along a leading axis."""
        return self._interpolate(self.third[..., :2], a)

    def dD3(self, a: ArrayLike) -> Array:
        """d/d ln a of the third-order growth factors, along a leading axis."""
        return self._interpolate(self.third[..., 1:], a)

    def factors(self, a: ArrayLike, order: int = 3) -> Array:
        """D1, D2 and, at third order, D3a, D3b and D3c along the first axis; each and its d/d ln a along the second."""
        nodes = jnp.stack([self.first, self.second])
        if order > 2:
            nodes = jnp.concatenate([nodes, self.third])
        return self._interpolate(_with_slopes(nodes), a)

    def E(self, a: ArrayLike) -> Array:
        """Expansion rate H(a) [H0]."""
        return jnp.sqrt(_E_squared(self.cosmo, jnp.asarray(a)))

    def momentum(self, a: ArrayLike) -> Array:
        """dD1 / d(H0 t) times a^2: canonical momentum of the linear mode, per unit of displacement at a = 1."""
        a = jnp.asarray(a)
        return a**2 * self.E(a) * self.dD1(a)

    def _interpolate(self, nodes: Array, a: ArrayLike) -> Array:
        return _interpolate(nodes, jnp.log(jnp.asarray(a, nodes.dtype)))

    def scale_factor(self, D1: ArrayLike) -> Array:
        """The scale factor at which the linear growth factor has this value."""
        return jnp.exp(_inverse(self.first, jnp.asarray(D1, self.first.dtype)))


@jax.custom_jvp
def _inverse(first: Array, D1: Array) -> Array:
    """ln a at which the tabulated growth factor has this value."""
    x = jnp.interp(D1, first[:, 0], _nodes(D1.dtype))
    nodes = _with_slopes(first)

    def newton(_: int, x: Array) -> Array:
        value, slope = _interpolate(nodes, x)
        return x - (value - D1) / slope

    return jax.lax.fori_loop(0, 3, newton, x)  # from a start that is right to 1e-3


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # The implicit function theorem: a derivative of this rule, too, differentiates the table at the solution.
    first, D1 = primals
    x = _inverse(first, D1)
    moved = _interpolate(tangents[0][:, :2], x)  # linear in the nodes
    _, slope = jax.jvp(lambda x: _interpolate(first[:, :2], x), (x,), (jnp.ones_like(x),))
    return x, (tangents[1] - moved) / slope


def _with_slopes(nodes: Array) -> Array:
    """Nodes of D and of D', from D, D' and D'' along the last axis: shape (..., 2, nodes, 2)."""
    return jnp.stack([nodes[..., :2], nodes[..., 1:]], -3)


@jax.jit
def _interpolate(nodes: Array, x: Array) -> Array:
    """Interpolate at x = ln a between nodes that hold a value and a slope each, shape (..., nodes, 2)."""
    x = x / _STEP + _BELOW
    i = jnp.clip(jnp.floor(x).astype(jnp.int32), 0, _BELOW + _ABOVE - 1)
    ends = nodes[..., jnp.stack([i, i + 1]), :]
    y, slope = jnp.moveaxis(ends, (-1, nodes.ndim - 2), (0, 1))
    return hermite(jnp.broadcast_to(x - i, y.shape[1:]), y[0], y[1], _STEP * slope[0], _STEP * slope[1])


def hermite(t: Array, y0: Array, y1: Array, m0: Array, m1: Array) -> Array:
    """Cubic through y0 at t = 0 and y1 at t = 1 with slopes m0 and m1."""
    return y0 + t * (m0 + t * ((3 * (y1 - y0) - 2 * m0 - m1) + t * (2 * (y0 - y1) + m0 + m1)))


def growth_table(cosmo: Cosmology | GrowthTable) -> GrowthTable:
    """Tabulate growth and expansion of a cosmology, from a = 1e-4 to a = 2; a table is returned as it is.

    Flat or curved, with dark energy w(a) = w0 + wa (1 - a). Differentiable in the parameters.
    """
    return cosmo if isinstance(cosmo, GrowthTable) else _tabulate(parameters(cosmo))


@jax.jit
def _tabulate(cosmo: Parameters) -> GrowthTable:
    x = _nodes(jnp.result_type(float))
    start = jnp.zeros((5, 2), x.dtype).at[:, 0].set(jnp.asarray(_EINSTEIN_DE_SITTER, x.dtype))
    at_nodes, between = _coefficients(x, cosmo), _coefficients(x + _STEP / 2, cosmo)
    after = jnp.concatenate([at_nodes[1:], _coefficients(x[-1:] + _STEP, cosmo)])

    def step(y: Array, coefficients: Array) -> tuple[Array, Array]:
        before, middle, behind = coefficients
        k1 = _growth_rhs(y, before)
        k2 = _growth_rhs(y + _STEP / 2 * k1, middle)
        k3 = _growth_rhs(y + _STEP / 2 * k2, middle)
        k4 = _growth_rhs(y + _STEP * k3, behind)
        return y + _STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y

    _, ys = jax.lax.scan(step, start, jnp.stack([at_nodes, between, after], 1))
    rates = jax.vmap(_growth_rhs)(ys, at_nodes)
    a = jnp.exp(x) / ys[_BELOW, 0, 0]
    tables = [_derivatives(ys[:, i], rates[:, i, 1], n) * (a**n)[:, None] for i, n in enumerate(_ORDERS)]
    return GrowthTable(cosmo, tables[0], tables[1], jnp.stack(tables[2:]))


def _derivatives(y: Array, w: Array, n: int) -> Array:
    """D / a^n and the first two derivatives of D over a^n, from u = D / a^n, its slope and its second derivative w."""
    u, v = y.T
    return jnp.stack([u, n * u + v, n**2 * u + 2 * n * v + w], -1)


def _nodes(dtype: jnp.dtype) -> Array:
    return _STEP * jnp.arange(-_BELOW, _ABOVE + 1, dtype=dtype)


def _coefficients(x: Array, cosmo: Parameters) -> Array:
    """3/2 Omega_m(a) and E'/E at x = ln a, along a last axis."""
    a = jnp.exp(x)
    E2 = _E_squared(cosmo, a)
    return jnp.stack([1.5 * cosmo.Omega_m * a**-3 / E2, _dE_squared(cosmo, a) / (2 * E2)], -1)


@jax.jit
def _growth_rhs(y: Array, coefficients: Array) -> Array:
    """Right-hand side for u = D / a^n, which stays near constant and so loses no digits, and its slope."""
    m, h = coefficients
    n = jnp.asarray(_ORDERS, y.dtype)
    u, v = y.T
    u1, u2, u3a, u3b, _ = u
    sources = [u1, u2 - u1**2, u3a - 2 * u1**3, u3b + 2 * u1 * (u1**2 - u2), -(u1**3)]
    w = m * jnp.stack(sources) - (2 * n + 2 + h) * v - n * (n + 2 + h) * u
    return jnp.stack([v, w], -1)


def _dark_energy(cosmo: Parameters, a: Array) -> Array:
    return cosmo.Omega_de * jnp.exp(-3 * ((1 + cosmo.w0 + cosmo.wa) * jnp.log(a) + cosmo.wa * (1 - a)))


def _E_squared(cosmo: Parameters, a: Array) -> Array:
    return cosmo.Omega_m * a**-3 + cosmo.Omega_k * a**-2 + _dark_energy(cosmo, a)


def _dE_squared(cosmo: Parameters, a: Array) -> Array:
    w = cosmo.w0 + cosmo.wa * (1 - a)
    return -3 * cosmo.Omega_m * a**-3 - 2 * cosmo.Omega_k * a**-2 - 3 * (1 + w) * _dark_energy(cosmo, a)


def growth(a: ArrayLike, cosmo: Cosmology) -> Array:
    """Linear growth factor D1(a), 1 at a = 1."""
    return growth_table(cosmo).D1(a)


def growth_rate(a: ArrayLike, cosmo: Cosmology) -> Array:
    """Linear growth rate f = d ln D1 / d ln a."""
    table = growth_table(cosmo)
    return table.dD1(a) / table.D1(a)
