"""Weak lensing as data: the convergence of sources behind a light cone, and the noise of their shapes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.infer.forward import CosmologicalModel, check_gravity, on_host
from pmwd_dist.infer.likelihoods import Likelihood, check_finite, checked_mask, masked
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.observe.lensing import convergence
from pmwd_dist.observe.sources import LightCone, Source, coverage_warning, lensing_weights
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.parallel.inputs import real
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.nbody import nbody
from pmwd_dist.pm.potential_factor import PotentialFactor
from pmwd_dist.pm.status import Status

_LEAST = 1e-30  # of densities and ellipticities


class Convergence(CosmologicalModel):
    """Maps of the weak-lensing convergence of sources behind a simulation's light cone (Born approximation).

    A forward model (noise, parameters) -> (maps, status). Maps have the shape (sources, px, py) on a flat sky and
    (sources, pixels) on a sphere, and are divided over devices. The log density is -inf at parameters for which the run
    does not span all shells.

    Args:
      config: configuration of the simulation; light leaves the farthest shell after a_start.
      cosmo: cosmology, for the parameters that are not sampled.
      cone: light cone of this config, with `shell_assignment="linear"`.
      sources: redshift or (redshifts, numbers per redshift) of each map.
      linear_power: linear P(k), as in `linear_modes`.
      normalise: whether to scale a table of P(k) to sigma8, as in `Simulation`.
      field, pixels, offsets: side of a flat field of view [degrees], number of rays along it, and offsets, as in
        `observe.convergence`.
      solver: solver, as in `nbody`.
      potential_factor: factor of the potential, as in `nbody`.

    Raises:
      ValueError: a light cone of another simulation, sources in front of all shells, or an argument out of its range.
    """

    cone: LightCone = eqx.field(static=True)
    sources: Sequence[Source]
    _: KW_ONLY
    field: float | None = eqx.field(static=True, default=None)
    pixels: int | None = eqx.field(static=True, default=None)
    offsets: Any = None
    solver: Any = eqx.field(static=True, default=None)
    potential_factor: PotentialFactor | None = None
    shape: tuple[int, ...] = eqx.field(static=True, init=False)

    def __post_init__(self):
        super().__post_init__()
        cone, sources = self.cone, self.sources
        _check_cone(cone, self.config)
        check_gravity(self.solver, self.potential_factor)
        if not isinstance(self.offsets, Tracer | None):
            check_number(self.offsets, "offsets", several=True, unit="Mpc/h", constant=True)
        self.field = on_host(self.field)
        cone.check(self.table)
        if not isinstance(sources, Sequence) or not sources:
            raise ArgumentError("sources", sources, "must hold the sources of each map", "for example sources=[0.5, 1]")
        for source in sources:
            lensing_weights(cone, self.table, source)
            if (text := coverage_warning(cone, self.table, source)) is not None:
                warnings.warn(text, stacklevel=5)  # equinox calls __init__
        self.sources = jax.tree.map(lambda z: jnp.asarray(z, float), tuple(sources))
        self.offsets = None if self.offsets is None else jnp.asarray(real(self.offsets, "offsets"))
        plane = cone.pixels if isinstance(cone, FlatSkyLightCone) else (pixel_count(cone.nside),)
        mass = jax.ShapeDtypeStruct((len(cone.edges) - 1, *plane), jnp.float32)
        maps = partial(Convergence._maps, self)  # the bound method would need the shape
        self.shape = jax.eval_shape(maps, mass, self.table).shape

    def __call__(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> tuple[Array, Status]:
        """The maps, and the status of the simulation."""
        modes, table = self.linear_modes(noise, parameters)
        options: Any = {"solver": self.solver, "potential_factor": self.potential_factor}
        solution = nbody(lpt(modes, table, self.config), table, self.config, accumulate=self.cone, **options)
        return self._maps(solution.accumulated, table), solution.status

    def _maps(self, mass: Array, table: GrowthTable) -> Array:
        view: Any = {"field": self.field, "pixels": self.pixels, "offsets": self.offsets}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # given once, for the cosmology of the model
            return jnp.stack([convergence(mass, table, self.cone, source=source, **view) for source in self.sources])

    @property
    def along(self) -> int | None:
        """Axis of the box along the line of sight, or None; the maps are sums along it."""
        return self.cone.along if isinstance(self.cone, FlatSkyLightCone) else None

    @property
    def layout(self) -> tuple[tuple[int, ...], NamedSharding]:
        """Shape of the maps, and their division over devices."""
        return self.shape, NamedSharding(self.config.decomposition.mesh, self.cone.spec)

    @property
    def pixel_area(self) -> float:
        """Area of a pixel [square arcminutes]."""
        if isinstance(self.cone, SphericalLightCone):
            return 4 * math.pi * (60 * math.degrees(1)) ** 2 / self.shape[-1]
        side: Any = self.field
        return (60 * side / self.shape[-1]) ** 2


def _check_cone(cone: LightCone, config: Config) -> None:
    """Raise ValueError unless this is a light cone of the simulation whose maps have derivatives."""
    if not isinstance(cone, LightCone):
        raise ArgumentError("cone", cone, "must be a FlatSkyLightCone or a SphericalLightCone")
    if cone.config != config:
        remedy = "make it with the config of the model"
        raise ArgumentError("cone", cone, "is of another simulation", remedy, show_value=False)
    if cone.shell_assignment != "linear":
        constraint = "has shells with edges, where the log density jumps, which its slopes do not show"
        raise ArgumentError("cone", cone, constraint, 'make it with shell_assignment="linear"', show_value=False)
    if isinstance(cone, SphericalLightCone) and cone.assignment != "bilinear":
        constraint = "has maps that jump where a mass passes from pixel to pixel, which slopes do not show"
        raise ArgumentError("cone", cone, constraint, 'make it with assignment="bilinear"', show_value=False)


class ShapeNoise(Likelihood):
    """Gaussian shape noise of maps of convergence, independent from pixel to pixel.

    Its variance is ellipticity^2 / (density * area of a pixel) (Kaiser & Squires 1993; van Waerbeke 2000).

    Args:
      maps: forward model.
      density: number of galaxies per square arcminute, one number or one for each source.
      ellipticity: standard deviation of a component of the intrinsic ellipticity.
      mask: 1 where there are data, in the shape of the maps or of one map; default: everywhere.

    Raises:
      ValueError: an argument out of its range, or a mask that hides everything.
    """

    quantity: ClassVar[str] = r"convergence $\kappa$"
    sigma: Float[Array, "sources ..."]
    mask: Array | None = eqx.field()
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, maps: Convergence, density: Any, *, ellipticity: float = 0.26, mask: Any = None):
        if not isinstance(maps, Convergence):
            raise ArgumentError("maps", maps, "must be a Convergence", show_value=False)
        check_number(density, "density", _LEAST, unit="per square arcminute", several=True, constant=True)
        check_number(ellipticity, "ellipticity", _LEAST, constant=True)
        density = np.asarray(density, float)
        if density.shape not in ((), (1,), maps.shape[:1]):
            constraint = f"must be a number, or one for each of {maps.shape[0]} maps"
            raise ArgumentError("density", density.tolist(), constraint)
        self.shape, self.mask = maps.shape, checked_mask(mask)
        if self.mask is not None and self.mask.shape not in (self.shape, self.shape[1:]):
            raise ArgumentError("mask.shape", self.mask.shape, f"must be {self.shape} or {self.shape[1:]}")
        sigma = ellipticity / np.sqrt(density * maps.pixel_area)
        sigma = np.broadcast_to(sigma, self.shape[:1]).reshape(-1, *(1,) * (len(self.shape) - 1))
        self.sigma = jnp.asarray(sigma, float)

    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the density of the data, up to a constant."""
        return -0.5 * jnp.sum(self.residual(data, field, parameters, config) ** 2)

    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """The maps with random noise, also behind the mask."""
        return field + self.sigma.astype(field.dtype) * jax.random.normal(key, field.shape, field.dtype)

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Data less the maps in units of the noise; 0 behind the mask."""
        return (masked(data, self.mask) - masked(field, self.mask)) / self.sigma.astype(field.dtype)

    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data are finite numbers where the mask shows them."""
        data = real(data, "data")
        if data.shape != self.shape:
            raise ArgumentError("data.shape", data.shape, f"must be {self.shape}", "one map for each source")
        check_finite(np.asarray(data), self.mask)
