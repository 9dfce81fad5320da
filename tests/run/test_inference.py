"""Inferences from a config file: the same bits after an interruption, and what is wrong with bad ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from runs import command

from pmwd_dist import infer
from pmwd_dist.infer.chains import load_chain
from pmwd_dist.infer.storage import write_arrays
from pmwd_dist.run import events, manifest
from pmwd_dist.run.chains import condition_on, execute_inference
from pmwd_dist.run.folder import Log, finished, prepare_folder
from pmwd_dist.run.inference import InferencePlan, check_inference, make_inference
from pmwd_dist.run.judging import find_energy_reasons, find_reasons, judge
from pmwd_dist.run.settings import InferenceSettings, Settings, SettingsError, read_any, read_as
from pmwd_dist.run.settings.writing import template
from pmwd_dist.run.signals import Interrupted
from pmwd_dist.run.starting import StartError

SMALL = """
[box]
size = 60.0
mesh = 4
[time]
a_stop = 0.5
[noise]
seed = 1
[devices]
pdims = [1, 1]
[model]
gravity = "linear"
bias = "eulerian"
b1 = 1.8
line_of_sight = "none"
[likelihood]
sigma = 0.5
[priors]
b1 = { kind = "normal", mean = 1.5, sd = 0.5, low = 0.1 }
[start]
begin = "prior"
[sampler]
precondition = "none"
chains = 2
tune = 40
energy_variance = 2e-4
steps = 36
chunk = 12
"""


def plan_of(folder: Path, *overrides: str, text: str = SMALL) -> InferencePlan:
    file = folder.parent / "small.toml"
    file.write_text(text)
    return make_inference(read_as(InferenceSettings, file, overrides), folder)


class Listener(list[Any]):
    """Remembers events, and sends a signal to this process at one of them."""

    def __init__(self, stop_at: type | None = None):
        super().__init__()
        self.stop_at = stop_at

    def __call__(self, event: Any) -> None:
        self.append(event)
        if self.stop_at is not None and isinstance(event, self.stop_at):
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[InferencePlan, Listener]:
    plan, listener = plan_of(tmp_path_factory.mktemp("inference") / "run"), Listener()
    prepare_folder(plan)
    execute_inference(plan, listener)
    return plan, listener


def test_a_run_leaves_chains_pictures_and_a_verdict(whole: tuple[InferencePlan, Listener]) -> None:
    plan, listener = whole
    assert finished(plan.folder)
    names = {path.name for path in plan.folder.iterdir()}
    assert {"report.html", "summary.csv", "traces.png", "corner.png", "fields.png", "slices.png"} <= names
    verdict = next(event for event in listener if isinstance(event, events.Judged))
    assert any("effective samples, fewer than 400; raise sampler.steps" in reason for reason in verdict.reasons)
    assert "Not to be trusted yet" in (plan.folder / "report.html").read_text()
    chunks = [event for event in listener if isinstance(event, events.ChunkSampled)]
    assert [event.step for event in chunks] == [12, 24, 36] and chunks[-1].slowest == "b1"
    assert json.loads((plan.folder / "chain.json").read_text())["energy_variance"] == "0.0002"
    header, row, _ = (plan.folder / "summary.csv").read_text().splitlines()
    mean = float(dict(zip(header.split(","), row.split(","), strict=True))["mean"])
    assert mean == pytest.approx(load_chain(plan.folder).parameters["b1"].mean(), rel=1e-5)


def test_what_was_stopped_goes_on_to_the_same_bits(whole: tuple[InferencePlan, Listener], tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run")
    prepare_folder(plan)
    for stop_at, done in ((events.StageDone, 0), (events.ChunkSampled, 1)):  # in the tuning, and after a chunk
        with pytest.raises(Interrupted, match=f"after chunk {done} of 3; go on with `pmwd-dist resume"):
            execute_inference(plan, Listener(stop_at), resume=done > 0)
    with h5py.File(plan.folder / ".chunk_00001.h5.part", "w"):
        pass  # as a kill would leave it
    execute_inference(plan, Listener(), resume=True)
    for path in sorted(whole[0].folder.glob("*.h5")):
        with h5py.File(path) as one, h5py.File(plan.folder / path.name) as other:
            found: list[str] = []
            one.visititems(lambda name, item, to=found: to.append(name) if isinstance(item, h5py.Dataset) else None)
            for name in found:
                np.testing.assert_array_equal(one[name][()], other[name][()], err_msg=f"{path.name}:{name}")


def test_another_config_does_not_go_on(
    whole: tuple[InferencePlan, Listener], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(whole[0].folder, tmp_path / "run")
    assert command("resume", folder) == 0
    assert "the run is finished; nothing is left to do" in capsys.readouterr().out
    assert command("resume", folder, "--set", "sampler.chains=3") == 2  # of a finished one, too
    assert "only devices.*, sampler.steps, checks.* can change" in capsys.readouterr().err
    text = (folder / "config.toml").read_text()
    (folder / "run.json").unlink()
    (folder / "config.toml").write_text(text.replace("sd = 0.5", "sd = 0.6"))
    assert command("resume", folder) == 2
    shown = (
        'priors.b1 = { kind = "normal", mean = 1.5, sd = 0.6, low = 0.1 }: this folder\'s run has { kind = "normal",'
    )
    assert shown in capsys.readouterr().err
    (folder / "config.toml").write_text(text.replace("sigma = 0.5", "sigma = 0.6"))
    assert command("resume", folder) == 2
    assert "likelihood.sigma = 0.6: this folder's run has 0.5; set it back" in capsys.readouterr().err
    (folder / "config.toml").write_text(text)
    assert command("resume", folder, "--set", "sampler.chunk=24") == 2
    assert "only devices.*, sampler.steps, checks.* can change" in capsys.readouterr().err
    assert command("infer", folder / "config.toml", "--output", folder) == 2
    assert "not empty; use --overwrite" in capsys.readouterr().err
    assert command("run", folder / "config.toml", "--output", tmp_path / "other") == 2
    assert "has the sections of an inference; use `pmwd-dist infer`" in capsys.readouterr().err
    chain = (whole[0].folder / "chain.json").read_text()
    (folder / "chain.json").write_text(chain.replace("b1", "bias", 1))  # as by another version of the program
    (folder / "run.json").write_bytes((whole[0].folder / "run.json").read_bytes())
    assert command("resume", folder, "--set", "sampler.steps=48") == 2
    assert "use another folder, or the same model; or go on with the version that began" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("chain.json", "restore it from a copy, or sample again in another folder"),
        ("state.h5", "restore it from a copy, or sample again in another folder"),
        ("chunk_00001.h5", "restore it from a copy, or sample again in another folder"),
        ("start.h5", "remove it, and the same is made again"),
        ("data.h5", "remove it, and the same is made again"),
    ],
)
def test_a_damaged_file_is_one_line_before_any_work(
    name: str, remedy: str, whole: tuple[InferencePlan, Listener], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(whole[0].folder, tmp_path / "run"))
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    assert command("resume", folder, "--set", "sampler.steps=48") == 2
    assert capsys.readouterr().err == f"pmwd-dist: {folder / name}: is damaged; {remedy}\n"
    assert not (folder / "chunk_00003.h5").exists()


def test_starts_and_data_of_other_shapes_are_refused(whole: tuple[InferencePlan, Listener], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole[0].folder, tmp_path / "run"))
    plan, wrong = replace(whole[0], folder=folder), np.ones((3, 4, 4, 4))
    write_arrays(folder / "start.h5", {"noise": wrong, "parameters/b1": np.ones(2)})
    with pytest.raises(
        StartError, match=r"start.h5: has 'noise' of shape \(3, 4, 4, 4\), not \(2, 4, 4, 4\); remove it"
    ):
        execute_inference(plan, Listener(), resume=True)
    write_arrays(folder / "data.h5", {"noise": wrong[0], "parameters/b1": np.asarray(1.0), "data": np.nan * wrong[0]})
    with pytest.raises(StartError, match=r"data.h5: data holds 64 values that are no finite numbers"):
        execute_inference(plan, Listener(), resume=True)


class Flat(eqx.Module):
    """A forward model of maps that are nothing."""

    shape: tuple[int, ...] = eqx.field(static=True, default=(2, 4, 4))

    def __call__(self, noise: Any, parameters: Any) -> Any:
        del parameters
        return jnp.zeros(self.shape) + 0 * jnp.mean(noise)


def test_maps_of_a_simulation_on_a_finer_mesh_have_no_spectra(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run", "box.mesh=8", "box.particles=4", text=LENSING)
    prepare_folder(plan)
    plain = infer.Model(plan.simulation.config, Flat(), {}, plan.model.likelihood)
    ones, zeros = np.ones((2, 4)), np.zeros((4, 4, 4))
    chain = infer.Chain({}, ones, ones, ones, 16, 0, zeros, zeros, np.zeros((1, 2, 4, 4, 4)))
    data = {"data": np.random.default_rng(0).standard_normal((2, 4, 4))}
    judged = judge(plan, plain.condition(data["data"]), chain, data)
    assert "maps.png" in judged.files
    assert "fields.png" not in judged.files


def test_a_chain_that_became_unstable_is_named() -> None:
    energy = np.sqrt(4e-4 * 1000) * np.random.default_rng(0).standard_normal((3, 500))
    assert find_energy_reasons(energy, 1000) == []
    energy[1, 200:] *= 4
    reason = find_energy_reasons(energy, 1000)[0]
    assert reason.startswith("the energy error of chain 1 is ") and "raise sampler.tune" in reason
    assert find_energy_reasons(energy[:2], 1000)[0].startswith("the energy error of chain 1 is ")
    assert "the chains are biased" in find_energy_reasons(3 * energy[[0, 2]], 1000)[0]


def test_chains_that_never_moved_are_not_trusted(whole: tuple[InferencePlan, Listener]) -> None:
    plan = whole[0]
    chain = load_chain(plan.folder)
    still = replace(chain, parameters={"b1": np.ones((2, 36))}, logdensity=np.ones((2, 36)))
    reasons = find_reasons(plan, still)
    assert "R-hat of b1 is inf, more than 1.01; the chains are in different places, or stuck" in "".join(reasons)
    assert "b1 has 1 effective samples, fewer than 400" in "".join(reasons)
    assert "chain 0 did not move in all of its 36 steps; raise sampler.tune" in "".join(reasons)
    still.logdensity[0] = chain.logdensity[0]
    assert [text[:8] for text in find_reasons(plan, still) if "did not move" in text] == ["chain 1 "]


def test_the_template_and_what_is_written_read_back(tmp_path: Path) -> None:
    file = tmp_path / "template.toml"
    file.write_text(template(InferenceSettings))
    settings = read_as(InferenceSettings, file, ["likelihood.sigma=0.5"])
    assert settings.sampler.precondition == "conditional"
    file.write_text(SMALL)
    assert isinstance(read_any((Settings, InferenceSettings), file), InferenceSettings)
    file.write_text("[box]\nsize = 60.0\nmesh = 4\n")
    assert type(read_any((Settings, InferenceSettings), file)) is Settings


LENSING = (
    SMALL.replace('gravity = "linear"\nbias = "eulerian"\nb1 = 1.8', 'bias = "none"')
    .replace("sigma = 0.5", 'kind = "lensing"\ndensity = [10.0, 20.0]')
    .replace("a_stop = 0.5", "a_start = 0.9\nsteps = 1\nlpt_order = 1")
    .replace("b1 = {", "sigma8 = {")
    + """
[observe.light_cone]
sources = [0.02, 0.04]
rays = 4
pixels = 4
"""
)


def test_maps_of_lensing_are_data(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run", text=LENSING)
    assert np.allclose(plan.model.likelihood.sigma[0] / plan.model.likelihood.sigma[1], np.sqrt(2))
    prepare_folder(plan)
    rng = np.random.default_rng(0)
    draws = {"sigma8": np.full((2, 4), 0.8)}
    zeros, noise = np.zeros((4, 4, 4)), rng.standard_normal((1, 2, 4, 4, 4))
    chain = infer.Chain(
        draws, rng.standard_normal((2, 4)), np.zeros((2, 4)), np.ones((2, 4)), 16, 0, zeros, zeros, noise
    )
    data = {"data": rng.standard_normal((2, 4, 4)), "noise": noise[0, 0]}
    judged = judge(plan, plan.model.condition(data["data"]), chain, data)
    assert set(judged.files) <= set(manifest.files(plan.folder))  # which may be written again after more steps
    assert {"maps.png", "fields.png", "slices.png"} <= set(judged.files)
    wrong = {
        "needs a section .observe.light_cone.": LENSING.partition("[observe")[0],
        "likelihood.density: missing; add for example": LENSING.replace("density = [10.0, 20.0]", ""),
        "light is bent by all matter": LENSING.replace('bias = "none"', 'bias = "lagrangian"'),
        "a light cone is filled during a run": LENSING.replace('bias = "none"', 'bias = "none"\ngravity = "lpt"'),
        "sampler.precondition: needs data on the mesh": LENSING.replace('precondition = "none"', ""),
        "likelihood.k_max: is of fields on the mesh": LENSING.replace("density", "k_max = 0.1\ndensity"),
        "likelihood.density = .*must be a number, or one for each of 2 maps": LENSING.replace(
            "[10.0, 20.0]", "[1.0, 2.0, 3.0]"
        ),
        'is of likelihood.kind = "lensing"; leave it out': SMALL + "[observe.light_cone]\n",
        "likelihood.density: is of lensed galaxies": SMALL.replace("sigma = 0.5", "sigma = 0.5\ndensity = 1.0"),
    }
    for message, text in wrong.items():
        with pytest.raises(SettingsError, match=message):
            plan_of(tmp_path / "run", text=text)


WRONG = {
    "likelihood.nbar: missing; add for example": ["likelihood.kind=poisson"],
    "likelihood.nbar: a gaussian likelihood has none": ["likelihood.nbar=2.0"],
    'must be "gaussian", "poisson" or "lensing"; did you mean "gaussian"': ["likelihood.kind=gauss"],
    'data.selection: is of counts; use likelihood.kind = "poisson"': ["data.selection=a.npy"],
    'has low = 3.0, which must be less than high=2.0; for example { kind = "uniform"': [
        'priors.b1={ kind = "uniform", low = 3.0, high = 2.0 }'
    ],
    'of kind "normal" needs mean and sd, and may have high and low': ['priors.b1={ kind = "normal", mean = 3.0 }'],
    "priors.b1: the prior { kind = .* } excludes the truth, 1.8; change one of them": [
        'priors.b1={ kind = "uniform", low = 2.0, high = 3.0 }'
    ],
    'priors.b2: has no effect with model.bias = "eulerian"': ['priors.b2={ kind = "normal", mean = 0.0, sd = 1.0 }'],
    "data.truth.b2: has no prior": ["data.truth={ b2 = 1.0 }"],
    "sampler.steps = 37: must be a multiple of thin \\* chunk = 12": ["sampler.steps=37"],
    "sampler.energy_variance: is the target of mclmc, and hmc is tuned for its acceptance": ["sampler.method=hmc"],
    "sampler.stepz = 3: unknown key; did you mean sampler.steps?": ["sampler.stepz=3"],
    'start.begin = "wiener": needs sampler.precondition': ["start.begin=wiener"],
    "start.map_free: parameters can't be told from the noise where sampler.precondition depends on them": [
        "start.map_free=['b1']",
        "sampler.precondition=conditional",
    ],
    r"likelihood.k_max = 0.1: leaves no mode of a box of 60 Mpc/h; use more than 0.1047 h/Mpc": [
        "likelihood.k_max=0.1"
    ],
    r"priors.h = { .* }: has a median that is not positive; bound it from below": [
        'priors.h={ kind = "uniform", low = -1.0, high = -0.5 }',
        "data.truth={ h = -0.7 }",
    ],
    r"priors.b1 = { .* }: has 1.8, 1.8, 1.8 as its median and two deviations from it": [
        'priors.b1={ kind = "normal", mean = 1.8, sd = 1e-18 }'
    ],
    r"start.map_anneal = \[0.2, 0.1\]: must be positive, and ascend": ["start.map_anneal=[0.2, 0.1]"],
    "start.map_free: sigma8 has no prior": ["start.map_free=['sigma8']"],
    'model.bias = "lagrangian": is of particles': ["model.bias=lagrangian"],
    r"\[output\]: unknown section; use box, time, .*, data, model": ["output.redshifts=0"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_named(message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_of(tmp_path / "run", *WRONG[message])


LIGHT = 'priors.omega_m={ kind = "normal", mean = 0.3, sd = 0.1, low = 0.05 }'
ODD = {
    "data.file: the data are 2 everywhere: nothing is known": (np.full((4, 4, 4), 2.0), []),
    "data.file: the mean is about 0, as of a contrast": (np.indices((4, 4, 4))[0] - 1.5, []),
    "data.file: the mean is 31.5; densities are in units of the mean": (np.arange(64.0).reshape(4, 4, 4), []),
    "the mean is 31.5 galaxies in a cell, and likelihood.nbar expects 2": (
        np.arange(64.0).reshape(4, 4, 4),
        ["poisson"],
    ),
    "priors.sigma8: 0 is within two deviations of its median; bound it": (
        None,
        ['priors.sigma8={ kind = "normal", mean = 0.8, sd = 0.5 }'],
    ),
    "field = 80: the box fills 28.9 degrees at the farthest shell, and": (
        None,
        ["lensing", "observe.light_cone.field=80"],
    ),
    "priors.omega_m: at 0.5003, .* the run does not span the light cone": (
        None,
        ["lensing", "observe.light_cone.sources=[0.02, 0.11]", LIGHT],
    ),
}


@pytest.mark.parametrize("message", ODD)
def test_what_is_odd_is_warned_of_before_any_work(message: str, tmp_path: Path) -> None:
    values, overrides = ODD[message]
    texts = {"poisson": SMALL.replace("sigma = 0.5", 'kind = "poisson"\nnbar = 2.0'), "lensing": LENSING}
    chosen = next((texts[name] for name in overrides if name in texts), SMALL)
    overrides = [text for text in overrides if text not in texts]
    if values is not None:
        put(tmp_path, "file", values)
        overrides = [*overrides, "data.file=file.npy"]
    (warning,) = (
        x for x in check_inference(plan_of(tmp_path / "run", *overrides, text=chosen)) if "checks.ess" not in x
    )
    assert re.search(message, warning)


def test_a_mock_that_shows_nothing_is_warned_of(whole: tuple[InferencePlan, Listener], tmp_path: Path) -> None:
    plan, data, listener = replace(whole[0], folder=tmp_path), {"data": np.full((4, 4, 4), 1.5)}, Listener()
    condition_on(plan, data, Log(tmp_path, listener))
    (warned,) = listener
    assert warned.message.startswith("data are 1.5 everywhere: nothing is known of phases")


def put(folder: Path, name: str, values: Any) -> None:
    np.save(folder / f"{name}.npy", values)


def broken(value: float) -> np.ndarray:
    values = np.ones((4, 4, 4))
    values[1, 2, 3] = value
    return values


@pytest.mark.parametrize(
    ("arrays", "overrides", "message"),
    [
        ({"file": broken(np.nan)}, [], r"data.file = .*: holds 1 values that are no finite numbers, the first at"),
        ({"file": np.ones((4, 4, 8))}, [], r"has the shape \[4, 4, 8\], and box.mesh is \[4, 4, 4\]"),
        ({"file": broken(-1)}, ["likelihood.kind=poisson"], "holds -1, which is no number of galaxies"),
        ({"mask": np.zeros((4, 4, 4))}, [], "data.mask = .*: hides every cell"),
        ({"selection": np.zeros((4, 4, 4))}, ["likelihood.kind=poisson"], "data.selection = .*: is 0 in every cell"),
        ({"mask": broken(0.5)}, [], "data.mask = .*: must hold only 0 and 1"),
        ({"file": np.array(["a"])}, [], "holds <U1, no real numbers"),
        ({}, ["data.file=missing.npy"], 'data.file = .*missing.npy": No such file'),
        ({}, ["data.file=counts.h5:/d"], "data.file = .*counts.h5"),
        ({}, ["data.file=counts.txt"], "must end with .npy, or name a data set"),
    ],
)
def test_wrong_data_are_named(arrays: dict[str, Any], overrides: list[str], message: str, tmp_path: Path) -> None:
    for name, values in arrays.items():
        put(tmp_path, name, values)
        overrides = [*overrides, f"data.{name}={name}.npy"]
    counts = SMALL.replace("sigma = 0.5", "nbar = 2.0") if "likelihood.kind=poisson" in overrides else SMALL
    with pytest.raises(SettingsError, match=message):
        plan_of(tmp_path / "run", *overrides, text=counts)


def test_data_are_read_and_odd_ones_warned_of(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "survey.h5", "w") as file:
        file["galaxies/contrast"] = np.indices((4, 4, 4))[0] - 1.5
        file["mask"] = broken(0) > 0
    plan = plan_of(tmp_path / "run", "data.file=survey.h5:/galaxies/contrast", "data.mask=survey.h5:/mask")
    assert plan.model.likelihood.mask.sum() == 63
    warnings = check_inference(plan)
    assert any("the mean is about 0, as of a contrast" in text for text in warnings)
    assert any("fewer draws than checks.ess = 400" in text for text in warnings)
