"""Initial conditions of other codes: particles in any order, with and without IDs, on one device and on several."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import foreign_snapshots as foreign
import h5py
import jax
import numpy as np
import problems
import pytest
from foreign_snapshots import BOX, LAYOUTS, A, H, Kind

import pmwd_dist as pmd
from pmwd_dist.io.snapshot.initial import find_initial_conditions

N = 8
SPACING = BOX / N
COSMO: Any = SimpleNamespace(
    Omega_c=foreign.OMEGA_M - 0.05, Omega_b=0.05, h=H, n_s=0.96, sigma8=0.2, Omega_k=0.0, w0=-1.0, wa=0.0
)
# Sites in the order of a file, or None for the order of the lattice; IDs of sites, or None.
SITES = np.arange(N**3)
SHUFFLED = np.random.default_rng(1).permutation(N**3)
BY_Z = SITES.reshape(N, N, N).T.ravel()  # number of a site along z, y and x
ORDERS: dict[str, tuple[np.ndarray, np.ndarray | None]] = {
    "IDs from 1": (SHUFFLED, SITES + 1),
    "IDs from 0": (SHUFFLED, SITES),
    "IDs after those of gas": (SHUFFLED, SITES + N**3 + 1),
    "IDs from 0 after others": (SHUFFLED, SITES + 5 * N**3),
    "IDs from 13": (SHUFFLED, SITES + 13),
    "IDs up to the largest": (SHUFFLED, SITES.astype("u8") + np.uint64(2**64 - N**3)),
    "IDs along z": (SHUFFLED, BY_Z + 1),
    "order of the file": (SITES, None),
    "order along z": (np.argsort(BY_Z), None),
    "IDs of no lattice": (SHUFFLED, SHUFFLED[SHUFFLED] + 1),
    "positions": (SHUFFLED, None),
}


@pytest.fixture(scope="module")
def initial() -> pmd.Particles:
    """2LPT."""
    config = make_config((1, 1))
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), COSMO, config)
    return pmd.lpt(modes, COSMO, config)


def make_config(decomposition: Any, **options: Any) -> pmd.Config:
    given: Any = {
        "box_size": BOX,
        "mesh_shape": N,
        "a_start": A,
        "lpt_order": 2,
        "decomposition": decomposition,
    } | options
    return pmd.Config(**given)


def write(path: Path, particles: pmd.Particles, layout: str, order: str, shift: float = 0.0) -> Path:
    """The particles in an order of `ORDERS`, on a lattice that is shifted by a part of its spacing."""
    sites, ids = ORDERS[order]
    x = problems.lattice((N, N, N), (BOX,) * 3) + np.asarray(particles.disp) + shift * SPACING
    velocities = np.asarray(particles.vel) * 100 / A
    mass = np.full(N**3, foreign.OMEGA_M * 27.7536627 * SPACING**3)
    kind = Kind(x.reshape(-1, 3)[sites] % BOX, velocities.reshape(-1, 3)[sites], mass)
    LAYOUTS[layout](path, {1: kind})
    with h5py.File(path, "a") as file:
        del file["PartType1/ParticleIDs"]
        if ids is not None:
            file["PartType1/ParticleIDs"] = ids[sites].astype("u8")
    return path


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_sites_are_found(tmp_path: Path, initial: pmd.Particles, order: str, shift: float):
    """In Gadget's format without units; the lattice beside ours leaves a mean displacement of half a spacing."""
    path, config = write(tmp_path / "s.hdf5", initial, "gadget2", order, shift), make_config((1, 1))
    with pytest.warns(UserWarning, match="its lattice lies 0.5 cells beside the mesh") if shift else nullcontext():
        found = pmd.load_initial_conditions(path, COSMO, config)
    mean = np.asarray(found.disp).mean((0, 1, 2)) / SPACING
    np.testing.assert_allclose(np.abs(mean), shift, atol=1e-6)
    later = np.rint(shift - mean).astype(int)  # sites by which rounded positions may be off along each axis
    disp, vel = (np.roll(x, later, (0, 1, 2)) for x in (initial.disp, initial.vel))
    np.testing.assert_allclose(found.disp, disp + mean * SPACING, atol=1e-5)
    np.testing.assert_allclose(found.vel, vel, atol=1e-5)


def test_a_lattice_beside_the_mesh_is_warned_of(tmp_path: Path, initial: pmd.Particles):
    """Half a spacing is a whole cell of a mesh that is twice as fine."""
    path, beside = (write(tmp_path / str(shift), initial, "gadget2", "IDs from 1", shift) for shift in (0.0, 0.5))
    config, fine = make_config((1, 1)), make_config((1, 1), mesh_shape=2 * N, particle_shape=N)
    for file, given, warned in ((path, config, False), (beside, config, True), (beside, fine, False)):
        text = find_initial_conditions(file, COSMO, given).lattice_warning(given)
        assert ("its lattice lies 0.5 cells beside the mesh" in (text or "")) == warned
        assert ("P(k) is up to about 41 % low at half the Nyquist frequency" in (text or "")) == warned


@pytest.mark.parametrize(
    ("decomposition", "layout"),
    [((1, 1), "swift"), ((4, 1), "gadget4"), ((2, 2), "swift")],
    ids=str,
    indirect=["decomposition"],
)
def test_initial_conditions_on_several_devices(
    tmp_path: Path, initial: pmd.Particles, decomposition: pmd.Decomposition, layout: str, monkeypatch: Any
):
    """As MUSIC and monofonIC write them: no Hubble constant in SWIFT's, positions beyond the box, a set of files."""
    monkeypatch.setattr("pmwd_dist.io.snapshot.particles.CHUNK", 100)
    path = write(tmp_path / "s.hdf5", initial, layout, "IDs from 1")
    with h5py.File(path, "a") as file:
        if layout == "swift":
            del file["Cosmology"]
        x: Any = file["PartType1/Coordinates"]
        side: Any = np.ravel(file["Header"].attrs["BoxSize"])[0]
        x[...] = np.where(x[:] > 0.9 * side, x[:] - side, x[:])
    config = make_config(decomposition)
    found = pmd.load_initial_conditions(path, COSMO, config)
    assert found.disp.sharding == found.vel.sharding == config.decomposition.sharding
    np.testing.assert_allclose(found.disp, initial.disp, atol=2e-5)
    np.testing.assert_allclose(found.vel, initial.vel, atol=2e-5)


def test_our_own_snapshots_at_any_time(tmp_path: Path, initial: pmd.Particles, single: pmd.Decomposition):
    """Displacements of half the box: particle IDs are indices of sites."""
    config, cosmo = make_config(single), COSMO
    disp = np.random.default_rng(2).uniform(-BOX / 2, BOX / 2, (N, N, N, 3))
    path = pmd.save_snapshot(tmp_path / "s.hdf5", pmd.Particles(disp, initial.vel), cosmo, config, A, format="swift")
    found = pmd.load_initial_conditions(path, cosmo, config, check_motion=False)
    np.testing.assert_allclose(found.disp, disp, atol=1e-12)
    with pytest.raises(ValueError, match=r"particle_shape=\(16, 8, 4\) is not .*; its lattice is \(8, 8, 8\)"):
        pmd.load_initial_conditions(path, cosmo, replace(config, particle_shape=(16, 8, 4), mesh_shape=16))
    with pytest.raises(ValueError, match="check_motion='no' must be True or False"):
        pmd.load_initial_conditions(path, cosmo, config, check_motion="no")  # type: ignore[arg-type]
    tabulated = pmd.with_dark_energy(cosmo, [0.5, 1.0], [-0.8, -1.0])
    with pytest.raises(ValueError, match="cosmo.w_table can't be compared with w_0 and w_a of the snapshot"):
        pmd.load_initial_conditions(path, tabulated, config)
    other = pmd.save_snapshot(
        tmp_path / "t.hdf5", pmd.load_snapshot(path, config)[0], tabulated, config, A, format="swift"
    )
    found = pmd.load_initial_conditions(other, tabulated, config, check_motion=False)
    np.testing.assert_allclose(found.disp, disp, atol=1e-12)


def test_baryons_and_neutrinos_that_a_file_names(tmp_path: Path, initial: pmd.Particles):
    config, cosmo = make_config((1, 1)), pmd.with_neutrinos(COSMO, m_nu=None)
    path = pmd.save_snapshot(tmp_path / "s.hdf5", initial, cosmo, config, A, format="swift")
    pmd.load_initial_conditions(path, cosmo, config)
    fewer: Any = SimpleNamespace(**vars(cosmo) | {"Omega_b": 0.045, "Omega_c": cosmo.Omega_c + 0.005})
    with pytest.raises(ValueError, match=r"cosmo.Omega_b=0.045 is not that of the snapshot, 0.05; use the same"):
        pmd.load_initial_conditions(path, fewer, config)
    with pytest.raises(ValueError, match=r"cosmo.n_eff=3.5 is not that of the snapshot, 3.044; use the same"):
        pmd.load_initial_conditions(path, pmd.with_neutrinos(COSMO, m_nu=None, n_eff=3.5), config)
    pmd.load_initial_conditions(path, COSMO, config)
    more = pmd.with_neutrinos(COSMO, m_nu=None, n_eff=4.0)
    other = pmd.save_snapshot(tmp_path / "t.hdf5", initial, more, config, A, format="swift")
    with pytest.raises(ValueError, match=r"cosmo.n_eff=3.044 is not that of the snapshot, 4; use the same"):
        pmd.load_initial_conditions(other, COSMO, config)
    with h5py.File(path, "a") as file:  # as simulations of dark matter alone name them
        file["Cosmology"].attrs.update({"Omega_b": 0.0, "N_eff": 0.0})
    pmd.load_initial_conditions(path, fewer, config)


def test_units_are_those_with_the_box_where_a_file_names_none(tmp_path: Path, initial: pmd.Particles):
    path = write(tmp_path / "s.hdf5", initial, "gadget2", "IDs from 0")
    with h5py.File(path, "a") as file:  # as monofonIC does: Mpc/h
        file["PartType1/Coordinates"][...] = file["PartType1/Coordinates"][:] / 1000
        file["Header"].attrs["BoxSize"] = BOX
    found = pmd.load_initial_conditions(path, COSMO, make_config((1, 1)))
    np.testing.assert_allclose(found.disp, initial.disp, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "changed", "words"),
    [
        ({"box_size": 200.0}, {}, r"box_size=\(200.0, 200.0, 200.0\) is not that of the snapshot, \(100"),
        ({"mesh_shape": 16}, {}, r"particle_shape=\(16, 16, 16\) is not the lattice of .* 512 particles of type 1$"),
        ({"a_start": 0.1}, {}, "a_start=0.1 is not the scale factor of the snapshot, 0.5; set it to 0.5"),
        ({}, {"Omega_c": 0.26}, r"cosmo.Omega_m=0.31 is not that of the snapshot, 0.3; use the same"),
        ({}, {"Omega_k": 0.01}, r"cosmo.Omega_k=0.01 is not that of the snapshot, \S+; use the same"),
        ({}, {"h": 0.72}, "cosmo.h=0.72 is not that of the snapshot, 0.7"),
    ],
)
def test_another_simulation_is_named(
    tmp_path: Path, initial: pmd.Particles, options: dict[str, Any], changed: dict[str, float], words: str
):
    path = write(tmp_path / "s.hdf5", initial, "gadget4", "IDs from 1")
    cosmo: Any = SimpleNamespace(**vars(COSMO) | changed)
    with pytest.raises(ValueError, match=words):
        pmd.load_initial_conditions(path, cosmo, make_config((1, 1), **options))


def heavy(file: h5py.File) -> None:
    file["PartType1/Masses"] = np.where(SITES < 9, 2.0, 1.0)


def scaled(name: str, factor: float) -> Any:
    def change(file: h5py.File) -> None:
        file[f"PartType1/{name}"][...] = factor * file[f"PartType1/{name}"][:]

    return change


def light(file: h5py.File) -> None:
    file["Header"].attrs["MassTable"] = 0.8 * file["Header"].attrs["MassTable"]


def without_ids(file: h5py.File) -> None:
    del file["PartType1/ParticleIDs"]
    x = file["PartType1/Coordinates"]
    x[:30] = x[30:60]  # some in one place


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (heavy, r"particles of type 1 have masses from 1\S* to 2\S* 1e10 Msun/h, and must have one mass"),
        (light, r"have a density of 0.24\S*, and cold matter has 0.3: the unit of length or mass is another one; give"),
        (scaled("Velocities", math.sqrt(A)), r"velocities are 0.7\d* of those of linear growth at a = 0.5, .*: their"),
        (without_ids, r"30 sites of the lattice of \(8, 8, 8\) lack particles, .* too large to find sites from pos"),
    ],
)
def test_wrong_particles_are_named(tmp_path: Path, initial: pmd.Particles, change: Any, words: str):
    path = write(tmp_path / "s.hdf5", initial, "gadget4", "IDs from 1")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ValueError, match=words):
        pmd.load_initial_conditions(path, COSMO, make_config((1, 1)))


def permuted(share: float) -> Any:
    """Velocities of a share of the particles in another order."""

    def change(vel: np.ndarray) -> np.ndarray:
        out = vel.reshape(-1, 3).copy()
        some = SHUFFLED[: int(share * len(out))]
        out[some] = np.roll(out[some], 1, 0)
        return out.reshape(vel.shape)

    return change


def slab_permuted(vel: np.ndarray) -> np.ndarray:
    """Velocities of one plane of the lattice in another order."""
    return np.concatenate([np.random.default_rng(3).permuted(vel[:1], axis=1), vel[1:]])


def short_waves_reversed(vel: np.ndarray) -> np.ndarray:
    """Waves beyond half the Nyquist frequency of an axis with the other sign."""
    modes = np.fft.fftn(vel, axes=(0, 1, 2))
    short = np.abs(np.stack(np.meshgrid(*[np.fft.fftfreq(len(vel))] * 3))).max(0) > 0.25
    return np.fft.ifftn(np.where(short[..., None], -modes, modes), axes=(0, 1, 2)).real


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (np.zeros_like, "velocities are 0 of those"),
        (np.negative, r"velocities are -1\S* of those of .*, with a correlation of -1.000 with"),
        (lambda v: 1.2 * v, r"velocities are 1.2\d* of those of .*; name the unit .*, or set check_motion to false"),
        (lambda v: v[..., ::-1], "with a correlation of -?0"),
        (permuted(1.0), "with a correlation of -?0"),
        (permuted(0.1), "velocities are 0.8|with a correlation of 0.8"),
        (slab_permuted, "with a correlation of 0.[78]"),
        (short_waves_reversed, "with a correlation of 0.2"),
    ],
)
def test_velocities_of_any_snapshot_must_follow_the_displacements(
    tmp_path: Path, initial: pmd.Particles, change: Any, words: str
):
    config = make_config((1, 1))
    moving = pmd.Particles(initial.disp, change(np.asarray(initial.vel)))
    path = pmd.save_snapshot(tmp_path / "s.hdf5", moving, COSMO, config, A)
    with pytest.raises(ValueError, match=words):
        pmd.load_initial_conditions(path, COSMO, config)


def test_velocities_that_may_be_wrong_are_a_warning(tmp_path: Path, initial: pmd.Particles):
    config = make_config((1, 1))
    for factor, words in ((1.05, r"velocities are 1.0[56]\d* of those"), (0.95, r"velocities are 0.9[45]\d* of those")):
        moving = pmd.Particles(initial.disp, factor * initial.vel)
        path = pmd.save_snapshot(tmp_path / "s.hdf5", moving, COSMO, config, A)
        with pytest.warns(UserWarning, match=words + r" of linear growth .*: P.k. may be off by as much"):
            pmd.load_initial_conditions(path, COSMO, config)


@pytest.mark.parametrize("order", [1, 3])
def test_opposite_factors_of_two_axes_are_seen(tmp_path: Path, decomposition: pmd.Decomposition, order: int):
    """Their sum over axes is right."""
    config = make_config(decomposition, box_size=64.0, mesh_shape=16, a_start=0.1, lpt_order=order)
    cosmo: Any = SimpleNamespace(**vars(COSMO) | {"sigma8": 0.8})
    start = pmd.lpt(pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config), cosmo, config)

    def load(*factors: float) -> None:
        moving = pmd.Particles(start.disp, np.asarray(start.vel) * factors)
        pmd.load_initial_conditions(pmd.save_snapshot(tmp_path / "s.hdf5", moving, cosmo, config, 0.1), cosmo, config)

    with pytest.raises(ValueError, match=r"x, y and z are \S+, 0.8[45]\d*, 1.1[45]\d* of their mean: they must be 1; "):
        load(1.0, 0.85, 1.15)
    with pytest.warns(UserWarning, match=r"x, y and z are 0.9[34]\d*, \S+, 1.0[56]\d* of their mean: P.k. along the"):
        load(0.94, 1.0, 1.06)


def test_a_wrong_second_order_is_a_warning(tmp_path: Path, decomposition: pmd.Decomposition):
    """Of 2LPT, with Zel'dovich's velocities, and with the other sign."""
    config = make_config(decomposition, box_size=64.0, mesh_shape=16, a_start=0.1)
    cosmo: Any = SimpleNamespace(**vars(COSMO) | {"sigma8": 0.8})
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
    first, second = (pmd.lpt(modes, cosmo, replace(config, lpt_order=order)) for order in (1, 2))
    for weight, words in ((0.0, "-0.9.*"), (-1.0, "-[23].*")):
        moving = pmd.Particles(second.disp, first.vel + weight * (second.vel - first.vel))
        path = pmd.save_snapshot(tmp_path / f"{weight}.hdf5", moving, cosmo, config, 0.1)
        with pytest.warns(UserWarning, match=f"the second order of its velocities is {words} of that of 2LPT"):
            pmd.load_initial_conditions(path, cosmo, config)
    rate = float(np.sum(first.vel * first.disp) / np.sum(first.disp**2))
    one_rate = pmd.Particles(second.disp, rate * second.disp)
    path = pmd.save_snapshot(tmp_path / "rate.hdf5", one_rate, cosmo, config, 0.1)
    with pytest.warns(UserWarning, match=r"is -?\S+ of that of 2LPT, and that of displ\w+ is [1-3]\S*: all orders"):
        pmd.load_initial_conditions(path, cosmo, config)
    for order in (first, second):
        path = pmd.save_snapshot(tmp_path / "right.hdf5", order, cosmo, config, 0.1)
        pmd.load_initial_conditions(path, cosmo, config)


def test_short_waves_may_be_nonlinear(tmp_path: Path, single: pmd.Decomposition):
    """3LPT, densities with an rms of 0.6: velocities up to 1.08 of those of linear growth, without a warning."""
    config = make_config(single, box_size=16.0, mesh_shape=16, a_start=0.15, lpt_order=3)
    cosmo: Any = SimpleNamespace(**vars(COSMO) | {"sigma8": 0.8})
    start = pmd.lpt(pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config), cosmo, config)
    path = pmd.save_snapshot(tmp_path / "s.hdf5", start, cosmo, config, 0.15)
    pmd.load_initial_conditions(path, cosmo, config)
    wrong = pmd.Particles(start.disp, short_waves_reversed(np.asarray(start.vel)))
    path = pmd.save_snapshot(tmp_path / "t.hdf5", wrong, cosmo, config, 0.15)
    with pytest.raises(ValueError, match="with a correlation of 0.1"):
        pmd.load_initial_conditions(path, cosmo, config)


def test_a_second_order_below_rounding_is_no_warning(tmp_path: Path, single: pmd.Decomposition):
    config = make_config(single, box_size=4000.0, a_start=0.01)
    for seed in range(3):
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(seed), config), COSMO, config)
        path = pmd.save_snapshot(tmp_path / "s.hdf5", pmd.lpt(4 * modes, COSMO, config), COSMO, config, 0.01)
        pmd.load_initial_conditions(path, COSMO, config)


@pytest.mark.parametrize("last", [1, 3])
def test_waves_may_be_few(tmp_path: Path, single: pmd.Decomposition, last: int):
    """A plane wave, which has no second order, and a spectrum that is cut at 0.4 of the Nyquist frequency."""
    config = make_config(single, box_size=64.0, mesh_shape=16, a_start=0.1)
    noise = np.fft.rfftn(np.random.default_rng(0).normal(size=(16, 16, 16)))
    numbers = np.stack(np.meshgrid(np.fft.fftfreq(16, 1 / 16), np.fft.fftfreq(16, 1 / 16), np.arange(9), indexing="ij"))
    kept = np.abs(numbers).max(0) <= last
    if last == 1:
        kept &= (numbers[1] == 0) & (numbers[2] == 0)
    modes = pmd.linear_modes(np.fft.irfftn(np.where(kept, noise, 0), s=(16, 16, 16), axes=(0, 1, 2)), COSMO, config)
    start = pmd.lpt(4 * modes, COSMO, config)
    path = pmd.save_snapshot(tmp_path / "s.hdf5", start, COSMO, config, 0.1)
    pmd.load_initial_conditions(path, COSMO, config)


@pytest.mark.parametrize("decomposition", [(1, 1), (2, 2)], ids=str, indirect=True)
def test_another_amplitude_is_a_warning(tmp_path: Path, initial: pmd.Particles, decomposition: pmd.Decomposition):
    path, config = write(tmp_path / "s.hdf5", initial, "gadget4", "IDs from 1"), make_config(decomposition)
    found = find_initial_conditions(path, COSMO, config)
    for factor, warned in ((1.0, False), (6.0, True)):
        said = list[str]()
        found.read(COSMO, config, said.append, lambda k, x=factor: x * np.asarray(pmd.linear_power(k, COSMO)))
        assert ["its density has 0.1" in text and "times the linear P(k)" in text for text in said] == [True] * warned


def test_a_bulk_velocity_is_a_warning(tmp_path: Path, initial: pmd.Particles):
    config = make_config((1, 1))
    rms = math.sqrt(np.mean(np.sum(np.asarray(initial.vel) ** 2, -1))) * 100 / A
    moving = pmd.Particles(initial.disp, np.asarray(initial.vel) + np.array([0, 300, -400]) * A / 100)
    path = pmd.save_snapshot(tmp_path / "s.hdf5", moving, COSMO, config, A)
    with pytest.warns(UserWarning, match=f"a mean velocity of 500 km/s, {100 * 500 / rms:.3g} % of the rms of their"):
        pmd.load_initial_conditions(path, COSMO, config)


def test_particles_almost_at_rest_are_a_warning(tmp_path: Path, initial: pmd.Particles):
    disp, vel = (np.array(x) for x in (initial.disp, initial.vel))
    disp[0, :4], vel[0, :4] = 0.1 * disp[0, :4], 0.1 * vel[0, :4]
    path = pmd.save_snapshot(tmp_path / "s.hdf5", pmd.Particles(disp, vel), COSMO, make_config((1, 1)), A)
    with pytest.warns(
        UserWarning, match=r"[67]\.\d* % of its particles move slower than a fifth of the rms velocity: P"
    ):
        pmd.load_initial_conditions(path, COSMO, make_config((1, 1)))


def test_particles_of_long_boxes_are_not_almost_at_rest(tmp_path: Path):
    """Their velocities have one large component."""
    config = pmd.Config((800.0, 100.0, 100.0), (64, 8, 8), a_start=A, decomposition=(1, 1))
    noise = pmd.white_noise(jax.random.key(3), config)
    particles = pmd.lpt(pmd.linear_modes(noise, COSMO, config), COSMO, config)
    speeds = np.sqrt(np.sum(np.asarray(particles.vel) ** 2, -1))
    assert np.mean(speeds**2 < np.mean(speeds**2) / 25) > 0.03
    path = pmd.save_snapshot(tmp_path / "s.hdf5", particles, COSMO, config, A, format="swift")
    pmd.load_initial_conditions(path, COSMO, config)


def test_ids_of_no_lattice_are_named(tmp_path: Path, initial: pmd.Particles, monkeypatch: pytest.MonkeyPatch):
    """The first particles lack the smallest ID, from which IDs count."""
    monkeypatch.setattr("pmwd_dist.io.snapshot.particles.CHUNK", 64)
    monkeypatch.setattr("pmwd_dist.io.snapshot.reader.CHUNK", 64)
    path = write(tmp_path / "s.hdf5", initial, "gadget4", "IDs from 13")
    with pytest.raises(
        ValueError, match="its IDs follow no lattice: particles lie [23].* spacings from .*; write IDs in"
    ):
        pmd.load_initial_conditions(path, COSMO, make_config((1, 1)))


def test_gas_beside_dark_matter_is_named(tmp_path: Path, initial: pmd.Particles):
    path = tmp_path / "s.hdf5"
    foreign.gadget4(path, foreign.universe({0: N**3, 1: N**3}))
    with pytest.raises(
        ValueError, match=r"density of .*, and cold matter has 0.3: the rest are 512 of type 0; write all"
    ):
        pmd.load_initial_conditions(path, COSMO, make_config((1, 1)))


def test_particles_are_cold_matter(tmp_path: Path, initial: pmd.Particles):
    """With massive neutrinos the particles of a snapshot have the mass of cold matter alone."""
    config, cosmo = make_config((1, 1)), pmd.with_neutrinos(COSMO, m_nu=0.3)
    path = pmd.save_snapshot(tmp_path / "ics.hdf5", initial, cosmo, config, A)
    found = pmd.load_initial_conditions(path, cosmo, config)
    np.testing.assert_allclose(found.disp, initial.disp, atol=1e-4)
    with pytest.raises(ValueError, match="Omega_m"):
        pmd.load_initial_conditions(path, COSMO, config)
