"""The light cone of an observer far away, along z, as mass planes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.batching import batch_max
from pmwd_dist._jax.switch import switch
from pmwd_dist._jax.varying import vary, varying_names
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.observe import shells
from pmwd_dist.observe.crossing import LightCone, Path, crosses, crossing, light_cone_in_step, path
from pmwd_dist.ops import cic
from pmwd_dist.parallel.halo import reduce_block
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.evolution import Epoch
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.paint import max_displacement_block, with_halo


@dataclass(frozen=True, init=False)
class FlatSkyLightCone:
    """Mass planes on the past light cone of an observer who looks along z, for `nbody(..., accumulate=...)`.

    The box is repeated along z as often as it takes. A particle is painted where it is when the light cone passes it,
    a time that is solved for within each step; across the line of sight, positions stay comoving and periodic. What is
    accumulated has shape (shells, nx, ny): masses in units of a particle's, divided over devices like the mesh.

    Args:
      config: the simulation, which ends at a = 1 or before.
      edges: comoving distances between which the shells lie, ascending [Mpc/h].
      pixels: of a plane, along x and y; an int or two; default: the cells of the mesh.
      observer: position of the observer along z, in the box [Mpc/h].

    Raises:
      ValueError: an argument out of its range.
    """

    config: Config
    edges: tuple[float, ...]
    pixels: tuple[int, int]
    observer: float

    def __init__(
        self,
        config: Config,
        edges: Sequence[float],
        *,
        pixels: int | Sequence[int] | None = None,
        observer: float = 0.0,
    ):
        check_config(config)
        given = config.mesh_shape[:2] if pixels is None else pixels
        several = tuple(given) if isinstance(given, Sequence) else (given, given)
        if len(several) != 2:
            raise ArgumentError("pixels", pixels, "must be one number or two")
        nx, ny = (whole_number(n, "pixels", least=1) for n in several)
        for axis, parts in enumerate(config.decomposition.pdims):
            config.decomposition.check_axis((nx, ny, 1), axis, parts, "pixels")
        fields = {
            "config": config,
            "edges": shells.checked_edges(edges),
            "pixels": (nx, ny),
            "observer": shells.checked_observer([observer], config.box_size[2:])[0],
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        shells.check_images(len(_near_sides(self)), config)

    def check(self, cosmo: GrowthTable) -> None:
        """Raise ValueError if a shell lies beyond the time span of the simulation; not where this is traced."""
        shells.check_time_span(self.edges, cosmo, self.config)

    def __call__(self, before: Epoch, after: Epoch, table: GrowthTable) -> Float[Array, "shells nx ny"]:
        """Mass that the light cone passes in a step; all of a shell is NaN if the simulation does not span it."""
        light = light_cone_in_step(before.a, after.a, table)
        decomposition = self.config.decomposition
        run = decomposition.shard_map(
            partial(_planes, cone=self), (decomposition.spec, P()), decomposition.spectrum_spec
        )
        mass = run(path(before, after, light), light)
        covered = shells.covered(self.edges, table, self.config)
        return jnp.where(covered[:, None, None], mass, jnp.nan)

    @property
    def distances(self) -> np.ndarray:
        """Mean distance of each shell from the observer [Mpc/h]."""
        return shells.mean_distance(self.edges, 1)

    def overdensity(self, mass: Float[Array, "shells nx ny"]) -> Float[Array, "shells nx ny"]:
        """Density of the shells in units of the mean, less one."""
        thickness = np.diff(self.edges)
        mean = math.prod(self.config.particle_shape) / math.prod(self.pixels) / self.config.box_size[2] * thickness
        return mass / jnp.asarray(mean, mass.dtype)[:, None, None] - 1


def _near_sides(cone: FlatSkyLightCone) -> list[float]:
    """Distances from the observer to the near sides of all boxes of which particles may be in a shell."""
    length = cone.config.box_size[2]
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
    wanted = (near - moved <= high) & (near + config.box_size[2] + moved >= low) & (low <= high)
    wanted = batch_max(wanted.astype(dtype)).astype(jnp.int32)

    def run(halo: int, *operands: Array) -> Array:
        geometry, pad = _geometry(cone, halo)

        def add(planes: Array, image: tuple[Array, Array]) -> tuple[Array, None]:
            wanted, near = image
            paint = partial(_paint_image, cone=cone, geometry=geometry)

            def skip(*_: Array) -> Array:
                return vary(jnp.zeros(geometry.mesh, dtype), varying_names(planes))

            return planes + switch(wanted, [skip, paint], near, *operands[2:]), None

        start = vary(jnp.zeros(geometry.mesh, dtype), varying_names(operands[2]))
        planes, _ = jax.lax.scan(add, start, (operands[0], operands[1]))
        return jnp.moveaxis(reduce_block(planes, pad, config.decomposition), -1, 0)

    planes = with_halo(reach, config, run, wanted, near, *path, *light)
    return jnp.where(moved > shells.MARGIN, jnp.nan, planes)  # mass of boxes beyond `near` would be lost


def _geometry(cone: FlatSkyLightCone, halo: int) -> tuple[cic.Geometry, int]:
    """Geometry of the local blocks, whose third axis is that of the shells, and the width of their halo [pixels]."""
    config, parts = cone.config, cone.config.decomposition.pdims
    ratios = [n / m for n, m in zip(cone.pixels, config.mesh_shape[:2], strict=True)]
    pad = math.ceil(halo * max(ratios)) + 1
    pads = [pad if p > 1 else 0 for p in parts]
    (mx, my), (lx, ly) = cone.pixels, config.box_size[:2]
    px, py = (n // math.gcd(m, n) for m, n in zip(cone.pixels, config.particle_shape[:2], strict=True))
    return cic.Geometry(
        mesh=(mx // parts[0] + 2 * pads[0], my // parts[1] + 2 * pads[1], len(cone.edges) - 1),
        spacing=((mx * px // config.particle_shape[0], px), (my * py // config.particle_shape[1], py), (0, 1)),
        origin=(pads[0], pads[1], 0),
        periodic=(parts[0] == 1, parts[1] == 1, True),
        scale=(mx / lx, my / ly, 1.0),
    ), pad


def _paint_image(near: Array, *arrays: Array, cone: FlatSkyLightCone, geometry: cic.Geometry) -> Array:
    """Paint the particles of one repetition of the box that the light cone passes."""
    path, light = Path(*arrays[:3]), LightCone(*arrays[3:])
    config, dtype = cone.config, path.start.dtype
    n = config.particle_shape[2]
    sites = near + jnp.asarray(np.arange(n) * (config.box_size[2] / n), dtype)[None, None, :]
    along = Path(*(x[..., 2] for x in path))
    passed, guess = crosses(sites + along.start, sites + along.end, light)
    s = crossing(lambda s: sites + along.at(s), passed, guess, light)
    shell, inside = shells.shell_of(light.at(s), cone.edges)
    across = Path(*(x[..., :2] for x in path)).at(s[..., None])
    disp = jnp.concatenate([across, shell[..., None].astype(dtype)], axis=-1)
    mass = (passed & inside).astype(dtype)
    return cic.paint(disp, mass[..., None, None], geometry)[..., 0]
