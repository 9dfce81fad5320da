"""Measurements of a snapshot, ours or of another code: power spectrum and halos."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import open_regular
from pmwd_dist.config import Config
from pmwd_dist.cosmology.parameters import CRITICAL_DENSITY
from pmwd_dist.io.snapshot.header import ENDINGS, SnapshotHeader, read_header, units_note
from pmwd_dist.io.snapshot.matter import LEAST_SHARE, lattice_of, matter_notes, paint_matter
from pmwd_dist.io.snapshot.particles import (
    MASSES,
    ORDER,
    POSITIONS,
    VELOCITIES,
    check_arrays,
    chunks,
    holds,
    shared_files,
)
from pmwd_dist.observe.halo_masses import with_masses
from pmwd_dist.observe.halos import PARTICLE_MASS, Rows, catalogue_of, find_groups, joined, make_rows, wrapped
from pmwd_dist.observe.power import power_spectrum
from pmwd_dist.parallel import distributed
from pmwd_dist.parallel.decomposition import default_decomposition
from pmwd_dist.parallel.distributed import raise_on_all_processes
from pmwd_dist.parallel.exchange import Places
from pmwd_dist.report.tables import write_table
from pmwd_dist.run.outputs.halos import halo_table
from pmwd_dist.run.outputs.power import spectrum_table

_BEGINNING = 1 << 16  # bytes of a result that hold its kind
_DARK = 1  # type of the particles
_EQUAL = 1e-4  # largest relative difference of their masses


def _beside(path: Path, ending: str) -> Path:
    """A file beside a snapshot or its folder, named after all of it but .hdf5: run_h0.67_power.csv."""
    path = path.resolve() if path.name in ("", "..") else path  # as "." has no name
    return path.with_name((path.stem if path.suffix in ENDINGS else path.name) + ending)


def measure_snapshot(
    path: Path, mesh: int | None, output: Path | None, types: Sequence[int] | None, length_unit: str | None
) -> tuple[list[str], list[str]]:
    """Measure P(k) of a snapshot and write it as CSV; the column of linear theory is NaN, as snapshots don't hold it.

    Returns lines about the particles and the file, and warnings. Raises ValueError for no snapshot, a damaged one, or a
    mesh that doesn't divide over the devices, and OSError if a file can't be read or written.
    """
    files = shared_files(path)
    output = _beside(path, "_power.csv") if output is None else output
    with raise_on_all_processes(), option_errors():
        check_outputs(files, {output: "k [h/Mpc],"})
        header = read_header(files, length_unit)
        config = _config(path, header, mesh)
    with option_errors():
        density, matter = paint_matter(files, header, config, types)
    spectrum = power_spectrum(density, config)
    if distributed.is_main():
        write_table(output, spectrum_table(spectrum, np.full(len(spectrum.k), np.nan), matter.shot_noise))
    parts = [", ".join(f"{count} of type {kind}" for kind, count in matter.counts.items())]
    if not np.isnan(matter.omega):
        parts.append(f"their density is {matter.omega:.3g}, and Omega_m {header.Omega_m:.3g}")
    if matter.left_out:
        parts.append("left out: " + ", ".join(f"type {kind}" for kind in matter.left_out))
    lines = [f"particles: {'; '.join(parts)}", f"wrote {output}"]
    return lines, matter_notes(matter, types, files[0], "--length-unit")


@contextmanager
def option_errors() -> Generator[None]:
    """Name the options of the command in errors about arguments."""
    try:
        yield
    except ArgumentError as error:
        option = f"--{error.argument.removeprefix('--').replace('_', '-')}"
        raise ArgumentError(option, error.value, error.constraint, error.remedy) from error


def check_outputs(files: Sequence[Path], outputs: Mapping[Path, str]) -> None:
    """Raise ArgumentError if a result would replace a file of the snapshot, or one of another kind.

    Results are paths, with a text near the beginning of each earlier one.
    """
    for path, mark in outputs.items():
        if path.exists() and any(map(path.samefile, files)):
            raise ArgumentError("--output", str(path), "is a file of the snapshot", "use another name")
        if path.exists():
            with open_regular(path) as file:
                beginning = file.read(_BEGINNING)
                if beginning and mark.encode() not in beginning:
                    raise ArgumentError("--output", str(path), "is a file of another kind", "use another name")


def _config(path: Path, header: SnapshotHeader, mesh: int | None) -> Config:
    """A config of the snapshot; ValueError if its mesh can't be that."""
    cells = header.mesh_shape if mesh is None else (mesh, mesh, mesh)
    own = f"{path}: its mesh of {cells}" if mesh is None else f"--mesh {mesh}"
    try:
        try:
            decomposition = default_decomposition((cells,), jax.device_count())
        except ArgumentError:  # one device, where these do not divide the mesh; several processes must use all
            if jax.process_count() > 1:
                raise
            decomposition = default_decomposition((cells,), 1)
        return Config(header.box_size, cells, lattice_of(cells, sum(header.counts)), decomposition=decomposition)
    except ArgumentError as error:
        raise ValueError(f"{own}: {error.constraint}") from error


def measure_halos(path: Path, output: Path | None, length_unit: str | None, **options: Any) -> list[str]:
    """Find halos of the dark matter in a snapshot, and write their catalogue and mass function (M200m). Collective.

    Masses of spheres assume a flat LCDM universe; beside gas and stars, dark matter is taken over its own mean density.
    The mass function is a CSV file beside the catalogue. Options are those of `find_groups`. Returns lines about the
    halos and the files. Raises ValueError for no snapshot, a damaged one, or one without dark matter.
    """
    files = shared_files(path)
    output = _beside(path, "_halos.hdf5") if output is None else output
    table = _beside(output, ".csv")
    if output.suffix == ".csv":
        raise ArgumentError("--output", str(output), "is the name of the mass function", "use .hdf5")
    with raise_on_all_processes():
        check_outputs(files, {output: "halo_id", table: "dn/dlnM"})
        header, mass, rows = _dark_matter(files, length_unit)
    count, volume = header.counts[_DARK], math.prod(header.box_size)
    devices = jax.device_count()
    places = Places(default_decomposition(((devices, devices, 1),), devices), header.box_size)
    mass = mass or header.Omega_m * CRITICAL_DENSITY * volume / count
    about = {"a": header.a, "z": 1 / header.a - 1, "box_size [Mpc/h]": header.box_size, PARTICLE_MASS: 1e10 * mass}
    with option_errors():
        groups = find_groups(rows, places, count, **options)
    halos = catalogue_of(groups, places, about | {"linking_length": options["linking_length"]})
    matter = mass * count / volume / CRITICAL_DENSITY
    Omega_m = matter if math.isnan(header.Omega_m) else header.Omega_m
    notes = [units_note(header, files[0], "--length-unit")]
    least = 0.0 if sum(header.counts) > count else LEAST_SHARE
    if not least < matter / Omega_m < 1.01:
        both = f"density of the particles is {matter:.3g}, and Omega_m {Omega_m:.3g}"
        notes.append(f"warning: {both}: look at BoxSize, the unit of length and the masses")
    E = math.sqrt(Omega_m * header.a**-3 + 1 - Omega_m)
    halos = with_masses(halos, rows, places, matter, E)
    halos.save(output)
    if distributed.is_main():
        write_table(table, halo_table(halos, "200m", f"z = {about['z']:.4g}"))
    return [*filter(None, notes), f"{len(halos)} halos", f"wrote {output}", f"wrote {table}"]


def _dark_matter(files: list[Path], length_unit: str | None) -> tuple[SnapshotHeader, float, Rows]:
    """Header, mass of a particle [1e10 Msun/h], 0 where none is known, and the particles of this process."""
    with option_errors():
        header = read_header(files, length_unit)
    count = (*header.counts, 0, 0)[_DARK]
    if not count:
        raise ValueError(f"{files[0]}: has no particles of type {_DARK}, dark matter")
    others, mass = sum(header.counts) - count, _mass(files, header)
    if not mass and (others or math.isnan(header.Omega_m)):
        what = "beside particles of other types" if others else "without Omega_m"
        raise ValueError(f"{files[0]}: has no mass of particles of type {_DARK}, {what}; write MassTable or Masses")
    check_arrays(files, header, _DARK, (POSITIONS, VELOCITIES))
    parts, sides = [make_rows(np.zeros(0, np.int64), np.zeros((0, 3)), np.zeros((0, 3)))], np.asarray(header.box_size)
    for i, (sites, x, u) in enumerate(chunks(files, header, _DARK, (ORDER, POSITIONS, VELOCITIES))):
        if i % jax.process_count() == jax.process_index():  # the particles that this process finds groups of
            parts.append(make_rows(sites, wrapped(x, sides), u))
    return header, mass, joined(parts)


def _mass(files: list[Path], header: SnapshotHeader) -> float:
    """Mass of each particle of the header, or of all in the files [1e10 Msun/h]; 0 where none is known."""
    if header.masses[_DARK] or not holds(files, _DARK, MASSES):
        return header.masses[_DARK]
    check_arrays(files, header, _DARK, (MASSES,))
    masses = [(values.min(), values.max()) for (values,) in chunks(files, header, _DARK, (MASSES,))]
    least, most = float(np.min(masses)), float(np.max(masses))
    if not most > 0:
        raise ValueError(f"{files[0]}: its particles of type {_DARK} have no mass")
    if most - least > _EQUAL * most:
        text = f"masses from {least:.6g} to {most:.6g} x 1e10 Msun/h, and must all have one"
        raise ValueError(f"{files[0]}: its particles of type {_DARK} have {text}")
    return most
