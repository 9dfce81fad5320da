"""A correction of the force on small scales that can be trained: a factor of the potential."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from pmwd_dist._checks import check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import read_text, write_text
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.cosmology.parameters import Cosmology, parameters
from pmwd_dist.pm.inputs import check_config

# Centres of the splines, in k over the particles' Nyquist frequency and in sigma8. The first one in k makes f ~ k^3.
_WAVES = 0.2 * np.arange(2, 11)
_AMPLITUDES = 0.5 * np.arange(-1, 4)
# Range, shape and unit of the numbers of a correction.
_NUMBERS: dict[str, tuple[float, float, tuple[int, ...], str]] = {
    "spacing": (1e-3, 1e6, (), "Mpc/h"),
    "cells": (1e-3, 1e3, (), ""),
    "steps": (1, 1e6, (2,), ""),
    "error": (0, 1e6, (2,), "%"),
    "start": (1e-4, 3, (2,), ""),
    "coefficients": (-1e6, 1e6, (len(_WAVES), len(_AMPLITUDES)), ""),
}
_PARAMETERS = ("Omega_m", "sigma8", "w0")
_LARGEST = 1_000_000  # bytes of a file
_TRAINED = Path(__file__).parent / "force_corrections"


class ForceCorrection(eqx.Module):
    """Factor exp f(k / k_Ny, s) of the potential, for `nbody(..., potential_factor=...)`; s = sigma8 D1(a).

      f(x, s) = sum_ij c_ij B((x - x_i) / 0.2) B((s - s_j) / 0.5)

    with the cubic B-spline B, x_i from 0.4 to 2 and s_j from -0.5 to 1.5 (compare Lanusse et al. 2022,
    arXiv:2207.05509, with a in place of s). f vanishes as k^3 for long waves. Beyond s = 1 it is constant in s.

    Args:
      spacing: distance of the particles [Mpc/h], which sets their Nyquist frequency k_Ny.
      coefficients: coefficients c; default: zeros, no correction.
      cells: mesh cells a particle along each axis; None: any.
      steps: smallest and largest number of steps that were tested; None: any.
      error: error of P(k) at z = 0 [per cent] up to k_Ny / 4 and up to k_Ny / 2 that was found; None: unknown.
      start: latest scale factor of the start, and least order of its LPT; None: any.
      cosmologies: smallest and largest value of parameters in the training, by name: Omega_m, sigma8, w0.

    Raises:
      ValueError: a number is out of its range, or the coefficients have another shape or are not finite.

    Examples:
      >>> correction = pmd.ForceCorrection.auto(config)
      >>> solution = pmd.nbody(particles, cosmo, config, potential_factor=correction)
    """

    coefficients: Float[Array, "9 5"]
    spacing: float = eqx.field(static=True)
    cells: float | None = eqx.field(static=True)
    steps: tuple[int, int] | None = eqx.field(static=True)
    error: tuple[float, float] | None = eqx.field(static=True)
    start: tuple[float, int] | None = eqx.field(static=True)
    cosmologies: tuple[tuple[str, float, float], ...] = eqx.field(static=True)

    def __init__(
        self,
        spacing: float,
        coefficients: Any = None,
        *,
        cells: float | None = None,
        steps: tuple[int, int] | None = None,
        error: tuple[float, float] | None = None,
        start: tuple[float, int] | None = None,
        cosmologies: Mapping[str, Sequence[float]] | None = None,
    ):
        values = {"cells": cells, "steps": steps, "error": error, "start": start, "coefficients": coefficients}
        values = {"spacing": spacing} | {name: value for name, value in values.items() if value is not None}
        for name, value in values.items():
            low, high, shape, unit = _NUMBERS[name]
            check_number(value, name, low, high, unit=unit, several=bool(shape), constant=name != "coefficients")
            if np.shape(value) != shape:
                raise ArgumentError(name, np.shape(value), f"must have the shape {shape}")
        ranges = _checked_ranges(cosmologies)
        if steps is not None and steps[0] > steps[1]:
            raise ArgumentError("steps", steps, "must be the smallest and the largest number")
        self.spacing, self.cells = float(spacing), cells
        self.steps = None if steps is None else (steps[0], steps[1])
        self.error = None if error is None else (error[0], error[1])
        self.start = None if start is None else (start[0], start[1])
        self.cosmologies = ranges
        zeros = np.zeros(_NUMBERS["coefficients"][2])
        self.coefficients = as_array(zeros if coefficients is None else coefficients)

    @classmethod
    def auto(cls, config: Config, cosmo: Cosmology | GrowthTable | None = None) -> ForceCorrection:
        """The correction of this package for a simulation.

        Args:
          config: the simulation.
          cosmo: its cosmology, to compare with the training.

        Raises:
          ValueError: none was trained for such particles, mesh, steps or start; the message has the nearest one.

        Warns:
          UserWarning: a parameter of the cosmology is outside of the training.
        """
        nearest = cls._nearest(config)
        if nearest._distance(config) > 0:
            constraint = f"none was trained for {_described(config)}; the nearest one is for {nearest._range()}"
            raise ArgumentError("correction", "auto", constraint, "change the simulation, or train one")
        nearest.check(config)
        for text in nearest.warnings(cosmo):
            warnings.warn(text, stacklevel=2)
        return nearest

    @classmethod
    def fitting(cls, config: Config) -> ForceCorrection | None:
        """The correction that a run of a config file has by default; None where none was trained for such a simulation.

        With one cell a particle none is: it adds power beyond half the Nyquist frequency, and spends phases.

        Args:
          config: the simulation.
        """
        nearest = cls._nearest(config)
        fits = nearest._distance(config) <= 0 and _is_default_force(config)
        return nearest if fits and nearest.cells != 1 else None

    @classmethod
    def _nearest(cls, config: Config) -> ForceCorrection:
        check_config(config)
        trained = [cls.load(path) for path in sorted(_TRAINED.glob("*.json"))]
        return min(trained, key=lambda correction: correction._distance(config))

    def __call__(self, k: Float[Array, " n"], sigma8: Float[Array, ""]) -> Float[Array, " n"]:
        """Factor at wavenumbers [h/Mpc] and the sigma8 of a time."""
        of_k = _spline((k[:, None] * self.spacing / math.pi - _WAVES.astype(k.dtype)[None]) / 0.2)
        of_s = _spline((jnp.minimum(sigma8, 1) - _AMPLITUDES.astype(k.dtype)) / 0.5)
        products = self.coefficients.astype(k.dtype)[None] * of_k[:, :, None] * of_s[None, None]
        return jnp.exp(jnp.sum(products, axis=(1, 2)))

    def in_cosmology(self, table: GrowthTable) -> Callable[[Array, Array], Array]:
        """Factor of (wavenumbers [h/Mpc], scale factor) in a cosmology."""
        return lambda k, a: self(k, table.cosmo.sigma8 * table.D1(a))

    def check(self, config: Config) -> None:
        """Raise ValueError unless a simulation is in the range of the training; the spacing to 10 %."""
        if self._distance(config) > 0:
            constraint = f"is for {self._range()}, and here are {_described(config)}"
            raise ArgumentError("correction", self, constraint, "take another one, or none", show_value=False)
        if not _is_default_force(config):
            raise ArgumentError("correction", self, "is for finite differences without compensation", show_value=False)

    def warnings(self, cosmo: Cosmology | GrowthTable | None) -> list[str]:
        """Parameters of a cosmology, of known value, that are outside of the training."""
        if cosmo is None:
            return []
        cosmo = parameters(cosmo.cosmo if isinstance(cosmo, GrowthTable) else cosmo)
        values = {"Omega_m": cosmo.Omega_c + cosmo.Omega_b, "sigma8": cosmo.sigma8, "w0": cosmo.w0}
        return [
            f"{name} = {value:.3g} is outside of {low:g} to {high:g}, the training of the correction of the force"
            for name, low, high in self.cosmologies
            if not isinstance(values[name], Tracer) and not low <= (value := float(np.asarray(values[name]))) <= high
        ]

    def _distance(self, config: Config) -> float:
        """Logarithmic distance from the range of the training."""
        low, high = self.steps or (config.steps, config.steps)
        a, order = self.start or (config.a_start, config.lpt_order)
        of_axes = [
            max(abs(math.log(spacing / self.spacing)) - math.log(1.1), 0)
            + max(abs(math.log(cells / (self.cells or cells))) - 0.01, 0)
            for spacing, cells in _of_axes(config)
        ]
        of_start = max(math.log(config.a_start / a) - 0.01, 0) + 0.1 * max(order - config.lpt_order, 0)
        return max(of_axes) + max(math.log(low / config.steps), math.log(config.steps / high), 0) + of_start

    def _range(self) -> str:
        """Description for messages."""
        steps = "" if self.steps is None else ", {} to {} steps".format(*self.steps)
        start = "" if self.start is None else ", {1}LPT until a = {0:g}".format(*self.start)
        return _apart(self.spacing, self.cells) + steps + start

    def save(self, path: str | Path, **provenance: Any) -> None:
        """Write a JSON file, with values that JSON holds as its provenance."""
        content = {name: getattr(self, name) for name in ("spacing", "cells", "steps", "error", "start")}
        content["cosmologies"] = {name: ends for name, *ends in self.cosmologies}
        content |= {"coefficients": np.asarray(self.coefficients, float).tolist(), "provenance": provenance}
        write_text(Path(path), json.dumps(content) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> ForceCorrection:
        """The correction of a file.

        Raises:
          OSError: the file can't be read.
          ValueError: the file is not one of `save`.
        """
        try:
            content = json.loads(read_text(Path(path), _LARGEST))
            options = {name: content[name] for name in ("cells", "steps", "error")}
            options |= {name: content.get(name) for name in ("start", "cosmologies")}
            return cls(content["spacing"], np.asarray(content["coefficients"]), **options)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise ArgumentError("correction", str(path), "is not a file of ForceCorrection.save")


def _checked_ranges(cosmologies: Mapping[str, Sequence[float]] | None) -> tuple[tuple[str, float, float], ...]:
    """Ranges of parameters in the order of their names."""
    if isinstance(cosmologies, tuple):  # of a correction, given by dataclasses.replace
        cosmologies = {name: ends for name, *ends in cosmologies}
    ranges: dict[str, Any] = dict(cosmologies or {})
    for name, ends in ranges.items():
        check_number(ends, f"cosmologies[{name!r}]", several=True)
        if name not in _PARAMETERS or np.shape(ends) != (2,) or ends[0] > ends[1]:
            constraint = f"must be pairs of ascending numbers for some of {', '.join(_PARAMETERS)}"
            raise ArgumentError("cosmologies", ranges, constraint)
    return tuple((name, ranges[name][0], ranges[name][1]) for name in sorted(ranges))


def _is_default_force(config: Config) -> bool:
    return config.gradient == "finite-difference" and not config.compensated


def _of_axes(config: Config) -> list[tuple[float, float]]:
    """Distance of the particles, and mesh cells a particle, along each axis."""
    shapes = zip(config.box_size, config.mesh_shape, config.particle_shape, strict=True)
    return [(side / n, m / n) for side, m, n in shapes]


def _described(config: Config) -> str:
    """Description for messages, by the axis of the largest distance."""
    start = f"{config.lpt_order}LPT until a = {config.a_start:g}"
    return f"{_apart(*max(_of_axes(config)))}, {config.steps} steps, {start}"


def _apart(spacing: float, cells: float | None) -> str:
    mesh = "" if cells is None else f", {cells:.3g} cell{'' if cells == 1 else 's'} a particle"
    return f"particles {spacing:.3g} Mpc/h apart{mesh}"


def _spline(x: Array) -> Array:
    """Cubic B-spline of unit spacing."""
    x = jnp.abs(x)
    return jnp.where(x < 1, 2 / 3 - x**2 + x**3 / 2, jnp.maximum(2 - x, 0) ** 3 / 6)
