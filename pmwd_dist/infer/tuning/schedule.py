"""Stages of a tuning, with the step size, lengths and masses that they find (Robnik & Seljak 2023).

| stage | chains                                     | finds after it                  |
|-------|--------------------------------------------|---------------------------------|
| 0     | the likelihood's weight grows to 1         | -                               |
| 1     | parameters stay, fields relax              | masses or adaptation            |
| 2     | parameters move, L is longer               | masses or adaptation            |
| 3     | as in stage 2                              | adaptation                      |
| 4, 5  | the sampler itself, in equilibrium         | discretisation bias, last step  |

Stage 0 is optional. Posteriors of N-body simulations have other maxima at more evolved universes, in which chains can
be stuck. Large scales settle before small ones where the weight of the likelihood, a power to which it is raised, grows
evenly in its logarithm. Adjusted samplers begin as MCLMC, which reaches the posterior in fewer gradients, and run
themselves in stages 4 and 5.

The step size follows the energy error, block by block. Its variance goes as the sixth power of the step of MCLMC, and
as the fourth power for a trajectory of an adjusted sampler, of which a share 2 Phi(-sqrt(variance) / 2) is accepted
(Neal 2011). The variance is about the mean, since E[error] = variance / 2 in equilibrium. A block is unstable if its
variance is far beyond the target: its states are discarded, and the step is not tried again until masses change. The
energy error of many dimensions hides a few unstable ones, so the largest curvature limits the step (`curvature`).
The discretisation bias limits the last step alone (`discretisation_bias`), at a fifth of a stable step or more.

Masses are one number for each leaf of the position: a preconditioner brings modes to one scale. All masses are 1
where the positions are adapted to the posterior instead (`infer.preconditioner_adaptation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.samplers.methods import Method, Tuning, trajectory_length
from pmwd_dist.infer.tuning.blocks import Block
from pmwd_dist.infer.tuning.discretisation_bias import MOST_ERROR, BiasSamples
from pmwd_dist.infer.tuning.step_size import StepBounds

ENERGY_VARIANCE = 1e-3  # target for a step of MCLMC, per dimension
STEP_BIAS = 0.1  # largest discretisation bias of a parameter after its correction, in standard deviations
TRAJECTORY_VARIANCE = 0.26  # target for a trajectory of an adjusted sampler: 80 % are accepted
SHORTEST = 40  # steps of the shortest tuning
BLOCK = 20  # largest number of steps with one step size
_STAGES = (0.3, 0.12, 0.16, 0.14, 0.14, 0.14)  # shares of the steps
_AT_ONCE = (0.0, 0.3, 0.25, 0.15, 0.15, 0.15)  # shares without stage 0
_FIRST_WEIGHT = 0.002  # of the likelihood, in stage 0
_MASSES = (1, 2)  # stages after which masses change
_LATE = 4  # first stage in equilibrium
_MCLACHLAN = 2.55 / 2  # stability limit of its integrator, relative to velocity Verlet
_FIRST_STEP = 0.05  # per root of the dimensions
_SHORTEST_STEP = 0.2  # smallest bound from the bias, relative to a stable step
_LARGEST_CHANGE = math.log(2)  # largest change of the logarithm of the step from one block to the next
_UNSTABLE, _UNSTABLE_LATE = 100.0, 10.0  # variance of an unstable block relative to the target; late for MCLMC
_LENGTH = 4.0  # L of MCLMC per root of the dimensions, once parameters move


def block_length(steps: int) -> int:
    """Number of steps of a block in a tuning of `steps`.

    Raises:
      ValueError: fewer than 40 steps.
    """
    if steps < SHORTEST:
        raise ArgumentError("steps", steps, f"must be {SHORTEST} or more to tune")
    return min(BLOCK, steps // 8)


class Schedule:
    """State of a tuning on the host: the stage, the tuned parameters, and statistics of its blocks.

    Args:
      positions: positions of the chains, with a leading axis.
      steps: number of steps, rounded to whole blocks.
      method: sampler to tune; NUTS is tuned as HMC.
      energy_variance: target variance of the energy error of a step of MCLMC, per dimension.
      most_bias: largest discretisation bias of a parameter after its correction, in standard deviations.
      adapts: whether positions are adapted instead of masses.
      approaches: whether there is a stage 0.
      reestimates: whether chains estimate the correction again, so that its first error may be twice most_bias.

    Raises:
      ValueError: fewer than 40 steps, or a target that is not positive.
    """

    def __init__(
        self,
        positions: Any,
        *,
        steps: int,
        method: Method = "mclmc",
        energy_variance: float = ENERGY_VARIANCE,
        most_bias: float = STEP_BIAS,
        adapts: bool = False,
        approaches: bool = False,
        reestimates: bool = False,
    ):
        if not 0 < energy_variance < math.inf:
            remedy = f"use {ENERGY_VARIANCE:g}, or less where the error differs along a chain"
            raise ArgumentError("energy_variance", energy_variance, "must be positive and finite", remedy)
        if not most_bias > 0:
            remedy = f"use {STEP_BIAS:g} standard deviations, or math.inf for any"
            raise ArgumentError("most_bias", most_bias, "must be positive", remedy)
        self._adapts, self.adaptation_due = adapts, False
        leaves, self._structure = jax.tree.flatten(positions)
        self._shapes, self._dtype = [jnp.shape(x) for x in leaves], np.dtype(jnp.result_type(*leaves))
        self._sizes = np.array([math.prod(shape[1:]) for shape in self._shapes])
        self._dimensions = int(self._sizes.sum())
        shares, blocks = _STAGES if approaches else _AT_ONCE, steps / block_length(steps)
        self._counts = [max(1, round(share * blocks)) if share else 0 for share in shares]
        self._wanted_method: Method = "hmc" if method == "nuts" else method
        self._energy_variance, self._most_bias = energy_variance, most_bias
        self._most_error = (MOST_ERROR if reestimates else 1.0) * most_bias
        self._numbers = np.array([len(shape) == 1 for shape in self._shapes])
        self._held = self._numbers & ~self._numbers.all()  # leaves that do not move yet
        self._variance = np.where(self._held, 0.0, 1.0)
        self._L = math.sqrt(self._dimensions)
        self._step_size, self._bounds = _FIRST_STEP * self._L, StepBounds()
        self._bias = BiasSamples(int(self._numbers.sum()))  # from stages 4 and 5
        self.count, self.stage = 0, 0 if approaches else 1  # finished blocks and stages
        self._begin_stage()

    def _begin_stage(self) -> None:
        self._first, self._wanted, self._moments = self.count, list[float](), StageMoments(self._shapes)

    @property
    def parameters_move(self) -> bool:
        """Whether parameters move."""
        return not self._held.any()

    def observed(self) -> tuple[np.ndarray, np.ndarray]:
        """Observations of the last half of a stage: numbers (chains, steps, n), and the mean field of each chain."""
        return self._moments.observations()

    def restart(self, longest: float) -> None:
        """Continue at other positions, whose stability limit per root of the dimensions is `longest`."""
        self.adaptation_due = False
        self._bounds.stability = longest * math.sqrt(self._dimensions)
        self._set_masses()
        if self.method != "mclmc":
            self._reset_for_trajectories()
        self._step_size = min(self._step_size, self._bounds.largest)
        self._begin_stage()

    @property
    def done(self) -> bool:
        """Whether all blocks have run."""
        return self.stage == len(_STAGES)

    @property
    def weight(self) -> float:
        """Weight of the likelihood in the next block."""
        approach = self._counts[0]
        return _FIRST_WEIGHT ** (1 - self.count / approach) if self.count < approach else 1.0

    @property
    def reevaluates(self) -> bool:
        """Whether states must be evaluated again before the next block.

        The weight of the likelihood has changed, or trajectories begin: MCLMC keeps gradients at the kick point beside
        the position (`isokinetic.langevin_step`).
        """
        reweighs = 0 < self._counts[0] >= self.count
        return reweighs or (self.method != "mclmc" and self.stage == _LATE and self.count == self._first)

    @property
    def method(self) -> Method:
        """The sampler of the next block."""
        return self._wanted_method if self.stage >= _LATE else "mclmc"

    @property
    def bound(self) -> str:
        """Name of the bound of the step size."""
        return self._bounds.which(self._step_size)

    def tuning(self) -> Tuning:
        """The parameters of the sampler, as NumPy arrays."""
        L, step_size, *each = (
            np.asarray(x, self._dtype) for x in (self._L, self._step_size, *self._variance, *self._correction())
        )
        variance, correction = each[: len(self._shapes)], each[len(self._shapes) :]
        return Tuning(L, step_size, *(jax.tree.unflatten(self._structure, x) for x in (variance, correction)))

    def take(self, block: Block) -> bool:
        """Update with the next block, of NumPy arrays; false if it is unstable and its states must be discarded."""
        adjusted = self.method != "mclmc"
        target = TRAJECTORY_VARIANCE if adjusted else self._energy_variance * self._dimensions
        energy = np.asarray(block.energy_change, float)
        variance = float(np.mean(np.var(energy, axis=1, ddof=1)))
        late = self.stage >= _LATE and not adjusted
        stable = bool(np.all(block.nonans)) and variance < (_UNSTABLE_LATE if late else _UNSTABLE) * target
        if not stable:
            self._step_size = self._bounds.failed(self._step_size)
        else:
            self._bounds.succeeded(self._step_size)
            if 2 * (self.count - self._first) >= self._counts[self.stage] - 1:  # the last half of a stage
                self._moments.add(block, observe=self._adapts and 0 < self.stage < _LATE)
            if late and self._numbers.any():
                self._bias.add(block.numbers, block.shift)
            self._change_step(math.log(target / max(variance, 1e-300)) / (4 if adjusted else 6))
        self.count += 1
        if self.count - self._first == self._counts[self.stage]:
            self._end_stage()
        return stable

    def _change_step(self, change: float) -> None:
        """Move the step size towards the target; near it, to the mean over the last half of the stage."""
        change = float(np.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE))
        self._wanted.append(math.log(self._step_size) + change)
        near = abs(change) < 0.5 * _LARGEST_CHANGE
        settled = math.exp(float(np.mean(self._wanted[len(self._wanted) // 2 :])))
        self._step_size = self._bounds.clip(settled if near else math.exp(self._wanted[-1]))

    def _end_stage(self) -> None:
        if self.stage in _MASSES and not (self._adapts and self._moments.observed):
            self._set_masses()
        self.stage += 1
        if self.stage == 2:
            self._L *= _LENGTH
        if self.done:
            longest = self._bias.estimate.longest_step(self._most_bias, self._most_error)
            if longest < math.inf:
                self._bounds.bias = max(longest, _SHORTEST_STEP * self._bounds.stable)
            self._step_size = min(self._bounds.clip(self._step_size), self._bounds.stable or math.inf)
            self._L = max(self._L, self._step_size)
        if self.stage == _LATE and self._wanted_method != "mclmc":
            # The orbits of nearly normal fields have no error at any step: all trajectories would have one length.
            self._L = trajectory_length(self._wanted_method, self._dimensions)
            self._reset_for_trajectories()
            # Errors add up along a trajectory. Steps of HMC are times, and a step of McLachlan has two gradients.
            self._step_size *= 0.4 / math.sqrt(self._dimensions) if self._wanted_method == "hmc" else 0.8
        self.adaptation_due = self._adapts and self.stage <= _LATE and bool(self._moments.observed)
        if not self.adaptation_due:
            self._begin_stage()

    @property
    def correction_error(self) -> np.ndarray:
        """Errors of the correction, as gradients along the numbers for steps of length 1 (`BiasCorrection`)."""
        if not self.done or not (bias := self._bias.estimate).largest_error:
            return np.zeros((int(self._numbers.sum()), 0))
        return bias.residual_slopes(self._step_size, self._most_bias)

    def _correction(self) -> np.ndarray:
        """Gradient of the correction along each leaf; 0 until the tuning is done."""
        slopes = np.zeros(len(self._shapes))
        if self.done:
            slopes[self._numbers] = self._bias.estimate.correction(self._step_size, self._most_bias)
        return slopes

    def _set_masses(self) -> None:
        """Set masses from the variances within chains, and scale the step with their mean."""
        variance = np.ones(len(self._shapes)) if self._adapts else self._moments.variances()
        variance[self._held] = 1.0
        self._held = np.zeros_like(self._held)
        ratio = np.average(self._variance, weights=self._sizes) / np.average(variance, weights=self._sizes)
        self._step_size *= math.sqrt(ratio)
        self._variance = variance
        self._bounds.reset()

    def _reset_for_trajectories(self) -> None:
        of_mclmc = 1 / math.sqrt(self._dimensions) if self._wanted_method == "hmc" else _MCLACHLAN
        self._bounds.reset(of_mclmc, 0.5 * self._L)

    def pack(self) -> dict[str, np.ndarray]:
        """The state as named arrays, for a file."""
        numbers = {"count": self.count, "stage": self.stage, "first": self._first}
        lengths = {"L": self._L, "step_size": self._step_size}
        lists = {"held": self._held, "variance": self._variance, "wanted": self._wanted}
        own = {name: np.asarray(x) for name, x in (numbers | lengths | lists).items()}
        return own | self._bias.pack() | self._bounds.pack() | self._moments.pack()

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore a packed state of a schedule with the same arguments."""
        self.count, self.stage, self._first = (int(arrays[name]) for name in ("count", "stage", "first"))
        self._L, self._step_size = float(arrays["L"]), float(arrays["step_size"])
        self._bounds = StepBounds.unpack(arrays)
        self._held, self._variance = arrays["held"], arrays["variance"]
        self._wanted = [float(x) for x in arrays["wanted"]]
        self._bias.unpack(arrays)
        self._moments.unpack(arrays)


class StageMoments:
    """Moments of positions and observations along chains, over blocks of one stage.

    Args:
      shapes: shapes of the leaves of the positions, with a leading axis of chains.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self._blocks, self._shapes = 0, list(shapes)
        self.observed = list[np.ndarray]()
        self._square, self._mean, self._noise = np.zeros(len(shapes)), [np.zeros(shape) for shape in shapes], 0.0

    def add(self, block: Block, *, observe: bool) -> None:
        """Add the moments of a block, and its observations."""
        self._blocks += 1
        if observe:
            self.observed.append(np.asarray(block.observed))
            self._noise = self._noise + np.asarray(block.noise)
        self._mean = [total + mean for total, mean in zip(self._mean, jax.tree.leaves(block.mean), strict=True)]
        self._square = self._square + [float(np.mean(x)) for x in jax.tree.leaves(block.square)]

    def observations(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers from the observer, (chains, steps, n), and the mean field of each chain."""
        return np.concatenate(self.observed, axis=1), np.asarray(self._noise) / max(self._blocks, 1)

    def variances(self) -> np.ndarray:
        """Variance of each leaf within chains; 1 without any block."""
        if not self._blocks:
            return np.ones(len(self._shapes))
        means = np.array([np.mean((mean / self._blocks) ** 2) for mean in self._mean])
        return np.maximum(self._square / self._blocks - means, 1e-6)

    def pack(self) -> dict[str, np.ndarray]:
        """The moments as named arrays."""
        arrays = {"blocks": self._blocks, "square": self._square, "noise": self._noise}
        arrays |= {f"mean/{i}": mean for i, mean in enumerate(self._mean)}
        arrays |= {f"observed/{i:05d}": x for i, x in enumerate(self.observed)}
        return {name: np.asarray(x) for name, x in arrays.items()}

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore packed moments."""
        self._blocks, self._square, self._noise = int(arrays["blocks"]), arrays["square"], arrays["noise"]
        self._mean = [arrays[f"mean/{i}"] for i in range(len(self._shapes))]
        self.observed = [arrays[key] for key in sorted(arrays) if key.startswith("observed/")]
