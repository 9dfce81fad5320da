"""The light cone of an observer in the box, as HEALPix maps of mass shells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._checks import check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.order import stored
from pmwd_dist._jax.select import batch_max, switch
from pmwd_dist.config import Config
from pmwd_dist.observe import shells
from pmwd_dist.observe.crossing import LightCone, Path
from pmwd_dist.observe.healpix import nearest_pixel, neighbours, pixel_count
from pmwd_dist.observe.passage import blocks_of, distance_at, images_of, in_blocks, passing, product, summed
from pmwd_dist.parallel.inputs import whole_number

Assignment = Literal["bilinear", "nearest"]


@dataclass(frozen=True, init=False)
class SphericalLightCone(shells.ShellLightCone):
    """HEALPix maps of mass shells on the past light cone, for `nbody(..., accumulate=...)`.

    The box is repeated around the observer by shifts of its sides. With a seed, each repetition along the line of sight
    has one of the 48 symmetries of a cube and a place of the observer of its own: structures don't recur behind each
    other, and end between these shells. A particle is assigned to pixels by its position at the moment when the
    light cone passes it, which is solved for within each step. The accumulated masses, in units of a particle's, have
    shape (shells, 12 nside^2), by pixel in RING order, and are divided over devices along the pixels.

    Args:
      config: configuration of the simulation; steps after a = 1 add nothing.
      edges: edges of the shells in comoving distance, ascending [Mpc/h].
      nside: pixels along the side of a HEALPix base pixel; any number.
      observer: position of the observer in the box [Mpc/h]; default: the centre.
      assignment: assignment of a mass to pixels: "bilinear" for four, with derivatives with respect to the direction,
        or "nearest".
      shell_assignment: assignment of a mass to shells by its distance: "nearest" for one shell, or "linear" for two,
        with derivatives with respect to the distance (`Shells`).
      seed: seed of the symmetries and places, from the second repetition on; default: none, all as in the first one.

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
    seed: int | None

    def __init__(
        self,
        config: Config,
        edges: Sequence[float],
        nside: int,
        *,
        observer: Sequence[float] | None = None,
        assignment: Assignment = "bilinear",
        shell_assignment: shells.Assignment = "nearest",
        seed: int | None = None,
    ):
        super().__init__(config, edges, shell_assignment, assignment=assignment)
        nside = whole_number(nside, "nside", least=1, most=1 << 13)
        size = config.decomposition.size
        if pixel_count(nside) % size:
            constraint = f"has {pixel_count(nside)} pixels, which {size} devices do not divide"
            raise ArgumentError("nside", nside, constraint, f"use a multiple of {size // math.gcd(size, 12)}")
        check_choice(assignment, "assignment", get_args(Assignment))
        object.__setattr__(self, "nside", nside)
        object.__setattr__(self, "observer", shells.checked_observer(observer, config.box_size))
        object.__setattr__(self, "seed", None if seed is None else whole_number(seed, "seed"))
        _images(self)  # not too many

    @property
    def spec(self) -> P:
        """Division of the maps over devices, along the pixels."""
        return P(None, self.config.decomposition.names or None)

    def _masses(self, path: Path, light: LightCone) -> Array:
        share = pixel_count(self.nside) // self.config.decomposition.size
        in_shells = ~((light.ends[0] <= self.edges[0]) | (light.ends[1] >= self.edges[-1]))  # true for NaN

        def empty(path: Path, light: LightCone) -> Array:
            del light
            return jnp.zeros((len(self.edges) - 1, share), path.start.dtype)

        index = batch_max(in_shells.astype(path.start.dtype)).astype(jnp.int32)
        return switch(index, [empty, partial(_maps, cone=self)], in_blocks(path), light)

    def overdensity(self, mass: Float[Array, "shells pixels"]) -> Float[Array, "shells pixels"]:
        """Density of the shells in units of the mean, minus one."""
        volume = 4 * math.pi * self.shells.volumes / pixel_count(self.nside)
        mean = volume * math.prod(self.config.particle_shape) / math.prod(self.config.box_size)
        return mass / jnp.asarray(mean, mass.dtype)[:, None] - 1


def _images(cone: SphericalLightCone) -> np.ndarray:
    """Repetitions of the box, one a row: corner, range of distances, first and last shell, and symmetry."""
    edges, box = np.asarray(cone.edges), cone.config.box_size
    bounds = [edges[0], *cone.shells.nodes, edges[-1]]  # shells have shares between every other one
    number = np.floor((edges[1:] + edges[:-1]) / (2 * min(box))).astype(int) * (cone.seed is not None)
    rng, rows = np.random.default_rng(cone.seed), list[np.ndarray]()
    for i in range(number[-1] + 1):
        observer, symmetry = cone.observer, np.eye(3)
        if i > 0:
            observer, symmetry = rng.uniform(0, box).tolist(), rng.permutation(symmetry) * rng.choice([-1, 1], 3)
        if len(indices := np.flatnonzero(number == i)):
            span = bounds[indices[0]], bounds[indices[-1] + 2]
            corners = images_of(span, observer, cone.config)
            rest = np.array([*span, indices[0], indices[-1], *symmetry.ravel()])
            rows += [np.concatenate([corner, rest]) for corner in corners]
    shells.check_images(len(rows), cone.config)
    return np.array(rows)


def _maps(path: Path, light: LightCone, *, cone: SphericalLightCone) -> Array:
    """The local part of the maps."""
    dtype = path.start.dtype
    images = jnp.asarray(_images(cone), dtype)
    ranges = images[None, :, 3], images[None, :, 4]
    blocks = blocks_of(path, light, images[:, :3], cone.config, ranges)
    count, share = len(cone.edges) - 1, pixel_count(cone.nside) // cone.config.decomposition.size
    shared = light, blocks.sites
    maps = summed(partial(_piece, cone=cone), path, blocks, images, shared, cone.config, (count, share))
    # Mass of boxes beyond the images would be lost. A sum, whose cotangents need no memory.
    return maps + jnp.where(blocks.lost, jnp.nan, 0)


def _piece(
    path: Path, image: Array, shared: tuple[LightCone, Array], place: Any, *, cone: SphericalLightCone
) -> tuple[Array, Array]:
    """Indices in the maps and masses, for one pass, of the particles of a block that the light cone passes."""
    light, relative = shared
    dtype = path.start.dtype
    sites, passed, s = stored(passing(path, image[:3], light, relative))
    where = sites, path, passed.astype(dtype)
    index, total_share = cone.shells.index_and_share(distance_at(where, s))
    seen = passed & (total_share > 0)
    index, total_share, direction = stored((index, total_share, jnp.where(seen[None], sites + path.at(s[None]), 1)))
    if cone.seed is not None:
        symmetry = image[7:].reshape(3, 3, 1)
        direction = product(jnp.moveaxis(symmetry, 1, 0), direction[:, None])
    if cone.assignment == "nearest":
        pixels, mass = [nearest_pixel(cone.nside, jnp.moveaxis(direction, 0, -1))], [jnp.ones_like(s)]
    else:
        pixels, mass = neighbours(cone.nside, direction)
    indices, masses = [], []
    for shell, part in _shares(index, total_share, cone):
        in_map = seen
        if cone.seed is not None:  # the other shells have repetitions of their own
            in_map &= (shell >= image[5].astype(jnp.int32)) & (shell <= image[6].astype(jnp.int32))
        indices += [place(shell, jnp.where(in_map, pixel, -1)) for pixel in pixels]
        masses += [jnp.where(in_map, part * share, 0) for share in mass]
    return jnp.stack(indices), jnp.stack(masses)


def _shares(index: Array, mass: Array, cone: SphericalLightCone) -> list[tuple[Array, Array]]:
    """Shells with a share of a mass, and the shares."""
    if cone.shell_assignment == "nearest":
        return [(index.astype(jnp.int32), mass)]
    below = jax.lax.stop_gradient(jnp.floor(index))
    shell, above = below.astype(jnp.int32), index - below
    return [(shell, mass * (1 - above)), (jnp.minimum(shell + 1, len(cone.edges) - 2), mass * above)]
