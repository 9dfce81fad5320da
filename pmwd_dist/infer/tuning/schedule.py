"""The stages of a tuning, as records in one table, its state, and the step size (docs/explanation/tuning.md).

Posteriors of N-body simulations have other maxima at more evolved universes, in which chains can be stuck. Large scales
settle before small ones where the weight of the likelihood, a power to which it is raised, grows evenly in its
logarithm. HMC begins as MCLMC, which reaches the posterior in fewer gradients, and runs itself in the last stage
(Robnik & Seljak 2023 for MCLMC).

The variance of the energy error goes as h^6 for a step h of MCLMC, and as h^4 for a trajectory of HMC. Each block asks
for the step with the target variance. MCLMC accepts every step and takes a low quantile of these, HMC the median. The
largest curvature limits the step (`tuning.loop`), since the error of many dimensions hides a few unstable ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._checks import check_number
from pmwd_dist.infer import constants, trees
from pmwd_dist.infer.precondition import Observations
from pmwd_dist.infer.samplers.methods import Method, Tuning
from pmwd_dist.parallel.inputs import whole_number


class Stage(NamedTuple):
    """A stage of a tuning.

    Args:
      name: name of the stage.
      share: share of the steps.
      weight: weight of the likelihood at its beginning, which grows to 1.
      parameters_move: whether parameters move, or fields alone.
      L: decoherence length of MCLMC, per root of the dimensions.
      adapts: whether the preconditioner is adapted at its end (`infer.precondition`).
      own_sampler: whether the sampler of the chains runs, or MCLMC.
    """

    name: str
    share: float
    weight: float
    parameters_move: bool
    L: float
    adapts: bool
    own_sampler: bool = False


STAGES = (
    Stage("approach", 0.30, 0.002, False, 1.0, adapts=False),  # the weight of the likelihood grows to 1
    Stage("field", 0.12, 1.0, False, 1.0, adapts=True),  # fields relax
    Stage("parameters", 0.16, 1.0, True, 4.0, adapts=True),  # parameters move
    Stage("posterior", 0.14, 1.0, True, 4.0, adapts=True),
    Stage("step size", 0.28, 1.0, True, 4.0, adapts=False, own_sampler=True),
)
SETTLING = (  # of chains with the tuning of other ones
    Stage("approach", 0.40, 0.002, False, 1.0, adapts=False),
    Stage("field", 0.12, 1.0, False, 1.0, adapts=True),  # the mean of the noise, where it is adapted, is the data's own
    Stage("settling", 0.48, 1.0, True, 4.0, adapts=False, own_sampler=True),
)


def block_length(steps: int) -> int:
    """Number of steps of a block in a tuning of `steps`."""
    return min(constants.BLOCK, steps // 8)


class StepSize(NamedTuple):
    """A step size, and the bounds that the tuning has found so far.

    Args:
      value: step size.
      wanted: logarithm of the step that each chain asks for, stable block by stable block of a stage, (blocks, chains).
      stability: stability limit of MCLMC along the direction of the largest curvature; no more than half a trajectory.
      unstable: bound from the last unstable block.
      stable: largest step of a stable block.
    """

    value: float
    wanted: np.ndarray
    stability: float = math.inf
    unstable: float = math.inf
    stable: float = 0.0

    def scaled(self, factor: float, stability: float) -> StepSize:
        """The step in other units, after a change of positions or the sampler, without earlier blocks."""
        return StepSize(min(factor * self.value, stability), self.wanted[:0], stability)

    def settled(self) -> StepSize:
        """The step at the end of a tuning, no larger than the largest stable one."""
        return self._replace(value=min(self.value, self.stable or math.inf), wanted=self.wanted[:0])


def is_stable(energy_change: np.ndarray, fine: np.ndarray, target: float, *, late: bool) -> bool:
    """Whether a block may be kept: finite, and with an energy error that is not far beyond the target."""
    variance = float(np.mean(np.var(energy_change, axis=1, ddof=1)))
    return bool(np.all(fine)) and variance < (constants.UNSTABLE_LATE if late else constants.UNSTABLE) * target


def after_block(step: StepSize, energy_change: np.ndarray, target: float, method: Method, *, stable: bool) -> StepSize:
    """The step size for the next block.

    `energy_change` has the shape (chains, steps). A block that is not stable was discarded (`is_stable`).
    """
    if not stable:
        unstable = step.value
        return step._replace(value=constants.AFTER_UNSTABLE * unstable, unstable=constants.LARGEST_STABLE * unstable)
    power, tail = (6, constants.TAIL) if method == "mclmc" else (4, 0.5)
    variance = np.maximum(np.var(energy_change, axis=1, ddof=1), 1e-300)
    change = np.clip(np.log(target / variance) / power, -constants.LARGEST_CHANGE, constants.LARGEST_CHANGE)
    wanted = np.concatenate([step.wanted, math.log(step.value) + change[None]])
    value = math.exp(float(np.quantile(wanted[len(wanted) // 2 :], tail)))
    if abs(now := float(np.quantile(change, tail))) > 0.5 * constants.LARGEST_CHANGE:  # far from the target
        value = step.value * math.exp(now)
    value = min(value, step.stability, step.unstable)
    return step._replace(value=value, wanted=wanted, stable=max(step.stable, step.value))


class Block(NamedTuple):
    """Statistics of a block of steps, of one chain or with a leading axis of chains.

    Args:
      energy_change: energy error of each step.
      nonans: whether each step is finite.
      observed: results of the observer, after each step.
      noise: mean of the observer's field.
    """

    energy_change: Array
    nonans: Array
    observed: Any
    noise: Array


class PlannedBlock(NamedTuple):
    """A block of a tuning.

    Args:
      stage: stage of the block.
      method: sampler that runs.
      weight: weight of the likelihood.
      reevaluates: whether the block before has another weight or sampler, so that states must be evaluated again: MCLMC
        keeps gradients at the kick point beside the position (`mclmc.step`).
      observed: whether its statistics enter the estimates, as in the last half of a stage.
      ends: whether it is the last one of its stage.
    """

    stage: Stage
    method: Method
    weight: float
    reevaluates: bool
    observed: bool
    ends: bool


class TuningState(NamedTuple):
    """State of a tuning, on the host.

    Args:
      total: finished blocks, kept or not.
      step: step size with its bounds.
      kept: whether the last block was kept; states of an unstable one must be discarded.
      observed: observations, (chains, steps, n), of the kept blocks in the last half of the stage.
      noise: sum over these blocks of the mean of the observer's field, (chains, ...).
      blocks: number of these blocks.
      failed, steps: failed steps and all steps of the stage.
    """

    total: int
    step: StepSize
    kept: bool = True
    observed: Observations = Observations(*[np.zeros(0)] * 6)
    noise: np.ndarray = np.zeros(0)
    blocks: int = 0
    failed: int = 0
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Schedule:
    """The stages of a tuning for positions of some shapes.

    Args:
      positions: positions of the chains, with a leading axis.
      steps: number of steps, rounded to whole blocks.
      method: sampler to tune.
      energy_variance: target variance of the energy error of a step of MCLMC, per dimension.
      stages: table of the stages.

    Raises:
      ValueError: fewer than 40 steps, or a target that is not from 1e-15 to 0.002.
    """

    positions: Any
    steps: int
    method: Method = "mclmc"
    energy_variance: float = constants.ENERGY_VARIANCE
    stages: tuple[Stage, ...] = STAGES

    def __post_init__(self):
        remedy = f"use {constants.ENERGY_VARIANCE:g}, or less where the error differs along a chain"
        check_number(self.energy_variance, "energy_variance", *constants.ENERGY_VARIANCES, remedy=remedy)
        whole_number(self.steps, "tuning_steps", least=constants.SHORTEST)

    @cached_property
    def blocks(self) -> list[PlannedBlock]:
        """All blocks in their order."""
        planned = list[PlannedBlock]()
        before = 1.0, "mclmc"  # density and sampler of the states to begin with
        for stage in self.stages:
            count = max(1, round(stage.share * self.steps / block_length(self.steps)))
            method = self.method if stage.own_sampler else "mclmc"
            for i in range(count):
                weight = stage.weight ** (1 - i / count)
                other, before = (weight, method) != before, (weight, method)
                planned.append(PlannedBlock(stage, method, weight, other, 2 * (i + 1) > count, i == count - 1))
        return planned

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(jax.tree.leaves(self.positions)[0])

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a position."""
        return trees.size(self.positions) // self.chains

    def begin(self) -> TuningState:
        """The state before the first block."""
        return TuningState(0, StepSize(constants.FIRST_STEP * math.sqrt(self.dimensions), np.zeros((0, self.chains))))

    def done(self, state: TuningState) -> bool:
        """Whether all blocks have run."""
        return state.total == len(self.blocks)

    def next(self, state: TuningState) -> PlannedBlock:
        """The next block; after the tuning the last one."""
        return self.blocks[min(state.total, len(self.blocks) - 1)]

    def last(self, state: TuningState) -> PlannedBlock:
        """The last block that has run."""
        return self.blocks[state.total - 1]

    def tuning(self, state: TuningState) -> Tuning:
        """The parameters of the sampler, as NumPy arrays."""
        kind, block = np.dtype(jnp.result_type(*jax.tree.leaves(self.positions))), self.next(state)
        # The orbits of nearly normal fields have no error at any step: all trajectories would have one length.
        length = block.stage.L * math.sqrt(self.dimensions) if block.method == "mclmc" else constants.TRAJECTORY
        moves = jax.tree.map(lambda x: np.asarray(block.stage.parameters_move or x.ndim > 1, kind), self.positions)
        size = np.asarray(state.step.value, kind)
        return Tuning(np.asarray(max(length, size), kind), size, moves)

    def update(self, state: TuningState, block: Block) -> TuningState:
        """The state after a block, of NumPy arrays."""
        now = self.next(state)
        target = constants.TRAJECTORY_VARIANCE if now.method != "mclmc" else self.energy_variance * self.dimensions
        energy, fine = np.asarray(block.energy_change, float), np.asarray(block.nonans, bool)
        kept = is_stable(energy, fine, target, late=now.stage.own_sampler and now.method == "mclmc")
        step = after_block(state.step, energy, target, now.method, stable=kept)
        state = state._replace(total=state.total + 1, step=step, kept=kept)
        state = state._replace(failed=state.failed + int(np.sum(~fine)), steps=state.steps + fine.size)
        if not (kept and now.observed):
            return state
        observed, noise = jax.tree.map(lambda x: np.asarray(x, float), block.observed), np.asarray(block.noise)
        if state.blocks:
            observed = jax.tree.map(lambda *x: np.concatenate(x, axis=1), state.observed, observed)
            noise = state.noise + noise
        return state._replace(observed=observed, noise=noise, blocks=state.blocks + 1)

    def advance(self, state: TuningState, stability: float = math.inf) -> TuningState:
        """The state at the beginning of the next stage.

        The last block ends a stage, and the positions have been adapted. `stability` is the limit of stable steps there
        per root of the dimensions.
        """
        step, last, root = state.step, self.last(state), math.sqrt(self.dimensions)
        if self.done(state):
            return state._replace(step=step.settled())
        step = step.scaled(1.0, stability * root) if last.stage.adapts else step._replace(wanted=step.wanted[:0])
        if self.next(state).method != last.method:  # steps of HMC are times
            limit = min(step.stability / root, 0.5 * constants.TRAJECTORY)
            step = step.scaled(constants.FIRST_OF_TRAJECTORY / root, limit)
        return TuningState(state.total, step)
