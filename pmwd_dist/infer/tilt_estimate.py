"""Estimate anew, from the draws of chains that run, the tilt against what finite steps do to parameters.

A tuning has few draws for this estimate (`samplers.tilting`), and its tilt leaves the error. So the tilt is estimated
from all draws of the chains after the first, second, fourth, eighth chunk and so on, once its estimated error is less
than that of the tuning. Each tilt has an invariant density of its own. Changes become ever rarer, and smaller as errors
do: where chains fulfil the conditions of Fort, Moulines & Priouret (2011, arXiv 1203.3036), averages over draws
converge with these densities, to what is right to first order in the shift. An error that falls as the root of the
number of draws, and is e for n of them, is about e / 2 in the mean over 16 n draws.

A tilt takes no more away than a shift of which half the square is twice what is asked for. What is left shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer.samplers.isokinetic import IntegratorState, density_shift
from pmwd_dist.infer.samplers.methods import Method, Tuning, tilted
from pmwd_dist.infer.samplers.tilting import MOST_ERROR, Shift, ShiftSamples
from pmwd_dist.infer.state import Run, placed
from pmwd_dist.io.arrays import Arrays, check_shapes

_ADDED, _NUMBER = "shift/added", "shift/number"


def tilt_samples(states: IntegratorState, method: Method, tuning: Tuning) -> dict[str, Array]:
    """Numbers of the positions of all chains, and what steps of length 1 add to the log density there.

    Nothing with a Metropolis step, or where positions are fields alone.
    """
    numbers = _numbers(states.position)
    if method != "mclmc" or not numbers:
        return {}
    leaves, one = jax.tree.leaves(states.position), jnp.ones((), states.logdensity.dtype)
    added = jax.vmap(lambda state: density_shift(state, one, tuning.inverse_mass_matrix))(states)
    return {_ADDED: added} | {f"{_NUMBER}/{i:03d}": leaves[leaf] for i, leaf in enumerate(numbers)}


def _numbers(positions: Any) -> list[int]:
    """Which leaves are a number for each chain."""
    return [i for i, x in enumerate(jax.tree.leaves(positions)) if x.ndim == 1]


@dataclass
class TiltEstimate:
    """The tilt of chains that run, and what it is estimated from.

    Args:
      error: independent slopes along the numbers that the tilt of the tuning may leave for steps of length 1, shape
        (numbers, any); of no columns without such a tilt.
      most_bias: that is asked for; without a tilt of the tuning the first one has an error of twice that at most.
      offset: added to the log density with the tilt, so that what steps add does not jump where the tilt changes.
      own: whether the tilt is one from draws of the chains.
    """

    error: np.ndarray
    most_bias: float
    offset: float = 0.0
    own: bool = False
    samples: ShiftSamples = field(init=False)  # chunk by chunk

    def __post_init__(self) -> None:
        self.samples = ShiftSamples(len(self.error))

    def update(self, run: Run, draws: Arrays) -> tuple[Run, Arrays]:
        """The chains after the draws of a chunk with the tilt by all draws, and these draws with the offset."""
        if _ADDED not in draws:
            return run, draws
        shift = draws["density_shift"]
        draws = draws | {"density_shift": shift + shift.dtype.type(self.offset)}
        self.add(draws)
        slopes = self.renewed(float(np.asarray(run.tuning.step_size)))
        return (run if slopes is None else self._with(run, slopes)), draws

    def add(self, draws: Arrays) -> None:
        """Take the draws of a chunk into account."""
        if _ADDED in draws:
            count = sum(name.startswith(_NUMBER) for name in draws)
            numbers = [draws[f"{_NUMBER}/{i:03d}"] for i in range(count)]
            self.samples.add(np.stack(numbers, axis=-1), draws[_ADDED])

    def renewed(self, step_size: float) -> np.ndarray | None:
        """Slopes along the numbers of a tilt by all draws, where it is time to change it and these say more."""
        if len(self.samples) & (len(self.samples) - 1):
            return None
        found = self.samples.found
        if not self._is_better(found, step_size):
            return None
        self.own = True
        return found.tilt(step_size, MOST_ERROR * self.most_bias)

    def _is_better(self, found: Shift, step_size: float) -> bool:
        """Whether chains are together, and their draws say more than the tuning did."""
        if not found.largest_error:
            return False
        if self.own:  # with more draws than before; errors that are estimated may grow
            return True
        if not self.error.size:
            return found.largest_error * step_size**2 <= MOST_ERROR * self.most_bias
        return found.largest_error < np.max(np.linalg.norm(found.root.T @ self.error, axis=1))

    def _with(self, run: Run, slopes: np.ndarray) -> Run:
        """The chains with these slopes of the tilt along the numbers."""
        old, structure = jax.tree.flatten(run.tuning.tilt)
        new: list[Any] = [np.asarray(x) for x in old]
        numbers = _numbers(run.states.position)
        for leaf, slope in zip(numbers, slopes, strict=True):
            new[leaf] = slope.astype(new[leaf].dtype)
        change = [x - np.asarray(y) for x, y in zip(new, old, strict=True)]
        self.offset += float(sum(change[leaf] * m for leaf, m in zip(numbers, self.samples.mean, strict=True)))
        tuning = run.tuning._replace(tilt=placed(jax.tree.unflatten(structure, new), run.tuning.tilt))
        further = run.tuning._replace(tilt=jax.tree.unflatten(structure, change))
        states = jax.vmap(lambda state: tilted(state, further))(run.states)
        return run._replace(states=placed(states, run.states), tuning=tuning)

    def pack(self) -> Arrays:
        """What a file keeps besides the draws, by name."""
        arrays = {"error": self.error, "offset": np.asarray(self.offset), "own": np.asarray(self.own)}
        return {f"tilt/{name}": x for name, x in arrays.items()}

    @classmethod
    def unpack(cls, stored: Arrays, most_bias: float) -> TiltEstimate:
        """What was packed, before any draws are added; samplers that have no tilt may have packed nothing."""
        stored = {"tilt/error": np.zeros((0, 0)), "tilt/offset": np.zeros(()), "tilt/own": np.zeros((), bool)} | stored
        check_shapes(stored, {"tilt/offset": (), "tilt/own": ()})
        return cls(stored["tilt/error"], most_bias, float(stored["tilt/offset"]), bool(stored["tilt/own"]))
