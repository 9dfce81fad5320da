"""Bounds of the step size of a tuning."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

_LARGEST, _NEXT = 0.8, 0.5  # largest step to try and next step, relative to an unstable step


@dataclass
class StepBounds:
    """Bounds of the step size, infinite until something bounds it.

    Args:
      stability: stability limit of MCLMC along the direction of the largest curvature.
      largest: largest step to try.
      bias: largest step whose discretisation bias can be corrected.
      stable: largest step of a stable block.
      unstable: bound from the last unstable block.
      trajectory: bound from the length of trajectories.
    """

    stability: float = math.inf
    largest: float = math.inf
    bias: float = math.inf
    stable: float = 0.0
    unstable: float = math.inf
    trajectory: float = math.inf

    def clip(self, step_size: float) -> float:
        """The step size, or the bound if that is shorter."""
        return min(step_size, self.largest, self.bias)

    def which(self, step_size: float) -> str:
        """Name of the bound that is active for a step size."""
        if math.isclose(step_size, _NEXT / _LARGEST * self.unstable):
            return "unstable steps"
        if step_size < 0.999 * min(self.largest, self.bias):
            return "energy error"
        if self.bias < self.largest:
            return "discretisation bias"
        if self.unstable <= self.largest:
            return "unstable steps"
        return "length of trajectories" if self.trajectory <= self.largest else "largest curvature"

    def succeeded(self, step_size: float) -> None:
        """Record a stable block."""
        self.stable = max(self.stable, step_size)

    def failed(self, step_size: float) -> float:
        """Record an unstable block, and return the next step size."""
        self.largest = self.unstable = _LARGEST * step_size
        return _NEXT * step_size

    def reset(self, of_mclmc: float = 1.0, most: float = math.inf) -> None:
        """Forget the blocks so far, after a change of masses or of the sampler.

        Args:
          of_mclmc: stability limit of the sampler's steps, relative to steps of MCLMC.
          most: bound from the length of trajectories.
        """
        self.largest, self.stable = min(most, of_mclmc * self.stability), 0.0
        self.unstable, self.trajectory = math.inf, most

    def pack(self) -> dict[str, np.ndarray]:
        """The bounds as named arrays, for a file."""
        return {f"bounds/{name}": np.asarray(x) for name, x in asdict(self).items()}

    @classmethod
    def unpack(cls, arrays: dict[str, np.ndarray]) -> StepBounds:
        """The bounds from named arrays."""
        return cls(*(float(arrays[f"bounds/{x.name}"]) for x in fields(cls)))
