"""The class of all outputs of a run, and the state of a simulation that they measure."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.observe.filters import filter_warning
from pmwd_dist.observe.galaxy_cone import ConeGalaxies
from pmwd_dist.pm.modes import linear_modes
from pmwd_dist.pm.noise import noise_of
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report.drawing import Drawing
from pmwd_dist.report.page import Caption
from pmwd_dist.report.style import titled
from pmwd_dist.report.tables import Table, read_table, write_table
from pmwd_dist.run.settings.section import Section
from pmwd_dist.run.settings.setup import SimulationSetup
from pmwd_dist.run.settings.simulation_sections import Box, redshift_label

Arrays = Mapping[str, np.ndarray]  # of files, by the keys of the settings that name them
Figures = dict[Path, Callable[[], Drawing]]  # by the paths of the figures
Axis = Literal["x", "y", "z"]
RESTORE = "restore it from a copy, or run again in another folder"
MPC3, PER_MPC = "(Mpc/h)^3", "h/Mpc"


@dataclass
class View:
    """State of a simulation at an output."""

    # With the halo of its settings: redshifts move particles beyond a halo that was chosen for their displacements.
    simulation: SimulationSetup
    config: Config  # with the halo that is in use
    rest: Particles  # at scale factor a, with momenta that are integers
    moving: Callable[[], Particles]  # returns the particles with momenta in Mpc/h, 12 bytes a particle more
    a: float
    z: float
    data: Arrays  # of the files that the settings name
    density: Any  # 1 + delta, shape mesh_shape; None once all outputs are measured

    @cached_property
    def particles(self) -> Particles:
        """Particles with momenta in Mpc/h."""
        return self.moving()

    @property
    def title(self) -> str:
        """Redshift, for titles."""
        return f"z = {round(1 / self.a - 1, 4) + 0.0:g}"

    def growth(self, k: Any) -> Array:
        """Linear growth factor at wavenumbers [h/Mpc]."""
        return self.simulation.growth.linear(k, self.a)[0]


def modes_of(run: SimulationSetup) -> Array:
    """The linear modes of a simulation, made again from their seed: a run does not keep them."""
    noise = noise_of(run.noise, run.config, run.kind)
    return linear_modes(noise, run.cosmo, run.config, linear_power=run.power, f_nl=run.f_nl)


class Output(Section):
    """A kind of files that a run writes at each redshift or at its end; fields are the keys of its section."""

    name: ClassVar[str]  # section in [observe], if there is one, and beginning of the names of files
    suffix: ClassVar[str] = ""  # of the data at a redshift
    figure: ClassVar[str] = ""  # name of the only figure of a run; empty where each redshift has one
    source: ClassVar[str] = ""  # name of the file at the end of a run that this figure shows; empty for all redshifts
    caption: ClassVar[Caption | None] = None  # of the figures in a report
    rank: ClassVar[int] = 0  # order of the figures in a report, before the one of the registry
    free: ClassVar[bool] = True  # whether the keys may change when a run is resumed
    of_modes: ClassVar[bool] = False  # whether it needs the linear modes
    of_seed: ClassVar[bool] = False  # whether it depends on the seed beside the particles
    stage: ClassVar[str] = ""  # stage of a run that needs more memory with this output
    remedy: ClassVar[str] = ""  # change of the keys that reduces this memory

    def problems(self, box: Box) -> Iterator[str]:
        """Problems of the keys, also with a box; one line each."""
        yield from ()

    def missing(self) -> list[str]:
        """Problems of this machine, such as a package that is not installed."""
        return []

    @property
    def fixed(self) -> tuple[str, ...]:
        """Keys of a free section that may not change when a run is resumed."""
        return ()

    def inputs(self) -> dict[str, str]:
        """Files of arrays, by key."""
        return {}

    def columns(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Columns of numbers that the keys give, also by files, by key."""
        return {}

    def shapes(self, mesh: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Shapes that these arrays may have: the one of the mesh; none for any."""
        return (mesh,)

    def with_inputs(self, arrays: Arrays) -> Self:
        """This output with arrays of `inputs` on which its sizes depend."""
        return self

    def input_problems(self, arrays: Arrays, simulation: SimulationSetup) -> list[str]:
        """Problems of the arrays of `inputs`, and of keys with a simulation."""
        return []

    def cone_galaxies(self, simulation: SimulationSetup, times: Sequence[float], data: Arrays) -> ConeGalaxies | None:
        """Galaxies that light passes in a run with these ends of steps, none so far; None for other outputs.

        Raises SimulationError if weights of the galaxies are negative.
        """
        return None

    def warnings(self, simulation: SimulationSetup) -> list[str]:
        """Warnings before the run: by default of a filter that leaves no wave of the box."""
        radius = getattr(self, "smoothing", None) or 0.0
        text = filter_warning(f"observe.{self.name}.smoothing", radius, simulation.config)
        return [text] if text else []

    def description(self, simulation: SimulationSetup) -> str:
        """Description in the first lines of a run."""
        return self.name

    def names(self, z: float) -> list[str]:
        """Names of the files of this process at a redshift, in order."""
        return []

    def all_names(self, z: float) -> list[str]:
        """Names of the files of all processes at a redshift."""
        return self.names(z)

    def last_names(self) -> list[str]:
        """Names of the files at the end of the run."""
        return []

    def disk(self, simulation: SimulationSetup, count: int) -> int:
        """Size of all large files with outputs at `count` redshifts [bytes]."""
        return 0

    def memory(self, simulation: SimulationSetup, config: Config) -> int:
        """Memory of each device while it is measured, the particles included, where that is a stage [bytes]."""
        return 0

    def measure(self, view: View) -> Any:
        """Values at a redshift, on the host; SimulationError if they are not finite. Collective."""

    def write(self, folder: Path, z: float, values: Any) -> None:
        """Write the values of `measure` at a redshift, on process 0."""

    def write_divided(self, folder: Path, view: View) -> None:
        """Write arrays that are divided over devices, without the density of the view. Collective.

        Raises SimulationError if they can't be drawn, or are not finite.
        """

    def write_last(
        self, folder: Path, simulation: SimulationSetup, shells: Any, cone_galaxies: ConeGalaxies | None
    ) -> None:
        """Write the files at the end of a run, whose light cone has these shells and galaxies. Collective.

        Raises SimulationError if displacements are too large, and ValueError if a file is damaged.
        """

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        """Read a file with data, or a folder where `figure` is the only one of a run, for its figure.

        Raises ValueError if the data are damaged, and OSError if they can't be read.
        """
        raise NotImplementedError

    @classmethod
    def file(cls, z: float, suffix: str) -> str:
        """Name of a file at a redshift."""
        return f"{cls.name}_{redshift_label(z)}.{suffix}"

    @classmethod
    def parts(cls, z: float) -> list[str]:
        """Names of the files of all processes at a redshift, one whole file if there is one process."""
        count = jax.process_count()
        return [cls.file(z, suffix) for suffix in (["hdf5"] if count == 1 else [f"{i}.hdf5" for i in range(count)])]

    @classmethod
    def redshift(cls, name: str) -> float | None:
        """Redshift of a file of this output; None for other files."""
        stem, _, suffix = name.rpartition(".")
        try:
            z = float(stem.removeprefix(f"{cls.name}_z"))
        except ValueError:
            return None
        return z if name == cls.file(z, suffix) and math.isfinite(z) else None

    @classmethod
    def at(cls, name: str) -> str | None:
        """Words for the redshift of a figure in its caption; None for figures of other outputs."""
        if cls.figure:
            return "" if name == cls.figure else None
        return None if (z := cls.redshift(name)) is None else f" at z = {z:g}"

    @classmethod
    def data(cls, folder: Path) -> list[tuple[float, Path]]:
        """Redshifts and paths of the data in a folder."""
        found = ((cls.redshift(path.name), path) for path in sorted(folder.glob(f"{cls.name}_z*.{cls.suffix}")))
        return [(z, path) for z, path in found if z is not None]

    @classmethod
    def figures(cls, folder: Path) -> Figures:
        """Figures of the data in a folder."""
        data = cls.data(folder) if cls.caption else []
        if cls.figure:
            there = (folder / cls.source).is_file() if cls.source else bool(data)
            return {folder / cls.figure: partial(cls.draw, folder)} if there else {}
        return {path.with_suffix(".png"): partial(cls.draw, path) for _, path in data}


class TableOutput(Output):
    """A table and its figure at each redshift."""

    suffix = "csv"

    @abstractmethod
    def measure(self, view: View) -> Table:
        """The table. Collective."""

    @classmethod
    @abstractmethod
    def plot(cls, table: Table) -> Drawing:
        """The figure of a table; KeyError if a column is missing."""

    def names(self, z: float) -> list[str]:
        return [self.file(z, "csv"), self.file(z, "png")]

    def write(self, folder: Path, z: float, values: Table) -> None:
        write_table(folder / self.file(z, "csv"), values)

    @classmethod
    def draw(cls, path: Path) -> Drawing:
        table = read_table(path)
        try:
            return partial(titled, cls.plot(table), table.title, 14)
        except KeyError as error:
            raise ValueError(f"{path}: has no column {error}") from error


def check_finite(values: np.ndarray, what: str, cause: str) -> None:
    """Raise SimulationError unless all values are finite."""
    if not np.isfinite(values).all():
        remedy = 'set devices.halo to "auto" or to more cells'
        raise SimulationError(f"{what} is not finite: a displacement {cause}; {remedy}")


def k_max_problems(
    output: Output,
    k_max: float | None,
    box: Box,
    lowest: tuple[float, str] = (1.0, "first mode of the box"),
    highest: tuple[float, str] = (1.0, "the Nyquist frequency"),
) -> Iterator[str]:
    """Problem of a largest wavenumber outside of a range.

    `lowest` and `highest` are the ends of the range: numbers of fundamental modes and of Nyquist frequencies of the
    mesh, and their names.
    """
    nyquist = min(math.pi * n / length for n, length in zip(box.mesh, box.size, strict=True))
    low, high = lowest[0] * 2 * math.pi / max(box.size), highest[0] * nyquist
    if k_max is not None and not low <= k_max <= high * (1 + 1e-9):
        yield (
            f"observe.{output.name}.k_max = {k_max}: must be {low:.4g} to {high:.4g} h/Mpc, from the {lowest[1]} to "
            f"{highest[1]} of the mesh; change it, or use a finer box.mesh"
        )
