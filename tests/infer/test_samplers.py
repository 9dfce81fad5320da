"""Samplers: step by step those of blackjax, right distributions, and posteriors in samplers of other packages."""

from __future__ import annotations

from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import isokinetic_velocity_verlet, partially_refresh_momentum
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer import trees
from pmwd_dist.infer.samplers import hmc, mclmc
from pmwd_dist.infer.samplers.mclmc import refresh

VARIANCE = np.linspace(0.5, 2, 12).reshape(2, 3, 2)


def logdensity(x: Any) -> Any:
    """A Gaussian with a quartic term, of 14 dimensions in two arrays."""
    return -0.5 * jnp.sum(x["noise"] ** 2 / VARIANCE) - 0.1 * jnp.sum(x["noise"] ** 4) - 0.5 * jnp.sum(x["b"] ** 2)


def begin() -> Any:
    rng = np.random.default_rng(0)
    return {"b": jnp.asarray(rng.standard_normal(2)), "noise": jnp.asarray(rng.standard_normal((2, 3, 2)))}


def as_blackjax_draws(key: Any, tree: Any) -> Any:
    """Noise as of one array of all leaves."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def same(ours: Any, theirs: Any) -> None:
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-11)


def test_states_keep_their_types() -> None:
    """In 64-bit mode too, so that steps of positions in single precision can be scanned."""
    density = lambda x: -0.5 * jnp.sum(x**2)  # noqa: E731
    x, trajectory = jnp.ones(10, jnp.float32), {"num_integration_steps": 2, "step_size": 0.5}
    mclmc_step = partial(mclmc.step, L=10.0, step_size=0.5)
    for step, init in ((mclmc_step, mclmc.init), (partial(hmc.step, **trajectory), hmc.init)):
        state = init(jax.random.key(0), x, density)
        keys = jax.random.split(jax.random.key(1), 2)
        after, _ = jax.lax.scan(lambda s, k, step=step: step(k, s, density), state, keys)
        assert {y.dtype for y in jax.tree.leaves(after)} == {jnp.dtype(jnp.float32)}


def test_mclmc_agrees_with_blackjax_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With velocity Verlet; but states are displaced from where kicks are, and noise comes between them, too."""
    monkeypatch.setattr(trees, "normal_like", as_blackjax_draws)
    mass = {"b": jnp.asarray([0.5, 2.0]), "noise": jnp.linspace(0.8, 1.3, 12).reshape(2, 3, 2)}
    flat = ravel_pytree(mass)[0]
    kernel = blackjax.mcmc.mclmc.build_kernel(isokinetic_velocity_verlet)

    def kicked(state: Any) -> Any:
        uphill = trees.multiply(state.logdensity_grad, mass)
        position = trees.add(state.position, -(0.7**2) / 24 / 14, uphill)
        value = state.logdensity - 0.7**2 / 24 / 14 * trees.dot(state.logdensity_grad, uphill)
        return state._replace(position=position, logdensity=value)

    @jax.jit
    def both(state: Any, key: Any) -> Any:
        before = kicked(state)
        theirs, expected = kernel(key, before, logdensity, flat, jnp.inf, 0.7)
        ours, info = mclmc.step(key, state, logdensity, L=jnp.inf, step_size=0.7, inverse_mass_matrix=mass)
        apart = before.logdensity - state.logdensity - theirs.logdensity + ours.logdensity
        energy = info.energy_change + apart
        reference = (theirs, expected.energy_change, expected.logdensity)
        noise = refresh(key, ours.momentum, jnp.asarray(0.7), jnp.asarray(2.0))
        other = partially_refresh_momentum(ours.momentum, key, 0.7, jnp.asarray(2.0))
        deterministic = (kicked(ours), energy, kicked(ours).logdensity)
        return (deterministic, noise), (reference, other), ours._replace(momentum=noise)

    key = jax.random.key(1)
    state = mclmc.init(key, begin(), logdensity)
    same(state, blackjax.mcmc.mclmc.init(begin(), logdensity, key))
    for i in range(20):
        ours, theirs, state = both(state, jax.random.key(100 + i))
        same(ours, theirs)
    assert np.abs(state.position["noise"] - begin()["noise"]).max() > 0.5


def test_hmc_agrees_with_blackjax(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one momentum, the same acceptance."""
    position = jax.tree.map(lambda x: 0.5 * x, begin())
    momentum = trees.scale(4.0, trees.unit_vector(jax.random.key(3), begin()))
    monkeypatch.setattr(trees, "normal_like", lambda key, tree: momentum)
    monkeypatch.setattr(blackjax.mcmc.metrics, "generate_gaussian_noise", lambda *_, **__: momentum)
    state = hmc.init(jax.random.key(0), position, logdensity)
    reference = blackjax.mcmc.hmc.init(position, logdensity)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def rates(key: Any, size: Any) -> Any:
        _, ours = hmc.step(key, state, logdensity, step_size=size, num_integration_steps=3)
        _, theirs = blackjax.mcmc.hmc.build_kernel()(key, reference, logdensity, size, jnp.ones(14), 3)
        return ours.acceptance_rate, theirs.acceptance_rate

    one, other = rates(jax.random.key(4), 0.4 * jnp.linspace(0.5, 3, 11))
    assert ((one > 0.001) & (one < 0.99)).any(), one
    same(one, other)


@pytest.mark.parametrize("step_size", [0.7, 3.0, 3.6275987, 7.0, 41.0, -7.0])  # a tenth of a turn to six, and back
def test_steps_of_hmc_are_exact_for_a_normal_part(step_size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field rotates with its momentum, a number on which nothing depends moves on, without an error of the energy."""
    start, momentum = begin(), as_blackjax_draws(jax.random.key(3), begin())
    monkeypatch.setattr(trees, "normal_like", lambda key, tree: momentum)
    state = hmc.init(jax.random.key(0), start, lambda x: -0.5 * 3.0 * jnp.sum(x["noise"] ** 2))
    end, info = hmc.step(
        jax.random.key(1),
        state,
        lambda x: -0.5 * 3.0 * jnp.sum(x["noise"] ** 2),
        num_integration_steps=3,  # odd, so that a wrong sign shows
        step_size=step_size,
        inverse_mass_matrix={"noise": 0.25, "b": 2.0},
        normal_precision={"noise": 3.0, "b": 0.0},
    )
    np.testing.assert_allclose(info.energy_change, 0, atol=1e-12)
    frequency, time = np.sqrt(0.25 * 3), 3 * step_size
    turned = np.cos(frequency * time) * start["noise"] + np.sin(frequency * time) / np.sqrt(3) * momentum["noise"]
    np.testing.assert_allclose(end.position["noise"], turned, rtol=0, atol=1e-13 * max(1, abs(step_size)))
    moved = start["b"] + time * np.sqrt(2) * momentum["b"]
    np.testing.assert_allclose(end.position["b"], moved, rtol=1e-14, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [0.1, 0.02, 0.004])
def test_many_short_steps_of_hmc_keep_the_energy_of_many_dimensions(step_size: float) -> None:
    """In float32 the square sum of a rounded sine and cosine would change that of 64^3 dimensions by up to 2.7."""

    def normal(x: Any) -> Any:
        return -0.5 * jnp.sum(x**2)

    state = hmc.init(jax.random.key(0), jax.random.normal(jax.random.key(1), (64**3,), jnp.float32), normal)
    _, info = hmc.step(
        jax.random.key(2),
        state,
        normal,
        num_integration_steps=round(1.57 / step_size),
        step_size=step_size,
        normal_precision=1.0,
    )
    assert abs(float(info.energy_change)) < 0.04  # the last bit of the log density is 0.016


def run(step: Any, state: Any, steps: int, key: Any) -> Any:
    """Sums of x^2 over the second half of the steps, mean over them."""

    def once(state: Any, key: Any) -> Any:
        state = step(key, state)[0]
        return state, jax.tree.map(jnp.square, state.position)

    return jax.tree.map(lambda x: x[steps // 2 :].mean(0), jax.lax.scan(once, state, jax.random.split(key, steps))[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mclmc", "hmc", "hmc, normal part"])
def test_samplers_have_the_right_variances(name: str) -> None:
    init, step = {
        "mclmc": (mclmc.init, partial(mclmc.step, logdensity=logdensity, L=4.0, step_size=1.0)),
        "hmc": (hmc.init, partial(hmc.step, logdensity=logdensity, num_integration_steps=3, step_size=0.5)),
        "hmc, normal part": (
            hmc.init,
            partial(
                hmc.step,
                logdensity=logdensity,
                num_integration_steps=3,
                step_size=0.6,
                inverse_mass_matrix={"noise": 0.8, "b": 1.5},
                normal_precision={"noise": 1.0, "b": 0.0},
            ),
        ),
    }[name]

    @jax.jit
    @jax.vmap
    def chain(key: Any) -> Any:
        return run(step, init(key, begin(), logdensity), 400, key)

    second = chain(jax.random.split(jax.random.key(5), 64))
    x = np.linspace(-9, 9, 4001)[:, None]
    weight = np.exp(-0.5 * x**2 / VARIANCE.ravel() - 0.1 * x**4)
    expected = {"noise": ((weight * x**2).sum(0) / weight.sum(0)).reshape(VARIANCE.shape), "b": np.ones(2)}
    for leaf, wanted in expected.items():
        values = np.asarray(second[leaf])
        error = values.std(0, ddof=1) / np.sqrt(len(values))
        assert (np.abs(values.mean(0) - wanted) < 5 * error).all()
        assert error.max() < 0.05 * wanted.max()  # a test that can fail


def test_a_step_into_a_failed_simulation_is_rejected() -> None:
    def cut(x: Any) -> Any:
        return jnp.where(x["b"][0] < 3, -0.5 * trees.dot(x, x), -jnp.inf)

    position = {"b": jnp.asarray([2.9, 0.0])}
    key = jax.random.key(0)
    forward = {"b": jnp.asarray([1.0, 0.0])}
    state = mclmc.init(key, position, cut)._replace(momentum=forward)
    end, info = jax.jit(lambda state: mclmc.step(key, state, cut, L=jnp.inf, step_size=2.0))(state)
    assert not info.nonans and info.energy_change == 0
    same((end.position, end.logdensity), (position, state.logdensity))
    assert float(trees.dot(end.momentum, forward)) < 0.999
    there = hmc.init(key, {"b": jnp.asarray([2.9, 5.0])}, cut)
    options: Any = {"num_integration_steps": 5, "step_size": 2.0}
    for one in jax.random.split(key, 8):
        kept, of_trajectory = hmc.step(one, there, cut, **options)
        if not of_trajectory.nonans:
            break
    assert of_trajectory.acceptance_rate == 0 and of_trajectory.energy_change == 0
    same(kept.position, there.position)


# --- samplers of other packages ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> infer.Posterior:
    config = pmd.Config(box_size=80.0, mesh_shape=4, decomposition=(1, 1))
    priors = {"b1": infer.Normal(1.5, 0.5, low=0.1)}
    model = infer.Model(config, lambda noise, p: 1 + p["b1"] * noise, priors, infer.Gaussian(0.5))
    return model.condition(1 + np.random.default_rng(0).standard_normal((4, 4, 4)))


@pytest.mark.slow
def test_nuts_of_blackjax_takes_a_posterior(small: infer.Posterior) -> None:
    position = small.model.draw(jax.random.key(0), b1=1.2)
    nuts = blackjax.nuts(small.logdensity, step_size=0.2, inverse_mass_matrix=jnp.ones(65), max_num_doublings=3)
    start, (state, info) = jax.jit(lambda x: (nuts.init(x), nuts.step(jax.random.key(9), nuts.init(x))))(position)
    assert info.acceptance_rate > 0.3 and not info.is_divergent
    assert state.logdensity > start.logdensity  # it moves from a prior draw to the data


@pytest.mark.slow
def test_a_posterior_is_a_model_of_numpyro(small: infer.Posterior) -> None:
    """Which its NUTS samples in sims/infer_numpyro.py."""

    @jax.jit
    def evaluate(position: Any) -> Any:
        sites = {"position/noise": position["noise"], "position/b1": position["parameters"]["b1"]}
        value, found = log_density(small.numpyro_model, (), {}, sites)
        here = small.logdensity(position), small.parameters(position)["b1"]
        return (value, found["b1"]["value"], infer.numpyro_position(sites)), (*here, position)

    for i in range(2):
        (value, b1, position), (logdensity, expected, given) = evaluate(small.model.draw(jax.random.key(i)))
        np.testing.assert_allclose(value, logdensity - 0.5 * 65 * np.log(2 * np.pi), rtol=1e-12)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11), (b1, position), (expected, given))
    sites = trace(seed(small.numpyro_model, jax.random.key(1))).get_trace()
    drawn = [name for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]]
    assert drawn == ["position/noise", "position/b1"]
