"""Displacement fields of Lagrangian perturbation theory, order by order, on local blocks; inside shard_map.

psi = grad p + transverse part (from third order on), laplacian p1 = -delta. With the Hessians A of p1 and B of p2
(Bouchet et al. 1995; Catelan 1995),

  laplacian p2 = m(A, A),  laplacian p3a = det A,  laplacian p3b = m(A, B),  (curl psi3c)_i = e_ijk (A B)_jk,

m(A, B) = (tr A tr B - tr A B) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.arithmetic import scaled, scaled_by_i
from pmwd_dist._jax.derivatives import recomputed
from pmwd_dist._jax.ops import unify_varying
from pmwd_dist.config import Config
from pmwd_dist.parallel.fft import irfft_block, rfft_block, sequence_after
from pmwd_dist.pm import fourier

# Pairs of axes of a symmetric matrix; the two axes that follow each axis, as in a vector product.
PAIRS = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
NEXT = ((1, 2), (2, 0), (0, 1))

Matrix = dict[tuple[int, int], Array]

# Size of a field on a device [bytes] up to which reverse mode stores the second derivatives of 2LPT. To compute them
# again costs twice the transforms of a step.
_SMALL, _SMALL_ON_CPUS = 2**28 // 10, 2**25 // 10


def potential(source: Array, config: Config) -> Array:
    """Modes of a potential from modes of its Laplacian."""
    return scaled(source, -fourier.inverse_laplacian(config.particle_shape, config, source.real.dtype))


def displaced(potential: Array, curl: Sequence[Array], config: Config) -> Array:
    """Gradient of a potential plus the divergence-free field with a given curl, shape (nx, ny, nz, 3).

    Potential and curl are modes; the curl has three components, or none.
    """
    modes, fields = (potential, *curl), []
    for axis in range(3):
        fields.append(_component(modes, axis, config))
        modes, fields = sequence_after(modes, fields)
    return jnp.stack(fields, -1)


def _component(modes: tuple[Array, ...], axis: int, config: Config) -> Array:
    """One component of `displaced`; modes of the potential, then modes of the curl."""
    potential, *curl = modes
    k = _odd_wavevectors(potential, config)
    total = scaled_by_i(potential, k[axis])
    if curl:
        i, j = NEXT[axis]
        inverse = fourier.inverse_laplacian(config.particle_shape, config, potential.real.dtype)
        total = total + scaled_by_i(scaled(curl[j], k[i]) - scaled(curl[i], k[j]), inverse)
    return irfft_block(total, config.particle_shape[2], config.decomposition)


def second_order(p1: Array, config: Config, *, dealias: bool) -> Array:
    """Modes of m(A, A), the Laplacian of the second-order potential; without aliases if `dealias` (`dealiased`)."""

    def product(p1: Array) -> list[Array]:
        even, odd = _wavevectors(p1, config)
        trace = _second_derivative(p1, 0, 0, even, odd, config)
        p1, trace = sequence_after(p1, trace)
        source = jnp.zeros((), trace.dtype)
        for i, j in PAIRS[1:]:
            derivative = _second_derivative(p1, i, j, even, odd, config)
            source = source + (trace * derivative if i == j else -(derivative**2))
            trace = trace + derivative if i == j else trace
            p1, (source, trace) = sequence_after(p1, (source, trace))
        return [source]

    if dealias:
        return dealiased(product, [p1], 1, config)[0]

    def run(p1: Array) -> Array:
        return rfft_block(product(p1)[0], config.decomposition)

    return run(p1) if stores_second_derivatives(config, p1.real.dtype) else recomputed(run)(p1)


def stores_second_derivatives(config: Config, dtype: Any, platform: str | None = None) -> bool:
    """Whether reverse mode stores the six fields of `second_order`; platform: default, the devices of the config."""
    size = math.prod(config.particle_shape) / config.decomposition.size * np.dtype(dtype).itemsize
    return size <= (_SMALL_ON_CPUS if (platform or config.decomposition.platform) == "cpu" else _SMALL)


def third_order(p1: Array, p2: Array, config: Config) -> list[Array]:
    """Modes of det A and m(A, B), and of the three components of e_ijk (A B)_jk, without aliases."""

    def product(p1: Array, p2: Array) -> list[Array]:
        A: Matrix = {}
        even, odd = _wavevectors(p1, config)
        for i, j in PAIRS:
            A[i, j] = A[j, i] = _second_derivative(p1, i, j, even, odd, config)
            p1, A = sequence_after(p1, A)
        mixed = jnp.zeros((), p1.real.dtype)
        curl = [mixed] * 3
        for i, j in PAIRS:
            derivative = _second_derivative(p2, i, j, even, odd, config)
            mixed, curl = _add_products(A, derivative, (i, j), mixed, curl)
            p2, (A, mixed, curl) = sequence_after(p2, (A, mixed, curl))
        return [_determinant(A), mixed, *curl]

    return dealiased(product, [p1, p2], 5, config)


def _add_products(
    A: Matrix, b: Array, pair: tuple[int, int], mixed: Array, curl: list[Array]
) -> tuple[Array, list[Array]]:
    """Add the contribution of b = B_pq = B_qp to m(A, B) and to e_ijk (A B)_jk."""
    p, q = pair
    if p == q:
        i, j = NEXT[p]
        mixed = mixed + (A[i, i] + A[j, j]) * b / 2
    else:
        mixed = mixed - A[p, q] * b

    def factor(j: int, k: int) -> Any:
        """Coefficient of b in (A B)_jk."""
        return A[j, p] if q == k else A[j, q] if p == k else 0

    return mixed, [c + (factor(j, k) - factor(k, j)) * b for c, (j, k) in zip(curl, NEXT, strict=True)]


def _determinant(A: Matrix) -> Array:
    return (
        A[0, 0] * (A[1, 1] * A[2, 2] - A[1, 2] ** 2)
        - A[0, 1] * (A[0, 1] * A[2, 2] - A[1, 2] * A[0, 2])
        + A[0, 2] * (A[0, 1] * A[1, 2] - A[1, 1] * A[0, 2])
    )


def dealiased(product: Callable[..., list[Array]], modes: Sequence[Array], count: int, config: Config) -> list[Array]:
    """Modes of products of fields, averaged over two lattices, the second shifted by half a cell along each axis.

    Aliases along one axis or three have opposite signs on the two lattices and cancel (Patterson & Orszag 1971).
    Aliases along two axes remain, a few per cent. Zero padding would remove them, but takes 3.4 times the memory and
    moves modes between devices. Modes at the Nyquist frequency are set to zero.
    """
    shape, dtype = config.particle_shape, modes[0].real.dtype

    @jax.checkpoint
    def add(totals: list[Array], cells: Array) -> tuple[list[Array], None]:
        phase = fourier.translation(shape, config, dtype, cells)
        fields = product(*(phase * m for m in modes))
        back = jnp.conj(phase) / 2
        return [t + back * rfft_block(f, config.decomposition) for t, f in zip(totals, fields, strict=True)], None

    zero = unify_varying(modes[0], jnp.zeros_like(modes[0]))[1]
    totals, _ = jax.lax.scan(add, [zero] * count, jnp.asarray([0.0, 0.5], dtype))
    return totals


def _second_derivative(p: Array, i: int, j: int, even: Any, odd: Any, config: Config) -> Array:
    factor = even[i] ** 2 if i == j else odd[i] * odd[j]
    return irfft_block(scaled(p, -factor), config.particle_shape[2], config.decomposition)


def _odd_wavevectors(modes: Array, config: Config) -> tuple[Array, Array, Array]:
    return fourier.wavevectors(config.particle_shape, config, modes.real.dtype, odd=True)


def _wavevectors(modes: Array, config: Config) -> tuple[Any, Any]:
    return fourier.wavevectors(config.particle_shape, config, modes.real.dtype), _odd_wavevectors(modes, config)
