"""Device meshes, and divisions of a 3-D mesh over them into slabs or pencils."""

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

Shape3 = tuple[int, int, int]
Names = tuple[str, ...]


class Division:
    """Blocks of a field over the devices of a mesh. Immutable and hashable.

    A real field is divided along x over the device axes `x_names` and along y over `y_names`; its spectrum along ky
    over `x_names` and along kz over `y_names`.
    """

    def __init__(self, mesh: Mesh | AbstractMesh, x_names: Names, y_names: Names):
        self._mesh: Any = mesh  # an AbstractMesh has no devices
        self.x_names = x_names
        self.y_names = y_names

    @property
    def mesh(self) -> Any:
        """The device mesh; where the current mesh has Auto axes in place of its Explicit ones, with Auto axes."""
        context = jax.sharding.get_abstract_mesh()
        if not self.explicit or context.empty or dict(context.shape) != dict(self._mesh.shape):
            return self._mesh
        types = dict(zip(context.axis_names, context.axis_types, strict=True))
        return with_auto_axes(self._mesh) if all(types[n] == AxisType.Auto for n in self.names) else self._mesh

    @property
    def explicit(self) -> bool:
        """Whether a field is divided over Explicit axes of the mesh that was given."""
        types = dict(zip(self._mesh.axis_names, self._mesh.axis_types, strict=True))
        return any(types[name] == AxisType.Explicit for name in self.names)

    @property
    def pdims(self) -> tuple[int, int]:
        """Number of devices along the first and the second axis of a real field."""
        return axes_size(self._mesh, self.x_names), axes_size(self._mesh, self.y_names)

    @property
    def size(self) -> int:
        """Number of blocks of a field."""
        return math.prod(self.pdims)

    @property
    def names(self) -> Names:
        """All device axes that divide a field."""
        return self.x_names + self.y_names

    @property
    def axis_groups(self) -> tuple[tuple[Names, int], tuple[Names, int]]:
        """Device axes and number of devices along x and along y."""
        px, py = self.pdims
        return (self.x_names, px), (self.y_names, py)

    @property
    def is_abstract(self) -> bool:
        """Whether only the shape of the device mesh is known."""
        return isinstance(self._mesh, AbstractMesh)

    @property
    def platform(self) -> str:
        """Kind of the devices, "cpu" or "gpu"; for an abstract mesh, the default of the program."""
        return jax.default_backend() if self.is_abstract else self.mesh.devices.flat[0].platform

    @property
    def shared_process(self) -> bool:
        """Whether some process drives several of the devices; for an abstract mesh, of the program's devices."""
        if self.is_abstract:
            return jax.local_device_count() > 1
        devices = self.mesh.devices.flat
        return len({device.process_index for device in devices}) < self.mesh.devices.size

    def block(self, shape: Shape3) -> Shape3:
        """Shape of one device's block of a real field."""
        return shape[0] // self.pdims[0], shape[1] // self.pdims[1], shape[2]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Division) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._mesh, self.x_names, self.y_names


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
