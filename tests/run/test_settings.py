"""The TOML file: what is read from it, and every way in which it may be wrong."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax_cosmo
import numpy as np
import pytest
from runs import read

import pmwd_dist as pmd
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.linear_power import sigma_R
from pmwd_dist.parallel import autotune as tuner
from pmwd_dist.parallel.backends.peer import Peer
from pmwd_dist.run.settings import InferenceSettings, SettingsError, SimulationSettings, build, read_any, to_toml
from pmwd_dist.run.settings.template import template

SIMS = Path(__file__).parents[2] / "sims"
MINIMAL = "[box]\nsize = 64\nmesh = 16\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    return path


def problems(path: Path, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        build(read(path, overrides))
    return caught.value.problems


def table(path: Path, low: float = 1e-3, high: float = 10.0, count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    k = np.geomspace(low, high, count)
    power = 2e4 * (k / 0.02) / (1 + (k / 0.02) ** 2) ** 1.4
    np.savetxt(path, np.stack([k, power], -1), header="k [h/Mpc]  P [(Mpc/h)^3]")
    return k, power


@pytest.mark.parametrize("path", sorted(SIMS.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_are_valid(path: Path):
    settings = read_any(path)
    config = build(settings).config
    assert isinstance(settings, InferenceSettings) or config.mesh_shape[0] >= 64
    assert "memory" in path.read_text().splitlines()[0]


def test_only_the_box_is_required(file: Path):
    settings = read(file)
    assert settings.box.size == (64.0, 64.0, 64.0)
    assert settings.box.mesh == (16, 16, 16)
    assert settings.scale_factors == (1.0,)
    config = build(settings).config
    assert config.particle_shape == (16, 16, 16)
    assert config.steps == 20


def test_template_is_valid_and_says_the_defaults(tmp_path: Path):
    path = tmp_path / "template.toml"
    path.write_text(template())
    settings = read(path)
    assert to_toml(settings, comments=True) == template()
    assert settings.time == read(path, ["box.size=1"]).time


def test_written_settings_read_back_the_same(file: Path, tmp_path: Path):
    overrides = [
        "box.mesh=[16, 24, 32]",
        "box.particles=8",
        "time.solver=leapfrog",
        "devices.halo=7",
        "force.compensated=true",
        "devices.pdims=[2, 2]",
        "output.redshifts=[2, 0.5]",
        "output.snapshot=none",
        "cosmology.omega_k=1e-3",
        "output.checkpoint_every=10 min",
    ]
    settings = read(file, overrides)
    again = tmp_path / "again.toml"
    again.write_text(to_toml(settings))
    assert read(again) == settings
    assert settings.output.snapshot == "none"
    assert settings.scale_factors == (1 / 3, 1 / 1.5)


def test_override_takes_the_type_of_its_key(file: Path):
    settings = read(file, ["box.mesh=[32,32,64]", "box.size=500", "time.solver = fastpm", 'force.gradient="spectral"'])
    assert settings.box.mesh == (32, 32, 64)
    assert settings.box.size == (500.0, 500.0, 500.0)
    assert settings.time.solver == "fastpm"
    assert settings.force.gradient == "spectral"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("box.size=-3", ["box.size = -3", "must be 1e-06 or more", "256"]),
        ("box.size=nan", ["box.size = nan", "finite"]),
        ("box.size=inf", ["box.size = inf", "finite"]),
        ("box.size=big", ['box.size = "big"', "number"]),
        ("box.size=[1, 2]", ["box.size", "one number or three"]),
        ("box.mesh=100.5", ["box.mesh = 100.5", "whole number"]),
        ("box.mesh=true", ["box.mesh = true", "whole number"]),
        ("box.mesh=0", ["box.mesh = 0", "4 or more"]),
        ("box.mesh=[16,16,2]", ["box.mesh = [16, 16, 2]", "4 or more"]),
        ("time.a_start=0", ["time.a_start = 0", "0.001 or more"]),
        ("time.a_start=1", ["time.a_stop = 1.0", "greater than time.a_start = 1"]),
        ("time.a_stop=0.05", ["time.a_stop = 0.05", "greater than time.a_start = 0.1"]),
        ("time.a_stop=2.5", ["time.a_stop = 2.5", "2 or less"]),
        ("time.steps=0", ["time.steps = 0", "1 or more"]),
        ("time.steps=2.5", ["time.steps = 2.5", "whole number"]),
        ("time.solver=bulfrog", ["time.solver", 'for example "bullfrog"']),
        ("time.lpt_order=4", ["time.lpt_order = 4", "must be 3 or less"]),
        ("time.lpt_order=true", ["time.lpt_order = true", "must be a whole number"]),
        ("cosmology.omega_m=-0.3", ["cosmology.omega_m = -0.3", "greater than 0"]),
        ("cosmology.omega_b=0.4", ["cosmology.omega_b = 0.4", "less than cosmology.omega_m"]),
        ("cosmology.sigma8=nan", ["cosmology.sigma8 = nan", "finite"]),
        ("cosmology.w_table=[[0.3, -1], [1, 40]]", ["cosmology.w_table", "must be 5 or less"]),
        ("cosmology.w_table=[[0.3, -1], [1e300, -1]]", ["cosmology.w_table", "must be 1e+06 or less"]),
        ("cosmology.f_nl=1e300", ["cosmology.f_nl", "must be 1e+06 or less"]),
        ("observe.galaxies.smoothing=1e300", ["observe.galaxies.smoothing", "100000 or less"]),
        ("observe.galaxies.b1=1e30", ["observe.galaxies.b1", "10000 or less"]),
        ("observe.light_cone.field=1e-320", ["observe.light_cone.field", "0.001 or more"]),
        ("observe.light_cone.nside=64", ['observe.light_cone.nside: has no effect with sky = "flat"; leave it out']),
        ("cosmology.omega_m=1.2", ["[cosmology]: all but stops expanding at a = 1.79, with Omega_m=1.2, Omega_k=0"]),
        ("cosmology.wa=1.5", ["cosmology.wa = 1.5", "less than 1"]),
        ("cosmology.linear_power=boltzman", ["cosmology.linear_power", "no such file", "boltzmann, eisenstein-hu"]),
        ("cosmology.normalise=true", ["cosmology.normalise", "needs cosmology.linear_power"]),
        ("noise.seed=-1", ["noise.seed = -1", "0 or more"]),
        ("noise.seed=4294967296", ["noise.seed", "less than"]),
        ("force.gradient=finite", ["force.gradient", 'must be "finite-difference" or "spectral"']),
        ("devices.pdims=[2]", ["devices.pdims", "right length"]),
        ("devices.pdims=[8, 1]", ["devices.pdims", "8 devices", "there are 4"]),
        ("devices.halo=-1", ["devices.halo = -1", "auto"]),
        ("output.redshifts=20", ["output.redshifts", "outside the time span"]),
        (f"output.redshifts={[*range(20, 520)]}", ["output.redshifts", ": 20, 21, 22 and 497 more outside the"]),
        ("output.redshifts=[]", ["output.redshifts", "one value or more"]),
        ("output.redshifts=[0, 0.0001]", ["output.redshifts", "0.001"]),
        ("output.snapshot=gadgt", ["output.snapshot", '"gadget"']),
        ("output.slice_thickness=-1", ["output.slice_thickness = -1", "0 or more"]),
        ("output.checkpoint_every=-1", ["output.checkpoint_every = -1", "a duration"]),
        ("output.checkpoint_every=soon", ['output.checkpoint_every = "soon"', "a duration"]),
        ("output.checkpoint_every=1.5", ["output.checkpoint_every = 1.5", "whole number of steps"]),
        ("box.sise=3", ["box.sise = 3", "did you mean box.size?"]),
        ("cosmology.Omega_c=0.26", ["unknown key; use omega_m, of cold matter and baryons, and omega_b, each per"]),
        ("cosmology.A_s=2.1", ["cosmology.A_s = 2.1", "less than 1e-07", "2.1e-09"]),
        ("box.omega_m=0.3", ["box.omega_m", "did you mean cosmology.omega_m?"]),
        ("box.ngrid=8", ["box.ngrid", "[box] has size, mesh, particles"]),
        ("time.nsteps=8", ["time.nsteps", "did you mean time.steps?"]),
        ("output.every=8", ["output.every", "[output] has redshifts, snapshot, "]),
        ("time.redshift=1", ["time.redshift", "did you mean output.redshifts?"]),
        ("boks.size=3", ["[boks]", "did you mean [box]?"]),
        ("size=3", ["--set size=3", "section.key=value"]),
        ("box..size=3", ["--set box..size=3", "section.key=value"]),
        ("box.size.x=3", ["--set box.size.x=3: box.size is no section"]),
        ("output.a.b=3", ["output.a = { b = 3 }: unknown key"]),
        ("output.redshifts=[1,2", ["--set output.redshifts=[1,2: not valid TOML: Unclosed array", "write 0.5, or"]),
        ("output.redshifts=[1,,2]", ["--set output.redshifts=[1,,2]: not valid TOML: Invalid"]),
        ('time.solver="leapfrog', ['--set time.solver="leapfrog: not valid TOML: Unterminated string']),
        ("box.size=.5", ["--set box.size=.5: not valid TOML: Invalid value"]),
    ],
)
def test_a_bad_value_is_one_line_with_path_value_and_remedy(file: Path, override: str, words: list[str]):
    (problem,) = problems(file, override)
    for word in words:
        assert word in problem
    assert "\n" not in problem


def test_compensated_forces_are_for_finite_differences(file: Path):
    (problem,) = problems(file, "force.gradient=spectral", "force.compensated=true")
    assert 'force.compensated = true: is for force.gradient = "finite-difference"' in problem


def test_all_problems_come_at_once(file: Path):
    found = problems(
        file, "box.size=-1", "time.steps=0", "cosmology.h=inf", "cosmology.linear_power=x", "nosie.seed=1", "box.mesg=8"
    )
    text = "\n".join(found)
    for path in ("box.size", "time.steps", "cosmology.h", "[nosie]", "box.mesg"):
        assert path in text


def test_missing_keys_are_named(tmp_path: Path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    found = problems(path)
    assert [line.split(":")[0] for line in found] == ["box.size", "box.mesh"]
    assert all("add for example" in line for line in found)


@pytest.mark.parametrize("text", ["box = 3", "[box\nsize = 3", "size = = 3", "\x00"])
def test_broken_files_fail(tmp_path: Path, text: str):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    assert problems(path)


def test_binary_and_absent_files_fail(tmp_path: Path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in problems(path)[0]
    assert "no such file" in problems(tmp_path / "absent.toml")[0]
    assert problems(tmp_path)


def test_mesh_that_does_not_divide_or_suit_the_particles_names_the_remedy(file: Path):
    (problem,) = problems(file, "devices.pdims=[4, 1]", "box.mesh=18")
    assert problem.startswith("box.mesh = 18 along x: is not divisible by 4 ")
    assert "16 or 20" in problem
    (problem,) = problems(file, "box.mesh=20", "box.particles=16")
    assert problem.startswith("box.mesh = 20 along x: with 16 particles along this axis gives wrong forces")
    assert problem.endswith("use 16 or 24")
    (problem,) = problems(file, "box.mesh=[15, 15, 16]")
    assert problem.startswith("box.mesh = [15, 15, 16]: can't be divided over 4 devices")


def test_gadget_needs_a_cube(file: Path):
    (problem,) = problems(file, "box.size=[64, 64, 32]")
    assert 'use "swift"' in problem
    read(file, ["box.size=[64, 64, 32]", "output.snapshot=swift"])


def test_table_is_found_beside_the_file_and_used(file: Path):
    k, power = table(file.parent / "p.txt")
    simulation = build(read(file, ["cosmology.linear_power=p.txt"]))
    np.testing.assert_allclose(simulation.linear_power(k[5:-5]), power[5:-5], rtol=1e-6)
    assert np.isnan(simulation.linear_power(np.array([1e-4, 20.0]))).all()


def test_correction_of_the_force_is_for_its_particles(file: Path):
    path = file.parent / "force.json"
    (problem,) = problems(file, "force.correction=force.json")
    assert problem == f'force.correction = "{path}": no such file; give a path relative to the TOML file'
    path.write_text("{}")
    (problem,) = problems(file, "force.correction=force.json")
    assert problem == f'force.correction = "{path}": is not a file of ForceCorrection.save'
    size = read(file).box.size[0] / read(file).box.mesh[0]
    pmd.ForceCorrection(size, np.full((9, 5), 0.1)).save(path, seeds=[1, 2])
    assert build(read(file, ["force.correction=force.json"])).potential_factor.spacing == size
    (problem,) = problems(file, "force.correction=force.json", f"box.size={1.5 * read(file).box.size[0]}")
    assert f"is for particles {size:g} Mpc/h apart, and here are particles {1.5 * size:.3g} Mpc/h apart" in problem
    (problem,) = problems(file, "force.correction=auto", "box.size=480", "time.steps=20")
    words = "none was trained for particles 30 Mpc/h apart, 1 cell a particle, 20 steps, 3LPT until a = 0.1"
    assert f'force.correction = "auto": {words}; the nearest one is for particles 4 Mpc/h ' in problem


def test_a_run_has_the_correction_that_was_trained_for_it_by_default(file: Path):
    def correction(*options: str) -> pmd.ForceCorrection | None:
        fits = ["box.size=32", "box.mesh=16", "box.particles=8", "time.lpt_order=3", "time.steps=20"]
        return build(read(file, [*fits, "time.a_start=0.1", *options])).potential_factor

    assert (found := correction()) is not None
    assert (found.spacing, found.cells) == (4, 2)
    others = "force.correction=none", "force.gradient=spectral", "time.solver=fastpm", "time.lpt_order=2"
    for option in (*others, "cosmology.sigma8=1.1", "box.size=64"):
        assert correction(option) is None
    table(file.parent / "p.txt")
    assert correction("cosmology.linear_power=p.txt") is None
    coarse = "box.size=64", "box.particles=16"
    assert correction(*coarse) is None  # it spends phases: for those who ask
    assert correction("force.correction=auto", *coarse).cells == 1
    with pytest.raises(SettingsError, match="none was trained for"):
        correction("force.correction=auto", "box.size=64")


def test_table_can_be_normalised_to_sigma8(file: Path):
    table(file.parent / "p.txt", 1e-4, 50.0, 512)
    overrides = ["cosmology.linear_power=p.txt", "cosmology.normalise=true", "cosmology.sigma8=0.7"]
    simulation = build(read(file, overrides))
    sigma8 = sigma_R(8.0, lambda k: np.nan_to_num(simulation.linear_power(np.asarray(k))))
    assert float(sigma8) == pytest.approx(0.7, rel=1e-4)


@pytest.mark.parametrize("ends", [(0.03, 50.0), (0.06, 50.0), (1e-4, 1.0)])
def test_a_table_too_short_for_sigma8_is_not_normalised(file: Path, ends: tuple[float, float]):
    table(file.parent / "p.txt", *ends)
    overrides = ["box.size=100", "cosmology.linear_power=p.txt", "cosmology.normalise=true"]
    with pytest.raises(
        SettingsError, match=r"^cosmology.normalise = true: .* covers k=.* sigma8 needs 0.01.*\.\..*; use a longer"
    ):
        build(read(file, overrides))
    build(read(file, overrides[:-1]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0.1 1\n0.2 2\n0.15 3\n", "not sorted"),
        ("0.001 1\n10 -2\n", "positive"),
        ("0.001 1\n10 nan\n", "finite"),
        ("0.001 1\nten 2\n", "numbers"),
        ("0.001\n10\n", "has 1 column"),
        ("# k P\n", "no data"),
        ("0.001 1\n10\n", "numbers"),
        ("0.5 1\n10 2\n", "covers k=0.5..10"),
        ("0.001 1\n0.8 2\n", "covers k=0.001..0.8"),
        ("0.001 1\n10 2\n", "goes from k = 0.001 to 10 in one row, at k = 0.001 h/Mpc; use finer rows: k may change"),
    ],
)
def test_bad_tables_fail(file: Path, content: str, words: str):
    (file.parent / "p.txt").write_text(content)
    (problem,) = problems(file, "cosmology.linear_power=p.txt")
    assert problem.startswith(f'cosmology.linear_power = "{file.parent / "p.txt"}": ')
    assert words in problem
    assert "\n" not in problem


def test_table_must_reach_the_corner_of_the_nyquist_cube(file: Path):
    nyquist = np.pi * 16 / 64
    table(file.parent / "p.txt", 1e-3, 1.5 * nyquist)
    (problem,) = problems(file, "cosmology.linear_power=p.txt")
    assert "box needs" in problem
    table(file.parent / "p.txt", 1e-3, 1.8 * nyquist)
    assert isinstance(read(file, ["cosmology.linear_power=p.txt"]), SimulationSettings)


def test_a_file_takes_the_backend_that_was_measured_unless_it_names_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"pdims": [4, 1], "backend": "xla", "key": {"backends": ["peer", "xla"]}}
    monkeypatch.setattr(tuner, "_find", lambda key: record)
    monkeypatch.setattr(Peer, "unavailable_reason", lambda self, division: None)

    def backend(*overrides: str) -> str:
        return build(read(file, overrides)).config.decomposition.backend.name

    assert backend() == "xla"
    assert backend("devices.backend=peer") == "peer"
    assert backend("devices.backend=cudecomp") == "cudecomp"
    record["backend"] = "peer"
    assert backend() == "peer"


def test_config_files_have_the_defaults_of_python() -> None:
    python = inspect.signature(pmd.Config).parameters
    sections = [SimulationSettings.sections[name].model_fields for name in ("time", "force", "devices")]
    shared = [(key, field.default) for fields in sections for key, field in fields.items() if key in python]
    assert {key for key, _ in shared} >= {"a_start", "a_stop", "steps", "lpt_order", "gradient", "compensated", "halo"}
    for key, default in shared:
        assert default == python[key].default, key


@pytest.mark.parametrize(
    ("low", "factor", "words"),
    [(1e-4, 1.05, "which is not used; k is in"), (0.03, 1.0, "its sigma8 can't be compared")],
)
def test_a_table_of_another_amplitude_is_named(file: Path, low: float, factor: float, words: str):
    given, k = build(read(file)), np.geomspace(low, 50, 512)
    np.savetxt(file.parent / "p.txt", np.stack([k, factor * given.linear_power(k)], -1))
    assert words in build(read(file, ["cosmology.linear_power=p.txt"])).power_warnings()[0]
    assert not given.power_warnings()


def test_a_cosmology_beyond_the_transfer_functions_is_named(file: Path):
    with pytest.warns(UserWarning, match="not compared with CAMB"):
        (warning,) = build(read(file, ["cosmology.omega_m=1.0"])).power_warnings()
    assert warning.startswith("[cosmology]: Omega_m h^2 = 0.459 is outside of 0.05 to 0.35")
    assert not build(read(file, ["cosmology.omega_m=1.0", "cosmology.linear_power=eisenstein-hu"])).power_warnings()


def test_a_table_of_w_takes_the_place_of_w0(file: Path):
    table = "cosmology.w_table=[[0.3, -0.8], [0.6, -0.95], [1.0, -1.0]]"
    settings = read(file, [table])
    assert "w_table = [[0.3, -0.8], [0.6, -0.95], [1.0, -1.0]]" in to_toml(settings)
    expected = pmd.with_dark_energy(build(read(file)).cosmo, [0.3, 0.6, 1.0], [-0.8, -0.95, -1.0])
    a = np.array([0.2, 0.5, 0.8])
    np.testing.assert_array_equal(pmd.growth(a, build(settings).cosmo), pmd.growth(a, expected))
    assert "cosmology.w0 = -0.9: has no effect beside" in problems(file, table, "cosmology.w0=-0.9")[0]
    assert "dark energy dominates early" in problems(file, "cosmology.w_table=[[0.5, 0.0], [1.0, -1.0]]")[0]
    falling = problems(file, "cosmology.w_table=[[1.0, -1.0], [0.5, -1.0]]")[0]
    assert "must be pairs whose first numbers ascend" in falling


def test_an_amplitude_sets_sigma8_and_a_name_the_transfer_function(file: Path):
    simulation = build(read(file, ["cosmology.A_s=2.142e-9", "cosmology.linear_power=boltzmann"]))
    assert simulation.sigma8 == pytest.approx(0.8159, rel=0.02)  # of Planck 2015, with massive neutrinos
    k = np.geomspace(1e-3, 10, 9)
    expected = pmd.linear_power(k, jax_cosmo.Planck15(sigma8=simulation.sigma8), "boltzmann")
    np.testing.assert_allclose(simulation.linear_power(k), expected, rtol=1e-3)


def test_neutrinos_are_a_part_of_omega_m(file: Path):
    cosmo: Any = build(read(file, ["cosmology.m_nu=0.3", "cosmology.omega_m=0.32"])).cosmo
    massive = pmd.with_neutrinos(cosmo, m_nu=0.3)
    assert massive.Omega_m == pytest.approx(0.32, rel=1e-6)
    assert massive.Omega_cb == cosmo.Omega_c + cosmo.Omega_b
    total = pmd.with_neutrinos(cosmo, m_nu=0.6, omega_m=0.33)
    assert total.Omega_m == pytest.approx(0.33, rel=1e-6)
    assert total.Omega_c == pytest.approx(float(0.33 - cosmo.Omega_b - total.Omega_nu), rel=1e-6)
    with pytest.raises(ArgumentError, match=r"omega_m=0\.05 is less than baryons and neutrinos, 0\.06"):
        pmd.with_neutrinos(cosmo, m_nu=0.6, omega_m=0.05)
    assert massive.Omega_nu == pytest.approx(0.3 / 93.1 / cosmo.h**2, rel=0.01)
    with pytest.raises(SettingsError, match=r"cosmology\.m_nu = 3\.0: is a density of 0\.07.*, and cosmology\.omega_m"):
        build(read(file, ["cosmology.m_nu=3.0", "cosmology.omega_m=0.1"]))
