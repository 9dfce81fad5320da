"""The discretisation bias of parameters, and coordinates in which it vanishes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import test_adaptation

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.preconditioner_adaptation import Adaptation
from pmwd_dist.infer.tuning.discretisation_bias import balanced


def test_the_common_stretch_keeps_the_sum_of_the_curvatures_constant() -> None:
    """Of two correlated parameters, from noisy draws of chains that are not mixed."""
    rng, dimensions, step = np.random.default_rng(0), 10**5, 0.3 * math.sqrt(10**5)
    numbers = rng.standard_normal((4, 4000, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    total = dimensions + 3e4 * (1 + 0.02 * numbers[..., 0] - 0.01 * numbers[..., 1])
    shift = -(0.3**2) / 24 * (total - dimensions) + rng.standard_normal(total.shape)
    shifted = shift + np.arange(4.0)[:, None] - 1.5
    old = Adaptation.none(2)
    new = balanced(old, numbers + np.arange(4)[:, None, None], shifted, step, dimensions)
    expected = -0.5 * 3e4 * np.array([0.02, -0.01]) / 1.3e5
    np.testing.assert_allclose(new.stretch, expected[:, None] * np.ones(new.stretch.shape), atol=3e-5)
    again = balanced(new, numbers, shift - shift.mean(axis=1, keepdims=True), step, dimensions)
    np.testing.assert_allclose(again.stretch - new.stretch, new.stretch * 1.3, atol=1e-4)  # it adds to what is there
    for name in ("scale", "shift", "centre", "factor"):
        assert getattr(new, name) is getattr(old, name)


def test_chains_start_over_in_coordinates_without_bias(tmp_path: Path) -> None:
    """The curvature of all modes grows with b1 beyond linear theory. The marginal posterior of b1 is known."""
    config = pmd.Config(box_size=80.0, mesh_shape=8, decomposition=(1, 1))
    model = infer.Model(config, test_adaptation.Misjudged(config), {"b1": infer.Normal(1.5, 0.3)}, infer.Gaussian(0.3))
    data = 1 + 1.7 * np.random.default_rng(0).standard_normal((8, 8, 8))
    posterior = model.condition(data, precondition="adapted")
    starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(1), 4))
    steps, before = list[float](), list[infer.Progress]()

    def watch(progress: infer.Progress) -> None:
        steps.append(progress.step_size)
        if 0 not in [one.chunks for one in before[1:]]:
            before.append(progress)

    options: dict[str, Any] = {"key": jax.random.key(2), "tuning_steps": 600, "chunk": 250, "listener": watch}
    options |= {"energy_variance": 1e-4}
    chain = infer.sample(posterior, starts, steps=6000, output=tmp_path, **options)
    assert before[-1].chunks == 0 and steps[-1] > 0.8 * steps[0]  # with steps of about the same size
    b1, shift = (
        np.concatenate([one.draws[name] for one in before if one.draws], axis=1).astype(float)
        for name in ("parameter/b1", "density_shift")
    )
    assert infer.step_bias(b1, shift)[0] < -0.1
    bias, error = chain.bias()["b1"]
    assert abs(bias) < max(0.05, 3 * error) and error < 0.04
    b1 = np.linspace(1.0, 2.5, 4001)
    variance = b1**2 + 0.3**2
    log = -0.5 * (np.sum((data - 1) ** 2) / variance + 512 * np.log(variance) + ((b1 - 1.5) / 0.3) ** 2)
    weight = np.exp(log - log.max())
    mean = np.average(b1, weights=weight)
    sd = np.sqrt(np.average((b1 - mean) ** 2, weights=weight))
    draws = np.asarray(chain.parameters["b1"], float)
    assert abs(draws.mean() - mean) < 0.05 * sd + 4 * sd / math.sqrt(infer.ess_mean(draws))
    assert jnp.isfinite(chain.logdensity).all()
