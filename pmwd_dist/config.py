"""What to simulate: box, mesh, lattice, time span and device layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import jax
import numpy as np

from pmwd_dist._checks import check_flag, check_number
from pmwd_dist._errors import ArgumentError
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, as_decomposition, default_decomposition
from pmwd_dist.parallel.defaults import update
from pmwd_dist.parallel.inputs import whole_number

Gradient = Literal["finite-difference", "spectral"]
Vector3 = tuple[float, float, float]
BOX_SIDES = (1e-6, 1e9)  # bounds [Mpc/h]: volumes in single precision

T = TypeVar("T")


@dataclass(frozen=True, init=False)
class Config:
    """Box, mesh, lattice, time span and device layout of a simulation. Frozen, hashable: a static argument of jit.

    Args:
      box_size: side of the periodic box [Mpc/h], 1e-6 to 1e9; a float or three.
      mesh_shape: cells of the force mesh; an int or three.
      particle_shape: Lagrangian lattice of the particles; an int or three; default: mesh_shape. For forces, mesh and
        lattice must be n, 1/n or 3/2 to 1 along each axis.
      a_start, a_stop: first and last scale factor of the evolution.
      steps: number of time steps, uniform in the growth factor. Save times, at which steps end, may add some.
      lpt_order: order of the initial conditions, 1 (Zel'dovich), 2 or 3 (docs/explanation/accuracy.md).
      decomposition: division over devices, or its pdims; default: all devices of the program.
      halo: cells per side that a displacement may reach over a block's edge; "auto" chooses at each step
        the smallest of a few widths that holds the largest displacement.
      gradient: method for the gradient of the potential: "finite-difference" (fourth order, with the CIC window
        deconvolved) or "spectral".
      compensated: whether the Green's function corrects the force for finite differences and aliases, up to half the
        mesh's Nyquist frequency (docs/explanation/accuracy.md). The differences are always corrected where mesh and
        lattice are 3 to 2.

    Raises:
      ValueError: an argument is out of its range, or a shape doesn't divide over the devices.

    Examples:
      >>> config = pmd.Config(box_size=256.0, mesh_shape=128, steps=20)
      >>> config.cell_size
      (2.0, 2.0, 2.0)
    """

    box_size: Vector3
    mesh_shape: Shape3
    particle_shape: Shape3
    a_start: float
    a_stop: float
    steps: int
    lpt_order: int
    decomposition: Decomposition
    halo: int | Literal["auto"]
    gradient: Gradient
    compensated: bool

    def __init__(
        self,
        box_size: float | Sequence[float],
        mesh_shape: int | Sequence[int],
        particle_shape: int | Sequence[int] | None = None,
        a_start: float = 0.1,
        a_stop: float = 1.0,
        steps: int = 20,
        lpt_order: int = 3,
        decomposition: Decomposition | tuple[int, int] | None = None,
        halo: int | Literal["auto"] = "auto",
        gradient: Gradient = "finite-difference",
        compensated: bool = False,
    ):
        box = _three(box_size, "box_size", _side)
        mesh = _three(mesh_shape, "mesh_shape", partial(whole_number, least=2))  # for the gradient
        count = partial(whole_number, least=1)
        lattice = mesh if particle_shape is None else _three(particle_shape, "particle_shape", count)
        start, stop = _time_span(a_start, a_stop)
        fields = {
            "box_size": box,
            "mesh_shape": mesh,
            "particle_shape": lattice,
            "a_start": start,
            "a_stop": stop,
            "steps": count(steps, "steps"),
            "lpt_order": _one_of(lpt_order, "lpt_order", (1, 2, 3)),
            "halo": _halo(halo),
            "gradient": _one_of(gradient, "gradient", get_args(Gradient)),
            "compensated": _compensated(compensated, gradient),
        }
        if decomposition is None:
            decomposition = default_decomposition((mesh, lattice))
        decomposition = as_decomposition(decomposition)
        decomposition.check(mesh, "mesh_shape")
        decomposition.check(lattice, "particle_shape")
        for name, value in (fields | {"decomposition": decomposition}).items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        rows = {
            "box": f"{_product(self.box_size)} Mpc/h",
            "mesh": f"{_product(self.mesh_shape)} cells of {_product(self.cell_size)} Mpc/h",
            "particles": _product(self.particle_shape),
            "time": f"a {self.a_start:g} to {self.a_stop:g} in {self.steps} steps, from {self.lpt_order}LPT",
            "force": f"gradient {self.gradient}, compensated {self.compensated}",
            "devices": f"{_product(self.decomposition.pdims)}, backend {self.decomposition.backend.name}, "
            f"halo {self.halo}",
        }
        return "\n".join(f"{name:12}{text}" for name, text in rows.items())

    @property
    def cell_size(self) -> Vector3:
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


def _product(numbers: Sequence[float]) -> str:
    """Numbers along the axes, for people."""
    return " x ".join(f"{x:g}" for x in numbers)


def _three(value: float | Sequence[float], name: str, convert: Callable[[Any, str], T]) -> tuple[T, T, T]:
    several = value.ndim > 0 if isinstance(value, np.ndarray | jax.Array) else isinstance(value, Sequence)
    values = tuple(value) if several and not isinstance(value, str) else (value,) * 3  # type: ignore[arg-type]
    if len(values) != 3:
        raise ArgumentError(name, value, f"has {len(values)} entries", "pass one number or three")
    x, y, z = (convert(v, name) for v in values)
    return x, y, z


def _side(value: Any, name: str) -> float:
    check_number(value, name, *BOX_SIDES, unit="Mpc/h", remedy="pass box_size in Mpc/h", constant=True)
    return float(value)


def _one_of(value: Any, name: str, choices: tuple[Any, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value not in choices:
        raise ArgumentError(name, value, f"must be {' or '.join(map(repr, choices))}")
    return choices[choices.index(value)]  # of Python's own type


def _time_span(a_start: Any, a_stop: Any) -> tuple[float, float]:
    for name, a in {"a_start": a_start, "a_stop": a_stop}.items():
        check_number(a, name, 1e-3, 2, remedy="growth is tabulated there", constant=True)
    if not a_start < a_stop:
        raise ArgumentError("a_start", a_start, f"must be less than a_stop={a_stop}")
    return float(a_start), float(a_stop)


def _compensated(value: Any, gradient: str) -> bool:
    check_flag(value, "compensated")
    if value and gradient == "spectral":
        constraint = "is for finite differences, and the gradient is 'spectral'"
        raise ArgumentError("compensated", value, constraint, "use gradient='finite-difference'")
    return bool(value)


def _halo(value: Any) -> int | Literal["auto"]:
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        return whole_number(value, "halo")
    except ArgumentError as error:
        raise ArgumentError("halo", value, 'must be a whole number of cells, 0 or more, or "auto"') from error


__all__ = ["Config", "update"]
