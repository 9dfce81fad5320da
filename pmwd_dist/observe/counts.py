"""Expected counts of galaxies in a survey: number density, selection and mask."""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_number, check_shares
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import numbers
from pmwd_dist.pm import inputs

MAX_CUT = 0.02  # share of P(k) that is lost where negative densities are cut
_SEEN = "must be finite, with a mean above 0 where it is seen"
_SCATTER = 2.5e5  # [(Mpc/h)^3] over the volume: variance of a selection that structure may hide
MOST_IN_A_CELL = 1e6  # mean number of galaxies; Poisson numbers of JAX in single precision scatter too much beyond 1e7


@on_auto_axes
def expected_counts(
    density: Real[Array, "nx ny nz"],
    config: Config,
    *,
    number_density: ArrayLike,
    selection: ArrayLike = 1.0,
    mask: Any = None,
) -> Float[Array, "nx ny nz"]:
    """Mean number of galaxies in each cell of a survey: the rate of a Poisson process, as `jax.random.poisson` draws.

    Cells with a negative density expect no galaxies, and the others as many less as keeps the total number. Counts have
    the window of the density, cloud-in-cell for `tracer_density`.

    Args:
      density: density of the galaxies in units of their mean, 1 + delta_g. Masked cells may hold any value.
      config: configuration of the simulation.
      number_density: mean number density of the galaxies where the selection is 1 [(h/Mpc)^3].
      selection: observed fraction of the galaxies, on the mesh, or one number for all cells.
      mask: observed fraction of each cell, on the mesh: boolean, or from 0 to 1; default: 1.

    Raises:
      ValueError: a field is not on the mesh, a density without a positive mean, a number density that is negative or of
        more than a million galaxies a cell, or a selection or mask beyond 0 to 1.

    Warns:
      UserWarning: P(k) of the counts is more than 2 % too low, since negative densities are cut to 0; not where the
        density is traced.

    Examples:
      >>> rate = observe.expected_counts(galaxies, config, number_density=1e-3)
      >>> counts = jax.random.poisson(jax.random.key(1), rate)
    """
    density = inputs.mesh_field(density, config, "density")
    if np.ndim(number_density):
        raise ArgumentError("number_density.shape", np.shape(number_density), "must be ()", "vary it by selection")
    most = MOST_IN_A_CELL / math.prod(config.cell_size)
    check_number(number_density, "number_density", 0, most, unit="(h/Mpc)^3")
    factors = {"mask": 1.0 if mask is None else mask, "selection": selection, "number_density": number_density}
    counts, seen = jnp.full((), math.prod(config.cell_size), density.dtype), jnp.ones((), bool)
    for name, value in factors.items():
        factor = numbers(value, name)
        factor = inputs.mesh_field(factor, config, name) if factor.ndim else jnp.asarray(factor)
        factor = jnp.where(seen, factor, 0).astype(density.dtype)
        if name != "number_density":
            check_shares(factor, name)
        seen = factor > 0 if name == "mask" else seen
        counts = counts * factor
    density = jnp.where(seen, density, 0)
    _check_negative(density, counts)
    rate = counts * density
    cut = jnp.maximum(rate, 0)
    total = jnp.sum(cut)
    return cut * jnp.where(total > 0, jnp.maximum(jnp.sum(rate), 0) / jnp.where(total > 0, total, 1), 1)


@jit
def lost_power(density: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Share of negative cells, estimated share of P(k) that is lost with them, and sum of the density by weight.

    It is 1 - s^3.4 with the slope s of the cut density with the density. In simulations the loss is 0.5 to 1.6 times
    that, for biases of either sign, and up to three times where that is below 1 %.
    """
    weight, cut = jnp.broadcast_to(weight, density.shape), jnp.maximum(density, 0)
    total = jnp.sum(weight * density)
    contrast, of_cut = (x * (jnp.sum(weight) / jnp.sum(weight * x)) - 1 for x in (density, cut))
    variance = jnp.sum(weight * contrast**2)
    slope = jnp.sum(weight * contrast * of_cut) / jnp.where(variance > 0, variance, 1)
    return jnp.mean(weight * density < 0), jnp.where(variance > 0, 1 - jnp.maximum(slope, 0) ** 3.4, 0), total


def _check_negative(density: Array, weight: Array) -> None:
    if isinstance(density, Tracer) or isinstance(weight, Tracer):
        return
    with eval_context():
        cells, lost, total = map(float, lost_power(density, weight))
    if not 0 <= total < math.inf:
        raise ArgumentError("density", total, _SEEN, show_value=False)
    if lost > MAX_CUT:
        text = f"density: 1 + delta_g is negative in {100 * cells:.2g} % of the cells, and P(k) of counts comes out"
        text += f" about {100 * lost:.2g} % low"
        warnings.warn(f"{text}; use a larger smoothing, or biases nearer to 0", stacklevel=4)


@on_auto_axes
def weighted_overdensity(
    density: Real[Array, "nx ny nz"], weight: Real[Array, "nx ny nz"], config: Config
) -> Float[Array, "nx ny nz"]:
    """Weighted overdensity of a survey, normalised to the power of the galaxies (Feldman, Kaiser & Peacock 1994).

    W (n / m - 1) / sqrt(mean W^2), with the mean density in the survey m = sum W n / sum W. Its power is the power of
    the galaxies convolved with the power of W, and 0 at k = 0. Its shot noise is mean W / mean W^2 times the shot noise
    without a survey. For counts that are drawn in cells it is the `cell_noise` of `power_spectrum`.

    Args:
      density: density of the galaxies in units of their mean, n, on the mesh; any value where the weight is 0. Of
        a survey, counts over expected counts without clustering.
      weight: observed fraction W, selection times mask, on the mesh.
      config: configuration of the simulation.

    Raises:
      ValueError: a field is not on the mesh, a density that is not finite, or has no mean above 0 as a contrast, or a
        weight beyond 0 to 1.

    Warns:
      UserWarning: the density follows the weight, as counts do that were not divided by the expected ones; or it has
        negative values and a mean below 0.5, or of 0 in the whole box, as a contrast.
    """
    density, weight = inputs.mesh_field(density, config, "density"), inputs.mesh_field(weight, config, "weight")
    check_shares(weight, "weight")
    if not isinstance(weight, Tracer) and not weight.any():
        raise ArgumentError("weight", 0, "must not be 0 in every cell")
    contrast, *facts = overdensity_by_weight(density, weight)
    if not isinstance(contrast, Tracer):
        if not jnp.isfinite(contrast).all():
            raise ArgumentError("density", density, _SEEN, show_value=False)
        _check_density([float(x) for x in facts], config)
    return contrast


def _check_density(facts: list[float], config: Config) -> None:
    """Raise ArgumentError for a contrast, and warn of counts that hold the selection, from `overdensity_by_weight`."""
    mean, root_mean_square, lowest, of_box, excess, of_weight = facts
    if not mean > 0:
        raise ArgumentError("density", mean, _SEEN, "pass 1 + delta, not delta")
    if lowest < 0 and mean < min(0.5, 0.1 * root_mean_square):
        constraint = f"has a mean of {mean:.2g}, far below its rms, as a contrast has"
        remedy = "pass 1 + delta, not delta, or counts over their expected number"
        raise ArgumentError("density", mean, constraint, remedy, show_value=False)
    # Structure of a small survey moves the mean of a contrast, and so does a mean over the box, where it is 0.
    none = abs(of_box) < 1e-5 * root_mean_square
    if lowest < 0 and (mean < 0.5 or none):
        where = ", 0 in the whole box," if none else ""
        text = f"density: its mean is {mean:.2g}{where} and its minimum {lowest:.2g}, as of a contrast"
        warnings.warn(f"{text}; pass 1 + delta, not delta, or counts over their expected number", stacklevel=4)
    if of_weight > _SCATTER / math.prod(config.box_size) and 0.5 < excess / of_weight < 2:
        text = f"density: its mean weighted by the selection is {100 * excess:.2g} % above its mean"
        text += f", as of counts that hold the selection ({100 * of_weight:.2g} %), or by structure of a small box"
        warnings.warn(f"{text}; divide counts by the expected ones without clustering", stacklevel=4)


@jit
def overdensity_by_weight(density: Array, weight: Array) -> tuple[Array, ...]:
    """The result of `weighted_overdensity`, facts of the density, and the excess of means by weight.

    Facts are the mean by weight, the rms, the minimum, and the mean of the whole box. The excesses, over the mean of
    seen cells, belong to the density and to the weight itself.
    """
    of_box, density, seen = jnp.mean(density), jnp.where(weight > 0, density, 0), jnp.sum(weight > 0)
    mean = jnp.sum(weight * density) / jnp.sum(weight)
    contrast = weight * (density / mean - 1) / jnp.sqrt(jnp.mean(weight**2))
    facts = mean, jnp.sqrt(jnp.sum(density**2) / seen), jnp.min(density), of_box
    excesses = mean * seen / jnp.sum(density) - 1, jnp.sum(weight**2) * seen / jnp.sum(weight) ** 2 - 1
    return contrast, *facts, *excesses
