"""Adaptation of a preconditioner to a posterior that is not that of linear theory, from slopes of its log density.

What small scales change is found from slopes g along a chain, since E[g g^T] = -E[Hessian]:

- Long waves are known far better with all others held than in linear theory, by what they displace: bands of modes of
  curvature c, where linear theory has 1, are scaled so that they have sqrt(c), or `STIFFEST` if that is less. Their
  widths are so the geometric mean of that with others held, c^-1/2, and that in linear theory, which is nearly that of
  the posterior. The few modes that are left stiff cost a sampler hardly any energy.
- Modes should follow the parameters by another share of their Wiener mean than in linear theory. With the mean of a
  band times 1 + t (u - centre), the slope along u has t r added, r being the sum of slopes times means: the t are the
  regression of the slope of u on those sums, which leaves the least curvature along u.
- Without linear theory the scale of a band changes with the parameters, too, as exp(s (u - centre)), which adds s times
  v to the slope along u, v being the number of modes plus the sum of slopes times positions. If modes were independent,
  the s that leave the least curvature would keep that of each band, c, which has the slope c': s = -c' / (2 c). Data
  that see projections make them dependent; the s are that times one share for each parameter, by the same regression.
- Steps of a finite length give parameters a volume by the sum of the curvatures of all modes
  (`isokinetic.density_shift`), which shifts them. One more s, the same for all bands, keeps that sum constant. It is
  small, since it is of all modes.
- The parameters are scaled along the eigenvectors of what curvature is left, by the same rule as the modes.

Without linear theory there is no Wiener mean. Modes then follow the parameters by shares of what data say of the noise,
the mean along the chains of x + d log p / dx, x being the noise: that is the mean of x itself (Stein 1981), but for
modes of which data say nothing it is zero, without any noise of the draws. That mean changes as exp(t (u - centre)):
for an amplitude, which has it go as 1 / u, this is nearer than a line.

All of it is linear in position at given parameters, with a volume that only these change: the posterior stays exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.pm import fourier

BANDS = 12  # of the wavenumber, of equal width in its logarithm
CLASSES = 5  # of the component of the wavevector along the line of sight: 0, 1, 2, 4, 8 or more of the smallest
STIFFEST = 4.0  # curvature left; the step of MCLMC at its target is stable up to about ten


class Adaptation(eqx.Module):
    """What is changed of a preconditioner in linear theory.

    Args:
      scale: of the modes of each band.
      stretch: change of the logarithm of that with each parameter of the position.
      shift: change of the mean of each band with each parameter of the position, or of its logarithm if it has a mean.
      centre: parameters where there are no such changes.
      factor: parameters in linear theory's scales, per parameter of the position.
      mean: of the noise, where linear theory says nothing of it.
    """

    scale: Float[Array, " bands"]
    stretch: Float[Array, "p bands"]
    shift: Float[Array, "p bands"]
    centre: Float[Array, " p"]
    factor: Float[Array, "p p"]
    mean: Float[Array, "nx ny nz"] | None

    @classmethod
    def none(cls, count: int, bands: int = BANDS, mean: Array | None = None) -> Adaptation:
        """That of linear theory, for so many parameters and bands, or of no theory but a mean of the noise."""
        zeros = jnp.zeros((count, bands))
        return cls(jnp.ones(bands), zeros, zeros, jnp.zeros(count), jnp.eye(count), mean)

    def gain(self, parameters: Float[Array, " p"]) -> Float[Array, " bands"]:
        """Factor of the mean of each band."""
        change = jnp.sum(self.shift * (parameters - self.centre)[:, None], axis=0)
        return 1 + change if self.mean is None else jnp.exp(change)

    def stretched(self, parameters: Float[Array, " p"]) -> Float[Array, " bands"]:
        """Logarithm of what the scale of each band is multiplied by."""
        return jnp.sum(self.stretch * (parameters - self.centre)[:, None], axis=0)


class Bands(NamedTuple):
    """Bands of the modes, in the layout of `prfft3d`.

    Args:
      radial: band of the wavenumber of each mode.
      classes: (CLASSES, n), true for the class of each component along an axis; None: no classes.
      along: that axis.
    """

    radial: Array
    classes: Array | None = None
    along: int = 0

    def at(self, values: Float[Array, " bands"]) -> Array:
        """The value of each mode's band: by selects, whose transposes are sums, where that of a look-up scatters."""
        if self.classes is None:
            each = list(values)
        else:
            table = jnp.sum(jnp.where(self.classes[:, None], values.reshape(CLASSES, BANDS, 1), 0), axis=0)
            each = list(table.reshape(BANDS, *(-1 if i == self.along else 1 for i in range(3))))
        parts = (jnp.where(self.radial == b, value, 0) for b, value in enumerate(each))
        return sum(parts, jnp.zeros((), values.dtype))

    def sums(self, x: Array) -> Float[Array, " bands"]:
        """Sums over the modes of each band; sums of each part of a divided spectrum, so that none is gathered."""
        others = tuple(i for i in range(3) if self.classes is None or i != self.along)
        each = jax.lax.map(lambda b: jnp.sum(jnp.where(self.radial == b, x, 0), axis=others), jnp.arange(BANDS))
        if self.classes is None:
            return each
        return jnp.sum(jnp.where(self.classes[:, None], each[None], 0), axis=-1).reshape(-1)


def bands(config: Config, along: int | None = None) -> Bands:
    """Bands of the wavenumber, and along an axis, if any, of classes of its component."""
    components, (smallest, width) = wavevectors(config), _span(config)
    k2 = sum(component**2 for component in components)
    place = 0.5 * jnp.log(jnp.maximum(k2, smallest**2) / smallest**2) / width
    radial = jnp.clip(jnp.floor(place + 1e-3), 0, BANDS - 1).astype(int)
    if along is None:
        return Bands(radial)
    number = jnp.abs(components[along]).ravel() * (config.box_size[along] / (2 * np.pi))
    classes = jnp.clip(jnp.ceil(jnp.log2(number + 1) - 1e-3), 0, CLASSES - 1).astype(int)
    return Bands(radial, classes[None] == jnp.arange(CLASSES)[:, None], along)


def band_centres(config: Config) -> np.ndarray:
    """Wavenumbers in the middle of the bands, in their logarithm [h/Mpc]."""
    smallest, width = _span(config)
    return smallest * np.exp(width * (np.arange(BANDS) + 0.5))


def _span(config: Config) -> tuple[float, float]:
    """The smallest wavenumber, and the width of a band in the logarithm."""
    smallest = 2 * np.pi / max(config.box_size)
    largest = np.pi * np.sqrt(sum(side**-2 for side in config.cell_size))
    return smallest, np.log(largest / smallest) / BANDS


def mode_counts(config: Config, dtype: Any) -> Array:
    """Number of modes of the lattice that each value of a spectrum stands for."""
    decomposition, shape = config.decomposition, config.particle_shape

    def counts() -> Array:
        return jnp.zeros_like(fourier.k_squared(shape, config, dtype)) + fourier.mode_count(shape, config, dtype)

    return decomposition.shard_map(counts, (), decomposition.spectrum_spec)()


def start(posterior: Any) -> Adaptation | None:
    """The adaptation of a posterior, if its preconditioner is one that is adapted."""
    return None if posterior.preconditioner is None else posterior.preconditioner.adaptation
