"""Discretisation bias of parameters by finite steps of unadjusted MCLMC: its estimate and a first-order correction.

Steps of length h add h^2 s(x) to the log density of a position x (`isokinetic.density_shift`). To first order the mean
of a parameter u then moves by h^2 Cov(u, s). The energy error of all dimensions does not show this where the widths of
many dimensions depend on one parameter. The correction subtracts the part of h^2 s that is linear in the parameters,
from a regression of s on them. An estimate b with a standard error e is multiplied by b^2 / (b^2 + e^2), which
minimises the mean square of the remainder. The remainder is that error, and in second order half the square of the
bias: the tuning takes steps short enough for both.

A chain that reaches the posterior late changes s by more than it varies in equilibrium, and a slow relaxation
correlates it with parameters by chance. Where the error is then clearly smaller, the first draws are left out (similar
to White 1997), and a linear trend in time is subtracted from each chain.

Chains estimate the correction again from all their draws, after the first, second, fourth, eighth chunk and so on, once
the error is smaller than in the tuning. Each correction has an invariant density of its own. Changes become rarer, and
smaller as errors do: under the conditions of Fort, Moulines & Priouret (2011, arXiv 1203.3036) averages over draws
converge with these densities, which are right to first order. If the error is e for n draws and falls as the root of
their number, the mean over 16 n draws has an error of about e / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer.chain.chain import Run, placed
from pmwd_dist.infer.chain.diagnostics import ess_mean, split_rhat
from pmwd_dist.infer.samplers.isokinetic import IntegratorState, density_shift
from pmwd_dist.infer.samplers.methods import Method, Tuning, corrected
from pmwd_dist.io.arrays import Arrays, check_shapes

_NOT_MIXED = 2.0  # split R-hat of a parameter beyond which draws show no bias; four independent draws a chain have 1.5
_CLEARLY = 2 / 3  # error of the late draws, relative to all draws, for which the early ones are left out
MOST_ERROR = 2.0  # largest error of a correction that is estimated again from 16 times as many draws, per most_bias
_FEWEST_DRAWS = 40  # number of draws of each chain for an estimate
_ADDED, _NUMBER, _SAMPLES = "bias/added", "bias/number", "bias_samples/"  # names in files


class BiasEstimate(NamedTuple):
    """Bias by steps of length 1, along independent combinations of the parameters with unit variance.

    Args:
      root: Cholesky factor of the covariance of the numbers of a position, in which parameters are linear.
      bias: bias of each combination root^-1 numbers.
      error: standard error of the bias.
    """

    root: np.ndarray
    bias: np.ndarray
    error: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray, added: np.ndarray) -> BiasEstimate:
        """The estimate from chains that are mixed; zero if they are not, since a drift is no bias.

        Args:
          numbers: numbers of the positions, (chains, steps, n).
          added: shift of the log density by steps of length 1, (chains, steps).
        """
        begins = range(0, added.shape[1] // 2 + 1, max(added.shape[1] // 20, 1))
        draws = [(numbers[:, begin:], added[:, begin:]) for begin in begins if _mixed(numbers[:, begin:])]
        if not draws:
            return cls.none(numbers.shape[-1])
        found = [_regressed(*each, _without_drift) for each in draws]
        best = min(found, key=lambda estimate: estimate.largest_error)
        if not _mixed(numbers):
            return best
        every = min(_regressed(numbers, added, _about_mean), found[0], key=lambda estimate: estimate.largest_error)
        return best if best.largest_error < _CLEARLY * every.largest_error else every

    @classmethod
    def none(cls, count: int) -> BiasEstimate:
        """No bias of `count` numbers."""
        return cls(np.eye(count), np.zeros(count), np.zeros(count))

    @property
    def largest_error(self) -> float:
        """Largest error of all combinations; 0 without an estimate."""
        return float(np.max(self.error, initial=0.0))

    def longest_step(self, most_bias: float, most_error: float) -> float:
        """The longest step with a second-order remainder of most_bias and an error of most_error at most."""
        shown, error = np.sum(np.maximum(np.abs(self.bias) - self.error, 0) ** 2), self.largest_error
        second_order = (2 * most_bias / shown) ** 0.25 if shown > 0 else math.inf
        return float(min(second_order, math.sqrt(most_error / error) if error > 0 else math.inf))

    def correction(self, step_size: float, most_bias: float) -> np.ndarray:
        """Gradient of the correction along each number, clipped where half the square of the bias is most_bias."""
        share = self.bias**2 / np.maximum(self.bias**2 + self.error**2, 1e-300)
        bias = share * self.bias * step_size**2
        bias *= min(1.0, math.sqrt(2 * most_bias) / max(math.sqrt(np.sum(bias**2)), 1e-300))
        return np.linalg.solve(self.root.T, bias)

    def residual_slopes(self, step_size: float, most_bias: float) -> np.ndarray:
        """Possible remainders of the correction as gradients for steps of length 1, (numbers, combinations + 1).

        They are the independent errors, and the part that is clipped.
        """
        clipped = self.correction(step_size, math.inf) - self.correction(step_size, most_bias)
        return np.column_stack([np.linalg.solve(self.root.T, np.diag(self.error)), clipped / step_size**2])


class BiasSamples:
    """Blocks of draws from which a bias is estimated, as NumPy arrays.

    Args:
      count: number of numbers of a position.
    """

    def __init__(self, count: int):
        self._count, self._blocks = count, list[np.ndarray]()  # (chains, steps, count + 1)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, numbers: Any, added: Any) -> None:
        """Add a block.

        Args:
          numbers: numbers of the positions, (chains, steps, count).
          added: shift of the log density by steps of length 1, (chains, steps).
        """
        self._blocks.append(np.concatenate([np.asarray(numbers, float), np.asarray(added, float)[..., None]], axis=-1))

    @property
    def mean(self) -> np.ndarray:
        """Mean of each number over all draws."""
        return np.concatenate(self._blocks, axis=1)[..., :-1].mean(axis=(0, 1))

    @property
    def estimate(self) -> BiasEstimate:
        """The estimate from all blocks; zero without any."""
        if not self._blocks:
            return BiasEstimate.none(self._count)
        draws = np.concatenate(self._blocks, axis=1)
        return BiasEstimate.of(draws[..., :-1], draws[..., -1])

    def pack(self) -> dict[str, np.ndarray]:
        """All blocks as named arrays, for a file."""
        return {f"{_SAMPLES}{i:05d}": x for i, x in enumerate(self._blocks)}

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore packed blocks."""
        self._blocks = [arrays[name] for name in sorted(arrays) if name.startswith(_SAMPLES)]


def bias_samples(states: IntegratorState, method: Method, tuning: Tuning) -> dict[str, Array]:
    """Numbers of the positions of all chains, and the shift of the log density there by steps of length 1.

    Empty with a Metropolis step, or where positions are fields alone.
    """
    numbers = _numbers(states.position)
    if method != "mclmc" or not numbers:
        return {}
    leaves, one = jax.tree.leaves(states.position), jnp.ones((), states.logdensity.dtype)
    added = jax.vmap(lambda state: density_shift(state, one, tuning.inverse_mass_matrix))(states)
    return {_ADDED: added} | {f"{_NUMBER}/{i:03d}": leaves[leaf] for i, leaf in enumerate(numbers)}


def _numbers(positions: Any) -> list[int]:
    """Indices of the leaves that are one number for each chain."""
    return [i for i, x in enumerate(jax.tree.leaves(positions)) if x.ndim == 1]


@dataclass
class BiasCorrection:
    """The correction of chains that run, and the draws from which it is estimated.

    Args:
      error: independent errors of the correction from the tuning, as gradients along the numbers for steps of length 1,
        shape (numbers, any); no columns without such a correction.
      most_bias: largest bias that is asked for; without a correction from the tuning the error of the first one is at
        most twice as large.
      offset: constant that is added to the density shift, so that it does not jump where the correction changes.
      estimated: whether the correction comes from draws of the chains.
    """

    error: np.ndarray
    most_bias: float
    offset: float = 0.0
    estimated: bool = False
    samples: BiasSamples = field(init=False)  # chunk by chunk

    def __post_init__(self) -> None:
        self.samples = BiasSamples(len(self.error))

    def update(self, run: Run, draws: Arrays) -> tuple[Run, Arrays]:
        """The chains after a chunk with the correction from all draws, and the draws of the chunk with the offset."""
        if _ADDED not in draws:
            return run, draws
        shift = draws["density_shift"]
        draws = draws | {"density_shift": shift + shift.dtype.type(self.offset)}
        self.add(draws)
        slopes = self.estimate(float(np.asarray(run.tuning.step_size)))
        return (run if slopes is None else self._with(run, slopes)), draws

    def add(self, draws: Arrays) -> None:
        """Add the draws of a chunk."""
        if _ADDED in draws:
            count = sum(name.startswith(_NUMBER) for name in draws)
            numbers = [draws[f"{_NUMBER}/{i:03d}"] for i in range(count)]
            self.samples.add(np.stack(numbers, axis=-1), draws[_ADDED])

    def estimate(self, step_size: float) -> np.ndarray | None:
        """Gradient of the correction from all draws; None if it does not change now."""
        if len(self.samples) & (len(self.samples) - 1):
            return None
        found = self.samples.estimate
        if not self._is_better(found, step_size):
            return None
        self.estimated = True
        return found.correction(step_size, MOST_ERROR * self.most_bias)

    def _is_better(self, found: BiasEstimate, step_size: float) -> bool:
        """Whether chains are mixed, and the error is smaller than that from the tuning."""
        if not found.largest_error:
            return False
        if self.estimated:  # from fewer draws; estimated errors may grow
            return True
        if not self.error.size:
            return found.largest_error * step_size**2 <= MOST_ERROR * self.most_bias
        return found.largest_error < np.max(np.linalg.norm(found.root.T @ self.error, axis=1))

    def _with(self, run: Run, slopes: np.ndarray) -> Run:
        """The chains with these gradients of the correction along the numbers."""
        old, structure = jax.tree.flatten(run.tuning.correction)
        new: list[Any] = [np.asarray(x) for x in old]
        numbers = _numbers(run.states.position)
        for leaf, slope in zip(numbers, slopes, strict=True):
            new[leaf] = slope.astype(new[leaf].dtype)
        change = [x - np.asarray(y) for x, y in zip(new, old, strict=True)]
        self.offset += float(sum(change[leaf] * m for leaf, m in zip(numbers, self.samples.mean, strict=True)))
        tuning = run.tuning._replace(correction=placed(jax.tree.unflatten(structure, new), run.tuning.correction))
        further = run.tuning._replace(correction=jax.tree.unflatten(structure, change))
        states = jax.vmap(lambda state: corrected(state, further))(run.states)
        return run._replace(states=placed(states, run.states), tuning=tuning)

    def pack(self) -> Arrays:
        """The correction without its draws as named arrays."""
        arrays = {"error": self.error, "offset": np.asarray(self.offset), "estimated": np.asarray(self.estimated)}
        return {f"correction/{name}": x for name, x in arrays.items()}

    @classmethod
    def unpack(cls, stored: Arrays, most_bias: float) -> BiasCorrection:
        """The packed correction, without draws."""
        error, offset, estimated = (f"correction/{name}" for name in ("error", "offset", "estimated"))
        check_shapes(stored, {offset: (), estimated: ()})
        return cls(stored[error], most_bias, float(stored[offset]), bool(stored[estimated]))


def _mixed(numbers: np.ndarray) -> bool:
    return numbers.shape[1] >= _FEWEST_DRAWS and max(map(split_rhat, np.moveaxis(numbers, -1, 0))) <= _NOT_MIXED


def _regressed(numbers: np.ndarray, added: np.ndarray, centred: Callable[[np.ndarray], np.ndarray]) -> BiasEstimate:
    """The regression of the added log density on independent combinations of the numbers.

    Args:
      numbers: numbers of the positions, (chains, steps, n).
      added: shift of the log density by steps of length 1, (chains, steps).
      centred: function of values (chains, steps, n) that subtracts their mean or drift.
    """
    count, width = numbers.shape[-1], np.std(numbers, axis=(0, 1))
    width = np.where(width > 1e-12 * np.max(np.abs(numbers), axis=(0, 1)), width, 1)  # 1 for constant numbers
    covariance = np.atleast_2d(np.cov((_about_mean(numbers) / width).reshape(-1, count).T))
    root = width[:, None] * np.linalg.cholesky(covariance + 1e-9 * np.eye(count))
    each = centred(np.linalg.solve(root, numbers[..., None])[..., 0])
    sums = centred(added[..., None])
    products = np.linalg.pinv(each.reshape(-1, count), rcond=1e-6) * sums.size
    bias = products @ sums.ravel() / sums.size
    left = sums - (each @ bias)[..., None]
    products = np.moveaxis(products.reshape(count, *added.shape), 0, -1) * left
    error = [np.std(x) / math.sqrt(ess_mean(x)) if x.any() else 0.0 for x in np.moveaxis(products, -1, 0)]
    return BiasEstimate(root, bias, np.array(error))


def _about_mean(x: np.ndarray) -> np.ndarray:
    return x - x.mean(axis=(0, 1))


def _without_drift(x: np.ndarray) -> np.ndarray:
    """Chains (chains, steps, n) without their linear trends in time."""
    time = np.arange(x.shape[1]) - 0.5 * (x.shape[1] - 1)
    slope = np.einsum("t,ctn->cn", time, x)[:, None] / (time @ time)
    return x - x.mean(axis=1, keepdims=True) - slope * time[:, None]
