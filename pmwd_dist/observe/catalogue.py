"""Catalogues of galaxies: particles of a simulation, drawn with their weights."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Real

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, parameters_of
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.redshift_space import LineOfSight, redshift_space
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import check_on_host
from pmwd_dist.pm import inputs
from pmwd_dist.pm.noise import check_key
from pmwd_dist.pm.particles import Particles

MOST_GALAXIES = 1e9
_SAID, MOST_NEGATIVE = 0.005, 0.02  # negative weights over the sum of all that are warned of, and refused


@dataclass(frozen=True, repr=False, eq=False)
class Catalogue:
    """Objects as columns of numbers.

    Args:
      columns: arrays with a row for each object, by name.
      units: units of the columns, by name.
      about: facts about all of them, such as the box and the cosmology.
    """

    columns: dict[str, np.ndarray]
    units: dict[str, str]
    about: dict[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} objects: {', '.join(self.columns)}"

    def save(self, path: str | Path) -> None:
        """Write an HDF5 file with a data set for each column, whose attribute `unit` is its unit. Collective.

        Raises:
          OSError: the file can't be written; it is absent then.
        """
        distributed.on_main(self.write, Path(path))

    def write(self, path: Path) -> None:
        """`save` on this process alone."""
        with atomic_write(path) as aside, h5py.File(aside, "w", locking=False) as file:
            file.attrs.update(self.about)
            for name, values in self.columns.items():
                file.create_dataset(name, data=values).attrs["unit"] = self.units[name]


@on_auto_axes
def galaxy_catalogue(
    particles: Particles,
    cosmo: Cosmology | GrowthTable,
    config: Config,
    *,
    key: Array,
    number_density: float,
    weights: Real[Array, "px py pz"] | None = None,
    line_of_sight: LineOfSight = "z",
    a: float | None = None,
) -> Catalogue:
    """Galaxies at particles of a simulation: Poisson numbers whose means are proportional to their weights. Collective.

    Particles with a negative weight have no galaxies, and the others as many less as keeps the mean density. The result
    does not depend on the division over devices; every process has all galaxies.

    Args:
      particles: particles at scale factor a.
      cosmo: cosmology, or its `growth_table`.
      config: configuration of the simulation.
      key: key of the random numbers.
      number_density: mean number density of the galaxies [(h/Mpc)^3].
      weights: weights of the particles, of any mean above 0, such as `bias_weights`; default: 1.
      line_of_sight: direction of the redshifts, "x", "y", "z" or a vector.
      a: scale factor of the particles; default: the one that they are made for.

    Returns:
      Columns `Position` and `RedshiftSpacePosition`, comoving, from 0 to the sides of the box [Mpc/h], and `Velocity`,
      peculiar [km/s], all of shape (galaxies, 3), in the order of the lattice of the particles.

    Raises:
      ValueError: an array is traced or of another config, the scale factor is not known, the particles are in redshift
        space, negative weights hold more than 2 % of the galaxies, or another argument is out of its range.

    Warns:
      UserWarning: negative weights hold more than 0.5 % of the galaxies, so that P(k) comes out low.

    Examples:
      >>> galaxies = observe.galaxy_catalogue(particles, cosmo, config, key=jax.random.key(1), number_density=1e-3)
      >>> galaxies.save("galaxies.hdf5")
    """
    inputs.check_config(config)
    check_on_host("galaxy_catalogue", (particles, cosmo, weights, key, number_density))
    check_key(key)
    check_number(number_density, "number_density", 0, MOST_GALAXIES / math.prod(config.box_size), unit="(h/Mpc)^3")
    at = float(inputs.scale_factor_of(particles, a))
    particles = inputs.checked_particles(particles, config, at, real_space=True)
    inputs.check_finite(particles)
    moved = redshift_space(particles, cosmo, config, line_of_sight=line_of_sight, a=at)
    dtype = particles.disp.dtype
    weights = jnp.ones((), dtype) if weights is None else inputs.lattice_field(weights, config, "weights")
    check_negative(weights)
    mean = jnp.asarray(number_density * math.prod(config.box_size) / math.prod(config.particle_shape), dtype)
    counts = _numbers(key, weights, mean, config)
    values = {
        "Position": particles.positions(config),
        "Velocity": Particles(particles.disp, particles.vel).velocities(at),
        "RedshiftSpacePosition": moved.positions(config),
    }
    units = {name: "km/s" if name == "Velocity" else "Mpc/h" for name in values}
    about = {"a": at, "z": 1 / at - 1, "number_density [(h/Mpc)^3]": float(number_density)}
    about |= {"line_of_sight": str(line_of_sight)} | about_simulation(cosmo, config)
    return Catalogue(_rows(counts, values, config), units, about)


def about_simulation(cosmo: Cosmology | GrowthTable, config: Config) -> dict[str, Any]:
    """Facts about a simulation, for the attributes of a file."""
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "decomposition"}
    values_of = vars(parameters_of(cosmo))
    cosmology = {name: None if x is None else np.asarray(x).tolist() for name, x in values_of.items()}
    about = {"config": json.dumps(own, default=str), "cosmology": json.dumps(cosmology)}
    return {"box_size [Mpc/h]": config.box_size} | about


def check_negative(*weights: Array, stacklevel: int = 4) -> None:
    """Warn of negative weights, the worst of some, or raise ArgumentError."""
    shares = [tuple(map(float, _negative_shares(x))) for x in weights]
    if not all(math.isfinite(galaxies) and 0 < total < math.inf for _, galaxies, total in shares):
        raise ArgumentError("weights", weights, "must be finite, with a sum above 0", show_value=False)
    particles, galaxies, _ = max(shares, key=lambda share: share[1])
    text = f"are negative for {100 * particles:.2g} % of the particles"
    text += f", which hold {100 * galaxies:.2g} % of the galaxies"
    if galaxies > MOST_NEGATIVE:
        remedy = "use a larger smoothing, or biases nearer to 0"
        raise ArgumentError("weights", galaxies, f"{text}: P(k) would be too low", remedy, show_value=False)
    if galaxies > _SAID:
        warnings.warn(f"weights {text}: P(k) comes out low", stacklevel=stacklevel)


@jit
def _negative_shares(weights: Array) -> tuple[Array, Array, Array]:
    """Share of the weights that are negative, minus their sum over the sum of all, and the latter."""
    total = jnp.sum(weights)
    return jnp.mean(weights < 0), jnp.sum(jnp.maximum(-weights, 0)) / jnp.abs(total), total


@partial(jit, static_argnames="config")
def _numbers(key: Array, weights: Array, mean: Array, config: Config) -> Array:
    """Numbers of galaxies at the particles."""
    weights = jnp.maximum(jnp.broadcast_to(weights, config.particle_shape), 0)
    rate = config.decomposition.constrain(weights * (mean / jnp.mean(weights)))
    return config.decomposition.constrain(jax.random.poisson(key, rate, dtype=jnp.int32))


def _rows(counts: Array, values: dict[str, Array], config: Config) -> dict[str, np.ndarray]:
    """Rows of the values at each particle, as often as the counts say, in the order of the lattice."""
    values = {name: jax.device_put(x, counts.sharding) for name, x in values.items()}
    parts: list[list[np.ndarray]] = []
    for i, shard in enumerate(counts.addressable_shards):
        if shard.replica_id:
            continue
        local = np.asarray(shard.data)
        where = np.flatnonzero(local)
        times = local.ravel()[where]
        starts = [s.start or 0 for s in shard.index]
        at = [x + start for x, start in zip(np.unravel_index(where, local.shape), starts, strict=True)]
        sites = np.ravel_multi_index(tuple(at), config.particle_shape).astype(np.int64)
        rows = [np.asarray(x.addressable_shards[i].data).reshape(-1, 3)[where] for x in values.values()]
        parts.append([np.repeat(x, times, axis=0) for x in (sites, *rows)])
    sites, *rows = (distributed.all_rows(np.concatenate(x)) for x in zip(*parts, strict=True))
    order = np.argsort(sites, kind="stable")
    return {name: x[order] for name, x in zip(values, rows, strict=True)}
