"""Positions adapted to a posterior that is not that of linear theory: exact, on divided fields, and worth it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.constants import BANDS, CLASSES, LARGEST_CURVATURE
from pmwd_dist.infer.forward import wavevectors
from pmwd_dist.infer.precondition import (
    Adaptation,
    Observations,
    adapt,
    changes_of_curvature,
    mode_numbers,
)
from pmwd_dist.infer.tuning import loop

NAMES = ("b1", "sd")


class Silent(infer.ForwardModel):
    """Noise times a bias, of which linear theory knows nothing."""

    config: pmd.Config = eqx.field(static=True)

    def __call__(self, noise: Any, parameters: Any) -> Any:
        return 1 + parameters["b1"] * noise


class Projected(Silent):
    """Noise that is seen in projection alone, as matter by lenses."""

    along = 2

    def __call__(self, noise: Any, parameters: Any) -> Any:
        mean = jnp.mean(noise, axis=2, keepdims=True)
        return 1 + 10 * parameters["b1"] * jnp.broadcast_to(mean, noise.shape)


class Misjudged(Silent):
    """One which claims to respond less."""

    def response(self, parameters: Any) -> Any:
        k2 = sum(component**2 for component in wavevectors(self.config))
        return parameters["b1"] / (3 + k2)


class Finer(Misjudged):
    """One whose field is on a finer mesh than the lattice."""

    def __call__(self, noise: Any, parameters: Any) -> Any:
        return 1 + parameters["b1"] * jnp.kron(noise, jnp.ones((2, 2, 2)))


def posterior_of(pdims: tuple[int, int], kind: Any = Misjudged) -> infer.Posterior:
    devices = jax.devices()[: math.prod(pdims)]
    cells = 16 if kind is Finer else 8
    config = pmd.Config(80.0, cells, particle_shape=8, decomposition=pmd.Decomposition(pdims, devices))
    priors = {"sd": infer.Normal(0.7, 0.3, low=0.1), "b1": infer.Uniform(0.1, 4.0)}  # not in the order of the alphabet
    model = infer.Model(config, kind(config), priors, infer.Gaussian("sd"))
    data = 1 + np.random.default_rng(0).standard_normal((cells, cells, cells))
    return model.condition(data)


def some_adaptation(pdims: tuple[int, int] = (1, 1), kind: Any = Misjudged) -> Adaptation:
    rng = np.random.default_rng(1)
    none = posterior_of(pdims, kind).preconditioner.adaptation
    n = len(none.scale)
    numbers = 0.5 + rng.random(n), *0.2 * rng.standard_normal((2, 2, n)), rng.random(2), rng.random((2, 2))
    field = rng.standard_normal((8, 8, 8))
    mean = None if none.mean is None else jax.device_put(field, none.mean.sharding)
    return Adaptation(*map(jnp.asarray, numbers), mean)


def evaluate(posterior: infer.Posterior, position: Any) -> Any:
    """Log density, its slope, what that shows, and what data say of the noise."""
    value, slope = jax.value_and_grad(posterior.logdensity)(position)
    return value, slope, *posterior.observe(position, slope)


run: Any = eqx.filter_jit(evaluate)
density: Any = eqx.filter_jit(lambda posterior, position: jax.value_and_grad(posterior.logdensity)(position))


@eqx.filter_jit
def move(posterior: infer.Posterior, other: infer.Posterior, position: Any) -> Any:
    """The position of another posterior for the same noise and parameters, and the way back."""
    moved = posterior.moved(position, other)
    return moved, other.moved(moved, posterior)


@eqx.filter_jit
def volume_of(posterior: infer.Posterior, position: Any) -> Any:
    """Logarithm of the volume of the noise per volume of its position, by the determinant of all derivatives."""
    noise = jax.jacfwd(lambda z: posterior.from_latent(position | {"noise": z})[0])(position["noise"])
    return jnp.linalg.slogdet(noise.reshape(8**3, 8**3))[1]


def position_of(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    noise = jnp.asarray(rng.standard_normal((8, 8, 8)))
    return {"noise": noise, "parameters": {name: jnp.asarray(rng.standard_normal()) for name in NAMES}}


def band_counts(cell: float = 10.0) -> np.ndarray:
    """Number of modes of each band; bands reach to what the mesh resolves."""
    k = 2 * np.pi * np.fft.fftfreq(8, 10.0)
    size = np.sqrt(sum(component**2 for component in np.meshgrid(k, k, k, indexing="ij"))).ravel()
    smallest, largest = 2 * np.pi / 80, np.pi / cell * np.sqrt(3)
    place = np.log(np.maximum(size, smallest) / smallest) / np.log(largest / smallest) * BANDS
    return np.bincount(np.minimum(np.floor(place + 1e-3), BANDS - 1).astype(int), minlength=BANDS)


@pytest.mark.parametrize(
    "kind", [Finer, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (Misjudged, Projected))]
)
def test_adapted_positions_have_the_same_posterior(kind: Any) -> None:
    plain = posterior_of((1, 1), kind)
    adapted = plain.adapted(some_adaptation(kind=kind))
    differences = list[float]()
    for seed in range(3):
        value, slope, shown, informed = run(adapted, position_of(seed))
        moved, back = move(adapted, plain, position_of(seed))
        other, slope_there = density(plain, moved)
        volume = float(volume_of(adapted, position_of(seed)) - volume_of(plain, moved))
        differences.append(float(value - other) - volume)
        for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(position_of(seed)), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-8)
        # What slopes show: along the parameters, and their squares over all modes.
        np.testing.assert_allclose(shown.slopes, [slope["parameters"][name] for name in NAMES], atol=1e-10)
        modes = mode_numbers(adapted)
        if kind is Projected:
            np.testing.assert_array_equal(modes.reshape(CLASSES, BANDS).sum(axis=1), [64, 128, 256, 64, 0])
        else:
            np.testing.assert_array_equal(modes, band_counts(adapted.model.config.cell_size[0]))
        np.testing.assert_allclose(np.sum(shown.squares), np.sum(np.asarray(slope["noise"]) ** 2), rtol=1e-8)
        along = np.sum(slope["noise"] * position_of(seed)["noise"])
        np.testing.assert_allclose(np.sum(shown.spreads), 8**3 + along, rtol=1e-8)
        if kind is not Misjudged:  # positions of the other are the noise itself
            np.testing.assert_allclose(informed, moved["noise"] + slope_there["noise"], atol=1e-8)
    # But for a constant of the parameters' scales.
    np.testing.assert_allclose(differences, differences[0], atol=1e-8)


@pytest.mark.slow
def test_programs_of_a_tuning_gather_no_field() -> None:
    """Blocks that observe, changes of curvature and the change of positions, on pencils."""
    posterior = posterior_of((2, 2), Projected)
    positions = jax.jit(jax.vmap(posterior.initial))(jax.random.split(jax.random.key(0), 2))
    begun = loop.begin(jax.random.key(1), positions, posterior, None)
    other, positions = posterior.adapted(some_adaptation((2, 2), Projected)), begun.states.position
    key = jax.random.key(2)
    programs = [
        loop.tuning_block.lower(key, begun.states, begun.tuning, other, "mclmc", 3, None),
        changes_of_curvature.lower(key, other, positions),
        loop.moved.lower(positions, posterior, other, None),
    ]
    for program in programs:
        text = program.compile().compiled.as_text()
        assert "all-to-all" in text or "collective-permute" in text  # transforms
        gathers = [
            line.split(" all-gather")[0] for line in text.splitlines() if re.search(r" all-gather(-start)?\(", line)
        ]
        sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", " ".join(gathers))]
        assert all(size <= 2 * 8 * CLASSES for size in sizes), gathers  # the classes of wavenumbers, of two chains


@pytest.mark.slow
def test_curvature_follows_the_parameters_as_mocks_show() -> None:
    """Of data b1 x + sd n modes have the curvature 1 + (b1 / sd)^2; linear theory knows how its widths change."""
    posterior = posterior_of((2, 2), Silent)
    start = posterior.initial(jax.random.key(1), b1=1.5, sd=0.6)
    positions = jax.tree.map(lambda x: jnp.stack([x] * 3), start)
    changes = np.asarray(changes_of_curvature(jax.random.key(0), posterior, positions))
    expected = np.zeros(2)
    for i, step in enumerate(np.eye(2)):
        moved = [posterior.preconditioner.away(start["parameters"], sign * 0.5 * step) for sign in (-1, 1)]
        each = [posterior.parameters(start | {"parameters": x}) for x in moved]
        logarithms = [np.log(1 + float(x["b1"] / x["sd"]) ** 2) for x in each]
        expected[i] = logarithms[1] - logarithms[0]
    seen = band_counts() > 20
    np.testing.assert_allclose(changes[:, seen], expected[:, None] * np.ones(seen.sum()), atol=0.1)
    assert np.abs(expected).max() > 0.3
    known = posterior_of((2, 2), Misjudged)
    assert not np.any(np.asarray(changes_of_curvature(jax.random.key(0), known, positions)))


def test_adaptation_recovers_the_dependence_of_modes_on_parameters() -> None:
    rng = np.random.default_rng(0)
    size = 2, 4000
    sums, spreads = 3 * rng.standard_normal((*size, BANDS)), 5 * rng.standard_normal((*size, BANDS))
    own = np.array([5.0, 0.1]) * rng.standard_normal((*size, 2))
    share, some = 0.3 * rng.standard_normal((BANDS, 2)), np.array([0.3, -0.8])
    changes, modes = rng.standard_normal((2, BANDS)), np.arange(1.0, BANDS + 1)
    drift = np.array([[40.0, -10.0], [3.0, 8.0]])[:, None]  # chains that are not there yet
    squares = np.linspace(0.5, 50, BANDS) * np.ones((*size, 1))
    where = np.array([1.0, 2.0]) + np.array([[1.0], [-1.0]])[:, None] * np.ones((*size, 2))
    slopes = own + drift + sums @ share + (spreads @ (-0.5 * changes.T)) * some
    observed = Observations(slopes, sums, spreads, squares * modes, where, where)
    fields = np.stack([np.full((2, 2, 2), 1.0), np.full((2, 2, 2), 3.0)])
    new = adapt(Adaptation.none(2, mean=jnp.zeros((2, 2, 2))), observed, fields, modes, changes)
    np.testing.assert_allclose(new.shift, -share.T, atol=0.07)
    # What is left of the slopes is least, and the sum of curvatures does not change with the parameters.
    scale = np.sqrt(np.minimum(squares[0, 0] ** -0.5, LARGEST_CURVATURE / squares[0, 0]))
    np.testing.assert_allclose(new.scale, scale)
    followed, weight = 0.5 * some[:, None] * changes, modes * squares[0, 0] * scale**2
    even = -0.5 * (changes + 2 * followed) @ weight / np.sum(weight)
    np.testing.assert_allclose(new.stretch, followed + even[:, None], atol=0.02)
    np.testing.assert_allclose((changes + 2 * np.asarray(new.stretch)) @ weight, 0, atol=1e-4 * np.sum(weight))
    np.testing.assert_allclose(new.centre, [1.0, 2.0])
    np.testing.assert_allclose(new.mean, np.full((2, 2, 2), 2.0))
    # All that follows adds to the slopes.
    left = own + np.sum(spreads, axis=-1, keepdims=True) * even
    curvature, axes = np.linalg.eigh(np.mean(left[..., None] * left[..., None, :], axis=(0, 1)) + np.eye(2))
    expected = axes * np.sqrt(np.minimum(curvature**-0.5, LARGEST_CURVATURE / curvature)) @ axes.T
    found = np.asarray(new.factor)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=0.1 * np.abs(expected @ expected.T).max())
    held = adapt(Adaptation.none(2), observed, np.zeros((2, 0)), modes)
    assert not np.any(held.shift)
    assert not np.any(held.stretch)
    assert held.mean is None
    none = np.zeros((*size, 0))
    alone = Observations(none, sums, spreads, squares * modes, none, none)
    without = adapt(Adaptation.none(0), alone, np.zeros((2, 0)), modes, np.zeros((0, BANDS)))
    np.testing.assert_allclose(without.scale, new.scale)  # of a model without parameters


def test_means_follow_no_parameter_by_chance() -> None:
    """A chain of 120 gradients that last for 15 steps has 8: a regression on 13 numbers would explain most of them."""
    rng = np.random.default_rng(0)
    size, sizes = (4, 120), np.geomspace(0.03, 3, BANDS)
    sums, spreads, own = (np.repeat(rng.standard_normal((4, 8, n)), 15, axis=1) for n in (BANDS, BANDS, 2))
    nothing = np.zeros((*size, 2))
    observed = Observations(own, sizes * sums, spreads, np.ones((*size, BANDS)), nothing, nothing)
    new = adapt(Adaptation.none(2), observed, np.zeros((4, 0)), np.ones(BANDS), np.ones((2, BANDS)))
    assert 0.01 < np.abs(new.shift).max() < 0.3


@pytest.mark.slow
def test_chains_start_over_with_a_correction_of_their_bias(tmp_path: Path) -> None:
    """The curvature of all modes grows with b1 beyond linear theory. The marginal posterior of b1 is known."""
    config = pmd.Config(box_size=80.0, mesh_shape=8, decomposition=(1, 1))
    model = infer.Model(config, Misjudged(config), {"b1": infer.Normal(1.5, 0.3)}, infer.Gaussian(0.3))
    data = 1 + 1.7 * np.random.default_rng(0).standard_normal((8, 8, 8))
    posterior = model.condition(data)
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(1), 4))
    told = list[infer.Progress]()
    options: dict[str, Any] = {"key": jax.random.key(2), "tuning_steps": 600, "chunk": 250, "output": tmp_path}

    def watch(progress: infer.Progress) -> None:
        told.append(progress)
        if progress.restarts and not progress.chunks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        infer.sample(posterior, starts, steps=4000, listener=watch, **options)
    chain = infer.sample(posterior, starts, steps=4000, **options)  # with the correction from the folder
    b1 = np.linspace(1.0, 2.5, 4001)
    variance = b1**2 + 0.3**2
    log = -0.5 * (np.sum((data - 1) ** 2) / variance + 512 * np.log(variance) + ((b1 - 1.5) / 0.3) ** 2)
    weight = np.exp(log - log.max())
    mean = np.average(b1, weights=weight)
    sd = np.sqrt(np.average((b1 - mean) ** 2, weights=weight))
    correction = float(np.load(tmp_path / "state.npz")["correction/b1"]) * sd / 0.3  # [standard deviations]
    draws = np.asarray(chain.parameters["b1"], float)
    bias, error = chain.bias()["b1"]
    assert told[-1].step_size == told[0].step_size
    assert correction > 0.3
    assert abs(draws.mean() - mean) < 0.15 * sd
    assert draws.std() == pytest.approx(sd, rel=0.05)
    assert abs(bias) < max(0.05, 3 * error) and error < 0.05
