"""Snapshots that are damaged or made up: each is loaded as it was, or refused in one sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import jax
import jax_cosmo
import numpy as np
from hdf5_damage import Make, data, objects
from processes import damaged

import pmwd_dist as pmd

SHAPE, BOX, A = (4, 8, 16), 16.0, 0.5
COUNT = math.prod(SHAPE)
KINDS = ("gadget", "swift", "foreign")  # the last without a lattice and without checksums, as other codes write
Loaded = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A change of a snapshot, and which parts of what is loaded may differ by it."""

    name: str
    change: Callable[[Path], None]
    may_differ: frozenset[str]


def write(path: Path, kind: str) -> Path:
    """An undamaged snapshot."""
    rng = np.random.default_rng(1)
    own = pmd.Decomposition((1, 1))
    config = pmd.Config(BOX, SHAPE, decomposition=own)
    values = (rng.uniform(-2, 2, (*SHAPE, 3)), rng.uniform(-1, 1, (*SHAPE, 3)))
    given = pmd.Particles(*jax.device_put(values, own.sharding))
    pmd.save_snapshot(path, given, jax_cosmo.Planck15(), config, A, format="swift" if kind == "swift" else "gadget")
    if kind == "foreign":
        whole = path.with_suffix(".whole")
        path.rename(whole)
        with h5py.File(whole) as source, h5py.File(path, "w") as file:
            for group in ("Header", "Parameters"):
                file.create_group(group).attrs.update(source[group].attrs)
            for name in ("Coordinates", "Velocities", "ParticleIDs"):
                file[f"PartType1/{name}"] = source[f"PartType1/{name}"][:]
            file["PartType1/Masses"] = np.full(COUNT, source["Header"].attrs["MassTable"][1], "f4")
        whole.unlink()
    return path


def load(path: Path) -> Loaded:
    with jax.set_mesh(pmd.Decomposition((1, 1)).mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # units and masses that are odd
        particles, header = pmd.load_snapshot(path)
        density, _ = pmd.snapshot_density(path)
    assert np.isfinite(density).all()
    fields = {"disp": particles.disp, "vel": particles.vel, "density": density}
    return {"header": repr(header)} | {name: np.asarray(field) for name, field in fields.items()}


def load_or_refuse(path: Path) -> Loaded | str:
    """What is loaded, or why nothing is; any other error is one of the program."""
    try:
        return load(path)
    except (ValueError, OSError) as error:
        return str(error)


def outcome(path: Path, original: Loaded, case: Case) -> str:
    """What becomes of a changed snapshot; AssertionError if that must not be."""
    loaded = load_or_refuse(path)
    if isinstance(loaded, str):
        assert 0 < len(loaded) < 400 + len(str(path)) and "\n" not in loaded, loaded
        return "refused"
    different = {name for name in original if not np.array_equal(loaded[name], original[name])}
    assert different <= case.may_differ, f"{case.name}: loaded with other {', '.join(sorted(different))}"
    return "loaded, other values" if different else "loaded, same values"


ALL = frozenset({"header", "disp", "vel", "density"})
NASTY: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 2 * 10**7, 2**31, 2**32, 2**63 - 1, -(2**63)),
    *(1.5, 1e-300, 1e300, -1e300, np.inf, -np.inf, np.nan),
    *("", "text", "1", b"\xff", h5py.Empty("f8"), [1, 2], [1.0, 2.0, 3.0], [np.inf] * 3, [10**5] * 3, [0, 0, 0]),
    *(np.zeros(0), np.zeros((2, 2)), np.zeros(2000), 1j, np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), True),
    *([0, -5, 0, 0, 0, 0], [0, 2**31, 0, 0, 0, 0], [0, 1e30, 0, 0, 0, 0], [8, 4, 16], [1, 1, COUNT], [4, 8, -16]),
)
ATTRIBUTES = {
    "gadget": {
        "Header": (
            *("Redshift", "BoxSize", "NumFilesPerSnapshot", "NumPart_Total", "NumPart_ThisFile", "HubbleParam"),
            *("NumPart_Total_HighWord", "Omega0", "OmegaBaryon", "MassTable"),
        ),
        "Parameters": ("UnitLength_in_cm", "UnitVelocity_in_cm_per_s"),
        "ParticleMesh": ("LatticeShape", "MeshShape"),
    },
    "swift": {
        "Header": ("Redshift", "BoxSize", "NumFilesPerSnapshot", "NumPart_Total", "NumPart_ThisFile"),
        "Cosmology": ("h", "Omega_m", "Omega_b"),
        "Units": ("Unit length in cgs (U_L)", "Unit time in cgs (U_t)"),
        "ParticleMesh": ("LatticeShape", "MeshShape"),
    },
}
ATTRIBUTES["foreign"] = {group: ATTRIBUTES["gadget"][group] for group in ("Header", "Parameters")}


def set_attribute(path: Path, group: str, name: str, value: Any) -> None:
    with h5py.File(path, "a") as file:
        file[group].attrs[name] = value


def remove(path: Path, name: str) -> None:
    with h5py.File(path, "a") as file:
        group, _, attribute = name.partition(":")
        if attribute:
            del file[group].attrs[attribute]
        else:
            del file[group]


def replace(path: Path, name: str, make: Make) -> None:
    with h5py.File(path, "a") as file:
        del file[f"PartType1/{name}"]
        make(file["PartType1"], name)


ARRAYS = objects((COUNT, 3)) | {
    "shorter": data(data=np.zeros((COUNT - 1, 3), "f4")),
    "one column": data(data=np.zeros((COUNT, 1), "f4")),
    "four axes": data(data=np.zeros((*SHAPE, 3), "f4")),
    "whole and one axis": data(data=np.zeros(COUNT - 1, "i8")),
    "fractions": data(data=np.full(COUNT, 0.5)),
    "NaN": data(data=np.full((COUNT, 3), np.nan)),
    "1e30": data(data=np.full((COUNT, 3), 1e300)),
}


def made_up(kind: str) -> Iterator[Case]:
    """Every change that has a name."""
    groups = ATTRIBUTES[kind]
    for group in (*groups, "PartType1"):
        # Without the lattice, a snapshot is one of another code, in the order of its particles; units are assumed.
        header = frozenset({"header"})
        may_differ = {"ParticleMesh": ALL, "Units": header, "Parameters": header}
        yield Case(f"no {group}", lambda path, g=group: remove(path, g), may_differ.get(group, frozenset()))
    names = ("Coordinates", "Velocities", *(("Masses",) if kind == "foreign" else ("ParticleIDs",)))
    for name in names:
        yield Case(f"no {name}", lambda path, n=name: remove(path, f"PartType1/{n}"), frozenset())
        for what, make in ARRAYS.items():
            yield Case(f"{name}: {what}", lambda path, n=name, m=make: replace(path, n, m), frozenset())
    for group, names in groups.items():
        for name in names:
            yield Case(f"no {name}", lambda path, g=group, n=name: remove(path, f"{g}:{n}"), ALL)
            for value in NASTY:
                yield Case(
                    f"{name} = {value!r}", lambda path, g=group, n=name, v=value: set_attribute(path, g, n, v), ALL
                )


def damage(kind: str, rng: np.random.Generator) -> Case:
    """A change of bytes at random."""
    # What has checksums is the same or refused; without them, values may be other ones.
    may_differ = ALL if kind == "foreign" else frozenset[str]()
    seed = int(rng.integers(2**32))

    def change(path: Path) -> None:
        path.write_bytes(damaged(path.read_bytes(), np.random.default_rng(seed)))

    return Case(f"damage {seed}", change, may_differ)


def cases(kind: str, rng: np.random.Generator, count: int) -> list[Case]:
    """A number of changes: half of them made up, of all that have a name, half of them damage."""
    named = list(made_up(kind))
    chosen = [named[i] for i in rng.permutation(len(named))[: count // 2]]
    return chosen + [damage(kind, rng) for _ in range(count - len(chosen))]
