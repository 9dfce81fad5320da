"""Chains on disk, of models whose posterior is known: data = 1 + bias noise + error in each cell."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest
from linear_posteriors import BIAS, OPTIONS, SHAPE, SIGMA, forward, posterior_of, starts
from xarray import open_datatree

import pmwd_dist as pmd
from benchmarks import exact_marginals
from pmwd_dist import infer
from pmwd_dist.infer import sampling
from pmwd_dist.infer.chain.diagnostics import StepErrors
from pmwd_dist.infer.chain.folder import ChainFolder, identity_of
from pmwd_dist.infer.chain.progress import Progress, displayed, is_shown
from pmwd_dist.infer.constants import BANDS
from pmwd_dist.infer.tuning import loop
from pmwd_dist.infer.tuning.schedule import StepSize
from pmwd_dist.io.arrays import read_arrays, write_arrays
from pmwd_dist.pm.noise import white_noise
from pmwd_dist.pm.status import Code, SimulationError


class Logarithmic(infer.Gaussian):
    """A user's likelihood, of which a negative prediction has no density."""

    def logdensity(self, data: Any, field: Any, parameters: Any, config: Any) -> Any:
        return jnp.sum(jnp.log(field))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[infer.Posterior, Path, infer.Chain]:
    """Two chains of six chunks, of the noise and a parameter of which the data know nothing."""
    folder = tmp_path_factory.mktemp("chains") / "run"
    posterior = posterior_of(c=infer.Normal(1.5, 0.2))
    chain = infer.sample(posterior, starts(posterior), steps=600, output=folder, keep_noise=True, **OPTIONS)
    return posterior, folder, chain


def test_band_statistics_follow_the_modes(run: tuple[Any, ...]) -> None:
    """Projections and powers of the draws of which the noise was kept, by NumPy, and their table."""
    _, _, chain = run
    k = 2 * np.pi * np.fft.fftfreq(4, 20.0)
    size = np.sqrt(sum(component**2 for component in np.meshgrid(k, k, k, indexing="ij")))
    edges = np.geomspace(2 * np.pi / 80, np.pi / 20 * np.sqrt(3), BANDS + 1)
    band = np.digitize(size * (1 + 1e-6), edges[1:-1])
    config = pmd.Config(box_size=80.0, mesh_shape=4, decomposition=(1, 1))
    direction = np.fft.fftn(white_noise(jax.random.key(0), config), norm="ortho")
    modes = np.fft.fftn(chain.noise, axes=(2, 3, 4), norm="ortho")
    last = np.arange(1, 7) * 50 - 1
    there = [b for b in range(BANDS) if ((band == b) & (size > 0)).any()]
    assert len(there) == len(chain.powers) == 8
    for b, wavenumber in zip(there, chain.powers, strict=True):
        assert edges[b] < wavenumber < edges[b + 1]
        here = (band == b) & (size > 0)
        unit = direction[here] / np.linalg.norm(direction[here])
        np.testing.assert_allclose(chain.powers[wavenumber][:, last].T, np.mean(abs(modes[:, :, here]) ** 2, axis=2))
        np.testing.assert_allclose(chain.projections[wavenumber][:, last].T, (modes[:, :, here] @ unit.conj()).real)
    table = chain.scales()
    assert len(table) == 16 and all(row["rhat"] < 1.2 and row["ess_bulk"] > 20 for row in table.values())
    sd = [row["sd"] for name, row in table.items() if name.startswith("projection at k = ")]
    np.testing.assert_allclose(sd, (1 + (BIAS / SIGMA) ** 2) ** -0.5, rtol=0.3)


def test_chains_open_in_arviz(run: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tree of xarray, also after a round trip by netCDF and zarr."""
    _, folder, chain = run
    assert chain.energy_change.shape == (2, 600) and chain.noise.shape == (6, 2, *SHAPE)
    tree = infer.as_arviz(infer.load_chain(folder))
    tree.to_netcdf(tmp_path / "chain.nc")
    tree.to_zarr(tmp_path / "chain.zarr", zarr_format=2)  # zarr warns of the summary of metadata in format 3
    for there in (tree, *(open_datatree(tmp_path / name) for name in ("chain.nc", "chain.zarr"))):
        posterior, stats, noise = (there[name] for name in ("posterior", "sample_stats", "noise"))
        assert posterior["c"].dims == ("chain", "draw") and set(posterior.variables) == {"chain", "draw", "c"}
        np.testing.assert_array_equal(posterior["c"], chain.parameters["c"])
        np.testing.assert_array_equal(posterior["draw"], np.arange(300))
        np.testing.assert_array_equal(stats["lp"], chain.logdensity)
        np.testing.assert_array_equal(stats["energy_change"], chain.energy_change[:, 1::2])
        assert stats["power"].dims == ("chain", "draw", "k")
        np.testing.assert_array_equal(stats["k"], list(chain.powers))
        np.testing.assert_array_equal(stats["power"][..., 2], list(chain.powers.values())[2])
        assert noise["noise"].dims == ("chain", "draw", "x", "y", "z")
        np.testing.assert_array_equal(noise["noise"].sel(draw=199), chain.noise[3])
    bare = eqx.tree_at(lambda x: (x.noise, x.powers, x.projections), chain, (None, {}, {}))
    assert set(infer.as_arviz(bare)) == {"posterior", "sample_stats"}
    monkeypatch.setattr("pmwd_dist.infer.chain.export.version", {"arviz": "0.23.4"}.get)  # takes no trees
    monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(from_datatree=lambda tree: ("converted", set(tree))))
    assert infer.as_arviz(bare) == ("converted", {"posterior", "sample_stats"})


def test_chains_open_in_getdist(run: tuple[Any, ...]) -> None:
    _, _, chain = run
    ours = infer.as_getdist(chain, labels={"c": "c_0"}, ranges={"c": (0.0, None)})
    assert ours.getParamNames().list() == ["c"] and len(ours.chain_offsets) - 1 == 2
    np.testing.assert_array_equal(ours["c"], chain.parameters["c"].ravel())
    np.testing.assert_array_equal(ours.loglikes, -chain.logdensity.ravel())
    marginal = ours.getMargeStats().parWithName("c")
    assert marginal.mean == pytest.approx(chain.summary()["c"]["mean"])
    assert marginal.err == pytest.approx(chain.summary()["c"]["sd"], rel=1e-2)
    assert marginal.limits[0].lower < marginal.mean < marginal.limits[0].upper  # of a density that was smoothed
    assert ours.getGelmanRubin() < 0.2
    several = {"sigma8": chain.parameters["c"], "b1": chain.parameters["c"], "c": chain.parameters["c"]}
    named = infer.as_getdist(eqx.tree_at(lambda x: x.parameters, chain, several), labels={"c": "c_0"}).getParamNames()
    assert {x.name: x.label for x in named.names} == {"sigma8": r"\sigma_8", "b1": "b_1", "c": "c_0"}
    for labels in (["c"], {"b1": "b_1"}):
        with pytest.raises(ValueError, match=r"labels=.* must be a mapping from some of the parameters \['c'\]; pass"):
            infer.as_getdist(chain, labels=labels)
    with pytest.raises(ValueError, match=r"chain.parameters={} is empty; the white noise alone has no contours"):
        infer.as_getdist(eqx.tree_at(lambda x: x.parameters, chain, {}))


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(run: tuple[Any, ...], tmp_path: Path) -> None:
    posterior, _, chain = run
    again = tmp_path / "again"
    infer.sample(posterior, starts(posterior), steps=100, output=again, keep_noise=True, **OPTIONS)
    early = (again / "state.npz").read_bytes()
    infer.sample(posterior, starts(posterior), steps=200, output=again, keep_noise=True, **OPTIONS)
    (again / "state.npz").write_bytes(early)  # as if it was killed between a chunk and its state
    (again / ".chunk_00002.npz.part").write_bytes(b"half")
    other = infer.sample(posterior, starts(posterior), steps=600, output=again, keep_noise=True, **OPTIONS)
    for x, y in zip(jax.tree.leaves(other), jax.tree.leaves(chain), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_finished_folder_is_read_without_compiling_chunks(
    run: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, folder, chain = run
    monkeypatch.setattr(sampling, "_advance", None)
    read = infer.sample(posterior, starts(posterior), steps=600, output=folder, keep_noise=True, **OPTIONS)
    np.testing.assert_array_equal(read.logdensity, chain.logdensity)


@pytest.mark.slow
def test_a_tuning_that_was_killed_goes_on_to_the_same_bits(
    run: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, folder, _ = run
    written: list[int] = []

    def kill(self: Any, state: Any) -> None:
        write_state(self, state)
        written.append(len(written))
        if len(written) in (3, 4, 7, 12):
            raise KeyboardInterrupt

    write_state = ChainFolder.write_state
    monkeypatch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(ChainFolder, "write_state", kill)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            infer.sample(posterior, starts(posterior), steps=100, output=tmp_path, keep_noise=True, **OPTIONS)
    assert len(written) == 12  # of 14 blocks
    monkeypatch.undo()
    infer.sample(posterior, starts(posterior), steps=100, output=tmp_path, keep_noise=True, **OPTIONS)
    ours, whole = (read_arrays(path / "chunk_00000.npz") for path in (tmp_path, folder))
    for name, values in whole.items():
        np.testing.assert_array_equal(ours[name], values)


@pytest.mark.slow
def test_hmc_is_tuned_to_its_acceptance(run: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, _, reference = run
    options = OPTIONS | {"thin": 1, "tuning_steps": 400}
    chain = infer.sample(posterior, starts(posterior), steps=200, output=tmp_path, method="hmc", **options)
    assert 0.65 < chain.acceptance_rate.mean() < 0.95
    longer = infer.sample(posterior, starts(posterior), steps=250, output=tmp_path, method="hmc", **options)
    assert longer.logdensity.shape[1] == 250
    counts = read_arrays(tmp_path / "chunk_00000.npz")["gradients"]
    assert (counts[0] == counts[1]).all() and len(np.unique(counts)) > 1  # lengths vary, and chains keep step
    assert not chain.failures
    assert chain.gradients == sum(read_arrays(tmp_path / f"chunk_{i:05d}.npz")["gradients"].sum() for i in range(4))
    sd = np.sqrt(np.mean(reference.noise_sd**2))
    assert np.sqrt(np.mean((chain.noise_mean - reference.noise_mean) ** 2)) < 0.4 * sd
    np.testing.assert_allclose(np.mean(chain.noise_sd**2), sd**2, rtol=0.25)
    with pytest.raises(ValueError, match=r"has a chain with method=.*, not 'mclmc'"):
        infer.sample(posterior, starts(posterior), steps=200, output=tmp_path, **options)
    errors = StepErrors(["of steps that are corrected"], [], ["c (R-hat 1.20, 9 effective samples)"], 1.0, 1.0)
    monkeypatch.setattr(sampling, "step_errors", lambda *_: errors)
    monkeypatch.setattr(sampling, "FEW_FAILURES", -1.0)  # so that none are too many
    with (
        pytest.warns(UserWarning, match="^0 of 500 steps failed, and the draws leave that region out; look at "),
        pytest.warns(UserWarning, match="^chains have not mixed: c .R-hat 1.20, 9 effective samples.; "),
    ):
        infer.sample(posterior, starts(posterior), steps=250, output=tmp_path, method="hmc", **options)


def test_rounding_does_not_change_the_identity_of_a_model() -> None:
    """A chain goes on where growth factors and P(k), which follow from the cosmology, have other last digits."""
    config = pmd.Config(box_size=80.0, mesh_shape=4, decomposition=(1, 1))
    forward = infer.Simulation(config, jax_cosmo.Planck15(), gravity="lpt", bias="b1")

    def rounded(forward: Any) -> Any:
        return forward.cosmo.factors, forward.linear_power.power

    elsewhere = eqx.tree_at(rounded, forward, replace_fn=lambda x: x * (1 + 1e-7))
    assert all((x != y).any() for x, y in zip(rounded(forward), rounded(elsewhere), strict=True))
    assert identity_of({"model": elsewhere}) == identity_of({"model": forward})
    other = eqx.tree_at(lambda forward: forward.cosmo.cosmo.h, forward, replace_fn=lambda h: h + 1e-7)
    assert identity_of({"model": other}) != identity_of({"model": forward})
    assert "Gaussian(sigma=0.5, " in identity_of({"likelihood": infer.Gaussian(0.5)})["likelihood"]  # a message has it


def test_a_chain_of_another_model_is_not_continued(run: tuple[Any, ...], tmp_path: Path) -> None:
    posterior, folder, _ = run
    copy = shutil.copytree(folder, tmp_path / "copy")
    other = posterior_of(c=infer.Normal(1.5, 0.3))
    with pytest.raises(ValueError, match=r"has a chain with priors=.*sd=0.2.*, not .*sd=0.3.*; use another folder"):
        infer.sample(other, starts(other), steps=600, output=copy, keep_noise=True, **OPTIONS)
    moved = infer.Posterior(posterior.model, posterior.data + 1, posterior.preconditioner)
    with pytest.raises(ValueError, match=r"has a chain with data=float64\[4, 4, 4\]:"):
        infer.sample(moved, starts(posterior), steps=600, output=copy, keep_noise=True, **OPTIONS)


def test_moments_agree_with_the_posterior(run: tuple[Any, ...]) -> None:
    posterior, _, chain = run
    variance = 1 / (1 + (BIAS / SIGMA) ** 2)
    mean = variance * BIAS / SIGMA**2 * (np.asarray(posterior.data) - 1)
    away = (chain.noise_mean - mean) / np.sqrt(variance)
    assert np.sqrt(np.mean(away**2)) < 0.2  # over 64 cells; 0.1 for 100 effective draws
    np.testing.assert_allclose(np.mean(chain.noise_sd**2), variance, rtol=0.15)
    c = chain.summary()["c"]
    assert abs(c["mean"] - 1.5) < 5 * 0.2 / np.sqrt(c["ess_bulk"])
    assert c["ess_bulk"] > 30 and c["sd"] == pytest.approx(0.2, rel=0.4)


def test_chains_of_other_data_take_a_tuning(run: tuple[Any, ...], tmp_path: Path) -> None:
    """The same L and step, and another posterior that is right; a tuning of anything else is refused."""
    posterior, folder, _ = run
    infer.load_tuning(folder).save(tmp_path / "tuning.npz")
    saved = infer.load_tuning(tmp_path / "tuning.npz")
    other = posterior.model.condition(1 + BIAS * np.random.default_rng(1).standard_normal(SHAPE))
    options = OPTIONS | {"tuning": saved, "steps": 600, "keep_noise": True}
    chain = infer.sample(other, starts(other), output=tmp_path / "run", **options)
    assert (saved.L, saved.step_size) == tuning(folder) == tuning(tmp_path / "run")
    test_moments_agree_with_the_posterior((other, tmp_path / "run", chain))
    ours, theirs = (read_arrays(path / "state.npz") for path in (tmp_path / "run", folder))
    for name in ("scale", "stretch", "shift", "centre", "factor"):
        np.testing.assert_array_equal(ours[f"adaptation/{name}"], theirs[f"adaptation/{name}"])
    assert np.std(ours["adaptation/mean"] - theirs["adaptation/mean"]) > 0.1  # of the data
    for wrong, changes, name in (
        (posterior_of(c=infer.Normal(1.5, 0.3)), {}, "priors"),
        (posterior_of(lambda noise, p: noise + 0 * p["c"], c=infer.Normal(1.5, 0.2)), {}, "model"),
        (other, {"method": "hmc"}, "method"),
        (other, {"energy_variance": 1e-4}, "energy_variance"),
        (other.weighted(0.1), {}, "weight"),
    ):
        with pytest.raises(ValueError, match=f"tuning is of chains with {name}=.*, not .*; leave it out: this post"):
            infer.sample(wrong, starts(wrong), output=tmp_path / "no", **options | changes)
    with pytest.raises(ValueError, match=r"tuning is no tuning; use infer.load_tuning\(path\)"):
        infer.sample(other, starts(other), output=tmp_path / "no", **options | {"tuning": "runs/mock_0"})
    lacking = saved._replace(arrays={x: y for x, y in saved.arrays.items() if x != "adaptation/scale"})
    with pytest.raises(ValueError, match="tuning is of another version; tune chains again"):
        infer.sample(other, starts(other), output=tmp_path / "no", **options | {"tuning": lacking})
    with pytest.raises(ValueError, match="path=.*no' holds no tuning; name the folder"):
        infer.load_tuning(tmp_path / "no")
    (tmp_path / "half").mkdir()
    arrays = {name: x for name, x in ours.items() if not name.startswith("tuning/")}
    write_arrays(tmp_path / "half/state.npz", arrays, {"identity": {}})
    with pytest.raises(ValueError, match="half' has chains whose tuning has not ended"):
        infer.load_tuning(tmp_path / "half")


def tuning(folder: Path) -> tuple[np.ndarray, ...]:
    """L and the step size that the tuning of a chain has found."""
    state = read_arrays(folder / "state.npz")
    return state["tuning/L"], state["tuning/step_size"]


@pytest.fixture
def long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is 1.8 times as long has 34 times the energy variance."""
    settled = StepSize.settled
    monkeypatch.setattr(StepSize, "settled", lambda step: settled(step)._replace(value=1.8 * step.value))


@pytest.mark.slow
@pytest.mark.usefixtures("long_steps")
def test_chains_start_over_where_their_steps_are_too_long(run: tuple[Any, ...], tmp_path: Path) -> None:
    """With a burn-in, and to the same bits if they were stopped. Draws that were returned stay."""
    posterior, folder, _ = run
    told = list[infer.Progress]()
    options = OPTIONS | {"keep_noise": True}
    chain = infer.sample(
        posterior, starts(posterior), steps=400, output=tmp_path / "a", listener=told.append, **options
    )
    again = [one for one in told if one.restarts and not one.chunks]
    assert told[0].step_size > 1.5 * tuning(folder)[1]
    assert again and [one.restarts for one in again] == list(range(1, len(again) + 1))
    assert told[-1].step_size == pytest.approx(0.75 ** len(again) * told[0].step_size)
    assert infer.energy_errors(chain.energy_change, 65)["variance"] < 4e-3
    assert [path.name for path in sorted((tmp_path / "a").glob("chunk_*"))] == [f"chunk_0000{i}.npz" for i in range(4)]
    assert chain.logdensity.shape == (2, 200) and chain.noise.shape[0] == 4
    assert chain.gradients > 2 * 400 + len(again) * 2 * 2 * 100 - 1  # each time at least a chunk and a burn-in
    np.testing.assert_allclose(chain.noise_mean, np.mean(chain.noise, axis=(0, 1)), atol=1.5 * np.max(chain.noise_sd))

    def stop(progress: infer.Progress) -> None:
        raise KeyboardInterrupt

    for _ in told:
        with pytest.raises(KeyboardInterrupt):
            infer.sample(posterior, starts(posterior), steps=400, output=tmp_path / "b", listener=stop, **options)
    other = infer.sample(posterior, starts(posterior), steps=400, output=tmp_path / "b", **options)
    for x, y in zip(jax.tree.leaves(other), jax.tree.leaves(chain), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.usefixtures("long_steps")
def test_sample_warns_of_steps_that_stay_too_long_and_keeps_returned_draws(
    run: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, _, _ = run
    message = (
        "steps of MCLMC are too long: the variance of the energy error is up to .* a dimension in a chain, and .* "
        "where c is .*; tune for longer, or use a smaller energy_variance"
    )
    monkeypatch.setattr(sampling, "MOST_RESTARTS", 0)
    with pytest.warns(UserWarning, match=message):
        first = infer.sample(posterior, starts(posterior), steps=100, output=tmp_path, **OPTIONS)
    monkeypatch.setattr(sampling, "MOST_RESTARTS", 6)
    with pytest.warns(UserWarning, match=message):
        chain = infer.sample(posterior, starts(posterior), steps=400, output=tmp_path, **OPTIONS)
    np.testing.assert_array_equal(chain.logdensity[:, :50], first.logdensity)


@pytest.mark.filterwarnings("ignore:steps of MCLMC are too long")
def test_a_chunk_in_which_chains_diverge_is_drawn_again(
    run: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half the step, twice: 6, 3 and 1.5 steps have 5e4, 730 and 11 times the energy variance, at most 100."""
    told, settled = list[infer.Progress](), StepSize.settled
    monkeypatch.setattr(StepSize, "settled", lambda step: settled(step)._replace(value=6 * step.value))
    monkeypatch.setattr(sampling, "MOST_RESTARTS", 0)
    how = OPTIONS | {"steps": 100, "output": tmp_path, "listener": told.append}
    chain = infer.sample(run[0], starts(run[0]), **how)
    assert infer.energy_errors(chain.energy_change, 65)["variance"] < 0.1
    assert chain.gradients == 2 * 100 * 3 and told[0].step_size == told[1].step_size


def test_failures_stop_a_run(run: tuple[Any, ...], tmp_path: Path) -> None:
    posterior, folder, _ = run
    options = OPTIONS | {"most_failures": -1.0, "keep_noise": True}  # so that none are too many
    shutil.copytree(folder, tmp_path / "run")
    with pytest.raises(
        SimulationError, match="0.0% of the steps of chunk 6 failed, more than -100.0%; tune for longer"
    ):
        infer.sample(posterior, starts(posterior), steps=700, output=tmp_path / "run", **options)
    lost = jax.tree.map(lambda x: jnp.inf * x, starts(posterior))
    with pytest.raises(
        SimulationError,
        match="the log density is not finite where 2 of 2 chains begin, as chain 0 does with c = .*, where the "
        "prediction is not finite in 64 of 64 cells; begin elsewhere",
    ):
        infer.sample(posterior, lost, steps=100, output=tmp_path / "b", **OPTIONS)
    for predict, message in (
        (lambda noise, _: -1 - noise**2, "where the prediction is negative in 64 of 64 cells"),
        (lambda noise, _: (noise, jnp.asarray(Code.NOT_FINITE)), "where the simulation fails; begin elsewhere"),
    ):
        model = infer.Model(posterior.model.config, predict, {}, Logarithmic(SIGMA))
        begun = model.condition(np.asarray(posterior.data))
        with pytest.raises(SimulationError, match=message):
            infer.sample(begun, starts(begun), steps=100, output=tmp_path / "d", **OPTIONS)
    steep = posterior_of(lambda noise, _: 1 + jnp.sqrt(jnp.abs(noise)))  # of infinite slope at 0
    flat = {"noise": jnp.ones((2, *SHAPE)).at[1].set(0), "parameters": {}}
    with pytest.raises(
        SimulationError, match="the slope of the log density is not finite where 1 of 2 .* as chain 1 does"
    ):
        infer.sample(steep, flat, steps=100, output=tmp_path / "c", **OPTIONS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_default_chains_have_the_exact_marginals() -> None:
    """Widths to 3 %, shifts to 0.05 standard deviations, within errors. A warning of `sample` is an error here."""
    options = {"steps": 2500, "chunk": 500, "tuning_steps": 1000}
    table = exact_marginals.compared(exact_marginals.case(0), seed=0, **options)
    for name in ("b1", "sigma8"):
        row = table[name]
        assert row["rhat"] < 1.02
        assert abs(row["shift"]) < 0.05 + 3 * row["shift error"] < 0.2
        assert abs(row["width"] - 1) < 0.03 + 3 * row["width error"] < 0.12


NOISE = np.ones((2, *SHAPE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"energy_variance": 5.0}, "energy_variance=5.0 must be a .* number from 1e-15 to 0.002; use 0.001, or less"),
        ({"steps": 150}, r"steps=150 must be a multiple of thin \* chunk = 100"),
        ({"tuning_steps": 0}, "tuning_steps=0 must be a whole number, 40 or more"),
        ({"key": 3}, "key=3 must be a key of jax.random"),
        ({"keep_noise": "no"}, "keep_noise='no' must be True or False"),
        ({"most_failures": np.nan}, "most_failures=nan must be a share of the steps"),
        ({"method": "nuts"}, "method='nuts' must be one of mclmc, hmc; NumPyro and blackjax have others"),
        ({"posterior": 3}, r"posterior is no posterior; use model.condition\(data\)"),
        ({"positions": {"noise": NOISE}}, r"positions={'noise': \(2, 4, 4, 4\)} must have noise of shape .* \[\] of"),
        (
            {"positions": {"noise": NOISE[0], "parameters": {}}},
            r"shape \(chains,\), unlike positions\['noise'\]; use jax.vmap\(posterior.initial\)\(keys\)",
        ),
        ({"positions": {"noise": NOISE.astype(int), "parameters": {}}}, r"positions\['noise'\].dtype='int64' must be"),
        ({"positions": {"noise": NOISE[:0], "parameters": {}}}, r"noise': \(0, 4, 4, 4\), .* must have noise of shape"),
        (
            {"positions": {"noise": NOISE, "parameters": {"b1": np.zeros(2)}}},
            r"positions={.* must .*, unlike positions\['parameters'\]\['b1'\]; use",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {"posterior": posterior_of(), "positions": {"noise": NOISE, "parameters": {}}} | OPTIONS
    arguments |= {"steps": 100, "output": tmp_path / "run"}
    with pytest.raises(ValueError, match=message):
        infer.sample(**(arguments | changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_failures_of_the_tuning_stop_a_run(tmp_path: Path) -> None:
    """Of a simulation that fails where chains should go; those before the last stage are no matter."""

    def fails(noise: Any, parameters: Any) -> Any:
        return forward(noise, parameters), jnp.where(noise[0, 0, 0] > -1.5, 2, 0)

    posterior = posterior_of(fails)
    positions = {"noise": jnp.zeros((2, *SHAPE)).at[:, 0, 0, 0].set(-2), "parameters": {}}
    options = OPTIONS | {"tuning_steps": 200, "steps": 100, "most_failures": 0.01}
    with pytest.raises(SimulationError, match="of the steps of the last stage of the tuning failed") as whole:
        infer.sample(posterior, positions, output=tmp_path / "whole", **options)
    assert float(str(whole.value).partition("%")[0]) > 1


# --- progress ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("done", "first"), [(0, "compiling the first block"), (1, "1 of 2 chunks are on disk")])
def test_stages_are_shown_and_an_error_ends_the_line(done: int, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []
    with suppress(RuntimeError), displayed(done, 2, calls.append, calls.append) as (sampled, tuned):
        tuned(SimpleNamespace(share=0.5, step_size=0.25, L=3.0))
        for chunks in range(3):
            sampled(Progress(chunks, 0.25, 3.0, {}, restarts=chunks // 2))
        raise RuntimeError
    out, err = capsys.readouterr()
    assert [getattr(call, "chunks", call) for call in calls[1:]] == [0, 1, 2]  # the user's listeners
    sampling = [f"sampling {50 * i}%, {i} of 2 chunks{', restart 1' * (i // 2)}" for i in range(3)]
    lines = [first, "tuning 50%, step size 0.25, L 3", *sampling]
    assert out == "" and err == "".join(f"\r{text:<72}" for text in lines) + "\n"


def test_progress_is_shown_in_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert [is_shown(x) for x in (None, True, False)] == [False, True, False]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert [is_shown(x) for x in (None, True, False)] == [True, True, False]
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert is_shown(None)


# --- maxima ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pdims", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_the_maximum_keeps_the_parameters(pdims: tuple[int, int]) -> None:
    posterior = posterior_of(pdims=pdims, b1=infer.Normal(1.5, 0.2))
    start = posterior.model.draw(jax.random.key(3), b1=1.7)
    best = infer.maximise(posterior, start, steps=30)
    variance = 1 / (1 + (1.7 / SIGMA) ** 2)
    expected = variance * 1.7 / SIGMA**2 * (np.asarray(posterior.data) - 1)
    np.testing.assert_allclose(best.position["noise"], expected, atol=1e-4)
    assert best.position["parameters"] == start["parameters"]
    assert best.logdensity == max(best.history) > best.history[0]


def test_maximising_needs_a_finite_first_density() -> None:
    posterior = posterior_of()
    start = posterior.model.draw(jax.random.key(3))
    with pytest.raises(ValueError, match="steps=0 must be a whole number, 1 or more"):
        infer.maximise(posterior, start, steps=0)
    with pytest.raises(SimulationError, match="the log density is not finite at the first position"):
        infer.maximise(posterior, jax.tree.map(lambda x: x * np.inf, start), steps=1)
