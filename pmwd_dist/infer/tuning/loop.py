"""Tune the chains of a run, block by block, with the state in a folder on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pmwd_dist.infer import preconditioner_adaptation as adaptation
from pmwd_dist.infer.chain.chain import Moments, Run, leaves_of, placed, restored
from pmwd_dist.infer.chain.folder import ChainFolder
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, Tuning, corrected
from pmwd_dist.infer.tuning.blocks import Block, run_blocks
from pmwd_dist.infer.tuning.curvature import largest_curvature, longest_step
from pmwd_dist.infer.tuning.schedule import Schedule, block_length
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.distributed import SharedError, from_main, to_host
from pmwd_dist.pm.status import SimulationError

RunBlocks = Callable[[Array, IntegratorState, Tuning, Method], tuple[IntegratorState, Block]]
_CHECKPOINT_SECONDS = 10.0  # time between writes


class TuningProgress(NamedTuple):
    """Progress of a tuning after a block of steps.

    Args:
      share: finished share of the tuning, 1 at most.
      step_size, L: parameters of the next block.
      bound: active bound of the step size: "energy error", "largest curvature", "unstable steps",
        "length of trajectories" or "discretisation bias".
    """

    share: float
    step_size: float
    L: float
    bound: str


def tune(
    key: Array,
    states: IntegratorState,
    run: RunBlocks,
    reevaluate: Callable[[IntegratorState, Schedule], IntegratorState],
    schedule: Schedule,
    listener: Callable[[Schedule, IntegratorState], None] | None = None,
    adapt: Callable[[IntegratorState, Schedule], tuple[IntegratorState, float]] | None = None,
) -> tuple[IntegratorState, Tuning]:
    """Run a batch of chains, and find the parameters that they share.

    Args:
      key: random key.
      states: states from `mclmc.init`, with a leading axis of chains.
      run: jitted function (key, states, tuning, method) -> (states, block), such as `run_blocks`.
      reevaluate: function (states, schedule) -> states at the same positions, with the current density.
      schedule: state of the tuning, new or restored.
      listener: function (schedule, states), called after each block.
      adapt: function (states, schedule) -> (states in adapted positions, stability limit per root of the dimensions).

    Returns:
      The last states, with the corrected density, and the parameters.
    """
    while not schedule.done:
        if schedule.reevaluates:
            states = reevaluate(states, schedule)
        tuning = from_main(schedule.tuning())
        moved, block = run(jax.random.fold_in(key, schedule.count), states, tuning, schedule.method)
        if schedule.take(to_host(block)):
            states = moved
        if schedule.adaptation_due and adapt is not None:
            states, longest = adapt(states, schedule)
            schedule.restart(longest)
        if listener is not None:
            listener(schedule, states)
    tuning = from_main(schedule.tuning())
    return jax.vmap(lambda state: corrected(state, tuning))(states), tuning


class TuningFailures:
    """Numbers of failed steps of a tuning: in all, and in the current stage. A block with one is discarded."""

    def __init__(self):
        self._all = self._stage = self._failed = self._steps = 0

    def add(self, stage: int, fine: np.ndarray) -> None:
        """Count the steps of a block of a stage, and those that failed."""
        if stage != self._stage:
            self._stage, self._failed, self._steps = stage, 0, 0
        failed = int(np.sum(~np.asarray(fine, bool)))
        self._all, self._failed, self._steps = self._all + failed, self._failed + failed, self._steps + np.size(fine)

    def check(self, most: float) -> None:
        """Raise SimulationError if a larger share of the steps of the last stage failed."""
        check_share(self._failed / max(self._steps, 1), most, f"the last stage of the tuning, and {self._all} in all,")

    def pack(self) -> Arrays:
        """The numbers as a named array, for a file."""
        return {"failures": np.array([self._all, self._stage, self._failed, self._steps])}

    def unpack(self, arrays: Arrays) -> None:
        """Restore packed numbers."""
        self._all, self._stage, self._failed, self._steps = (int(x) for x in arrays["failures"])


def check_share(failed: float, most: float, where: str) -> None:
    """Raise SimulationError if the share of failed steps is larger than `most`."""
    if failed > most:
        raise SimulationError(
            f"{failed:.1%} of the steps of {where} failed, more than {most:.1%}; "
            "tune for longer, or look at the priors, the halo and the steps of the simulation"
        )


@dataclass
class ChainTuning:
    """Chains that are tuned together, with their folder.

    Args:
      key: random key.
      run: the chains, tuned after `tune`.
      posterior: posterior that they sample.
      schedule: state of the tuning.
      folder: folder of the chains.
      steps: number of steps of the tuning.
      axis: axis of the device mesh over which chains are divided, if any.
      listener: function called after each block; an exception ends the tuning with the state on disk.
    """

    key: Array
    run: Run
    posterior: Posterior
    schedule: Schedule
    folder: ChainFolder
    steps: int
    axis: str | None
    listener: Callable[[TuningProgress], None] | None
    failures: TuningFailures = field(default_factory=TuningFailures)
    _written: float = field(default_factory=time.monotonic)

    def tune(self) -> Run:
        """Tune all chains, from the state in the folder if there is one."""
        if stored := self.folder.state():
            self._restore(stored)
        hooks = self._block, self._reevaluate, self.schedule, self._keep, self._adapt
        states, tuning = tune(self.key, self.run.states, *hooks)
        states, tuning = placed(states, self.run.states), placed(tuning, self.run.tuning)
        self.run = self.run._replace(states=states, tuning=tuning)
        return self.run

    def _restore(self, stored: Arrays) -> None:
        with self.folder.reading_state():
            names = [name for name in stored if name.startswith("schedule/")]
            self.schedule.unpack({name.removeprefix("schedule/"): stored[name] for name in names})
            self.failures.unpack(stored)
            adapted = restored(stored, self.run.adaptation, "adaptation")
            self.run = self.run._replace(states=restored(stored, self.run.states), adaptation=adapted)

    def _block(
        self, key: Array, states: IntegratorState, tuning: Tuning, method: Method
    ) -> tuple[IntegratorState, Block]:
        now, length = self._now(), block_length(self.steps)
        states, block = _blocks(key, states, placed(tuning, self.run.tuning), now, method, length, self.axis)
        self.failures.add(self.schedule.stage, to_host(block.nonans))
        return placed(states, self.run.states), block  # with another sharding it would compile again

    def _now(self) -> Posterior:
        return self.posterior.adapted(self.run.adaptation).weighted(self.schedule.weight * self.posterior.weight)

    def _reevaluate(self, states: IntegratorState, schedule: Schedule) -> IntegratorState:
        """States at the same positions with the density of the next block and new momenta."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, schedule.count), 1)
        return placed(begin(key, states.position, self._now(), self.axis).states, self.run.states)

    def _adapt(self, states: IntegratorState, schedule: Schedule) -> tuple[IntegratorState, float]:
        """States in positions of the next adaptation, and the stability limit there, per root of the dimensions."""
        old = self.run.adaptation
        assert old is not None
        before = self.posterior.adapted(old)
        turn, other = jax.random.split(jax.random.fold_in(jax.random.fold_in(self.key, schedule.count), 0))
        changes = None
        if schedule.parameters_move:
            changes = to_host(adaptation.changes_of_curvature(other, before, states.position, self.axis))
        modes = adaptation.mode_numbers(self.posterior)
        new = placed(from_main(adaptation.adapt(old, *schedule.observed(), modes, changes)), old)
        after = self.posterior.adapted(new)
        positions = placed(_moved(states.position, before, after, self.axis), states.position)
        states = placed(begin(turn, positions, after, self.axis).states, self.run.states)
        self.run = self.run._replace(adaptation=new)
        curvatures = to_host(_largest_curvature(states.position, after, self.axis))
        return states, longest_step(curvatures, theory=new.mean is None)

    def _keep(self, schedule: Schedule, states: IntegratorState) -> None:
        try:
            if self.listener is not None:
                L, step_size = (float(np.asarray(x)) for x in schedule.tuning()[:2])
                share = 1.0 if schedule.done else min(1.0, schedule.count * block_length(self.steps) / self.steps)
                self.listener(TuningProgress(share, step_size, L, schedule.bound))
        except BaseException as error:
            if jax.process_count() == 1 or isinstance(error, SharedError):  # to write is collective
                self._write(schedule, states)
            raise
        if from_main(time.monotonic() - self._written >= _CHECKPOINT_SECONDS):
            self._write(schedule, states)
            self._written = time.monotonic()

    def _write(self, schedule: Schedule, states: IntegratorState) -> None:
        own = {f"schedule/{name}": x for name, x in schedule.pack().items()} | self.failures.pack()
        self.folder.write_state(own | leaves_of(states) | leaves_of(self.run.adaptation, "adaptation"))


@eqx.filter_jit
def begin(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> Run:
    """The chains at their positions, before any tuning."""
    keys = jax.random.split(key, positions["noise"].shape[0])
    start = partial(mclmc.init, logdensity=posterior.logdensity)
    states = jax.vmap(start, spmd_axis_name=axis)(keys, positions)
    # Constrain the sharding: XLA would replicate the initial momentum, which depends on no other field.
    sharding = posterior.model.config.decomposition.sharding
    fields = NamedSharding(sharding.mesh, PartitionSpec(axis, *sharding.spec))
    momentum = jax.lax.with_sharding_constraint(states.momentum["noise"], fields)
    states = states._replace(momentum=states.momentum | {"noise": momentum})
    one = jnp.ones((), states.logdensity.dtype)
    each = jax.tree.map(lambda _: one, positions)
    empty = jax.lax.with_sharding_constraint(jnp.zeros_like(positions["noise"][0]), sharding)
    return Run(states, Tuning(one, one, each, each), Moments(jnp.zeros(()), empty, empty), adaptation.start(posterior))


@eqx.filter_jit
def _moved(positions: Position, old: Posterior, new: Posterior, axis: str | None) -> Position:
    """The positions of another adaptation."""
    return jax.vmap(lambda z: old.moved(z, new), spmd_axis_name=axis)(positions)


@eqx.filter_jit
def _largest_curvature(positions: Position, posterior: Posterior, axis: str | None) -> Array:
    """Largest curvature of the log density at the position of each chain."""
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
    options |= {"observe": observe, "agree": posterior.model.config.decomposition.equal_copies}
    return run_blocks(key, states, tuning, method, **options)
