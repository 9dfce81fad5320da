"""Fields on meshes: those of [observe.fields], one file a process, and small ones, which process 0 writes."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import AfterValidator

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import atomic_write, reserve
from pmwd_dist._jax.program import jit
from pmwd_dist.config import Config
from pmwd_dist.io.arrays import write_arrays
from pmwd_dist.io.snapshot.writer import zstd_filter
from pmwd_dist.observe.velocity import momentum_along, per_mass
from pmwd_dist.ops.rounding import max_abs
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.parallel.distributed import gather, raise_on_all_processes
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.particles import Particles
from pmwd_dist.report.page import Caption
from pmwd_dist.run.outputs.base import Arrays, Drawing, Output, View, check_finite
from pmwd_dist.run.outputs.slices import Slices, draw_slab
from pmwd_dist.run.settings.section import Counts, Listed, about
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.writing import argument_problem

Kind = Literal["density", "momentum", "velocity"]
_UNITS: dict[Kind, str] = {"density": "mean density", "momentum": "km/s times mean density", "velocity": "km/s"}
_CHUNK = 64  # cells along a side
_THICKNESS = 8.0  # of the slice in the figure [Mpc/h]


def _distinct(values: tuple[Kind, ...]) -> tuple[Kind, ...]:
    if not values or len(set(values)) < len(values):
        raise ValueError("must hold one name or more, each once")
    return values


class Fields(Output):
    """Density, momentum and velocity of the matter on a mesh, at each output."""

    name = "fields"
    suffix = "npz"
    stage = "the fields"
    remedy = "use a coarser observe.fields.mesh"
    caption = Caption(
        "Fields",
        "Density of a slice of the box in units of the cosmic mean, and arrows along the mean velocity in its plane.",
        "matter that flows from voids to filaments.",
    )

    quantities: Annotated[tuple[Kind, ...], Listed, AfterValidator(_distinct)] = about(
        "density (1 + delta), momentum ((1 + delta) u) and velocity (u, momentum over density)", ("density", "velocity")
    )
    mesh: Counts | None = about("cells along a side; one number, or three; default: box.mesh", None, 128)
    precision: Literal["float16", "float32"] = about("type of the numbers: float16 or float32", "float32")
    compression: Literal["gzip", "zstd"] | None = about(
        "compression: gzip; or zstd, which needs hdf5plugin, also to read; default: none", None, "gzip"
    )

    def missing(self) -> list[str]:
        if self.compression != "zstd" or find_spec("hdf5plugin") is not None:
            return []
        return ['observe.fields.compression = "zstd": needs hdf5plugin; use "gzip", or `pip install hdf5plugin`']

    def input_problems(self, arrays: Arrays, simulation: SimulationSetup) -> list[str]:
        try:
            self._config(simulation.config)
        except ArgumentError as error:
            return [argument_problem(error, "observe.fields.mesh")]
        return []

    def _config(self, config: Config) -> Config:
        """A configuration with the mesh of the fields, and a halo as wide as in the simulation."""
        division = config.decomposition
        if self.mesh not in (None, config.mesh_shape) and division.backend.needs_opening:
            division = Decomposition(mesh=division.mesh, spec=division.spec, backend="xla")  # it has other meshes
        fine = replace(config, mesh_shape=self.mesh or config.mesh_shape, decomposition=division)
        if isinstance(config.halo, str):
            return fine
        return replace(fine, halo=math.ceil(config.halo * max(config.cell_size) / min(fine.cell_size)))

    def names(self, z: float) -> list[str]:
        shared = [self.file(z, suffix) for suffix in ("hdf5", "npz", "png")]
        return list(dict.fromkeys([*shared, self.parts(z)[jax.process_index()]]))

    def all_names(self, z: float) -> list[str]:
        return list(dict.fromkeys([*self.names(z), *self.parts(z)]))

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        numbers = sum(1 if kind == "density" else 3 for kind in self.quantities)
        each = np.dtype(self.precision).itemsize * math.prod(self.mesh or simulation.config.mesh_shape)
        return count * numbers * each

    def memory(self, simulation: SimulationSetup, config: Config) -> int:
        """Memory of the particles, of their momenta in Mpc/h, and of two fields and the sums of one."""
        numbers = 10 * math.prod(config.particle_shape) + 5 * math.prod(self.mesh or config.mesh_shape)
        return np.dtype(jnp.result_type(float)).itemsize * numbers // config.decomposition.size

    def write_divided(self, folder: Path, view: View) -> None:
        config, particles = self._config(view.config), Particles(view.rest.disp, view.particles.vel)
        unit, mass = particles.velocity_unit(view.a), density(particles, config)
        most = float(jnp.max(mass))
        check_finite(np.asarray(most), f"observe.fields at z = {view.z:g}", "exceeds the halo, or is not a number")
        fastest = float(jit(max_abs, out_shardings=config.decomposition.replicated)(particles.vel) * unit)
        planes = min(max(1, round(_THICKNESS / config.cell_size[2])), config.mesh_shape[2])
        shown, parts = [_slab(mass, planes, config)], self.parts(view.z)
        own = parts[jax.process_index()]
        size = self.disk(view.simulation, 1) // jax.process_count()
        about = {"box_size": config.box_size, "units": "Mpc/h", "a": view.a, "z": view.z, "line_of_sight": "none"}
        with _opened(folder / own, size, about) as file:
            if "density" in self.quantities:
                self._write(file, "density", (), mass, most, config)
            for axis in range(3) if {*self.quantities} - {"density"} else ():
                flow = momentum_along(particles, config, unit, axis)
                shown.append(per_mass(_slab(flow, planes, config), shown[0]))
                if "momentum" in self.quantities:
                    self._write(file, "momentum", (axis,), flow, most * fastest, config)
                if "velocity" in self.quantities:
                    self._write(file, "velocity", (axis,), per_mass(flow, mass), fastest, config)
        with raise_on_all_processes():
            if distributed.is_main():
                if len(parts) > 1:
                    _join(folder / self.file(view.z, "hdf5"), parts, mass)
                values = {"z": view.z, "sides": config.box_size[:2], "thickness": planes * config.cell_size[2]}
                values |= {"density": shown[0], "velocity": np.reshape(shown[1:3], (-1, *shown[0].shape))}
                arrays = {name: np.asarray(x) for name, x in values.items()}
                write_arrays(folder / self.file(view.z, "npz"), arrays, {})

    def _write(
        self, file: Any, kind: Kind, component: tuple[int, ...], field: Array, most: float, config: Config
    ) -> None:
        """Write the blocks of this process of a field, or of a component, of numbers up to `most`. Collective."""
        dtype, vector = np.dtype(self.precision), (3,) if component else ()
        scale = 2.0 ** max(0, math.ceil(math.log2(max(most, 1) / float(np.finfo(dtype).max))))
        values = (field / scale).astype(dtype)
        with raise_on_all_processes():
            if kind not in file:
                options: dict[str, Any] = {"fletcher32": True}
                if self.compression is not None:
                    gzip = {"compression": "gzip", "compression_opts": 1}
                    options |= {"shuffle": True} | (gzip if self.compression == "gzip" else zstd_filter())
                chunk = tuple(min(n, _CHUNK) for n in config.decomposition.block(config.mesh_shape))
                axes = "component, " * bool(vector) + "cells along x, y, z"
                attributes = {"unit": _UNITS[kind], "scale": scale, "axes": axes, "window": "cloud-in-cell"}
                shape, chunks = (*vector, *config.mesh_shape), (*(1 for _ in vector), *chunk)
                file.create_dataset(kind, shape, dtype, chunks=chunks, **options).attrs.update(attributes)
            for shard in values.addressable_shards:
                if shard.replica_id == 0:
                    file[kind][*component, *shard.index] = np.asarray(shard.data)

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        slab = Slices.read(path)
        return draw_slab(slab, slab["velocity"] if len(slab["velocity"]) else None)


@contextmanager
def _opened(path: Path, size: int, about: Mapping[str, Any]) -> Generator[Any]:
    """A file of this process, of this size at most, which is there if no process fails. Collective."""
    with ExitStack() as stack:
        with raise_on_all_processes():
            aside = stack.enter_context(atomic_write(path))
            reserve(aside, size)
            file = stack.enter_context(h5py.File(aside, "w", locking=False))
            file.attrs.update(about)
        yield file
        with raise_on_all_processes():
            stack.close()


@partial(jit, static_argnames=("planes", "config"))
def _slab(field: Array, planes: int, config: Config) -> Array:
    """Mean over the first planes along z, on every device."""
    return jax.lax.with_sharding_constraint(jnp.mean(field[:, :, :planes], 2), config.decomposition.replicated)


def _join(path: Path, parts: Sequence[str], field: Array) -> None:
    """Write a file whose values are those of the files of all processes, which are divided like this field."""
    places = [(x.index, x.device.process_index) for x in field.global_shards if x.replica_id == 0]
    with (
        atomic_write(path) as aside,
        h5py.File(path.with_name(parts[0]), locking=False) as first,
        h5py.File(aside, "w", locking=False) as whole,
    ):
        whole.attrs.update(first.attrs)
        for name, data in first.items():
            layout = h5py.VirtualLayout(data.shape, data.dtype)
            for index, process in places:
                block = (*(slice(None) for _ in data.shape[3:]), *index)
                layout[block] = h5py.VirtualSource(parts[process], name, data.shape, data.dtype)[block]
            whole.create_virtual_dataset(name, layout).attrs.update(data.attrs)


def write_fields(path: Path, fields: Mapping[str, tuple[Array, dict[str, Any]]], about: dict[str, Any]) -> None:
    """Write fields, each with attributes, as datasets of one file, which has attributes of its own. Collective.

    Process 0 holds all of them in the memory of the host.
    """
    arrays = {name: (gather(values), attributes) for name, (values, attributes) in fields.items()}
    with raise_on_all_processes():
        if distributed.is_main():
            with atomic_write(path) as aside, h5py.File(aside, "w", locking=False) as file:
                file.attrs.update(about)
                for name, (values, attributes) in arrays.items():
                    file.create_dataset(name, data=values).attrs.update(attributes)
