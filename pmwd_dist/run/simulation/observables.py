"""The observables of a run at one redshift, as tables: multipoles, galaxies, bispectra, cross spectra."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import growth_table_to
from pmwd_dist.observe.bias import LagrangianBias, bias_weights, tracer_density
from pmwd_dist.observe.bispectrum import bispectrum, bispectrum_edges, tree_bispectrum
from pmwd_dist.observe.counts import MAX_CUT, expected_counts, negative_shares, weighted_overdensity
from pmwd_dist.observe.cross import cross_power
from pmwd_dist.observe.filters import smoothed
from pmwd_dist.observe.interlacing import interlaced_density
from pmwd_dist.observe.multipoles import Multipoles, kaiser_multipoles, power_multipoles
from pmwd_dist.observe.pdf import one_point_pdf
from pmwd_dist.observe.power import shot_noise
from pmwd_dist.observe.redshift_space import redshift_space
from pmwd_dist.parallel.fft import fftfreq3d, pirfft3d
from pmwd_dist.pm.modes import linear_modes
from pmwd_dist.pm.noise import noise_of
from pmwd_dist.pm.paint import density as painted
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report.results import POLES
from pmwd_dist.report.tables import Table
from pmwd_dist.run.settings import SimulationSettings, SimulationSetup, observables

Files = Mapping[str, np.ndarray]  # by the keys of the settings that name them
_MPC3, _PER_MPC = "(Mpc/h)^3", "h/Mpc"
_SHOT_NOISE = "P0 holds no shot noise: a Poisson sample of the field has P0 + shot noise; its scatter is {} the errors"


@dataclass(frozen=True)
class View:
    """State of a simulation at an output.

    Args:
      particles: particles at scale factor a.
      density: 1 + delta, shape mesh_shape.
      data: arrays of the files that the settings name.
    """

    simulation: SimulationSetup
    particles: Particles
    density: Array
    a: float
    data: Files

    @property
    def z(self) -> str:
        """Redshift, for titles."""
        return f"{abs(round(1 / self.a - 1, 4)):g}"


def wanted(settings: SimulationSettings) -> dict[str, Callable[[Any, View], Table]]:
    """Functions that measure the tables that settings ask for, by the name of the section."""
    return {name: measure for name, measure in TABLES.items() if getattr(settings.observe, name)}


def _modes(simulation: SimulationSetup) -> Array:
    """The linear modes, made again from their seed: a run does not keep them."""
    noise = noise_of(simulation.noise, simulation.config, simulation.kind)
    return linear_modes(noise, simulation.cosmo, simulation.config, linear_power=simulation.power, f_nl=simulation.f_nl)


def _matter(section: observables.Multipoles, view: View) -> Table:
    simulation, a = view.simulation, view.a
    config, axis = simulation.config, section.line_of_sight
    moved = redshift_space(view.particles, simulation.cosmo, config, line_of_sight=axis, a=a)
    measured = power_multipoles(interlaced_density(moved, config), config, line_of_sight=axis, poles=POLES)
    theory = kaiser_multipoles(simulation.linear_power, simulation.cosmo, config, a=a, line_of_sight=axis, poles=POLES)
    title = f"matter in redshift space along {axis}, z = {view.z}"
    table = _poles(title, measured, theory, 0.0, section.k_max, config)
    table.columns["shot noise"][:] = shot_noise(config)  # of random particles; ours begin on a lattice
    return replace(table, note=_SHOT_NOISE.format("not in"))


def _poles(
    title: str, measured: Multipoles, theory: Multipoles, noise: float, k_max: float | None, config: Config
) -> Table:
    """Multipoles, the scatter of their modes and linear theory; without empty bins, and those beyond k_max."""
    power, modes = np.asarray(measured.power, float), np.asarray(measured.modes, float)
    largest = 0.95 * math.pi / max(config.cell_size) if k_max is None else k_max
    some = (modes > 0) & (np.asarray(measured.k) <= largest)
    columns = {"k": np.asarray(measured.k, float)}
    columns |= {f"P{pole}": row for pole, row in zip(POLES, power, strict=True)}
    linear = np.asarray(theory.power, float)
    # The angles of linear theory with the amplitude that was measured: quadrupoles of few modes are noise.
    shape = linear / np.where(linear[:1] > 0, linear[:1], 1)
    errors = _scatter(power[:1] * np.where(np.isfinite(shape), shape, 0), np.maximum(modes, 1), noise)
    columns |= {f"error of P{pole}": row for pole, row in zip(POLES, errors, strict=True)}
    columns["modes"] = modes
    columns |= {f"linear P{pole}": row for pole, row in zip(POLES, linear, strict=True)}
    columns["shot noise"] = np.full_like(modes, noise)
    units = {name: _MPC3 for name in columns if name != "modes"} | {"k": _PER_MPC}
    return Table(title, {name: values[some] for name, values in columns.items()}, units)


def _scatter(power: np.ndarray, modes: np.ndarray, noise: float) -> np.ndarray:
    """Standard deviations of the multipoles of Gaussian fields (Taruya et al. 2010, eq. C4): (poles, bins).

    A mode and its conjugate count twice but scatter as one.
    """
    mu, weights = np.polynomial.legendre.leggauss(16)
    legendre = [np.polynomial.legendre.Legendre.basis(pole)(mu)[:, None] for pole in POLES]
    of_mu = sum(row * values for row, values in zip(power, legendre, strict=True)) + noise
    rows = [
        (2 * pole + 1) * np.sqrt(2 / modes * (weights[:, None] / 2 * (of_mu * values) ** 2).sum(0))
        for pole, values in zip(POLES, legendre, strict=True)
    ]
    return np.stack(rows)


def _galaxies(section: observables.Galaxies, view: View) -> Table:
    simulation, a = view.simulation, view.a
    config, cosmo = simulation.config, simulation.cosmo
    axis = section.line_of_sight if section.redshift_space else None
    particles, weights = _tracers(section, view)
    field = interlaced_density(particles, config, weights=weights)
    weight = _weight(section, config, view.data)
    noise, scatter = (0.0 if section.number_density is None else 1 / section.number_density), 1.0
    if weight is not None:
        field = weighted_overdensity(field, weight, config)
        mean, squares, fourth = (float(jnp.mean(weight**power)) for power in (1, 2, 4))
        noise, scatter = noise * mean / squares, math.sqrt(fourth) / squares
    measured = power_multipoles(field, config, line_of_sight=section.line_of_sight, poles=POLES)
    radius = section.smoothing or 0.0

    @jax.jit
    def bias(k: Array) -> Array:
        return 1 + (section.b1 - section.bnabla2 * k**2) * jnp.exp(-(k**2) * radius**2 / 2)

    theory = kaiser_multipoles(simulation.linear_power, cosmo, config, bias=bias, a=a, line_of_sight=axis, poles=POLES)
    where = f"in redshift space along {axis}" if axis else "in real space"
    title = f"galaxies of Lagrangian b1 = {section.b1:g} {where}, z = {view.z}"
    table = _poles(title, measured, theory, noise, section.k_max, config)
    # Modes of a part of the box are fewer (Feldman, Kaiser & Peacock 1994, eq. 2.4.5).
    columns = {name: x * scatter if name.startswith("error") else x for name, x in table.columns.items()}
    return replace(table, columns=columns, note=_SHOT_NOISE.format("in"))


def _tracers(section: observables.Galaxies, view: View) -> tuple[Particles, Array]:
    """Particles, in redshift space if the section says so, and their weights as galaxies."""
    simulation, particles, a = view.simulation, view.particles, view.a
    config, cosmo = simulation.config, simulation.cosmo
    bias = LagrangianBias(section.b1, section.b2, section.bs2, section.bnabla2)
    weights = bias_weights(_modes(simulation), bias, cosmo, config, smoothing=section.smoothing, a=a)
    if section.redshift_space:
        particles = redshift_space(particles, cosmo, config, line_of_sight=section.line_of_sight, a=a)
    return particles, weights


def galaxy_counts(section: observables.Galaxies, view: View) -> Array:
    """Galaxies in each cell, drawn from the Poisson distributions of the rates: integers, shape mesh_shape.

    Raises:
      SimulationError: the density of the galaxies is negative in so many cells that the counts lose power.
    """
    config = view.simulation.config
    field = tracer_density(*_tracers(section, view), config)
    cells, galaxies = map(float, negative_shares(field))
    if galaxies > MAX_CUT:
        problem = f"1 + delta_g is negative in {100 * cells:.2g} % of the cells, and P(k) of counts would be too low"
        remedy = f"{_smoothing_for_counts(section, view)} or a smaller b1, or leave number_density out; then resume"
        raise SimulationError(f"observe.galaxies at z = {view.z}: {problem}; {remedy}")
    weight = _weight(section, config, view.data)
    selection = 1.0 if weight is None else weight
    rate = expected_counts(field, config, number_density=section.number_density or 0.0, selection=selection)
    # By the output's time, too: the galaxies of two outputs are drawn independently.
    key = jax.random.fold_in(jax.random.key(view.simulation.seed), np.float32(view.a).view(np.uint32))
    return _draw(key, rate, config)


def _smoothing_for_counts(section: observables.Galaxies, view: View) -> str:
    """Advice to set a smoothing that leaves few cells negative, tried in steps of a half; empty without one."""
    config = view.simulation.config
    radius = section.smoothing or max(config.cell_size) / 1.5
    while (radius := float(f"{1.5 * radius:.2g}")) < min(config.box_size) / 4:
        field = tracer_density(*_tracers(section.model_copy(update={"smoothing": radius}), view), config)
        if float(negative_shares(field)[1]) <= MAX_CUT / 2:
            return f"set observe.galaxies.smoothing = {radius:g},"
    return "set"


@partial(jax.jit, static_argnames="config")
def _draw(key: Array, rate: Array, config: Config) -> Array:
    return config.decomposition.constrain(jax.random.poisson(key, rate, dtype=jnp.int32))


def shares_seen(section: observables.Galaxies, config: Config, data: Files) -> np.ndarray | None:
    """Shares that the survey sees, selection times mask, to be broadcast to the mesh; None if it sees all."""
    mask = data.get(observables.MASK)
    if section.selection is None and mask is None:
        return None
    shares = np.ones((1, 1, 1))
    if section.selection is not None:
        axis = "xyz".index(section.line_of_sight)
        distance, share = np.asarray(section.selection, float).T
        positions = np.arange(config.mesh_shape[axis]) * config.cell_size[axis]
        shares = np.interp(positions, distance, share).reshape([-1 if i == axis else 1 for i in range(3)])
    return shares if mask is None else shares * mask


def _weight(section: observables.Galaxies, config: Config, data: Files) -> Array | None:
    """`shares_seen` on the mesh."""
    shares = shares_seen(section, config, data)
    if shares is None:
        return None
    shares = np.broadcast_to(shares.astype(jnp.result_type(float)), config.mesh_shape)
    return jax.device_put(shares, config.decomposition.sharding)


def _bispectrum(section: observables.Bispectrum, view: View) -> Table:
    simulation, config = view.simulation, view.simulation.config
    edges = bispectrum_edges(config, section.shells, section.k_max)
    # One mesh with the cells of a cold lattice has aliases of half the signal.
    density = interlaced_density(view.particles, config)
    found = bispectrum(density, config, edges=edges, triangles=section.triangles)
    tree = tree_bispectrum(
        lambda k: np.nan_to_num(simulation.linear_power(k) * _growth(view, k) ** 2), edges, found.shells
    )
    some = np.asarray(found.triangles) > 0
    columns = {f"k{i + 1}": np.asarray(found.k)[:, i] for i in range(3)}
    columns |= {
        "B": found.bispectrum,
        "error of B": found.scatter,
        "tree level": tree,
        "Q": found.reduced,
        "triangles": found.triangles,
    }
    units = {f"k{i}": _PER_MPC for i in (1, 2, 3)} | dict.fromkeys(("B", "error of B", "tree level"), "(Mpc/h)^6")
    columns = {name: np.asarray(values, float)[some] for name, values in columns.items()}
    return Table(f"bispectrum of the density, {section.triangles} triangles, z = {view.z}", columns, units)


def _growth(view: View, k: Any) -> Array:
    """Linear growth factor at wavenumbers [h/Mpc]."""
    return growth_table_to(2, view.simulation.cosmo).linear(k, view.a)[0]


def _cross(section: observables.Cross, view: View) -> Table:
    del section  # it has no keys
    # The linear field is known on the lattice of the particles.
    config = view.simulation.config
    config = replace(config, mesh_shape=config.particle_shape, halo="auto")
    k = fftfreq3d(config.particle_shape, config.decomposition, config.box_size)
    modes = _modes(view.simulation) * _growth(view, jnp.sqrt(k[0] ** 2 + k[1] ** 2 + k[2] ** 2))
    reference = pirfft3d(modes, config.particle_shape, config.decomposition)
    found = cross_power(painted(view.particles, config), reference, config, deconvolve=(True, False))
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
    title = f"density and its linear field, z = {view.z}"
    return Table(title, {name: np.asarray(values, float)[some] for name, values in columns.items()}, units)


def _pdf(section: observables.PDF, view: View) -> Table:
    config, density = view.simulation.config, view.density
    values = np.geomspace(section.low, section.high, section.bins)
    field = smoothed(density, config, section.smoothing) if section.smoothing else density
    found = one_point_pdf(field, config, values)
    columns = {"density": found.values, "probability density": found.density, "cells": found.cells}
    side = math.prod(config.cell_size) ** (1 / 3)
    filtered = f"smoothed by {section.smoothing:g} Mpc/h" if section.smoothing else f"in cells of {side:.3g} Mpc/h"
    title = f"density {filtered}, z = {view.z}"
    return Table(title, {name: np.asarray(x, float) for name, x in columns.items()}, {})


TABLES: dict[str, Callable[[Any, View], Table]] = {
    "multipoles": _matter,
    "galaxies": _galaxies,
    "bispectrum": _bispectrum,
    "cross": _cross,
    "pdf": _pdf,
}
