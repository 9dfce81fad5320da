"""The tilt against what finite steps do to parameters, found again from the draws of the chains as they run.

A tuning shows that shift with an error (`samplers.tilting`); draws show it as well, and after some time better. So the
tilt is found again from all draws after the first, second, fourth, eighth chunk and so on, where their error is smaller
than that of the tilt before. What changes, changes ever less and less often, as chains that adapt while they run must
for their draws to be those of the posterior (Roberts & Rosenthal 2007). Where the error of n draws is e, and falls as
the root of their number, the mean over 16 n draws is shifted by half of e at most.
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
from pmwd_dist.infer.samplers.tilting import Shift
from pmwd_dist.infer.state import Run, placed
from pmwd_dist.infer.storage import Arrays, check_shapes

_ADDED, _NUMBER = "shift/added", "shift/number"


def seen_of_tilts(states: IntegratorState, method: Method, tuning: Tuning) -> dict[str, Array]:
    """What a tilt is found from, of states of all chains: numbers of their positions, and what steps of length 1 add.

    Nothing with a Metropolis step, or where positions are fields alone.
    """
    numbers = [x for x in jax.tree.leaves(states.position) if x.ndim == 1]
    if method != "mclmc" or not numbers:
        return {}
    one = jnp.ones((), states.logdensity.dtype)
    added = jax.vmap(lambda state: density_shift(state, one, tuning.inverse_mass_matrix))(states)
    return {_ADDED: added} | {f"{_NUMBER}/{i:03d}": x for i, x in enumerate(numbers)}


@dataclass
class Refining:
    """What finds the tilt again.

    Args:
      error: of the shift by steps of length 1 that the tilt was found from, at most; infinite without a tilt.
      offset: of the log density with the tilt, by which what steps add to it does not jump where the tilt changes.
    """

    error: float
    offset: float = 0.0
    _seen: list[np.ndarray] = field(default_factory=list)  # of each chunk, (chains, draws, numbers and what is added)

    def take(self, run: Run, draws: Arrays) -> Run:
        """The chains with the tilt by all draws, after those of a chunk, whose `density_shift` loses the offset."""
        if _ADDED not in draws:
            return run
        draws["density_shift"] = draws["density_shift"] + draws["density_shift"].dtype.type(self.offset)
        self.remember(draws)
        count = len(self._seen)
        if count & (count - 1):
            return run
        seen = np.concatenate(self._seen, axis=1)
        shift = Shift.of(seen[..., :-1], seen[..., -1])
        if not 0 < shift.largest_error < self.error:
            return run
        self.error = shift.largest_error
        return self._tilted(run, shift.tilt(float(np.asarray(run.tuning.step_size))), seen[..., :-1].mean(axis=(0, 1)))

    def remember(self, draws: Arrays) -> None:
        """Draws of a chunk that is on disk."""
        if _ADDED in draws:
            names = sorted(name for name in draws if name.startswith(_NUMBER))
            self._seen.append(np.stack([draws[name] for name in (*names, _ADDED)], axis=-1).astype(float))

    def _tilted(self, run: Run, slopes: np.ndarray, mean: np.ndarray) -> Run:
        """The chains with such slopes for the numbers of a position, whose mean over all draws is given."""
        old, structure = jax.tree.flatten(run.tuning.tilt)
        numbers = [i for i, x in enumerate(jax.tree.leaves(run.states.position)) if x.ndim == 1]
        new: list[Any] = [np.asarray(x) for x in old]
        for i, slope in zip(numbers, slopes, strict=True):
            new[i] = slope.astype(new[i].dtype)
        change = [x - np.asarray(y) for x, y in zip(new, old, strict=True)]
        self.offset += float(sum(change[i] * m for i, m in zip(numbers, mean, strict=True)))
        tuning = run.tuning._replace(tilt=placed(jax.tree.unflatten(structure, new), run.tuning.tilt))
        further = Tuning(tuning.L, tuning.step_size, tuning.inverse_mass_matrix, jax.tree.unflatten(structure, change))
        states = jax.vmap(lambda state: tilted(state, further))(run.states)
        return run._replace(states=placed(states, run.states), tuning=tuning)

    def pack(self) -> Arrays:
        """What a file keeps besides the draws, by name."""
        return {"refining/error": np.asarray(self.error), "refining/offset": np.asarray(self.offset)}

    @classmethod
    def unpack(cls, stored: Arrays) -> Refining:
        """What was packed, before it remembers the draws."""
        check_shapes(stored, {"refining/error": (), "refining/offset": ()})
        return cls(float(stored["refining/error"]), float(stored["refining/offset"]))
