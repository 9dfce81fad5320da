"""A division of a 3-D mesh into slabs or pencils: the device axes that divide each axis of a field."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from pmwd_dist.parallel.device_mesh import Names, axes_size, with_auto_axes

Shape3 = tuple[int, int, int]


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
