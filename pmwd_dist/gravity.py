"""Gravity of the particle mesh: paint, solve Poisson's equation, take the gradient, read.

One transform forward and one back: the fourth-order finite-difference gradient is taken on the mesh.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist import kernels
from pmwd_dist.config import Config
from pmwd_dist.fft import irfft_block, local_wavenumbers, rfft_block
from pmwd_dist.halo import pad_block
from pmwd_dist.paint import block_geometry, paint_block, reach_block, with_halo
from pmwd_dist.stencil import WIDTH, gradient


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
    layout = config.layout
    run = layout.shard_map(partial(_acceleration_block, config=config), layout.spec, (layout.spec, P()))
    return run(disp)


def _acceleration_block(disp: Array, config: Config) -> tuple[Array, Array]:
    layout, nz = config.layout, config.mesh_shape[2]
    reach = reach_block(disp, config)
    one = jnp.ones((1, 1, 1, 1, 1), disp.dtype)
    modes = rfft_block(paint_block(disp, one, reach, config)[0], layout)
    if config.gradient == "spectral":
        fields = [irfft_block(modes * kernel, nz, layout) for kernel in _spectral_kernels(config, disp.dtype)]
        return with_halo(reach, config, lambda halo: _read_fields(fields, disp, halo, config)), reach
    potential = irfft_block(modes * _potential_kernel(config, disp.dtype), nz, layout)
    return with_halo(reach, config, lambda halo: _read_gradient(potential, disp, halo, config)), reach


def _wavevectors(config: Config, dtype: Any) -> list[Array]:
    numbers = local_wavenumbers(config.mesh_shape, config.layout)
    return [
        (jnp.maximum(n, 0) if axis == 2 else n).astype(dtype) * (2 * math.pi / length)
        for axis, (n, length) in enumerate(zip(numbers, config.box_size, strict=True))
    ]


def _inverse_laplacian(k: list[Array], config: Config) -> Array:
    """1 / k^2 per unit of density contrast, below the Nyquist frequency of a coarser lattice."""
    k2 = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    keep = k2 > 0
    for axis, n in enumerate(config.particle_shape):
        if n < config.mesh_shape[axis]:
            keep &= jnp.abs(k[axis]) < (n / 2 - 0.5) * 2 * math.pi / config.box_size[axis]
    return jnp.where(keep, 1 / jnp.where(keep, k2, 1), 0) / config.particles_per_cell


def _potential_kernel(config: Config, dtype: Any) -> Array:
    """What takes painted modes to -phi: 1 / k^2 over the windows of painting and reading."""
    k = _wavevectors(config, dtype)
    # sinc^2 is the cloud-in-cell window along an axis; jnp.sinc(x) = sin(pi x) / (pi x).
    windows = [jnp.sinc(k[i] * (config.cell_size[i] / (2 * math.pi))) ** -4 for i in range(3)]
    return _inverse_laplacian(k, config) * windows[0] * windows[1] * windows[2]


def _spectral_kernels(config: Config, dtype: Any) -> list[Array]:
    k = _wavevectors(config, dtype)
    base = _inverse_laplacian(k, config)
    nyquist = [math.pi / h for h in config.cell_size]
    signed = [jnp.where(jnp.abs(jnp.abs(k[i]) - nyquist[i]) < 1e-3 * nyquist[i] / config.mesh_shape[i], 0, k[i]) for i in range(3)]
    return [1j * signed[i] * base for i in range(3)]


def _read_fields(fields: list[Array], disp: Array, halo: int, config: Config) -> Array:
    padded = jnp.stack([pad_block(field, halo + 1, config.layout) for field in fields])
    return kernels.read(disp, padded, block_geometry(config, halo))[..., 0, :]


def _read_gradient(potential: Array, disp: Array, halo: int, config: Config) -> Array:
    """The gradient of a potential at the particles, from one halo exchange of the potential."""
    padded = pad_block(potential, halo + 1 + WIDTH, config.layout)
    geometry = block_geometry(config, halo)
    fields = gradient(padded, config.cell_size, geometry.periodic)
    return kernels.read(disp, fields, geometry)[..., 0, :]
