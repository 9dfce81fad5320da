"""Shells of a light cone: what they must be, and which of them a crossing is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.config import Config
from pmwd_dist.cosmology.distance import comoving_distance
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.parallel.inputs import real

MARGIN = 100.0  # of displacements: more than gravity makes of them in a LCDM universe [Mpc/h]
_MOST_IMAGES = 20_000
_SLACK = 1e-4  # relative, of distances in single precision


def checked_edges(edges: Any) -> tuple[float, ...]:
    """Edges of shells as numbers of Python.

    Raises:
      ValueError: not two distances or more, or not ascending, or negative.
    """
    values = np.asarray(real(edges, "edges"), float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ArgumentError("edges", edges, "must be two or more comoving distances", "for example [500, 1000, 1500]")
    if values[0] < 0 or (np.diff(values) <= 0).any():
        raise ArgumentError("edges", values.tolist(), "must ascend from 0 or more", "sort them")
    return tuple(values.tolist())


def checked_observer(observer: Any, box: Sequence[float]) -> tuple[float, ...]:
    """Position of an observer as numbers of Python.

    Raises:
      ValueError: not a position in the box.
    """
    values = np.asarray(real(observer, "observer"), float)
    if values.shape != (len(box),) or not all(0 <= x <= length for x, length in zip(values, box, strict=True)):
        shown = values.tolist() if len(box) > 1 else values.ravel().tolist()[0]
        sides = " x ".join(f"{length:g}" for length in box)
        remedy = "positions are periodic: take it modulo the box"
        raise ArgumentError("observer", shown, f"must lie in the box of {sides} Mpc/h", remedy)
    return tuple(values.tolist())


def check_images(count: int, config: Config) -> None:
    """Raise ValueError if a box has to be repeated too often."""
    if count > _MOST_IMAGES:
        sides = " x ".join(f"{length:g}" for length in config.box_size)
        constraint = f"take {count} repetitions of a box of {sides} Mpc/h, more than {_MOST_IMAGES}"
        raise ArgumentError("edges", None, constraint, "use nearer shells or a larger box", show_value=False)


def is_traced(tree: Any) -> bool:
    """Whether values of some arrays are not known yet."""
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(tree))


def _time_span(cosmo: GrowthTable, config: Config) -> tuple[Array, Array]:
    """Nearest and farthest distance that a simulation reaches [Mpc/h]."""
    far, near = comoving_distance(jnp.asarray([config.a_start, config.a_stop], dtype=float), cosmo)
    return near - _SLACK * far, far * (1 + _SLACK)


def check_time_span(edges: Sequence[float], cosmo: GrowthTable, config: Config) -> None:
    """Raise ValueError unless a simulation covers all shells; what is traced is not looked at."""
    if is_traced(cosmo):
        return
    with jax.ensure_compile_time_eval():
        near, far = map(float, _time_span(cosmo, config))
    if near <= edges[0] and edges[-1] <= far:
        return
    span = f"{max(near, 0):.6g}..{far:.6g} Mpc/h (a={config.a_stop:g}..{config.a_start:g})"
    constraint = f"reach beyond the light cone of the simulation, {span}"
    raise ArgumentError("edges", list(edges), constraint, "use other shells, or an earlier a_start or a later a_stop")


def covered(edges: Sequence[float], cosmo: GrowthTable, config: Config) -> Array:
    """Which shells lie within the time span of the simulation."""
    near, far = _time_span(cosmo, config)
    return (near <= jnp.asarray(edges[:-1])) & (jnp.asarray(edges[1:]) <= far)


def shell_of(distance: Array, edges: Sequence[float]) -> tuple[Array, Array]:
    """The shell in which a distance lies, and whether it lies in any."""
    shell = jnp.searchsorted(jnp.asarray(edges, distance.dtype), distance, side="right") - 1
    inside = (shell >= 0) & (shell < len(edges) - 1)
    return jnp.where(inside, shell, 0), inside


def mean_distance(edges: Sequence[float], dimensions: int) -> np.ndarray:
    """Mean distance of the mass of shells of constant density [Mpc/h]; 1 for planes, 3 for spheres."""
    low, high = np.asarray(edges[:-1]), np.asarray(edges[1:])
    n = dimensions
    return (high ** (n + 1) - low ** (n + 1)) / (high**n - low**n) * n / (n + 1)
