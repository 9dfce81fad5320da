"""Spherical harmonics of HEALPix maps, of spin 0 and 2, by transforms along rings and Legendre sums across them.

Harmonics of spin s follow Goldberg et al. (1967). Along l they obey the recurrence of Wigner's d functions, which is
stable from l = max(m, |s|) on. Near the poles, values below the floating-point range have a separate exponent, as in
libsharp (Reinecke & Seljebotn 2013). The number of operations goes like nside^3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._jax.derivatives import linear_map
from pmwd_dist._jax.order import row_major
from pmwd_dist.observe.healpix import pixel_count, rings_of
from pmwd_dist.parallel.decomposition import Decomposition

_ITERATIONS = 3  # of Jacobi, over residuals of a map
_BITS = 40  # powers of 2 per unit of the separate exponent
_SPLIT = 64  # logarithms of sines in units of 1/64, times m, are exact in single precision


def analyse(
    values: Float[Array, " pixels"],
    nside: int,
    lmax: int,
    *,
    decomposition: Decomposition | None = None,
) -> Float[Array, "2 l m"]:
    """Coefficients a_lm of a map, real and imaginary parts, for m from 0 to l.

    Jacobi iterations analyse the residual of the map: pixels are no exact quadrature. With a decomposition the m are
    divided over its devices, if their number divides lmax + 1.
    """
    modes = _quadrature(values, nside, lmax, decomposition)

    def improve(modes: Array, _: None) -> tuple[Array, None]:
        rest = values - synthesise(modes, nside, decomposition)
        return modes + _quadrature(rest, nside, lmax, decomposition), None

    return jax.lax.scan(improve, modes, length=_ITERATIONS)[0]


def analyse_spin2(values: Float[Array, "2 pixels"], nside: int, lmax: int) -> Float[Array, "2 2 l m"]:
    """Coefficients of the E and B modes of a spin-2 map, with the E modes of `synthesise_spin2`."""
    # The transpose of the synthesis counts m > 0 twice.
    weight = 4 * math.pi / pixel_count(nside) / np.where(np.arange(lmax + 1) > 0, 2, 1)
    like = jnp.zeros((2, 2, lmax + 1, lmax + 1), values.dtype)

    def synthesis(modes: Array) -> Array:
        e, b = (synthesise_spin2(x, nside) for x in modes)
        return e + jnp.stack([-b[1], b[0]])  # B modes are E modes times i

    def quadrature(values: Array) -> Array:
        return jax.vjp(synthesis, like)[1](values)[0] * jnp.asarray(weight, values.dtype)[None, None, None]

    def improve(modes: Array, _: None) -> tuple[Array, None]:
        return modes + quadrature(values - synthesis(modes)), None

    return jax.lax.scan(improve, quadrature(values), length=_ITERATIONS)[0]


def shear_modes(modes: Float[Array, "2 l m"], *, inverse: bool = False) -> Float[Array, "2 l m"]:
    """Spin-2 coefficients of the shear: -sqrt((l+2)(l-1) / (l(l+1))) times the convergence's (Hu 2000).

    The inverse gives coefficients of the convergence from l = 2 on.
    """
    ell = np.maximum(np.arange(modes.shape[1]), 1)
    factor = -np.sqrt((ell + 2) * (ell - 1) / (ell * (ell + 1)))
    if inverse:
        factor = np.divide(1, factor, out=np.zeros_like(factor), where=factor != 0)
    return modes * jnp.asarray(factor, modes.dtype)[None, :, None]


def power_of_modes(modes: Float[Array, "2 l m"], other: Float[Array, "2 l m"] | None = None) -> Float[Array, " l"]:
    """C_l, the mean over m from -l to l of |a_lm|^2, or of the product with another map's coefficients."""
    ell = jnp.arange(modes.shape[1]).astype(modes.dtype)
    squares = jnp.sum(modes * (modes if other is None else other), axis=0)
    return (2 * jnp.sum(squares, axis=1) - squares[:, 0]) / (2 * ell + 1)


def _quadrature(values: Array, nside: int, lmax: int, decomposition: Decomposition | None) -> Array:
    weight = 4 * math.pi / pixel_count(nside)
    rings = _divided(_replicated(_ring_modes(values, nside, lmax), decomposition), decomposition)
    return weight * _divided(_legendre(rings, nside, lmax, 0), decomposition)


def _divided(x: Array, decomposition: Decomposition | None) -> Array:
    """Rings or coefficients, divided over devices by m where the number of devices allows."""
    if decomposition is None or decomposition.size == 1 or x.shape[-1] % decomposition.size:
        return x
    sharding = NamedSharding(decomposition.mesh, P(None, None, decomposition.names))
    return jax.lax.with_sharding_constraint(x, sharding)


def _replicated(rings: Array, decomposition: Decomposition | None) -> Array:
    """Rings on each device, beside transforms along them, which XLA does not divide."""
    return rings if decomposition is None else jax.lax.with_sharding_constraint(rings, decomposition.replicated)


def synthesise(
    modes: Float[Array, "2 l m"], nside: int, decomposition: Decomposition | None = None
) -> Float[Array, " pixels"]:
    """The real map with coefficients a_lm, m from 0 to l."""
    rings = _divided(_legendre_transposed(_divided(modes, decomposition), nside, 0), decomposition)
    return _ring_values(_replicated(rings, decomposition), nside)


def synthesise_spin2(
    modes: Float[Array, "2 l m"], nside: int, decomposition: Decomposition | None = None
) -> Float[Array, "2 pixels"]:
    """Real and imaginary parts of the spin-2 map with coefficients a_lm, m from 0 to l, with a_l(-m) as of a real map.

    Components are along theta (south) and phi (east).
    """
    modes = _divided(modes, decomposition)
    plus, minus = (_divided(_legendre_transposed(modes, nside, spin), decomposition) for spin in (2, -2))
    # f = sum of (2Y a + conj(-2Y a)) over m > 0, and half of it for m = 0.
    real, difference = (plus + minus) / 2, (plus - minus) / 2
    imaginary = jnp.stack([difference[1], -difference[0]])
    return jnp.stack([_ring_values(_replicated(part, decomposition), nside) for part in (real, imaginary)])


# --- along rings -------------------------------------------------------------------------------------------


def _ring_modes(values: Array, nside: int, lmax: int) -> Array:
    """Sums of a map times exp(-i m phi) along each ring, real and imaginary parts: (2, rings, m)."""
    result = jnp.zeros((2, 4 * nside - 1, lmax + 1), values.dtype)
    return _pair(partial(_to_modes, layout=(nside, lmax)), partial(_to_values, layout=(nside, lmax)), values, result)


def _ring_values(modes: Array, nside: int) -> Array:
    """The real map with given modes along its rings, m from 0 on: twice the real part for m > 0."""
    lmax = modes.shape[-1] - 1
    twice = modes * jnp.where(jnp.arange(lmax + 1) > 0, 2, 1).astype(modes.dtype)[None, None]
    result = jnp.zeros(pixel_count(nside), modes.dtype)
    return _pair(partial(_to_values, layout=(nside, lmax)), partial(_to_modes, layout=(nside, lmax)), twice, result)


def _pair(apply: Callable[[Array], Array], transpose: Callable[[Array], Array], x: Array, result: Array) -> Array:
    """Apply a linear function of one array, with a given transpose for reverse mode."""
    like = jax.lax.stop_gradient(jnp.zeros_like(x))
    forth, back = (lambda *args, f=f: [f(args[-1])] for f in (apply, transpose))
    return linear_map(forth, back, [like, result], [x], operands_like=[0], results_like=[1])[0]


def _to_modes(values: Array, *, layout: tuple[int, int]) -> Array:
    nside, lmax = layout
    longest = 4 * nside
    first, count, shift = (x[:, None] for x in rings_of(nside)[:3])
    j, m = np.arange(longest)[None], np.arange(lmax + 1)[None]
    ring = jnp.where(j < count, values[np.where(j < count, first + j, 0)], 0)
    sums = _chirped(ring, count, -1, lmax + 1) * _phase(-m * (m + shift), count, values.dtype)
    return jnp.stack([sums.real, sums.imag])


def _to_values(modes: Array, *, layout: tuple[int, int]) -> Array:
    nside, _ = layout
    first, count, shift = (x[:, None] for x in rings_of(nside)[:3])
    j, m = np.arange(4 * nside)[None], np.arange(modes.shape[-1])[None]
    turned = jax.lax.complex(modes[0], modes[1]) * _phase(m * shift, count, modes.dtype)
    ring = (_chirped(turned, count, 1, 4 * nside) * _phase(j**2, count, modes.dtype)).real
    pixels = np.where(j < count, first + j, pixel_count(nside))
    return jnp.zeros(pixel_count(nside), modes.dtype).at[pixels].set(ring, mode="drop")


def _phase(number: np.ndarray, count: np.ndarray, dtype: Any) -> Array:
    """exp(i pi number / count), for integers."""
    angle = (jnp.asarray(number) % (2 * count)).astype(dtype) * jnp.asarray(math.pi / count, dtype)
    return jax.lax.complex(jnp.cos(angle), jnp.sin(angle))


def _chirped(x: Array, count: np.ndarray, sign: int, size: int) -> Array:
    """Sums over b of x_b exp(sign i pi (b^2 - (a - b)^2) / count), for a from 0 to size - 1, along each ring.

    Bluestein's algorithm, 2 a b = a^2 + b^2 - (a - b)^2, with transforms of one length for rings of all lengths.
    """
    number = x.shape[1]
    length = 1 << (number + size - 1).bit_length()
    b, distance = np.arange(number)[None], np.arange(-number + 1, size)[None]
    dtype = x.real.dtype
    chirp = jnp.fft.fft(_padded(_phase(-sign * distance**2, count, dtype), length), axis=1)
    moved = jnp.fft.fft(_padded(x * _phase(sign * b**2, count, dtype), length), axis=1)
    return jnp.fft.ifft(_padded(moved * chirp, length), axis=1)[:, number - 1 : number - 1 + size]


def _padded(x: Array, length: int) -> Array:
    """Rows with zeros up to a length."""
    return row_major(jnp.pad(x, ((0, 0), (0, length - x.shape[1]))))


# --- across rings ------------------------------------------------------------------------------------------


def _legendre(rings: Array, nside: int, lmax: int, spin: int) -> Array:
    """Sums over rings of their modes, (2, rings, m), times harmonics: (2, l, m)."""
    layout, modes = (nside, lmax, spin), jnp.zeros((2, lmax + 1, lmax + 1), rings.dtype)
    return _pair(partial(_over_rings, layout=layout), partial(_over_l, layout=layout), rings, modes)


def _legendre_transposed(modes: Array, nside: int, spin: int) -> Array:
    """Sums over l of coefficients, (2, l, m), times harmonics: (2, rings, m)."""
    layout = nside, modes.shape[-1] - 1, spin
    rings = jnp.zeros((2, 4 * nside - 1, modes.shape[-1]), modes.dtype)
    return _pair(partial(_over_l, layout=layout), partial(_over_rings, layout=layout), modes, rings)


def _over_rings(rings: Array, layout: tuple[int, int, int]) -> Array:
    def add(carry: Any, ell: Array) -> tuple[Any, Array]:
        carry, values = _next(carry, ell, layout, rings.dtype)
        return carry, jnp.sum(rings * values[None], axis=1)

    _, modes = jax.lax.scan(add, _before(layout, rings.dtype), jnp.arange(layout[1] + 1))
    return jnp.moveaxis(modes, 0, 1)


def _over_l(modes: Array, layout: tuple[int, int, int]) -> Array:
    def add(carry: Any, row: Any) -> tuple[Any, None]:
        (state, total), (ell, mode) = carry, row
        state, values = _next(state, ell, layout, modes.dtype)
        return (state, total + mode[:, None] * values[None]), None

    total = jnp.zeros((2, 4 * layout[0] - 1, layout[1] + 1), modes.dtype)
    start = _before(layout, modes.dtype), total
    (_, total), _ = jax.lax.scan(add, start, (jnp.arange(layout[1] + 1), jnp.moveaxis(modes, 1, 0)))
    return total


def _before(layout: tuple[int, int, int], dtype: Any) -> tuple[Array, Array, Array]:
    """The harmonics of l = -1 and l = -2, and their exponents."""
    zero = jnp.zeros((4 * layout[0] - 1, layout[1] + 1), dtype)
    return zero, zero, jnp.zeros(zero.shape, jnp.int32)


def _next(
    carry: tuple[Array, Array, Array], ell: Array, layout: tuple[int, int, int], dtype: Any
) -> tuple[tuple[Array, Array, Array], Array]:
    """Harmonics of the next l at phi = 0, by rings and m, from the two l before."""
    nside, lmax, spin = layout
    last, earlier, exponent = carry
    theta = rings_of(nside)[3]
    m, lf = jnp.arange(lmax + 1)[None], ell.astype(dtype)
    first = jnp.maximum(m, abs(spin))
    mf = m.astype(dtype)
    below = jnp.maximum(lf - 1, 1)
    shifted = jnp.asarray(np.cos(theta), dtype)[:, None] + jnp.where(ell > 1, spin * mf / (below * (below + 1)), 0)
    c, d = (_coupling(x, mf, spin) for x in (lf, lf - 1))
    grown = (shifted * last - jnp.where(ell - 1 > first, d, 0) * earlier) / jnp.where(ell > first, c, 1)
    start, power = _start(layout, dtype)
    new = jnp.where(ell == first, start, jnp.where(ell > first, grown, 0))
    exponent = jnp.where(ell == first, power, exponent)
    large = (jnp.abs(new) > 2.0 ** (_BITS // 2)) & (exponent < 0)
    factor = jnp.where(large, 2.0**-_BITS, 1).astype(dtype)
    new, last, exponent = new * factor, last * factor, exponent + large
    values = jnp.where(exponent >= -2, new * jnp.exp2((_BITS * jnp.maximum(exponent, -2)).astype(dtype)), 0)
    return (new, last, exponent), values


def _coupling(ell: Array, m: Array, spin: int) -> Array:
    """The factor C_l of the recurrence C_l Y_l = (cos theta + s m / (l (l - 1))) Y_(l-1) - C_(l-1) Y_(l-2)."""
    ell = jnp.maximum(ell, 1)
    square = (ell - m) * (ell + m) * (ell - spin) * (ell + spin) / (ell**2 * (2 * ell - 1) * (2 * ell + 1))
    return jnp.sqrt(jnp.maximum(square, 0))


def _start(layout: tuple[int, int, int], dtype: Any) -> tuple[Array, Array]:
    """Harmonics of l = max(m, |s|), by rings and m: numbers, and their exponents.

    Their size is sqrt((2 l + 1)! / (4 pi (l + n)! (l - n)!)) sin(theta / 2)^|m + s| cos(theta / 2)^|m - s|, with
    n = min(m, |s|).
    """
    nside, lmax, spin = layout
    half = rings_of(nside)[3] / 2
    m = np.arange(lmax + 1)
    most, least = np.maximum(m, abs(spin)), np.minimum(m, abs(spin))
    gamma = np.vectorize(math.lgamma)
    log = (gamma(2 * most + 2) - gamma(most + least + 1) - gamma(most - least + 1) - math.log(4 * math.pi)) / 2
    powers = (np.abs(m + spin), np.abs(m - spin))
    logs = [np.log2(np.sin(half)), np.log2(np.cos(half))]
    rough = [np.round(x * _SPLIT) / _SPLIT for x in logs]
    p = [jnp.asarray(x, dtype)[None] for x in powers]
    exact = sum(jnp.asarray(x, dtype)[:, None] * n for x, n in zip(rough, p, strict=True))
    rest = sum(jnp.asarray(x - y, dtype)[:, None] * n for x, y, n in zip(logs, rough, p, strict=True))
    # The integer part of the norm's logarithm goes to the exact part, too.
    norm = log / math.log(2)
    exact = exact + jnp.asarray(np.round(norm), dtype)[None]
    rest = rest + jnp.asarray(norm - np.round(norm), dtype)[None]
    exponent = jnp.minimum(jnp.ceil(exact / _BITS), 0)
    sign = np.where((spin < 0) & (m < -spin), 1, (-1.0) ** m)
    value = jnp.exp2(exact - _BITS * exponent + rest) * jnp.asarray(sign, dtype)[None]
    return value, exponent.astype(jnp.int32)
