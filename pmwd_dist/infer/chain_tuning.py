"""Tune the chains of a run: what they share, and the adaptation of their preconditioner, kept on disk on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from pmwd_dist.infer.samplers.search import Search, block_length
from pmwd_dist.infer.samplers.stiffness import largest_curvature, longest_step
from pmwd_dist.infer.samplers.tuning import tune
from pmwd_dist.infer.starting import begin
from pmwd_dist.infer.state import Run, TuningProgress, leaves_of, placed, restored, tuning_progress
from pmwd_dist.io.arrays import Arrays

_CHECKPOINT_SECONDS = 10.0  # between writes while a run is tuned


@dataclass
class ChainTuning:
    """Chains that are tuned together, and kept in a folder on the way.

    Args:
      key: of jax.random.
      run: the chains before; after `tune`, those that are tuned.
      posterior: that they sample.
      search: for what they share.
      folder: in which they are kept.
      steps: of the tuning.
      axis: of the device mesh over which chains are divided, if any.
      listener: called after each block; what it raises ends the tuning, with the state on disk.
    """

    key: Array
    run: Run
    posterior: Posterior
    search: Search
    folder: ChainFolder
    steps: int
    axis: str | None
    listener: Callable[[TuningProgress], None] | None
    failures: TuningFailures = field(default_factory=TuningFailures)
    _written: float = field(default_factory=time.monotonic)

    def tune(self) -> Run:
        """Tune all chains, from where the folder says that they were."""
        if stored := self.folder.state():
            self._restore(stored)
        hooks = self._block, self._renew, self.search, self._keep, self._adapt
        states, tuning = tune(self.key, self.run.states, *hooks)
        states, tuning = placed(states, self.run.states), placed(tuning, self.run.tuning)
        self.run = self.run._replace(states=states, tuning=tuning)
        return self.run

    def _restore(self, stored: Arrays) -> None:
        with self.folder.reading_state():
            searched = {name: x for name, x in stored.items() if name.startswith("search/")}
            self.search.unpack({name.removeprefix("search/"): x for name, x in searched.items()})
            self.failures.unpack(stored)
            adapted = restored(stored, self.run.adaptation, "adaptation")
            self.run = self.run._replace(states=restored(stored, self.run.states), adaptation=adapted)

    def _block(
        self, key: Array, states: IntegratorState, tuning: Tuning, method: Method
    ) -> tuple[IntegratorState, Block]:
        now, length = self._now(), block_length(self.steps)
        states, block = _blocks(key, states, placed(tuning, self.run.tuning), now, method, length, self.axis)
        self.failures.add(self.search.stage, np.asarray(block.nonans))
        return placed(states, self.run.states), block  # with another sharding it would compile again

    def _now(self) -> Posterior:
        return self.posterior.adapted(self.run.adaptation).weighted(self.search.weight * self.posterior.weight)

    def _renew(self, states: IntegratorState, search: Search) -> IntegratorState:
        """States at the same positions, of the density that the next block samples, with new directions."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, search.count), 1)
        return placed(begin(key, states.position, self._now(), self.axis).states, self.run.states)

    def _adapt(self, states: IntegratorState, search: Search) -> tuple[IntegratorState, float]:
        """States in positions of the adaptation that is due, and the longest step there, per root of the dimensions."""
        old = self.run.adaptation
        assert old is not None
        before = self.posterior.adapted(old)
        turn, other = jax.random.split(jax.random.fold_in(jax.random.fold_in(self.key, search.count), 0))
        changes = None
        if search.free:
            changes = np.asarray(adapting.changes_of_curvature(other, before, states.position, self.axis))
        modes = adapting.mode_numbers(self.posterior)
        new = placed(adapting.adapt(old, *search.observed(), modes, changes), old)
        after = self.posterior.adapted(new)
        positions = placed(_moved(states.position, before, after, self.axis), states.position)
        states = placed(begin(turn, positions, after, self.axis).states, self.run.states)
        self.run = self.run._replace(adaptation=new)
        curvatures = np.asarray(_largest_curvature(states.position, after, self.axis))
        return states, longest_step(curvatures, theory=new.mean is None)

    def _keep(self, search: Search, states: IntegratorState) -> None:
        try:
            if self.listener is not None:
                self.listener(tuning_progress(search, block_length(self.steps), self.steps))
        except BaseException:
            self._write(search, states)
            raise
        if time.monotonic() - self._written >= _CHECKPOINT_SECONDS:
            self._write(search, states)
            self._written = time.monotonic()

    def _write(self, search: Search, states: IntegratorState) -> None:
        begun = {f"search/{name}": x for name, x in search.pack().items()} | self.failures.pack()
        self.folder.write_state(begun | leaves_of(states) | leaves_of(self.run.adaptation, "adaptation"))


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
