"""The stiffest direction of a log density, which bounds the steps of MCLMC however many dimensions there are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers.isokinetic import LogDensity, value_and_grad

# Of a step per root of the dimensions, times the root of the largest curvature where the chains are. In a normal
# distribution steps of McLachlan's integrator are unstable from 2.55 on; the curvature along a chain varies.
LARGEST_PHASE = 1.2
_ASIDE, _TURNS = 0.05, 12  # distance of a difference of slopes, and iterations


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
