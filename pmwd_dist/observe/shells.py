"""Light cones with mass shells: checks, and the shares of the shells in a mass that is crossed."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pmwd_dist._checks import check_ascending, check_choice
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.observe.crossing import LightCone, Path, light_cone_in_step, path
from pmwd_dist.parallel.inputs import real
from pmwd_dist.pm.inputs import check_config
from pmwd_dist.pm.stepping.forward import Accumulator, Epoch

Assignment = Literal["linear", "nearest"]

POINTS, WEIGHTS = np.polynomial.legendre.leggauss(8)  # quadrature over a piece
MARGIN = 100.0  # bound of displacements in a LCDM universe [Mpc/h]
_MOST_IMAGES = 20_000
_SLACK = 1e-4  # relative tolerance of distances in single precision


def checked_observer(observer: Any, box: Sequence[float]) -> tuple[float, ...]:
    """Position of an observer as Python floats; None: the centre of the box."""
    observer = [length / 2 for length in box] if observer is None else observer
    values = np.asarray(real(observer, "observer"), float)
    if values.shape != (len(box),) or not all(0 <= x <= length for x, length in zip(values, box, strict=True)):
        shown = values.tolist() if len(box) > 1 else values.ravel().tolist()[0]
        sides = " x ".join(f"{length:g}" for length in box)
        remedy = "positions are periodic: take it modulo the box"
        raise ArgumentError("observer", shown, f"must lie in the box of {sides} Mpc/h", remedy)
    return tuple(values.tolist())


def check_images(count: int, config: Config, argument: str = "edges") -> None:
    """Raise ValueError if an argument takes too many repetitions of the box."""
    if count > _MOST_IMAGES:
        sides = " x ".join(f"{length:g}" for length in config.box_size)
        constraint = f"take {count} repetitions of a box of {sides} Mpc/h, more than {_MOST_IMAGES}"
        remedy = "use nearer shells or galaxies, or a larger box"
        raise ArgumentError(argument, None, constraint, remedy, show_value=False)


def is_traced(tree: Any) -> bool:
    """Whether some arrays of a pytree are traced."""
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


@partial(jit, static_argnames="config")
def _time_span(cosmo: GrowthTable, config: Config) -> tuple[Array, Array]:
    """Nearest and farthest distance on the light cone of a simulation [Mpc/h]."""
    far, near = comoving_distance(jnp.asarray([config.a_start, config.a_stop], dtype=float), cosmo)
    return near - _SLACK * far, far * (1 + _SLACK)


class Shells(NamedTuple):
    """Assignment of a mass to the shells of a light cone, by its distance.

    Args:
      dimensions: 1 for planes, 3 for spheres.
      assignment: "nearest" assigns a mass to the shell around it. With "linear" the shells with the nearest mean
        distances on both sides share it; beyond the first and the last of these, its share falls to zero at the
        outer edges. Maps are then continuous functions of the distance, with derivatives.
    """

    edges: tuple[float, ...]
    dimensions: int
    assignment: Assignment

    @property
    def nodes(self) -> np.ndarray:
        """Distances at which one shell has all of a mass [Mpc/h]."""
        low, high, n = np.asarray(self.edges[:-1]), np.asarray(self.edges[1:]), self.dimensions
        return (high ** (n + 1) - low ** (n + 1)) / (high**n - low**n) * n / (n + 1)  # means at constant density

    @property
    def _ends(self) -> np.ndarray:
        """Edges and nodes: shares are linear in the distance between them [Mpc/h]."""
        return np.sort(np.concatenate([self.edges, self.nodes]))

    @property
    def pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Pieces with linear shares, without fading: start, length [Mpc/h], and rows of share and slope by shell."""
        low, length = self._ends[:-1], np.diff(self._ends)
        near, far = (self.shares(low + part * length, fading=False) for part in (0.25, 0.75))
        return low, length, 1.5 * near - 0.5 * far, (far - near) / (length / 2)

    def shares(self, x: np.ndarray, *, fading: bool = True) -> np.ndarray:
        """Share of each shell in a mass at distances x, (shells, ...); the shares add up to 1 without fading."""
        index = np.arange(len(self.edges) - 1).reshape(-1, *(1,) * x.ndim)
        if self.assignment == "nearest":
            return (np.searchsorted(self.edges, x, side="right") - 1 == index).astype(float)
        nodes = self.nodes
        share = np.maximum(1 - np.abs(np.interp(x, nodes, index.ravel()) - index), 0)
        ends = self.edges[0], nodes[0], nodes[-1], self.edges[-1]
        return share * np.interp(x, ends, (0.0, 1.0, 1.0, 0.0)) if fading else share

    @property
    def volumes(self) -> np.ndarray:
        """Integral of each shell's share over distance to the power of dimensions - 1: thickness of planes [Mpc/h]."""
        return self._moment(self.dimensions - 1)

    @property
    def distances(self) -> np.ndarray:
        """Mean distance of the mass of each shell, at constant density [Mpc/h]."""
        return self._moment(self.dimensions) / self.volumes

    def _moment(self, power: int) -> np.ndarray:
        half = np.diff(self._ends)[:, None] / 2
        x = (self._ends[:-1, None] + half * (1 + POINTS)).ravel()
        return np.sum(self.shares(x) * (half * WEIGHTS).ravel() * x**power, axis=1)

    def index_and_share(self, distance: Array) -> tuple[Array, Array]:
        """Fractional index of the shell at a distance [Mpc/h], and the sum of the shares of all shells."""
        if self.assignment == "linear":
            rising, falling = (self.edges[0], self.nodes[0]), (self.nodes[-1], self.edges[-1])
            return _passed(distance, self.nodes), _passed(distance, rising) * (1 - _passed(distance, falling))
        # Edge by edge: XLA does not vectorise a reduction over edges on CPUs.
        beyond = ((distance >= edge).astype(distance.dtype) for edge in self.edges[1:-1])
        inside = (distance >= self.edges[0]) & (distance < self.edges[-1])
        return sum(beyond, jnp.zeros_like(distance)), inside.astype(distance.dtype)

    def covered(self, cosmo: GrowthTable, config: Config) -> Array:
        """Mask of the shells with a range of non-zero shares within the time span of the simulation."""
        near, far = _time_span(cosmo, config)
        low, high = np.asarray(self.edges[:-1]), np.asarray(self.edges[1:])
        if self.assignment == "linear" and len(low) > 1:
            low, high = np.append(low[:1], self.nodes[:-1]), np.append(self.nodes[1:], high[-1:])
        return (near <= jnp.asarray(low)) & (jnp.asarray(high) <= far)


def _passed(x: Array, nodes: Sequence[float] | np.ndarray) -> Array:
    """Fractional number of intervals between nodes below x, without gathers, whose derivatives would be scatters."""
    parts = (jnp.clip((x - low) / (high - low), 0, 1) for low, high in itertools.pairwise(map(float, nodes)))
    return sum(parts, jnp.zeros_like(x))


@dataclass(frozen=True, init=False)
class ShellLightCone(Accumulator):
    """A light cone with mass shells: the common part of light cones on a flat sky and on the sphere."""

    dimensions: ClassVar[int]  # of the distance from which a shell has its volume, see `Shells`
    config: Config
    edges: tuple[float, ...]
    shell_assignment: Assignment

    def __init__(self, config: Config, edges: Any, shell_assignment: Any, **fields: Any):
        check_config(config)
        check_choice(shell_assignment, "shell_assignment", get_args(Assignment))
        fields |= {"config": config, "edges": check_ascending(edges, "edges"), "shell_assignment": shell_assignment}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def shells(self) -> Shells:
        """The shells."""
        return Shells(self.edges, self.dimensions, self.shell_assignment)

    @property
    def distances(self) -> np.ndarray:
        """Mean distance of the mass of each shell from the observer [Mpc/h]."""
        return self.shells.distances

    def check(self, cosmo: GrowthTable, config: Config) -> None:
        """Raise ValueError if it is of another simulation, or a shell beyond its times, unless these are traced."""
        for name in ("box_size", "particle_shape", "a_start", "a_stop"):
            if (own := getattr(self.config, name)) != (value := getattr(config, name)):
                constraint = f"is not that of the simulation, {value}"
                raise ArgumentError(f"accumulate.config.{name}", own, constraint, "make the light cone with its config")
        if is_traced(cosmo):
            return
        edges = self.edges
        with eval_context():  # known inside jit, too, and by a program: ensure_compile_time_eval runs its operations
            near, far = map(float, _time_span(cosmo, config))
        if near <= edges[0] and edges[-1] <= far:
            return
        span = f"{max(near, 0):.6g}..{far:.6g} Mpc/h (a={config.a_stop:g}..{config.a_start:g})"
        constraint = f"reach beyond the light cone of the simulation, {span}"
        raise ArgumentError(
            "edges", list(edges), constraint, "use other shells, or an earlier a_start or a later a_stop"
        )

    def __call__(self, before: Epoch, after: Epoch, table: GrowthTable) -> Float[Array, "shells ..."]:
        """Mass that the light cone passes in a step; a shell is NaN if the simulation does not span it."""
        light = light_cone_in_step(before.a, after.a, table)
        decomposition = self.config.decomposition
        mass = decomposition.shard_map(self._masses, (decomposition.spec, P()), self.spec, check_vma=False)(
            path(before, after, light), light
        )
        covered = self.shells.covered(table, self.config)
        return jnp.where(covered.reshape(-1, *(1,) * (mass.ndim - 1)), mass, jnp.nan)

    @property
    @abstractmethod
    def spec(self) -> P:
        """Division of the accumulated masses over devices."""

    @abstractmethod
    def _masses(self, path: Path, light: LightCone) -> Array:
        """The local part of the accumulated masses."""
