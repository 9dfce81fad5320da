"""How a mesh is divided over devices: the one object that the rest of the package asks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Shape3 = tuple[int, int, int]
Names = tuple[str, ...]


class Decomposition:
    """A division of a 3-D mesh into slabs or pencils over devices. Immutable and hashable.

    A real field has its first axis split over `pdims[0]` devices and its second over `pdims[1]`. Its spectrum
    has its second axis split over `pdims[0]` and its third over `pdims[1]`: the layout in which the transform
    ends (see `prfft3d`).

    Args:
      pdims: devices along the first two axes; default: all devices as slabs along the first.
      devices: the devices to use; default: all devices of the program.
      mesh: a device mesh of one's own instead, with
      spec: the PartitionSpec of a real field on it, such as P("x", "y").
      backend: who moves the data: "xla", or "auto" for the best that is available.

    Raises:
      ValueError: arguments that don't fit together.
    """

    def __init__(
        self,
        pdims: tuple[int, int] | None = None,
        devices: Sequence[Any] | None = None,
        *,
        mesh: Mesh | None = None,
        spec: PartitionSpec | None = None,
        backend: Literal["auto", "xla"] = "auto",
    ):
        if backend not in ("auto", "xla"):
            raise ValueError(f"backend={backend!r} is not known; use 'auto' or 'xla'")
        if mesh is None:
            if spec is not None:
                raise ValueError(f"spec={spec} needs the mesh= to which its names belong")
            mesh, spec = _own_mesh(pdims, devices), PartitionSpec("x", "y")
        elif pdims is not None or devices is not None:
            raise ValueError("mesh= already says which devices: leave pdims= and devices= out")
        elif spec is None:
            raise ValueError('mesh= needs spec=, the PartitionSpec of a real field, such as P("x", "y")')
        x_names, y_names = _axis_names(mesh, spec)
        self.mesh: Mesh = mesh
        self.x_names: Names = x_names
        self.y_names: Names = y_names
        self.backend = backend

    @property
    def pdims(self) -> tuple[int, int]:
        """Devices along the first and the second axis of a real field."""
        return _size(self.mesh, self.x_names), _size(self.mesh, self.y_names)

    @property
    def size(self) -> int:
        """Number of blocks into which a field is divided."""
        return math.prod(self.pdims)

    @property
    def names(self) -> Names:
        """All mesh axes over which a field is divided."""
        return self.x_names + self.y_names

    @property
    def spec(self) -> PartitionSpec:
        """PartitionSpec of a real field, shape (nx, ny, nz), and of particles, shape (nx, ny, nz, 3)."""
        return PartitionSpec(self.x_names or None, self.y_names or None)

    @property
    def spectrum_spec(self) -> PartitionSpec:
        """PartitionSpec of a spectrum, shape (nx, ny, nk)."""
        return PartitionSpec(None, self.x_names or None, self.y_names or None)

    @property
    def sharding(self) -> NamedSharding:
        """NamedSharding of a real field."""
        return NamedSharding(self.mesh, self.spec)

    @property
    def spectrum_sharding(self) -> NamedSharding:
        """NamedSharding of a spectrum."""
        return NamedSharding(self.mesh, self.spectrum_spec)

    @property
    def replicated(self) -> NamedSharding:
        """NamedSharding of what every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shard_map(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """The function over the blocks, as one over whole arrays."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)

    def block(self, shape: Shape3) -> Shape3:
        """Shape of one device's block of a real field."""
        return shape[0] // self.pdims[0], shape[1] // self.pdims[1], shape[2]

    def check(self, shape: Shape3, name: str) -> None:
        """Raise ValueError unless a real field of this shape divides in both of its layouts."""
        px, py = self.pdims
        for axis, parts, what in ((0, px, "along x"), (1, math.lcm(px, py), "along y")):
            if shape[axis] % parts:
                low = shape[axis] // parts * parts
                options = f"{low} or {low + parts}" if low else f"{parts}"
                raise ValueError(
                    f"{name}[{axis}]={shape[axis]} is not divisible by {parts} "
                    f"(pdims={self.pdims}, blocks {what}); use {options}, or other pdims"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decomposition) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        kind = self.mesh.devices.flat[0].platform
        return f"Decomposition(pdims={self.pdims}, {kind}, backend={self.backend!r})"

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.mesh, self.x_names, self.y_names, self.backend


def fitting(shapes: Sequence[Shape3]) -> Decomposition:
    """All devices of the program: slabs where they fit all shapes, else the pencils with the fewest rows.

    Raises:
      ValueError: no division of all the devices fits.
    """
    count = jax.device_count()
    problem: ValueError | None = None
    for py in (p for p in range(1, count + 1) if count % p == 0):
        candidate = Decomposition((count // py, py))
        try:
            for shape in shapes:
                candidate.check(shape, "shape")
        except ValueError as error:
            problem = problem or error
            continue
        return candidate
    raise ValueError(f"no division over {count} devices fits: {problem}; or pass decomposition= with fewer devices")


def _own_mesh(pdims: tuple[int, int] | None, devices: Sequence[Any] | None) -> Mesh:
    chosen = list(jax.devices() if devices is None else devices)
    if not chosen:
        raise ValueError("devices=[] is empty; pass at least one device, or leave it out for all")
    pdims = (len(chosen), 1) if pdims is None else (pdims[0], pdims[1])
    if min(pdims) < 1:
        raise ValueError(f"pdims={pdims} must be positive")
    if math.prod(pdims) > len(chosen) or (devices is not None and math.prod(pdims) != len(chosen)):
        raise ValueError(
            f"pdims={pdims} needs {math.prod(pdims)} devices, but there are {len(chosen)}; "
            f"use pdims=({len(chosen)}, 1), or devices= of that number"
        )
    return _mesh(tuple(chosen[: math.prod(pdims)]), pdims)


@functools.cache
def _mesh(devices: tuple[Any, ...], pdims: tuple[int, int]) -> Mesh:
    grid = np.array(devices, dtype=object).reshape(pdims)
    return Mesh(grid, ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))


def _axis_names(mesh: Mesh, spec: PartitionSpec) -> tuple[Names, Names]:
    entries: list[Any] = [*spec, *(None,) * (3 - len(spec))]
    if len(entries) > 3 or entries[2] is not None:
        raise ValueError(f"spec={spec} must leave the third axis of a field whole, as in P('x', 'y')")

    def names(entry: Any) -> Names:
        return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)

    x_names, y_names = names(entries[0]), names(entries[1])
    for name in x_names + y_names:
        if name not in mesh.axis_names:
            raise ValueError(f"spec={spec} names {name!r}, which is not an axis of the mesh {mesh.axis_names}")
    for group in (x_names, y_names):
        # Collectives over several axes count devices in the order of the mesh, whatever the order of the names.
        ordered = tuple(name for name in mesh.axis_names if name in group)
        if group != ordered:
            raise ValueError(f"spec={spec} names {group} against the order of the mesh's axes; use {ordered}")
    return x_names, y_names


def _size(mesh: Mesh, names: Names) -> int:
    return math.prod(mesh.shape[name] for name in names)
