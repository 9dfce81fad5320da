"""A correction of the force on small scales that can be trained: a factor of the potential."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, read_text
from pmwd_dist.config import Config

# Centres of the splines, in k over the particles' Nyquist frequency and in a. The first one in k makes f ~ k^3.
_WAVES = 0.2 * np.arange(2, 11)
_TIMES = 0.5 * np.arange(-1, 4)
_LARGEST = 1_000_000  # bytes of a file


class ForceCorrection(eqx.Module):
    """Factor 1 + f(k / k_Ny, a) of the potential, for `nbody(..., potential_factor=...)`.

      f(x, a) = sum_ij c_ij B((x - x_i) / 0.2) B((a - a_j) / 0.5)

    with the cubic B-spline B (compare Lanusse et al. 2022, arXiv:2207.05509), x_i from 0.4 to 2 and a_j from -0.5 to
    1.5. f vanishes as k^3 for long waves. Beyond a = 1 it is constant in a.

    Args:
      spacing: distance of the particles [Mpc/h], which sets their Nyquist frequency k_Ny.
      coefficients: coefficients c; default: zeros, no correction.

    Raises:
      ValueError: the coefficients have another shape.

    Examples:
      >>> correction = pmd.ForceCorrection(spacing=2.0)
      >>> solution = pmd.nbody(particles, cosmo, config, potential_factor=correction)
    """

    coefficients: Float[Array, "9 5"]
    spacing: float = eqx.field(static=True)

    def __init__(self, spacing: float, coefficients: Any = None):
        shape = len(_WAVES), len(_TIMES)
        self.spacing = float(spacing)
        self.coefficients = jnp.zeros(shape) if coefficients is None else jnp.asarray(coefficients, float)
        if self.coefficients.shape != shape:
            raise ArgumentError("coefficients", self.coefficients.shape, f"must have the shape {shape}")

    def __call__(self, k: Float[Array, " n"], a: Float[Array, ""]) -> Float[Array, " n"]:
        """Factor at wavenumbers [h/Mpc] and a scale factor."""
        of_k = _spline((k[:, None] * self.spacing / math.pi - _WAVES.astype(k.dtype)[None]) / 0.2)
        of_a = _spline((jnp.minimum(a, 1) - _TIMES.astype(k.dtype)) / 0.5)
        products = self.coefficients.astype(k.dtype)[None] * of_k[:, :, None] * of_a[None, None]
        return 1 + jnp.sum(products, axis=(1, 2))

    def check(self, config: Config) -> None:
        """Raise ValueError unless the particles are at the distance of the correction, to 10 %."""
        spacing = max(side / n for side, n in zip(config.box_size, config.particle_shape, strict=True))
        if not 0.9 <= spacing / self.spacing <= 1.1:
            constraint = f"is for particles {self.spacing:g} Mpc/h apart, and these are {spacing:.3g} Mpc/h apart"
            raise ArgumentError("correction", self, constraint, "take another one, or none", show_value=False)

    def save(self, path: str | Path, **provenance: Any) -> None:
        """Write a JSON file, with values that JSON holds as its provenance."""
        content = {"spacing": self.spacing, "coefficients": np.asarray(self.coefficients, float).tolist()}
        with atomic_write(Path(path)) as aside:
            aside.write_text(json.dumps(content | {"provenance": provenance}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ForceCorrection:
        """The correction of a file.

        Raises:
          OSError: the file can't be read.
          ValueError: the file is not one of `save`.
        """
        try:
            content = json.loads(read_text(Path(path), _LARGEST))
            spacing, coefficients = float(content["spacing"]), np.asarray(content["coefficients"], float)
            if 0 < spacing < math.inf and np.isfinite(coefficients).all():
                return cls(spacing, coefficients)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise ArgumentError("correction", str(path), "is not a file of ForceCorrection.save")


def _spline(x: Array) -> Array:
    """Cubic B-spline of unit spacing."""
    x = jnp.abs(x)
    return jnp.where(x < 1, 2 / 3 - x**2 + x**3 / 2, jnp.maximum(2 - x, 0) ** 3 / 6)
