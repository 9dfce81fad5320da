"""The largest curvature of a log density, which limits the stable steps of MCLMC in any number of dimensions."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import LogDensity, value_and_grad

# Step per root of the dimensions, times the root of the largest curvature. Velocity Verlet is unstable from 2 on in a
# normal distribution. The curvature varies along a chain, most where linear theory does not scale the modes.
LARGEST_PHASE, LARGEST_PHASE_WITHOUT_THEORY = 1.6, 0.95
_ASIDE = 0.5  # half the distance of a difference of gradients, about the distance of a step along one direction
_ITERATIONS = 12


def largest_curvature(logdensity: LogDensity, position: Any) -> Array:
    """Lower bound of the largest curvature of the log density at a position.

    Power iterations start from the gradient. Each takes two more gradients, whose difference replaces a product with
    the Hessian.
    """

    def slope(position: Any) -> Any:
        return value_and_grad(logdensity, position)[1]

    def once(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
        direction = carry[0]
        ends = jax.lax.map(lambda sign: slope(trees.add(position, sign * _ASIDE, direction)), jnp.array([-1.0, 1.0]))
        product = jax.tree.map(lambda x: (x[0] - x[1]) / (2 * _ASIDE), ends)
        size = trees.norm(product)
        return (trees.scale(1 / size, product), size), None

    begin = slope(position)
    size = trees.norm(begin)
    return jax.lax.scan(once, (trees.scale(1 / size, begin), size), length=_ITERATIONS)[0][1]


def longest_step(curvatures: np.ndarray, *, theory: bool) -> float:
    """The stability limit of the step of MCLMC, per root of the dimensions.

    Args:
      curvatures: largest curvature at the position of each chain; values that are not finite are ignored.
      theory: whether linear theory scales the modes.
    """
    largest = float(np.max(curvatures, where=np.isfinite(curvatures), initial=0.0))
    return (LARGEST_PHASE if theory else LARGEST_PHASE_WITHOUT_THEORY) / math.sqrt(largest) if largest > 0 else math.inf
