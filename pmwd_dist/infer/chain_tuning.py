"""Tune the chains of a run: what they share, and the adaptation of their preconditioner, kept on disk on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer import adaptation, adapting
from pmwd_dist.infer.chains import ChainFolder
from pmwd_dist.infer.failures import TuningFailures
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers.blocks import Block, run_blocks
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, Tuning
from pmwd_dist.infer.samplers.stiffness import largest_curvature
from pmwd_dist.infer.samplers.tuning import Search, block_length, tune
from pmwd_dist.infer.starting import begin
from pmwd_dist.infer.state import Run, TuningProgress, leaves_of, placed, restored, tuning_progress

_CHECKPOINT_SECONDS = 10.0  # between writes while a run is tuned


def tuned(
    key: Array,
    run: Run,
    posterior: Posterior,
    search: Search,
    folder: ChainFolder,
    steps: int,
    axis: str | None,
    *,
    listener: Callable[[TuningProgress], None] | None,
) -> tuple[Run, TuningFailures]:
    """All chains after tuning, kept in the folder, and its failures; it goes on where the folder says that it was."""
    length, written, failures = block_length(steps), time.monotonic(), TuningFailures()
    if stored := folder.state():
        with folder.reading_state():
            search.unpack({name.removeprefix("search/"): x for name, x in stored.items() if name.startswith("search/")})
            failures.unpack(stored)
            adapted = restored(stored, run.adaptation, "adaptation")
            run = run._replace(states=restored(stored, run.states), adaptation=adapted)

    def run_all(key: Array, states: IntegratorState, tuning: Tuning, method: Method) -> tuple[IntegratorState, Block]:
        now = posterior.adapted(run.adaptation)
        states, block = _blocks(key, states, placed(tuning, run.tuning), now, method, length, axis)
        failures.add(search.stage, np.asarray(block.nonans))
        return placed(states, run.states), block  # where they were: with another sharding it would compile again

    def adapt(states: IntegratorState, search: Search) -> tuple[IntegratorState, float]:
        nonlocal run
        old = run.adaptation
        assert old is not None
        turn, other = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, search.count), 0))
        changes = None
        if search.free:
            args = other, posterior.adapted(old), states.position, axis
            changes = np.asarray(adapting.changes_of_curvature(*args))
        new = placed(adapting.adapt(old, *search.observed(), adapting.mode_numbers(posterior), changes), old)
        positions = _moved(states.position, posterior.adapted(old), posterior.adapted(new), axis)
        states = begin(turn, placed(positions, states.position), posterior.adapted(new), axis).states
        run = run._replace(adaptation=new)
        states = placed(states, run.states)
        if new.mean is None:  # linear theory has brought all modes to one scale but for what bands show
            return states, 0.0
        each = np.asarray(_largest_curvature(states.position, posterior.adapted(new), axis))
        return states, float(np.max(each, where=np.isfinite(each), initial=0.0))  # of none it is unknown

    def write(search: Search, states: IntegratorState) -> None:
        begun = {f"search/{name}": x for name, x in search.pack().items()} | failures.pack()
        folder.write_state(begun | leaves_of(states) | leaves_of(run.adaptation, "adaptation"))

    def keep(search: Search, states: IntegratorState) -> None:
        nonlocal written
        try:
            if listener is not None:
                listener(tuning_progress(search, length, steps))
        except BaseException:
            write(search, states)
            raise
        if time.monotonic() - written >= _CHECKPOINT_SECONDS:
            write(search, states)
            written = time.monotonic()

    states, tuning = tune(key, run.states, run_all, search, keep, adapt)
    return run._replace(states=placed(states, run.states), tuning=placed(tuning, run.tuning)), failures


@eqx.filter_jit
def _moved(positions: Position, old: Posterior, new: Posterior, axis: str | None) -> Position:
    """The positions of another adaptation."""
    return jax.vmap(lambda z: old.moved(z, new), spmd_axis_name=axis)(positions)


@eqx.filter_jit
def _largest_curvature(positions: Position, posterior: Posterior, axis: str | None) -> Array:
    """Of the log density where each chain is."""
    return jax.vmap(partial(largest_curvature, posterior.logdensity), spmd_axis_name=axis)(positions)


@eqx.filter_jit
def _blocks(
    key: Array,
    states: IntegratorState,
    tuning: Tuning,
    posterior: Posterior,
    method: Method,
    length: int,
    axis: str | None,
) -> tuple[IntegratorState, Block]:
    """A block of steps of all chains."""
    observe = posterior.observe if adaptation.start(posterior) is not None else None
    options: dict[str, Any] = {"logdensity": posterior.logdensity, "length": length, "spmd_axis_name": axis}
    return run_blocks(key, states, tuning, method, observe=observe, **options)
