"""The tilt that chains find again as they run: what is left of the shift of a parameter by finite steps."""

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
from pmwd_dist.infer.refining import Refining, seen_of_tilts
from pmwd_dist.infer.samplers import mclmc, methods
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.infer.samplers.search import Search
from pmwd_dist.infer.state import Moments, Run
from pmwd_dist.infer.storage import Arrays, read_arrays

CHAINS, DRAWS = 2, 200


@pytest.fixture(scope="module")
def posterior(cosmo: Any) -> infer.Posterior:
    """Of a bias on which frequencies of modes depend, by data without noise to speak of, and no preconditioner."""
    config = pmd.Config(160.0, 8, a_stop=0.5, decomposition=(1, 1))
    forward = infer.LinearField(config, cosmo, bias="b1")
    model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5, low=0.3)}, infer.Gaussian(0.6))
    return model.condition(model.mock(jax.random.key(1), model.draw(jax.random.key(0), b1=1.8)), precondition=None)


def sampled(posterior: infer.Posterior, folder: Path, steps: int = 6400) -> infer.Chain:
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(2), 4))
    options: dict[str, Any] = {"tuning_steps": 200, "steps": steps, "chunk": 100, "most_bias": math.inf}
    return infer.sample(posterior, starts, key=jax.random.key(3), output=folder, **options)


def test_chains_lose_a_shift_that_tuning_has_not_seen(
    posterior: infer.Posterior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any tilt after it, what steps do to the parameter stays; else draws after the first chunks lack it."""
    monkeypatch.setattr(Search, "_tilt", lambda self: np.zeros(2))
    monkeypatch.setattr(Search, "tilt_error", math.inf)
    chain = sampled(posterior, tmp_path / "refined")
    state = read_arrays(tmp_path / "refined" / "state.h5")
    assert 0 < state["refining/error"] < math.inf and state["refining/offset"] != 0
    late, error = infer.step_bias(chain.parameters["b1"][:, 400:], chain.density_shift[:, 400:])
    assert abs(late) < 4 * error < 0.04
    monkeypatch.setattr(Refining, "take", lambda self, run, draws: run)
    other = sampled(posterior, tmp_path / "left")
    np.testing.assert_array_equal(other.parameters["b1"][:, :100], chain.parameters["b1"][:, :100])
    assert other.bias()["b1"][0] < -0.1
    # The means of the draws differ by it, and what steps add, on average, by no jump of the tilt.
    draws = [np.asarray(x.parameters["b1"][:, 400:], float) for x in (chain, other)]
    error = math.hypot(*(1 / math.sqrt(infer.ess_mean(x)) for x in draws))
    apart = (draws[0].mean() - draws[1].mean()) / draws[1].std()
    assert apart == pytest.approx(-other.bias()["b1"][0], abs=4 * error) and 4 * error < 0.1
    assert abs(chain.density_shift.mean() - other.density_shift.mean()) < 0.1 * other.density_shift.std()


def test_a_chain_that_goes_on_finds_the_same_tilt(posterior: infer.Posterior, tmp_path: Path) -> None:
    whole = sampled(posterior, tmp_path / "whole", steps=800)
    for steps in (100, 300, 800):
        again = sampled(posterior, tmp_path / "again", steps)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    states = [read_arrays(tmp_path / name / "state.h5") for name in ("whole", "again")]
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name], err_msg=name)


def density(z: Any) -> Any:
    return -0.5 * jnp.sum(z["x"] ** 2) - 0.5 * z["u"] ** 2


def begun() -> Run:
    """Chains of a number and a field, with a step of length 2 and no tilt."""
    keys = jax.random.split(jax.random.key(0), CHAINS)
    positions = {"u": jnp.arange(1.0, CHAINS + 1), "x": jax.random.normal(keys[0], (CHAINS, 30))}
    states = jax.vmap(lambda key, z: mclmc.init(key, z, density))(keys, positions)
    one, zero = jnp.ones(()), jnp.zeros(())
    tuning = Tuning(one, 2 * one, {"u": one, "x": one}, {"u": zero, "x": zero})
    return Run(states, tuning, Moments(zero, zero, zero), None)


def chunk(seed: int, slope: float, noise: float = 0.1) -> Arrays:
    """Draws of a number about 3 of unit variance, to which steps of length 1 do what a slope does."""
    u, other = np.random.default_rng(seed).standard_normal((2, CHAINS, DRAWS))
    added = slope * u + noise * other
    return {"shift/number/000": 3 + u, "shift/added": added, "density_shift": 4 * added}


def test_a_tilt_is_found_after_chunks_one_two_and_four_and_from_less_error() -> None:
    run, refining = begun(), Refining(math.inf)
    tilts = list[float]()
    for seed in range(5):
        run = refining.take(run, chunk(seed, slope=0.05))
        tilts.append(float(run.tuning.tilt["u"]))
    np.testing.assert_allclose(tilts, 4 * 0.05, rtol=0.2)
    assert len({*tilts}) == 3 and tilts[2] == tilts[1] and tilts[4] == tilts[3]
    assert refining.error == pytest.approx(0.1 / math.sqrt(CHAINS * 4 * DRAWS), rel=0.2)
    assert refining.offset == pytest.approx(tilts[-1] * 3, rel=0.05)  # as much as the tilt is at the mean
    # States are those of the density with the tilt, at the same positions, and the next draws have the offset.
    for name, x in begun().states.position.items():
        np.testing.assert_array_equal(run.states.position[name], x)
    np.testing.assert_allclose(run.states.logdensity_grad["u"], -run.states.position["u"] - tilts[-1], rtol=1e-6)
    untilted = jax.vmap(density)(run.states.position)
    np.testing.assert_allclose(run.states.logdensity, untilted - tilts[-1] * run.states.position["u"], rtol=1e-6)
    draws = chunk(7, slope=0.05)
    before = draws["density_shift"].copy()
    refining.take(run, draws)
    np.testing.assert_allclose(draws["density_shift"], before + refining.offset)


def test_a_tilt_stays_where_draws_know_less() -> None:
    run, refining = begun(), Refining(1e-3)  # of draws 0.1 / 20
    assert refining.take(run, chunk(0, slope=0.05)) is run
    assert (refining.error, refining.offset) == (1e-3, 0.0)
    again = Refining.unpack(refining.pack())
    again.remember(chunk(0, slope=0.05))
    for one in (refining, again):
        tilts = [float(one.take(begun(), chunk(seed, slope=0.05)).tuning.tilt["u"]) for seed in range(1, 64)]
        found = 2 + np.flatnonzero(tilts)  # chunks, the first among them, after which there is another tilt
        assert found.tolist() == [32, 64], found


def test_samplers_with_a_metropolis_step_have_no_tilt() -> None:
    run = begun()
    assert seen_of_tilts(run.states, "hmc", run.tuning) == {}
    assert seen_of_tilts(run.states._replace(position={"x": run.states.position["x"]}), "mclmc", run.tuning) == {}
    seen = seen_of_tilts(run.states, "mclmc", run.tuning)
    np.testing.assert_array_equal(seen["shift/number/000"], run.states.position["u"])
    shift = jax.vmap(lambda state: methods.density_shift(state, "mclmc", run.tuning))(run.states)
    np.testing.assert_allclose(4 * seen["shift/added"], shift, rtol=1e-6)
    draws = {"density_shift": np.zeros((CHAINS, DRAWS))}
    assert Refining(math.inf).take(run, draws) is run
