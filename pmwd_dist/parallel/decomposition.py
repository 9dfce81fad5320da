"""Decompositions: the division of a mesh over devices, with the communication backend that moves its data."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import jit
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.backends import Backend, choose
from pmwd_dist.parallel.defaults import BackendName, HaloComm, TransposeComm
from pmwd_dist.parallel.division import Division, Shape3, axis_names, context_mesh, own_mesh, sharding_of


class Decomposition(Division):
    """A division of a 3-D mesh into slabs or pencils over devices. Immutable and hashable.

    The first axis of a real field is split over `pdims[0]` devices, the second over `pdims[1]`. The second axis of its
    spectrum is split over `pdims[0]`, the third over `pdims[1]`: the transform ends in this layout (see `prfft3d`).

    Args:
      pdims: devices along the first two axes; default: all devices as slabs along the first.
      devices: devices to use; default: all devices of the program.
      mesh: device mesh to use instead, with axes of any type (Auto, Explicit; Manual inside shard_map), possibly more
        than divide a field; default: the mesh of `jax.set_mesh`, if any.
      spec: PartitionSpec of a real field on this mesh, such as P("x", "y"); default: its axes, if one or two.
      backend: communication backend, "xla", "peer", "cudecomp", "auto" or a `Backend` object. With "peer", for slabs
        along x, the GPUs of one host write into each other's memory; "cudecomp" is for one process a GPU (see
        `cudecomp.open_backend`). By "auto" it is the current default (`config.update`): "peer" where it is available,
        else "xla".
      transpose_comm: cuDecomp's backend for transposes: "nccl", "nccl_pl", "mpi_p2p", "mpi_p2p_pl", "mpi_a2a",
        "nvshmem", "nvshmem_pl" or "nvshmem_sm"; default: the current default, initially "nccl".
      halo_comm: cuDecomp's backend for halos: "nccl", "mpi", "mpi_blocking", "nvshmem" or "nvshmem_blocking".

    Raises:
      ValueError: the arguments don't fit together.

    Examples:
      >>> decomposition = pmd.Decomposition((4, 2))  # pencils over eight devices
      >>> config = pmd.Config(box_size=1000.0, mesh_shape=512, decomposition=decomposition)
    """

    def __init__(
        self,
        pdims: tuple[int, int] | None = None,
        devices: Sequence[Any] | None = None,
        *,
        mesh: Mesh | AbstractMesh | None = None,
        spec: PartitionSpec | None = None,
        backend: BackendName | Backend = "auto",
        transpose_comm: TransposeComm | None = None,
        halo_comm: HaloComm | None = None,
    ):
        if mesh is not None and (pdims is not None or devices is not None):
            raise ValueError("mesh= already says which devices: leave pdims= and devices= out")
        if mesh is None and pdims is None and devices is None:
            mesh = context_mesh()
        if mesh is None:
            if spec is not None:
                raise ArgumentError("spec", spec, "needs the mesh= to which its names belong")
            mesh = own_mesh(pdims, devices)
            spec = PartitionSpec("x", "y") if mesh.size > 1 else PartitionSpec()
        elif spec is None:
            if len(mesh.axis_names) > 2:
                raise ValueError(f"mesh= with axes {mesh.axis_names} needs spec=, the PartitionSpec of a real field")
            spec = PartitionSpec(*mesh.axis_names)
        if isinstance(mesh, Mesh):
            distributed.warn_if_apart()
        super().__init__(mesh, *axis_names(mesh, spec))
        options = {"transpose_comm": transpose_comm, "halo_comm": halo_comm}
        self.backend: Backend = backend if isinstance(backend, Backend) else choose(backend, options, self)

    @classmethod
    def of(cls, x: Any, *, spectrum: bool = False) -> Decomposition:
        """The decomposition of an array (or of its NamedSharding), as a field or as a spectrum.

        For an array without a known sharding (of NumPy, or traced over Auto axes), the mesh of `jax.set_mesh`, if any.

        Raises:
          ValueError: the sharding is not known, without such a mesh, or is neither slabs nor pencils.
        """
        sharding = x if isinstance(x, NamedSharding) else sharding_of(x)
        if sharding is None and context_mesh() is not None:
            return cls()
        if isinstance(sharding, SingleDeviceSharding):
            return cls((1, 1), devices=list(sharding.device_set))
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            raise ValueError(
                "how this array is divided isn't known here (numpy doesn't say, and of an array that is traced, by jit "
                "or for a derivative, only Explicit axes do): pass decomposition=, or set a mesh by jax.set_mesh"
            )
        entries: list[Any] = [*sharding.spec, *(None,) * (3 - len(sharding.spec))]
        if len(entries) != 3 or entries[0 if spectrum else 2] is not None:
            decomposition = "P(None, x, y)" if spectrum else "P(x, y)"
            raise ValueError(f"a sharding of {sharding.spec} is not one of slabs or pencils: use {decomposition}")
        mesh: Any = sharding.mesh
        return cls(mesh=mesh, spec=PartitionSpec(*(entries[1:] if spectrum else entries[:2])))

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
        """NamedSharding of arrays that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def manual(self) -> bool:
        """Whether the caller is inside the user's own shard_map, where arrays are blocks."""
        return bool(self.names) and set(self.names) <= set(jax.sharding.get_abstract_mesh().manual_axes)

    def shard_map(
        self, function: Callable[..., Any], in_specs: Any, out_specs: Any, *, check_vma: bool = True
    ) -> Callable[..., Any]:
        """Map a function of blocks over whole arrays; where arrays are blocks already, return it as it is.

        With `check_vma=False`, as of `jax.shard_map`, blocks may have loops under vmap with `spmd_axis_name`, whose
        operands JAX 0.10 to 0.12 does not mark as varying over that axis; inside another shard_map it has no effect.

        Raises:
          ValueError: jax.set_mesh or shard_map has set another mesh.
        """
        context = jax.sharding.get_abstract_mesh()
        own = self.mesh if isinstance(self.mesh, AbstractMesh) else self.mesh.abstract_mesh
        same = {n: own.shape[n] for n in self.names} == {n: context.shape.get(n) for n in self.names}
        if self.manual and same:
            return function
        if context.empty and self._on_default_device:
            return function
        if same and (some := set(self.names) & set(context.manual_axes)):
            raise ValueError(
                f"{self!r}: of its axes {self.names} only {', '.join(sorted(some))} is Manual here; make all of them "
                "Manual in one shard_map, or none"
            )
        if context.manual_axes and same:
            if self.has_explicit_types:
                raise ValueError(
                    f"{self!r} has Explicit axes inside a shard_map over others, {context.manual_axes}: XLA mistakes "
                    "their layout; make them Auto, or Manual in the same shard_map"
                )
            return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, axis_names=set(self.names))
        if not context.empty and context != own:
            raise ValueError(
                f"the current mesh {dict(context.shape)} of {context.axis_types} is not that of {self!r}; "
                "make the decomposition with mesh= and spec= of that mesh, spec=P() for a field that is not divided"
            )
        run = jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
        if not self.has_explicit_types:
            return run
        return lambda *args: run(
            *jax.tree.map(self._reshard, in_specs, args, is_leaf=lambda x: isinstance(x, PartitionSpec))
        )

    def constrain(self, field: Array) -> Array:
        """A real field with its sharding as a constraint, or as it is on the default device.

        A result with another sharding than its input would make a loop compile its program twice.
        """
        return field if self._on_default_device else jax.lax.with_sharding_constraint(field, self.sharding)

    def equal_copies(self, tree: Any) -> Any:
        """Numbers that every device of a field holds, with the values of its first device.

        Processes may round differently: copies of a number that evolves would drift apart.
        """
        if jax.process_count() == 1 or self.size == 1:
            return tree

        def from_first(tree: Any) -> Any:
            first = jax.lax.axis_index(self.names) == 0
            numbers = jax.tree.map(lambda x: jnp.where(first, x, jnp.zeros_like(x)), tree)
            return jax.tree.map(lambda x, y: x.astype(y.dtype), jax.lax.psum(numbers, self.names), tree)

        return self.shard_map(from_first, PartitionSpec(), PartitionSpec())(tree)

    @property
    def _on_default_device(self) -> bool:
        """Whether fields are whole, on the device where JAX creates arrays by default."""
        if self.is_abstract or self.mesh.size > 1 or self.backend.needs_mesh:
            return False
        settings: Any = jax.config
        default = settings.jax_default_device
        return self.mesh.devices.flat[0] == (jax.local_devices()[0] if default is None else default)

    @property
    def has_explicit_types(self) -> bool:
        """Whether a field is divided over Explicit axes here; `on_auto_axes` makes them Auto."""
        types = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))
        return any(types[name] == AxisType.Explicit for name in self.names)

    def _reshard(self, spec: PartitionSpec, tree: Any) -> Any:
        """Bring arrays with Explicit axes into the layout of a spec, if they are in another."""
        return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(self.mesh, spec)), tree)

    def whole(self, shape: Sequence[int], *, spectrum: bool = False) -> Shape3:
        """Shape of the whole field, or spectrum, of an array; inside shard_map, of a block."""
        nx, ny, nz = shape
        if not self.manual:
            return nx, ny, nz
        px, py = self.pdims
        return (nx, ny * px, nz * py) if spectrum else (nx * px, ny * py, nz)

    def check(self, shape: Shape3, name: str) -> None:
        """Raise ValueError unless a real field of this shape divides over the devices in both layouts."""
        px, py = self.pdims
        self.check_axis(shape, 0, px, name)
        self.check_axis(shape, 1, math.lcm(px, py), name)

    def check_axis(self, shape: Shape3, axis: int, parts: int, name: str) -> None:
        """Raise ValueError unless an axis divides into `parts`."""
        if shape[axis] % parts:
            low = shape[axis] // parts * parts
            options = f"{low} or {low + parts}" if low else f"{parts}"
            constraint = f"is not divisible by {parts} (pdims={self.pdims})"
            raise ArgumentError(name, shape[axis], constraint, f"use {options}, or other pdims", axis=axis)

    @contextmanager
    def opened(self, shapes: Sequence[Shape3], *, halo: int = 0) -> Generator[None]:
        """Open the backend for arrays of some whole shapes and, after success, close it. Collective."""
        self.backend.open(self, shapes, halo=halo)
        yield
        self.backend.close()  # not after a failure, which other processes may not share

    def __repr__(self) -> str:
        backend = ", ".join([repr(self.backend.name), *self.backend.options.values()])
        return f"Decomposition(pdims={self.pdims}, mesh={dict(self.mesh.shape)}, backend={backend})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the ids of the devices, which must exist where it is unpickled."""
        mesh, numbers = self._mesh, None
        if not self.is_abstract:
            numbers = np.vectorize(lambda device: device.id, otypes=[int])(mesh.devices).tolist()
            mesh = mesh.abstract_mesh
        return _unpickled, (mesh, self.platform, numbers, self.spec, self.backend)

    @property
    def _key(self) -> tuple[Any, ...]:
        return *super()._key, self.backend


def on_blocks(inputs: Sequence[Any], outputs: Any, *, static: Sequence[str] = ()) -> Callable[..., Any]:
    """Compile a function of local blocks and a config, mapped over whole arrays; `block` of the result is the function.

    Args:
      inputs: layout of each argument that is a pytree of arrays: "field", "spectrum", "whole" on every device, or a
        function of the config that returns PartitionSpecs.
      outputs: layout of the result, or a tuple of layouts.
      static: names of the other arguments, beside config.
    """

    def specs(layout: Any, config: Any) -> Any:
        if isinstance(layout, tuple):
            return tuple(specs(part, config) for part in layout)
        if callable(layout):
            return layout(config)
        divided = {"field": config.decomposition.spec, "spectrum": config.decomposition.spectrum_spec}
        return PartitionSpec() if layout == "whole" else divided[layout]

    def decorate(function: Callable[..., Any]) -> Any:
        signature, constant = inspect.signature(function), ("config", *static)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            options = {name: given.arguments.pop(name) for name in constant}
            names, config = tuple(given.arguments), options["config"]

            def block(*arrays: Any) -> Any:
                return function(**dict(zip(names, arrays, strict=True)), **options)

            run = config.decomposition.shard_map(block, specs(tuple(inputs), config), specs(outputs, config))
            return run(*given.arguments.values())

        compiled = jit(run, static_argnames=constant)
        compiled.block = function
        return compiled

    return decorate


def over_blocks(
    x: Array,
    method: str,
    arguments: tuple[Any, ...],
    decomposition: Decomposition,
    specs: tuple[PartitionSpec, PartitionSpec] | None = None,
) -> Array:
    """Apply a method of the backend, of (block, *arguments, decomposition), to a whole array.

    `specs` are PartitionSpecs of the array and of the result; default: of real fields. Outside of jit, where shard_map
    runs operation by operation, the method is compiled.
    """
    traced = isinstance(x, Tracer) or decomposition.manual
    specs = specs or (decomposition.spec, decomposition.spec)
    return (_mapped if traced else _compiled)(method, arguments, decomposition, specs)(x)


def _mapped(
    method: str, arguments: tuple[Any, ...], decomposition: Decomposition, specs: Any
) -> Callable[[Array], Array]:
    function = getattr(decomposition.backend, method)
    return decomposition.shard_map(lambda x: function(x, *arguments, decomposition), specs[:1], specs[1])


@functools.lru_cache(maxsize=128)
def _compiled(
    method: str, arguments: tuple[Any, ...], decomposition: Decomposition, specs: Any
) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:  # mapped at each trace, with the current mesh
        return _mapped(method, arguments, decomposition, specs)(x)

    return jit(run, out_shardings=NamedSharding(decomposition.mesh, specs[1]))


def _unpickled(mesh: Any, platform: str, numbers: Any, spec: PartitionSpec, backend: Backend) -> Decomposition:
    if numbers is not None:
        devices = {device.id: device for device in jax.devices(platform)}
        missing = sorted(set(np.ravel(numbers).tolist()) - set(devices))
        if missing:
            raise ValueError(f"a Decomposition was pickled with {platform} devices that are not here: {missing}")
        grid = np.vectorize(devices.__getitem__, otypes=[object])(numbers)
        mesh = Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types)
    return Decomposition(mesh=mesh, spec=spec, backend=backend)


def as_decomposition(value: Any) -> Decomposition:
    """A decomposition as it is, or the decomposition of pdims such as (4, 1)."""
    if isinstance(value, Decomposition):
        return value
    if isinstance(value, list | tuple):
        return Decomposition((value[0], value[1]) if len(value) == 2 else value)  # type: ignore[arg-type]
    raise ArgumentError("decomposition", value, "must be a Decomposition", "for example Decomposition((4, 1))")


def default_decomposition(shapes: Sequence[Shape3], count: int | None = None) -> Decomposition:
    """The decomposition of `count` devices that fits all shapes: slabs, or else pencils with the fewest rows.

    The default of `count`, the first devices of the program, is all of them.

    Raises:
      ValueError: no division of the devices fits.
    """
    if context_mesh() is not None:
        chosen = Decomposition()
        for shape in shapes:
            chosen.check(shape, "shape")
        return chosen
    return next(divisions(shapes, jax.device_count() if count is None else count))


def divisions(
    shapes: Sequence[Shape3], count: int, backend: BackendName | Backend = "auto"
) -> Generator[Decomposition]:
    """Decompositions of the first devices of the program that fit all shapes, slabs along x first.

    Raises:
      ValueError: no decomposition fits.
    """
    fitting, shape = None, shapes[0]
    for py in (py for py in range(1, count + 1) if count % py == 0):
        candidate = Decomposition((count // py, py), backend=backend)
        with suppress(ArgumentError):
            for shape in shapes:
                candidate.check(shape, "shape")
            yield (fitting := candidate)
    if fitting is None:
        remedy = f"use multiples of {count}, or fewer devices"
        raise ArgumentError("shape", shape, f"can't be divided over {count} devices", remedy)
