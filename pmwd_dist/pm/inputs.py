"""Checks of the arguments of a simulation: config, fields, modes, particles and scale factors. They raise ValueError.

Values of fields are not checked, since that would wait for the devices. A value that is not finite sets the status of
a simulation, and makes a painted field NaN.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._checks import check_type
from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.parallel.fft import spectrum_shape
from pmwd_dist.parallel.inputs import complex_, numbers, real
from pmwd_dist.pm.particles import Particles, is_number

_FIRST, _LAST = 1e-4, 2.0  # ends of the growth tables
# Remedies where an argument has another kind.
_SOURCES = {
    "disp": "pass particles.disp",
    "modes": "call linear_modes(noise, cosmo, config) first",
    "noise": "call white_noise(key, config) first",
    "particles": "use Particles(disp, vel), or call lpt(modes, cosmo, config) first",
}
_FIELD = "call density(particles, config) first"


def check_config(config: Any) -> None:
    """Raise ValueError unless this is a Config."""
    remedy = "it follows the cosmology or the field, as in lpt(modes, cosmo, config)"
    check_type(config, Config, "config", "must be a pmwd_dist.Config", remedy)


def mesh_field(field: Any, config: Config, name: str = "field", remedy: str = _FIELD) -> Array:
    """Check a real field on the mesh, whole or a block of a process; in single or double precision."""
    return _field(field, config, name, "mesh_shape", remedy)


def lattice_field(field: Any, config: Config, name: str) -> Array:
    """Check a real field on the lattice of the particles, as `mesh_field`."""
    return _field(field, config, name, "particle_shape", _SOURCES.get(name, _FIELD))


def checked_modes(modes: Any, config: Config) -> Array:
    """Check the complex modes of a field on the lattice, in the layout of `prfft3d`."""
    check_config(config)
    _check_array(modes, "modes")
    modes, expected = complex_(modes, "modes"), spectrum_shape(config.particle_shape, config.decomposition)
    if modes.ndim != 3 or config.decomposition.whole(modes.shape, spectrum=True) != expected:
        remedy = "make them with linear_modes and this config"
        raise ArgumentError("modes.shape", modes.shape, f"must be {expected}", remedy)
    return modes


def vectors(x: Any, config: Config, name: str) -> Array:
    """Check an array with a real vector per particle; in single or double precision."""
    check_config(config)
    _check_array(x, name)
    x, expected = real(x, name), (*config.particle_shape, 3)
    if x.ndim != 4 or (*config.decomposition.whole(x.shape[:3]), x.shape[3]) != expected:
        constraint = f"must be {expected} (particle_shape and three components)"
        raise ArgumentError(f"{name}.shape", x.shape, constraint, _SOURCES.get(name, ""))
    return x


def checked_particles(
    particles: Any, config: Config, a: Any = None, name: str = "a", *, real_space: bool = False
) -> Particles:
    """Check particles, also their scale factor if `a` is a number; displacements and momenta get one precision.

    With `real_space` they may not be those of `redshift_space`.
    """
    _check_particles(particles)
    disp, vel = (vectors(getattr(particles, x), config, f"particles.{x}") for x in ("disp", "vel"))
    origin = particles.origin
    particles.check_box(config)
    if origin.redshift_space and real_space:
        raise ArgumentError(
            "particles", particles, "are in redshift space already", "pass those in real space", show_value=False
        )
    if origin.a is not None and is_number(a) and not math.isclose(origin.a, float(a), rel_tol=1e-4):
        remedy = f"pass particles of that time, or set it to {origin.a:.6g}"
        raise ArgumentError("particles.origin.a", origin.a, f"is not {name}={float(a):.6g}", remedy)
    if disp.dtype == vel.dtype:
        return Particles(disp, vel)
    dtype = jnp.result_type(disp.dtype, vel.dtype)
    return Particles(jnp.asarray(disp, dtype), jnp.asarray(vel, dtype))


def check_finite(particles: Particles) -> None:
    """Raise ValueError unless all numbers of particles are finite; waits for them."""
    if not all(jnp.isfinite(x).all() for x in (particles.disp, particles.vel)):
        raise ArgumentError("particles", particles, "are not finite", "see the status of the run", show_value=False)


def check_table(args: Any) -> None:
    """Raise ValueError unless the arguments of the equations of motion are a growth table."""
    check_type(args, GrowthTable, "args", "must be a growth table", "pass args=growth_table(cosmo)")


def scale_factor(a: Any, name: str = "a") -> Any:
    """Check a scale factor against the range of the growth tables; values on a device or traced are not checked."""
    if np.shape(numbers(a, name)) != ():
        raise ArgumentError(name, a, "must be one number")
    if is_number(a) and not _FIRST <= float(a) <= _LAST:
        raise ArgumentError(name, a, f"must be a scale factor from {_FIRST:g} to {_LAST:g}")
    return a


def scale_factor_of(particles: Any, a: Any) -> Any:
    """Check the scale factor of particles, by default the one that they are made for, which they must know then."""
    _check_particles(particles)
    return scale_factor(particles.scale_factor(a))


def _check_particles(particles: Any) -> None:
    remedy = "pass solution.particles" if hasattr(particles, "particles") else _SOURCES["particles"]
    check_type(particles, Particles, "particles", "must be Particles", remedy)


def _check_array(x: Any, name: str) -> None:
    """Raise ValueError for a cosmology, a config, or an object that holds arrays, such as particles or a solution."""
    if isinstance(x, eqx.Module | Config) or hasattr(x, "Omega_c"):
        constraint = f"is a {type(x).__name__} and must be an array"
        raise ArgumentError(name, x, constraint, _SOURCES.get(name, _FIELD), show_value=False)


def _field(x: Any, config: Config, name: str, source: str, remedy: str) -> Array:
    _check_array(x, name)
    x = real(x, name, remedy)
    check_config(config)
    expected = getattr(config, source)
    if x.ndim != 3 or config.decomposition.whole(x.shape) != expected:
        raise ArgumentError(f"{name}.shape", x.shape, f"must be {source}={expected}")
    return x
