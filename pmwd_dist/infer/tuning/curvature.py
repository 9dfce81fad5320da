"""The largest curvature of a log density, which limits the stable steps of MCLMC in any number of dimensions.

It is found by power iteration, with differences of gradients instead of products with the Hessian. Curvatures grow
with parameters such as a galaxy bias. Chains of a short tuning visit the middle of the posterior, so that the curvature
is measured where each parameter is `AWAY` standard deviations from its mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax.program import jit
from pmwd_dist.infer import trees
from pmwd_dist.infer.constants import ASIDE, AWAY, FURTHER, ITERATIONS, LARGEST_PHASE
from pmwd_dist.parallel.distributed import to_devices, to_host

_aside = jit(trees.add)


def largest_curvatures(slopes: Callable[[Any], Any], positions: Any, extremes: Sequence[Any] = ()) -> np.ndarray:
    """Lower bounds of the largest curvature of the log density at positions, and then at extremes, batch by batch.

    The few iterations at extremes begin with the directions that were found at the positions.

    `slopes` gives the gradients of the log density at positions of a batch of chains, and `extremes` are other
    positions of the same chains (`at_extremes`).
    """

    def iterated(positions: Any, directions: Any, times: int) -> tuple[Any, np.ndarray]:
        sizes = None
        for _ in range(times):
            ends = [slopes(_aside(positions, sign * ASIDE, directions)) for sign in (-1.0, 1.0)]
            directions, sizes = _normalised(jax.tree.map(lambda x, y: (x - y) / (2 * ASIDE), *ends))
        return directions, to_host(sizes)

    directions, found = iterated(positions, _normalised(slopes(positions))[0], ITERATIONS)
    return np.concatenate([found, *(iterated(x, directions, FURTHER)[1] for x in extremes)])


@jit
def _normalised(directions: Any) -> tuple[Any, Array]:
    """Directions of norm 1, and their norms."""
    sizes = jax.vmap(trees.norm)(directions)
    return jax.vmap(lambda size, x: trees.scale(1 / size, x))(sizes, directions), sizes


def at_extremes(positions: Any, numbers: np.ndarray) -> list[Any]:
    """Batches of the positions, each with numbers that are `AWAY` standard deviations from their mean, one at a time.

    There are none without numbers or steps.

    The numbers are those of the positions along chains, (chains, steps, n).
    """
    if not numbers.size:
        return []
    mean, sd = numbers.mean(axis=(0, 1)), numbers.std(axis=(0, 1))
    leaves, structure = jax.tree.flatten(positions)
    places = [i for i, x in enumerate(leaves) if x.ndim == 1]
    extremes = [(i, m + sign * AWAY * s) for i, m, s in zip(places, mean, sd, strict=True) for sign in (-1.0, 1.0)]
    batches, chains = list[Any](), len(numbers)
    for first in range(0, len(extremes), chains):
        new = list(leaves)
        for chain, (i, extreme) in enumerate(extremes[first : first + chains]):
            moved = np.array(to_host(new[i]))
            moved[chain] = extreme
            new[i] = to_devices(moved, leaves[i].sharding)
        batches.append(structure.unflatten(new))
    return batches


def longest_step(curvatures: np.ndarray) -> float:
    """The stability limit of the step of MCLMC, per root of the dimensions; values that are not finite are ignored."""
    largest = float(np.max(curvatures, where=np.isfinite(curvatures), initial=0.0))
    return LARGEST_PHASE / math.sqrt(largest) if largest > 0 else math.inf
