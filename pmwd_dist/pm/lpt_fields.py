"""Displacement fields of Lagrangian perturbation theory, order by order, on local blocks; inside shard_map.

psi = grad p, laplacian p1 = -delta. With the Hessians A of p1 and B of p2 (Bouchet et al. 1995; Catelan 1995),

  laplacian p2 = m(A, A),  laplacian p3a = det A,  laplacian p3b = m(A, B),  m(A, B) = (tr A tr B - tr A B) / 2.

The transverse part of third order changes P(k) at z = 0 by at most 0.02 % and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist._jax.arithmetic import scaled, scaled_by_i
from pmwd_dist._jax.derivatives import recomputed
from pmwd_dist._jax.ops import unify_varying
from pmwd_dist._jax.order import after
from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import irfft_block, rfft_block, sequence_after
from pmwd_dist.pm import fourier

# Pairs of axes of a symmetric matrix.
PAIRS = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))

# Size of a field on a device [bytes] up to which reverse mode stores the second derivatives of potentials. To compute
# them again costs twice the transforms of a step at second order.
_SMALL, _SMALL_ON_CPUS = 2**28 // 10, 2**25 // 10


def potential(source: Array, config: Config) -> Array:
    """Modes of a potential from modes of its Laplacian."""
    return scaled(source, -fourier.inverse_laplacian(config.particle_shape, config, source.real.dtype))


def displaced(potential: Array, config: Config) -> Array:
    """Gradient of a potential, shape (nx, ny, nz, 3), from its modes."""
    fields: list[Array] = []
    for k in _wavevectors(potential, config, odd=True):
        fields.append(irfft_block(scaled_by_i(potential, k), config.particle_shape[2], config.decomposition))
        potential, fields = sequence_after(potential, fields)
    return jnp.stack(fields, -1)


def second_order(p1: Array, config: Config) -> Array:
    """Modes of p2."""

    def source(p1: Array) -> list[Array]:
        return [rfft_block(_minors(p1, config), config.decomposition)]

    wrap = _unchanged if stores_second_derivatives(config, p1.real.dtype) else recomputed
    return potential(wrap(source)(p1)[0], config)


def third_order(p1: Array, weights: Array, config: Config) -> list[Array]:
    """Modes of a weighted sum of p2, p3a and p3b for each row of the weights.

    Aliases of m(A, A), which change P(k) at z = 0 by up to 0.3 %, are removed as in `dealiased`. Aliases of the other
    products change it by less than 0.1 % and remain.
    """
    stored = stores_second_derivatives(config, p1.real.dtype)
    wrap = _unchanged if stored else recomputed

    def apart(modes_of: Callable[[Array], Array], p1: Array) -> tuple[Array, Array]:
        return after(p1, wrap(lambda p1: [modes_of(p1)])(p1)[0])

    @wrap
    def sums(p1: Array, weights: Array) -> list[Array]:
        keep = fourier.translation(config.particle_shape, config, p1.real.dtype, jnp.zeros((), p1.real.dtype)).real
        p1, determinant = apart(lambda p1: rfft_block(_determinant(p1, config), config.decomposition), p1)
        p1, minors = apart(lambda p1: rfft_block(_minors(p1, config), config.decomposition), p1)
        shifted = wrap(lambda p1: [on_lattice(partial(_minors, config=config), p1, 0.5, config)])(p1)[0]
        p2 = potential(scaled(shifted + minors, keep / 2), config)
        (p1, p2), determinant = after((p1, p2), determinant)
        mixed = rfft_block(_mixed_minors(p1, p2, config, stored=stored), config.decomposition)
        return [scaled(p2, w) + potential(scaled(determinant, a) + scaled(mixed, b), config) for w, a, b in weights]

    return sums(p1, weights)


def _unchanged(function: Any) -> Any:
    return function


def stores_second_derivatives(config: Config, dtype: Any, platform: str | None = None) -> bool:
    """Whether reverse mode stores second derivatives of potentials; platform: default, the devices of the config."""
    size = math.prod(config.particle_shape) / config.decomposition.size * np.dtype(dtype).itemsize
    return size <= (_SMALL_ON_CPUS if (platform or config.decomposition.platform) == "cpu" else _SMALL)


def _minors(p: Array, config: Config) -> Array:
    """m(A, A) from modes of the potential, with one second derivative at a time."""
    trace = _second_derivative(p, 0, 0, config)
    p, trace = sequence_after(p, trace)
    total = jnp.zeros((), trace.dtype)
    for i, j in PAIRS[1:]:
        derivative = _second_derivative(p, i, j, config)
        total = total + (trace * derivative if i == j else -(derivative**2))
        trace = trace + derivative if i == j else trace
        p, (total, trace) = sequence_after(p, (total, trace))
    return total


def _determinant(p: Array, config: Config) -> Array:
    """det A from modes of the potential, with at most five fields at a time."""

    def derivative(p: Array, i: int, j: int, others: Sequence[Array]) -> tuple[Array, Any]:
        return sequence_after(p, (*others, _second_derivative(p, i, j, config)))

    p, (yz,) = derivative(p, 1, 2, ())
    p, (yz, xz) = derivative(p, 0, 2, (yz,))
    p, (yz, xz, xy) = derivative(p, 0, 1, (yz, xz))
    p, (total, yz2, xz2, xy2) = sequence_after(p, (2 * yz * xz * xy, yz**2, xz**2, xy**2))
    p, (total, yz2, xz2, xy2, zz) = derivative(p, 2, 2, (total, yz2, xz2, xy2))
    p, (total, yz2, xz2, zz, yy) = derivative(p, 1, 1, (total - xy2 * zz, yz2, xz2, zz))
    p, (total, minor, xx) = derivative(p, 0, 0, (total - xz2 * yy, yy * zz - yz2))
    return total + minor * xx


def _mixed_minors(p1: Array, p2: Array, config: Config, *, stored: bool) -> Array:
    """m(A, B) from modes of two potentials, with one second derivative of each at a time.

    A loop over pairs: XLA's compiler for CPUs would compute all second derivatives before their products.
    """
    even, odd = (_wavevectors(p1, config, odd=odd) for odd in (False, True))
    wrap = _unchanged if stored else jax.checkpoint

    def derivative(modes: Array, factors: Sequence[Array]) -> Array:
        return irfft_block(reduce(scaled, factors, modes), config.particle_shape[2], config.decomposition)

    @wrap
    def product(p1: Array, p2: Array, factors: Sequence[Array]) -> Array:
        p2, a = sequence_after(p2, derivative(p1, factors))
        return a * derivative(p2, factors)

    def subtract(total: Array, pair: tuple[list[Array], Array]) -> tuple[Array, None]:
        factors, weight = pair
        return total - weight * product(p1, p2, factors), None

    traces = product(p1, p2, [even[0] ** 2 + even[1] ** 2 + even[2] ** 2])
    factors = [jnp.stack([_factor(axis, pair, even, odd) for pair in PAIRS]) for axis in range(3)]
    weights = jnp.asarray([0.5 if i == j else 1.0 for i, j in PAIRS], traces.dtype)
    return jax.lax.scan(subtract, traces / 2, (factors, weights))[0]


def _factor(axis: int, pair: tuple[int, int], even: Any, odd: Any) -> Array:
    """Factor of minus a second derivative that depends on the wavenumber along an axis."""
    if axis not in pair:
        return jnp.ones_like(odd[axis])
    return even[axis] ** 2 if pair[0] == pair[1] else odd[axis]


def on_lattice(product: Callable[[Array], Array], modes: Array, cells: ArrayLike, config: Config) -> Array:
    """Modes of a product of fields on a lattice shifted by some cells along each axis, from modes of a field.

    Modes at the Nyquist frequency are set to zero.
    """
    phase = fourier.translation(config.particle_shape, config, modes.real.dtype, jnp.asarray(cells, modes.real.dtype))
    return jnp.conj(phase) * rfft_block(product(phase * modes), config.decomposition)


def dealiased(product: Callable[[Array], Array], modes: Array, config: Config) -> Array:
    """Modes of a product of fields, averaged over two lattices, the second shifted by half a cell along each axis.

    Aliases along one axis or three have opposite signs on the two lattices and cancel (Patterson & Orszag 1971).
    Aliases along two axes remain, a few per cent. Zero padding would remove them, but takes 3.4 times the memory and
    moves modes between devices.
    """

    @jax.checkpoint
    def add(total: Array, cells: Array) -> tuple[Array, None]:
        return total + on_lattice(product, modes, cells, config) / 2, None

    zero = unify_varying(modes, jnp.zeros_like(modes))[1]
    return jax.lax.scan(add, zero, jnp.asarray([0.0, 0.5], modes.real.dtype))[0]


def _second_derivative(p: Array, i: int, j: int, config: Config) -> Array:
    """Second derivative along two axes; waves at the Nyquist frequency have none along different axes."""
    k = _wavevectors(p, config, odd=i != j)
    return irfft_block(scaled(p, -(k[i] * k[j])), config.particle_shape[2], config.decomposition)


def _wavevectors(modes: Array, config: Config, *, odd: bool) -> tuple[Array, Array, Array]:
    return fourier.wavevectors(config.particle_shape, config, modes.real.dtype, odd=odd)
