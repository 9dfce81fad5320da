"""What bounds the step size of a tuning."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

_LARGEST, _NEXT = 0.8, 0.5  # of a step with which a block was unstable: those that may be tried, and the next one


@dataclass
class Bounds:
    """Bounds of the step size, as long as nothing was learned none.

    Args:
      longest: stable step in the stiffest direction, of MCLMC.
      largest: step that is to be tried: shorter than one with which a block was unstable.
      unbiased: longest step whose shift of parameters a tilt takes away.
      stable: the longest step with which a block was stable.
      unstable: bound by a block that was unstable.
      trajectory: bound by the length of trajectories.
    """

    longest: float = math.inf
    largest: float = math.inf
    unbiased: float = math.inf
    stable: float = 0.0
    unstable: float = math.inf
    trajectory: float = math.inf

    def of(self, step_size: float) -> float:
        """The step size, or the bound if that is shorter."""
        return min(step_size, self.largest, self.unbiased)

    def which(self, step_size: float) -> str:
        """What such a step is bounded by."""
        if math.isclose(step_size, _NEXT / _LARGEST * self.unstable):
            return "unstable steps"
        if step_size < 0.999 * min(self.largest, self.unbiased):
            return "energy error"
        if self.unbiased < self.largest:
            return "shift of parameters"
        if self.unstable <= self.largest:
            return "unstable steps"
        return "length of trajectories" if self.trajectory <= self.largest else "stiffest direction"

    def stood(self, step_size: float) -> None:
        """A block was stable."""
        self.stable = max(self.stable, step_size)

    def failed(self, step_size: float) -> float:
        """A block was unstable; the step to try next."""
        self.largest = self.unstable = _LARGEST * step_size
        return _NEXT * step_size

    def renew(self, of_mclmc: float = 1.0, most: float = math.inf) -> None:
        """Forget what blocks have shown: steps are others from here on.

        Args:
          of_mclmc: the length of theirs that is as stable as one of MCLMC of length 1.
          most: that they may have.
        """
        self.largest, self.stable = min(most, of_mclmc * self.longest), 0.0
        self.unstable, self.trajectory = math.inf, most

    def pack(self) -> dict[str, np.ndarray]:
        """The bounds as arrays, by name, for a file."""
        return {f"bounds/{name}": np.asarray(x) for name, x in asdict(self).items()}

    @classmethod
    def unpack(cls, arrays: dict[str, np.ndarray]) -> Bounds:
        """The bounds that were packed."""
        return cls(*(float(arrays[f"bounds/{x.name}"]) for x in fields(cls)))
