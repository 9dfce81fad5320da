"""Noise of the initial conditions: of files, and the options of [noise]."""

from __future__ import annotations

from pathlib import Path

import h5py
import jax
import numpy as np
import pytest
from inferences import plan_of
from runs import Events, assert_same, make

import pmwd_dist as pmd
from pmwd_dist.pm.noise import noise_of
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.inference import inputs
from pmwd_dist.run.settings import SettingsError


@pytest.mark.usefixtures("no_figures")
def test_noise_of_a_file_is_that_of_its_seed(tmp_path: Path) -> None:
    seeded = make(tmp_path / "seed", "noise.seed=3")
    noise = np.asarray(pmd.white_noise(jax.random.key(3), seeded.simulation.config))
    np.save(tmp_path / "noise.npy", noise)
    read = make(tmp_path / "file", "noise.file=noise.npy")
    for plan in (seeded, read):
        execute(plan, Events())
    assert_same(seeded.folder, read.folder)


@pytest.mark.parametrize("pdims", ["[1, 1]", "[4, 1]", "[2, 2]"])
def test_noise_is_read_from_each_kind_of_file(tmp_path: Path, pdims: str) -> None:
    noise = np.random.default_rng(0).standard_normal((8, 8, 8))
    np.save(tmp_path / "a.npy", noise)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["noise"] = noise
    for number, name in enumerate(("a.npy", "a.h5:/noise")):
        options = f"noise.file={name}", "noise.paired=true", f"devices.pdims={pdims}"
        simulation = make(tmp_path / f"run{number}", *options).simulation
        np.testing.assert_array_equal(noise_of(simulation.noise, simulation.config, simulation.kind), -noise)


def test_options_of_the_noise_are_those_of_the_library(tmp_path: Path) -> None:
    options = {"nested": True, "fixed": True, "paired": True}
    plan = make(tmp_path / "run", "noise.seed=2", *(f"noise.{name}=true" for name in options))
    simulation, config = plan.simulation, plan.simulation.config
    expected = pmd.white_noise(jax.random.key(2), config, **options)
    np.testing.assert_array_equal(noise_of(simulation.noise, config, simulation.kind), expected)
    assert "seed 2, nested, fixed, paired" in "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("shape", "factor", "given", "words"),
    [
        ((8, 8, 8), 3.0, [], r"noise.file = .* has mean .* and variance 9.\d*, and white noise has 0 and 1"),
        ((4, 4, 4), 1.0, [], r"noise.file = .*has the shape \[4, 4, 4\], and box.mesh is \[8, 8, 8\]"),
        ((8, 8, 8), 1.0, ["noise.fixed=true"], "noise.file: nested and fixed are options of a seed"),
        ((8, 8, 8), 1.0, ["noise.file=b.npy"], "noise.file = .*b.npy.*no such file"),
    ],
)
def test_wrong_noise_is_named(
    tmp_path: Path, shape: tuple[int, ...], factor: float, given: list[str], words: str
) -> None:
    np.save(tmp_path / "a.npy", factor * np.random.default_rng(0).standard_normal(shape))
    with pytest.raises(SettingsError, match=words):
        make(tmp_path / "run", "noise.file=a.npy", *given)


def test_the_truth_of_a_mock_has_the_noise_of_a_simulation(tmp_path: Path) -> None:
    options = ["noise.nested=true", "noise.fixed=true", "noise.paired=true"]
    plan = plan_of(tmp_path / "seed", *options)
    config = plan.simulation.config
    noise = np.asarray(pmd.white_noise(jax.random.key(1), config, nested=True, fixed=True, paired=True))
    np.testing.assert_array_equal(inputs.draw_mock(plan)["noise"], noise)
    np.save(tmp_path / "noise.npy", noise)
    plan = plan_of(tmp_path / "file", f"noise.file={tmp_path / 'noise.npy'}")
    found = inputs.draw_mock(plan)
    np.testing.assert_array_equal(found["noise"], noise)
    predicted = plan.model.predict(noise, {"b1": found["parameters/b1"]})[0]
    assert np.std(found["data"] - predicted) == pytest.approx(0.5, rel=0.3)
    with pytest.raises(SettingsError, match='noise.fixed = true: is of the truth of data.file = "mock"; leave it out'):
        plan_of(tmp_path / "data", "noise.fixed=true", "data.file=data.npy")
