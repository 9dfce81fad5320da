"""The no-U-turn sampler (Hoffman & Gelman 2014; Betancourt 2017) on pytrees, with the trees of blackjax.

Trajectories double until they turn back, and a point of them is drawn by its weight. blackjax joins all leaves in one
array, which would gather a divided field. Momenta and the turning criterion are therefore pytrees here. The integrator
is `hmc.leapfrog`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.hmc import leapfrog
from pmwd_dist.infer.samplers.mclmc import Agree, IntegratorState, LogDensity, Transition, unchanged
from pmwd_dist.parallel.explicit_axes import on_auto_axes

DOUBLINGS = 10  # largest number for a trajectory
_DIVERGENCE = 1000.0  # energy error at which a trajectory ends

init = mclmc.init


class Marks(NamedTuple):
    """Momenta and cumulative momenta of a trajectory where its halves, quarters and so on begin.

    Both are pytrees like the momentum, with a leading axis of doublings. The turning criterion is tested with the marks
    from `first` to `last`.
    """

    momenta: Any
    sums: Any
    first: Array
    last: Array


@on_auto_axes
def step(
    key: Array,
    state: IntegratorState,
    logdensity: LogDensity,
    *,
    step_size: ArrayLike,
    inverse_mass_matrix: Any = 1.0,
    normal_precision: Any = 0.0,
    doublings: int = DOUBLINGS,
    agree: Agree = unchanged,
) -> tuple[IntegratorState, Transition]:
    """A draw from a trajectory that ends where it turns: one gradient an integration step.

    Args:
      key: random key.
      state: state from `init` or from the previous draw.
      logdensity: log density, a function of the position, which is a pytree of arrays.
      step_size: time of an integration step.
      inverse_mass_matrix: diagonal, a number or a pytree that broadcasts against the position.
      normal_precision: precision of the normal part, as in `hmc.step`.
      doublings: largest number of doublings of the trajectory.
      agree: function that makes copies of numbers equal on all processes.

    Raises:
      ImportError: blackjax is not installed.
    """
    proposal, trajectory = (import_module(f"blackjax.mcmc.{name}") for name in ("proposal", "trajectory"))
    size = jnp.asarray(step_size, state.logdensity.dtype)
    options = {"inverse_mass_matrix": inverse_mass_matrix, "normal_precision": normal_precision}

    def move(state: IntegratorState, size: Array) -> IntegratorState:
        end = leapfrog(state, size, logdensity, **options)
        value = agree(end.logdensity)
        return end._replace(logdensity=jnp.where(jnp.isfinite(value), value, -jnp.inf))

    def kinetic(momentum: Any, position: Any = None) -> Array:
        del position
        return agree(0.5 * trees.dot(momentum, momentum))

    def turns(*ends: Any) -> Array:
        return agree(_turns(*ends))

    integrate = trajectory.dynamic_progressive_integration(move, kinetic, _marked, partial(_turned, turns), _DIVERGENCE)
    expand = trajectory.dynamic_multiplicative_expansion(integrate, turns, doublings)
    draw, choice = jax.random.split(key)
    momentum = trees.normal_like(draw, state.position)  # in units of the root of the mass matrix
    begin = state._replace(momentum=momentum)
    energy = kinetic(momentum) - state.logdensity
    point = proposal.Proposal(begin, energy, 0.0, -jnp.inf), trajectory.Trajectory(begin, begin, momentum, 0)
    tree = trajectory.DynamicExpansionState(0, *point, _no_marks(momentum, doublings))
    (_, drawn, whole, _), (diverged, _) = expand(choice, tree, energy, size)
    new = drawn.state
    rate = jnp.exp(drawn.sum_log_p_accept) / whole.num_states
    failed = diverged & ~trees.all_finite((whole.leftmost_state, whole.rightmost_state))
    return new, Transition(drawn.energy - energy, ~failed, rate, whole.num_states)


def _turns(left: Any, right: Any, total: Any, *_: Any) -> Array:
    """Whether a trajectory turns back at one of its ends, from the momenta there and the sum of all of them."""
    inside = trees.add(trees.add(total, -0.5, left), -0.5, right)
    return (trees.dot(left, inside) <= 0) | (trees.dot(right, inside) <= 0)


def _no_marks(momentum: Any, doublings: int) -> Marks:
    room, none = jax.tree.map(lambda p: jnp.zeros((doublings, *p.shape), p.dtype), momentum), jnp.zeros((), int)
    return Marks(room, room, none, none)


def _marked(marks: Marks, total: Any, momentum: Any, step: Array) -> Marks:
    """The marks with the momentum of a step where a part of the trajectory begins, every second step."""
    last = jax.lax.population_count(jnp.asarray(step) >> 1)
    ends = jax.lax.population_count((~step & (step + 1)) - 1)  # parts that end with the step

    def put(kept: Any, new: Any) -> Any:
        return jax.tree.map(lambda k, x: jnp.where(step % 2 == 0, k.at[last].set(x), k), kept, new)

    return Marks(put(marks.momenta, momentum), put(marks.sums, total), last - ends + 1, last)


def _turned(turns: Callable[..., Array], marks: Marks, total: Any, momentum: Any) -> Array:
    """Whether a part of the trajectory that ends here turns."""

    def look(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        index, _ = carry
        left, before = (jax.tree.map(lambda x: x[index], kept) for kept in (marks.momenta, marks.sums))
        return index - 1, turns(left, momentum, trees.add(trees.add(total, -1, before), 1, left))

    def goes_on(carry: tuple[Array, Array]) -> Array:
        return (carry[0] >= marks.first) & ~carry[1]

    return jax.lax.while_loop(goes_on, look, (marks.last, jnp.asarray(False)))[1]
