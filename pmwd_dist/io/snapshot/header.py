"""The files of a snapshot of any code, one or a set with an index in each name, and their header."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pmwd_dist.config import Vector3
from pmwd_dist.io.snapshot import content, units
from pmwd_dist.io.snapshot.content import GROUP, File, Malformed, opened
from pmwd_dist.io.snapshot.units import Unit
from pmwd_dist.parallel.decomposition import Shape3

# Ranges of the values of a header, beyond all sensible ones.
_HUBBLE, _OMEGA, _REDSHIFT = (1e-3, 1e3), (0.0, 1e3), (-0.999, 1e6)
ENDINGS = (".hdf5", ".h5")
_SIDE = 1e-9, 1e9  # range of the side of a box [Mpc/h]
_SCALE_FACTOR = ("Header:Scale-factor", "Header:ExpansionFactor", "Cosmology:Scale-factor")  # SWIFT has other times
_EQUAL_TIMES = 1e-3  # relative difference of scale factors that are equal
# Places of the cosmology: GADGET-2 and AREPO, GIZMO, GADGET-4, SWIFT.
_H = ("Header:HubbleParam", "Parameters:HubbleParam", "Cosmology:h")
_OMEGA_M = ("Header:Omega0", "Header:Omega_Matter", "Parameters:Omega0", "Cosmology:Omega_m")
_OMEGA_B = ("Header:OmegaBaryon", "Header:Omega_Baryon", "Parameters:OmegaBaryon", "Cosmology:Omega_b")
_OMEGA_LAMBDA = ("Header:OmegaLambda", "Header:Omega_Lambda", "Parameters:OmegaLambda")
_BACKGROUND = {"Omega_k": ("Cosmology:Omega_k",), "h": _H, "w0": ("Cosmology:w_0",), "wa": ("Cosmology:w_a",)}
_CONTENTS = {"Omega_b": _OMEGA_B, "n_eff": ("Cosmology:N_eff",)}  # codes write 0 where they need none


@dataclass(frozen=True)
class SnapshotHeader:
    """Header of a snapshot.

    Args:
      a: scale factor.
      box_size: three sides [Mpc/h].
      counts: number of particles of each type.
      masses: mass of each particle of a type [1e10 Msun/h]; 0 where the header has none.
      indexed: whether particle IDs are indices of lattice sites, as in snapshots of this package.
      particle_shape: Lagrangian lattice; for a snapshot of another code the lattice that its particles of type 1 fill,
        in the order of the file.
      mesh_shape: force mesh; where it isn't known, a mesh with a cell per particle of the most numerous type.
      Omega_m, Omega_b, h: parameters of the cosmology; Omega_m and Omega_b are NaN where they aren't known.
      length: unit of length of the file [Mpc/h].
      length_unit: place in the file that names the unit of length; empty if none does, and kpc/h was assumed.
    """

    a: float
    box_size: Vector3
    counts: tuple[int, ...]
    masses: tuple[float, ...]
    indexed: bool
    particle_shape: Shape3
    mesh_shape: Shape3
    Omega_m: float
    Omega_b: float
    h: float
    length: float
    length_unit: str


def read_header(files: Sequence[Path], length_unit: str | None = None, h: float | None = None) -> SnapshotHeader:
    """The header of a snapshot in one or several files.

    The default unit of length is the one that the file names. `h` is the Hubble constant of files that name none
    [100 km/s/Mpc]; without it they are an error. Raises ValueError if a file is damaged, or of another snapshot.
    """
    unit = units.length_unit(length_unit) or _unit_of_positions(files, h)
    header: SnapshotHeader | None = None
    for path in files:
        with opened(path) as file:
            own = _parse(file, unit, h)
            if header is not None:  # some codes leave masses of types out that a file has no particles of
                own = replace(own, masses=tuple(map(max, own.masses, header.masses)))
                header = replace(header, masses=own.masses)
                if repr(own) != repr(header) or number_of_files(file) != len(files):
                    raise Malformed(f"is of another snapshot than {files[0].name}: their headers differ")
            header = own
    assert header is not None
    return header


def named_cosmology(path: Path) -> dict[str, float]:
    """Parameters that a file names: Omega_m, h, Omega_k, Omega_b, n_eff, and w0 and wa but for NaN of a table of w.

    Where a file names Omega_m and Omega_lambda, their sum gives the curvature, up to radiation.
    """
    with opened(path) as file:
        own = content.member(file, "Cosmology", GROUP).attrs if content.has(file, "Cosmology") else {}
        w0 = np.asarray(own.get("w_0", 0.0))
        tabulated = w0.dtype.kind == "f" and w0.size == 1 and bool(np.isnan(w0).all())
        places = {name: x for name, x in _BACKGROUND.items() if not (tabulated and name in ("w0", "wa"))}
        found = {name: _first(file, x, -1e3, 1e3) for name, x in places.items()} | {"Omega_m": _matter(file)}
        dark = _first(file, _OMEGA_LAMBDA, -1e3, 1e3)
        if math.isnan(found["Omega_k"]) and dark > 0:
            found["Omega_k"] = 1 - found["Omega_m"] - dark
        found |= {name: _first(file, x, 0.0, 1e3) or math.nan for name, x in _CONTENTS.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def units_note(header: SnapshotHeader, path: Path, option: str) -> str | None:
    """Warning that the unit of length was assumed, with the option that sets it; None if the file names the unit."""
    if header.length_unit:
        return None
    sides = " x ".join(f"{side:.5g}" for side in sorted(set(header.box_size)))
    return f"{path} names no unit of length: kpc/h is assumed, for a box of {sides} Mpc/h ({option} sets another)"


def header_of(file: File) -> Any:
    """The group Header."""
    if not content.has(file, "Header"):
        raise Malformed("is not a snapshot of GADGET, AREPO, GIZMO, EAGLE or SWIFT: it has no group Header")
    return content.member(file, "Header", GROUP)


def number_of_files(file: File) -> int:
    """Number of files of the snapshot."""
    counts = content.whole_numbers(header_of(file), "NumFilesPerSnapshot", 1)
    if len(counts) != 1:
        raise Malformed(f"has Header:NumFilesPerSnapshot = {counts}, which must be one number")
    return counts[0]


def read_counts(file: File, name: str) -> tuple[int, ...]:
    """Number of particles of each type from an attribute of the header."""
    header, high = header_of(file), f"{name}_HighWord"
    low = content.whole_numbers(header, name, 0)
    words = content.whole_numbers(header, high, 0) if high in header.attrs else []
    if not any(words):  # swiftsimio writes six for eight types
        words = [0] * len(low)
    if len(low) < 2 or len(words) != len(low):
        raise Malformed(f"has {len(low)} and {len(words)} numbers in Header:{name}, and must have one for each type")
    return tuple(count + word * 2**32 for count, word in zip(low, words, strict=True))


def scale_factor(file: File) -> float:
    """Scale factor of the redshift, or of SWIFT's header without one; Malformed if they are of different times."""
    a = _first(file, _SCALE_FACTOR, -math.inf, math.inf)
    if a > 0 and "Redshift" not in header_of(file).attrs:
        return a
    redshift = content.number(header_of(file), "Redshift", *_REDSHIFT)
    if math.isnan(a) and not content.has(file, "Cosmology"):
        a = _first(file, ("Header:Time",), -math.inf, math.inf)
    if a > 0 and abs(a * (1 + redshift) - 1) > _EQUAL_TIMES:
        raise Malformed(f"has the redshift {redshift:.6g} and the scale factor {a:.6g}; mend its header")
    return 1 / (1 + redshift)


def hubble(file: File, default: float | None = None) -> float:
    """H0 / (100 km/s/Mpc)."""
    h = _first(file, _H, *_HUBBLE)
    if math.isnan(h) and default is not None:
        return default
    if math.isnan(h):
        raise Malformed(f"lacks the Hubble parameter: it has none of the attributes {', '.join(_H)}")
    return h


def _unit_of_positions(files: Sequence[Path], default: float | None) -> Unit:
    unit: Unit | None = None
    for path in files:
        with opened(path) as file:
            h, a = hubble(file, default), scale_factor(file)
            counts = read_counts(file, "NumPart_ThisFile")
            for group in (f"PartType{n}" for n in range(len(counts)) if counts[n]):
                if content.has(file, group) and content.has(content.member(file, group, GROUP), "Coordinates"):
                    data = content.member(content.member(file, group, GROUP), "Coordinates", content.DATASET)
                    return units.find_unit("length", file, h, a, data)
            unit = unit or units.find_unit("length", file, h, a)
    assert unit is not None
    return unit


def _parse(file: File, unit: Unit, default: float | None) -> SnapshotHeader:
    h, a, counts = hubble(file, default), scale_factor(file), read_counts(file, "NumPart_Total")
    indexed = content.has(file, "ParticleMesh")
    lattice, mesh = _read_shapes(file, counts, indexed=indexed)
    length = units.factor(unit, "length", h, a)
    return SnapshotHeader(
        a=a,
        box_size=_read_sides(file, length),
        counts=counts,
        masses=_read_masses(file, len(counts), h, a),
        indexed=indexed,
        particle_shape=lattice,
        mesh_shape=mesh,
        Omega_m=_matter(file),
        Omega_b=_first(file, _OMEGA_B, *_OMEGA),
        h=h,
        length=length,
        length_unit=unit.place,
    )


def _read_masses(file: File, types: int, h: float, a: float) -> tuple[float, ...]:
    """Masses of particles of each type [1e10 Msun/h]; 0 where the header has none."""
    masses = np.zeros(types)
    if "MassTable" in header_of(file).attrs:
        table = content.values(header_of(file), "MassTable")[:types]
        masses[: len(table)] = table * units.factor(units.find_unit("mass", file, h, a), "mass", h, a)
    if not ((masses >= 0) & (masses < np.finfo(np.float32).max)).all():
        raise Malformed(f"has Header:MassTable = {masses.tolist()} [1e10 Msun/h], which must be masses")
    return tuple(masses.tolist())


def _first(file: File, places: Sequence[str], low: float, high: float) -> float:
    """The number at the first of the places, group:attribute, that exists; NaN if none does."""
    for place in places:
        name, _, attribute = place.partition(":")
        if content.has(file, name):
            group = content.member(file, name, GROUP)
            if attribute in group.attrs:
                return content.number(group, attribute, low, high)
    return math.nan


def _matter(file: File) -> float:
    """Density of matter; SWIFT names neutrinos with mass apart."""
    neutrinos = _first(file, ("Cosmology:Omega_nu_0",), *_OMEGA)
    return _first(file, _OMEGA_M, *_OMEGA) + (0.0 if math.isnan(neutrinos) else neutrinos)


def _read_shapes(file: File, counts: Sequence[int], *, indexed: bool) -> tuple[Shape3, Shape3]:
    """Lattice and mesh of a file."""
    if indexed:
        own = content.member(file, "ParticleMesh", GROUP)
        lattice, mesh = _shape(own, "LatticeShape"), _shape(own, "MeshShape")
        if math.prod(lattice) != counts[1]:
            raise Malformed(f"has a lattice of {lattice}, but {counts[1]} particles")
        return lattice, mesh
    side, cells = (round(count ** (1 / 3)) for count in (counts[1], max(counts)))
    lattice = (side, side, side) if side**3 == counts[1] else (counts[1], 1, 1)
    return lattice, (max(cells, 2),) * 3


def _read_sides(file: File, length: float) -> Vector3:
    """Sides of the box [Mpc/h], in a file with a unit of `length` [Mpc/h]."""
    sides = content.values(header_of(file), "BoxSize") * length
    low, high = _SIDE
    if len(sides) not in (1, 3) or not ((sides >= low) & (sides <= high)).all():
        constraint = f"must be one side of the box or three, of {low:g} to {high:g} Mpc/h"
        raise Malformed(f"has Header:BoxSize = {(sides / length).tolist()}, which {constraint}")
    x, y, z = np.broadcast_to(sides, 3).tolist()
    return x, y, z


def _shape(group: Any, name: str) -> Shape3:
    shape = content.whole_numbers(group, name, 1)
    if len(shape) != 3 or max(shape) >= 2**31:
        raise Malformed(f"has ParticleMesh:{name} = {shape}, which must be three numbers of cells")
    return shape[0], shape[1], shape[2]


def snapshot_files(path: Path) -> list[Path]:
    """All files of the snapshot to which a path belongs.

    The path is a file, any of a set (name.0.hdf5), the common name of a set, with or without its ending, or a folder
    that holds one snapshot. Raises ValueError if a folder holds several, or a damaged one, and OSError if one of the
    files is missing.
    """
    if path.is_dir():
        return _of_folder(path)
    first = _named(path)
    with opened(first) as file:
        count, virtual = number_of_files(file), header_of(file).attrs.get("Virtual", 0)
    real = first.resolve()
    if np.any(np.asarray(virtual) == 1) and (zeroth := real.with_name(f"{real.stem}.0{real.suffix}")).exists():
        first = zeroth  # the file shows the set as one, which lies beside the file, not beside a link
        with opened(first) as file:
            count = number_of_files(file)
    if count == 1:
        return [first]
    stem = _common(first.stem)
    files: list[Path] = []
    while len(files) < count:  # a wrong number ends at the first file that is missing
        files.append(first.with_name(f"{stem}.{len(files)}{first.suffix}"))
        if not files[-1].exists():
            raise FileNotFoundError(2, f"the snapshot has {count} files, and one is missing", str(files[-1]))
    return files


def _named(path: Path) -> Path:
    """A file with this name, or the first of a set."""
    names = [path.name, f"{path.stem}.0{path.suffix}"]
    names += [f"{path.name}{number}{ending}" for number in ("", ".0") for ending in ENDINGS]
    for name in names:
        if (file := path.with_name(name)).exists():
            return file
    raise FileNotFoundError(2, "no such snapshot", str(path))


def _of_folder(folder: Path) -> list[Path]:
    """The one snapshot in a folder, as its files; fields, tables of halos and what is not HDF5 are passed over."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS and path.is_file())
    if not paths:
        raise FileNotFoundError(2, f"no snapshot (*{', *'.join(ENDINGS)}) in this folder", str(folder))
    found: dict[Path, list[Path]] = {}
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() not in seen and _has_particles(path):
            files = snapshot_files(path)
            found.setdefault(files[0].resolve(), files)  # which an older part of a larger set may share
            seen |= {file.resolve() for file in files}
    if len(found) > 1:
        some = ", ".join([files[0].name for files in found.values()][:4]) + (", ..." if len(found) > 4 else "")
        raise ValueError(f"{folder}: holds {len(found)} snapshots, {some}: pass one of them")
    return next(iter(found.values())) if found else snapshot_files(paths[0])


def _has_particles(path: Path) -> bool:
    """Whether a file is HDF5 and one of a snapshot; ValueError if it is HDF5 and damaged."""
    with path.open("rb") as start:
        if start.read(4) != b"\x89HDF":
            return False
    with opened(path) as file:
        return content.has(file, "Header") and any(name.startswith("PartType") for name in file)


def _common(stem: str) -> str:
    """The common name of a set, from the name of one of its files."""
    return re.sub(r"\.\d+$", "", stem)
