"""The stages of a tuning, as records in one table (`STAGES`), and its state.

Posteriors of N-body simulations have other maxima at more evolved universes, in which chains can be stuck. Large scales
settle before small ones where the weight of the likelihood, a power to which it is raised, grows evenly in its
logarithm. HMC and NUTS begin as MCLMC, which reaches the posterior in fewer gradients, and run themselves in the
last stage (Robnik & Seljak 2023 for MCLMC).

A preconditioner brings modes to one scale (`infer.preconditioner_adaptation`). Without an adapted one, masses are one
number for each leaf of the position: the inverse of the mean curvature for a field, the variance along chains for a
number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.samplers.methods import TRAJECTORY, Method, Tuning
from pmwd_dist.infer.tuning.blocks import Block
from pmwd_dist.infer.tuning.step_size import ENERGY_VARIANCE, TRAJECTORY_VARIANCE, StepSize, after_block, is_stable
from pmwd_dist.parallel.inputs import whole_number


class Stage(NamedTuple):
    """A stage of a tuning.

    Args:
      name: name of the stage.
      share: share of the steps.
      weight: weight of the likelihood at its beginning, which grows to 1.
      parameters_move: whether parameters move, or fields alone.
      L: decoherence length of MCLMC, per root of the dimensions.
      estimates: what is estimated at its end: "scales", the preconditioner or masses; "preconditioner", which masses do
        not follow; "step size"; or nothing.
      own_sampler: whether the sampler of the chains runs, or MCLMC.
    """

    name: str
    share: float
    weight: float
    parameters_move: bool
    L: float
    estimates: str
    own_sampler: bool = False


STAGES = (
    Stage("approach", 0.30, 0.002, False, 1.0, ""),  # the weight of the likelihood grows to 1
    Stage("field", 0.12, 1.0, False, 1.0, "scales"),  # fields relax
    Stage("parameters", 0.16, 1.0, True, 4.0, "scales"),  # parameters move
    Stage("posterior", 0.14, 1.0, True, 4.0, "preconditioner"),
    Stage("step size", 0.28, 1.0, True, 4.0, "step size", own_sampler=True),
)
SHORTEST = 40  # steps of the shortest tuning
BLOCK = 20  # largest number of steps with one step size
_FIRST_STEP = 0.05  # per root of the dimensions


def block_length(steps: int) -> int:
    """Number of steps of a block in a tuning of `steps`."""
    return min(BLOCK, steps // 8)


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
      variance: inverse mass of each leaf of the position.
      kept: whether the last block was kept; states of an unstable one must be discarded.
      numbers: leaves of the positions without axes, (chains, steps, n), of the last half of the stage.
      curvature: sum over kept blocks of the mean curvature along each leaf, and their number.
      observed: numbers from the observer, (chains, steps, n).
      noise: sum over blocks of the mean of the observer's field, (chains, ...).
      failed, steps: failed steps and all steps of the stage.
    """

    total: int
    step: StepSize
    variance: np.ndarray
    kept: bool = True
    numbers: np.ndarray = np.zeros(0)
    curvature: np.ndarray = np.zeros(1)
    observed: np.ndarray = np.zeros(0)
    noise: np.ndarray = np.zeros(0)
    failed: int = 0
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Schedule:
    """The stages of a tuning for positions of some shapes.

    Args:
      positions: positions of the chains, with a leading axis.
      steps: number of steps, rounded to whole blocks.
      method: sampler to tune; NUTS is tuned as HMC.
      energy_variance: target variance of the energy error of a step of MCLMC, per dimension.
      adapts: whether the preconditioner is adapted, or masses.
      stages: table of the stages.

    Raises:
      ValueError: fewer than 40 steps, or a target that is not positive.
    """

    positions: Any
    steps: int
    method: Method = "mclmc"
    energy_variance: float = ENERGY_VARIANCE
    adapts: bool = False
    stages: tuple[Stage, ...] = STAGES

    def __post_init__(self):
        if not 0 < self.energy_variance < math.inf:
            remedy = f"use {ENERGY_VARIANCE:g}, or less where the error differs along a chain"
            raise ArgumentError("energy_variance", self.energy_variance, "must be positive and finite", remedy)
        whole_number(self.steps, "tuning_steps", least=SHORTEST)

    @cached_property
    def blocks(self) -> list[PlannedBlock]:
        """All blocks in their order."""
        planned = list[PlannedBlock]()
        own: Method = "hmc" if self.method == "nuts" else self.method
        before = 1.0, "mclmc"  # density and sampler of the states to begin with
        for stage in self.stages:
            count = max(1, round(stage.share * self.steps / block_length(self.steps)))
            method = own if stage.own_sampler else "mclmc"
            for i in range(count):
                weight = stage.weight ** (1 - i / count)
                other, before = (weight, method) != before, (weight, method)
                planned.append(PlannedBlock(stage, method, weight, other, 2 * (i + 1) > count, i == count - 1))
        return planned

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the leaves of a position."""
        return [jnp.shape(x)[1:] for x in jax.tree.leaves(self.positions)]

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a position."""
        return sum(math.prod(shape) for shape in self.shapes)

    def begin(self) -> TuningState:
        """The state before the first block."""
        chains = len(jax.tree.leaves(self.positions)[0])
        step = StepSize(_FIRST_STEP * math.sqrt(self.dimensions), np.zeros((0, chains)))
        return TuningState(0, step, np.ones(len(self.shapes)))

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
        leaves, structure = jax.tree.flatten(self.positions)
        kind, block = np.dtype(jnp.result_type(*leaves)), self.next(state)
        # The orbits of nearly normal fields have no error at any step: all trajectories would have one length.
        length = block.stage.L * math.sqrt(self.dimensions) if block.method == "mclmc" else TRAJECTORY
        stays = [not shape and not block.stage.parameters_move for shape in self.shapes]
        stays = [x and not all(stays) for x in stays]  # positions of numbers alone move
        variance = [np.asarray(0.0 if x else v, kind) for x, v in zip(stays, state.variance, strict=True)]
        size = np.asarray(state.step.value, kind)
        return Tuning(np.asarray(max(length, size), kind), size, structure.unflatten(variance))

    def update(self, state: TuningState, block: Block) -> TuningState:
        """The state after a block, of NumPy arrays."""
        now = self.next(state)
        target = TRAJECTORY_VARIANCE if now.method != "mclmc" else self.energy_variance * self.dimensions
        energy, fine = np.asarray(block.energy_change, float), np.asarray(block.nonans, bool)
        kept = is_stable(energy, fine, target, late=now.stage.own_sampler and now.method == "mclmc")
        step = after_block(state.step, energy, target, now.method, stable=kept)
        state = state._replace(total=state.total + 1, step=step, kept=kept)
        state = state._replace(failed=state.failed + int(np.sum(~fine)), steps=state.steps + fine.size)
        if not (kept and now.observed):
            return state
        joined = {}
        for name in ("numbers", "observed"):
            old, new = getattr(state, name), np.asarray(getattr(block, name), float)
            joined[name] = np.concatenate([old, new], axis=1) if old.size else new
        curvature = state.curvature + np.append(np.mean(block.curvature, axis=0), 1.0)
        noise = state.noise + block.noise if state.noise.size else block.noise
        return state._replace(curvature=curvature, noise=noise, **joined)

    def advance(self, state: TuningState, stability: float = math.inf) -> TuningState:
        """The state at the beginning of the next stage.

        The last block ends a stage, and the positions have been adapted. `stability` is the limit of stable steps per
        root of the dimensions, with the masses of `masses`.
        """
        last, root = self.last(state), math.sqrt(self.dimensions)
        step, variance = state.step._replace(wanted=state.step.wanted[:0]), state.variance
        if last.stage.estimates == "step size":
            step = state.step.settled()
        elif last.stage.estimates:
            old, variance = variance, self.masses(state)
            sizes = [math.prod(shape) for shape in self.shapes]
            ratio = np.average(old, weights=sizes) / np.average(variance, weights=sizes)
            step = step.scaled(math.sqrt(ratio), stability * root)
        if self.done(state):
            return state._replace(step=step, variance=variance)
        if self.next(state).method != last.method:  # Errors add up along a trajectory. Steps of HMC are times.
            step = step.scaled(0.4 / root, min(step.stability / root, 0.5 * TRAJECTORY))
        return TuningState(state.total, step, variance)

    def masses(self, state: TuningState) -> np.ndarray:
        """Inverse mass of each leaf of the position after the stage."""
        stage = self.last(state).stage
        if self.adapts or stage.estimates != "scales" or not state.curvature[-1]:
            return state.variance
        curvature = state.curvature[:-1] / state.curvature[-1]
        variance = 1 / np.maximum(curvature, 1e-6)
        moved = stage.parameters_move or not any(self.shapes)
        within = np.maximum(np.var(state.numbers, axis=1).mean(axis=0), 1e-6)
        variance[[not shape for shape in self.shapes]] = within if moved else 1.0
        return variance
