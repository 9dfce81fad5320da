"""Observables from config files: their files, their values, and that runs that were stopped end with the same bits."""

from __future__ import annotations

import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import Events, linear_power, make, read, resumed
from test_settings import MINIMAL

import pmwd_dist as pmd
from pmwd_dist.io import checkpoint
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.report import drawing
from pmwd_dist.report.drawing import write
from pmwd_dist.report.tables import read_table
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.folder import Log, StartError
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.outputs.base import View, modes_of
from pmwd_dist.run.outputs.fields import Fields
from pmwd_dist.run.outputs.galaxy_cone import GalaxyCone
from pmwd_dist.run.outputs.halos import Halos, fit_of
from pmwd_dist.run.outputs.light_cone import LightCone, offsets_of
from pmwd_dist.run.outputs.registry import redraw
from pmwd_dist.run.settings import SettingsError
from pmwd_dist.run.simulation.job import SimulationJob

ALL = (
    "output.redshifts=0",
    "output.slice_thickness=0",
    "output.snapshot=none",
    "observe.multipoles.line_of_sight=x",
    "observe.galaxies={b1=0.5, smoothing=4, number_density=0.1, selection=[[0, 1], [32, 0.25]], k_max=0.6}",
    "observe.galaxies.mask='mask.npy'",
    "observe.galaxies.catalogue=true",
    "observe.galaxies.light_cone=true",
    "observe.galaxies.n_z=[[0.0, 0.2], [0.02, 0.1]]",
    "observe.galaxies.completeness=0.8",
    "observe.galaxies.observer=[0, 0, 5]",
    "observe.galaxies.redshift_bins=[0.004, 0.012, 0.02]",
    "observe.galaxies.sky='sky.npy'",
    "observe.galaxies.magnification=0.9",
    "observe.bispectrum={shells=2}",
    "observe.cross={}",
    "observe.pdf={bins=4, low=0.1}",
    "observe.halos={linking_length=0.4, min_particles=3, swift=true}",
    "observe.fields={mesh=[16, 8, 12], quantities=['density', 'momentum', 'velocity'], precision='float16'}",
    "observe.fields.compression=gzip",
    "observe.light_cone={edges=[0, 64, 200], pixels=8, rays=4, field=10.0, observer=[0, 0, 5], shift=false}",
    "observe.light_cone.bins=[{z=[0.02, 0.03, 0.04], n=1.0}, {file='nz.txt', column=3}]",
)
MASK = (np.random.default_rng(0).random((8, 8, 8)) > 0.3).astype(np.float32)
NZ = np.array([[0.03, 0.04, 0.05, 0.06], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 0.0]])
SKY = (np.arange(12) < 8) * 0.5
pytestmark = pytest.mark.usefixtures("no_figures_of_module")
TABLES = ("multipoles", "galaxies", "bispectrum", "cross", "pdf", "halos")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("observed")


@pytest.fixture(scope="module")
def whole(folder: Path, no_figures_of_module: None) -> SimulationJob:
    """A run from beginning to end, which names each output that takes long."""
    plan, named = make(with_mask(folder) / "whole", *ALL), set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "naming", lambda _, what: nullcontext(named.add(what)))
        execute(plan, Events())
    assert {f"output at z 0.000: {name}" for name in ("power", "catalogue", *TABLES)} <= named
    return plan


def with_mask(folder: Path) -> Path:
    """The folder, in which a survey sees a part of the cells, and has bins of sources."""
    np.savetxt(folder / "nz.txt", NZ.T)
    np.save(folder / "mask.npy", MASK)
    np.save(folder / "sky.npy", SKY)
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """All that a run has measured."""
    found: dict[str, Any] = {path.name: path.read_text() for path in folder.glob("*.csv")}
    for path in folder.glob("*.hdf5"):
        with h5py.File(path) as file:
            found |= {f"{path.name}/{name}": x[:] for name, x in file.items() if isinstance(x, h5py.Dataset)}
    return found


def test_files_are_complete_and_named(whole: SimulationJob):
    names = {path.name for path in whole.folder.iterdir()}
    expected = {f"{name}_z0.000.{kind}" for name in TABLES for kind in ("csv", "png")}
    expected |= {"counts_z0.000.hdf5", "light_cone.hdf5", "convergence_power.csv", "convergence.png"}
    expected |= {"galaxies.hdf5", "wedge.png", "halos_z0.000.hdf5"}
    expected |= {f"fields_z0.000.{kind}" for kind in ("hdf5", "npz", "png")}
    assert expected <= names
    assert expected <= set(manifest.files(whole.folder))


@pytest.mark.slow
def test_figures_are_drawn_from_the_files(whole: SimulationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "write", write)
    folder = Path(shutil.copytree(whole.folder, tmp_path / "run"))
    drawn = redraw(folder)
    assert {path.name for path in drawn} >= {path.name for path in folder.glob("*.png")}
    assert all(path.stat().st_size > 10_000 for path in drawn)


def stopped(folder: Path) -> Path:
    with_mask(folder.parent)
    plan = make(folder, *ALL)
    with pytest.raises(Interrupted):
        execute(plan, Events(3))
    assert checkpoint.latest(plan.folder) is not None
    return plan.folder


def test_stopped_and_resumed_is_bitwise_the_same(whole: SimulationJob, tmp_path: Path):
    folder = stopped(tmp_path / "run")
    execute(resumed(folder), Events(), resume=True)
    expected, found = contents(whole.folder), contents(folder)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    np.savetxt(tmp_path / "nz.txt", 2 * NZ.T)
    with pytest.raises(StartError, match=r"observe.light_cone.bins = .*sha256"):
        execute(resumed(folder), Events(), resume=True)
    with pytest.raises(StartError, match=r"observe.light_cone.pixels = 16: .* has 8"):
        execute(replace(whole, settings=read(folder / "config.toml", ["observe.light_cone.pixels=16"])), Events())


@pytest.mark.slow
def test_resumed_on_pencils_is_the_same_to_rounding(whole: SimulationJob, tmp_path: Path):
    """Shells of a checkpoint are read divided otherwise; spectra are outputs, which may be left out."""
    config = stopped(tmp_path / "run") / "config.toml"
    text = config.read_text()
    for name, after in (("multipoles", "galaxies"), ("bispectrum", "light_cone")):
        text = text[: text.index(f"[observe.{name}]")] + text[text.index(f"[observe.{after}]") :]
    config.write_text(text)
    execute(resumed(config.parent, "devices.pdims=[2, 2]"), Events(), resume=True)
    found = contents(config.parent)
    expected = contents(whole.folder)
    for name in (x for x in expected if x.startswith(("light_cone.hdf5", "galaxies.hdf5"))):
        close = {"rtol": 1e-9, "atol": 1e-9 * np.abs(expected[name]).max()}
        np.testing.assert_allclose(found[name], expected[name], **close)


def check_fields(path: Path, density: np.ndarray, momentum: np.ndarray) -> None:
    with h5py.File(path) as file:
        assert {data.dtype for data in file.values()} == {np.dtype(np.float16)}
        assert (file["velocity"].attrs["unit"], file.attrs["z"], file["density"].attrs["scale"]) == ("km/s", 0, 1)
        velocity = momentum / np.where(density == 0, 1, density)
        for name, values in {"density": density, "momentum": momentum, "velocity": velocity}.items():
            np.testing.assert_allclose(file[name][:], values, rtol=1e-3, atol=1e-4)


def test_values_are_those_of_the_library(whole: SimulationJob):
    simulation, config = whole.simulation, whole.simulation.config
    table = pmd.growth_table(simulation.cosmo)
    edges, observer, bias = (0.0, 64.0, 200.0), 5.0, pmd.observe.LagrangianBias(b1=0.5)
    cone = pmd.observe.FlatSkyLightCone(config, edges, pixels=8, observer=observer)

    @jax.jit
    def run(noise: jax.Array) -> Any:
        modes = pmd.linear_modes(noise, table, config)
        solution = pmd.nbody(pmd.lpt(modes, table, config), table, config, accumulate=cone)
        moved = pmd.observe.redshift_space(solution.particles, table, config, line_of_sight="x")
        poles = pmd.observe.power_multipoles(pmd.observe.interlaced_density(moved, config), config, line_of_sight="x")
        weights = pmd.observe.bias_weights(modes, bias, table, config, smoothing=4.0)
        moved = pmd.observe.redshift_space(solution.particles, table, config)
        galaxies = pmd.observe.tracer_density(moved, weights, config)
        rate = pmd.observe.expected_counts(galaxies, config, number_density=0.1, selection=weight)
        interlaced = pmd.observe.interlaced_density(moved, config, weights=weights)
        survey = pmd.observe.weighted_overdensity(interlaced, weight, config)
        survey = pmd.observe.power_multipoles(survey, config).power
        interlaced = pmd.observe.interlaced_density(solution.particles, config)
        three = pmd.observe.bispectrum(interlaced, config, edges=shells).bispectrum
        fields = pmd.density(solution.particles, fine)[None], pmd.observe.momentum_field(solution.particles, fine, a=1)
        return solution.accumulated, poles.power, rate, survey, three, jnp.concatenate(fields)

    weight = np.interp(np.arange(8) * 4, [0, 32], [1, 0.25])[None, None, :] * MASK.astype(float)
    shells, fine = pmd.observe.bispectrum_edges(config, 2), replace(config, mesh_shape=(16, 8, 12))
    mass, poles, rate, survey, three, (density, *momentum) = run(
        pmd.white_noise(jax.random.key(simulation.seed), config)
    )
    with h5py.File(whole.folder / "light_cone.hdf5") as file:
        np.testing.assert_allclose(file["mass"][:], mass, rtol=1e-9, atol=1e-9)
        assert tuple(file.attrs["edges"]) == edges
    check_fields(whole.folder / "fields_z0.000.hdf5", density, momentum)
    found = read_table(whole.folder / "multipoles_z0.000.csv")
    np.testing.assert_allclose(found["shot noise"], 4**3)
    galaxies = read_table(whole.folder / "galaxies_z0.000.csv")
    note = (whole.folder / "galaxies_z0.000.csv").read_text().splitlines()[1]
    assert "P0 holds no shot noise" in note and "of counts it is the cell_noise of power_multipoles" in note
    assert "mask convolve the power, and not its linear theory" in note
    assert len(found["k"]) == 3  # to 0.95 of the Nyquist frequency, which the fourth bin has
    assert len(galaxies["k"]) == 2
    for pole, row, seen in zip((0, 2, 4), poles, survey, strict=True):
        np.testing.assert_allclose(found[f"P{pole}"], row[:3], rtol=1e-6)
        np.testing.assert_allclose(galaxies[f"P{pole}"], seen[:2], rtol=1e-6)
    np.testing.assert_allclose(galaxies["shot noise"], 10 * weight.mean() / np.mean(weight**2), rtol=1e-6)
    triangles = read_table(whole.folder / "bispectrum_z0.000.csv")
    np.testing.assert_allclose(triangles["B"], three[np.asarray(three) != 0], rtol=1e-6)
    assert (triangles["tree level"] > 0).all()
    cross = read_table(whole.folder / "cross_z0.000.csv")
    assert cross["r"][0] > 0.9
    assert (np.abs(cross["r"]) <= 1 + 1e-6).all()
    with h5py.File(whole.folder / "counts_z0.000.hdf5") as file:
        counts = file["counts"][:]
        np.testing.assert_allclose(file["selection"][:], weight, rtol=1e-6)
    assert counts.dtype == np.int32
    assert (counts[MASK == 0] == 0).all()
    # Sums of 64 cells are Poisson numbers: 3.5 sigma of each.
    along, expected = counts.sum((0, 1)), np.asarray(rate).sum((0, 1))
    assert (np.abs(along - expected) < 3.5 * np.sqrt(expected)).all()


def test_errors_of_multipoles_are_those_of_the_modes(whole: SimulationJob):
    found = read_table(whole.folder / "multipoles_z0.000.csv")
    waves = np.stack(np.meshgrid(*[2 * np.pi * np.fft.fftfreq(8, 4.0)] * 3, indexing="ij")).reshape(3, -1)[:, 1:]
    modulus, rate = np.linalg.norm(waves, axis=0), float(pmd.growth_rate(1.0, whole.simulation.cosmo))
    for i, power in enumerate(found["P0"]):
        mu = (waves[0] / modulus)[np.rint(modulus / modulus.min()) == i + 1]
        of_mu = power * (1 + rate * mu**2) ** 2 / np.mean((1 + rate * mu**2) ** 2)
        for pole, legendre in ((0, 1), (2, 5 * (1.5 * mu**2 - 0.5)), (4, 9 / 8 * (35 * mu**4 - 30 * mu**2 + 3))):
            expected = np.sqrt(2 * np.mean((of_mu * legendre) ** 2) / len(mu))
            np.testing.assert_allclose(found[f"error of P{pole}"][i], expected, rtol=1e-4)


def test_the_catalogue_of_galaxies(whole: SimulationJob):
    with h5py.File(whole.folder / "catalogue_z0.000.hdf5") as file:
        assert abs(len(file["Position"]) - 0.1 * 32**3) < 5 * np.sqrt(0.1 * 32**3)
        assert file["Velocity"].attrs["unit"] == "km/s"
        assert file.attrs["line_of_sight"] == "z"


def test_halos(whole: SimulationJob):
    table = read_table(whole.folder / "halos_z0.000.csv")
    with h5py.File(whole.folder / "halos_z0.000.hdf5") as file:
        number, mass = file["halo_particles"][:], file["halo_m200m"][:]
        assert file["halo_m200m"].attrs["unit"] == "Msun/h"
        assert file["halo_mfof"][0] == pytest.approx(number[0] * file.attrs["particle_mass [Msun/h]"])
    with h5py.File(whole.folder / "halos_z0.000.swift.hdf5") as file:
        np.testing.assert_array_equal(file["Groups/Sizes"], number)
    assert table["halos"].sum() == (mass > 0).sum()
    assert number.min() >= 3
    simulation = whole.simulation
    fit = pmd.observe.tinker_mass_function(table["mass"], simulation.linear_power, simulation.cosmo, 1.0)
    np.testing.assert_allclose(table["Tinker 2008"], fit, rtol=1e-6)


def test_large_numbers_of_float16_have_a_scale(tmp_path: Path):
    fields, config = Fields(precision="float16", compression="zstd"), pmd.Config(32.0, 8, decomposition=(1, 1))
    densities = 2e5 + np.arange(512.0).reshape(8, 8, 8)
    with h5py.File(tmp_path / "fields.hdf5", "w") as file:
        fields._write(file, "density", (), jnp.asarray(densities), densities.max(), config)
        assert file["density"].attrs["scale"] == 4
        np.testing.assert_allclose(file["density"][:] * file["density"].attrs["scale"], densities, rtol=1e-3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("observe.fields.mesh=30", r"observe.fields.mesh = 30 along x: is not divisible by 4 .*; use 28 or"),
        ("observe.halos={light_cone=1.0, observer=[0, 0, 65]}", "observe.halos.observer: must lie in the box of 64"),
        ("observe.halos.light_cone=1.0", "observe.halos.light_cone = 1.0: take 456533 repetitions of a box"),
    ],
)
def test_keys_that_do_not_fit_the_simulation_are_refused(tmp_path: Path, override: str, words: str):
    file = tmp_path / "run.toml"
    file.write_text(f"{MINIMAL}[devices]\npdims = [4, 1]\n")
    with pytest.raises(SettingsError, match=words):
        SimulationJob.of(read(file, ["output.redshifts=[1, 0]", override]), tmp_path / "out")


def test_halos_of_a_small_box_repeat_it_on_a_light_cone_alone(tmp_path: Path):
    make(tmp_path / "run", "box.size=5", "observe.halos={}")


def test_redshifts_after_today_keep_their_sign():
    nothing: Any = None
    views = [View(*[nothing] * 4, a=a, z=0.0, data={}, density=None) for a in (1 / 0.8, 1 + 1e-7)]
    assert [view.title for view in views] == ["z = -0.2", "z = 0"]


def test_halos_on_the_light_cone_are_those_of_all_catalogues(tmp_path: Path):
    simulation, rng, catalogues = make(tmp_path / "run").simulation, np.random.default_rng(0), []
    for label, a in {"z0.000": 1.0, "z0.084": 1 / 1.0836, "z0.100": 1 / 1.1}.items():  # files have rounded redshifts
        names = [f"halo_{kind}{axis}" for kind in ("", "core_", "v") for axis in "xyz"]
        columns = {name: rng.uniform(0, 32, 20) for name in names} | {"halo_particles": np.arange(20)}
        about = {"a": a, "z": 1 / a - 1, "box_size [Mpc/h]": simulation.config.box_size}
        catalogues.append(pmd.observe.HaloCatalogue(columns, dict.fromkeys(columns, "Mpc/h"), about))
        catalogues[-1].write(tmp_path / f"halos_{label}.hdf5")
        (tmp_path / f"halos_{label}.csv").touch()
    output = Halos(light_cone=0.0836, observer=(1.0, 2.0, 3.0))
    output.write_last(tmp_path, simulation, None, None)
    found = pmd.observe.halo_light_cone(catalogues[:2], simulation.cosmo, simulation.config, observer=(1, 2, 3))
    with h5py.File(tmp_path / output.last_names()[0]) as file:
        assert file["halo_vx"].attrs["unit"] == "Mpc/h"
        for name, values in found.columns.items():
            np.testing.assert_array_equal(file[name], values)


def test_the_fit_of_a_table_of_the_power_is_finite(tmp_path: Path):
    linear_power(tmp_path / "p.txt")
    simulation, mass = make(tmp_path / "run", "cosmology.linear_power=p.txt").simulation, np.geomspace(1e11, 1e15, 5)
    power = lambda k: jnp.where((k > 1e-3) & (k < 10), simulation.linear_power(k), 0)  # noqa: E731
    expected = pmd.observe.tinker_mass_function(mass, power, simulation.cosmo, 0.5)
    np.testing.assert_allclose(fit_of(mass, simulation, 0.5), expected)


def test_lensing_of_bins_of_sources_and_galaxies(whole: SimulationJob):
    """Maps and spectra are those of the library, for the masses and the galaxies of the run."""
    simulation, edges = whole.simulation, (0.0, 64.0, 200.0)
    table = pmd.growth_table(simulation.cosmo)
    cone = pmd.observe.FlatSkyLightCone(simulation.config, edges, pixels=8, observer=5.0)
    with h5py.File(whole.folder / "light_cone.hdf5") as file:
        bins = [(np.array([0.02, 0.03, 0.04]), np.ones(3)), (NZ[0], NZ[2])]
        kappa, gamma = file["convergence"][:], file["shear"][:]
        view = {"field": 10.0, "pixels": 4}
        np.testing.assert_array_equal(LightCone().view(cone)["offsets"], offsets_of(cone))
        functions = pmd.observe.convergence, pmd.observe.shear
        see = [partial(f, cosmo=table, cone=cone, source=bins, **view) for f in functions]
        expected = jax.jit(lambda mass: [f(mass) for f in see])(jnp.asarray(file["mass"][:]))
        for found, values in zip((kappa, gamma), expected, strict=True):
            np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(file.attrs["n(z) of bin 2"], [NZ[0], NZ[2]])
    found = read_table(whole.folder / "convergence_power.csv")
    assert "a slope of counts of 0.9" in (whole.folder / "convergence_power.csv").read_text()
    spectrum = pmd.observe.angular_power(jnp.asarray(kappa[0]), jnp.asarray(kappa[1]), side=10.0)
    some = np.asarray(spectrum.modes) > 0
    np.testing.assert_allclose(found["C_l bin 1 x bin 2"], spectrum.power[some], rtol=1e-6)
    auto, other = found["C_l bin 1"], found["C_l bin 2"]
    scatter = np.sqrt((auto * other + spectrum.power[some] ** 2) / found["modes"])
    np.testing.assert_allclose(found["error bin 1 x bin 2"], scatter, rtol=1e-6)

    survey = pmd.observe.Survey(([0.0, 0.02], [0.2, 0.1]), mask=SKY, completeness=0.8)
    with h5py.File(whole.folder / "galaxies.hdf5") as file:
        columns = {name: values[:] for name, values in file.items()}
    maps = pmd.observe.galaxy_maps(columns, survey, table, cone, [0.004, 0.012, 0.02], field=10.0, pixels=4)
    with h5py.File(whole.folder / "light_cone.hdf5") as file:
        own = jax.jit(partial(pmd.observe.convergence, cosmo=table, cone=cone, source=maps.n_z, **view))
        magnified = 2.5 * maps.seen * np.asarray(own(jnp.asarray(file["mass"][:])))
        assert np.abs(magnified).max() > 1e-6 and file.attrs["magnification"] == 0.9
        np.testing.assert_allclose(file["galaxies"][:], maps.overdensity + magnified, rtol=1e-9)
        np.testing.assert_array_equal(file["seen"][:], maps.seen)
    delta, share = jnp.asarray(maps.overdensity + magnified), np.mean(maps.seen)
    cross = np.asarray(pmd.observe.angular_power(jnp.asarray(kappa[1]), delta[0], side=10.0).power)[some] / share
    own = np.asarray(pmd.observe.angular_power(delta[0], side=10.0).power)[some] / np.mean(maps.seen**2)
    noise = maps.shot_noise[0] / np.mean(maps.seen**2)
    np.testing.assert_allclose(found["C_l bin 2 x galaxies 1"], cross, rtol=1e-6)
    np.testing.assert_allclose(found["C_l galaxies 1"], own - noise, rtol=1e-6, atol=1e-6 * noise)
    np.testing.assert_allclose(found["shot noise galaxies 1"], noise, rtol=1e-6)
    scatter = np.sqrt((other * own + cross**2) / found["modes"] * np.mean(maps.seen**2) / share**2)
    np.testing.assert_allclose(found["error bin 2 x galaxies 1"], scatter, rtol=1e-6)
    samples = [(*n_z, lambda k: 1 + 0.5 * jnp.exp(-8 * k**2), 0.9) for n_z in maps.n_z]
    given = spectrum.ell[some], simulation.linear_power, table, edges, bins
    linear = pmd.observe.limber_power(*given, galaxies=samples, cone=cone, pixel=2.5)
    for name, pair in {
        "bin 1 x bin 2": (0, 1),
        "bin 2 x galaxies 1": (1, 2),
        "galaxies 1 x galaxies 2": (2, 3),
    }.items():
        np.testing.assert_allclose(found[f"linear {name}"], linear[pair], rtol=1e-6, atol=1e-12)
    assert (linear[1, 2] > 0).any()


def test_a_halo_that_redshifts_leave_is_named(tmp_path: Path) -> None:
    plan = make(
        tmp_path / "run",
        "output.redshifts=0",
        "output.snapshot=none",
        "observe.multipoles.line_of_sight=y",
        "devices.pdims=[1, 2]",
        "devices.halo=3",
    )
    words = r"displacements of (\S+) cells, .* exceed devices.halo = 3; .*, or to (\d+) cells"
    with pytest.raises(SimulationError, match=words) as error:
        execute(plan, Events())
    found = re.search(words, str(error.value))
    assert found is not None and 3 < float(found[1]) < float(found[2]) < float(found[1]) + 2


def test_the_galaxies_of_the_light_cone(whole: SimulationJob, tmp_path: Path):
    """They are those of the library, and a resumed run keeps their survey."""
    simulation, config = whole.simulation, whole.simulation.config
    table, bias = pmd.growth_table(simulation.cosmo), pmd.observe.LagrangianBias(b1=0.5)
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(simulation.seed), config), table, config)
    survey = pmd.observe.Survey(([0.0, 0.02], [0.2, 0.1]), mask=SKY, completeness=0.8)
    found = pmd.observe.galaxy_light_cone(
        pmd.lpt(modes, table, config),
        table,
        config,
        survey,
        key=jax.random.fold_in(jax.random.key(simulation.seed), 1),
        weights=lambda a: pmd.observe.bias_weights(modes, bias, table, config, smoothing=4.0, a=a),
        observer=(0, 0, 5),
    )
    with h5py.File(whole.folder / "galaxies.hdf5") as file:
        assert abs(len(found) - survey.number(table)) < 0.5 * survey.number(table)
        for name, values in found.columns.items():
            np.testing.assert_allclose(file[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
        assert file["RA"].attrs["unit"] == "deg"
    (cone,) = (output for output in whole.results if isinstance(output, GalaxyCone))
    assert cone.disk(simulation, 1) == pytest.approx(48 * survey.number(table), abs=1)  # a third of the whole sky's
    with pytest.raises(StartError, match=r"observe.galaxies.completeness = 1.0: .* has 0.8"):
        execute(
            replace(whole, settings=read(whole.folder / "config.toml", ["observe.galaxies.completeness=1.0"])), Events()
        )


def test_counts_have_the_power_of_the_table(tmp_path: Path):
    """Or are refused, and the smoothing of the message mends it."""
    galaxies = "observe.galaxies={b1=0.5, number_density=1e-4, redshift_space=false}"
    plan = make(tmp_path / "run", "output.redshifts=0", "output.snapshot=none", galaxies)
    (said,) = re.findall(r"of about ([\d.]+) % of the particles .*smoothing = (\d+), or", "\n".join(plan.check()))
    simulation = plan.simulation
    modes = modes_of(simulation)
    weights = pmd.observe.bias_weights(modes, pmd.observe.LagrangianBias(b1=0.5), simulation.cosmo, simulation.config)
    negative = 100 * np.mean(np.asarray(weights) < 0)
    np.testing.assert_allclose(float(said[0]), negative, rtol=0.1)
    smooth = [f"observe.galaxies={{b1=0.5, number_density=1e-4, smoothing={said[1]}}}"]
    assert "negative" not in "\n".join(make(tmp_path / "smooth", "output.snapshot=none", *smooth).check())
    with pytest.raises(SimulationError, match=r"galaxies at z = 0: 1 \+ delta_g is negative in 16 % of the ") as error:
        execute(plan, Events())
    table = read_table(plan.folder / "galaxies_z0.000.csv")
    np.testing.assert_allclose(table["shot noise"], 1e4)
    np.testing.assert_allclose(table["error of P0"], (table["P0"] + 1e4) * np.sqrt(2 / table["modes"]), rtol=0.02)
    (advice,) = re.findall(r"set (observe.galaxies.smoothing) = ([\d.]+),", str(error.value))
    execute(resumed(plan.folder, "=".join(advice), "observe.galaxies.number_density=1e3"), Events(), resume=True)
    with h5py.File(plan.folder / "counts_z0.000.hdf5") as file:
        counts = file["counts"][:] / (1e3 * 4**3)
        assert file["counts"].attrs["window"] == "cloud-in-cell"
    np.testing.assert_allclose(counts.mean(), 1, atol=3.5 / np.sqrt(1e3 * 32**3))
    table = read_table(plan.folder / "galaxies_z0.000.csv")
    noise = table["shot noise"][0]  # the window of the counts is divided out, which their noise does not have
    power = pmd.power_spectrum(counts, plan.simulation.config, cell_noise=noise).power
    np.testing.assert_allclose(power[:2], table["P0"][:2], rtol=0.04)
