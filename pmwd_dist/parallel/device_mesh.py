"""Device meshes: own ones, the current one of jax.set_mesh, and the axes that a PartitionSpec names."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import index
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from pmwd_dist._errors import ArgumentError

Names = tuple[str, ...]


def context_mesh() -> Any:
    """The mesh of jax.set_mesh; abstract inside jit."""
    if jax.sharding.get_abstract_mesh().empty:
        return None
    try:
        return jax.sharding.get_mesh()
    except ValueError:
        return jax.sharding.get_abstract_mesh()


def sharding_of(x: Any) -> Any:
    """Sharding of an array, None if it isn't known: the type of a traced array includes Explicit axes only."""
    if not isinstance(x, Tracer):
        return getattr(x, "sharding", None)
    sharding = jax.typeof(x).sharding
    return sharding if all(kind == AxisType.Explicit for kind in sharding.mesh.axis_types) else None


def own_mesh(pdims: tuple[int, int] | None, devices: Sequence[Any] | None) -> Mesh:
    """A mesh with Auto axes "x" and "y" over the first devices, one object for each set of devices.

    Raises:
      ValueError: the devices are too few.
    """
    chosen = list(jax.devices() if devices is None else devices)
    if not chosen:
        raise ArgumentError("devices", [], "is empty", "pass at least one device, or leave it out for all")
    try:
        px, py = (len(chosen), 1) if pdims is None else map(index, pdims)
    except (TypeError, ValueError):
        px = py = 0
    if min(px, py) < 1:
        raise ArgumentError("pdims", pdims, "must be two positive numbers of devices, along x and along y")
    pdims = px, py
    if math.prod(pdims) > len(chosen) or (devices is not None and math.prod(pdims) != len(chosen)):
        constraint = f"needs {math.prod(pdims)} devices, but there are {len(chosen)}"
        raise ArgumentError("pdims", pdims, constraint, f"use pdims=({len(chosen)}, 1), or devices= of that number")
    return _mesh(tuple(chosen[: math.prod(pdims)]), pdims)


@functools.cache
def _mesh(devices: tuple[Any, ...], pdims: tuple[int, int]) -> Mesh:
    grid = np.array(devices, dtype=object).reshape(pdims)
    return Mesh(grid, ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))


def axis_names(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> tuple[Names, Names]:
    """The mesh axes that divide a real field along x and along y.

    Raises:
      ValueError: the spec is neither slabs nor pencils on this mesh.
    """
    entries: list[Any] = [*spec, *(None,) * (3 - len(spec))]
    if len(entries) > 3 or entries[2] is not None:
        raise ArgumentError("spec", spec, "must leave the third axis of a field whole, as in P('x', 'y')")

    def names(entry: Any) -> Names:
        return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)

    x_names, y_names = names(entries[0]), names(entries[1])
    for name in x_names + y_names:
        if name not in mesh.axis_names:
            raise ArgumentError("spec", spec, f"names {name!r}, which is not an axis of the mesh {mesh.axis_names}")
    for group in (x_names, y_names):
        # Collectives over several axes count devices in the order of the mesh, whatever the order of the names.
        ordered = tuple(name for name in mesh.axis_names if name in group)
        if group != ordered:
            raise ArgumentError("spec", spec, f"names {group} against the order of the mesh's axes", f"use {ordered}")
    return x_names, y_names


@functools.cache
def with_auto_axes(mesh: Any) -> Any:
    """The same mesh with Auto axes."""
    types = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(dict(zip(mesh.axis_names, types, strict=True)))
    return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def axes_size(mesh: Mesh | AbstractMesh, names: Names) -> int:
    """Number of devices along several axes."""
    return math.prod(mesh.shape[name] for name in names)


def device_groups(mesh: Mesh, names: Names) -> list[list[Any]]:
    """Groups of devices that share a field, each in the order of its blocks along `names`."""
    own = [mesh.axis_names.index(name) for name in names]
    rest = [axis for axis in range(mesh.devices.ndim) if axis not in own]
    return np.transpose(mesh.devices, rest + own).reshape(-1, axes_size(mesh, names)).tolist()
