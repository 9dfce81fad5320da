"""Tuning: what each stage achieves on a funnel, what bounds the step, and the way to a posterior."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist.infer.constants import AWAY, ENERGY_VARIANCE
from pmwd_dist.infer.precondition import Observations
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.tuning.loop import at_extremes, largest_curvatures, longest_step, run_blocks
from pmwd_dist.infer.tuning.schedule import STAGES, Schedule, StepSize, TuningState, after_block, is_stable

CELLS, CHAINS, STEPS = 400, 4, 1000
SLOPE = 0.2  # of the logarithm of the widths of the funnel with its parameter
STARTS = 0.5 * np.arange(4.0)  # of that parameter


def funnel(z: Any) -> Any:
    """A field whose widths depend on a parameter, which is standard normal (Neal 2003)."""
    u, scale = z["u"], jnp.exp(2 * SLOPE * z["u"])
    return -0.5 * u**2 - 0.5 * scale * jnp.sum(z["noise"] ** 2) + SLOPE * CELLS * u


def observe(z: Any, slope: Any) -> Any:
    """The parameter, and the mean square of the slope along the field, which an adaptation takes for its curvature."""
    square, none = jnp.mean(slope["noise"] ** 2)[None], jnp.zeros(0)
    return Observations(none, none, none, square, none, z["u"][None]), none


def weighted(weight: Any) -> Any:
    return lambda z: weight * funnel(z) - 0.5 * (1 - weight) * jnp.sum(z["noise"] ** 2)


@partial(jax.jit, static_argnums=3)
def run(key: Any, states: Any, tuning: Any, method: Any, weight: Any) -> Any:
    own = weighted(weight)
    return run_blocks(key, states, tuning, method, logdensity=own, observe=observe, length=20)


class Tuned:
    """A tuning of chains of a density: its states by the name of the stage that ends, and what chains have done."""

    def __init__(self, steps: int = STEPS, stability: float = math.inf, **options: Any):
        keys = jax.random.split(jax.random.key(6), CHAINS)
        begin = {"noise": jax.vmap(lambda key: jax.random.normal(key, (CELLS,)))(keys), "u": STARTS}
        self.schedule = Schedule(begin, steps, **options)
        state, self.states = self.schedule.begin(), jax.vmap(partial(mclmc.init, logdensity=funnel))(keys, begin)
        self.ends, self.weights, self.positions = dict[str, TuningState](), list[float](), dict[str, Any]()
        while not self.schedule.done(state):
            now = self.schedule.next(state)
            weight, method = now.weight, now.method
            self.weights.append(weight)
            if now.reevaluates:
                own = weighted(weight)
                self.states = jax.vmap(lambda x, u: mclmc.start(x, u, own))(  # noqa: B023
                    self.states.position, self.states.momentum
                )
            key = jax.random.fold_in(jax.random.key(7), state.total)
            moved, block = run(key, self.states, self.schedule.tuning(state), method, weight)
            state = self.schedule.update(state, jax.tree.map(np.asarray, block))
            self.states = moved if state.kept else self.states
            if now.ends:
                name = now.stage.name
                self.ends[name], self.positions[name] = state, self.states.position
                state = self.schedule.advance(state, stability)
        self.state = state

    def energies(self, blocks: int = 25) -> np.ndarray:
        """Energy errors of blocks after the tuning, (blocks, chains, steps)."""
        found, states = list[Any](), self.states
        method, tuning = self.schedule.method, self.schedule.tuning(self.state)
        for key in jax.random.split(jax.random.key(8), blocks):
            states, block = run(key, states, tuning, method, 1.0)
            found.append(np.asarray(block.energy_change))
        return np.stack(found)


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return Tuned()


def test_stages_are_one_table_of_all_steps() -> None:
    assert sum(stage.share for stage in STAGES) == pytest.approx(1)
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert [stage.own_sampler for stage in STAGES] == [False] * 4 + [True]
    assert [stage.adapts for stage in STAGES] == [False] + [True] * 3 + [False]


def test_approach_grows_the_weight_evenly_in_its_logarithm_and_parameters_stay(tuned: Tuned) -> None:
    blocks = round(STAGES[0].share * STEPS / 20)
    np.testing.assert_allclose(np.diff(np.log(tuned.weights[: blocks + 1])), np.log(500) / blocks)
    assert tuned.weights[blocks:] == [1.0] * (len(tuned.weights) - blocks)
    np.testing.assert_array_equal(tuned.positions["approach"]["u"], STARTS)


def test_stages_lead_to_the_posterior(tuned: Tuned) -> None:
    """Fields relax and show their curvature at fixed parameters, and then parameters move within the posterior."""
    field, parameters, posterior = (tuned.positions[name] for name in ("field", "parameters", "posterior"))
    np.testing.assert_array_equal(field["u"], STARTS)
    variance = np.exp(-2 * SLOPE * STARTS)
    np.testing.assert_allclose(np.mean(np.square(field["noise"]), axis=1), variance, rtol=0.35)
    shown = tuned.ends["field"].observed.squares
    assert shown.shape == (CHAINS, 20 * tuned.ends["field"].blocks, 1)
    assert shown.mean() == pytest.approx(np.mean(1 / variance), rel=0.25)
    assert np.all(np.asarray(parameters["u"]) != STARTS)
    assert 1 / 10 < np.var(tuned.ends["parameters"].observed.scaled, axis=1).mean() < 3
    numbers, end = tuned.ends["posterior"].observed.scaled, tuned.ends["posterior"]
    assert np.abs(numbers.mean()) < 1 and 0.3 < numbers.std() < 1.6
    scale = np.exp(2 * SLOPE * np.asarray(posterior["u"]))[:, None]
    assert np.mean(scale * np.square(posterior["noise"])) == pytest.approx(1, rel=0.1)
    assert tuned.schedule.tuning(end).L / math.sqrt(CELLS + 1) == pytest.approx(4)
    after = tuned.schedule.advance(end, 0.01)  # the step is bounded by the curvature there
    assert after.step.stability == after.step.value == pytest.approx(0.01 * math.sqrt(CELLS + 1))


def test_the_step_size_keeps_the_tail_of_the_energy_errors_below_the_target(tuned: Tuned) -> None:
    variances = np.var(tuned.energies(), axis=2, ddof=1) / (CELLS + 1) / ENERGY_VARIANCE
    assert 0.1 < variances.mean() < 1.2
    assert np.quantile(variances, 0.9) < 2


@pytest.mark.slow
def test_trajectories_are_accepted_at_their_target_and_have_several_lengths() -> None:
    found = Tuned(method="hmc")
    energy = found.energies()
    assert 0.6 < np.mean(np.minimum(1, np.exp(-energy))) < 0.95
    L, size, _ = found.schedule.tuning(found.state)
    assert 0 < size <= 0.5 * L + 1e-6


def test_an_unstable_block_is_discarded_and_bounds_the_step() -> None:
    rng = np.random.default_rng(0)
    quiet = rng.standard_normal((2, 20))
    assert is_stable(quiet, np.array(True), 1.0, late=True)
    assert not is_stable(quiet, np.array(False), 1.0, late=True)
    assert is_stable(5 * quiet, np.array(True), 1.0, late=False) and not is_stable(
        5 * quiet, np.array(True), 1.0, late=True
    )
    step = StepSize(1.0, np.zeros((0, 2)))
    after = after_block(step, 5 * quiet, 1.0, "mclmc", stable=False)
    assert after.value == 0.5
    for _ in range(20):
        after = after_block(after, 1e-3 * quiet, 1.0, "mclmc", stable=True)
    assert after.value == pytest.approx(0.8)
    assert after.scaled(1.0, math.inf).unstable == math.inf  # other positions, other limits


def test_the_step_is_short_enough_for_the_chain_with_the_largest_errors() -> None:
    """One of four chains, in a tail of the posterior, has an energy error of 2^6 times the variance of the others."""
    rng = np.random.default_rng(1)
    step, factors = StepSize(1.0, np.zeros((0, 4))), np.array([1.0, 1.0, 1.0, 8.0])[:, None]
    for _ in range(30):
        energy = step.value**3 * factors * rng.standard_normal((4, 20))
        step = after_block(step, energy, 1.0, "mclmc", stable=True)
    assert step.value == pytest.approx(0.5, rel=0.1)


@pytest.mark.slow
def test_the_largest_curvature_bounds_the_step() -> None:
    """In 4000 dimensions one direction of a curvature of 60 does not show in the energy error before it is unstable."""
    axis = jax.random.normal(jax.random.key(1), (4000,))
    axis = axis / jnp.linalg.norm(axis)

    def logdensity(x: Any) -> Any:
        return -0.5 * jnp.sum(x["noise"] ** 2) - 0.5 * 59 * jnp.dot(axis, x["noise"]) ** 2

    positions = {"noise": jax.random.normal(jax.random.key(2), (2, 4000))}
    slopes = jax.jit(jax.vmap(jax.grad(logdensity)))
    curvatures = largest_curvatures(slopes, positions)
    np.testing.assert_allclose(curvatures, 60, rtol=1e-3)
    root = math.sqrt(4000)

    @jax.jit
    def along(size: Any) -> Any:
        """Mean square along the direction of the largest curvature, times that curvature."""
        noise = positions["noise"][0]
        across = noise - axis * jnp.dot(axis, noise)  # nothing along it to begin with
        start = mclmc.init(jax.random.key(3), {"noise": across}, logdensity)

        def once(state: Any, key: Any) -> Any:
            state, info = mclmc.step(key, state, logdensity, L=4 * root, step_size=size)
            return state, (60 * jnp.dot(axis, state.position["noise"]) ** 2, info.energy_change)

        return jax.lax.scan(once, start, jax.random.split(jax.random.key(4), 600))[1]

    longest = longest_step(np.array([60.0, np.nan, 1.0]))
    heat, energy = along(longest * root)
    assert np.mean(heat) < 2
    assert np.var(energy) / 4000 < 5e-4
    heat, _ = along(3.0 * root / math.sqrt(60))
    assert np.mean(heat[300:]) > 10
    assert longest_step(np.array([np.nan])) == math.inf


def test_curvatures_are_measured_at_the_extremes_of_each_parameter() -> None:
    rng = np.random.default_rng(0)
    numbers = np.array([1.0, 5.0]) + np.array([0.1, 2.0]) * rng.standard_normal((3, 500, 2))
    positions = {"a": jnp.ones(3), "b": jnp.full(3, 5.0), "noise": jnp.ones((3, 4))}
    batches = at_extremes(positions, numbers)
    a, b = (np.concatenate([batch[name] for batch in batches]) for name in "ab")
    np.testing.assert_allclose(a[:4], [1 - 0.1 * AWAY, 1 + 0.1 * AWAY, 1, 1], rtol=0.05)
    np.testing.assert_allclose(b[:4], [5, 5, 5 - 2 * AWAY, 5 + 2 * AWAY], atol=0.3)
    assert at_extremes(positions, numbers[:, :0]) == []

    def slopes(z: Any) -> Any:
        return {"a": -z["a"], "b": -z["b"], "noise": -jnp.exp(2 * z["a"])[:, None] * z["noise"]}

    found = largest_curvatures(slopes, positions, batches).reshape(3, 3)
    np.testing.assert_allclose(found[:2], np.exp(2 * np.stack([np.ones(3), a[:3]])), rtol=0.1)


def test_wrong_tunings_are_refused() -> None:
    with pytest.raises(ValueError, match="tuning_steps=39 must be a whole number, 40 or more"):
        Schedule({"u": np.zeros(2)}, 39)
    with pytest.raises(ValueError, match="energy_variance=0 must be a finite number from 1e-15"):
        Schedule({"u": np.zeros(2)}, 100, energy_variance=0)
