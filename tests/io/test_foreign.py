"""Snapshots of other codes: their units, masses and types, on one device and on several."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import foreign_snapshots as foreign
import h5py
import numpy as np
import problems
import pytest
from foreign_snapshots import BOX, LAYOUTS, A, H, Kind, universe

import pmwd_dist as pmd

HYDRO = {0: 300, 1: 8**3, 4: 100}
CELLS = (8, 12, 10)


def expected_density(kinds: dict[int, Kind], cells: tuple[int, int, int] = CELLS) -> np.ndarray:
    """Density by dense matrices, in units of the mean."""
    painted: Any = sum(problems.paint(kind.x * (np.array(cells) / BOX), kind.mass, cells) for kind in kinds.values())
    return painted / painted.mean()


def expected_power(density: np.ndarray) -> np.ndarray:
    """P(k) in bins of the fundamental mode, with the window divided out, by a full complex transform in NumPy."""
    n = density.shape[0]
    index = np.fft.fftfreq(n, 1 / n)
    window = np.sinc(index / n) ** 2
    modes = np.fft.fftn(density) / np.einsum("i,j,k->ijk", window, window, window)
    power = np.abs(modes) ** 2 * BOX**3 / n**6
    modulus = np.sqrt(sum(axis**2 for axis in np.meshgrid(index, index, index, indexing="ij")))
    bins = np.rint(modulus).astype(int)
    return np.array([power[bins == i].mean() for i in range(1, n // 2 + 1)])


def quiet_density(*arguments: Any, **options: Any) -> Any:
    """As snapshot_density, of files that name no units."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pmd.snapshot_density(*arguments, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_units_are_read_wherever_a_code_names_them(tmp_path: Path, single: pmd.Decomposition, layout: str):
    kinds = universe(HYDRO)
    LAYOUTS[layout](tmp_path / "s.hdf5", kinds)
    config = pmd.Config(BOX, CELLS, decomposition=single)
    density, matter = quiet_density(tmp_path / "s.hdf5", config)
    assert matter.header.box_size == pytest.approx((BOX,) * 3, rel=1e-5)
    assert matter.header.a == pytest.approx(A)
    assert matter.header.h == pytest.approx(H)
    assert bool(matter.header.length_unit) == (layout != "gadget2")
    assert matter.counts == HYDRO
    assert matter.left_out == ((3,) if layout == "arepo" else ())
    assert matter.omega == pytest.approx(foreign.OMEGA_M, rel=1e-3)
    np.testing.assert_allclose(density, expected_density(kinds), atol=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_velocities_are_peculiar_ones_by_the_exponents_of_the_code(
    tmp_path: Path, single: pmd.Decomposition, layout: str
):
    kinds = universe({1: 8**3})
    LAYOUTS[layout](tmp_path / "s.hdf5", kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        particles, _ = pmd.load_snapshot(tmp_path / "s.hdf5", pmd.Config(BOX, 8, decomposition=single))
    np.testing.assert_allclose(np.asarray(particles.vel).reshape(-1, 3), kinds[1].v * A / 100, rtol=1e-5, atol=1e-6)
    moved = problems.lattice((8, 8, 8), (BOX,) * 3) + np.asarray(particles.disp)
    np.testing.assert_allclose(moved.reshape(-1, 3) % BOX, kinds[1].x, atol=1e-3)


def test_a_unit_that_is_assumed_is_said(tmp_path: Path, single: pmd.Decomposition):
    path = tmp_path / "s.hdf5"
    foreign.gadget2(path, universe({1: 64}))
    with h5py.File(path, "a") as file:  # as a file in Mpc/h that doesn't say so
        file["PartType1/Coordinates"][...] = file["PartType1/Coordinates"][:] / 1000
        file["Header"].attrs["BoxSize"] = BOX
    with pytest.warns(UserWarning, match=r"no unit of length: kpc/h is assumed, for a box of 0.1 Mpc/h"):
        pmd.load_snapshot(path)
    with (
        pytest.warns(UserWarning, match="no unit of length"),
        pytest.warns(UserWarning, match=r"density of 3e\+08, and Omega_m is 0.3: .* the unit of length or mass"),
    ):
        pmd.snapshot_density(path)
    config = pmd.Config(BOX, 8, 4, decomposition=single)
    for unit, side in {"Mpc/h": BOX, "kpc/h": BOX / 1e3, "Mpc": BOX * H, "kpc": BOX * H / 1e3}.items():
        sides: Any = quiet_density(path, length_unit=unit)[1].header.box_size
        assert sides == pytest.approx((side,) * 3)
    pmd.load_snapshot(path, config, length_unit="Mpc/h")
    assert pmd.snapshot_density(path, length_unit="Mpc/h")[1].omega == pytest.approx(foreign.OMEGA_M, rel=1e-5)
    wrong: Any = "lightyear"
    with pytest.raises(ValueError, match="length_unit='lightyear' must be one of kpc/h, Mpc/h, kpc, Mpc"):
        pmd.snapshot_density(path, length_unit=wrong)


def test_a_density_that_is_not_omega_m_is_said(tmp_path: Path, single: pmd.Decomposition):
    """Also where tracers are left out; not where types are chosen."""
    path, config = tmp_path / "s.hdf5", pmd.Config(BOX, CELLS, decomposition=single)
    foreign.arepo(path, universe(HYDRO))
    assert pmd.snapshot_density(path, config, types=[1])[1].omega < 0.9 * foreign.OMEGA_M
    with h5py.File(path, "a") as file:
        del file["PartType0/Masses"]
    with pytest.warns(UserWarning, match=r"and Omega_m is 0.3: types are missing, or the unit of length or mass"):
        assert pmd.snapshot_density(path, config)[1].left_out == (0, 3)


def test_two_places_that_disagree_are_an_error(tmp_path: Path):
    path = tmp_path / "s.hdf5"
    foreign.gadget4(path, universe({1: 64}))
    with h5py.File(path, "a") as file:
        file["Parameters"].attrs["UnitLength_in_cm"] = foreign.CM / 1e3
    with pytest.raises(ValueError, match="two units of length, PartType1/Coordinates:to_cgs .* and Parameters:UnitLen"):
        pmd.snapshot_density(path)
    assert pmd.snapshot_density(path, length_unit="Mpc/h")[1].header.box_size == pytest.approx((BOX,) * 3)


@pytest.mark.parametrize(
    ("decomposition", "types"),
    [((1, 1), None), ((1, 1), (1,)), ((4, 1), None), ((2, 2), (0, 4))],
    ids=str,
    indirect=["decomposition"],
)
def test_power_is_weighted_by_mass_on_any_layout(tmp_path: Path, decomposition: pmd.Decomposition, types: Any):
    """A zoom: most particles lie in half of the box, far from any lattice."""
    kinds = universe(HYDRO)
    foreign.arepo(tmp_path / "s.hdf5", kinds)
    config = pmd.Config(BOX, 8, decomposition=decomposition)
    density, matter = pmd.snapshot_density(tmp_path / "s.hdf5", config, types=types)
    chosen = {kind: kinds[kind] for kind in types or kinds}
    expected = expected_density(chosen, (8, 8, 8))
    np.testing.assert_allclose(density, expected, atol=5e-5)  # parsecs are rounded
    assert density.sharding == config.decomposition.sharding
    np.testing.assert_allclose(pmd.power_spectrum(density, config).power, expected_power(expected), rtol=5e-5)
    masses = np.concatenate([kind.mass for kind in chosen.values()])
    assert matter.shot_noise == pytest.approx(BOX**3 * (masses**2).sum() / masses.sum() ** 2, rel=1e-5)
    assert matter.left_out == tuple(sorted({0, 1, 3, 4} - set(chosen)))


@pytest.mark.parametrize("decomposition", [(1, 1), (4, 1), (2, 2)], indirect=True)
def test_particles_are_painted_a_lattice_at_a_time(
    tmp_path: Path, decomposition: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch
):
    kinds = universe(HYDRO)
    foreign.swift(tmp_path / "s.hdf5", kinds)
    monkeypatch.setattr("pmwd_dist.io.snapshot.matter._PAINTED", 130)  # 3 sites for each of 8 x 8
    monkeypatch.setattr("pmwd_dist.io.snapshot.particles.CHUNK", 50)
    density, _ = pmd.snapshot_density(tmp_path / "s.hdf5", pmd.Config(BOX, 8, decomposition=decomposition))
    np.testing.assert_allclose(density, expected_density(kinds, (8, 8, 8)), atol=1e-5)


@pytest.mark.parametrize("decomposition", [(1, 1), (2, 2)], indirect=True)
def test_our_own_snapshots_have_the_same_density(tmp_path: Path, decomposition: pmd.Decomposition, cosmo: Any):
    config = pmd.Config(BOX, 8, decomposition=decomposition)
    disp, vel = np.random.default_rng(2).uniform(-9, 9, (2, 8, 8, 8, 3))
    particles = pmd.Particles(disp, vel)
    path = pmd.save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A, format="swift")
    density, matter = pmd.snapshot_density(path, config)
    np.testing.assert_allclose(density, pmd.density(particles, config), atol=1e-6)
    assert matter.omega == pytest.approx(float(cosmo.Omega_m))
    assert matter.shot_noise == pytest.approx((BOX / 8) ** 3)


@pytest.mark.parametrize("layout", ["gadget4", "eagle", "swift"])
def test_files_without_particles_of_a_type_in_a_set_with_any_name(tmp_path: Path, layout: str):
    kinds = universe({0: 300, 1: 8**3, 4: 0})
    folder = tmp_path / "snapdir_000"
    foreign.write_set(folder, "snapshot_000", kinds, LAYOUTS[layout], 3)
    config = pmd.Config(BOX, CELLS, decomposition=(1, 1))
    for name in ("", "snapshot_000", "snapshot_000.hdf5", "snapshot_000.0.hdf5", "snapshot_000.2.hdf5"):
        density, matter = pmd.snapshot_density(folder / name, config)
        assert matter.counts == {0: 300, 1: 8**3}
        np.testing.assert_allclose(density, expected_density(kinds), atol=2e-4)
    particles, _ = pmd.load_snapshot(folder)
    assert particles.disp.shape == (8, 8, 8, 3)
    with h5py.File(folder / "fof_tab_000.hdf5", "w") as file:  # of groups
        file.create_group("Header")
    (folder / "empty.h5").touch()
    foreign.write_set(tmp_path / "older", "snapshot_000", kinds | {3: kinds[1]}, LAYOUTS[layout], 4)
    (tmp_path / "older/snapshot_000.3.hdf5").rename(folder / "snapshot_000.3.hdf5")
    assert pmd.load_snapshot(folder)[0].disp.shape == (8, 8, 8, 3)
    LAYOUTS[layout](folder / "snapshot_000.hdf5", universe({1: 64}))  # later, over the set
    with pytest.raises(ValueError, match=r"holds 2 snapshots, snapshot_000.0.hdf5, snapshot_000.hdf5: pass one"):
        pmd.snapshot_density(folder, config)
    (tmp_path / "several").mkdir()
    (tmp_path / "several/empty.h5").touch()
    with pytest.raises(ValueError, match=r"empty.h5: is not an HDF5 file, or damaged"):
        pmd.snapshot_density(tmp_path / "several", config)
    for z in ("0.0", "0.5"):
        LAYOUTS[layout](tmp_path / f"several/snap_z{z}.hdf5", universe({1: 64}))
    with pytest.raises(ValueError, match=r"holds 2 snapshots, snap_z0.0.hdf5, snap_z0.5.hdf5: pass one"):
        pmd.snapshot_density(tmp_path / "several", config)
    with (tmp_path / "several/snap_z0.0.hdf5").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"snap_z0.0.hdf5: is not an HDF5 file, or damaged"):
        pmd.snapshot_density(tmp_path / "several", config)
    with pytest.raises(FileNotFoundError, match=r"no snapshot \(\*.hdf5, \*.h5\) in this folder"):
        pmd.snapshot_density(tmp_path, config)


def test_masses_that_are_missing(tmp_path: Path, single: pmd.Decomposition):
    path, config = tmp_path / "s.hdf5", pmd.Config(BOX, CELLS, decomposition=single)
    kinds = universe({0: 100, 1: 64})
    foreign.gadget_units(path, kinds)
    with h5py.File(path, "a") as file:
        del file["PartType0/Masses"]
    with pytest.warns(UserWarning, match="types are missing"):
        density, matter = pmd.snapshot_density(path, config)
    assert (matter.counts, matter.left_out) == ({1: 64}, (0,))
    with pytest.raises(ValueError, match=r"types=\[0, 1\] includes 0, whose particles have no masses"):
        pmd.snapshot_density(path, config, types=[0, 1])
    with pytest.raises(ValueError, match=r"among those of the snapshot, 0 \(100 particles\), 1 \(64 particles\)"):
        pmd.snapshot_density(path, config, types=[5])
    one: Any = 1
    with pytest.raises(ValueError, match=r"types=1 must be a list of whole numbers; for example \[0, 1, 4\]"):
        pmd.snapshot_density(path, config, types=one)
    density, matter = pmd.snapshot_density(path, config, types=[0])  # equal ones
    np.testing.assert_allclose(density, expected_density({0: Kind(kinds[0].x, kinds[0].v, np.ones(100))}), atol=1e-4)
    assert math.isnan(matter.omega)
    with h5py.File(path, "a") as file:
        file["PartType1/Masses"] = np.full(64, -1.0)
    with pytest.raises(ValueError, match="masses of particles of type 1 that are negative"):
        pmd.snapshot_density(path, config)


def test_a_snapshot_without_dark_matter(tmp_path: Path):
    foreign.gadget_units(tmp_path / "s.hdf5", universe({0: 64}))
    assert pmd.snapshot_density(tmp_path / "s.hdf5")[1].counts == {0: 64}
    with pytest.raises(ValueError, match="has no particles of type 1, dark matter"):
        pmd.load_snapshot(tmp_path / "s.hdf5")
