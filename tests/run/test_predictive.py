"""What samples predict: spectra of equally likely data, and correlation and transfer with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inferences import LENSING, SMALL, plan_of

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.observe.power import cross_power
from pmwd_dist.run.common.folder import Log, prepare_folder
from pmwd_dist.run.inference.inputs import data_of, draw_mock
from pmwd_dist.run.inference.job import InferenceJob
from pmwd_dist.run.inference.predictive import Comparison, compare, some_draws
from pmwd_dist.run.inference.verdict import find_fit_reasons
from pmwd_dist.run.settings.inference import Model as ModelSection

SIZE, DRAWS, MOCKS = 8, 40, 16
COUNTS = SMALL.replace("sigma = 0.5", 'kind = "poisson"\nnbar = 4.0')
PREDICTED, INITIAL = r"predicted $P(k)$  [(Mpc/$h)^3$]", r"$r(k)$ of initial phases"


def truth_and(folder: Path, text: str, *overrides: str) -> tuple[InferenceJob, dict[str, Any]]:
    """A plan and its mock."""
    plan = plan_of(folder / "run", f"box.mesh={SIZE}", "box.size=120", *overrides, text=text)
    prepare_folder(plan)
    return plan, data_of(plan, Log(plan.folder, lambda event: None))


def compared(plan: InferenceJob, data: dict[str, Any], noise: np.ndarray) -> Comparison:
    """Of draws that have this noise and the true parameter."""
    still, zeros = np.zeros((1, DRAWS)), np.zeros((SIZE,) * 3)
    draws = {"b1": np.full((1, DRAWS), float(data["parameters/b1"]))}
    chain = infer.Chain(draws, still, still, still, still, 1, 0, zeros, zeros, noise[:, None])
    return compare(plan.model.condition(data["data"]), chain, data, jax.random.key(5))


def signal(plan: InferenceJob, data: dict[str, Any]) -> np.ndarray:
    """P(k) of the field of the truth."""
    field, _ = plan.model.predict(jnp.asarray(data["noise"]), {"b1": jnp.asarray(data["parameters/b1"])})
    found = cross_power(field, field, plan.simulation.config, deconvolve=False)
    return np.asarray(found.power)[np.asarray(found.modes) > 0]


def ranks(plan: InferenceJob, data: dict[str, Any]) -> np.ndarray:
    """Share of the predicted spectra of the truth that are below that of the data, for data of other noise each."""
    truth = {"noise": jnp.asarray(data["noise"]), "parameters": {"b1": jnp.asarray(data["parameters/b1"])}}
    field, _ = plan.model.predict(truth["noise"], truth["parameters"])
    found = []
    for key in jax.random.split(jax.random.key(3), MOCKS):
        drawn = plan.model.likelihood.draw(key, field, truth["parameters"], plan.simulation.config)
        panels = compared(plan, data | {"data": np.asarray(drawn)}, repeated(data)).panels
        curves, observed, _ = panels[PREDICTED]
        assert observed is not None
        found.append(np.mean(curves < observed, axis=0))
    return np.array(found)


def repeated(data: dict[str, Any]) -> np.ndarray:
    return np.broadcast_to(data["noise"], (DRAWS, *(SIZE,) * 3))


def check_uniform(share: np.ndarray) -> None:
    """Ranks as of data of the same distribution, of which 39 / 41 are within the draws."""
    assert np.mean((share > 0) & (share < 1)) == pytest.approx(39 / 41, abs=0.08)
    assert share.mean() == pytest.approx(0.5, abs=0.1) and share.std() == pytest.approx(12**-0.5, abs=0.06)


@pytest.mark.usefixtures("no_checks")
def test_at_the_truth_predicted_data_are_as_the_data(tmp_path: Path) -> None:
    plan, data = truth_and(tmp_path, SMALL, "noise.seed=2")
    check_uniform(ranks(plan, data))
    found = compared(plan, data, repeated(data))
    curves, without = found.panels[PREDICTED][0], signal(plan, data)
    noise = 0.5**2 * (120 / SIZE) ** 3
    np.testing.assert_allclose((curves.mean(axis=0) - without)[2:], noise, rtol=0.05)
    assert not (np.percentile(curves, 2.5, axis=0) < without)[2:].any()  # where a band without noise would be
    (_, first), (_, mean), (_, one) = found.images
    np.testing.assert_array_equal(first, data["data"][:, :, 0])
    field, _ = plan.model.predict(jnp.asarray(data["noise"]), {"b1": jnp.asarray(data["parameters/b1"])})
    np.testing.assert_allclose(mean, field[:, :, 0], rtol=1e-6)
    assert np.std(one - mean) == pytest.approx(0.5, rel=0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("no_checks")
def test_counts_are_predicted_with_their_selection_where_the_mask_shows_them(tmp_path: Path) -> None:
    selection, mask = np.ones((SIZE,) * 3), np.ones((SIZE,) * 3)
    selection[: SIZE // 2], mask[:, :, :2] = 0.5, 0
    np.save(tmp_path / "selection.npy", selection)
    np.save(tmp_path / "mask.npy", mask)
    plan, data = truth_and(tmp_path, COUNTS, "data.selection=selection.npy", "data.mask=mask.npy")
    check_uniform(ranks(plan, data))
    data["data"][:, :, 0] = np.nan  # as unseen cells may be
    found = compared(plan, data, repeated(data))
    assert all(np.isfinite(curves).all() for curves, _, _ in found.panels.values())
    (_, first), (_, mean), (_, one) = found.images
    np.testing.assert_array_equal(first, data["data"][:, :, 2])  # the first plane that is seen
    assert one.min() >= 0 and (one == np.rint(one)).all()
    assert mean[: SIZE // 2].mean() / mean[SIZE // 2 :].mean() == pytest.approx(0.5, rel=0.3)


class Empty(infer.ForwardModel):
    """A forward model of maps that are nothing."""

    config: pmd.Config = eqx.field(static=True)
    sources: tuple[float, ...] = eqx.field(static=True, default=(0.02, 0.04))
    field: float = eqx.field(static=True, default=8.0)

    @property
    def layout(self) -> Any:
        return (2, 16, 16), super().layout[1]

    def __call__(self, noise: Any, parameters: Any) -> Any:
        return jnp.zeros((2, 16, 16)) + 0 * jnp.mean(noise)


@pytest.mark.slow
def test_angular_spectra_of_predicted_maps_are_those_of_their_noise(tmp_path: Path) -> None:
    mask = np.ones((16, 16))
    mask[:, :4] = 0
    np.save(tmp_path / "mask.npy", mask)
    wide = ["observe.light_cone.rays=16", "observe.light_cone.field=8", "data.mask=mask.npy"]
    plan = plan_of(tmp_path / "run", *wide, text=LENSING)
    model = infer.Model(plan.simulation.config, Empty(plan.simulation.config), {}, plan.model.likelihood)
    still, zeros, sigma = np.zeros((1, DRAWS)), np.zeros((4,) * 3), np.asarray(plan.model.likelihood.sigma)
    chain = infer.Chain({}, still, still, still, still, 1, 0, zeros, zeros, np.zeros((DRAWS, 1, 4, 4, 4)))
    rng, found, share = np.random.default_rng(0), [], []
    for _ in range(MOCKS):
        data = sigma * rng.standard_normal((2, 16, 16))
        data[:, :, 1] = np.nan  # behind the mask
        found.append(compare(model.condition(data), chain, {"data": data}, jax.random.key(5)))
        share += [np.mean(curves < observed, axis=0) for curves, observed, _ in found[-1].angular.values()]
    check_uniform(np.array(share))
    assert [name.partition(", ")[2] for name in found[0].angular] == ["$z = 0.02$", "$z = 0.04$"]
    pixel = np.deg2rad(8 / 16) ** 2
    for width, (curves, _, _) in zip(sigma.ravel(), found[0].angular.values(), strict=True):
        np.testing.assert_allclose(curves.mean(axis=0)[-3:], 0.75 * width**2 * pixel, rtol=0.1)  # of many modes
    assert found[0].ell[-1] < np.pi / np.deg2rad(8 / 16) and len(found[0].images) == 4


@pytest.mark.parametrize(("chunks", "chains"), [(80, 2), (160, 4), (20, 4), (3, 2), (2, 60)])
def test_some_draws_are_of_all_chains(chunks: int, chains: int) -> None:
    still = np.zeros((chains, 2 * chunks))
    label = np.arange(chunks * chains, dtype=float).reshape(chunks, chains)
    numbers = {"b1": np.repeat(label.T, 2, axis=1)}
    noise = np.broadcast_to(label[..., None, None, None], (chunks, chains, 1, 1, 1))
    zeros = np.zeros((1, 1, 1))
    found, drawn = some_draws(infer.Chain(numbers, still, still, still, still, 1, 0, zeros, zeros, noise))
    np.testing.assert_array_equal(found.ravel(), drawn["b1"])
    places = found.ravel().astype(int)
    assert set(places % chains) == set(range(chains)) and places[-1] == label[-1, -1]
    assert len(np.unique(places)) == len(places) <= max(40, chains)


@pytest.mark.usefixtures("no_checks")
def test_correlation_and_transfer_with_the_truth(tmp_path: Path) -> None:
    plan, data = truth_and(tmp_path, SMALL)
    factors = np.linspace(-0.5, 2.4, DRAWS)  # none is 0
    scaled = compared(plan, data, factors[:, None, None, None] * data["noise"])
    correlation, transfer = (scaled.panels[name][0] for name in (INITIAL, r"$T(k)$ of initial modes"))
    np.testing.assert_allclose(correlation, np.sign(factors)[:, None] + 0 * correlation, rtol=1e-6)
    np.testing.assert_allclose(transfer, np.abs(factors)[:, None] + 0 * transfer, rtol=1e-6)
    others = np.random.default_rng(1).standard_normal((DRAWS, *(SIZE,) * 3))
    half = compared(plan, data, data["noise"] + others)
    correlation, transfer = (half.panels[name][0] for name in (INITIAL, r"$T(k)$ of initial modes"))
    np.testing.assert_allclose(correlation.mean(axis=0)[2:], 2**-0.5, atol=0.05)
    np.testing.assert_allclose(transfer.mean(axis=0)[2:], 2**0.5, atol=0.1)


@pytest.mark.slow
def test_a_misfit_that_is_no_chance_is_a_reason() -> None:
    fit = {"variance of residuals": infer.Check(1.08, 4.5), "skewness of residuals": infer.Check(np.nan, 1.0)}
    (reason,) = find_fit_reasons(fit)
    assert reason.startswith("the model does not describe the data: variance of residuals: 1.080 of the predicted one")
    assert "+4.5 standard deviations, p = 6.8e-06, the least of 2; repeat with finer box.particles" in reason
    assert "of the predicted" not in find_fit_reasons({"skewness of residuals": infer.Check(np.nan, -5.0)})[0]
    assert not find_fit_reasons(fit | {"variance of residuals": infer.Check(1.02, 2.5)}) and not find_fit_reasons({})
    assert find_fit_reasons({"variance of residuals": infer.Check(1.02, 2.6)})  # one alone need not be as small
    bands = {"k < 0.1": (1.0, 0.1), "k = 0.1 to 0.2": (1.1, 3.0), "k > 0.2": (1.4, 9.0)}
    fit = {f"power of residuals at {name}": infer.Check(*x) for name, x in bands.items()}
    fit |= {f"residual-prediction correlation at {name}": infer.Check(np.nan, x[1]) for name, x in bands.items()}
    for bias, remedy in (("lagrangian", "use the model.window of"), ("eulerian", 'use bias = "lagrangian" and the mo')):
        (reason,) = find_fit_reasons(fit, ModelSection(bias=bias))
        assert f"windows: {remedy}" in reason and '"nearest" of galaxies counted in cells, in place of "cloud' in reason
    (reason,) = find_fit_reasons(fit, ModelSection(bias="lagrangian", gravity="lpt"), "cloud-in-cell")
    assert reason.endswith('finer box.particles, or extend the model, as by model.gravity = "nbody"')


def test_a_mock_says_the_share_of_negative_densities(tmp_path: Path) -> None:
    told: list[str] = []
    plan = plan_of(tmp_path / "run", "box.size=16", text=COUNTS)
    mock = draw_mock(plan, told.append)
    field, _ = plan.model.predict(jnp.asarray(mock["noise"]), {"b1": jnp.asarray(mock["parameters/b1"])})
    share = 100 * np.mean(np.asarray(field) < 0)
    assert share > 10
    assert [line.partition(",")[0] for line in told] == [f"mock: 1 + delta_g is negative in {share:.2g} % of the cells"]
