"""How a mesh is divided over devices: the one object that the rest of the package asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from pmwd_dist._jax import native
from pmwd_dist.parallel import autotune_cache, defaults
from pmwd_dist.parallel.defaults import Backend, HaloComm, TransposeComm
from pmwd_dist.parallel.device_mesh import Names, axes_size, axis_names, context_mesh, own_mesh, sharding_of

Shape3 = tuple[int, int, int]


class Decomposition:
    """A division of a 3-D mesh into slabs or pencils over devices. Immutable and hashable.

    A real field has its first axis split over `pdims[0]` devices and its second over `pdims[1]`. Its spectrum
    has its second axis split over `pdims[0]` and its third over `pdims[1]`: the layout in which the transform
    ends (see `prfft3d`).

    Args:
      pdims: devices along the first two axes; default: all devices as slabs along the first.
      devices: the devices to use; default: all devices of the program.
      mesh: a device mesh of one's own instead, with axes of any type (Auto, Explicit; Manual inside shard_map) and
        possibly more of them than a field is divided over; default: the one set by `jax.set_mesh`, if any.
      spec: the PartitionSpec of a real field on it, such as P("x", "y"); default: the axes of a mesh of one or two.
      backend: who moves the data: "xla"; "peer", for slabs along x over the GPUs of one process, which write into each
        other's memory; "cudecomp", for one process a GPU (see `cudecomp.open_backend`); or "auto" for the default in
        force (`config.update`), which is "peer" where it can be, else "xla".
      transpose_comm: with cuDecomp, who moves the data of transposes: "nccl", "nccl_pl", "mpi_p2p", "mpi_p2p_pl",
        "mpi_a2a", "nvshmem", "nvshmem_pl" or "nvshmem_sm"; default: the one in force, which is "nccl".
      halo_comm: the same of halos: "nccl", "mpi", "mpi_blocking", "nvshmem" or "nvshmem_blocking".

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
        backend: Backend = "auto",
        transpose_comm: TransposeComm | None = None,
        halo_comm: HaloComm | None = None,
    ):
        comms = defaults.chosen(backend, transpose_comm, halo_comm)
        if mesh is not None and (pdims is not None or devices is not None):
            raise ValueError("mesh= already says which devices: leave pdims= and devices= out")
        if mesh is None and pdims is None and devices is None:
            mesh = context_mesh()
        if mesh is None:
            if spec is not None:
                raise ValueError(f"spec={spec} needs the mesh= to which its names belong")
            mesh, spec = own_mesh(pdims, devices), PartitionSpec("x", "y")
        elif spec is None:
            if len(mesh.axis_names) > 2:
                raise ValueError(f"mesh= with axes {mesh.axis_names} needs spec=, the PartitionSpec of a real field")
            spec = PartitionSpec(*mesh.axis_names)
        x_names, y_names = axis_names(mesh, spec)
        self.mesh: Mesh = mesh
        self.x_names: Names = x_names
        self.y_names: Names = y_names
        self.backend, self.transpose_comm, self.halo_comm = comms
        if self.backend in ("auto", "peer"):
            problem = self._peer_unavailable_reason()
            if problem is not None and self.backend == "peer":
                raise ValueError(f"backend='peer' {problem}; use backend='xla'")
            self.backend = "peer" if problem is None else "xla"

    @classmethod
    def of(cls, x: Any, *, spectrum: bool = False) -> Decomposition:
        """The decomposition by which an array (or its NamedSharding) is divided, taken for a spectrum if told so.

        Raises:
          ValueError: an array whose sharding isn't known (inside jit, over Auto axes) or isn't one of slabs or pencils.
        """
        sharding = x if isinstance(x, NamedSharding) else sharding_of(x)
        if isinstance(sharding, SingleDeviceSharding):
            return cls((1, 1), devices=list(sharding.device_set))
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            raise ValueError(
                "how this array is divided isn't known here (numpy doesn't say, and of an array that is traced, by jit "
                "or for a derivative, only Explicit axes do): pass decomposition="
            )
        entries: list[Any] = [*sharding.spec, *(None,) * (3 - len(sharding.spec))]
        if len(entries) != 3 or entries[0 if spectrum else 2] is not None:
            decomposition = "P(None, x, y)" if spectrum else "P(x, y)"
            raise ValueError(f"a sharding of {sharding.spec} is not one of slabs or pencils: use {decomposition}")
        mesh: Any = sharding.mesh
        return cls(mesh=mesh, spec=PartitionSpec(*(entries[1:] if spectrum else entries[:2])))

    @property
    def pdims(self) -> tuple[int, int]:
        """Devices along the first and the second axis of a real field."""
        return axes_size(self.mesh, self.x_names), axes_size(self.mesh, self.y_names)

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
    def platform(self) -> str:
        """Kind of the devices, "cpu" or "gpu"; that of the program for an abstract mesh."""
        return jax.default_backend() if isinstance(self.mesh, AbstractMesh) else self.mesh.devices.flat[0].platform

    @property
    def shared_process(self) -> bool:
        """Whether some process drives several of the devices; of the program for an abstract mesh."""
        if isinstance(self.mesh, AbstractMesh):
            return jax.local_device_count() > 1
        devices = self.mesh.devices.flat
        return len({device.process_index for device in devices}) < self.mesh.devices.size

    def _peer_unavailable_reason(self) -> str | None:
        """What keeps the devices from writing into each other's memory, or None."""
        if isinstance(self.mesh, AbstractMesh):
            return "needs to know the devices, which an abstract mesh doesn't tell"
        if self.pdims[1] > 1:
            return f"serves slabs along x, pdims=({self.size}, 1), not pdims={self.pdims}"
        devices = list(self.mesh.devices.flat)
        if any(device.platform != "gpu" or "rocm" in device.client.platform_version for device in devices):
            return "serves NVIDIA GPUs"
        if any(device.process_index != jax.process_index() for device in devices):
            return "serves the GPUs of one process, and not all of these belong to this one"
        problem = native.peer_unavailable_reason(tuple(sorted(device.local_hardware_id for device in devices)))
        return None if problem is None else f"cannot be used: {problem}"

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

    @property
    def manual(self) -> bool:
        """Whether this is called inside the user's own shard_map, where arrays are blocks."""
        return bool(self.names) and set(self.names) <= set(jax.sharding.get_abstract_mesh().manual_axes)

    def shard_map(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """The function over the blocks, as one over whole arrays; as it is where arrays are blocks already.

        Raises:
          ValueError: another mesh is in force, by jax.set_mesh or shard_map.
        """
        context = jax.sharding.get_abstract_mesh()
        own = self.mesh if isinstance(self.mesh, AbstractMesh) else self.mesh.abstract_mesh
        same = {n: own.shape[n] for n in self.names} == {n: context.shape.get(n) for n in self.names}
        if self.manual and same:
            return function
        if same and (some := set(self.names) & set(context.manual_axes)):
            raise ValueError(
                f"{self!r}: of its axes {self.names} only {', '.join(sorted(some))} is Manual here; make all of them "
                "Manual in one shard_map, or none"
            )
        if context.manual_axes and same:
            if self._explicit:
                raise ValueError(
                    f"{self!r} has Explicit axes inside a shard_map over others, {context.manual_axes}: XLA mistakes "
                    "their layout; make them Auto, or Manual in the same shard_map"
                )
            return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, axis_names=set(self.names))
        if not context.empty and context != own:
            raise ValueError(
                f"the mesh in force {dict(context.shape)} of {context.axis_types} is not that of {self!r}; "
                "make the decomposition with mesh= and spec= of that mesh, spec=P() for a field that is not divided"
            )
        run = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        if not self._explicit:
            return run
        return lambda *args: run(*jax.tree.map(self._reshard, in_specs, args, is_leaf=_is_spec))

    @property
    def _explicit(self) -> bool:
        types = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))
        return any(types[name] == AxisType.Explicit for name in self.names)

    def _reshard(self, spec: PartitionSpec, tree: Any) -> Any:
        """Bring arrays of typed sharding into the layout of a spec: nothing happens if they are in it."""
        return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(self.mesh, spec)), tree)

    def whole(self, shape: Sequence[int], *, spectrum: bool = False) -> Shape3:
        """Shape of the whole field, or spectrum, of which an array of this shape is one or, in shard_map, a block."""
        nx, ny, nz = shape
        if not self.manual:
            return nx, ny, nz
        px, py = self.pdims
        return (nx, ny * px, nz * py) if spectrum else (nx * px, ny * py, nz)

    def block(self, shape: Shape3) -> Shape3:
        """Shape of one device's block of a real field."""
        return shape[0] // self.pdims[0], shape[1] // self.pdims[1], shape[2]

    def check(self, shape: Shape3, name: str) -> None:
        """Raise ValueError unless a real field of this shape divides in both of its layouts."""
        px, py = self.pdims
        self.check_axis(shape, 0, px, name)
        self.check_axis(shape, 1, math.lcm(px, py), name)

    def check_axis(self, shape: Shape3, axis: int, parts: int, name: str) -> None:
        """Raise ValueError unless an axis divides into so many parts."""
        if shape[axis] % parts:
            low = shape[axis] // parts * parts
            options = f"{low} or {low + parts}" if low else f"{parts}"
            raise ValueError(
                f"{name}[{axis}]={shape[axis]} is not divisible by {parts} (pdims={self.pdims}); "
                f"use {options}, or other pdims"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decomposition) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        comms = f", {self.transpose_comm}, {self.halo_comm}" if self.backend == "cudecomp" else ""
        return f"Decomposition(pdims={self.pdims}, mesh={dict(self.mesh.shape)}, backend={self.backend!r}{comms})"

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.mesh, self.x_names, self.y_names, self.backend, self.transpose_comm, self.halo_comm


def default_decomposition(shapes: Sequence[Shape3]) -> Decomposition:
    """All devices of the program, divided so that all shapes fit.

    As `autotune` found best for the first shape, if it was asked; else slabs, else the pencils with the fewest rows.

    Raises:
      ValueError: no division of all the devices fits.
    """
    if context_mesh() is not None:
        chosen = Decomposition()
        for shape in shapes:
            chosen.check(shape, "shape")
        return chosen
    count = jax.device_count()
    problem: ValueError | None = None
    divisions: list[tuple[int, int, Backend]] = [
        (count // py, py, "auto") for py in range(1, count + 1) if count % py == 0
    ]
    # Of several processes not all may see the file, and all must choose alike: there `autotune` is called by name.
    if count > 1 and jax.process_count() == 1 and (record := autotune_cache.find_shape(shapes[0], jax.devices())):
        divisions = _measured(record) + divisions
    for px, py, backend in divisions:
        try:
            candidate = Decomposition((px, py), backend=backend)
            for shape in shapes:
                candidate.check(shape, "shape")
        except ValueError as error:
            problem = problem or error
            continue
        return candidate
    raise ValueError(f"no division over {count} devices fits: {problem}; or pass decomposition= with fewer devices")


def _measured(record: autotune_cache.Record) -> list[tuple[int, int, Backend]]:
    """The division that `autotune` found best, where its measurement covers what would serve slabs by default."""
    (px, py), best = record["pdims"], cast("Backend", record.get("moved by"))
    slabs = Decomposition().backend
    # A record from before "peer" served says nothing of it; a default that was set says more than a record.
    covered = slabs in record["key"].get("moved by", ()) and (best in ("xla", slabs))
    default_set = defaults.default("backend") not in ("auto", best)
    return [(px, py, best)] if covered and not default_set else []


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)
