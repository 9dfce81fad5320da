"""What to simulate: box, mesh, lattice, time span and device layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pmwd_dist.communication import update
from pmwd_dist.decomposition import Decomposition, fitting

GRADIENTS = ("finite-difference", "spectral")


@dataclass(frozen=True)
class Config:
    """The description of a simulation. Frozen, hashable, without arrays: a static argument of jit.

    Args:
      box_size: side of the periodic box [Mpc/h]; a float or three.
      mesh_shape: cells of the force mesh; an int or three.
      particle_shape: Lagrangian lattice of the particles; an int or three; default: mesh_shape.
      a_start, a_stop: scale factors between which particles are evolved.
      steps: number of time steps, uniform in the growth factor.
      lpt_order: order of the initial conditions, 1 (Zel'dovich) or 2.
      decomposition: division over devices; default: all devices of the program.
      halo: cells per side that a displacement may reach over a block's edge; "auto" chooses at each step
        the smallest of a few widths that holds the largest displacement.
      gradient: of the potential: "finite-difference" (fourth order, with the CIC window deconvolved) or "spectral".

    Raises:
      ValueError: an argument out of its range, or shapes that don't divide over the devices.
    """

    box_size: Any
    mesh_shape: Any
    particle_shape: Any = None
    a_start: float = 0.1
    a_stop: float = 1.0
    steps: int = 20
    lpt_order: int = 2
    decomposition: Decomposition | None = None
    halo: int | Literal["auto"] = "auto"
    gradient: Literal["finite-difference", "spectral"] = "finite-difference"

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "box_size", _three(self.box_size, "box_size", float))
        set_(self, "mesh_shape", _three(self.mesh_shape, "mesh_shape", int))
        lattice = self.mesh_shape if self.particle_shape is None else self.particle_shape
        set_(self, "particle_shape", _three(lattice, "particle_shape", int))
        if min(self.mesh_shape) < 2:
            raise ValueError(
                f"mesh_shape={self.mesh_shape} must have 2 cells or more along each axis, for the gradient"
            )
        _check_scalars(self)
        shapes = {"mesh_shape": self.mesh_shape, "particle_shape": self.particle_shape}
        if self.decomposition is None:
            set_(self, "decomposition", fitting(tuple(shapes.values())))
        for name, shape in shapes.items():
            self.layout.check(shape, name)

    @property
    def layout(self) -> Decomposition:
        """The decomposition, once it is known."""
        assert self.decomposition is not None
        return self.decomposition

    @property
    def cell_size(self) -> tuple[float, float, float]:
        """Side of a mesh cell along each axis [Mpc/h]."""
        sides = [b / n for b, n in zip(self.box_size, self.mesh_shape, strict=True)]
        return sides[0], sides[1], sides[2]

    @property
    def spacing(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Mesh cells per lattice spacing along each axis, as a reduced fraction."""
        pairs = [
            (m // math.gcd(m, n), n // math.gcd(m, n))
            for m, n in zip(self.mesh_shape, self.particle_shape, strict=True)
        ]
        return pairs[0], pairs[1], pairs[2]

    @property
    def particles_per_cell(self) -> float:
        """Mean number of particles in a mesh cell."""
        return math.prod(self.particle_shape) / math.prod(self.mesh_shape)


def _three(value: Any, name: str, kind: type) -> Any:
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * 3
    if len(values) != 3:
        raise ValueError(f"{name}={value!r} has {len(values)} entries; pass one number or three")
    return tuple(_positive(v, name, kind) for v in values)


def _positive(value: Any, name: str, kind: type) -> Any:
    try:
        number = kind(value)
        valid = number == value and not isinstance(value, bool) and math.isfinite(number) and number > 0
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        what = "a positive whole number" if kind is int else "a positive, finite number"
        raise ValueError(f"{name}={value!r} must be {what}")
    return kind(value)


def _check_scalars(config: Config) -> None:
    for name in ("a_start", "a_stop"):
        object.__setattr__(config, name, _positive(getattr(config, name), name, float))
    object.__setattr__(config, "steps", _positive(config.steps, "steps", int))
    if not config.a_start < config.a_stop:
        raise ValueError(f"a_start={config.a_start} must be less than a_stop={config.a_stop}")
    if config.a_stop > 2:
        raise ValueError(f"a_stop={config.a_stop} lies beyond the growth tables, which end at a = 2")
    if config.a_start < 1e-3:
        raise ValueError(f"a_start={config.a_start} lies before the growth tables, which start at a = 0.001")
    if config.lpt_order not in (1, 2):
        raise ValueError(f"lpt_order={config.lpt_order!r} must be 1 or 2")
    if config.gradient not in GRADIENTS:
        raise ValueError(f"gradient={config.gradient!r} is not known; use one of {GRADIENTS}")
    halo = config.halo
    if halo != "auto" and (isinstance(halo, bool) or not isinstance(halo, int) or halo < 0):
        raise ValueError(f'halo={halo!r} must be a whole number of cells, 0 or more, or "auto"')


__all__ = ["Config", "update"]
