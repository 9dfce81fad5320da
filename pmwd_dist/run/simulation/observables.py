"""The observables of a run at one redshift, as tables: multipoles, galaxies, bispectra, cross spectra."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth
from pmwd_dist.observe.bias import LagrangianBias, bias_weights, tracer_density
from pmwd_dist.observe.bispectrum import bispectrum, bispectrum_edges, tree_bispectrum
from pmwd_dist.observe.counts import expected_counts, weighted_overdensity
from pmwd_dist.observe.cross import cross_power
from pmwd_dist.observe.filters import smoothed
from pmwd_dist.observe.interlacing import interlaced_density
from pmwd_dist.observe.multipoles import Multipoles, kaiser_multipoles, power_multipoles
from pmwd_dist.observe.pdf import one_point_pdf
from pmwd_dist.observe.redshift_space import redshift_space
from pmwd_dist.parallel.fft import pirfft3d
from pmwd_dist.pm.modes import linear_modes, white_noise
from pmwd_dist.pm.paint import density as painted
from pmwd_dist.pm.particles import Particles
from pmwd_dist.report.tables import Table
from pmwd_dist.run.settings import Settings, Simulation, observables

POLES = (0, 2, 4)
Files = Mapping[str, np.ndarray]  # by the keys of the settings that name them
_MPC3, _PER_MPC = "(Mpc/h)^3", "h/Mpc"


def measure_observables(
    settings: Settings, simulation: Simulation, particles: Particles, density: Array, a: float, data: Files
) -> Iterator[tuple[str, Table]]:
    """Names and tables of the observables that the settings ask for, of particles and density at a. Collective."""
    wanted = settings.observe
    if wanted.multipoles:
        yield "multipoles", _matter(wanted.multipoles, simulation, particles, a)
    if wanted.galaxies:
        yield "galaxies", _galaxies(wanted.galaxies, simulation, particles, a, data)
    if wanted.bispectrum:
        yield "bispectrum", _bispectrum(wanted.bispectrum, simulation, density, a)
    if wanted.cross:
        yield "cross", _cross(simulation, particles, a)
    if wanted.pdf:
        yield "pdf", _pdf(wanted.pdf, simulation.config, density, a)


def names(settings: Settings) -> list[str]:
    """Names of the observables of each output, in the order of `measure_observables`."""
    return [
        name for name in ("multipoles", "galaxies", "bispectrum", "cross", "pdf") if getattr(settings.observe, name)
    ]


def _modes(simulation: Simulation) -> Array:
    """The linear modes, made again from their seed: a run does not keep them."""
    noise = white_noise(jax.random.key(simulation.seed), simulation.config)
    return linear_modes(noise, simulation.cosmo, simulation.config, linear_power=simulation.table)


def _matter(wanted: observables.Multipoles, simulation: Simulation, particles: Particles, a: float) -> Table:
    config, axis = simulation.config, wanted.line_of_sight
    moved = redshift_space(particles, simulation.cosmo, config, line_of_sight=axis, a=a)
    measured = power_multipoles(interlaced_density(moved, config), config, line_of_sight=axis, poles=POLES)
    theory = kaiser_multipoles(_power(simulation), simulation.cosmo, config, a=a, line_of_sight=axis, poles=POLES)
    title = f"matter in redshift space along {axis}, z = {_redshift(a)}"
    return _poles(title, measured, theory, 0.0, _largest(wanted.k_max, config))


def _largest(k_max: float | None, config: Config) -> float:
    """Largest wavenumber of a table [h/Mpc]."""
    if k_max is not None:
        return k_max
    return 0.95 * min(math.pi / side for side in config.cell_size)


def _power(simulation: Simulation) -> Callable[[Any], np.ndarray]:
    return lambda k: simulation.linear_power(np.asarray(k, float))


def _redshift(a: float) -> str:
    return f"{abs(round(1 / a - 1, 4)):g}"


def _poles(title: str, measured: Multipoles, theory: Multipoles, shot_noise: float, k_max: float) -> Table:
    """Multipoles, the scatter of their modes and linear theory; without empty bins, and those beyond k_max."""
    power, modes = np.asarray(measured.power, float), np.asarray(measured.modes, float)
    some = (modes > 0) & (np.asarray(measured.k) <= k_max)
    columns = {"k": np.asarray(measured.k, float)}
    columns |= {f"P{pole}": row for pole, row in zip(POLES, power, strict=True)}
    linear = np.asarray(theory.power, float)
    # The angles of linear theory with the amplitude that was measured: quadrupoles of few modes are noise.
    shape = linear / np.where(linear[:1] > 0, linear[:1], 1)
    errors = _scatter(power[:1] * np.where(np.isfinite(shape), shape, 0), np.maximum(modes, 1), shot_noise)
    columns |= {f"error of P{pole}": row for pole, row in zip(POLES, errors, strict=True)}
    columns["modes"] = modes
    columns |= {f"linear P{pole}": row for pole, row in zip(POLES, linear, strict=True)}
    columns["shot noise"] = np.full_like(modes, shot_noise)
    units = {name: _MPC3 for name in columns if name != "modes"} | {"k": _PER_MPC}
    return Table(title, {name: values[some] for name, values in columns.items()}, units)


def _scatter(power: np.ndarray, modes: np.ndarray, shot_noise: float) -> np.ndarray:
    """Standard deviations of the multipoles of Gaussian fields (Taruya et al. 2010, eq. C4): (poles, bins).

    A mode and its conjugate count twice but scatter as one.
    """
    mu, weights = np.polynomial.legendre.leggauss(16)
    legendre = [np.polynomial.legendre.Legendre.basis(pole)(mu)[:, None] for pole in POLES]
    of_mu = sum(row * values for row, values in zip(power, legendre, strict=True)) + shot_noise
    rows = [
        (2 * pole + 1) * np.sqrt(2 / modes * (weights[:, None] / 2 * (of_mu * values) ** 2).sum(0))
        for pole, values in zip(POLES, legendre, strict=True)
    ]
    return np.stack(rows)


def _galaxies(
    wanted: observables.Galaxies, simulation: Simulation, particles: Particles, a: float, data: Files
) -> Table:
    config, cosmo = simulation.config, simulation.cosmo
    axis = wanted.line_of_sight if wanted.redshift_space else None
    field = galaxy_density(wanted, simulation, particles, a, paint=interlaced)
    weight = _weight(wanted, config, data)
    noise, scatter = (0.0 if wanted.number_density is None else 1 / wanted.number_density), 1.0
    if weight is not None:
        field = weighted_overdensity(field, weight, config)
        mean, squares, fourth = (float(x) for x in _moments(weight))
        noise, scatter = noise * mean / squares, math.sqrt(fourth) / squares
    measured = power_multipoles(field, config, line_of_sight=wanted.line_of_sight, poles=POLES)
    radius = wanted.smoothing or 0.0

    @jax.jit
    def bias(k: Array) -> Array:
        return 1 + (wanted.b1 - wanted.bnabla2 * k**2) * jnp.exp(-(k**2) * radius**2 / 2)

    theory = kaiser_multipoles(_power(simulation), cosmo, config, bias=bias, a=a, line_of_sight=axis, poles=POLES)
    where = f"in redshift space along {axis}" if axis else "in real space"
    title = f"galaxies of b1 = {wanted.b1:g} {where}, z = {_redshift(a)}"
    table = _poles(title, measured, theory, noise, _largest(wanted.k_max, config))
    # Modes of a part of the box are fewer (Feldman, Kaiser & Peacock 1994, eq. 2.4.5).
    columns = {name: x * scatter if name.startswith("error") else x for name, x in table.columns.items()}
    return Table(table.title, columns, table.units)


def interlaced(particles: Particles, weights: Array, config: Config) -> Array:
    """Density of tracers with fewer aliases."""
    return interlaced_density(particles, config, weights=weights)


def galaxy_density(
    wanted: observables.Galaxies, simulation: Simulation, particles: Particles, a: float, paint: Any = tracer_density
) -> Array:
    """Density of the galaxies in units of their mean, shape mesh_shape."""
    config, cosmo = simulation.config, simulation.cosmo
    bias = LagrangianBias(wanted.b1, wanted.b2, wanted.bs2, wanted.bnabla2)
    weights = bias_weights(_modes(simulation), bias, cosmo, config, smoothing=wanted.smoothing, a=a)
    if wanted.redshift_space:
        particles = redshift_space(particles, cosmo, config, line_of_sight=wanted.line_of_sight, a=a)
    return paint(particles, weights, config)


def galaxy_counts(
    wanted: observables.Galaxies, simulation: Simulation, particles: Particles, a: float, data: Files
) -> Array:
    """Galaxies in each cell, drawn from the Poisson distributions of the rates: shape mesh_shape, whole numbers."""
    config = simulation.config
    field = galaxy_density(wanted, simulation, particles, a)
    weight = _weight(wanted, config, data)
    selection = 1.0 if weight is None else weight
    rate = expected_counts(field, config, number_density=wanted.number_density or 0.0, selection=selection)
    # By the output's time, too: the galaxies of two outputs are drawn independently.
    key = jax.random.fold_in(jax.random.key(simulation.seed), np.float32(a).view(np.uint32))
    return _draw(key, rate, config)


@partial(jax.jit, static_argnames="config")
def _draw(key: Array, rate: Array, config: Config) -> Array:
    return config.decomposition.constrain(jax.random.poisson(key, rate, dtype=jnp.int32))


def shares_seen(wanted: observables.Galaxies, config: Config, data: Files) -> np.ndarray | None:
    """Shares that the survey sees, selection times mask, to be broadcast to the mesh; None if it sees all."""
    mask = data.get(observables.MASK)
    if wanted.selection is None and mask is None:
        return None
    shares = np.ones((1, 1, 1))
    if wanted.selection is not None:
        axis = "xyz".index(wanted.line_of_sight)
        distance, share = np.asarray(wanted.selection, float).T
        places = np.arange(config.mesh_shape[axis]) * config.cell_size[axis]
        shares = np.interp(places, distance, share).reshape([-1 if i == axis else 1 for i in range(3)])
    return shares if mask is None else shares * mask


def _weight(wanted: observables.Galaxies, config: Config, data: Files) -> Array | None:
    """`shares_seen` on the mesh."""
    shares, dtype = shares_seen(wanted, config, data), jnp.result_type(float)
    if shares is None:
        return None
    if shares.shape != config.mesh_shape:
        return _spread(jnp.asarray(shares, dtype), config)
    return jax.device_put(shares.astype(dtype), config.decomposition.sharding)


@jax.jit
def _moments(weight: Array) -> tuple[Array, Array, Array]:
    """Means of the weight, its square and its fourth power."""
    return jnp.mean(weight), jnp.mean(weight**2), jnp.mean(weight**4)


@partial(jax.jit, static_argnames="config")
def _spread(shares: Array, config: Config) -> Array:
    return config.decomposition.constrain(jnp.broadcast_to(shares, config.mesh_shape))


def _bispectrum(wanted: observables.Bispectrum, simulation: Simulation, density: Array, a: float) -> Table:
    config = simulation.config
    edges = bispectrum_edges(config, wanted.shells, wanted.k_max)
    found = bispectrum(density, config, edges=edges, triangles=wanted.triangles)
    growth_factor = float(growth(a, simulation.cosmo))

    def linear(k: np.ndarray) -> np.ndarray:
        return np.nan_to_num(simulation.linear_power(k)) * growth_factor**2

    some = np.asarray(found.triangles) > 0
    columns = {f"k{i + 1}": np.asarray(found.k)[:, i] for i in range(3)}
    columns |= {
        "B": found.bispectrum,
        "error of B": found.scatter,
        "tree level": tree_bispectrum(linear, edges, found.shells),
        "Q": found.reduced,
        "triangles": found.triangles,
    }
    units = {f"k{i}": _PER_MPC for i in (1, 2, 3)} | dict.fromkeys(("B", "error of B", "tree level"), "(Mpc/h)^6")
    columns = {name: np.asarray(values, float)[some] for name, values in columns.items()}
    return Table(f"bispectrum of the density, {wanted.triangles} triangles, z = {_redshift(a)}", columns, units)


def _cross(simulation: Simulation, particles: Particles, a: float) -> Table:
    config = _on_lattice(simulation.config)
    modes = _modes(simulation) * growth(a, simulation.cosmo)
    reference = pirfft3d(modes, config.particle_shape, config.decomposition)
    found = cross_power(painted(particles, config), reference, config, deconvolve=(True, False))
    some = np.asarray(found.modes) > 0
    columns = {
        "k": found.k,
        "r": found.correlation,
        "T": found.transfer,
        "cross power": found.power,
        "power": found.field_power,
        "linear power": found.reference_power,
        "modes": found.modes,
    }
    units = {"k": _PER_MPC, "cross power": _MPC3, "power": _MPC3, "linear power": _MPC3}
    title = f"density and its linear field, z = {_redshift(a)}"
    return Table(title, {name: np.asarray(values, float)[some] for name, values in columns.items()}, units)


def _on_lattice(config: Config) -> Config:
    """The simulation with a mesh like the lattice of its particles, on which the linear field is known."""
    return Config(
        config.box_size,
        config.particle_shape,
        a_start=config.a_start,
        a_stop=config.a_stop,
        steps=config.steps,
        decomposition=config.decomposition,
    )


def _pdf(wanted: observables.PDF, config: Config, density: Array, a: float) -> Table:
    values = np.geomspace(wanted.low, wanted.high, wanted.bins)
    field = smoothed(density, config, wanted.smoothing) if wanted.smoothing else density
    found = one_point_pdf(field, config, values)
    columns = {"density": found.values, "probability density": found.density, "cells": found.cells}
    side = math.prod(config.cell_size) ** (1 / 3)
    filtered = f"smoothed by {wanted.smoothing:g} Mpc/h" if wanted.smoothing else f"in cells of {side:.3g} Mpc/h"
    title = f"density {filtered}, z = {_redshift(a)}"
    return Table(title, {name: np.asarray(x, float) for name, x in columns.items()}, {})
