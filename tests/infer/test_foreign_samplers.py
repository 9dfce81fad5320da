"""A posterior in samplers of other packages: blackjax's NUTS, and NumPyro."""

from __future__ import annotations

from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density

import pmwd_dist as pmd
from pmwd_dist import infer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small() -> infer.Posterior:
    config = pmd.Config(box_size=80.0, mesh_shape=4, decomposition=(1, 1))
    priors = {"b1": infer.Normal(1.5, 0.5, low=0.1)}
    model = infer.Model(config, lambda noise, p: 1 + p["b1"] * noise, priors, infer.Gaussian(0.5))
    return model.condition(1 + np.random.default_rng(0).standard_normal((4, 4, 4)))


def test_nuts_of_blackjax_takes_a_posterior(small: infer.Posterior) -> None:
    position = small.model.draw(jax.random.key(0), b1=1.2)
    nuts = blackjax.nuts(small.logdensity, step_size=0.2, inverse_mass_matrix=jnp.ones(65), max_num_doublings=3)
    start, (state, info) = jax.jit(lambda x: (nuts.init(x), nuts.step(jax.random.key(9), nuts.init(x))))(position)
    assert info.acceptance_rate > 0.3 and not info.is_divergent
    assert state.logdensity > start.logdensity  # it moves from a prior draw to the data


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
