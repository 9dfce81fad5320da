"""Weak lensing as data: convergence or shear of sources behind a light cone, and the noise of their shapes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.infer.cosmological import SimulatedModel
from pmwd_dist.infer.likelihoods import Likelihood, check_finite, checked_mask, masked
from pmwd_dist.infer.values import on_host
from pmwd_dist.observe.angular_power import angular_power
from pmwd_dist.observe.flat_sky import FlatSkyLightCone
from pmwd_dist.observe.healpix import pixel_count
from pmwd_dist.observe.lensing import convergence, kaiser_squires, shear
from pmwd_dist.observe.sources import LightCone, Source, coverage_warning, lensing_weights
from pmwd_dist.observe.sphere import SphericalLightCone
from pmwd_dist.parallel.inputs import check_unmasked, real
from pmwd_dist.pm.status import Status

_LEAST = 1e-30  # of densities and ellipticities
_APART = 1e-7  # between redshifts that are cut at 0, which must ascend


class Convergence(SimulatedModel):
    """Maps of the weak-lensing convergence of sources behind a simulation's light cone (Born approximation).

    A forward model (noise, parameters) -> (maps, status). Maps have the shape (sources, px, py) on a flat sky and
    (sources, pixels) on a sphere, and are divided over devices. The log density is -inf at parameters for which the run
    does not span all shells.

    Systematics are parameters where they have a prior: `delta_z_0`, `delta_z_1`, ... are added to the redshifts of a
    source, whose n(z) is cut at 0, and maps are multiplied by 1 + `m_0`, 1 + `m_1`, ... `A_IA` and `eta_IA` are the
    amplitude and the power of the intrinsic alignment of sources (z, n), as in `observe.lensing_weights`.

    Args:
      config: configuration of the simulation; light leaves the farthest shell after a_start.
      cosmo: cosmology, for the parameters that are not sampled.
      cone: light cone of this config, with `shell_assignment="linear"`.
      sources: redshift or (redshifts, numbers per redshift) of each map, or of the only one.
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
    sources: Any
    _: KW_ONLY
    field: float | None = eqx.field(static=True, default=None)
    pixels: int | None = eqx.field(static=True, default=None)
    offsets: Any = None
    shape: tuple[int, ...] = eqx.field(static=True, init=False)

    observable: ClassVar[Callable[..., Array]] = staticmethod(convergence)
    quantity: ClassVar[str] = r"convergence $\kappa$"

    def __post_init__(self):
        super().__post_init__()
        cone, sources = self.cone, self.sources
        _check_cone(cone, self.config)
        if not isinstance(self.offsets, Tracer | None):
            check_number(self.offsets, "offsets", several=True, unit="Mpc/h", constant=True)
        self.field = on_host(self.field)
        cone.check(self.table, self.config)
        if isinstance(sources, str) or (isinstance(sources, Sequence) and not sources):
            raise ArgumentError("sources", sources, "must hold the sources of each map", "for example sources=[0.5, 1]")
        each: Any = [sources] if not isinstance(sources, Sequence) or _are_columns(sources) else sources
        for source in each:
            lensing_weights(cone, self.table, source)
            if (text := coverage_warning(cone, self.table, source)) is not None:
                warnings.warn(text, stacklevel=5)  # equinox calls __init__
        self.sources = jax.tree.map(lambda z: jnp.asarray(z, float), tuple(each))
        self.offsets = None if self.offsets is None else jnp.asarray(real(self.offsets, "offsets"))
        plane = cone.pixels if isinstance(cone, FlatSkyLightCone) else (pixel_count(cone.nside),)
        mass = jax.ShapeDtypeStruct((len(cone.edges) - 1, *plane), jnp.float32)
        maps = partial(Convergence._maps, self)  # the bound method would need the shape
        self.shape = jax.eval_shape(maps, mass, self.table, {}).shape

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the parameters that it uses where they have a prior."""
        several = [f"{name}_{i}" for name in ("delta_z", "m") for i in range(len(self.sources))]
        # A trace finds what is wrong with others: eta_IA without A_IA, or A_IA of sources at one redshift.
        aligned = ["A_IA"] if all(isinstance(source, tuple) for source in self.sources) else []
        return (*super().optional, *several, *aligned)

    def __call__(self, noise: Array, parameters: Mapping[str, ArrayLike]) -> tuple[Array, Status]:
        """The maps, and the status of the simulation."""
        modes, table = self.linear_modes(noise, parameters)
        solution = self._nbody(modes, table, self.cone)
        return self._maps(solution.accumulated, table, parameters), solution.status

    def _maps(self, mass: Array, table: GrowthTable, parameters: Mapping[str, ArrayLike]) -> Array:
        view: Any = {"field": self.field, "pixels": self.pixels, "offsets": self.offsets}
        if "A_IA" in parameters:
            view["alignment"] = parameters["A_IA"], parameters.get("eta_IA", 0.0)
        sources = [_shifted(source, parameters.get(f"delta_z_{i}")) for i, source in enumerate(self.sources)]
        with warnings.catch_warnings(action="ignore"):  # given once, for the cosmology of the model
            maps = type(self).observable(mass, table, self.cone, source=sources, **view)
        factors = [1 + jnp.asarray(parameters.get(f"m_{i}", 0.0), maps.dtype) for i in range(len(sources))]
        return maps * jnp.stack(factors).reshape(-1, *(1,) * (maps.ndim - 1))

    @property
    def along(self) -> int | None:
        """Axis of the box along the line of sight, or None; the maps are sums along it."""
        return self.cone.along if isinstance(self.cone, FlatSkyLightCone) else None

    @property
    def layout(self) -> tuple[tuple[int, ...], NamedSharding]:
        """Shape of the maps, and their division over devices."""
        spec = P(*(None,) * (len(self.shape) - len(self.plane) - 1), *self.cone.spec)
        return self.shape, NamedSharding(self.config.decomposition.mesh, spec)

    @property
    def plane(self) -> tuple[int, ...]:
        """Shape of the pixels of one map."""
        return self.shape[-1:] if isinstance(self.cone, SphericalLightCone) else self.shape[-2:]

    @property
    def pixel_area(self) -> float:
        """Area of a pixel [square arcminutes]."""
        if isinstance(self.cone, SphericalLightCone):
            return 4 * math.pi * (60 * math.degrees(1)) ** 2 / self.shape[-1]
        side: Any = self.field
        return (60 * side / self.shape[-1]) ** 2


class Shear(Convergence):
    """Maps of the shear (gamma1, gamma2) of the sources, shape (sources, 2, px, py) or (sources, 2, pixels).

    The shear of each plane of a light cone has E modes alone. Arguments, parameters and errors are those of
    `Convergence`.
    """

    observable: ClassVar[Callable[..., Array]] = staticmethod(shear)
    quantity: ClassVar[str] = r"convergence $\kappa$ of E modes"


def _are_columns(sources: Sequence[Any]) -> bool:
    return isinstance(sources, tuple) and all(not isinstance(x, tuple) and np.ndim(x) == 1 for x in sources)


def _shifted(source: Source, delta_z: ArrayLike | None) -> Source:
    """Sources at larger redshifts, by delta_z, none of them at negative ones; None: by nothing."""
    if delta_z is None:
        return source
    if not isinstance(source, tuple):
        return source + jnp.asarray(delta_z)
    z, number = map(jnp.asarray, source)
    z = z + delta_z
    cut = jnp.maximum(z, _APART * np.arange(z.size, dtype=z.dtype))
    return cut, jnp.where(cut > z, jnp.interp(cut, z, number), number)


def _of_sources(density: Any, maps: Convergence) -> np.ndarray:
    """Density of the galaxies of each source, in a shape that broadcasts to the data."""
    check_number(density, "density", _LEAST, unit="per square arcminute", several=True, constant=True)
    density = np.asarray(density, float)
    if density.shape not in ((), (1,), maps.shape[:1]):
        constraint = f"must be a number, or one for each of {maps.shape[0]} maps"
        raise ArgumentError("density", density.tolist(), constraint)
    return np.broadcast_to(density, maps.shape[:1]).reshape(-1, *(1,) * (len(maps.shape) - 1))


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
    """Gaussian shape noise of maps of convergence or shear, independent from pixel to pixel.

    Its variance is ellipticity^2 over the number of galaxies in a pixel (Kaiser & Squires 1993; van Waerbeke 2000).

    Args:
      maps: forward model.
      density: number of galaxies per square arcminute, one number or one for each source.
      counts: number of galaxies in each pixel, in place of the density, in the shape (sources, px, py) or
        (sources, pixels), or in the shape of one map; there are no data where it is 0.
      ellipticity: standard deviation of a component of the intrinsic ellipticity.
      mask: 1 where there are data, in the shape of the counts or of the data; default: everywhere.

    Raises:
      ValueError: an argument out of its range, both or none of density and counts, or a mask that hides everything.
    """

    quantity: str = eqx.field(static=True)
    sigma: Float[Array, "sources ..."]
    mask: Array | None = eqx.field()
    shape: tuple[int, ...] = eqx.field(static=True)
    field: float | None = eqx.field(static=True)

    def __init__(
        self, maps: Convergence, density: Any = None, *, counts: Any = None, ellipticity: float = 0.26, mask: Any = None
    ):
        if not isinstance(maps, Convergence):
            raise ArgumentError("maps", maps, "must be a Convergence or a Shear", show_value=False)
        check_number(ellipticity, "ellipticity", _LEAST, constant=True)
        if (density is None) == (counts is None):
            raise ArgumentError("density", density, "must be given, or counts", "pass one of them")
        self.shape, self.quantity, self.field = maps.shape, maps.quantity, maps.field
        self.mask = checked_mask(self._spread(mask, "mask", maps))
        if counts is None:
            number = _of_sources(density, maps) * maps.pixel_area
        else:
            check_number(counts, "counts", 0, several=True, constant=True)
            number = np.broadcast_to(self._spread(counts, "counts", maps), self.shape)
            shown = (number > 0) & (True if self.mask is None else np.asarray(self.mask) > 0)
            if not shown.any():
                raise ArgumentError("counts", counts, "are 0 in all pixels that the mask shows", show_value=False)
            self.mask, number = checked_mask(shown), np.where(number > 0, number, 1)
        self.sigma = jnp.asarray(ellipticity / np.sqrt(number), float)

    def unusual(self, values: np.ndarray, seen: np.ndarray) -> str:
        """A phrase after "data" if values are above 1; else empty."""
        del seen
        largest = np.abs(values).max(initial=0)
        return f"reach {largest:.3g}; a convergence or shear is below 1, noise included" if largest > 1 else ""

    def _spread(self, values: Any, name: str, maps: Convergence) -> Any:
        """A mask or a map of each source, or of all, in a shape that broadcasts to the data."""
        if values is None:
            return None
        check_unmasked(values, name)
        values, several = np.asarray(values), (self.shape[0], *maps.plane)
        shapes = [maps.plane, several]
        if name == "mask" and self.shape != several:  # of each component of the shear, which have the same counts
            shapes.append(self.shape)
        if values.shape not in shapes:
            raise ArgumentError(f"{name}.shape", values.shape, f"must be {' or '.join(map(str, shapes))}")
        return values[:, None] if values.shape == several != self.shape else values

    def logdensity(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Logarithm of the density of the data, up to a constant."""
        return -0.5 * jnp.sum(self.residual(data, field, parameters, config) ** 2)

    def draw(self, key: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """The maps with random noise, also behind the mask."""
        return field + self.sigma.astype(field.dtype) * jax.random.normal(key, field.shape, field.dtype)

    def residual(self, data: Array, field: Array, parameters: Mapping[str, ArrayLike], config: Config) -> Array:
        """Data less the maps in units of the noise; 0 behind the mask."""
        return (masked(data, self.mask) - masked(field, self.mask)) / self.sigma.astype(field.dtype)

    def statistics(self, residual: Array) -> dict[str, Array]:
        """Power of residuals, or of their E and B modes, of large and small scales."""
        maps = {"residuals": residual}
        if residual.ndim > (2 if self.field is None else 3):
            modes = jax.lax.map(kaiser_squires, residual)
            maps = {"E modes of residuals": modes[:, 0], "B modes of residuals": modes[:, 1]}
        return {
            f"power of {name} at {scales}": power
            for name, values in maps.items()
            for scales, power in _powers(values, self.field).items()
        }

    def check(self, data: Any, config: Config) -> None:
        """Raise ValueError unless data are finite numbers where the mask shows them."""
        data = real(data, "data")
        if data.shape != self.shape:
            raise ArgumentError("data.shape", data.shape, f"must be {self.shape}", "one map for each source")
        check_finite(np.asarray(data), self.mask, self.sigma)


def _powers(maps: Array, side: float | None) -> dict[str, Array]:
    """Mean C_l of maps below and above half of the largest multipole, in units of the noise of a pixel."""
    pixels = maps.shape[-1]
    half = math.sqrt(pixels / 12) if side is None else 90 * pixels / side
    area = 4 * math.pi / pixels if side is None else (math.radians(side) / pixels) ** 2
    spectra = jax.lax.map(partial(angular_power, side=side), maps)
    ell, modes = spectra.ell[0], spectra.modes[0]
    means = dict[str, Array]()
    for name, some in {f"l < {half:.0f}": ell < half, f"l > {half:.0f}": ell >= half}.items():
        count = jnp.where(some, modes, 0)
        products = jnp.where(count > 0, jnp.mean(spectra.power, axis=0) * count, 0)
        means[name] = jnp.sum(products) / jnp.sum(count) / area
    return means
