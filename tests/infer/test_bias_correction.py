"""The correction of the discretisation bias that running chains estimate from their draws."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.chain.chain import Moments, Run
from pmwd_dist.infer.samplers import mclmc, methods
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.infer.tuning.discretisation_bias import BiasCorrection, bias_samples
from pmwd_dist.infer.tuning.schedule import Schedule
from pmwd_dist.io.arrays import Arrays, read_arrays

CHAINS, DRAWS = 2, 200
NO_CORRECTION = np.zeros((1, 0))


@pytest.fixture(scope="module")
def posterior(cosmo: Any) -> infer.Posterior:
    """Of a bias on which, without a preconditioner, frequencies of modes depend."""
    config = pmd.Config(160.0, 8, a_stop=0.5, decomposition=(1, 1))
    forward = infer.LinearField(config, cosmo, bias="b1")
    model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5, low=0.3)}, infer.Gaussian(0.6))
    return model.condition(model.mock(jax.random.key(1), model.draw(jax.random.key(0), b1=1.8)), precondition=None)


def sampled(posterior: infer.Posterior, folder: Path, steps: int = 4800) -> infer.Chain:
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(2), 4))
    options: dict[str, Any] = {"tuning_steps": 200, "steps": steps, "chunk": 100, "most_bias": math.inf}
    return infer.sample(posterior, starts, key=jax.random.key(3), output=folder, **options)


def test_running_chains_correct_a_bias_without_an_estimate_from_the_tuning(
    posterior: infer.Posterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a correction the bias of the parameter stays; else the draws after the first chunks lack it."""
    monkeypatch.setattr(Schedule, "_correction", lambda self: np.zeros(2))
    monkeypatch.setattr(Schedule, "correction_error", NO_CORRECTION)
    chain = sampled(posterior, tmp_path / "refined")
    state = read_arrays(tmp_path / "refined" / "state.npz")
    assert state["correction/estimated"] and state["correction/offset"] != 0
    late, error = infer.step_bias(chain.parameters["b1"][:, 400:], chain.density_shift[:, 400:])
    assert abs(late) < 4 * error < 0.04
    monkeypatch.setattr(BiasCorrection, "update", lambda self, run, draws: (run, draws))
    other = sampled(posterior, tmp_path / "left")
    np.testing.assert_array_equal(other.parameters["b1"][:, :100], chain.parameters["b1"][:, :100])
    assert other.bias()["b1"][0] < -0.1
    # The means of the draws differ by it, and what steps add, on average, by no jump of the correction.
    draws = [np.asarray(x.parameters["b1"][:, 400:], float) for x in (chain, other)]
    error = math.hypot(*(1 / math.sqrt(infer.ess_mean(x)) for x in draws))
    apart = (draws[0].mean() - draws[1].mean()) / draws[1].std()
    assert apart == pytest.approx(-other.bias()["b1"][0], abs=4 * error) and 4 * error < 0.1
    assert abs(chain.density_shift.mean() - other.density_shift.mean()) < 0.1 * other.density_shift.std()


def test_an_interrupted_chain_estimates_the_same_correction(posterior: infer.Posterior, tmp_path: Path) -> None:
    whole = sampled(posterior, tmp_path / "whole", steps=800)
    for steps in (100, 300, 800):
        again = sampled(posterior, tmp_path / "again", steps)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    states = [read_arrays(tmp_path / name / "state.npz") for name in ("whole", "again")]
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name], err_msg=name)


def density(z: Any) -> Any:
    return -0.5 * jnp.sum(z["x"] ** 2) - 0.5 * z["u"] ** 2


def begun() -> Run:
    """Chains of a number and a field, with a step of length 2 and no correction."""
    keys = jax.random.split(jax.random.key(0), CHAINS)
    positions = {"u": jnp.arange(1.0, CHAINS + 1), "x": jax.random.normal(keys[0], (CHAINS, 30))}
    states = jax.vmap(lambda key, z: mclmc.init(key, z, density))(keys, positions)
    one, zero = jnp.ones(()), jnp.zeros(())
    tuning = Tuning(one, 2 * one, {"u": one, "x": one}, {"u": zero, "x": zero})
    return Run(states, tuning, Moments(zero, zero, zero), None)


def chunk(seed: int, slope: float = 0.05, noise: float = 0.1, width: float = 1.0) -> Arrays:
    """Draws of a number about 3 of a width, to which steps of length 1 do what a slope does along one of width 1."""
    u, other = np.random.default_rng(seed).standard_normal((2, CHAINS, DRAWS))
    added = slope * u + noise * other
    return {"bias/number/000": 3 + width * u, "bias/added": added, "density_shift": 4 * added}


def corrections(estimate: BiasCorrection, seeds: range, **options: float) -> list[float]:
    """The slope of the correction after each chunk."""
    run, found = begun(), list[float]()
    for seed in seeds:
        run, _ = estimate.update(run, chunk(seed, **options))
        found.append(float(run.tuning.correction["u"]))
    return found


def test_a_correction_is_estimated_after_one_two_and_four_chunks() -> None:
    run, estimate, found = begun(), BiasCorrection(NO_CORRECTION, 0.1), list[float]()
    for seed in range(5):
        run, _ = estimate.update(run, chunk(seed))
        found.append(float(run.tuning.correction["u"]))
    np.testing.assert_allclose(found, 4 * 0.05, rtol=0.2)
    assert len({*found}) == 3 and found[2] == found[1] and found[4] == found[3]
    assert estimate.offset == pytest.approx(found[-1] * 3, rel=0.05)  # as much as the correction is at the mean
    # States are those of the corrected density, at the same positions, and the next draws have the offset.
    for name, x in begun().states.position.items():
        np.testing.assert_array_equal(run.states.position[name], x)
    np.testing.assert_allclose(run.states.logdensity_grad["u"], -run.states.position["u"] - found[-1], rtol=1e-6)
    uncorrected = jax.vmap(density)(run.states.position)
    np.testing.assert_allclose(run.states.logdensity, uncorrected - found[-1] * run.states.position["u"], rtol=1e-6)
    draws = chunk(7)
    _, kept = estimate.update(run, draws)
    np.testing.assert_allclose(kept["density_shift"], draws["density_shift"] + estimate.offset)


def test_the_first_correction_has_a_small_error() -> None:
    """Steps of length 2, noise of 2 to each draw: 0.4 standard deviations by one chunk of 400 draws, 0.2 by four."""
    assert np.flatnonzero(corrections(BiasCorrection(NO_CORRECTION, 0.11), range(8), noise=2.0)).tolist() == [
        3,
        4,
        5,
        6,
        7,
    ]
    assert not any(corrections(BiasCorrection(NO_CORRECTION, 0.02), range(8), noise=2.0))
    assert all(corrections(BiasCorrection(NO_CORRECTION, math.inf), range(8), noise=2.0))


def test_the_correction_of_the_tuning_stays_until_draws_have_a_smaller_error() -> None:
    """The error of n chunks is 0.1 / 20 / sqrt(n); 1e-3 is reached by 32 of them."""
    estimate = BiasCorrection(np.array([[1e-3]]), 0.1)
    assert np.flatnonzero(corrections(estimate, range(31))).size == 0
    again = BiasCorrection.unpack(estimate.pack(), 0.1)
    for seed in range(31):
        again.add(chunk(seed))
    for one in (estimate, again):
        assert corrections(one, range(31, 32)) == [pytest.approx(0.2, rel=0.05)]
    assert again.offset == estimate.offset and again.estimated


def test_errors_are_compared_for_the_widths_of_the_draws() -> None:
    """Those of slopes 3e-4 and 4e-4 along a number that is ten times as wide: 5e-3 together, by two chunks 3.6e-3."""

    def first(width: float, error: list[float]) -> int:
        return int(np.flatnonzero(corrections(BiasCorrection(np.array([error]), 0.1), range(16), width=width))[0]) + 1

    assert first(10.0, [3e-4, 4e-4]) == 2
    assert first(10.0, [3e-4, 0.0]) == 4 and first(10.0, [0.0, 4e-4]) == 2
    assert first(6.0, [3e-4, 4e-4]) == 4 and first(20.0, [3e-4, 4e-4]) == 1


def test_slopes_belong_to_the_biased_numbers() -> None:
    """Of two numbers that go together, of different widths, to one of which steps do something."""
    rng = np.random.default_rng(0)
    u, other, noise = rng.standard_normal((3, CHAINS, DRAWS))
    v = 4 * (0.6 * u + 0.8 * other)
    run = begun()
    position = {"u": run.states.position["u"], "v": run.states.position["u"], "x": run.states.position["x"]}
    slope = jax.tree.map(lambda x: -x, position)
    zero, one = jnp.zeros(()), jnp.ones(())
    tuning = run.tuning._replace(
        inverse_mass_matrix=dict.fromkeys(position, one), correction=dict.fromkeys(position, zero)
    )
    run = run._replace(states=run.states._replace(position=position, logdensity_grad=slope), tuning=tuning)
    added = 0.02 * v + 0.001 * noise
    draws = {"bias/number/000": 3 + u, "bias/number/001": v, "bias/added": added, "density_shift": 4 * added}
    after, _ = BiasCorrection(np.zeros((2, 0)), 0.1).update(run, draws)
    correction = after.tuning.correction
    # A shift by 0.32 of the width of the second, and nothing along the first besides.
    np.testing.assert_allclose([correction["u"], correction["v"], correction["x"]], [0.0, 4 * 0.02, 0.0], atol=2e-3)


def test_the_correction_is_clipped_at_second_order() -> None:
    """A shift of two standard deviations: half the square of 0.63 is 0.2."""
    (found,) = corrections(BiasCorrection(NO_CORRECTION, 0.1), range(1), slope=0.5, noise=0.01)
    assert found == pytest.approx(math.sqrt(2 * 0.2), rel=0.05)


def test_the_remainder_of_a_correction_is_its_error_and_the_clipped_part() -> None:
    search = Schedule({"u": np.zeros(2), "x": np.zeros((2, 5))}, steps=100)
    assert search.correction_error.shape == (1, 0)
    u, noise = np.random.default_rng(0).standard_normal((2, 2, 2000))
    search._bias.add(2 * u[..., None], 0.5 * u + 0.1 * noise)
    search.stage, search._step_size = 6, 2.0
    (error, left), taken = search.correction_error[0], search.tuning().correction["u"]
    assert error == pytest.approx(0.1 / math.sqrt(4000) / 2, rel=0.1)
    assert taken == pytest.approx(math.sqrt(0.2) / 2, rel=0.05)  # half the square is a tenth
    assert left + taken / 4 == pytest.approx(0.25, rel=0.05)


def test_samplers_with_a_metropolis_step_have_no_correction() -> None:
    run = begun()
    assert bias_samples(run.states, "hmc", run.tuning) == {}
    assert bias_samples(run.states._replace(position={"x": run.states.position["x"]}), "mclmc", run.tuning) == {}
    seen = bias_samples(run.states, "mclmc", run.tuning)
    np.testing.assert_array_equal(seen["bias/number/000"], run.states.position["u"])
    shift = jax.vmap(lambda state: methods.remaining_shift(state, "mclmc", run.tuning))(run.states)
    np.testing.assert_allclose(4 * seen["bias/added"], shift, rtol=1e-6)
    draws = {"density_shift": np.zeros((CHAINS, DRAWS))}
    after, same = BiasCorrection(NO_CORRECTION, 0.1).update(run, draws)
    assert after is run and same is draws
