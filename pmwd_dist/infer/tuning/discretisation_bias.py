"""Correction of the discretisation bias of parameters by MCLMC, which accepts every step (docs/explanation/tuning.md).

Chains of the density p exp(-b v), with independent combinations v = R^-1 (u - mean) of the whitened parameters u and
b = Cov(s, v), have draws of p to first order in the density shift s (`mclmc.density_shift`). `sample` estimates b where
its draws show a bias, discards them, and starts the chains over with the correction, which never changes while draws
are kept. The remainder is estimated from s - b v.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer.chain.diagnostics import ess_mean
from pmwd_dist.infer.model import Position, Posterior


def correction(position: Position, posterior: Posterior, slopes: Mapping[str, Array]) -> Array:
    """The term that is added to the log density, linear in the whitened parameters of a position."""
    return jnp.asarray(sum(slopes[name] * u for name, u in posterior.whitened(position).items()))


def estimate(chain: Any, priors: Mapping[str, Any]) -> dict[str, float]:
    """Slopes of the correction of each whitened parameter, from the draws of mixed chains.

    The density shift of the chain includes the correction that it was drawn with.
    """
    # A draw at a bound in floating-point precision is infinitely far away.
    white = [np.clip(np.asarray(priors[name].inverse(x), float), -8, 8) for name, x in chain.parameters.items()]
    u, s = np.stack([x.ravel() for x in white]), np.asarray(chain.density_shift, float).ravel()
    u, s = u - u.mean(axis=1, keepdims=True), s - s.mean()
    root = np.linalg.cholesky(u @ u.T / s.size + 1e-12 * np.eye(len(u)))
    v = np.linalg.solve(root, u)
    b = v @ s / s.size
    products = [x.reshape(white[0].shape) for x in v * (s - b @ v)]
    error = np.array([np.std(x) / math.sqrt(ess_mean(x)) for x in products])
    shrunk = b**3 / np.maximum(b**2 + error**2, 1e-300)
    return dict(zip(chain.parameters, (-np.linalg.solve(root.T, shrunk)).tolist(), strict=True))
