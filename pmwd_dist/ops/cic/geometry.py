"""Position of a block of particles in a block of mesh cells, and the axes of differentiated weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Orders, 0 or 1, of the derivative of the weight along each axis: (1, 0, 0) is W'(x) W(y) W(z).
Mask = tuple[int, int, int]
VALUE: Mask = (0, 0, 0)


@dataclass(frozen=True)
class Geometry:
    """Position of a block of lattice sites in a block of mesh cells.

    Args:
      mesh: cells of the mesh block along each axis, pads included.
      spacing: (num, den) per axis: lattice site i sits at i * num / den cells.
      origin: cell of lattice site 0: the pad width, or 0 on a periodic axis.
      periodic: whether each axis wraps around; otherwise a particle beyond the block is an error.
      scale: cells per unit of displacement along each axis.
    """

    mesh: tuple[int, ...]
    spacing: tuple[tuple[int, int], ...]
    origin: tuple[int, ...]
    periodic: tuple[bool, ...]
    scale: tuple[float, ...]


def differentiated(mask: Mask, axis: int) -> Mask | None:
    """W(x) W(y) W(z) -> W'(x) W(y) W(z) along an axis; None for a second derivative: W'' = 0 almost everywhere."""
    if mask[axis]:
        return None
    x, y, z = (1 if i == axis else m for i, m in enumerate(mask))
    return x, y, z


def derivative_terms(masks: tuple[Mask, ...]) -> list[tuple[int, int, Mask]]:
    """(k, axis, differentiated mask) for each non-zero first derivative."""
    return [(k, i, up) for k, mask in enumerate(masks) for i in range(3) if (up := differentiated(mask, i))]


def attributes(geometry: Geometry, masks: tuple[Mask, ...]) -> dict[str, np.ndarray]:
    """Attributes of the native ops that describe a geometry and masks."""
    return {
        "spacing_num": np.array([s[0] for s in geometry.spacing], np.int64),
        "spacing_den": np.array([s[1] for s in geometry.spacing], np.int64),
        "origin": np.array(geometry.origin, np.int64),
        "periodic": np.array(geometry.periodic, np.int64),
        "scale": np.array(geometry.scale, np.float64),
        "masks": np.array(masks, np.int64).ravel(),
    }
