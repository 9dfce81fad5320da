"""Gravity of the particle mesh: paint, solve Poisson's equation, take the gradient, read.

One transform forward and one back: the fourth-order finite-difference gradient is taken on the mesh.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.stencil import WIDTH, gradient
from pmwd_dist.parallel.fft import irfft_block, local_factors, rfft_block, sequence_after, wavenumbers
from pmwd_dist.parallel.halo import pad_block
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, paint_block, with_halo


@partial(jax.jit, static_argnames="config")
def acceleration(
    disp: Float[Array, "nx ny nz 3"], config: Config
) -> tuple[Float[Array, "nx ny nz 3"], Float[Array, ""]]:
    """-grad phi at the particles, with laplacian phi = delta.

    With the default gradient both cloud-in-cell windows are deconvolved (Hockney & Eastwood 1988, ch. 5); where the
    mesh is finer than the particle lattice, modes beyond the lattice's Nyquist frequency are dropped.

    Args:
      disp: displacements from the lattice [Mpc/h].
      config: the simulation.

    Returns:
      The acceleration [Mpc/h] and the largest displacement [mesh cells].
    """
    decomposition = config.decomposition
    run = decomposition.shard_map(
        partial(_acceleration_block, config=config), decomposition.spec, (decomposition.spec, P())
    )
    return run(disp)


def _acceleration_block(disp: Array, config: Config) -> tuple[Array, Array]:
    decomposition, nz = config.decomposition, config.mesh_shape[2]
    max_displacement = max_displacement_block(disp, config)
    one = jnp.ones((1, 1, 1, 1, 1), disp.dtype)
    modes = rfft_block(paint_block(disp, one, max_displacement, config), decomposition)
    if config.gradient == "spectral":
        fields: list[Array] = []
        for kernel in _spectral_kernels(config, disp.dtype):
            fields.append(irfft_block(modes * kernel, nz, decomposition))
            modes, fields = sequence_after(modes, fields)
        return with_halo(
            max_displacement, config, lambda halo: _read_fields(fields, disp, halo, config)
        ), max_displacement
    potential = irfft_block(modes * _potential_kernel(config, disp.dtype), nz, decomposition)
    return with_halo(
        max_displacement, config, lambda halo: _read_gradient(potential, disp, halo, config)
    ), max_displacement


def _wavevectors(config: Config) -> list[np.ndarray]:
    """Wavevectors of the mesh along each axis [h/Mpc], zero in the padding."""
    numbers = wavenumbers(config.mesh_shape, config.decomposition)
    numbers = (*numbers[:2], np.maximum(numbers[2], 0))
    return [n * (2 * math.pi / length) for n, length in zip(numbers, config.box_size, strict=True)]


def _inverse_laplacian(config: Config, dtype: Any) -> Array:
    """1 / k^2 per unit of density contrast, below the Nyquist frequency of a coarser lattice."""
    k = _wavevectors(config)
    squares = local_factors([ki**2 for ki in k], config.decomposition, dtype)
    k2 = squares[0] + squares[1] + squares[2]
    keep = k2 > 0
    for below in local_factors(_below_lattice_nyquist(config), config.decomposition, bool):
        keep &= below
    return jnp.where(keep, 1 / jnp.where(keep, k2, 1), 0) / config.particles_per_cell


def _below_lattice_nyquist(config: Config) -> list[np.ndarray]:
    numbers = wavenumbers(config.mesh_shape, config.decomposition)
    coarser = [n < m for n, m in zip(config.particle_shape, config.mesh_shape, strict=True)]
    return [
        2 * np.abs(k) < n if below else np.ones(k.shape, bool)
        for k, n, below in zip(numbers, config.particle_shape, coarser, strict=True)
    ]


def _potential_kernel(config: Config, dtype: Any) -> Array:
    """What takes painted modes to -phi: 1 / k^2 over the windows of painting and reading."""
    k = _wavevectors(config)
    # sinc^2 is the cloud-in-cell window along an axis; np.sinc(x) = sin(pi x) / (pi x).
    windows = [np.sinc(ki * h / (2 * math.pi)) ** -4 for ki, h in zip(k, config.cell_size, strict=True)]
    wx, wy, wz = local_factors(windows, config.decomposition, dtype)
    return _inverse_laplacian(config, dtype) * wx * wy * wz


def _spectral_kernels(config: Config, dtype: Any) -> list[Array]:
    """What takes painted modes to the components of -grad phi; the Nyquist frequency has no sign, so no gradient."""
    numbers = wavenumbers(config.mesh_shape, config.decomposition)
    signed = [
        np.where(2 * np.abs(n) == size, 0, k)
        for n, k, size in zip(numbers, _wavevectors(config), config.mesh_shape, strict=True)
    ]
    base = _inverse_laplacian(config, dtype)
    return [1j * k * base for k in local_factors(signed, config.decomposition, dtype)]


def _read_fields(fields: list[Array], disp: Array, halo: int, config: Config) -> Array:
    padded = jnp.stack([pad_block(field, halo + 1, config.decomposition) for field in fields], axis=-1)
    return cic.read(disp, padded, block_geometry(config, halo))[..., 0, :]


def _read_gradient(potential: Array, disp: Array, halo: int, config: Config) -> Array:
    """The gradient of a potential at the particles, from one halo exchange of the potential."""
    padded = pad_block(potential, halo + 1 + WIDTH, config.decomposition)
    geometry = block_geometry(config, halo)
    fields = gradient(padded, config.cell_size, geometry.periodic)
    return cic.read(disp, fields, geometry)[..., 0, :]
