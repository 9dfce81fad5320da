"""What the blocks of a stage of a tuning have shown, on the host."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from pmwd_dist.infer.samplers.blocks import Block


class Stage:
    """Moments of positions and what was seen along chains.

    Args:
      shapes: of the leaves of the positions, with a leading axis of chains.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self.averaged, self._shapes = 0, list(shapes)
        self.observed = list[np.ndarray]()
        self._square, self._mean, self._informed = np.zeros(len(shapes)), [np.zeros(shape) for shape in shapes], 0.0

    def average(self, block: Block, *, observe: bool) -> None:
        """Add the moments of a block, and what an observer has seen."""
        self.averaged += 1
        if observe:
            self.observed.append(np.asarray(block.observed))
            self._informed = self._informed + np.asarray(block.informed)
        self._mean = [total + mean for total, mean in zip(self._mean, jax.tree.leaves(block.mean), strict=True)]
        self._square = self._square + [float(np.mean(x)) for x in jax.tree.leaves(block.square)]

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of an observer, (chains, steps, n), and the mean of the fields of each chain."""
        return np.concatenate(self.observed, axis=1), np.asarray(self._informed) / max(self.averaged, 1)

    def variances(self) -> np.ndarray:
        """Variance of each leaf within chains; 1 where nothing was averaged."""
        if not self.averaged:
            return np.ones(len(self._shapes))
        means = np.array([np.mean((mean / self.averaged) ** 2) for mean in self._mean])
        return np.maximum(self._square / self.averaged - means, 1e-6)

    def pack(self) -> dict[str, np.ndarray]:
        """All of it as arrays, by name."""
        arrays = {"averaged": self.averaged, "square": self._square, "informed": self._informed}
        arrays |= {f"mean/{i}": mean for i, mean in enumerate(self._mean)}
        arrays |= {f"observed/{i:05d}": x for i, x in enumerate(self.observed)}
        return {name: np.asarray(x) for name, x in arrays.items()}

    def unpack(self, arrays: dict[str, np.ndarray]) -> None:
        """What was packed."""
        self.averaged, self._square = int(arrays["averaged"]), arrays["square"]
        self._mean = [arrays[f"mean/{i}"] for i in range(len(self._shapes))]
        self._informed = arrays["informed"]
        self.observed = [arrays[key] for key in sorted(arrays) if key.startswith("observed/")]
