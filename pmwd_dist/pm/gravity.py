"""Gravity of the particle mesh: paint, solve Poisson's equation, take the gradient, read.

One transform forward and one back: the fourth-order finite-difference gradient is taken on the mesh.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled_by_i
from pmwd_dist.config import Config
from pmwd_dist.ops import cic
from pmwd_dist.ops.stencil import WIDTH, gradient
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.fft import filtered_block, irfft_block, rfft_block, sequence_after
from pmwd_dist.parallel.halo import pad_block
from pmwd_dist.pm import fourier, potential_factor
from pmwd_dist.pm.paint import block_geometry, max_displacement_block, paint_block, with_halo
from pmwd_dist.pm.potential_factor import Table


@on_blocks(["field", "whole"], ("field", "whole"))
def acceleration(
    disp: Float[Array, "nx ny nz 3"], config: Config, factor: Table | None = None
) -> tuple[Float[Array, "nx ny nz 3"], Float[Array, ""]]:
    """-grad phi at the particles, with laplacian phi = delta: painted, solved in Fourier space, and read.

    With the default gradient the Green's function deconvolves both cloud-in-cell windows (Hockney & Eastwood 1988,
    ch. 5). `fourier.lattice_window` filters meshes that are finer than the lattice. `fourier.inverse_force_laplacian`
    corrects for the differences with 3 cells for 2 particles, and with `config.compensated` for differences and aliases
    on any mesh.

    Args:
      disp: displacements from the lattice [Mpc/h].
      config: the simulation.
      factor: factor of the potential at this time, from `potential_factor.tabulate`; default: 1.

    Returns:
      The acceleration [Mpc/h] and the largest displacement [mesh cells].

    Raises:
      ValueError: a mesh with wrong forces (`check_force_mesh`).
    """
    check_force_mesh(config)
    max_displacement = max_displacement_block(disp, config)
    meshes = force_meshes(disp, max_displacement, config, factor)

    def read(halo: int, disp: Array, *meshes: Array) -> Array:
        return cic.read(disp, padded_force(config, halo, *meshes), block_geometry(config, halo))[..., 0, :]

    return with_halo(max_displacement, config, read, disp, *meshes), max_displacement


def check_force_mesh(config: Config) -> None:
    """Raise ValueError unless the ratio of mesh and lattice is n, 1/n or 3/2 along each axis.

    At other ratios harmonics of the lattice alias into long waves: even a lattice at rest feels a force.
    """
    for axis, (cells, particles) in enumerate(zip(config.mesh_shape, config.particle_shape, strict=True)):
        if not _is_force_mesh(cells, particles):
            along = f"with {particles} particles along this axis"
            remedy = f"use {' or '.join(map(str, _nearest_meshes(cells, particles)))}"
            constraint = f"{along} gives wrong forces: the ratio must be n, 1/n or 3/2"
            raise ArgumentError("mesh_shape", cells, constraint, remedy, axis=axis)


def _is_force_mesh(cells: int, particles: int) -> bool:
    return particles % cells == 0 or cells % particles == 0 or 2 * cells == 3 * particles


def _nearest_meshes(cells: int, particles: int) -> list[int]:
    admitted = [n for n in range(2, cells + particles + 1) if _is_force_mesh(n, particles)]
    return [*[n for n in admitted if n < cells][-1:], *[n for n in admitted if n > cells][:1]]


def num_force_meshes(config: Config) -> int:
    """Number of force meshes: the potential, or three components."""
    return 3 if config.gradient == "spectral" else 1


def force_meshes(disp: Array, max_displacement: Array, config: Config, factor: Table | None) -> list[Array]:
    """Local blocks of the force meshes: -phi, or the three components of -grad phi."""
    mesh = paint_block(disp, jnp.ones((1, 1, 1, 1, 1), disp.dtype), max_displacement, config)
    return solve(mesh, config, factor)


def solve(mesh: Array, config: Config, factor: Table | None = None) -> list[Array]:
    """Solve Poisson's equation for a painted density, on local blocks; returns the force meshes."""
    decomposition, nz, dtype = config.decomposition, config.mesh_shape[2], mesh.dtype
    if config.gradient == "spectral":
        modes, fields = rfft_block(mesh, decomposition), list[Array]()
        greens_function = _greens_function(config, dtype, factor)
        for k in fourier.wavevectors(config.mesh_shape, config, dtype, odd=True):
            fields.append(irfft_block(scaled_by_i(modes, k * greens_function), nz, decomposition))
            modes, fields = sequence_after(modes, fields)
        return fields

    def response() -> Array:
        """Green's function with the sign of -phi, divided by the CIC windows of paint and read."""
        return _greens_function(config, dtype, factor) * fourier.cic_window(config.mesh_shape, config, dtype, power=-2)

    return [filtered_block(mesh, response, decomposition)]


def padded_force(config: Config, halo: int, *meshes: Array) -> Array:
    """Force on a local block with its halo; a potential takes one halo exchange."""
    if config.gradient == "spectral":
        return jnp.stack([pad_block(field, halo + 1, config.decomposition) for field in meshes], axis=-1)
    (potential,) = meshes
    padded = pad_block(potential, halo + 1 + WIDTH, config.decomposition)
    return gradient(padded, config.cell_size, block_geometry(config, halo).periodic)


def _greens_function(config: Config, dtype: Any, factor: Table | None) -> Array:
    """Filtered Green's function for the gradient in use, from painted particles to the potential."""
    shape, lattice = config.mesh_shape, config.particle_shape
    window = fourier.lattice_window(shape, lattice, config, dtype)
    if factor is not None:
        window = window * potential_factor.on_modes(factor, config)
    if config.gradient == "spectral":
        inverse = fourier.inverse_laplacian(shape, config, dtype)
    else:
        inverse = fourier.inverse_force_laplacian(shape, lattice, config, dtype)
    return window * inverse / config.particles_per_cell
