"""Initial conditions of other codes: the particles of a snapshot on their lattice, checked against a simulation."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._checks import check_flag
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arithmetic import scaled, scaled_by_i
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY, Cosmology, parameters
from pmwd_dist.cosmology.radiation import N_EFF
from pmwd_dist.io.snapshot.base import KM_S_PER_H0
from pmwd_dist.io.snapshot.header import SnapshotHeader, named_cosmology, read_header, snapshot_files
from pmwd_dist.io.snapshot.particles import (
    MASSES,
    POSITIONS,
    VELOCITIES,
    check_arrays,
    check_box,
    chunks,
    holds,
    shared_files,
)
from pmwd_dist.io.snapshot.reader import beside_mesh, check_memory, find_sites, read_particles
from pmwd_dist.io.snapshot.units import LengthUnit
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.parallel.fft import prfft3d, rfft_block
from pmwd_dist.pm import fourier, lpt_fields
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.particles import Particles

# Relative tolerances: scale factor, parameters of the cosmology, mass of all particles, and equal masses.
_TIME, _PARAMETER, _MASS, _EQUAL = 1e-4, 1e-3, 1e-2, 1e-3
_CURVATURE = 2e-3  # of a curvature, which holds the radiation too that a file leaves out
_LINEAR = 0.25  # largest rms density of waves for which velocities of linear growth are right to 3 %
_NONLINEAR = 0.4  # difference of 3LPT from linear growth, of shorter waves, per square of the rms density ...
_ALLOWED = 0.5  # ... and the largest that is allowed for
_LEAST = 0.03  # of the variance of density and of longer waves, which waves of an octave beyond a cutoff lack
_ROUNDING = 1e-8  # of the square of displacements: waves that a file lacks
_DOUBTFUL, _WRONG = 0.03, 0.1  # differences from linear growth
_SECOND = -0.5, 1.6  # second order of velocities, in units of that of 2LPT; 0 of Zel'dovich's velocities
_ERRORS = 3  # of it, by which it must lie outside
_SECOND_RATE = 0.25  # largest second order of velocities, and least one of displacements, without a rate of its own
_OWN_ERRORS = 6  # of the latter, each of which is 0.7 standard deviations: a mode and its conjugate count twice
_BULK = 0.1  # largest mean velocity [rms of velocities]
_WEAKENED = (2, 4, 8, 16, 32), (5, 11, 31, 49, 53)  # [Mpc/h] between particles, and what P(k) loses from z = 99 [%]
_AMPLITUDE, _SCATTER = 0.1, 4  # largest difference of P(k) of linear waves, and errors by few modes beside it


def load_initial_conditions(
    path: str | Path, cosmo: Cosmology, config: Config, *, check_motion: bool = True
) -> Particles:
    """Read initial conditions, particles of one mass on a lattice, onto the devices of a config. Collective.

    Particles (type 1) may be in any order. Their lattice sites follow from IDs, the order of the file or rounded
    positions. Positions stay as in the file, also where its lattice lies half a cell beside ours, with a warning.

    Args:
      path: a file in the format of Gadget or SWIFT, any of a set (name.0.hdf5), their common name, or a folder.
      cosmo: cosmology of the simulation.
      config: the simulation; its box, lattice and a_start must agree with the file.
      check_motion: whether velocities must follow linear growth of the displacements on all scales and axes. A
        difference beyond 3 % is a warning, and beyond 10 % an error, where waves are nonlinear beyond what 3LPT differs
        by. A mean velocity beyond 10 % of the rms is a warning, as are 3 % of particles far slower. So is a second
        order v - f d, with the linear rate f, that has another sign than 2LPT's, is far beyond it, or is missing where
        the displacements have one.

    Raises:
      ValueError: the snapshot is damaged or incomplete; its box, lattice, scale factor, cosmology or mass are not those
        of the simulation; its particles have no lattice; or its velocities are far from linear growth.
      OSError: a file is missing or can't be read.

    Examples:
      >>> particles = pmd.load_initial_conditions("ics.hdf5", cosmo, config)
      >>> solution = pmd.nbody(particles, cosmo, config)
    """
    check_config(config)
    check_flag(check_motion, "check_motion")
    shared_files(Path(path))
    with raise_on_all_processes():
        found = find_initial_conditions(Path(path), cosmo, config, check_motion=check_motion)
        beside = found.lattice_warning(config)
    if beside:
        warnings.warn(beside, stacklevel=2)
    return found.read(cosmo, config, partial(warnings.warn, stacklevel=4))


Power = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class InitialConditions:
    """Initial conditions in the files of a snapshot, whose headers fit the simulation."""

    files: tuple[Path, ...]
    header: SnapshotHeader
    check_motion: bool = True

    @cached_property
    def digest(self) -> str:
        """Digest of the files."""
        digest = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"sha256:{digest.hexdigest()}"

    def lattice_warning(self, config: Config) -> str | None:
        """Warning about a lattice that lies a quarter of a cell or more beside the mesh."""
        cells = beside_mesh(self.files, self.header, config)
        if cells < 0.25:
            return None
        coarse = any(mesh < 2 * n for mesh, n in zip(config.mesh_shape, config.particle_shape, strict=True))
        remedy = "use a mesh twice as fine as the lattice, or " * coarse + "shift the particles"
        text = f"its lattice lies {cells:.2g} cells beside the mesh, which weakens forces"
        if coarse:
            spacing = max(size / n for size, n in zip(config.box_size, config.particle_shape, strict=True))
            low = np.interp(spacing, *_WEAKENED)
            text += f": with one cell a particle P(k) is up to about {low:.0f} % low at half the Nyquist frequency"
        return f"{self.files[0]}: {text}; {remedy}"

    def read(
        self, cosmo: Cosmology, config: Config, warn: Callable[[str], None], power: Power | None = None
    ) -> Particles:
        """The particles at `config.a_start`, whose density is compared with a linear P(k), if any. Collective.

        Raises ValueError if they have different masses or no lattice, or their velocities are far from linear growth.
        """
        files, header = self.files, self.header
        with raise_on_all_processes():
            check_memory(files[0], config)
            _check_masses(files, header, float(parameters(cosmo).Omega_cb))
            sites = find_sites(files, header, config)
        particles = read_particles(files, header, sites, config)
        if self.check_motion:
            compare_with_linear_growth(particles, files[0], cosmo, config, warn, power)
        return particles


def find_initial_conditions(
    path: Path, cosmo: Cosmology, config: Config, *, check_motion: bool = True
) -> InitialConditions:
    """The files of initial conditions; ValueError if their headers do not fit the simulation."""
    own = parameters(cosmo)
    files = snapshot_files(path)
    header = _header(files, float(own.h), config)
    check_box(header, config)
    count, wanted = header.counts[1], config.particle_shape
    other = header.indexed and header.particle_shape != wanted
    if count != math.prod(wanted) or other:
        constraint = f"is not the lattice of the snapshot, which has {count} particles of type 1"
        raise ArgumentError("particle_shape", wanted, constraint, f"its lattice is {header.particle_shape}" * other)
    check_arrays(files, header, 1, (POSITIONS, VELOCITIES))
    if not math.isclose(header.a, config.a_start, rel_tol=_TIME):
        constraint, remedy = f"is not the scale factor of the snapshot, {header.a:.8g}", f"set it to {header.a:.8g}"
        raise ArgumentError("a_start", config.a_start, constraint, remedy)
    named = named_cosmology(files[0])
    if own.w_table is not None and "w0" in named:
        constraint, remedy = "can't be compared with w_0 and w_a of the snapshot", "use a snapshot that names no w"
        raise ArgumentError("cosmo.w_table", own.w_table, constraint, remedy, show_value=False)
    for name, value in named.items():
        apart = _CURVATURE if name == "Omega_k" else 1e-4
        ours = N_EFF if name == "n_eff" and own.n_eff is None else float(getattr(own, name))
        if not math.isclose(ours, value, rel_tol=_PARAMETER, abs_tol=apart):
            shown = float(f"{ours:.6g}")  # without the digits of single precision
            raise ArgumentError(f"cosmo.{name}", shown, f"is not that of the snapshot, {value:.6g}", "use the same")
    return InitialConditions(tuple(files), header, check_motion)


def _header(files: list[Path], h: float, config: Config) -> SnapshotHeader:
    """Header of the files; where none names a unit of length, in the unit with the box of the config, if there is one.

    SWIFT's initial conditions name no Hubble constant: h is the one of the simulation.
    """
    header = read_header(files, h=h)
    if not header.length_unit:
        for unit in get_args(LengthUnit):
            other = read_header(files, unit, h)
            if np.allclose(other.box_size, config.box_size, rtol=1e-5):
                return other
    return header


def _check_masses(files: tuple[Path, ...], header: SnapshotHeader, Omega_cb: float) -> None:
    """Raise ValueError unless the particles have one mass and make up all cold matter, where masses are known."""
    low, high, total = math.inf, 0.0, header.counts[1] * header.masses[1]
    if holds(files, 1, MASSES):
        check_arrays(files, header, 1, (MASSES,))
        total = 0.0
        for (masses,) in chunks(files, header, 1, (MASSES,)):
            low, high, total = min(low, masses.min()), max(high, masses.max()), total + masses.sum()
    if high > (1 + _EQUAL) * low:
        text = f"have masses from {low:.5g} to {high:.5g} 1e10 Msun/h, and must have one mass"
        raise ValueError(f"{files[0]}: its particles of type 1 {text}")
    omega = total / math.prod(header.box_size) / CRITICAL_DENSITY
    if total and not math.isclose(omega, Omega_cb, rel_tol=_MASS):
        others = [f"{n} of type {kind}" for kind, n in enumerate(header.counts) if n and kind != 1]
        why = f"the rest are {', '.join(others)}" if others else "the unit of length or mass is another one"
        remedy = "write all matter as particles of type 1" if others else "give the file its units"
        text = f"have a density of {omega:.4g}, and cold matter has {Omega_cb:.4g}: {why}; {remedy}"
        raise ValueError(f"{files[0]}: its particles of type 1 {text}")


def compare_with_linear_growth(
    particles: Particles,
    path: Path,
    cosmo: Cosmology,
    config: Config,
    warn: Callable[[str], None],
    power: Power | None = None,
) -> None:
    """Compare velocities with displacements in octaves of wavenumbers. Collective.

    Linear growth has the slope s = 1 of velocities over displacements, <v d*> / <d d*> relative to its rate f, and the
    correlation coefficient r = 1. The difference is the larger one of |s - 1| and 1 - r, less the one of 3LPT where
    waves are nonlinear. A difference of 3 % is a warning, and 10 % raises ValueError, also of the mean slope along an
    axis from the one along all (`_along_axes`). A mean velocity of 10 % of the rms of velocities is a warning, and so
    are 3 % of particles far slower. A second order v - f d outside of `_SECOND` is one, or below `_SECOND_RATE` where
    displacements have more. So is a density of linear waves far from P(k) at a = 1 [(Mpc/h)^3], of k [h/Mpc].
    """
    run = jit(partial(_octave_sums, config=config), out_shardings=config.decomposition.replicated)
    sums = np.asarray(run(particles.disp, particles.vel), float).sum(-1)
    dd, dv, vv, density2, modes = sums.sum(0)
    a, table = config.a_start, growth_table_to(config.lpt_order, cosmo)
    k = _nyquist(config) * 0.75 * 0.5 ** np.arange(_octaves(config).start, _octaves(config).stop)[::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = dv / dd / np.asarray(a**2 * table.E(a) * table.linear(jnp.asarray(k), a)[1])
        r = np.nan_to_num(dv / np.sqrt(dd * vv))
    variance = np.cumsum(density2) / math.prod(config.particle_shape) ** 2
    allowed = np.where(variance <= _LINEAR**2, 0, np.minimum(_NONLINEAR * variance, _ALLOWED))
    seen = (dd > _ROUNDING * dd.sum()) & (density2 > _LEAST * np.cumsum(density2))
    difference = np.where(seen, np.maximum(abs(slope - 1), 1 - r) - allowed, 0)
    i = int(difference.argmax())
    text = (
        f"{path}: its velocities are {slope[i]:.3g} of those of linear growth at a = {a:g}, with a correlation of "
        f"{r[i]:.3f} with the displacements, near k = {k[i]:.2g} h/Mpc: "
    )
    if not difference[i] < _WRONG:
        shift, *_ = _moments(particles.disp, config)
        spacings = float(np.abs(shift * config.particle_shape / config.box_size).max())
        why = "their unit is another one, they and displacements are of different times or particles, or a coarse mesh"
        why += " moved the particles before"
        remedy = "name the unit in the file, or set check_motion to false"
        if spacings > 1:
            why = f"its IDs follow no lattice: particles lie {spacings:.2g} spacings from their sites on average"
            remedy = "write IDs in the order of the lattice, from 0 or 1 on"
        raise ValueError(f"{text}{why}; {remedy}")
    if power is not None:
        linear = seen & (variance <= _LINEAR**2)
        ratio = density2 / math.prod(config.particle_shape) ** 2 / _expected_variance(power, table, config)
        _compare_amplitude(np.where(linear, ratio, 1), modes / 3, k, path, warn)
    _compare_axes(*_along_axes(sums, seen, math.sqrt(variance[-1])), path, warn)
    _compare_speeds(particles.vel, path, config, warn)
    if difference[i] > _DOUBTFUL:
        warn(f"{text}P(k) may be off by as much")
    else:
        _compare_second_order(_second_order(particles, a, table, config), path, warn)


def _compare_amplitude(
    ratio: np.ndarray, modes: np.ndarray, k: np.ndarray, path: Path, warn: Callable[[str], None]
) -> None:
    """Warn of octaves at wavenumbers k whose density has another power than it should have."""
    far = np.abs(ratio - 1) > _AMPLITUDE + _SCATTER * np.sqrt(2 / np.maximum(modes, 1))
    if far.any():
        i = int(np.flatnonzero(far)[-1])
        warn(
            f"{path}: its density has {ratio[i]:.3g} times the linear P(k) of the run near k = {k[i]:.2g} h/Mpc; "
            "sigma8 or another parameter differs, and linear theory beside the results is not theirs"
        )


def _expected_variance(power: Power, table: GrowthTable, config: Config) -> np.ndarray:
    """Variance of the density of each octave by a linear P(k). Collective."""
    longest, shortest = (
        math.pi / max(config.box_size),
        2 * math.pi * max(np.divide(config.particle_shape, config.box_size)),
    )
    k = np.geomspace(longest, shortest, 512)
    growth = np.asarray(table.linear(jnp.asarray(k), config.a_start)[0])
    logs = jnp.log(jnp.asarray(k)), jnp.log(jnp.asarray(power(k) * growth**2 / math.prod(config.box_size)))
    run = jit(partial(_octave_power, config=config), out_shardings=config.decomposition.replicated)
    return np.asarray(run(*logs), float).sum(-1)


def _compare_speeds(vel: Array, path: Path, config: Config, warn: Callable[[str], None]) -> None:
    """Warn of a mean velocity, and of particles that are far slower than the others."""
    bulk, rms, slow = _moments(vel, config)
    if slow > _DOUBTFUL:
        text = f"{100 * slow:.3g} % of its particles move slower than a fifth of the rms velocity"
        warn(f"{path}: {text}: P(k) may be too low by twice as much")
    if (speed := float(np.linalg.norm(bulk))) > _BULK * rms:
        shown, share = f"{speed * KM_S_PER_H0 / config.a_start:.3g} km/s", f"{100 * speed / rms:.3g} %"
        warn(f"{path}: its particles have a mean velocity of {shown}, {share} of the rms of their velocities")


def _compare_axes(along: np.ndarray, error: float, path: Path, warn: Callable[[str], None]) -> None:
    if (apart := np.abs(along - 1).max() - error) > _DOUBTFUL:
        factors = ", ".join(f"{x:.3g}" for x in along)
        words = f"{path}: relative to displacements, its velocities along x, y and z are {factors} of their mean: "
        if apart > _WRONG:
            raise ValueError(f"{words}they must be 1; write all components in one unit, or set check_motion to false")
        warn(f"{words}P(k) along the axes may be off by twice as much")


def _compare_second_order(orders: np.ndarray, path: Path, warn: Callable[[str], None]) -> None:
    """Warn of a second order of velocities or of displacements, with their errors, that is not 2LPT's."""
    (second, error), (moved, of_moved) = orders
    text = f"{path}: the second order of its velocities is {second:.2g} of that of 2LPT"
    if not _SECOND[0] - _ERRORS * error <= second <= _SECOND[1] + _ERRORS * error:
        remark = "(2LPT has 1, Zel'dovich's approximation 0): its factor or sign is another one"
        warn(f"{text} {remark}, and P(k) may be off by several per cent")
    elif second + _ERRORS * error < _SECOND_RATE and moved > max(_SECOND_RATE, _OWN_ERRORS * of_moved):
        remark = f"and that of displacements is {moved:.2g}: all orders seem to grow at the linear rate"
        warn(f"{text}, {remark}, and P(k) may be too low by several per cent")


def _along_axes(sums: np.ndarray, seen: np.ndarray, rms: float) -> tuple[np.ndarray, float]:
    """Slope of velocities over displacements along each axis, over the one along all, and its error by few modes."""
    dd, dv, modes = sums[:, 0], sums[:, 1], np.where(seen & (sums[:, 0] > _ROUNDING * sums[:, 0].sum()), sums[:, 4], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.nan_to_num(dv / dd * (dd.sum(0) / dv.sum(0)), posinf=0, neginf=0)
        along = (modes * slope).sum(1) / modes.sum(1)
    return np.nan_to_num(along, nan=1.0), rms / math.sqrt(max(modes.sum(1).min(), 1.0))


def _second_order(particles: Particles, a: float, table: GrowthTable, config: Config) -> np.ndarray:
    """Second order of velocities and of displacements over those of 2LPT, and their errors, (2, 2). Collective.

    The one of 2LPT's displacements is 1 to 3: the potential, which comes from them, holds their second order, too.
    """
    growth, unit = table.at(a), a**2 * table.E(a)
    rate = unit * growth.dD1 / growth.D1
    run = jit(partial(_second_order_sums, config=config), out_shardings=config.decomposition.replicated)
    sums = np.asarray(run(particles.disp, particles.vel, rate), float).sum(-1)
    if not sums[1]:
        return np.zeros((2, 2))
    products, squares, variances = sums.reshape(2, 3).T
    factors = np.stack([unit * growth.dD2 - rate * growth.D2, growth.D2]) / growth.D1**2 * squares
    return np.stack([products / factors, np.sqrt(variances) / np.abs(factors)], -1)


def _moments(x: Array, config: Config) -> tuple[np.ndarray, float, float]:
    """Mean vector of particles, the rms distance of vectors from it, and the share of vectors below a fifth of it.

    The share is taken with components in units of their own rms, and is 0.01 of Gaussian vectors. It is left out of
    waves along two axes or one.
    """

    def moments(x: Array) -> tuple[Array, Array, Array]:
        squares = x.var((0, 1, 2))
        low = jnp.einsum("xyzi,i->xyz", x**2, 1 / jnp.maximum(squares, jnp.finfo(x.dtype).tiny)) <= 3 * 0.2**2
        return x.mean((0, 1, 2)), squares.sum(), low.mean() * (squares.min() > 1e-6 * squares.sum())

    mean, square, share = jit(moments, out_shardings=config.decomposition.replicated)(x)
    return np.asarray(mean, float), math.sqrt(float(square)), float(share)


def _nyquist(config: Config) -> float:
    """Smallest Nyquist frequency of the lattice [h/Mpc]."""
    return min(math.pi * n / side for n, side in zip(config.particle_shape, config.box_size, strict=True))


def _octaves(config: Config) -> range:
    """Numbers of halvings of the Nyquist frequency at the ends of the octaves."""
    longest = math.floor(math.log2(_nyquist(config) * max(config.box_size) / (2 * math.pi)) + 1e-6)
    return range(max(longest, 0) + 1)


def _octave_sums(disp: Array, vel: Array, config: Config) -> Float[Array, "axes 5 octaves nx"]:
    """Sums over planes of the modes in each octave, the longest waves first: |d|^2, d v*, |v|^2, k^2 |d|^2 and 1.

    Modes beyond the Nyquist frequency belong to the octave below it.
    """
    k2, count = fourier.counted_modes(config.particle_shape, config, disp.dtype)
    octaves, sums = _octave_masks(k2, config), list[Array]()
    for axis in range(3):
        d, v = (prfft3d(x[..., axis], config.decomposition) for x in (disp, vel))
        dd, vv = jnp.abs(d) ** 2, jnp.abs(v) ** 2
        values = [count * x for x in (dd, (d * v.conj()).real, vv, k2 * dd, jnp.ones_like(dd))]
        sums.append(jnp.stack([jnp.stack([jnp.where(at, x, 0).sum((1, 2)) for at in octaves]) for x in values]))
    return jnp.stack(sums)


def _octave_power(log_k: Array, log_power: Array, config: Config) -> Float[Array, "octaves nx"]:
    """Sums over planes of P(k) of the modes in each octave, from a table."""
    k2, count = fourier.counted_modes(config.particle_shape, config, log_k.dtype)
    power = count * jnp.exp(jnp.interp(0.5 * jnp.log(jnp.maximum(k2, 1e-30)), log_k, log_power))
    return jnp.stack([jnp.where(at, power, 0).sum((1, 2)) for at in _octave_masks(k2, config)])


def _octave_masks(k2: Array, config: Config) -> list[Array]:
    """Whether modes belong to each octave, the longest waves first."""
    halvings = -jnp.log2(jnp.sqrt(k2) / _nyquist(config)) + 1e-6  # infinite at k = 0
    return [jnp.maximum(jnp.floor(halvings), 0) == i for i in reversed(_octaves(config))]


def _second_order_sums(disp: Array, vel: Array, rate: Array, config: Config) -> Float[Array, "6 nx"]:
    """Sums over planes of v2 g*, |g|^2 and |v2|^2 |g|^2; of d g*, |g|^2, |d|^2 |g|^2 with weights for short waves."""
    square, *pairs = _second_order_products(disp, vel, rate, config)
    k2, count = fourier.counted_modes(config.particle_shape, config, disp.dtype)
    terms = [(1, *pairs[:2]), (k2, *pairs[2:])]
    sums = [count * x for w, product, power in terms for x in (w * product, w * square, w**2 * power * square)]
    return jnp.stack([x.sum((1, 2)) for x in sums])


@on_blocks(["field", "field", "whole"], ("spectrum",) * 5)
def _second_order_products(disp: Array, vel: Array, rate: Array, config: Config) -> tuple[Array, ...]:
    """|g|^2, v2 g*, |v2|^2, d g*, |d|^2 of each mode; v2 = v - rate d, g: gradient of the second-order potential."""
    shape, norm = config.particle_shape, math.prod(config.particle_shape) ** -0.5
    k = fourier.wavevectors(shape, config, disp.dtype, odd=True)
    modes = partial(rfft_block, decomposition=config.decomposition)
    d = [modes(disp[..., i]) for i in range(3)]
    x, y, z = map(scaled_by_i, d, k)
    p2 = lpt_fields.second_order(lpt_fields.potential(x + y + z, config), config)
    g = jnp.stack([scaled_by_i(p2, norm * ki) for ki in k])
    v2 = jnp.stack([scaled(modes(vel[..., i]) - scaled(d[i], rate), norm) for i in range(3)])
    products = [(jnp.abs(g) ** 2).sum(0)]
    for x in (v2, jnp.stack([scaled(di, norm) for di in d])):
        products += [(x * g.conj()).real.sum(0), (jnp.abs(x) ** 2).sum(0)]
    return tuple(products)
