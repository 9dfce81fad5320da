"""Models whose posterior is known: data = 1 + bias noise + error in each cell."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer

BIAS, SIGMA, SHAPE = 1.5, 0.5, (4, 4, 4)
OPTIONS: dict[str, Any] = {"key": jax.random.key(2), "tuning_steps": 300, "thin": 2, "chunk": 50}


def forward(noise: Any, parameters: Any) -> Any:
    return 1 + parameters.get("b1", BIAS) * noise + 0 * parameters.get("c", 0)


def posterior_of(forward: Any = forward, pdims: tuple[int, int] = (1, 1), **priors: Any) -> infer.Posterior:
    devices = jax.devices()[: pdims[0] * pdims[1]]
    config = pmd.Config(box_size=80.0, mesh_shape=4, decomposition=pmd.Decomposition(pdims, devices))
    model = infer.Model(config, forward, priors, infer.Gaussian(SIGMA))
    return model.condition(1 + BIAS * np.random.default_rng(0).standard_normal(SHAPE))


def starts(posterior: infer.Posterior, chains: int = 2) -> Any:
    return jax.vmap(posterior.initial)(jax.random.split(jax.random.key(1), chains))
