"""Factors in Fourier space, on the local block of the spectrum of a real field, ready to broadcast; inside shard_map.

`shape` is the shape of the real field: the mesh, or the lattice of the particles. Factors are computed along their axes
on the host in double precision and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from pmwd_dist.config import Config
from pmwd_dist.ops.local_fft import multiplicity
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.division import Shape3
from pmwd_dist.parallel.fft import local_factors, spectrum_shape, wavenumbers


def wavevectors(
    shape: Shape3, config: Config, dtype: Any, *, odd: bool = False
) -> tuple[Float[Array, "nx 1 1"], Float[Array, "1 ny 1"], Float[Array, "1 1 nk"]]:
    """Components of the wavevectors [h/Mpc], zero in the padding along kz; if odd, at the Nyquist frequency, too."""
    return local_factors(_wavevectors(shape, config, odd=odd), config.decomposition, dtype)


def k_squared(shape: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Squares of the wavenumbers [(h/Mpc)^2]."""
    x, y, z = local_factors([ki**2 for ki in _wavevectors(shape, config)], config.decomposition, dtype)
    return x + y + z


def inverse_laplacian(shape: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Green's function of minus the Laplacian, 1 / k^2 [(Mpc/h)^2]; zero at k = 0."""
    return _inverse(k_squared(shape, config, dtype))


def inverse_force_laplacian(shape: Shape3, lattice: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Green's function 1 / (k . d(k)) for the force of difference gradients [(Mpc/h)^2]; zero at k = 0.

    Along axes with 3 mesh cells for 2 lattice sites, d_i = k_i (8 sin x - sin 2x) / 6x, x = k_i h, is the wavenumber of
    the fourth-order difference gradient with cells of side h. This is the longitudinal part of the optimal influence
    function (Hockney & Eastwood 1988, sec. 8-3). Along other axes d_i = k_i; docs/explanation/accuracy.md has a
    comparison. With `config.compensated`, see `_mesh_response`.
    """
    if config.compensated:
        k2 = k_squared(shape, config, dtype)
        return _inverse(k2 * _mesh_response(shape, lattice, config, dtype))
    squares = []
    for k, cell, cells, particles in zip(_wavevectors(shape, config), config.cell_size, shape, lattice, strict=True):
        x = k * cell / math.pi
        response = (4 * np.sinc(x) - np.sinc(2 * x)) / 3 if 2 * cells == 3 * particles else 1.0
        squares.append(k**2 * response)
    x, y, z = local_factors(squares, config.decomposition, dtype)
    return _inverse(x + y + z)


def _mesh_response(shape: Shape3, lattice: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Ratio of mesh force and true force of a plane wave, for 1 / k^2 and deconvolved cloud-in-cell windows W.

      response = (k . S)(k . d) / k^4,   S = sum_g W^2(k + g) (k + g) / W^2(k)

    for waves on a cold lattice, averaged over offsets from the mesh (Hockney & Eastwood 1988, sec. 8-3); d are the
    wavenumbers of the differences, g the harmonics of the lattice that alias on the mesh. In closed form

      S_i = k_i s_i t_j t_k,   s = cos x (x / sin x)^3,   t = (1 - 2/3 sin^2 x) (x / sin x)^4,   x = k h / 2n

    with n lattice sites per cell of side h along an axis. Wavenumbers are clipped to half the mesh's Nyquist frequency.
    Along axes with 3 cells for 2 sites s = t = 1: `lattice_window` filters the aliases there.
    """
    squares: list[np.ndarray] = []
    factors: list[tuple[np.ndarray, ...]] = []
    for every, cell, cells, particles in zip(
        _wavevectors(shape, config), config.cell_size, shape, lattice, strict=True
    ):
        mixed = 2 * cells == 3 * particles
        k = every if mixed else np.clip(every, -math.pi / (2 * cell), math.pi / (2 * cell))
        x = k * cell / math.pi
        differences = (4 * np.sinc(x) - np.sinc(2 * x)) / 3
        y = x / (2 * max(1, particles // cells))
        s = np.ones_like(x) if mixed else np.cos(math.pi * y) / np.sinc(y) ** 3
        t = np.ones_like(x) if mixed else (1 - 2 / 3 * np.sin(math.pi * y) ** 2) / np.sinc(y) ** 4
        squares.append(k**2)
        factors.append((k**2 * differences, k**2 * s, t))
    split = config.decomposition
    k2 = sum(local_factors(squares, split, dtype))
    kd, ks, t = (local_factors(list(along), split, dtype) for along in zip(*factors, strict=True))
    aliased = ks[0] * t[1] * t[2] + t[0] * ks[1] * t[2] + t[0] * t[1] * ks[2]
    return jnp.where(k2 > 0, aliased * sum(kd) / jnp.where(k2 > 0, k2, 1) ** 2, 1)


def _product(factors: list[np.ndarray], config: Config, dtype: Any) -> Array:
    x, y, z = local_factors(factors, config.decomposition, dtype)
    return x * y * z


def _inverse(k2: Array) -> Array:
    return 1 / jnp.where(k2 > 0, k2, jnp.inf)


def cic_window(shape: Shape3, config: Config, dtype: Any, *, power: float) -> Float[Array, "nx ny nk"]:
    """Power of the cloud-in-cell window, prod_i sinc^2(k_i h_i / 2) (Hockney & Eastwood 1988, ch. 5)."""
    numbers = wavenumbers(shape, config.decomposition)
    return _product([np.sinc(n / size) ** (2 * power) for n, size in zip(numbers, shape, strict=True)], config, dtype)


def aliased_cic_power(shape: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Squared cloud-in-cell window summed over aliases, prod_i (1 - 2/3 sin^2(k_i h_i / 2)) (Jing 2005, eq. 20)."""
    numbers = wavenumbers(shape, config.decomposition)
    factors = [1 - 2 / 3 * np.sin(math.pi * n / size) ** 2 for n, size in zip(numbers, shape, strict=True)]
    return _product(factors, config, dtype)


def translation(shape: Shape3, config: Config, dtype: Any, cells: Array) -> Complex[Array, "nx ny nk"]:
    """Phases of a translation by some cells along each axis; zero at the Nyquist frequency."""
    numbers = wavenumbers(shape, config.decomposition)
    sizes = list(zip(numbers, shape, strict=True))
    slopes = local_factors([2 * math.pi * n / size for n, size in sizes], config.decomposition, dtype)
    keep = local_factors([2 * np.abs(n) < size for n, size in sizes], config.decomposition, dtype)
    angles = [cells * slope for slope in slopes]
    x, y, z = (jax.lax.complex(on * jnp.cos(x), on * jnp.sin(x)) for on, x in zip(keep, angles, strict=True))
    return x * y * z


def lattice_window(shape: Shape3, lattice: Shape3, config: Config, dtype: Any) -> Float[Array, "nx ny nk"]:
    """Low-pass filter at the Nyquist frequency of the particle lattice, along axes where the mesh is finer.

    With 3 cells for 2 sites a wave k has an alias at the difference of k and the lattice's Nyquist frequency k_N. There
    the filter falls from 1 to 0 as cos^2 between 0.6 and 0.9 k_N, which removes the aliases of waves below 0.1 k_N and
    most of the aliases of waves below 0.5 k_N.
    """
    numbers = wavenumbers(shape, config.decomposition)
    factors = [_low_pass(2 * np.abs(n) / m, size / m) for n, m, size in zip(numbers, lattice, shape, strict=True)]
    return _product(factors, config, dtype)


def _low_pass(frequency: np.ndarray, ratio: float) -> np.ndarray:
    """Filter along an axis, at frequencies in units of the lattice's Nyquist frequency."""
    if ratio <= 1:
        return np.ones_like(frequency)
    if ratio == round(ratio):
        return np.where(frequency < 1, 1.0, 0.0)
    return np.cos(math.pi / 2 * np.clip((frequency - 0.6) / 0.3, 0, 1)) ** 2 * (frequency < 0.9)


def mode_count(shape: Shape3, config: Config, dtype: Any) -> Float[Array, "1 1 nk"]:
    """Multiplicity of a mode, 2 with a complex conjugate that is not stored, else 1; 0 in the padding along kz."""
    nx, ny, nk = spectrum_shape(shape, config.decomposition)
    counts = multiplicity(shape[2], float)
    along = np.ones(nx), np.ones(ny), np.pad(counts, (0, nk - len(counts)))
    return local_factors(along, config.decomposition, dtype)[2]


@on_blocks([], ("spectrum", "spectrum"), static=["shape", "dtype"])
def counted_modes(shape: Shape3, config: Config, dtype: Any) -> tuple[Array, Array]:
    """Squared wavenumbers and the number of modes of each value of a spectrum, divided over devices like the spectrum.

    The number is 2 for a mode whose complex conjugate is not stored, and 0 in the padding.
    """
    k2 = k_squared(shape, config, dtype)
    return k2, jnp.zeros_like(k2) + mode_count(shape, config, dtype)


def _wavevectors(shape: Shape3, config: Config, *, odd: bool = False) -> list[np.ndarray]:
    x, y, z = wavenumbers(shape, config.decomposition)
    numbers = (x, y, np.maximum(z, 0))
    if odd:
        numbers = [np.where(2 * np.abs(n) == size, 0, n) for n, size in zip(numbers, shape, strict=True)]
    return [n * (2 * math.pi / length) for n, length in zip(numbers, config.box_size, strict=True)]
