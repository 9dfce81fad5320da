"""What `sample` is given, looked at before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.model import Posterior
from pmwd_dist.infer.samplers.search import SHORTEST
from pmwd_dist.parallel.inputs import whole_number


def check_start(posterior: Posterior, positions: Any) -> None:
    """Raise ValueError unless positions are of a batch of chains, in a program of one process."""
    if jax.process_count() > 1:
        raise ArgumentError("posterior", "", "needs a program of one process", show_value=False)
    remedy = "use jax.vmap(posterior.initial)(keys)"
    if not isinstance(positions, Mapping) or set(positions) != {"noise", "parameters"}:
        constraint = "must have the entries noise and parameters"
        raise ArgumentError("positions", positions, constraint, remedy, show_value=False)
    shape, lattice = jnp.shape(positions["noise"]), posterior.model.config.particle_shape
    if shape[1:] != lattice or not shape[0]:
        raise ArgumentError("positions['noise'].shape", shape, f"must be (chains, *{lattice})", remedy)
    wanted = dict.fromkeys(posterior.model.priors, shape[:1])
    there = {name: jnp.shape(x) for name, x in positions["parameters"].items()}
    if there != wanted:
        raise ArgumentError("positions['parameters']", there, f"must be numbers of shape {wanted}", remedy)
    if not jnp.issubdtype(kind := jnp.result_type(positions["noise"]), jnp.floating):
        raise ArgumentError("positions['noise'].dtype", kind.name, "must be of floating-point numbers", remedy)


def check_lengths(steps: int, thin: int, chunk: int) -> None:
    """Raise ValueError unless the steps of a chain are those of whole chunks."""
    for name, value in (("thin", thin), ("chunk", chunk), ("steps", steps)):
        whole_number(value, name, least=1)
    if steps % (thin * chunk):
        raise ArgumentError("steps", steps, f"must be a multiple of thin * chunk = {thin * chunk}")


def check_options(key: Any, tuning_steps: int, most_failures: float) -> None:
    """Raise ValueError unless these are a key, enough steps to tune, and a share."""
    if not hasattr(key, "dtype"):
        raise ArgumentError("key", key, "must be a key of jax.random", "for example jax.random.key(0)")
    whole_number(tuning_steps, "tuning_steps", least=SHORTEST)
    if not most_failures <= 1:
        raise ArgumentError("most_failures", most_failures, "must be a share of the steps, 1 at most")
