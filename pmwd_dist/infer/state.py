"""State of a batch of chains, as arrays for a file and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer.adaptation import Adaptation
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.infer.samplers.search import Search
from pmwd_dist.io.arrays import Arrays, check_shapes


class Moments(NamedTuple):
    """Running mean of the white noise, and sum of squares around it."""

    draws: Array
    mean: Array
    square: Array


class Progress(NamedTuple):
    """How far a run is, after tuning and after each chunk.

    Args:
      chunks: that are on disk.
      step_size, L: that the chains share.
      draws: those of the last chunk, by name, shape (chains, draws) or (chains, steps); empty after tuning.
    """

    chunks: int
    step_size: float
    L: float
    draws: Arrays


class TuningProgress(NamedTuple):
    """How far tuning is, after a block of steps.

    Args:
      share: of the tuning that is done, 1 at most.
      step_size, L: of the next block.
      bound: what bounds the step size: "energy error", "stiffest direction", "unstable steps",
        "length of trajectories" or "shift of parameters".
    """

    share: float
    step_size: float
    L: float
    bound: str


class Run(NamedTuple):
    """State of all chains, and what they share."""

    states: IntegratorState
    tuning: Tuning
    moments: Moments
    adaptation: Adaptation | None


def add(moments: Moments, x: Array) -> Moments:
    """The moments with one more draw (Welford 1962)."""
    draws = moments.draws + 1
    away = x - moments.mean
    mean = moments.mean + away / draws.astype(x.dtype)
    return Moments(draws, mean, moments.square + away * (x - mean))


def tuning_progress(search: Search, length: int, steps: int) -> TuningProgress:
    """How far a search is, of so many steps in blocks of a length."""
    L, step_size = (float(np.asarray(x)) for x in search.tuning()[:2])
    return TuningProgress(1.0 if search.done else min(1.0, search.count * length / steps), step_size, L, search.bound)


def pack(run: Run, chunks: int) -> Arrays:
    """The state after so many chunks, by name."""
    tuning = {f"tuning/{i:03d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(run.tuning))}
    moments = {f"moments/{name}": np.asarray(x) for name, x in run.moments._asdict().items()}
    adapted = leaves_of(run.adaptation, "adaptation")
    return leaves_of(run.states) | tuning | moments | adapted | {"chunks": np.asarray(chunks)}


def leaves_of(tree: Any, prefix: str = "run") -> Arrays:
    """Arrays of a pytree, by name."""
    return {f"{prefix}/{i:03d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(tree))}


def restored(stored: Arrays, like: Any, prefix: str = "run") -> Any:
    """What was stored, placed as what begins a run."""
    shapes = {f"{prefix}/{i:03d}": jnp.shape(x) for i, x in enumerate(jax.tree.leaves(like))}
    check_shapes(stored, shapes)
    return placed(jax.tree.unflatten(jax.tree.structure(like), [stored[name] for name in shapes]), like)


def unpack(stored: Arrays, like: Run) -> Run:
    """What was packed."""
    check_shapes(stored, {f"moments/{name}": jnp.shape(x) for name, x in like.moments._asdict().items()})
    moments = Moments(*(jnp.asarray(stored[f"moments/{name}"]) for name in Moments._fields))
    tuning = restored(stored, like.tuning, "tuning")
    adapted = restored(stored, like.adaptation, "adaptation")
    return Run(restored(stored, like.states), tuning, placed(moments, like.moments), adapted)


def placed(tree: Any, like: Any) -> Any:
    """Numbers on the devices, in the types and placed as those of another pytree."""
    return jax.tree.map(lambda x, y: jax.device_put(x.astype(y.dtype), y.sharding), tree, like)
