"""The light cone of an observer in the box, as HEALPix maps of mass shells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._checks import check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.order import barrier
from pmwd_dist._jax.select import batch_any
from pmwd_dist.config import Config
from pmwd_dist.observe import shells
from pmwd_dist.observe.crossing import LightCone, Path, crosses, crossing
from pmwd_dist.observe.deposit import corners, deposit, split
from pmwd_dist.observe.healpix import interpolation, nearest_pixel, pixel_count
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.paint import max_displacement_block

Assignment = Literal["bilinear", "nearest"]
_BLOCKS = 4  # largest number of blocks per axis of the local lattice: shells are thinner than boxes


@dataclass(frozen=True, init=False)
class SphericalLightCone(shells.ShellLightCone):
    """HEALPix maps of mass shells on the past light cone, for `nbody(..., accumulate=...)`.

    The box is repeated around the observer. A particle is assigned to pixels by its position at the moment when the
    light cone passes it, which is solved for within each step. The accumulated masses, in units of a particle's, have
    shape (shells, 12 nside^2), by pixel in RING order, and are divided over devices along the pixels.

    Args:
      config: configuration of the simulation, which ends at a = 1 or before.
      edges: edges of the shells in comoving distance, ascending [Mpc/h].
      nside: pixels along the side of a HEALPix base pixel; any number.
      observer: position of the observer in the box [Mpc/h]; default: the centre.
      assignment: assignment of a mass to pixels: "bilinear" for four, with derivatives with respect to the direction,
        or "nearest".
      shell_assignment: assignment of a mass to shells by its distance: "nearest" for one shell, or "linear" for two,
        with derivatives with respect to the distance (`Shells`).

    Raises:
      ValueError: an argument is out of its range.

    Examples:
      >>> cone = pmd.observe.SphericalLightCone(config, edges=[0.0, 150.0, 300.0], nside=128)
      >>> mass = pmd.nbody(particles, cosmo, config, accumulate=cone).accumulated
    """

    dimensions = 3
    nside: int
    observer: tuple[float, ...]
    assignment: Assignment

    def __init__(
        self,
        config: Config,
        edges: Sequence[float],
        nside: int,
        *,
        observer: Sequence[float] | None = None,
        assignment: Assignment = "bilinear",
        shell_assignment: shells.Assignment = "nearest",
    ):
        super().__init__(config, edges, shell_assignment, assignment=assignment)
        nside = whole_number(nside, "nside", least=1)
        size = config.decomposition.size
        if pixel_count(nside) % size:
            constraint = f"has {pixel_count(nside)} pixels, which {size} devices do not divide"
            raise ArgumentError("nside", nside, constraint, f"use a multiple of {size // math.gcd(size, 12)}")
        check_choice(assignment, "assignment", get_args(Assignment))
        centre = [length / 2 for length in config.box_size] if observer is None else observer
        object.__setattr__(self, "nside", nside)
        object.__setattr__(self, "observer", shells.checked_observer(centre, config.box_size))
        low, high = _range_of_images(self)
        shells.check_images(math.prod(b - a + 1 for a, b in zip(low, high, strict=True)), config)

    @property
    def spec(self) -> P:
        """Division of the maps over devices, along the pixels."""
        return P(None, self.config.decomposition.names or None)

    def _masses(self, path: Path, light: LightCone) -> Array:
        return _maps(path, light, cone=self)

    def overdensity(self, mass: Float[Array, "shells pixels"]) -> Float[Array, "shells pixels"]:
        """Density of the shells in units of the mean, minus one."""
        volume = 4 * math.pi * self.shells.volumes / pixel_count(self.nside)
        mean = volume * math.prod(self.config.particle_shape) / math.prod(self.config.box_size)
        return mass / jnp.asarray(mean, mass.dtype)[:, None] - 1


class Blocks(NamedTuple):
    """The local lattice in blocks, for a step.

    Args:
      path: displacements during the step, with a leading axis of blocks.
      first: first site of each block in the whole lattice, shape (blocks, 3).
      spacing: spacing of the sites [Mpc/h].
      wanted: whether light may pass a block in an image of the box, shape (blocks, images).
      lost: whether displacements are so large that the images may miss some particles.
    """

    path: Path
    first: Array
    spacing: Array
    wanted: Array
    lost: Array


def _range_of_images(cone: Any) -> tuple[list[int], list[int]]:
    """First and last repetition of the box along each axis with particles that may be in a shell."""
    reach = cone.edges[-1] + shells.MARGIN
    pairs = list(zip(cone.observer, cone.config.box_size, strict=True))
    return [math.floor((o - reach) / L) for o, L in pairs], [math.floor((o + reach) / L) for o, L in pairs]


def images_of(cone: Any) -> np.ndarray:
    """Corners, relative to the observer, of all boxes with particles that may be in a shell, of a cone with edges."""
    ranges = [range(a, b + 1) for a, b in zip(*_range_of_images(cone), strict=True)]
    box, margin = np.asarray(cone.config.box_size), math.sqrt(3) * shells.MARGIN
    low = np.array(list(itertools.product(*ranges))) * box - np.asarray(cone.observer)
    nearest, farthest = _distances_of_boxes(low, low + box, np)
    return low[(nearest <= cone.edges[-1] + margin) & (farthest >= cone.edges[0] - margin)]


def _distances_of_boxes(low: Any, high: Any, xp: Any) -> tuple[Any, Any]:
    """Distances of the nearest and of the farthest points of boxes."""
    nearest = xp.maximum(xp.maximum(low, -high), 0)
    return xp.sqrt((nearest**2).sum(-1)), xp.sqrt((xp.maximum(abs(low), abs(high)) ** 2).sum(-1))


def blocks_of(path: Path, light: LightCone, images: Array, cone: Any) -> Blocks:
    """The local lattice in blocks, with their images between the edges of a cone that light passes in a step."""
    config, dtype = cone.config, path.start.dtype
    shape: Any = path.start.shape[:3]
    parts: Any = tuple(max(p for p in range(1, _BLOCKS + 1) if n % p == 0) for n in shape)
    spacing = jnp.asarray([L / n for L, n in zip(config.box_size, config.particle_shape, strict=True)], dtype)
    groups = config.decomposition.axis_groups
    first = [jax.lax.axis_index(g) * n if p > 1 else 0 for (g, p), n in zip(groups, shape[:2], strict=True)]
    sites = jnp.asarray(corners(shape, parts)) + jnp.stack([jnp.asarray(i) for i in (*first, 0)])[None]
    corner = sites.astype(dtype) * spacing[None]
    blocks = Path(*(split(x, parts) for x in path))
    reach = jnp.max(jnp.stack([jax.vmap(max_abs)(x) for x in blocks]), axis=0)

    low = corner[:, None] + images[None] - reach[:, None, None]
    block = jnp.asarray(blocks.start.shape[1:4], dtype) * spacing
    nearest, farthest = _distances_of_boxes(low, low + (block[None, None] + 2 * reach[:, None, None]), jnp)
    inner, outer = jnp.maximum(light.ends[1], cone.edges[0]), jnp.minimum(light.ends[0], cone.edges[-1])
    # The comparison is true for NaN: particles that are not finite must show in the maps.
    wanted = batch_any(~((nearest > outer) | (farthest < inner) | (inner > outer)))
    farthest_moved = jnp.max(jnp.stack([max_displacement_block(x, config) for x in path])) * min(config.cell_size)
    return Blocks(blocks, sites, spacing, wanted, farthest_moved > shells.MARGIN)


def passing(path: Path, corner: Array, light: LightCone, spacing: Array) -> tuple[Array, Array, Array]:
    """Sites of a block with a corner relative to the observer, whether light passes their particles, and when.

    The last are fractions of the step, see `crossing`.
    """
    dtype = path.start.dtype
    axes = [jnp.arange(n).astype(dtype) * spacing[i] for i, n in enumerate(path.start.shape[:3])]
    sites = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), -1) + corner[None, None, None]
    sites = jax.lax.stop_gradient(sites)

    # Both ends by the same instructions: the end of a step has the bits of the next one's start.
    ends = sites[None] + jax.lax.stop_gradient(jnp.stack([path.start, path.end]))
    ends = barrier(jnp.sqrt(jnp.sum(ends**2, axis=-1)))
    passed, guess = crosses(ends[0], ends[1], light)
    return sites, passed, crossing(distance_at, (sites, path, passed.astype(dtype)), passed, guess, light)


def _maps(path: Path, light: LightCone, *, cone: SphericalLightCone) -> Array:
    """The local part of the maps."""
    dtype, names, devices = path.start.dtype, cone.config.decomposition.names, cone.config.decomposition.size
    images = jnp.asarray(images_of(cone), dtype)
    blocks, first, spacing, wanted, lost = blocks_of(path, light, images, cone)
    corner = first.astype(dtype) * spacing[None]

    count, share = len(cone.edges) - 1, pixel_count(cone.nside) // devices
    passes = _passes(cone, path.start.size)
    width = share // passes

    def one(turn: Array) -> Array:
        piece = partial(_piece, cone=cone, layout=(share, passes))
        shared = light, jnp.asarray(turn, dtype), spacing
        size = count * devices * width
        maps = deposit(piece, (blocks, corner), images, shared, wanted, size).reshape(count, devices, width)
        return jax.lax.psum_scatter(maps, names, scatter_dimension=1) if names else maps[:, 0]

    maps = one(jnp.asarray(0)) if passes == 1 else jnp.moveaxis(jax.lax.map(one, jnp.arange(passes)), 0, 1)
    # Mass of boxes beyond the images would be lost.
    return jnp.where(lost, jnp.nan, maps.reshape(count, share))


def _passes(cone: SphericalLightCone, values: int) -> int:
    """Number of passes over the maps, such that one takes no more memory than the particles or the local maps."""
    size, share = pixel_count(cone.nside), pixel_count(cone.nside) // cone.config.decomposition.size
    count = len(cone.edges) - 1
    most = min(max(count * share, values), 2**31 - 1)
    return next(n for n in range(1, share + 1) if share % n == 0 and count * size <= most * n)


def _piece(
    block: tuple[Path, Array],
    image: Array,
    shared: tuple[LightCone, Array, Array],
    *,
    cone: SphericalLightCone,
    layout: tuple[int, int],
) -> tuple[Array, Array]:
    """Indices in the maps and masses, for one pass, of the particles of a block that the light cone passes."""
    (path, corner), (light, turn, spacing) = block, shared
    dtype = path.start.dtype
    sites, passed, s = passing(path, corner + image, light, spacing)
    where = sites, path, passed.astype(dtype)
    index, total_share = cone.shells.index_and_share(distance_at(where, s))
    seen = (passed & (total_share > 0))[..., None]
    direction = jnp.where(seen, sites + path.at(s[..., None]), 1)
    if cone.assignment == "nearest":
        pixels, mass = nearest_pixel(cone.nside, direction)[..., None], jnp.ones_like(seen, dtype)
    else:
        pixels, mass = interpolation(cone.nside, direction)
    pixels_per_device, passes = layout
    width = pixels_per_device // passes
    device, within = pixels // pixels_per_device, pixels % pixels_per_device
    mine = seen & (within // width == turn.astype(jnp.int32))
    size = (len(cone.edges) - 1) * pixel_count(cone.nside) // passes
    indices, masses = [], []
    for shell, part in _shares(index, total_share, cone):
        place = (shell[..., None] * (pixel_count(cone.nside) // pixels_per_device) + device) * width + within % width
        indices.append(jnp.where(mine, place, size))
        masses.append(jnp.where(mine, part[..., None] * mass, 0))
    return jnp.concatenate(indices, -1), jnp.concatenate(masses, -1)


def distance_at(where: tuple[Array, Path, Array], s: Array) -> Array:
    """Distance of particles at a fraction of a step [Mpc/h]; 1 for particles that are not passed, for derivatives."""
    sites, path, passed = where
    squared = jnp.sum((sites + path.at(s[..., None])) ** 2, axis=-1)
    return jnp.sqrt(jnp.where(passed > 0, squared, 1))


def _shares(index: Array, mass: Array, cone: SphericalLightCone) -> list[tuple[Array, Array]]:
    """Shells with a share of a mass, and the shares."""
    if cone.shell_assignment == "nearest":
        return [(index.astype(jnp.int32), mass)]
    below = jax.lax.stop_gradient(jnp.floor(index))
    shell, above = below.astype(jnp.int32), index - below
    return [(shell, mass * (1 - above)), (jnp.minimum(shell + 1, len(cone.edges) - 2), mass * above)]
