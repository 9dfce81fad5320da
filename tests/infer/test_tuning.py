"""Tuning: the step that it finds, what bounds it, and the approach of chains to a posterior."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer import sampling
from pmwd_dist.infer.samplers import isokinetic, mclmc, methods
from pmwd_dist.infer.tuning.blocks import Block, run_blocks
from pmwd_dist.infer.tuning.curvature import largest_curvature, longest_step
from pmwd_dist.infer.tuning.loop import tune
from pmwd_dist.infer.tuning.schedule import ENERGY_VARIANCE, Schedule


def reevaluate(density: Any) -> Any:
    """States at the same positions, evaluated again."""
    return lambda states, schedule: jax.vmap(lambda x, u: isokinetic.start(x, u, density))(
        states.position, states.momentum
    )


def test_tuned_trajectories_of_a_normal_field_have_several_lengths() -> None:
    """Its steps have no error, however long they are."""

    def density(x: Any) -> Any:
        return -0.5 * jnp.sum(x**2)

    states = jax.vmap(lambda key: mclmc.init(key, jax.random.normal(key, (100,)), density))(
        jax.random.split(jax.random.key(0), 2)
    )

    @partial(jax.jit, static_argnums=3)
    def run(key: Any, states: Any, parameters: Any, method: Any) -> Any:
        return run_blocks(key, states, parameters, method, logdensity=density, length=20)

    schedule = Schedule(states.position, steps=1000, method="hmc")
    _, parameters = tune(jax.random.key(1), states, run, reevaluate(density), schedule)
    assert pytest.approx(np.pi / 2) == parameters.L
    assert 0.5 < parameters.step_size <= np.pi / 4 + 1e-6


@pytest.mark.parametrize("method", ["hmc", "adjusted-mclmc"])
def test_trajectories_begin_with_the_log_density_where_they_are(method: Any) -> None:
    """One that is too high, as that of many dimensions beside a state of MCLMC is, would have all of them rejected."""

    def density(x: Any) -> Any:
        return -0.5 * jnp.sum(x[:20000] ** 2) - 2 * jnp.sum(x[20000:] ** 2)

    @partial(jax.jit, static_argnums=3)
    def run(key: Any, states: Any, parameters: Any, method: Any) -> Any:
        return run_blocks(key, states, parameters, method, logdensity=density, length=10)

    start = jax.vmap(lambda key: mclmc.init(key, 0.6 * jax.random.normal(key, (40000,)), density))
    states = start(jax.random.split(jax.random.key(0), 2))
    schedule = Schedule(states.position, steps=80, method=method)
    beside = dict[str, list[float]]({"mclmc": [], method: []})

    def watched(key: Any, states: Any, parameters: Any, method: Any) -> Any:
        away = states.logdensity - jax.vmap(density)(states.position)
        beside[method].append(float(np.max(np.abs(away))))
        return run(key, states, parameters, method)

    tune(jax.random.key(1), states, watched, reevaluate(density), schedule)
    assert max(beside["mclmc"]) > 1
    assert max(beside[method]) < 1e-6


def test_tuning_reaches_its_target_beside_a_narrow_direction() -> None:
    """Which is unstable long before it shows in the energy error of all."""

    def narrow(x: Any) -> Any:
        return -0.5 * jnp.sum(x["noise"] ** 2) - 0.5 * (x["c"] / 0.05) ** 2

    def start(key: Any) -> Any:
        return mclmc.init(key, {"noise": jax.random.normal(key, (400,)), "c": 0.05 * jax.random.normal(key)}, narrow)

    @partial(jax.jit, static_argnums=3)
    def run(key: Any, states: Any, parameters: Any, method: Any = "mclmc") -> Any:
        return run_blocks(key, states, parameters, method, logdensity=narrow, length=20)

    states = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(6), 2))
    schedule = Schedule(states.position, steps=1000)
    states, parameters = tune(jax.random.key(7), states, run, reevaluate(narrow), schedule)
    energies, keys = [], jax.random.split(jax.random.key(8), 20)
    for key in keys:
        states, block = run(key, states, parameters)
        energies.append(block.energy_change)
    assert 0.5 < np.var(energies) / 401 / ENERGY_VARIANCE < 2
    mass = parameters.inverse_mass_matrix
    assert 1 / 4 < mass["c"] / mass["noise"] / 0.05**2 < 4
    assert parameters.L / np.sqrt(401) == pytest.approx(4)
    with pytest.raises(ValueError, match="steps=39 must be 40 or more to tune"):
        Schedule(states.position, steps=39)


@pytest.mark.parametrize("approaches", [False, True])
@pytest.mark.parametrize(("steps", "growth", "unstable"), [(300, 4, 100), (1000, 2, 100), (1000, 2, 5)])
def test_chains_end_with_a_stable_step(steps: int, growth: float, unstable: float, approaches: bool) -> None:
    """Where a direction, less narrow after each adaptation, is unstable long before the error of all is large.

    25 times the variance that is aimed at is too much late in a tuning; early, chains are on their way.
    """
    rng, positions = np.random.default_rng(2), {"noise": np.zeros((2, 400)), "zeta": np.zeros(2)}
    ones: Any = jax.tree.map(lambda x: np.ones(2), positions)
    for first in np.geomspace(0.002, 0.02, 40):
        schedule = Schedule(positions, steps=steps, adapts=True, approaches=approaches)
        limit, undone = first, 0
        while not schedule.done:
            step = float(schedule.tuning().step_size) / np.sqrt(401)
            size = step**3 if step < limit else unstable
            energy = size * np.sqrt(401 * ENERGY_VARIANCE) * rng.standard_normal((2, 20))
            seen = (
                rng.standard_normal((2, 20, 1)),
                np.zeros((2, 20)),
                positions,
                ones,
                np.zeros((2, 20, 3)),
                np.zeros((2, 0)),
            )
            fine = schedule.take(Block(energy, np.array(True), *seen))
            undone += not fine
            assert fine == (step < limit) or (fine and unstable < 10)
            if schedule.adaptation_due:
                schedule.restart(math.inf)
                limit *= growth
        assert float(schedule.tuning().step_size) / np.sqrt(401) < limit
        assert undone


def test_the_largest_curvature_bounds_the_step() -> None:
    """In 4000 dimensions one direction of a curvature of 60 does not show in the energy error before it is unstable."""
    axis = jax.random.normal(jax.random.key(1), (4000,))
    axis = axis / jnp.linalg.norm(axis)

    def logdensity(x: Any) -> Any:
        return -0.5 * jnp.sum(x["noise"] ** 2) - 0.5 * 59 * jnp.dot(axis, x["noise"]) ** 2

    position = {"noise": jax.random.normal(jax.random.key(2), (4000,))}
    curvature = float(jax.jit(partial(largest_curvature, logdensity))(position))
    assert curvature == pytest.approx(60, rel=1e-3)
    root = math.sqrt(4000)

    @jax.jit
    def along(size: Any) -> Any:
        """Mean square along the direction of the largest curvature, times that curvature."""
        across = position["noise"] - axis * jnp.dot(axis, position["noise"])  # nothing along it to begin with
        start = mclmc.init(jax.random.key(3), {"noise": across}, logdensity)

        def once(state: Any, key: Any) -> Any:
            state, info = mclmc.step(key, state, logdensity, L=4 * root, step_size=size)
            return state, (60 * jnp.dot(axis, state.position["noise"]) ** 2, info.energy_change)

        return jax.lax.scan(once, start, jax.random.split(jax.random.key(4), 600))[1]

    for theory in (True, False):
        longest = longest_step(np.array([curvature, np.nan, 1.0]), theory=theory)
        heat, energy = along(longest * root)
        assert np.mean(heat) < 2
        assert np.var(energy) / 4000 < 5e-4
        schedule = Schedule(jax.tree.map(lambda x: x[None], position), steps=200, adapts=True)
        schedule.restart(longest)
        assert float(schedule.pack()["bounds/stability"]) == pytest.approx(longest * root)
    heat, _ = along(3.0 * root / math.sqrt(curvature))
    assert np.mean(heat[300:]) > 10
    assert longest_step(np.array([np.nan]), theory=True) == math.inf


def test_tuning_corrects_the_discretisation_bias() -> None:
    """Where the widths of 1000 dimensions depend on one, long before the energy error of all would say so."""

    def density(z: Any) -> Any:
        return -0.5 * z["u"] ** 2 - 0.5 * jnp.exp(0.1 * z["u"]) * jnp.sum(z["x"] ** 2) + 0.05 * 1000 * z["u"]

    def start(key: Any) -> Any:
        u = jax.random.normal(key)
        return mclmc.init(key, {"u": u, "x": jnp.exp(-0.05 * u) * jax.random.normal(key, (1000,))}, density)

    @problems.optimized
    def run_mclmc(key: Any, states: Any, parameters: Any) -> Any:
        return run_blocks(key, states, parameters, "mclmc", logdensity=density, length=20)

    def run(key: Any, states: Any, parameters: Any, method: Any = "mclmc") -> Any:
        assert method == "mclmc"
        return run_mclmc(key, states, parameters)

    def tuned(most_bias: float) -> tuple[Any, Any]:
        states = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(6), 4))
        options = {"energy_variance": 1e-4, "most_bias": most_bias, "adapts": True}
        schedule = Schedule(states.position, steps=2000, **options)
        adapt = lambda states, schedule: (states, math.inf)  # noqa: E731
        states, parameters = tune(jax.random.key(7), states, run, reevaluate(density), schedule, adapt=adapt)
        again = Schedule(states.position, steps=2000, **options)
        again.unpack(schedule.pack())
        for one, other in zip(jax.tree.leaves(again.tuning()), jax.tree.leaves(schedule.tuning()), strict=True):
            np.testing.assert_array_equal(one, other)
        return states, parameters

    @problems.optimized
    def mean(key: Any, states: Any, parameters: Any) -> Any:
        """The parameter, and the shift of the log density by steps and their correction."""

        def once(states: Any, key: Any) -> Any:
            step = partial(methods.transition, logdensity=density, method="mclmc", tuning=parameters)
            states, _ = jax.vmap(partial(step, fraction=jnp.ones(())))(jax.random.split(key, 4), states)
            shift = jax.vmap(partial(methods.remaining_shift, method="mclmc", tuning=parameters))(states)
            return states, (states.position["u"], shift)

        return jax.lax.scan(once, states, jax.random.split(key, 4000))[1]

    states, parameters = tuned(np.inf)
    size = float(parameters.step_size) / np.sqrt(1001)
    assert 0.25 < size < 0.4  # shifts of 0.32 for 0.28 without a correction (`benchmarks/step_bias.py`)
    assert (
        parameters.correction["u"] == pytest.approx(-0.32 * (size / 0.28) ** 2, rel=0.3)
        and parameters.correction["x"] == 0
    )
    aside = float(parameters.step_size) ** 2 / 24 / 1001  # where kicks are
    slope = jax.tree.map(lambda g, t: g + t, states.logdensity_grad, parameters.correction)  # which was taken away last
    kicked = jax.tree.map(lambda x, g: x - aside * g, states.position, slope)
    higher = jax.vmap(density)(kicked) + aside * (slope["u"] ** 2 + jnp.sum(slope["x"] ** 2, axis=1))
    lower = higher - jax.vmap(lambda x: methods.correction(x, parameters))(states.position)
    np.testing.assert_allclose(states.logdensity, lower, rtol=1e-9)
    u, shift = (np.asarray(x, float).T for x in mean(jax.random.key(9), states, parameters))
    assert abs(u.mean()) < 5 * u.std() / infer.ess_mean(u) ** 0.5 < 0.15
    assert abs(infer.step_bias(u, shift)[0]) < 0.05
    states, parameters = tuned(0.01)  # half the square of 0.14
    assert 0.13 < float(parameters.step_size) / np.sqrt(1001) < 0.25
    with pytest.raises(ValueError, match="most_bias=0 must be positive; use 0.1 standard deviations"):
        Schedule({"u": np.zeros(2)}, steps=100, most_bias=0)


def test_the_power_of_the_likelihood_grows_evenly_in_its_logarithm() -> None:
    """Over a third of the tuning or so, in which nothing is adapted and parameters stay."""
    positions = {"noise": np.zeros((2, 400)), "zeta": np.zeros(2)}
    schedule = Schedule(positions, steps=400, adapts=True, approaches=True)
    ones: Any = jax.tree.map(lambda x: np.ones(2), positions)
    rng, weights, changed, held = np.random.default_rng(0), list[float](), list[bool](), list[bool]()
    while not schedule.done:
        weights.append(schedule.weight)
        changed.append(schedule.reevaluates)
        held.append(schedule.tuning().inverse_mass_matrix["zeta"] == 0)
        numbers, shift, seen = rng.standard_normal((2, 20, 1)), np.zeros((2, 20)), np.zeros((2, 20, 3))
        energy = 0.1 * rng.standard_normal((2, 20))
        assert schedule.take(Block(energy, np.array(True), numbers, shift, positions, ones, seen, np.zeros((2, 0))))
        if schedule.adaptation_due:
            assert schedule.stage > 1
            schedule.restart(math.inf)
        again = Schedule(positions, steps=400, adapts=True, approaches=True)
        again.unpack(schedule.pack())
        assert (again.weight, again.reevaluates, again.stage) == (schedule.weight, schedule.reevaluates, schedule.stage)
    approach = weights.index(1.0)
    assert 0.25 < approach / len(weights) < 0.35
    np.testing.assert_allclose(np.diff(np.log(weights[: approach + 1])), np.log(500) / approach)
    assert weights[approach:] == [1.0] * (len(weights) - approach)
    assert changed == [True] * (approach + 1) + [False] * (len(weights) - approach - 1)
    assert all(held[: approach + 1]) and not held[-1]
    at_once = Schedule(positions, steps=400, adapts=True)
    assert at_once.weight == 1 and not at_once.reevaluates and at_once.stage == 1


CELLS = 6
AMPLITUDE, WAVENUMBER, SIGMA = 0.3, 5.0, 0.15


def wavy(noise: Any, parameters: Any) -> Any:
    """A field of the noise in its own cell, the same for several values of that: each cell has two or three maxima."""
    return 1 + noise + AMPLITUDE * jnp.sin(WAVENUMBER * noise) + 0 * parameters["zeta"]


def test_a_growing_likelihood_leads_chains_to_the_global_maximum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several in each cell, of which the densities are known; and chains that do not approach find any."""
    config = pmd.Config(box_size=80.0, mesh_shape=CELLS, decomposition=(1, 1))
    priors, rng = {"zeta": infer.Normal(0.0, 1.0)}, np.random.default_rng(0)
    truth = rng.standard_normal((CELLS,) * 3)
    data = np.asarray(wavy(truth, {"zeta": 0})) + SIGMA * rng.standard_normal(truth.shape)
    posterior = infer.Model(config, wavy, priors, infer.Gaussian(SIGMA)).condition(data)
    x = np.linspace(-5, 5, 4001)
    log = -0.5 * x**2 - 0.5 * ((data[..., None] - np.asarray(wavy(x, {"zeta": 0}))) / SIGMA) ** 2
    density = np.exp(log - log.max(-1, keepdims=True))
    density /= density.sum(-1, keepdims=True)
    mean = density @ x
    sd = np.sqrt(np.mean(density @ x**2 - mean**2))
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(1), 4))
    options: dict[str, Any] = {"key": jax.random.key(2), "tuning_steps": 800, "steps": 200, "thin": 2, "chunk": 50}

    def error(output: Path) -> float:
        """Of the mean of each cell over chains, in standard deviations."""
        chain = infer.sample(posterior, starts, output=output, keep_noise=True, **options)
        return float(np.sqrt(np.mean((chain.noise_mean - mean) ** 2)) / sd)

    found = error(tmp_path / "approach")
    at_once = partial(Schedule, approaches=False)
    monkeypatch.setattr(sampling, "Schedule", lambda *args, approaches, **kwargs: at_once(*args, **kwargs))
    assert found < 0.5
    assert error(tmp_path / "at once") > 2
