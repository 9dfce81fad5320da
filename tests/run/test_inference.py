"""Inferences from a config file: the same bits after an interruption, and what is wrong with bad ones."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from inferences import SMALL, plan_of
from pages import check_page
from runs import command

from pmwd_dist import infer
from pmwd_dist.infer.chain.folder import ChainFolder, load_chain
from pmwd_dist.io.arrays import ArrayFile, fingerprint, read_arrays, write_arrays
from pmwd_dist.run.common.control import Interrupted
from pmwd_dist.run.common.fingerprint import identity
from pmwd_dist.run.common.folder import Log, StartError, finished, prepare_folder
from pmwd_dist.run.common.job import execute
from pmwd_dist.run.inference import verdict
from pmwd_dist.run.inference.inputs import starts_of
from pmwd_dist.run.inference.job import InferenceJob, condition_on
from pmwd_dist.run.inference.verdict import find_mixing_reasons, find_reasons, find_step_reasons, worst_scale
from pmwd_dist.run.settings import InferenceSettings, SettingsError, SimulationSettings, read_any, read_as
from pmwd_dist.run.settings.template import template, to_toml


class Listener(list[Any]):
    """Remembers events, and sends a signal to this process at one of them."""

    def __init__(self, stop_at: str | None = None):
        super().__init__()
        self.stop_at = stop_at

    def __call__(self, event: Any) -> None:
        self.append(SimpleNamespace(event=event.name, **event.fields))
        if event.name == self.stop_at:
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[InferenceJob, Listener]:
    plan, listener = plan_of(tmp_path_factory.mktemp("inference") / "run"), Listener()
    prepare_folder(plan)
    execute(plan, listener)
    return plan, listener


def test_a_run_leaves_chains_pictures_and_a_verdict(whole: tuple[InferenceJob, Listener]) -> None:
    plan, listener = whole
    assert finished(plan.folder)
    names = {path.name for path in plan.folder.iterdir()}
    assert {"report.html", "summary.csv", "fit.csv", "traces.png", "corner.png", "fields.png", "slices.png"} <= names
    told = next(event for event in listener if event.event == "verdict")
    assert any(line.startswith("variance of residuals") for line in told.table)
    assert "variance of residuals" in (plan.folder / "report.html").read_text()
    assert any("effective samples are fewer than 400 (b1 " in reason for reason in told.reasons)
    profile = json.loads((plan.folder / "run.json").read_text())["profile"]
    assert {"data", "starts", "tuning", "chains", "verdict"} < profile["seconds"].keys()
    assert profile["seconds"]["rest"] < 0.5 * profile["total"]
    page = check_page(plan.folder / "report.html", figures=6)
    for part in ("Not converged", '<th scope="row">b<sub>1</sub></th>', "power of data at k", "p, the probability of"):
        assert part in page, part
    begun = [event.stage for event in listener if event.event == "begin"]
    assert begun == ["mock", "starts: prior", "chains: compiling", "verdict"]
    chunks = [event for event in listener if event.event == "chunk"]
    first, *_, last = chunks
    assert last.compilation == 0 and first.seconds > first.compilation
    for chunk, left in zip(chunks, (2, 1, 0), strict=True):
        assert chunk.seconds_left == pytest.approx(left * (chunk.seconds - chunk.compilation))
    assert [event.step for event in chunks] == [12, 24, 36] and chunks[-1].slowest == "b1"
    with ArrayFile(plan.folder / "state.npz") as file:
        assert file.about["identity"]["energy_variance"] == "0.0002"
    header, row, _ = (plan.folder / "summary.csv").read_text().splitlines()
    mean = float(dict(zip(header.split(","), row.split(","), strict=True))["mean"])
    assert mean == pytest.approx(load_chain(plan.folder).parameters["b1"].mean(), rel=1e-5)


@pytest.mark.usefixtures("no_pictures", "no_checks", "no_memory")
def test_another_mock_takes_the_tuning(whole: tuple[InferenceJob, Listener], tmp_path: Path, monkeypatch: Any) -> None:
    """Also where the first run is gone; another model is refused before any work."""
    source = Path(shutil.copytree(whole[0].folder, tmp_path / "mock"))
    given = ("noise.seed=2", "sampler.tuning_from=mock")
    plan = plan_of(tmp_path / "run", *given)
    prepare_folder(plan)
    with pytest.raises(Interrupted):
        execute(plan, Listener("chunk"))
    for wrong, name in (("priors.b1.sd=0.4", "priors"), ("box.size=50.0", "config")):
        with pytest.raises(SettingsError, match=f'sampler.tuning_from = ".*mock": is of chains with {name}='):
            plan_of(tmp_path / "other", *given, wrong).check()
    shutil.rmtree(source)
    execute(plan, Listener(), resume=True)
    ours, theirs = (read_arrays(path / "state.npz") for path in (plan.folder, whole[0].folder))
    for name in ("tuning/L", "tuning/step_size", "adaptation/scale", "adaptation/factor"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert plan.check() == plan_of(tmp_path / "run", "noise.seed=2").check()
    with pytest.raises(SettingsError, match='tuning_from = ".*mock": holds no tuning; name the folder'):
        plan_of(tmp_path / "other", *given).check()
    monkeypatch.setattr("pmwd_dist.run.inference.plan.is_main", lambda: False)
    plan_of(tmp_path / "other", *given).check()  # another process reads no file


def test_too_few_draws_for_diagnostics_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two, zeros = np.zeros((2, 2)), np.zeros((4, 4, 4))
    chain = infer.Chain({"b1": two}, two, two, two, two, 1, 0, zeros, zeros, None)
    monkeypatch.setattr(infer, "load_chain", lambda folder: chain)
    assert verdict.redraw_chains(tmp_path) == []


@pytest.mark.usefixtures("no_pictures")
def test_what_was_stopped_goes_on_to_the_same_bits(
    whole: tuple[InferenceJob, Listener],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(tmp_path / "run")
    prepare_folder(plan)
    with pytest.raises(Interrupted, match="interrupted 14% through the tuning; go on with `pmwd-dist resume"):
        execute(plan, Listener("tuning"))
    page = (plan.folder / "report.html").read_text()
    assert "was interrupted 14% through its tuning." in page
    assert re.search(r'<th scope="row">tuning</th><td>\d+\.\d s</td>', page)
    capsys.readouterr()
    assert command("report", plan.folder) == 0
    assert capsys.readouterr().out == f"wrote {plan.folder / 'report.html'}\n"
    with pytest.raises(Interrupted, match="stopped 43% through the tuning, by the time limit; go on with"):
        execute(plan, Listener(), resume=True, time_limit=1e-3)  # after two blocks, the first of which counts
    with pytest.raises(Interrupted, match="interrupted after chunk 1 of 3; go on with `pmwd-dist resume"):
        execute(plan, Listener("chunk"), resume=True)
    assert not (plan.folder / "chunk_00001.npz").exists()
    figures = [plan.folder / f"{name}.png" for name in ("traces", "corner", "mixing")] + [plan.folder / "summary.csv"]
    assert all(path.exists() for path in figures)
    page = (plan.folder / "report.html").read_text()
    assert "was interrupted after step 12 of 36." in page
    for path in figures:
        path.unlink()
    assert command("report", plan.folder) == 0 and all(path.exists() for path in figures)
    (plan.folder / ".chunk_00001.npz.part").touch()  # as a kill would leave it
    (plan.folder / "corner.png").touch()  # of fewer draws

    def refuses(figure: Any, path: Path) -> None:
        if path.name == "corner.png":
            raise IndexError("none")
        path.touch()

    monkeypatch.setattr(verdict, "save", refuses)
    listener = Listener()
    execute(plan, listener, resume=True)
    warned, (told,) = ([event for event in listener if event.event == name] for name in ("warning", "verdict"))
    assert f"a figure is missing: {plan.folder / 'corner.png'}: IndexError: none" in [event.message for event in warned]
    assert "corner.png" not in told.files and not (plan.folder / "corner.png").exists()
    for path in sorted(whole[0].folder.glob("*.npz")):
        other = read_arrays(plan.folder / path.name)
        for name, values in read_arrays(path).items():
            np.testing.assert_array_equal(values, other[name], err_msg=f"{path.name}:{name}")


def test_what_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = list[tuple[str, float]]()

    def naming(log: Log, what: str, silence: float) -> nullcontext[None]:
        return nullcontext(named.append((what, silence)))

    monkeypatch.setattr(Log, "naming", naming)
    prepare_folder(plan := plan_of(tmp_path / "run"))
    with pytest.raises(Interrupted):
        execute(plan, Listener("chunk"))
    texts = [what for what, silence in named if silence == 60]
    assert texts[:3] == ["mock", "starts: prior", "chains, first steps"]
    assert re.fullmatch(r"tuning, \d+% done", texts[3])
    assert texts[-2:] == ["chunk 1/3, steps 1 to 12", "chunk 2/3, steps 13 to 24"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "no_checks")
def test_chains_on_devices_of_their_own_are_the_same(whole: tuple[InferenceJob, Listener], tmp_path: Path) -> None:
    """Each of two chains on half of four devices, and then both on one."""
    plan = plan_of(tmp_path / "run", "sampler.chain_devices=2", "devices.pdims=[2, 1]", "sampler.steps=12")
    decomposition = plan.simulation.config.decomposition
    assert dict(decomposition.mesh.shape) == {"chains": 2, "x": 2, "y": 1} and decomposition.pdims == (2, 1)
    assert "4 x cpu in 1 process, chains in 2 groups, each mesh as 2 slabs" in "".join(plan.lines())
    prepare_folder(plan)
    execute(plan, listener := Listener())
    assert any(event.event == "verdict" for event in listener)
    posterior = plan.model.condition(read_arrays(plan.folder / "data.npz")["data"])
    positions = starts_of(plan, posterior, Log(plan.folder, listener))
    assert positions["noise"].sharding.spec == jax.P("chains", "x", "y")
    execute(plan_of(plan.folder), Listener(), resume=True)
    for index in range(3):
        expected = read_arrays(whole[0].folder / f"chunk_{index:05d}.npz")
        for name, values in read_arrays(plan.folder / f"chunk_{index:05d}.npz").items():
            np.testing.assert_allclose(values, expected[name], atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_chains_begin_at_maxima_with_parameters_held(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run", "sampler.chains=1", "start.begin=map", "start.map_steps=40")
    prepare_folder(plan)
    listener = Listener()
    log, truth = Log(plan.folder, listener), plan.model.draw(jax.random.key(0), b1=1.8)
    posterior = plan.model.condition(plan.model.mock(jax.random.key(1), truth))
    positions = starts_of(plan, posterior, log)
    _, done = listener
    assert done.what == "starts: map over the noise"
    drawn = jax.vmap(posterior.initial)(jax.random.split(plan.simulation.key(2), 1))  # where they would begin otherwise
    np.testing.assert_array_equal(positions["parameters"]["b1"], drawn["parameters"]["b1"])
    slope = jax.jit(jax.vmap(jax.grad(posterior.logdensity)))
    assert np.abs(slope(positions)["noise"]).max() < 0.05 * np.abs(slope(drawn)["noise"]).max()


def test_another_config_does_not_go_on(
    whole: tuple[InferenceJob, Listener], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(whole[0].folder, tmp_path / "run")
    assert command("resume", folder) == 0
    assert capsys.readouterr().out.endswith("the run is finished; nothing is left to do\n")
    assert command("resume", folder, "--set", "devices.halo=3") == 0  # devices are no reason to judge anew
    assert (
        "the run is finished, and --set devices.halo=3 has no effect; nothing is left to do" in capsys.readouterr().out
    )
    assert command("resume", folder, "--set", "sampler.chains=3") == 2  # of a finished one, too
    assert capsys.readouterr().err == (
        "pmwd-dist: --set sampler.chains=3: resume keeps this setting of the run; "
        "leave it out, or start a new run in another folder\n"
    )
    assert command("resume", folder, "--set", "checks.r_hut=3") == 2
    assert "did you mean checks.r_hat?" in capsys.readouterr().err
    text = (folder / "config.toml").read_text()
    (folder / "run.json").unlink()
    (folder / "config.toml").write_text(text.replace("sd = 0.5", "sd = 0.6"))
    assert command("resume", folder) == 2
    shown = 'priors.b1 = { kind = "normal", mean = 1.5, sd = 0.6, low = 0.1 }: this folder\'s run has { kind ='
    assert shown in capsys.readouterr().err
    (folder / "config.toml").write_text(text.replace("sigma = 0.5", "sigma = 0.6"))
    assert command("resume", folder) == 2
    assert "likelihood.sigma = 0.6: this folder's run has 0.5; set it back" in capsys.readouterr().err
    (folder / "config.toml").write_text(text)
    assert command("resume", folder, "--set", "sampler.chunk=24") == 2
    assert "--set sampler.chunk=24: resume keeps this setting of the run" in capsys.readouterr().err
    assert command("infer", folder / "config.toml", "--output", folder) == 2
    assert "not empty; use --overwrite" in capsys.readouterr().err
    assert command("run", folder / "config.toml", "--output", tmp_path / "other") == 2
    assert "has the sections of an inference; use `pmwd-dist infer`" in capsys.readouterr().err
    with ArrayFile(folder / "state.npz") as file:
        state, about = file.arrays(), file.about
    chain = ChainFolder(tmp_path / "chain", about["identity"] | {"model": "another"})  # as by another version
    for i in range(3):
        chain.write(i, read_arrays(folder / f"chunk_{i:05d}.npz"), state)
    shutil.copytree(chain.path, folder, dirs_exist_ok=True)
    (folder / "run.json").write_bytes((whole[0].folder / "run.json").read_bytes())
    assert command("resume", folder, "--set", "sampler.steps=48") == 2
    assert "use another folder, or the same model; or go on with the version that began" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_an_extension_that_is_interrupted_goes_on_without_its_options(
    whole: tuple[InferenceJob, Listener], tmp_path: Path
) -> None:
    """On devices that may be others, with another halo."""
    folder = shutil.copytree(whole[0].folder, tmp_path / "run")
    changes = ["sampler.steps=72", "devices.halo=3"]
    longer = InferenceJob.of(read_any(folder / "config.toml", changes), folder)
    with pytest.raises(Interrupted, match="interrupted after chunk 4 of 6; go on with"):
        execute(longer, Listener("chunk"), resume=True, changes=changes)
    kept = read_as(InferenceSettings, folder / "config.toml")
    assert kept.sampler.steps == 72 and kept.devices == whole[0].settings.devices
    assert command("resume", folder) == 0
    assert load_chain(folder).logdensity.shape == (2, 72)


REMADE = "remove it, and the same is made again"
RESTORED = "restore it from a copy, or sample again in another folder"
REMEDIES = {"state.npz": RESTORED, "chunk_00001.npz": RESTORED, "start.npz": REMADE, "data.npz": REMADE}


@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.parametrize("kind", ["damaged", "of another run"])
def test_wrong_files_are_one_line_before_any_work(
    name: str, kind: str, whole: tuple[InferenceJob, Listener], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checksums of the files of another run are intact; it has another seed."""
    folder = Path(shutil.copytree(whole[0].folder, tmp_path / "run"))
    if kind == "damaged":
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    else:
        with ArrayFile(folder / name) as file:
            arrays, about = file.arrays(), file.about
        other = fingerprint(identity(whole[0]) | {"noise.seed": 5})
        about |= {"last": "0123456789abcdef"} if name == "state.npz" else {"run": other}
        write_arrays(folder / name, arrays, about)
    assert command("resume", folder, "--set", "sampler.steps=48") == 2
    (line,) = capsys.readouterr().err.splitlines()
    wrong = f"is damaged; {REMEDIES[name]}" if kind == "damaged" else "is of another run or place: it has "
    assert line.startswith(f"pmwd-dist: {folder / name}: {wrong}")
    assert not (folder / "chunk_00003.npz").exists()


def test_starts_and_data_of_other_shapes_are_refused(whole: tuple[InferenceJob, Listener], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole[0].folder, tmp_path / "run"))
    plan, wrong = replace(whole[0], folder=folder), np.ones((3, 4, 4, 4))
    about = {"run": fingerprint(identity(plan)), "file": "start.npz"}
    write_arrays(folder / "start.npz", {"noise": wrong, "parameters/b1": np.ones(2)}, about)
    with pytest.raises(StartError, match=r"start.npz: has 'noise' of shape \(3, 4, 4, 4\), not .* 4, 4\); remove it"):
        execute(plan, Listener(), resume=True)
    mock = {"noise": wrong[0], "parameters/b1": np.asarray(1.0), "data": np.nan * wrong[0]}
    write_arrays(folder / "data.npz", mock, about | {"file": "data.npz"})
    with pytest.raises(StartError, match=r"data.npz: data holds 64 values that are no finite numbers"):
        execute(plan, Listener(), resume=True)


def test_few_accepted_trajectories_are_named(whole: tuple[InferenceJob, Listener], tmp_path: Path) -> None:
    hmc = SMALL.replace("energy_variance = 2e-4", 'method = "hmc"')
    plan, chain = plan_of(tmp_path / "run", text=hmc), load_chain(whole[0].folder)
    few = replace(chain, acceptance_rate=np.linspace(0, 0.8, 72).reshape(2, 36), energy_change=chain.energy_change * 99)
    found = find_reasons(plan, few)
    assert "40% of the trajectories are accepted, fewer than 50%; raise sampler.tuning_steps" in found
    assert not any("energy error" in reason for reason in found)  # which is that of a step of mclmc
    assert not any("accepted" in reason for reason in find_reasons(plan, chain))


def test_steps_that_are_too_long_are_named_with_one_remedy(whole: tuple[InferenceJob, Listener]) -> None:
    x, energy = np.random.default_rng(0).standard_normal((2, 2, 1000))
    energy *= math.sqrt(4e-4 * 66)
    chain = replace(load_chain(whole[0].folder), parameters={"b1": x, "b2": -x}, density_shift=0.4 * x)
    (reason,) = find_step_reasons(replace(chain, energy_change=energy), 0.2, 1e-3)
    assert re.match(r"steps are too long: steps shift b1 by \+0\.\d+ ± 0.\d+ standard dev.*; steps shift b2", reason)
    assert reason.endswith("; raise sampler.tuning_steps, or sample again with sampler.energy_variance = 6e-05")
    (reason,) = find_step_reasons(replace(chain, energy_change=9 * energy), 0.5, 1e-3)
    assert reason.startswith("steps are too long: the variance of the energy error is up to ")
    assert find_step_reasons(replace(chain, energy_change=energy), 0.5, 1e-3) == []


def autoregressive(correlation: float, draws: int = 1000) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((4, draws))
    for i in range(1, draws):
        x[:, i] = correlation * x[:, i - 1] + (1 - correlation**2) ** 0.5 * x[:, i]
    return x


def test_all_that_more_steps_would_help_has_one_remedy(whole: tuple[InferenceJob, Listener]) -> None:
    """With the number of steps for the smallest effective sample size, which is named where it is of the tails."""
    plan, chain, slow = whole[0], load_chain(whole[0].folder), autoregressive(0.9)
    fast = np.random.default_rng(1).standard_normal(slow.shape)
    mixed = {"b1": slow, "sigma8": slow + 0.01 * fast, "fine": fast}
    some = replace(chain, parameters=mixed, logdensity=fast, projections={}, powers={})
    (reason,) = find_mixing_reasons(plan, some)
    rows = some.summary()
    assert max(row["rhat"] for row in rows.values()) < 1.1
    sizes = [min(rows[name]["ess_bulk"], rows[name]["ess_tail"]) for name in mixed]
    tails = [" (tail)" * (rows[name]["ess_tail"] < rows[name]["ess_bulk"]) for name in mixed]
    few = f"effective samples are fewer than 400 (b1 {sizes[0]:.0f}{tails[0]}, sigma8 {sizes[1]:.0f}{tails[1]})"
    assert few in reason
    assert reason.count("sampler.steps=") == 1
    needed = int(reason.rpartition("sampler.steps=")[2])
    assert needed % 12 == 0
    assert needed - 12 < slow.shape[1] * 400 / min(sizes) <= needed


def test_only_scales_with_data_are_judged(whole: tuple[InferenceJob, Listener]) -> None:
    x = np.random.default_rng(0).standard_normal((4, 1000))
    apart = x + np.arange(4)[:, None]
    chain = replace(load_chain(whole[0].folder), projections={0.1: x, 0.2: apart}, powers={0.1: x, 0.2: 3 * x + apart})
    worst = worst_scale(chain.scales(), 1.01, 400, 0.2)
    assert worst is not None
    assert worst[0] == "projection at k = 0.2"
    assert "; R-hat" not in (reason := find_mixing_reasons(whole[0], chain)[0])
    assert f"R-hat of the modes' projection at k = 0.2 h/Mpc is {worst[1]['rhat']:.3f} with" in reason
    assert worst_scale(chain.scales(), 1.01, 400, 0.19) is None
    nyquist = math.pi * 4 / 60
    assert whole[0].compared == pytest.approx(nyquist)
    corner = replace(chain, projections={1.5 * nyquist: apart}, powers={1.5 * nyquist: apart})
    assert "modes" not in "".join(find_mixing_reasons(whole[0], corner))


def test_chains_that_never_moved_are_not_trusted(whole: tuple[InferenceJob, Listener]) -> None:
    plan = whole[0]
    chain = load_chain(plan.folder)
    assert chain.density_shift.shape == chain.logdensity.shape and np.all(chain.density_shift != 0)
    still = replace(chain, parameters={"b1": np.ones((2, 36))}, logdensity=np.ones((2, 36)))
    reasons = find_reasons(plan, still)
    assert "R-hat is more than 1.01 (b1 inf, logdensity inf), and effective samples are fewer than" in reasons[0]
    assert "; the chains have not mixed, or are stuck: look at traces.png" in reasons[0]
    assert "stuck in the same place: chain 0 for 36, chain 1 for 36 of 36 draws; raise sampler.tuning_st" in reasons[1]
    still.logdensity[0] = chain.logdensity[0]
    assert [text for text in find_reasons(plan, still) if "same place: chain 1 for 36 of 36 draws" in text]
    still.logdensity[1, :17] = chain.logdensity[1, :17]
    assert "same place: chain 1 for 19 of 36 draws" in "".join(find_reasons(plan, still))


def test_the_template_and_what_is_written_read_back(tmp_path: Path) -> None:
    file = tmp_path / "template.toml"
    file.write_text(template(InferenceSettings))
    settings = read_as(InferenceSettings, file)
    assert to_toml(settings, comments=True) == template(InferenceSettings)
    file.write_text(SMALL)
    assert isinstance(read_any(file), InferenceSettings)
    file.write_text("[box]\nsize = 60.0\nmesh = 4\n")
    assert type(read_any(file)) is SimulationSettings


def test_a_mock_that_shows_nothing_is_warned_of(whole: tuple[InferenceJob, Listener], tmp_path: Path) -> None:
    plan, data, listener = replace(whole[0], folder=tmp_path), {"data": np.full((4, 4, 4), 1.5)}, Listener()
    condition_on(plan, data, Log(tmp_path, listener))
    (warned,) = listener
    assert warned.message.startswith("data are 1.5 everywhere: nothing is known of phases")


# --- counts with a selection and h, by a sampler that accepts ----------------------------------------------------


COUNTS = (
    SMALL.replace('"linear"\nbias = "eulerian"\nb1 = 1.8\nline_of_sight = "none"', '"lpt"\nb1 = 0.8')
    .replace("sigma = 0.5", 'kind = "poisson"\nnbar = 3.0\n[data]\nselection = "selection.npy"')
    .replace("mean = 1.5", "mean = 0.8")
    .replace("energy_variance = 2e-4\nsteps = 36", 'method = "hmc"\nsteps = 24')
    .replace("[devices]\n", "[devices]\nhalo = 0\n")
    .replace("a_stop = 0.5", "a_stop = 0.5\nlpt_order = 1")
    .replace("[priors]", '[priors]\nh = { kind = "normal", mean = 0.68, sd = 0.03 }')
)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_counts_with_a_selection_are_sampled_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """By programs of the chains that are compiled once."""
    np.save(tmp_path / "selection.npy", np.linspace(0.2, 1, 64).reshape(4, 4, 4))
    file, folder = tmp_path / "counts.toml", tmp_path / "run"
    file.write_text(COUNTS)
    with jax.log_compiles():
        assert command("infer", file, "--output", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"tuning 14%  step size \S+, L \S+  ", line) for line in lines)
    chunks = [line for line in lines if line.startswith("step ")]
    assert len(chunks) == 2 and all(re.search(r" gradients/s  \d+% accepted  ESS ", line) for line in chunks)
    # A finished run whose checks fail is no failed run: it says so last, and where programs read it.
    assert lines[-1].startswith("not converged: ") and "effective samples are fewer than 400" in "".join(lines[-4:])
    told = json.loads((folder / "run.json").read_text())
    assert (told["status"], told["trusted"]) == ("finished", False)
    assert lines[-1] == f"not converged: {told['reasons'][-1]}"
    assert {"maps.png", "fields.png"} < {path.name for path in folder.iterdir()}
    chain = load_chain(folder)
    assert 0 < chain.acceptance_rate.mean() < 1
    assert all(np.ptp(chain.parameters[name]) > 0 for name in ("b1", "h"))
    compiled = [match[1] for text in caplog.messages if (match := re.match(r"Compiling (?:jit\()?(\w+)", text))]
    assert [compiled.count(name) for name in ("begin", "tuning_block", "_advance")] == [1, 2, 1]
    # hmc is tuned by mclmc first.
