"""The discretisation bias of parameters, and chains that start over with a correction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import test_adaptation

import pmwd_dist as pmd
from pmwd_dist import infer

pytestmark = pytest.mark.slow


def test_chains_start_over_with_a_correction_of_their_bias(tmp_path: Path) -> None:
    """The curvature of all modes grows with b1 beyond linear theory. The marginal posterior of b1 is known."""
    config = pmd.Config(box_size=80.0, mesh_shape=8, decomposition=(1, 1))
    model = infer.Model(config, test_adaptation.Misjudged(config), {"b1": infer.Normal(1.5, 0.3)}, infer.Gaussian(0.3))
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
