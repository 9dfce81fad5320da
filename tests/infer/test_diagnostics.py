"""Diagnostics of chains."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pmwd_dist import infer
from pmwd_dist.infer import sampling
from pmwd_dist.infer.chain.chain import Moments, Restarts
from pmwd_dist.infer.chain.diagnostics import step_errors, stuck


def test_a_single_chain_is_compared_with_itself() -> None:
    x = np.random.default_rng(0).standard_normal((1, 400))
    assert infer.rhat(x) == pytest.approx(1, abs=0.02)
    assert infer.rhat(x + np.linspace(0, 3, 400)) > 1.3
    assert np.isnan(infer.rhat(x[:, :7])) and np.isfinite(infer.rhat(x[:, :8]))


def test_independent_draws_count_fully_and_correlated_ones_partly() -> None:
    rng = np.random.default_rng(1)
    draws = {"a": rng.standard_normal((4, 1000)), "b": np.repeat(rng.standard_normal((4, 50)), 20, axis=1)}
    table = infer.summary(draws)
    assert table["a"]["rhat"] < 1.01 and table["a"]["ess_bulk"] > 3000
    assert 100 < table["b"]["ess_bulk"] < 400  # 200 different values
    sizes = [infer.ess_mean(x) for x in draws.values()]
    harmonic = len(sizes) / sum(1 / size for size in sizes)
    assert infer.evaluations_per_ess(draws, 8000) == pytest.approx(8000 / harmonic)
    stuck = np.stack([np.zeros(100), np.ones(100)])
    assert infer.rhat(stuck) > 1e6
    still = np.ones((1, 100))  # R-hat of one chain that never moved was 1, and all of its draws counted
    assert infer.rhat(still) == np.inf
    assert infer.ess_bulk(still) == infer.ess_tail(still) == infer.ess_mean(still) == 1


def test_energy_errors_are_per_dimension() -> None:
    x = np.random.default_rng(2).standard_normal((2, 5000)) * np.sqrt(1000 * 5e-4)
    table = infer.energy_errors(x, 1000)
    assert table["variance"] == pytest.approx(5e-4, rel=0.05)
    assert table["outliers"] == 0
    x[0, 7] = 100.0
    assert infer.energy_errors(x, 1000)["outliers"] == pytest.approx(1e-4)
    modes = np.zeros((9, 37, 3))  # 999
    chain = infer.Chain({"b1": x}, x, x, x, x, 4, 0, modes, modes, None)
    rows = chain.energy_errors()
    assert list(rows) == ["chain 0", "chain 1", "all"]
    assert rows["all"] == infer.energy_errors(x, 1000) and rows["chain 1"] == infer.energy_errors(x[1:], 1000)
    assert rows["chain 0"]["outliers"] == 2e-4 and rows["chain 1"]["outliers"] == 0


def test_stuck_chains_are_detected() -> None:
    x = np.random.default_rng(3).standard_normal((5, 100))
    x[1], x[2, 10:61], x[3, 50:], x[4, ::2] = 1.0, 2.0, 3.0, 4.0  # the last returns each time
    assert stuck(x) == {1: 100, 2: 51}
    assert stuck(x[:, :1]) == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: infer.rhat(np.zeros((2, 3))), r"draws.shape=\(2, 3\) must be \(chains, draws\) with 4 draws or more"),
        (lambda: infer.rhat(np.full((2, 9), np.nan)), "draws holds values that are no finite numbers"),
        (lambda: infer.rhat("x"), r"draws.shape=\(\) must be \(chains, draws\)"),
        (lambda: infer.summary({"a": np.ones(9)}), r"draws.shape=\(9,\) must be"),
        (lambda: infer.summary(np.ones((2, 9))), "draws is a ndarray and must be a mapping from names; pass chain.par"),
        (lambda: infer.evaluations_per_ess(np.ones((2, 9)), 1), "draws is a ndarray and must be a mapping"),
        (lambda: infer.evaluations_per_ess({}, 1), "draws={} has no parameters"),
        (lambda: infer.step_bias(np.ones((2, 9)), np.ones((3, 9))), r"density_shift.shape=\(3, 9\) is not that"),
        (lambda: infer.energy_errors(np.ones((2, 0)), 1), "with 1 draws or more"),
        (lambda: infer.energy_errors(np.full((2, 9), np.nan), 1), "draws holds values that are no finite numbers"),
        (lambda: infer.as_getdist("i1"), "chain is a str and must be an infer.Chain; infer.load_chain reads one"),
        (lambda: infer.as_arviz("i1"), "chain is a str and must be an infer.Chain"),
        (lambda: infer.energy_errors(np.ones((2, 9)), 0), "dimensions=0 must be a whole number, 1 or more"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_draws_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bias_of_a_slow_parameter_is_not_underestimated() -> None:
    """About the means of short chains most of its variance is gone."""
    rng, keep, found = np.random.default_rng(0), np.exp(-1 / 30), []
    for _ in range(200):
        x = np.zeros((4, 300))
        x[:, 0] = rng.standard_normal(4)
        for i in range(1, 300):
            x[:, i] = keep * x[:, i - 1] + np.sqrt(1 - keep**2) * rng.standard_normal(4)
        found.append(infer.step_bias(x, 0.5 * x + 0.1 * rng.standard_normal(x.shape))[0])
    assert 0.45 < np.median(found) < 0.6


def test_errors_of_steps_are_told_from_chains_that_have_not_mixed() -> None:
    """Unstable steps are shortened a little, stable ones by their bias, and those of unmixed chains not at all."""
    rng = np.random.default_rng(0)
    x, energy = rng.standard_normal((2, 4, 1000))
    zeros = np.zeros((4, 4, 4))

    def errors(b1: np.ndarray, energy: np.ndarray, shift: np.ndarray) -> Any:
        chain = infer.Chain({"b1": b1}, shift, shift, energy, np.ones_like(energy), 4000, 0, zeros, zeros, None)
        return step_errors(chain, 1e-3)

    energy *= np.sqrt(1e-3 * 65)
    assert errors(x, energy, 0.03 * x) == ([], [], [], 1.0, 1.0)
    found = errors(x, energy, -0.6 * x)
    assert found.reasons[0].startswith("steps shift b1 by -0.") and not found.unmixed
    assert found.factor == 0.4
    assert errors(x, energy, -0.15 * x).factor == pytest.approx(np.sqrt(0.8 * 0.05 / 0.15), rel=0.05)
    assert found.corrected_factor == 1 > errors(x, energy, 0.2 * x**2).corrected_factor  # of a width
    tail = np.where(x > 2, 12.0, 1.0) * energy
    found = errors(x, tail, -0.6 * x)
    assert " where b1 is from 1.6" in found.reasons[0] and found.factor == found.corrected_factor == 0.75
    drifting = x + 100 * np.exp(-np.arange(1000) / 200) * (np.arange(4) == 3)[:, None]
    found = errors(drifting, energy, -0.6 * drifting)
    assert found.reasons == [] and found.factor == 1 and found.unmixed[0].startswith("b1 (R-hat 1.")
    still = errors(np.ones_like(x), energy, 0 * x)
    assert still.reasons == [] and still.unmixed == ["b1 (R-hat inf, 1 effective samples)"]


@pytest.mark.usefixtures("unchecked")
def test_burn_in_hides_no_bias_of_the_later_draws() -> None:
    """Chains that reach the posterior within half of their draws are corrected for the bias of the other half."""
    rng = np.random.default_rng(2)
    energy = np.sqrt(1e-3 * 65) * rng.standard_normal((4, 1600))
    settled = rng.standard_normal((4, 1600))
    model: Any = SimpleNamespace(model=SimpleNamespace(priors={"b1": infer.Normal(0.0, 1.0)}))
    method: Any = dict.fromkeys(sampling._Chains.__dataclass_fields__)
    chains = sampling._Chains(**method | {"posterior": model, "method": "mclmc", "energy_variance": 1e-3})
    field = np.zeros((4, 4, 4))
    run: Any = SimpleNamespace(moments=Moments(np.ones(()), field, field), correction={"b1": np.zeros(())})

    def remedy(shift: np.ndarray, burn_in: int) -> Any:
        b1 = settled + 60 * (np.arange(1600) < burn_in * np.array([[0.2], [0.5], [0.8], [1.0]]))
        arrays = {"parameter/b1": b1, "density_shift": shift, "logdensity": shift, "energy_change": energy}
        arrays |= dict.fromkeys(("acceptance_rate", "gradients", "nonans"), np.ones_like(energy))
        chunks = [{name: x[:, i : i + 200] for name, x in arrays.items()} for i in range(0, 1600, 200)]
        return chains._remedy(chunks, run, Restarts())

    factor, slopes = remedy(-0.5 * settled, 800)
    assert factor == 1 and slopes["b1"] == pytest.approx(0.5, rel=0.1)
    assert remedy(0.01 * settled, 800) is None
    assert remedy(-0.5 * settled, 1500) is None  # two chains have not arrived
