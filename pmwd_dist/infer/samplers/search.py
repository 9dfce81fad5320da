"""Step size, lengths and masses of the samplers, from a run of them (Robnik & Seljak 2023).

The step size of MCLMC follows the energy error of a step, whose variance grows as the sixth power of the step, or with
the noise of the momentum as the fifth; its target is 1e-3 per dimension. That of adjusted samplers follows the energy
error of a trajectory, whose variance grows as the fourth power: of a variance v, a share of 2 Phi(-sqrt(v) / 2) is
accepted (Neal 2011). Both are measured block by block with the step size held, about the mean: in equilibrium that is
half the variance, so that at a variance beyond 1 the mean square says another thing. A direction much narrower than the
others becomes unstable while the error of all is still far below the target: steps begin small, a block that was
unstable is undone, since it leaves the chain far from where it should be, and its step is not tried again until masses
change. A block is unstable at a hundred times the target, and in the last two stages of MCLMC, when chains should be in
equilibrium, at ten times. Chains run with no larger step than one with which a block was stable.

Of millions of dimensions a few that are unstable don't show in the energy error. Where positions are adapted, no step
is longer than the stiffest direction allows (`stiffness`). With 32^3 cells and maps of lensing, whose largest curvature
was 40, a step of McLachlan's integrator, which is unstable from a phase of 2.55, of 0.3 roots of the dimensions had an
energy variance of 9e-6 and slopes of modes as they should be, 0.4 had 2e-3 and slopes whose mean square was twice as
large. Galaxies in 32^3 cells of 5 Mpc/h have 19 in 2LPT and 28 in an N-body simulation.

What steps of MCLMC do to parameters (`tilting`) is estimated from the last two stages; the log density is tilted
against it, and in the end the step so short that the standard error of that estimate, which a longer tuning makes
smaller, and what is of second order are a tenth of a standard deviation. Not before: what steps add to the log density
depends on their length, by three of its standard deviations for 64^3 cells where they become 0.6 times as long, and
parameters are slow enough to be correlated with that by chance. Where the tilt is estimated anew as chains run
(`infer.tilt_estimate`) that error may be twice as large. The step is made no shorter than a fifth of a stable one: more
is asked for by chains that are still far from where they go.

L of MCLMC is four times the root of the dimensions. In a normal distribution a longer L than a direction asks for costs
nothing, a shorter one does: one direction three times wider than the others took 59, 37, 29 and 26 of McLachlan's steps
for an effective sample with 1, 2, 4 and 8 times the root (4096 dimensions). Elsewhere it is not free: by the same steps
galaxies of 32^3 cells took 84, 62 and 90 gradients with 2, 4 and 10 times the root, those of 64^3 cells 120, 88 and 81
with 2, 4 and 8.

Posteriors of N-body simulations have other maxima, of universes that are more evolved, in which chains are caught. So
chains come to a posterior in a stage of its own, in which the power of the likelihood grows from 0.002 to 1, evenly in
its logarithm, while parameters stay: large scales settle before small ones.

Trajectories of adjusted samplers are a quarter of a period long on average. Masses are one number for each field, whose
modes a preconditioner has brought to one scale, and one for each parameter: no field of them is stored. Where positions
are adapted to the posterior (`infer.adaptation`), after each of the three stages that follow, all masses are 1.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.samplers.blocks import Block
from pmwd_dist.infer.samplers.bounds import Bounds
from pmwd_dist.infer.samplers.methods import Method, Tuning, trajectory_length
from pmwd_dist.infer.samplers.stage import Stage
from pmwd_dist.infer.samplers.tilting import MOST_ERROR, ShiftSamples

ENERGY_VARIANCE = 1e-3  # of a step of MCLMC, per dimension
STEP_BIAS = 0.1  # of a parameter by finite steps of MCLMC that a tilt leaves, in standard deviations
TRAJECTORY_VARIANCE = 0.26  # of a trajectory of an adjusted sampler: 80 % are accepted
SHORTEST = 40  # tuning, in steps
BLOCK = 20  # steps with one step size, at most
_STAGES = (0.3, 0.12, 0.16, 0.14, 0.14, 0.14)  # shares of the steps, first those of the approach
_AT_ONCE = (0.0, 0.3, 0.25, 0.15, 0.15, 0.15)  # without one
_FIRST_WEIGHT = 0.002  # of the likelihood
_WEIGH = (1, 2)  # stages after which masses change
_LATE = 4  # stages, after which MCLMC should be in equilibrium
_MCLACHLAN = 2.55 / 2  # of its longest stable step to that of velocity Verlet
_FIRST_STEP = 0.05  # of the root of the dimensions
_SHORTEST_STEP = 0.2  # of a stable one, for a bias
_LARGEST_CHANGE = math.log(2)  # of the step size from one block to the next
_UNSTABLE = 100.0  # times the target
_UNSTABLE_LATE = 10.0  # that of MCLMC once it should be in equilibrium
_LENGTH = 4.0  # L of MCLMC, of the root of the dimensions, once parameters move


def block_length(steps: int) -> int:
    """Steps of a block in a tuning of so many steps.

    Raises:
      ValueError: fewer than 40 steps.
    """
    if steps < SHORTEST:
        raise ArgumentError("steps", steps, f"must be {SHORTEST} or more to tune")
    return min(BLOCK, steps // 8)


class Search:
    """The parameters found so far, on the host, and what blocks have shown.

    In the approach, if there is one, and the stage that follows fields come to the parameters, which stay: all at once,
    parameters would go where the field that is not yet there matters least. Every stage finds the step size that goes
    with the masses before it, and the two after the approach find masses. Adjusted samplers begin as MCLMC, which comes
    to the posterior in fewer gradients, and run themselves in the last two stages.

    Args:
      positions: of the chains, with a leading axis.
      steps: in all, as near as blocks allow.
      method: the sampler to tune; NUTS is tuned as HMC.
      energy_variance: target of the energy error of a step of MCLMC, per dimension.
      most_bias: shift of a parameter by finite steps of MCLMC that a tilt may leave, in standard deviations.
      adapts: whether positions are adapted instead of masses.
      approaches: whether the likelihood begins with a small weight.
      reestimates: whether the tilt is estimated anew as chains run, so that at first its error may be twice most_bias.

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
        self._adapts, self.due = adapts, False
        leaves, self._structure = jax.tree.flatten(positions)
        self._shapes, self._dtype = [jnp.shape(x) for x in leaves], np.dtype(jnp.result_type(*leaves))
        self._sizes = np.array([math.prod(shape[1:]) for shape in self._shapes])
        self._dimensions = int(self._sizes.sum())
        shares, blocks = _STAGES if approaches else _AT_ONCE, steps / block_length(steps)
        self._counts = [max(1, round(share * blocks)) if share else 0 for share in shares]
        self._wanted_method: Method = "hmc" if method == "nuts" else method
        self._energy_variance, self._most_bias = energy_variance, most_bias
        self._most_error = (MOST_ERROR if reestimates else 1.0) * most_bias
        numbers = np.array([len(shape) == 1 for shape in self._shapes])
        self._numbers = int(numbers.sum())
        self._held = numbers & ~numbers.all()  # those that stay where they are at first
        self._variance = np.where(self._held, 0.0, 1.0)
        self._L = math.sqrt(self._dimensions)
        self._step_size, self._bounds = _FIRST_STEP * self._L, Bounds()
        self._shift = ShiftSamples(self._numbers)  # of the last two stages
        self.count, self._stage = 0, 0 if approaches else 1  # blocks, and stages, that are over
        self._begin_stage()

    def _begin_stage(self) -> None:
        self._first, self._wanted, self._shown = self.count, list[float](), Stage(self._shapes)

    @property
    def free(self) -> bool:
        """Whether parameters move."""
        return not self._held.any()

    def observed(self) -> tuple[np.ndarray, np.ndarray]:
        """What an observer saw in the last half of a stage: numbers (chains, steps, n), and each chain's mean field."""
        return self._shown.seen()

    def adapted(self, longest: float) -> None:
        """Positions are other ones from here on, with a longest step per root of the dimensions (`stiffness`)."""
        self.due = False
        self._bounds.longest = longest * math.sqrt(self._dimensions)
        self._weigh()
        if self.method != "mclmc":
            self._renew_for_trajectories()
        self._step_size = min(self._step_size, self._bounds.largest)
        self._begin_stage()

    @property
    def stage(self) -> int:
        """Number of stages that are over, the approach among them whether there was one or not."""
        return self._stage

    @property
    def done(self) -> bool:
        """Whether all blocks were run."""
        return self._stage == len(_STAGES)

    @property
    def weight(self) -> float:
        """Power of the likelihood in the next block."""
        approach = self._counts[0]
        return _FIRST_WEIGHT ** (1 - self.count / approach) if self.count < approach else 1.0

    @property
    def renews(self) -> bool:
        """Whether states are to be evaluated anew before the next block.

        That is where the weight of the likelihood is another one than before, and where trajectories begin: the slopes
        of states of MCLMC are those of places beside them (`isokinetic.langevin_step`).
        """
        reweighs = 0 < self._counts[0] >= self.count
        return reweighs or (self.method != "mclmc" and self._stage == _LATE and self.count == self._first)

    @property
    def method(self) -> Method:
        """The sampler of the next block."""
        return self._wanted_method if self._stage >= _LATE else "mclmc"

    @property
    def bound(self) -> str:
        """What bounds the step size."""
        return self._bounds.which(self._step_size)

    def tuning(self) -> Tuning:
        """The parameters, as arrays of NumPy."""
        L, step_size, *each = (
            np.asarray(x, self._dtype) for x in (self._L, self._step_size, *self._variance, *self._tilt())
        )
        variance, tilt = each[: len(self._shapes)], each[len(self._shapes) :]
        return Tuning(L, step_size, *(jax.tree.unflatten(self._structure, x) for x in (variance, tilt)))

    def take(self, block: Block) -> bool:
        """Learn from the next block, with arrays of NumPy; false if it was unstable, and is to be undone."""
        adjusted = self.method != "mclmc"
        target = TRAJECTORY_VARIANCE if adjusted else self._energy_variance * self._dimensions
        energy = np.asarray(block.energy_change, float)
        variance = float(np.mean(np.var(energy, axis=1, ddof=1)))
        late = self._stage >= _LATE and not adjusted
        stable = bool(np.all(block.nonans)) and variance < (_UNSTABLE_LATE if late else _UNSTABLE) * target
        if not stable:
            self._step_size = self._bounds.failed(self._step_size)
        else:
            self._bounds.stood(self._step_size)
            self._average(block)
            if late and self._numbers:
                self._shift.add(block.numbers, block.shift)
            self._adapt(math.log(target / max(variance, 1e-300)) / (4 if adjusted else 6))
        self.count += 1
        if self.count - self._first == self._counts[self._stage]:
            self._end_stage()
        return stable

    def _average(self, block: Block) -> None:
        """Moments of positions over the last half of a stage."""
        if 2 * (self.count - self._first) < self._counts[self._stage] - 1:
            return
        self._shown.average(block, observe=self._adapts and 0 < self._stage < _LATE)

    def _adapt(self, change: float) -> None:
        """Bring the step size nearer to the target; the last half of a stage decides together."""
        change = float(np.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE))
        self._wanted.append(math.log(self._step_size) + change)
        near = abs(change) < 0.5 * _LARGEST_CHANGE
        settled = math.exp(float(np.mean(self._wanted[len(self._wanted) // 2 :])))
        self._step_size = self._bounds.of(settled if near else math.exp(self._wanted[-1]))

    def _end_stage(self) -> None:
        if self._stage in _WEIGH and not (self._adapts and self._shown.observed):
            self._weigh()
        self._stage += 1
        if self._stage == 2:
            self._L *= _LENGTH
        if self.done:
            longest = self._shift.found.longest_step(self._most_bias, self._most_error)
            if longest < math.inf:
                self._bounds.unbiased = max(longest, _SHORTEST_STEP * self._bounds.stable)
            self._step_size = min(self._bounds.of(self._step_size), self._bounds.stable or math.inf)
            self._L = max(self._L, self._step_size)
        if self._stage == _LATE and self._wanted_method != "mclmc":
            # Fields that are nearly normal turn without an error by any step: lengths of trajectories would all be one.
            self._L = trajectory_length(self._wanted_method, self._dimensions)
            self._renew_for_trajectories()
            # Errors add up along a trajectory; and steps of HMC are times, those of the other have two gradients.
            self._step_size *= 0.4 / math.sqrt(self._dimensions) if self._wanted_method == "hmc" else 0.8
        self.due = self._adapts and self._stage <= _LATE and bool(self._shown.observed)
        if not self.due:
            self._begin_stage()

    @property
    def tilt_error(self) -> np.ndarray:
        """Slopes along the numbers that the tilt may leave for steps of length 1: what `TiltEstimate` begins with."""
        if not self.done or not (shift := self._shift.found).largest_error:
            return np.zeros((self._numbers, 0))
        return shift.residual_slopes(self._step_size, self._most_bias)

    def _tilt(self) -> np.ndarray:
        """Slope along each leaf that the log density is tilted by, once all is tuned."""
        tilt = np.zeros(len(self._shapes))
        if self.done:
            slopes = self._shift.found.tilt(self._step_size, self._most_bias)
            tilt[[len(shape) == 1 for shape in self._shapes]] = slopes
        return tilt

    def _weigh(self) -> None:
        """Masses from the variances within chains; the step goes with their mean."""
        variance = np.ones(len(self._shapes)) if self._adapts else self._shown.variances()
        variance[self._held] = 1.0
        self._held = np.zeros_like(self._held)
        ratio = np.average(self._variance, weights=self._sizes) / np.average(variance, weights=self._sizes)
        self._step_size *= math.sqrt(ratio)
        self._variance = variance
        self._bounds.renew()

    def _renew_for_trajectories(self) -> None:
        """Steps are those of trajectories: those of HMC are times."""
        of_mclmc = 1 / math.sqrt(self._dimensions) if self._wanted_method == "hmc" else _MCLACHLAN
        self._bounds.renew(of_mclmc, 0.5 * self._L)

    def pack(self) -> dict[str, np.ndarray]:
        """All of it as arrays, by name, for a file."""
        numbers = {"count": self.count, "stage": self._stage, "first": self._first}
        lengths = {"L": self._L, "step_size": self._step_size}
        lists = {"held": self._held, "variance": self._variance, "wanted": self._wanted}
        own = {name: np.asarray(x) for name, x in (numbers | lengths | lists).items()}
        return own | self._shift.pack() | self._bounds.pack() | self._shown.pack()

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on from what was packed, by a search with the same arguments."""
        self.count, self._stage, self._first = (int(arrays[name]) for name in ("count", "stage", "first"))
        self._L, self._step_size = float(arrays["L"]), float(arrays["step_size"])
        self._bounds = Bounds.unpack(arrays)
        self._held, self._variance = arrays["held"], arrays["variance"]
        self._wanted = [float(x) for x in arrays["wanted"]]
        self._shift.unpack(arrays)
        self._shown.unpack(arrays)
