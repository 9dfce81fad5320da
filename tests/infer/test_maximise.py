"""Maxima of a posterior that is known."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from linear_posteriors import SIGMA, posterior_of

from pmwd_dist import infer
from pmwd_dist.pm.status import SimulationError


def test_the_maximum_keeps_the_parameters() -> None:
    posterior = posterior_of(pdims=(2, 2), b1=infer.Normal(1.5, 0.2))
    start = posterior.model.draw(jax.random.key(3), b1=1.7)
    best = infer.maximise(posterior, start, steps=30)
    variance = 1 / (1 + (1.7 / SIGMA) ** 2)
    expected = variance * 1.7 / SIGMA**2 * (np.asarray(posterior.data) - 1)
    np.testing.assert_allclose(best.position["noise"], expected, atol=1e-4)
    assert best.position["parameters"] == start["parameters"]
    assert best.logdensity == max(best.history) > best.history[0]


def test_maximising_needs_a_finite_first_density() -> None:
    posterior = posterior_of()
    start = posterior.model.draw(jax.random.key(3))
    with pytest.raises(ValueError, match="steps=0 must be a whole number, 1 or more"):
        infer.maximise(posterior, start, steps=0)
    with pytest.raises(SimulationError, match="the log density is not finite at the first position"):
        infer.maximise(posterior, jax.tree.map(lambda x: x * np.inf, start), steps=1)
