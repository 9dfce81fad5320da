"""Step size, momentum decoherence length and masses of MCLMC, from a run of it (Robnik & Seljak 2023).

The step size follows the energy error, whose variance grows as the sixth power of the step; its target is 5e-4 per
dimension. It is measured block by block with the step size held, about its mean: in equilibrium that is half the
variance, so that at a variance beyond 1 the mean square says another thing. A direction much narrower than the others
becomes unstable while the error of all is still far below the target: steps begin small, a block that was unstable is
undone, since it leaves the chain far from where it should be, and its step is not tried again until masses change.

L is 0.4 of the distance over which positions decorrelate. Masses are one number for each field, whose modes a
preconditioner has brought to one scale, and one for each parameter: no field of them is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer import trees
from pmwd_dist.infer.diagnostics import ess_mean
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.isokinetic import IntegratorState, LogDensity

ENERGY_VARIANCE = 5e-4  # per dimension
BLOCK = 20  # steps with one step size, at most
_STAGES = (0.3, 0.25, 0.15, 0.15, 0.15)  # shares of the steps
_FIRST_STEP = 0.05  # of the root of the dimensions
_LARGEST_CHANGE = math.log(2)  # of the step size from one block to the next
_UNSTABLE = 100.0  # times the target
_DECORRELATION = 0.4
_PROJECTIONS = 8  # directions of the position whose correlation is followed


class Tuning(NamedTuple):
    """Parameters of MCLMC, with the names of blackjax."""

    L: Array
    step_size: Array
    inverse_mass_matrix: Any


class Block(NamedTuple):
    """What a block of steps has shown, of one chain or with a leading axis of chains.

    Args:
      energy_change: of each step.
      nonans: of each step.
      followed: numbers of the position, and projections of its fields, after each step.
      mean: of the position.
      square: mean square of each leaf of the position.
    """

    energy_change: Array
    nonans: Array
    followed: Array
    mean: Any
    square: Any


Run = Callable[[Array, IntegratorState, Tuning], tuple[IntegratorState, Block]]


def run_block(
    key: Array, state: IntegratorState, tuning: Tuning, logdensity: LogDensity, steps: int
) -> tuple[IntegratorState, Block]:
    """A block of steps of one chain."""

    def once(carry: tuple[IntegratorState, Any, Any], key: Array) -> Any:
        state, mean, square = carry
        state, info = mclmc.step(key, state, logdensity, **tuning._asdict())
        mean = jax.tree.map(lambda m, x: m + x / steps, mean, state.position)
        square = jax.tree.map(lambda s, x: s + jnp.mean(x**2) / steps, square, state.position)
        return (state, mean, square), (info.energy_change, info.nonans, _project(state.position))

    zeros = jax.tree.map(jnp.zeros_like, state.position)
    begin = state, zeros, jax.tree.map(jnp.mean, zeros)
    (state, mean, square), each = jax.lax.scan(once, begin, jax.random.split(key, steps))
    energy, nonans, followed = each
    return state, Block(energy, nonans, followed, mean, square)


def tune(key: Array, states: IntegratorState, run: Run, *, steps: int) -> tuple[IntegratorState, Tuning]:
    """Run a batch of chains for some steps, and find the parameters of MCLMC that they share.

    In the first stage fields come to the parameters, which stay: all at once, parameters would go where the field that
    is not yet there matters least. It and the next two find the step size, and the first two masses after it; the
    fourth finds L, and the last the step size that goes with all of these.

    Args:
      key: of jax.random.
      states: from `mclmc.init`, with a leading axis of chains.
      run: function (key, states, tuning) -> (states, blocks), a batch of `run_block`, jitted.
      steps: in all, as near as blocks allow.

    Returns:
      The last states, and the parameters.

    Raises:
      ValueError: fewer than 40 steps.
    """
    search = _Search(key, states, run)
    counts = [max(1, round(share * steps / block_length(steps))) for share in _STAGES]
    search.adapt(counts[0])
    search.weigh()
    search.adapt(counts[1])
    search.weigh()
    search.adapt(counts[2])
    search.follow(counts[3])
    search.adapt(counts[4])
    return search.states, search.tuning()


def block_length(steps: int) -> int:
    """Steps of a block in a tuning of so many steps.

    Raises:
      ValueError: fewer than 40 steps.
    """
    if steps < 40:
        raise ArgumentError("steps", steps, "must be 40 or more to tune")
    return min(BLOCK, steps // 8)


class _Search:
    """The parameters so far, on the host, and what the blocks of the last stage have shown."""

    def __init__(self, key: Array, states: IntegratorState, run: Run):
        self.key, self.states, self.run, self.dtype = key, states, run, np.dtype(states.logdensity.dtype)
        leaves, self.structure = jax.tree.flatten(states.position)
        self.sizes = np.array([math.prod(jnp.shape(x)[1:]) for x in leaves])
        self.dimensions = int(self.sizes.sum())
        numbers = np.array([jnp.ndim(x) == 1 for x in leaves])
        self.held = numbers & ~numbers.all()  # those that stay where they are at first
        self.variance = np.where(self.held, 0.0, 1.0)
        self.L = math.sqrt(self.dimensions)
        self.step_size = _FIRST_STEP * self.L
        self.largest = math.inf
        self.blocks: list[Block] = []
        self.count = 0

    def tuning(self) -> Tuning:
        """The parameters, as arrays."""
        masses = jax.tree.unflatten(self.structure, [jnp.asarray(v, self.dtype) for v in self.variance])
        return Tuning(jnp.asarray(self.L, self.dtype), jnp.asarray(self.step_size, self.dtype), masses)

    def _block(self) -> float:
        """Run a block, and undo it if it was unstable; the variance of its energy error a dimension, or infinity."""
        states, block = self.run(jax.random.fold_in(self.key, self.count), self.states, self.tuning())
        self.count += 1
        energy = np.asarray(block.energy_change, float)
        variance = float(np.mean(np.var(energy, axis=1, ddof=1))) / self.dimensions
        if not np.all(block.nonans) or not variance < _UNSTABLE * ENERGY_VARIANCE:
            return math.inf
        self.states = states
        self.blocks.append(jax.tree.map(np.asarray, block))
        return variance

    def adapt(self, count: int) -> None:
        """Run blocks with step sizes that come nearer to the target; the last half of them decides together."""
        self.blocks, wanted = [], list[float]()
        for _ in range(count):
            variance = self._block()
            if math.isinf(variance):
                self.largest = 0.8 * self.step_size
                self.step_size /= 2
                continue
            change = math.log(ENERGY_VARIANCE / max(variance, 1e-300)) / 6
            change = float(np.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE))
            wanted.append(math.log(self.step_size) + change)
            settled = wanted[len(wanted) // 2 :]
            near = abs(change) < 0.5 * _LARGEST_CHANGE
            self.step_size = min(math.exp(float(np.mean(settled)) if near else wanted[-1]), self.largest)

    def weigh(self) -> None:
        """Masses from the variances over the last half of the blocks, within chains; the step goes with their mean."""
        kept = self.blocks[len(self.blocks) // 2 :]
        variance = np.array([self._variance(kept, i) for i in range(len(self.sizes))])
        variance[self.held] = 1.0
        self.held = np.zeros_like(self.held)
        ratio = np.average(self.variance, weights=self.sizes) / np.average(variance, weights=self.sizes)
        self.step_size *= math.sqrt(ratio)
        self.variance, self.largest = variance, math.inf

    @staticmethod
    def _variance(blocks: list[Block], leaf: int) -> float:
        if not blocks:
            return 1.0
        means = [jax.tree.leaves(block.mean)[leaf] for block in blocks]
        mean = sum(means[1:], means[0]) / len(means)
        square = np.mean([jax.tree.leaves(block.square)[leaf] for block in blocks])
        return max(float(square - np.mean(mean**2)), 1e-6)

    def follow(self, count: int) -> None:
        """Find L from the correlation of positions, with a fixed step size."""
        self.blocks = []
        for _ in range(count):
            if math.isinf(self._block()):
                self.largest = 0.8 * self.step_size
                self.step_size = self.largest
        if not self.blocks:
            return
        followed = np.concatenate([block.followed for block in self.blocks], axis=1).astype(float)
        times = [x.size / ess_mean(x[None]) for chain in followed for x in chain.T]
        self.L = max(_DECORRELATION * float(np.mean(times)) * self.step_size, self.step_size)


def _project(position: Any) -> Array:
    """Numbers of a position, and projections of its fields on fixed directions."""
    fields = [x for x in jax.tree.leaves(position) if x.ndim]
    numbers = [x for x in jax.tree.leaves(position) if not x.ndim]

    def along(key: Array) -> Array:
        return trees.dot(fields, trees.normal_like(key, fields))

    directions = jax.random.split(jax.random.key(0), _PROJECTIONS)
    along_all = jax.lax.map(along, directions) if fields else jnp.zeros(0)
    return jnp.concatenate([along_all, jnp.asarray(numbers, along_all.dtype)])
