"""Tune the chains of a run, block by block, with the state in a folder on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.profile import part
from pmwd_dist._jax.program import filter_jit, jit
from pmwd_dist.infer import precondition, trees
from pmwd_dist.infer.chain.chain import Moments, Run, named, placed, restored
from pmwd_dist.infer.chain.folder import ChainFolder
from pmwd_dist.infer.constants import ASIDE, AWAY, FURTHER, ITERATIONS, LARGEST_PHASE, TRAJECTORIES
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.precondition import Adaptation
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.mclmc import IntegratorState, LogDensity
from pmwd_dist.infer.samplers.methods import Method, Tuning, transition
from pmwd_dist.infer.tuning.saved import SavedTuning
from pmwd_dist.infer.tuning.schedule import Block, Schedule, TuningState, block_length
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.distributed import SharedError, from_main, to_devices, to_host
from pmwd_dist.pm.status import SimulationError

_CHECKPOINT_SECONDS = 10.0  # time between writes
_aside = jit(trees.add)


class TuningProgress(NamedTuple):
    """Progress of a tuning after a block of steps.

    Args:
      share: finished share of the tuning, 1 at most.
      stage: name of the stage of the next block.
      step_size, L: parameters of the next block.
    """

    share: float
    stage: str
    step_size: float
    L: float


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

    An exception of the listener, which is called after each block, ends the tuning with the state on disk.
    """

    key: Array
    run: Run
    posterior: Posterior
    schedule: Schedule
    folder: ChainFolder
    axis: str | None
    listener: Callable[[TuningProgress], None]
    saved: SavedTuning | None = None
    _written: float = field(default_factory=time.monotonic)

    @part("tuning")
    def tune(self, stored: Arrays, most_failures: float) -> Run:
        """Tune all chains, from a state that was stored, if any.

        Raises:
          SimulationError: a larger share than `most_failures` of the steps of the last stage failed.
        """
        schedule, state, like = self.schedule, self.schedule.begin(), self._with_saved_tuning
        if stored:
            state = self._restore(stored, state)
        elif like is not None:
            self._move_to(like.adaptation)
        while not schedule.done(state):
            if schedule.next(state).reevaluates:
                self._begin_at(self.run.states.position, state, 1)
            state = self._run_block(state)
            last = schedule.last(state)
            if last.ends:
                state = schedule.advance(state, self._adapt(state) if last.stage.adapts else math.inf)
            self._keep(state)
        tuning = placed(from_main(schedule.tuning(state)), self.run.tuning)
        check_share(state.failed / max(state.steps, 1), most_failures, "the last stage of the tuning")
        return self.run._replace(tuning=tuning if like is None else like.tuning)

    @cached_property
    def _with_saved_tuning(self) -> Run | None:
        """The chains as they begin, with the tuning of other ones, if any, but the mean of their own noise."""
        if self.saved is None:
            return None
        try:
            parts = restored(self.saved.arrays, {"tuning": self.run.tuning, "adaptation": self.run.adaptation})
        except (KeyError, ValueError) as error:
            raise ArgumentError("tuning", "", "is of another version", "tune chains again", show_value=False) from error
        adaptation = replace(parts["adaptation"], mean=self.run.adaptation.mean)
        return self.run._replace(tuning=parts["tuning"], adaptation=adaptation)

    def _move_to(self, adaptation: Adaptation) -> None:
        """Keep the noise and the parameters of the chains in the positions of another adaptation."""
        before, after = (self.posterior.adapted(x) for x in (self.run.adaptation, adaptation))
        states = self.run.states
        position = placed(moved(states.position, before, after, self.axis), states.position)
        self.run = self.run._replace(states=states._replace(position=position), adaptation=adaptation)

    def _run_block(self, state: TuningState) -> TuningState:
        schedule, key = self.schedule, jax.random.fold_in(self.key, state.total)
        tuning = placed(from_main(schedule.tuning(state)), self.run.tuning)
        options = self._now(state), schedule.next(state).method, block_length(schedule.steps), self.axis
        states, block = tuning_block(key, self.run.states, tuning, *options)
        state = schedule.update(state, to_host(block))
        if from_main(state.kept):  # with another sharding the block would compile again
            self.run = self.run._replace(states=placed(states, self.run.states))
        return state

    def _now(self, state: TuningState) -> Posterior:
        """The posterior with the adaptation and the weight of the next block."""
        # On the host: the type of a product of arrays depends on programs that ran before, and `begin` traced again.
        weight = self.schedule.next(state).weight * float(np.asarray(self.posterior.weight))
        return self.posterior.adapted(self.run.adaptation).weighted(weight)

    def _begin_at(self, positions: Position, state: TuningState, number: int) -> None:
        """Evaluate the density of the next block at these positions, with new momenta."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, state.total), number)
        states = begin(key, positions, self._now(state), self.axis).states
        self.run = self.run._replace(states=placed(states, self.run.states))

    def _adapt(self, state: TuningState) -> float:
        """Adapt the preconditioner, and return the stability limit of the step per root of the dimensions."""
        before, positions = self.posterior.adapted(self.run.adaptation), self.run.states.position
        after, extremes = before, list[Position]()
        if state.blocks:
            after, extremes = self._adapted(before, state), at_extremes(positions, state.observed.scaled)
            positions, *extremes = (moved(x, before, after, self.axis) for x in (positions, *extremes))
            self._begin_at(placed(positions, self.run.states.position), state, 0)

        def slopes(positions: Any) -> Any:
            positions = placed(positions, self.run.states.position)
            return begin(self.key, positions, after, self.axis).states.logdensity_grad

        return longest_step(largest_curvatures(slopes, positions, extremes))

    def _adapted(self, before: Posterior, state: TuningState) -> Posterior:
        old, changes = self.run.adaptation, None
        if self.schedule.last(state).stage.parameters_move:
            key = jax.random.fold_in(jax.random.fold_in(self.key, state.total), 2)
            changes = to_host(precondition.changes_of_curvature(key, before, self.run.states.position, self.axis))
        mean, modes = state.noise / state.blocks, to_host(precondition.mode_numbers(self.posterior))
        new = precondition.adapt(old, state.observed, mean, modes, changes)
        if self._with_saved_tuning is not None:
            new = replace(self._with_saved_tuning.adaptation, mean=new.mean)
        self.run = self.run._replace(adaptation=placed(from_main(new), old))
        return self.posterior.adapted(self.run.adaptation)

    def _keep(self, state: TuningState) -> None:
        try:
            L, step_size = (float(np.asarray(x)) for x in self.schedule.tuning(state)[:2])
            share, stage = state.total / len(self.schedule.blocks), self.schedule.next(state).stage.name
            self.listener(TuningProgress(share, stage, step_size, L))
        except BaseException as error:
            if jax.process_count() == 1 or isinstance(error, SharedError):  # to write is collective
                self._write(state)
            raise
        if from_main(time.monotonic() - self._written >= _CHECKPOINT_SECONDS):
            self._write(state)
            self._written = time.monotonic()

    def _write(self, state: TuningState) -> None:
        self.folder.write_state(named(self._saved(state)))

    def _restore(self, stored: Arrays, like: TuningState) -> TuningState:
        with self.folder.reading_state():
            saved = restored(stored, self._saved(like))
        self.run = self.run._replace(states=saved["states"], adaptation=saved["adaptation"])
        return saved["schedule"]

    def _saved(self, state: TuningState) -> dict[str, Any]:
        return {"schedule": state, "states": self.run.states, "adaptation": self.run.adaptation}


@filter_jit
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
    moments, nothing = Moments(jnp.zeros(()), empty, empty), dict.fromkeys(posterior.model.priors, jnp.zeros_like(one))
    return Run(states, Tuning(one, one, each), moments, posterior.preconditioner.adaptation, nothing)


@filter_jit
def moved(positions: Position, old: Posterior, new: Posterior, axis: str | None) -> Position:
    """The positions of another adaptation."""
    return jax.vmap(lambda z: old.moved(z, new), spmd_axis_name=axis)(positions)


@filter_jit
def tuning_block(
    key: Array,
    states: IntegratorState,
    tuning: Tuning,
    posterior: Posterior,
    method: Method,
    length: int,
    axis: str | None,
) -> tuple[IntegratorState, Block]:
    """A block of steps of all chains."""
    options: dict[str, Any] = {"logdensity": posterior.logdensity, "observe": posterior.observe, "length": length}
    options |= {"spmd_axis_name": axis, "agree": posterior.model.config.decomposition.equal_copies}
    return run_blocks(key, states, tuning, method, **options)


def run_blocks(
    key: Array,
    states: IntegratorState,
    tuning: Tuning,
    method: Method,
    *,
    logdensity: LogDensity,
    observe: Callable[[Any, Any], tuple[Any, Array]],
    length: int,
    spmd_axis_name: str | None = None,
    **options: Any,
) -> tuple[IntegratorState, Block]:
    """A block of a batch of chains: `length` steps of MCLMC, or a few trajectories of HMC.

    The observer is a function of position and gradient. It returns arrays to keep and a field to average. `transition`
    has further options.
    """
    chains, steps = states.logdensity.shape[0], length if method == "mclmc" else TRAJECTORIES
    fractions = jax.random.uniform(jax.random.fold_in(key, chains), (steps,))  # shared by all chains
    step = partial(transition, logdensity=logdensity, method=method, tuning=tuning, **options)

    def once(carry: tuple[IntegratorState, Array], inputs: tuple[Array, Array]) -> Any:
        state, noise = carry
        state, info = step(inputs[0], state, fraction=inputs[1])
        observed, field = observe(state.position, state.logdensity_grad)
        return (state, noise + field / steps), (info.energy_change, info.nonans, observed)

    def one(key: Array, state: IntegratorState) -> tuple[IntegratorState, Block]:
        field = jax.eval_shape(observe, state.position, state.logdensity_grad)[1]
        begin = state, jnp.zeros(field.shape, field.dtype)
        (state, noise), each = jax.lax.scan(once, begin, (jax.random.split(key, steps), fractions))
        energy_change, nonans, observed = each
        return state, Block(energy_change, nonans, observed, noise)

    return jax.vmap(one, spmd_axis_name=spmd_axis_name)(jax.random.split(key, chains), states)


def largest_curvatures(slopes: Callable[[Any], Any], positions: Any, extremes: Sequence[Any] = ()) -> np.ndarray:
    """Lower bounds of the largest curvature of the log density at positions, and then at extremes, batch by batch.

    The largest curvature limits the stable steps of MCLMC in any number of dimensions. It is found by power iteration,
    with differences of gradients instead of products with the Hessian. The few iterations at extremes begin with the
    directions that were found at the positions.

    `slopes` gives the gradients of the log density at positions of a batch of chains, and `extremes` are other
    positions of the same chains (`at_extremes`).
    """

    def iterated(positions: Any, directions: Any, times: int) -> tuple[Any, np.ndarray]:
        sizes = None
        for _ in range(times):
            ends = [slopes(_aside(positions, sign * ASIDE, directions)) for sign in (-1.0, 1.0)]
            directions, sizes = _normalised(jax.tree.map(lambda x, y: (x - y) / (2 * ASIDE), *ends))
        return directions, to_host(sizes)

    directions, found = iterated(positions, _normalised(slopes(positions))[0], ITERATIONS)
    return np.concatenate([found, *(iterated(x, directions, FURTHER)[1] for x in extremes)])


@jit
def _normalised(directions: Any) -> tuple[Any, Array]:
    sizes = jax.vmap(trees.norm)(directions)
    return jax.vmap(lambda size, x: trees.scale(1 / size, x))(sizes, directions), sizes


def at_extremes(positions: Any, numbers: np.ndarray) -> list[Any]:
    """Batches of the positions, each with numbers that are `AWAY` standard deviations from their mean, one at a time.

    The positions have these numbers along chains, (chains, steps, n); there may be none. Curvatures grow with
    parameters such as a galaxy bias, and chains of a short tuning visit the middle of the posterior.
    """
    if not numbers.size:
        return []
    mean, sd = numbers.mean(axis=(0, 1)), numbers.std(axis=(0, 1))
    leaves, structure = jax.tree.flatten(positions)
    places = [i for i, x in enumerate(leaves) if x.ndim == 1]
    extremes = [(i, m + sign * AWAY * s) for i, m, s in zip(places, mean, sd, strict=True) for sign in (-1.0, 1.0)]
    batches, chains = list[Any](), len(numbers)
    for first in range(0, len(extremes), chains):
        new = list(leaves)
        for chain, (i, extreme) in enumerate(extremes[first : first + chains]):
            moved = np.array(to_host(new[i]))
            moved[chain] = extreme
            new[i] = to_devices(moved, leaves[i].sharding)
        batches.append(structure.unflatten(new))
    return batches


def longest_step(curvatures: np.ndarray) -> float:
    """The stability limit of the step of MCLMC, per root of the dimensions; values that are not finite are ignored."""
    largest = float(np.max(curvatures, where=np.isfinite(curvatures), initial=0.0))
    return LARGEST_PHASE / math.sqrt(largest) if largest > 0 else math.inf
