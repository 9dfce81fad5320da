"""The step size of a tuning, from the tail of the energy errors.

The variance of the energy error of a step of MCLMC goes as the sixth power of its size, and the variance for a
trajectory of HMC as the fourth power, of which a share 2 Phi(-sqrt(variance) / 2) is accepted (Neal
2011). Each chain asks in each block for the step that would have the target variance there. The variance is about the
mean, since E[error] = variance / 2 in equilibrium.

MCLMC accepts every step, so that the step must be short enough wherever chains go, and not on average: it is the
quantile `TAIL` of the steps that all chains ask for in the last half of a stage. The error of an accepted trajectory is
corrected, and its step is the median.

The energy error of many dimensions hides a few unstable ones. The largest curvature therefore limits the step
(`tuning.curvature`), and a block whose variance is far beyond the target is discarded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pmwd_dist.infer.samplers.methods import Method

ENERGY_VARIANCE = 1e-3  # target for a step of MCLMC, per dimension
TRAJECTORY_VARIANCE = 0.26  # target for a trajectory of HMC: 80 % are accepted
TAIL = 0.1  # quantile of the steps of MCLMC that chains ask for
_LARGEST, _NEXT = 0.8, 0.5  # largest step to try and next step, relative to an unstable step
_LARGEST_CHANGE = math.log(2)  # largest change of the logarithm of the step from one block to the next
_UNSTABLE, _UNSTABLE_LATE = 100.0, 10.0  # variance of an unstable block relative to the target; late for MCLMC


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
    return bool(np.all(fine)) and variance < (_UNSTABLE_LATE if late else _UNSTABLE) * target


def after_block(step: StepSize, energy_change: np.ndarray, target: float, method: Method, *, stable: bool) -> StepSize:
    """The step size for the next block.

    `energy_change` has the shape (chains, steps). A block that is not stable was discarded (`is_stable`).
    """
    if not stable:
        return step._replace(value=_NEXT * step.value, unstable=_LARGEST * step.value)
    power, tail = (6, TAIL) if method == "mclmc" else (4, 0.5)
    variance = np.maximum(np.var(energy_change, axis=1, ddof=1), 1e-300)
    change = np.clip(np.log(target / variance) / power, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    wanted = np.concatenate([step.wanted, math.log(step.value) + change[None]])
    value = math.exp(float(np.quantile(wanted[len(wanted) // 2 :], tail)))
    if abs(now := float(np.quantile(change, tail))) > 0.5 * _LARGEST_CHANGE:  # far from the target
        value = step.value * math.exp(now)
    value = min(value, step.stability, step.unstable)
    return step._replace(value=value, wanted=wanted, stable=max(step.stable, step.value))
