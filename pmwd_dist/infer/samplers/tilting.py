"""What finite steps of MCLMC do to the parameters, as a tuning shows it, and the tilt of the log density against that.

The energy error of all dimensions says nothing of a parameter on which the widths of many of them depend
(`isokinetic.density_shift`). The log density is tilted along the parameters by as much of the shift as stands out from
its error: of shifts b with errors e the share b^2 / (b^2 + e^2) has the least mean square left. What a tilt can't take
away is that error, and what is of second order: about half the square of the shift. Steps are so short that the
standard error and the second order are no more than is asked for; the error twice that where the tilt is estimated
anew as chains run (`infer.tilt_estimate`).

The error is that of a sum over all dimensions: in a large field it bounds the step first. So the shift is a regression
of that sum on the parameters, whose error does not grow where these are slow and their widths still poorly known. A
chain that comes late changes that sum by more than it varies afterwards, and chains that relax more slowly do along
with parameters that drift by chance. Where the error shows that, draws count from where on it is smallest, much as in
White (1997), and what is linear in time is taken away, chain by chain. In equilibrium that would make the error larger
by a quarter, and the smallest of several errors is too small a one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pmwd_dist.infer.diagnostics import ess_mean, split_rhat

# Split R-hat of a parameter of chains that are not together, and show no bias. Of three parameters the largest is 1.5
# where four chains have three independent draws each, and in one of a hundred tunings 1.8.
_APART = 2.0
_CLEARLY = 2 / 3  # of the error of all draws
MOST_ERROR = 2.0  # of a tilt that is estimated anew from draws 16 times as many, to what it leaves in their mean
_FEWEST_DRAWS = 40  # of each chain, for an estimate of a bias
_PREFIX = "shifts/"  # of the names in a file


class Shift(NamedTuple):
    """Shift of the parameters by steps of length 1, in combinations of them that are independent and of unit variance.

    Args:
      root: of the covariance of the numbers of a position, in which parameters are linear.
      bias: shift of each combination, root^-1 numbers.
      error: of that.
    """

    root: np.ndarray
    bias: np.ndarray
    error: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray, added: np.ndarray) -> Shift:
        """As far as chains that are together show; none of others, whose drift is no bias.

        Args:
          numbers: of the position, (chains, steps, n).
          added: what steps of length 1 add to the log density, (chains, steps).
        """
        count = numbers.shape[-1]
        begins = range(0, added.shape[1] // 2 + 1, max(added.shape[1] // 20, 1))
        draws = [(numbers[:, begin:], added[:, begin:]) for begin in begins if _together(numbers[:, begin:])]
        if not draws:
            return cls.none(count)
        found = [_seen(*each, _without_drift) for each in draws]
        best = min(found, key=lambda shift: shift.largest_error)
        if not _together(numbers):
            return best
        every = min(_seen(numbers, added, _about_mean), found[0], key=lambda shift: shift.largest_error)
        return best if best.largest_error < _CLEARLY * every.largest_error else every

    @classmethod
    def none(cls, count: int) -> Shift:
        """No shift of so many numbers."""
        return cls(np.eye(count), np.zeros(count), np.zeros(count))

    @property
    def largest_error(self) -> float:
        """Of all combinations; 0 where there is no shift to be seen."""
        return float(np.max(self.error, initial=0.0))

    def longest_step(self, most_bias: float, most_error: float) -> float:
        """The largest step of whose shift a tilt leaves no more than this.

        That is the error of each combination, and in second order half the square of what stands out from it.
        """
        shown, error = np.sum(np.maximum(np.abs(self.bias) - self.error, 0) ** 2), self.largest_error
        second_order = (2 * most_bias / shown) ** 0.25 if shown > 0 else math.inf
        return float(min(second_order, math.sqrt(most_error / error) if error > 0 else math.inf))

    def tilt(self, step_size: float, most_bias: float) -> np.ndarray:
        """Slope along each number that is to be taken away from the log density.

        Where the step is longer than the longest one, it takes no more away than there.
        """
        share = self.bias**2 / np.maximum(self.bias**2 + self.error**2, 1e-300)
        shift = share * self.bias * step_size**2
        shift *= min(1.0, math.sqrt(2 * most_bias) / max(math.sqrt(np.sum(shift**2)), 1e-300))
        return np.linalg.solve(self.root.T, shift)

    def residual_slopes(self, step_size: float, most_bias: float) -> np.ndarray:
        """Slopes along each number that a tilt may leave for steps of length 1, shape (numbers, combinations + 1).

        Those are independent errors, and what of the shift is beyond a tilt of this.
        """
        beyond = self.tilt(step_size, math.inf) - self.tilt(step_size, most_bias)
        return np.column_stack([np.linalg.solve(self.root.T, np.diag(self.error)), beyond / step_size**2])


class ShiftSamples:
    """Blocks of draws from which a shift is estimated, with arrays of NumPy.

    Args:
      count: of the numbers of a position.
    """

    def __init__(self, count: int):
        self._count, self._blocks = count, list[np.ndarray]()  # (chains, steps, count + 1)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, numbers: Any, added: Any) -> None:
        """Take a block into account.

        Args:
          numbers: of the position, (chains, steps, count).
          added: what steps of length 1 add to the log density, (chains, steps).
        """
        seen = np.asarray(numbers, float), np.asarray(added, float)[..., None]
        self._blocks.append(np.concatenate(seen, axis=-1))

    @property
    def mean(self) -> np.ndarray:
        """Of each number, over all draws."""
        return np.concatenate(self._blocks, axis=1)[..., :-1].mean(axis=(0, 1))

    @property
    def found(self) -> Shift:
        """The shift by all blocks; none without any."""
        if not self._blocks:
            return Shift.none(self._count)
        seen = np.concatenate(self._blocks, axis=1)
        return Shift.of(seen[..., :-1], seen[..., -1])

    def pack(self) -> dict[str, np.ndarray]:
        """All blocks, by name, for a file."""
        return {f"{_PREFIX}{i:05d}": x for i, x in enumerate(self._blocks)}

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Go on from what was packed."""
        self._blocks = [arrays[name] for name in sorted(arrays) if name.startswith(_PREFIX)]


def _together(numbers: np.ndarray) -> bool:
    return numbers.shape[1] >= _FEWEST_DRAWS and max(map(split_rhat, np.moveaxis(numbers, -1, 0))) <= _APART


def _seen(numbers: np.ndarray, added: np.ndarray, settled: Callable[[np.ndarray], np.ndarray]) -> Shift:
    """The shift by all of these draws: the regression of what steps add on independent combinations of the numbers.

    Args:
      numbers: of the position, (chains, steps, n).
      added: what steps of length 1 add to the log density, (chains, steps).
      settled: takes from values of (chains, steps, n) what is not of chains in equilibrium.
    """
    count, width = numbers.shape[-1], np.std(numbers, axis=(0, 1))
    width = np.where(width > 1e-12 * np.max(np.abs(numbers), axis=(0, 1)), width, 1)  # 1 for those that are constant
    covariance = np.atleast_2d(np.cov((_about_mean(numbers) / width).reshape(-1, count).T))
    root = width[:, None] * np.linalg.cholesky(covariance + 1e-9 * np.eye(count))
    each = settled(np.linalg.solve(root, numbers[..., None])[..., 0])
    sums = settled(added[..., None])
    products = np.linalg.pinv(each.reshape(-1, count), rcond=1e-6) * sums.size
    bias = products @ sums.ravel() / sums.size
    left = sums - (each @ bias)[..., None]
    products = np.moveaxis(products.reshape(count, *added.shape), 0, -1) * left
    error = [np.std(x) / math.sqrt(ess_mean(x)) if x.any() else 0.0 for x in np.moveaxis(products, -1, 0)]
    return Shift(root, bias, np.array(error))


def _about_mean(x: np.ndarray) -> np.ndarray:
    return x - x.mean(axis=(0, 1))


def _without_drift(x: np.ndarray) -> np.ndarray:
    """Each chain of (chains, steps, n) less the straight line in time that is nearest to it."""
    time = np.arange(x.shape[1]) - 0.5 * (x.shape[1] - 1)
    slope = np.einsum("t,ctn->cn", time, x)[:, None] / (time @ time)
    return x - x.mean(axis=1, keepdims=True) - slope * time[:, None]
