"""The light cone of a distant observer, along an axis of the box, as mass planes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._checks import check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.ops import vary, varying_names
from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.select import batch_max, sum_where
from pmwd_dist.config import Config
from pmwd_dist.observe import shells
from pmwd_dist.observe.crossing import LightCone, Path, crosses, crossing
from pmwd_dist.ops import cic
from pmwd_dist.parallel.halo import reduce_block
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.paint import max_displacement_block, with_halo
from pmwd_dist.pm.particles import site_positions

# Axes of the box along the two axes of a plane. The line of sight is swapped with z, so that planes are divided over
# devices like the mesh.
ACROSS = {"x": (2, 1), "y": (0, 2), "z": (0, 1)}


@dataclass(frozen=True, init=False)
class FlatSkyLightCone(shells.ShellLightCone):
    """Mass planes on the past light cone of an observer who looks along an axis, for `nbody(..., accumulate=...)`.

    The box is repeated along the line of sight. A particle is painted at its position at the moment when the light cone
    passes it, which is solved for within each step. Across the line of sight, positions stay comoving and periodic. The
    accumulated masses, in units of a particle's, have shape (shells, nx, ny), (shells, nx, nz) along y or
    (shells, nz, ny) along x, and are divided over devices like the mesh. Each of the devices that share a line of sight
    temporarily holds the contributions of its particles to all pixels.

    Args:
      config: configuration of the simulation; steps after a = 1 add nothing.
      edges: edges of the shells in comoving distance, ascending [Mpc/h].
      pixels: pixels of a plane along its two axes; an int or two; default: the cells of the mesh.
      observer: position of the observer along the line of sight, in the box [Mpc/h].
      line_of_sight: axis "x", "y" or "z".
      shell_assignment: assignment of a mass to shells by its distance: "nearest" for one shell, or "linear" for two,
        with derivatives with respect to the distance (`Shells`).

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> cone = pmd.observe.FlatSkyLightCone(config, edges=[500.0, 750.0, 1000.0])
      >>> mass = pmd.nbody(particles, cosmo, config, accumulate=cone).accumulated
    """

    dimensions = 1
    pixels: tuple[int, int]
    observer: float
    line_of_sight: str

    def __init__(
        self,
        config: Config,
        edges: Sequence[float],
        *,
        pixels: int | Sequence[int] | None = None,
        observer: float = 0.0,
        line_of_sight: Literal["x", "y", "z"] = "z",
        shell_assignment: shells.Assignment = "nearest",
    ):
        super().__init__(config, edges, shell_assignment, line_of_sight=line_of_sight)
        check_choice(line_of_sight, "line_of_sight", tuple(ACROSS))
        given = [config.mesh_shape[i] for i in self.across] if pixels is None else pixels
        several = tuple(given) if isinstance(given, Sequence) else (given, given)
        if len(several) != 2:
            raise ArgumentError("pixels", pixels, "must be one number or two")
        nx, ny = (whole_number(n, "pixels", least=1, most=1 << 16) for n in several)
        for axis, parts in enumerate(config.decomposition.pdims):
            config.decomposition.check_axis((nx, ny, 1), axis, parts, "pixels")
        length = config.box_size[self.along : self.along + 1]
        object.__setattr__(self, "pixels", (nx, ny))
        object.__setattr__(self, "observer", shells.checked_observer([observer], length)[0])
        shells.check_images(len(_near_sides(self)), config)

    @property
    def spec(self) -> P:
        """Division of the planes over devices."""
        return self.config.decomposition.spectrum_spec

    def _masses(self, path: Path, light: LightCone) -> Array:
        return _planes(path, light, cone=self)

    @property
    def along(self) -> int:
        """Axis of the box along the line of sight."""
        return "xyz".index(self.line_of_sight)

    @property
    def across(self) -> tuple[int, int]:
        """Axes of the box along the two axes of a plane."""
        return ACROSS[self.line_of_sight]

    @property
    def sides(self) -> tuple[float, float]:
        """Sides of a plane [Mpc/h]."""
        i, j = self.across
        return self.config.box_size[i], self.config.box_size[j]

    def overdensity(self, mass: Float[Array, "shells nx ny"]) -> Float[Array, "shells nx ny"]:
        """Density of the shells in units of the mean, minus one."""
        depth = self.config.box_size[self.along]
        mean = math.prod(self.config.particle_shape) / math.prod(self.pixels) / depth * self.shells.volumes
        return mass / jnp.asarray(mean, mass.dtype)[:, None, None] - 1


def _near_sides(cone: FlatSkyLightCone) -> list[float]:
    """Distances from the observer to the near sides of all boxes with particles that may be in a shell."""
    length = cone.config.box_size[cone.along]
    first = math.floor((cone.edges[0] + cone.observer - shells.MARGIN) / length) - 1
    last = math.ceil((cone.edges[-1] + cone.observer + shells.MARGIN) / length)
    return [n * length - cone.observer for n in range(first, last + 1)]


def _planes(path: Path, light: LightCone, *, cone: FlatSkyLightCone) -> Array:
    """Planes of the local block."""
    config, dtype = cone.config, path.start.dtype
    reach = jnp.max(jnp.stack([max_displacement_block(x, config) for x in path]))
    near = jnp.asarray(_near_sides(cone), dtype)
    moved = jax.lax.stop_gradient(reach * min(config.cell_size))
    low, high = jnp.maximum(light.ends[1], cone.edges[0]), jnp.minimum(light.ends[0], cone.edges[-1])
    wanted = (near - moved <= high) & (near + config.box_size[cone.along] + moved >= low) & (low <= high)
    wanted = batch_max(wanted.astype(dtype)) > 0
    names = varying_names(path.start)
    light = LightCone(*(vary(x, names) for x in light))  # here, not in a branch: its cotangents are added up once

    def run(halo: int, wanted: Array, near: Array, *operands: Array) -> Array:
        geometry, pad = _geometry(cone, halo)

        def paint(near: Array, *operands: Array) -> list[Array]:
            return [_paint_image(near, *operands, cone=cone, geometry=geometry)]

        (planes,) = sum_where(wanted, paint, near, *operands)
        return _summed(planes, pad, cone)

    planes = with_halo(reach, config, run, wanted, near, *path, *light)
    # Mass of boxes beyond `near` would be lost. The comparison is false for NaN.
    return jnp.where(moved <= shells.MARGIN, planes, jnp.nan)


def _summed(planes: Array, pad: int, cone: FlatSkyLightCone) -> Array:
    """The local part of the planes, (shells, ...), from the planes of each device's particles with halos."""
    decomposition, along = cone.config.decomposition, cone.along
    parts = (*decomposition.pdims, 1)
    if any(parts[i] > 1 for i in cone.across):
        if parts[along] > 1:  # the axis of the shells is not divided
            planes = jnp.pad(planes, [(pad, pad) if i == along else (0, 0) for i in range(3)])
        planes = reduce_block(planes, pad, decomposition)
    if parts[along] > 1:
        names = decomposition.axis_groups[along][0]
        planes = jax.lax.psum_scatter(planes, names, scatter_dimension=2, tiled=True)
    return planes.transpose(along, *cone.across)


def _geometry(cone: FlatSkyLightCone, halo: int) -> tuple[cic.Geometry, int]:
    """Geometry of the local blocks, in which shells take the place of the line of sight, and their halo [pixels]."""
    config, parts = cone.config, (*cone.config.decomposition.pdims, 1)
    pad = math.ceil(halo * max(n / config.mesh_shape[i] for i, n in zip(cone.across, cone.pixels, strict=True))) + 1
    mesh, pads, scale = [len(cone.edges) - 1] * 3, [0] * 3, [1.0] * 3
    spacing = [(0, 1)] * 3
    for i, n, length in zip(cone.across, cone.pixels, cone.sides, strict=True):
        sites = config.particle_shape[i]
        divisor = math.gcd(n, sites)
        pads[i] = pad if parts[i] > 1 else 0
        mesh[i] = n // parts[i] + 2 * pads[i]
        spacing[i] = (n // divisor, sites // divisor)
        scale[i] = n / length
    periodic = tuple(width == 0 for width in pads)
    return cic.Geometry(tuple(mesh), tuple(spacing), tuple(pads), periodic, tuple(scale)), pad


def _paint_image(near: Array, *arrays: Array, cone: FlatSkyLightCone, geometry: cic.Geometry) -> Array:
    """Paint the particles of one repetition of the box that the light cone passes."""
    path, light, axis = Path(*arrays[:3]), LightCone(*arrays[3:]), cone.along
    dtype = path.start.dtype
    local = site_positions(cone.config, axis, path.start.shape[axis], dtype)
    sites = near + local.reshape([-1 if i == axis else 1 for i in range(3)])
    along = Path(*(x[..., axis] for x in path))
    passed, guess = crosses(sites + along.start, sites + along.end, light)
    # Stored in memory: XLA would repeat the solution for each component.
    s = barrier(crossing(_distance, (sites, along), passed, guess, light))
    index, share = cone.shells.index_and_share(_distance((sites, along), s))
    disp = jnp.where(jnp.arange(3).reshape(1, 1, 1, 3) == axis, index[..., None], path.at(s[..., None]))
    mass = jnp.where(passed, share, 0)
    return cic.paint(disp, mass[..., None, None], geometry)[..., 0]


def _distance(where: tuple[Array, Path], s: Array) -> Array:
    """Distance of particles at a fraction of a step [Mpc/h]."""
    sites, along = where
    return sites + along.at(s)
