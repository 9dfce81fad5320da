"""Settings of observables that can't be, and those that are warned of: one line before the run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from runs import make, read
from test_observables import SKY, with_mask
from test_settings import MINIMAL, problems

from pmwd_dist.run.common import resources
from pmwd_dist.run.settings import SettingsError
from pmwd_dist.run.simulation.job import SimulationJob

GALAXIES = "observe.galaxies={light_cone=true, n_z=[[0.1, 1e-3], [0.2, 1e-3]], redshift_bins=[0.1, 0.2]}"


def test_surveys_that_are_none_are_refused(tmp_path: Path):
    np.save(with_mask(tmp_path) / "dark.npy", 0 * SKY)
    np.save(tmp_path / "long.npy", np.ones(13))
    np.save(tmp_path / "south.npy", SKY[::-1] * (np.arange(12) > 7))
    for override, words in {
        "n_z=[[0.2, 1e-3], [0.1, 1e-3]]": "n_z: must have redshifts of 0 or more that ascend, and has 0.2, 0.1",
        "n_z=[[0.1, 1e-3], [12.0, 1e-3]]": "n_z: reaches from z = 0.1 to 12, beyond the simulation, z = 0 to 9",
        "n_z=[[0.1, 0.0], [0.2, 0.0]]": "n_z: has no galaxies",
        "n_z=[[0.1, 1e-3]]": "n_z: must hold as many redshifts as densities, 2 to",
        "sky=dark.npy": "sky: has no galaxies: it is 0 in every pixel",
        "sky=long.npy": "sky: must be a HEALPix map",
        "observer=[0, 0, 65]": "observer: must lie in the box",
        "n_z=[[0.01, 1e3], [0.0101, 1e3]]": "n_z: has up to 6.4e+04 galaxies at a particle, more than 50",
        "n_z=[[0.1, 1e-6], [5.0, 1e-9]]": "n_z: take 5177717 repetitions of a box of 64 x 64 x 64 Mpc/h",
        "redshift_bins=[0.1, 0.15, 0.2]": "observer: must be 0.0, where observe.light_cone has it",
        "redshift_bins=[0.1, 0.15, 0.2]; sky=south.npy": "sky: is 0 in the whole field of view",
        "redshift_bins=[0.1, 0.1000000001]": "redshift_bins: must each expect a galaxy, and one expects",
        "redshift_bins=[0.1, 0.05]": "redshift_bins: must ascend from 0 or more",
        "redshift_bins=[0.01, 0.05, 0.2]": "redshift_bins: must each hold redshifts of the survey, 0.1 to 0.2",
    }.items():
        file = tmp_path / "run.toml"
        file.write_text(f"{MINIMAL}[devices]\npdims = [1, 1]\n")
        given = ["observe.galaxies={light_cone=true, n_z=[[0.1, 1e-3], [0.2, 1e-3]]}", "observe.light_cone.shift=false"]
        given += [f"observe.galaxies.{key}" for key in override.split("; ")]
        with pytest.raises(SettingsError, match=re.escape(f"observe.galaxies.{words}")):
            SimulationJob.of(read(file, given), tmp_path / "out")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("observe.light_cone.observer=[0, 0, 65]", "observe.light_cone.observer.*must lie in the box of 64"),
        ("observe.light_cone.edges=[0, 1e5]", "observe.light_cone.edges.*beyond the light cone of the simulation"),
        ("observe.light_cone.edges=[5, 4]", "observe.light_cone.edges.*must ascend"),
        ("observe.light_cone.sources=12", "observe.light_cone.sources.*beyond the start of the run, z = 9"),
        ("observe.light_cone.bins=[{z=[0.1, 12.0], n=1}]", "observe.light_cone.bins.*beyond the start of the run"),
        ("observe.light_cone.sources=[1.0, 1.0]", r"sources = \[1.0, 1.0\]: must be different redshifts"),
        ("observe.light_cone={sources=1.0, bins=[{z=[0.1, 0.2], n=1}]}", "leave observe.light_cone.sources out"),
        ("observe.light_cone.bins=[{z=[0.1, 0.2], n=1}, {z=[0.1, 0.2]}]", r"bins\[1\] = .* must have z and n, or a"),
        ("observe.light_cone.bins=[{z=[0.2, 0.1], n=1}]", r"bins\[0\] = .*redshifts from 0 to 1000, which ascend"),
        ("observe.light_cone.bins=[{z=[0.1, 0.2], n=[1, 2, 3]}]", r"bins\[0\] = .*has wrong columns"),
        ("observe.light_cone.bins=[{z=[0.1, 0.2], n=[0, 0]}]", r"bins\[0\] = .*numbers of 0 or more, not all 0"),
        ("observe.light_cone.bins=[{z=[0.1, 0.2], m=1}]", r"bins\[0\] = .*has an unknown key, m;"),
        ("observe.light_cone.bins=[{file='none.txt'}]", r"bins\[0\] = .*has wrong columns: no such file"),
        ("observe.light_cone={sources=0.01, edges=[100, 200]}", "observe.light_cone.sources = 0.01.*nearer than"),
        ("observe.light_cone={sky='sphere', edges=[0, 4000]}", "observe.light_cone.edges.*repetitions of a box"),
        ("observe.light_cone.pixels=30", "observe.light_cone.pixels = .*not divisible by 4"),
        ("observe.light_cone.pixels=99999999999999999999", "observe.light_cone.pixels = .*must be 65536 or less"),
        ("observe.light_cone.nsid=30", "did you mean observe.light_cone.nside?"),
        ("observe.galaxies.b2=1", "observe.galaxies.smoothing: must be given: .*galaxies.b2 diverges on an unsmoothed"),
        ("observe.galaxies.bs3=1", "observe.galaxies.smoothing: must be given: .*galaxies.bs3 diverges"),
        ("observe.galaxies={number_density=1.0, selection=[[0, -0.1]]}", "selection.*must be 0 or more"),
        ("observe.galaxies={number_density=1.0, selection=[[0, 1.1]]}", "selection.*must be 1 or less"),
        ("observe.galaxies.selection=[[0, 1]]", "is for counts, which need observe.galaxies.number_density"),
        ("observe.galaxies.catalogue=true", "catalogue: needs observe.galaxies.number_density"),
        ("observe.galaxies.light_cone=true", "observe.galaxies.n_z: is needed on a light cone, light_cone = true"),
        ("observe.galaxies.redshift_bins=[0, 1]", "redshift_bins: has no effect without light_cone = true"),
        ("observe.galaxies.magnification=0.5", "magnification: has no effect without redshift_bins; leave it out"),
        (GALAXIES, r"galaxies.redshift_bins: need a section \[observe.light_cone\]"),
        (f"{GALAXIES} --set observe.light_cone={{}}", "redshift_bins: need observe.light_cone.shift = false"),
        ("observe.galaxies.number_density=1e5", "must be at most 1.56e.04: 6.4e.06 galaxies a cell are expected"),
        ("observe.galaxies={number_density=1e4, catalogue=true}", "at most 3.81e.03: 2.62e.09 galaxies in the"),
        ("observe.light_cone.line_of_sight=w", "line_of_sight = .w.: must be .x., .y. or .z."),
        ("observe.multipoles.k_max=2.0", r"multipoles.k_max = 2.0: must be 0.09817 to 0.7854 h/Mpc, .*a finer"),
        ("observe.galaxies.k_max=0.01", r"galaxies.k_max = 0.01: must be 0.09817 to 0.7854 h/Mpc, from the first mode"),
        ("observe.bispectrum.k_max=0.6", r"bispectrum.k_max = 0.6: must be 0.1388 to 0.5236 h/Mpc, .* 2/3 of the Nyq"),
        ("observe.bispectrum.shells=0", "bispectrum.shells = 0: must be 1 or more"),
        ("observe.bispectrum.triangles=right", "bispectrum.triangles = .right.: must be"),
        ("observe.halos.linking_length=2.0", "halos.linking_length = 2.0: must be 1 or less"),
        (
            "observe.halos.light_cone=0.5 --set time.a_stop=1.2 --set output.redshifts=[0, -0.1]",
            "halos.light_cone = 0.5: needs halos of two or more output.redshifts from 0 to it",
        ),
        (
            "observe.halos.light_cone=0.5 --set output.redshifts=[0.2, 0.0]",
            "halos.light_cone = 0.5: ends where halos do, at z = 0.2; take this redshift, or more output.redshifts",
        ),
        ("observe.halos.observer=[1, 2, 3]", "halos.observer: has no effect without a light_cone; leave it out"),
        ("observe.halos.min_particles=5000", "halos.min_particles = 5000: must be at most 4096, all particles"),
        ("observe.fields.quantities=[]", "fields.quantities = .*: must hold one name or more, each once"),
        ("observe.fields.precision=float64", "fields.precision = .float64.: must be .float16. or .float32."),
        ("observe.pdf.high=1e-3", "must be greater than observe.pdf.low = 0.01"),
        ("observe.lightcone={}", r"unknown section; did you mean \[observe.light_cone\]"),
        ("observe.light_cone=1", "observe.light_cone = 1: must be a section"),
        ("observe.pdf.a.b=1", "observe.pdf.a = { b = 1 }: unknown key"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, override: str, words: str):
    file = tmp_path / "run.toml"
    file.write_text(f"{MINIMAL}[devices]\npdims = [4, 1]\n")
    (problem,) = problems(file, *override.split(" --set "))
    assert re.search(words, problem), problem


def test_galaxies_without_a_bias_of_f_nl_are_warned_of(tmp_path: Path):
    plan = make(tmp_path / "run", "cosmology.f_nl=50", "observe.galaxies={b1=0.0}")
    said = [text for output in plan.results for text in output.warnings(plan.simulation)]
    assert said == ["observe.galaxies: cosmology.f_nl has no part in the bias: bphi is 0"]


def test_masks_that_are_none_are_refused(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text(MINIMAL)
    np.save(tmp_path / "flat.npy", np.ones((8, 8)))
    np.save(tmp_path / "dark.npy", np.zeros((16, 16, 16)))
    np.save(tmp_path / "bytes.npy", np.full((16, 16, 16), 255))
    for name, words in {
        "none.npy": "no such file",
        "flat.npy": r"has the shape \[8, 8\], and box.mesh is \[16, 16, 16\]",
        "dark.npy": "must hold shares from 0 to 1, some above 0, and holds 0 to 0",
        "bytes.npy": "must hold shares from 0 to 1, some above 0, and holds 255 to 255; np.clip",
        "run.toml": "must end with .npy, or name a data set",
    }.items():
        settings = read(file, [f"observe.galaxies.mask={name}", "devices.pdims=[1, 1]"])
        with pytest.raises(SettingsError, match=rf"observe.galaxies.mask = .*{name}.: {words}"):
            SimulationJob.of(settings, tmp_path / "out")
    np.save(tmp_path / "faint.npy", np.full((16, 16, 16), 1e-12))
    for key in ("mask='faint.npy'", "selection=[[0, 1e-300]]"):
        settings = read(file, [f"observe.galaxies={{number_density=1e-3, {key}}}", "devices.pdims=[1, 1]"])
        with pytest.raises(SettingsError, match=r"number_density = 0.001: expects \S+ galaxies in the box, and must"):
            SimulationJob.of(settings, tmp_path / "out")


def test_maps_beyond_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "run.toml"
    file.write_text(f"{MINIMAL}[devices]\npdims = [1, 1]\n")
    shells = ", ".join(str(10 * i) for i in range(40))
    override = f"observe.light_cone={{sky='sphere', nside=8192, sources=0.1, edges=[{shells}]}}"
    with pytest.raises(SettingsError, match=r"in a step and .*; use fewer edges or pixels of observe.light_cone"):
        SimulationJob.of(read(file, [override]), tmp_path / "out").check()
    monkeypatch.setattr(resources, "device_limit", lambda: 2_000_000)
    with pytest.raises(SettingsError, match=r"2.49 MB of memory in the bispectrum .*; use fewer observe.bispectrum"):
        SimulationJob.of(read(file, ["observe.bispectrum.shells=64"]), tmp_path / "out").check()


@pytest.mark.parametrize("output", ["galaxies", "pdf"])
def test_filters_wider_than_the_box_are_warned_of(tmp_path: Path, output: str):
    for radius, warned in ((3.0, False), (500.0, True)):
        plan = make(tmp_path / f"{radius:g}", f"observe.{output}={{smoothing={radius}}}", "output.snapshot=none")
        text = f"observe.{output}.smoothing = 500: this filter leaves no wave of a box of"
        assert (text in "\n".join(plan.check())) == warned
