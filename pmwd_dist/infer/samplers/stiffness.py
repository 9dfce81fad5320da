"""The stiffest direction of a log density, which bounds the steps of MCLMC however many dimensions there are."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import LogDensity, value_and_grad

# Of a step per root of the dimensions, times the root of the largest curvature where the chains are. In a normal
# distribution steps of velocity Verlet are unstable from 2 on. The curvature along a chain varies, most where linear
# theory has not brought the modes to one scale at all parameters.
LARGEST_PHASE, LARGEST_PHASE_WITHOUT_THEORY = 1.6, 0.95
_ASIDE = 0.5  # half the distance of a difference of slopes, about that by which a step moves in any direction
_TURNS = 12  # iterations


def largest_curvature(logdensity: LogDensity, position: Any) -> Array:
    """The largest curvature of the log density at a position, in any direction, from below.

    By twelve power iterations from the slope, with differences of slopes: two gradients each.
    """

    def slope(position: Any) -> Any:
        return value_and_grad(logdensity, position)[1]

    def once(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
        direction = carry[0]
        ends = jax.lax.map(lambda sign: slope(trees.add(position, sign * _ASIDE, direction)), jnp.array([-1.0, 1.0]))
        turned = jax.tree.map(lambda x: (x[0] - x[1]) / (2 * _ASIDE), ends)
        size = trees.norm(turned)
        return (trees.scale(1 / size, turned), size), None

    begin = slope(position)
    size = trees.norm(begin)
    return jax.lax.scan(once, (trees.scale(1 / size, begin), size), length=_TURNS)[0][1]


def longest_step(curvatures: np.ndarray, *, theory: bool) -> float:
    """The longest stable step of MCLMC, per root of the dimensions, of chains with such largest curvatures.

    Args:
      curvatures: from `largest_curvature`; those that are not finite say nothing.
      theory: whether linear theory says anything of the modes.
    """
    largest = float(np.max(curvatures, where=np.isfinite(curvatures), initial=0.0))
    return (LARGEST_PHASE if theory else LARGEST_PHASE_WITHOUT_THEORY) / math.sqrt(largest) if largest > 0 else math.inf
