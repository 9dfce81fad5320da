"""Scale factors of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology

_LONGEST = 1.25  # growth of a step between saves over one without saves
SLACK = 1e-6  # relative: diffrax.SaveAt has times in single precision


def step_times(cosmo: Cosmology | GrowthTable, config: Config, *, save: Sequence[float] = ()) -> Float[Array, " times"]:
    """Scale factors at which steps begin and end, from a_start to a_stop.

    Steps end at all save times, and are uniform in the growth factor between them. `config.steps` are distributed over
    these intervals by their lengths in a, at least one each, independently of the cosmology. There are more steps where
    one of them would be more than a quarter longer than without save times.
    """
    knots = knots_of(config, save)
    return _times(growth_table_to(config.lpt_order, cosmo), tuple(knots), tuple(shares_of(knots, config.steps)))


@partial(jit, static_argnames=("knots", "shares"))
def _times(table: GrowthTable, knots: tuple[float, ...], shares: tuple[int, ...]) -> Array:
    """The knots, exactly, and times between them, uniform in the growth factor; shares: steps from knot to knot."""
    ends = jnp.asarray(knots, table.factors.dtype)
    D = table.D1(ends)
    parts = [D[i] + (D[i + 1] - D[i]) * jnp.arange(1, count, dtype=D.dtype) / count for i, count in enumerate(shares)]
    inner = table.scale_factor(jnp.concatenate(parts))
    after = np.cumsum([0, *shares])  # steps before each knot
    order = np.argsort(np.append(after, np.delete(np.arange(after[-1]), after[:-1])))
    return jnp.concatenate([ends, inner]).at[order].get(unique_indices=True, mode="promise_in_bounds")


def knots_of(config: Config, save: Sequence[float]) -> list[float]:
    """Ends of the time span, and the save times between them."""
    inner = {float(a) for a in save if config.a_start * (1 + SLACK) < a < config.a_stop * (1 - SLACK)}
    return [config.a_start, *sorted(inner), config.a_stop]


def shares_of(knots: Sequence[float], steps: int) -> list[int]:
    """Number of steps of each interval, at least one: the longest steps in a are split, then those in growth."""
    lengths, growth = np.diff(knots), np.diff(_growth(np.asarray(knots)))
    counts = np.ones(len(lengths), int)
    while counts.sum() < steps:
        counts[np.argmax(lengths / counts)] += 1
    while max(growth / counts) > _LONGEST * growth.sum() / steps:
        counts[np.argmax(growth / counts)] += 1
    return [int(n) for n in counts]


def _growth(a: np.ndarray) -> np.ndarray:
    """Growth factor of a flat universe with Omega_m = 0.3, to 1 % (Carroll, Press & Turner 1992, eq. 29)."""
    matter = 1 / (1 + 7 / 3 * a**3)
    return 2.5 * a * matter / (matter ** (4 / 7) - (1 - matter) + (1 + matter / 2) * (1 + (1 - matter) / 70))
