"""Sample a posterior in chunks that go to disk: a run that is stopped goes on where it was, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chains import Arrays, Chain, ChainFolder, identity_of
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.tuning import Block, Tuning, block_length, run_block, tune
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.status import SimulationError


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


class _Run(NamedTuple):
    """State of all chains."""

    states: IntegratorState
    tuning: Tuning
    moments: Moments


def sample(
    posterior: Posterior,
    positions: Position,
    *,
    key: Array,
    steps: int,
    output: str | Path,
    tuning_steps: int = 1000,
    thin: int = 1,
    chunk: int = 100,
    keep_noise: bool = False,
    most_failures: float = 0.05,
    spmd_axis_name: str | None = None,
    listener: Callable[[Progress], None] | None = None,
) -> Chain:
    """Sample a posterior by MCLMC, chain by chain in a batch, and keep all on disk.

    All chains together tune the step size, L and masses that they share. Called again with the same arguments, it
    goes on after the last complete chunk; steps may be raised.

    Args:
      posterior: of a model, given data.
      positions: where the chains begin, with a leading axis of chains, such as jax.vmap(posterior.initial)(keys).
      key: of jax.random.
      steps: of each chain, after tuning: a multiple of thin * chunk.
      output: folder. A chain of another model there is not continued; a forward model that is a plain function is known
        by its name.
      tuning_steps: before.
      thin: steps between draws that are kept.
      chunk: draws between writes to disk.
      keep_noise: whether to keep the white noise of the last draw of each chunk.
      most_failures: share of the steps of a chunk that may end in failed simulations.
      spmd_axis_name: axis of the device mesh over which chains are divided, if any.
      listener: called after tuning and after each chunk is on disk; what it raises ends the run there.

    Raises:
      ValueError: an argument out of its range, or a folder with a chain of another model.
      SimulationError: the start, or too many steps, failed.
    """
    _check(posterior, positions, steps, thin, chunk, tuning_steps)
    schedule = {"tuning_steps": tuning_steps, "thin": thin, "chunk": chunk, "keep_noise": keep_noise}
    folder = ChainFolder(output, _identity(posterior, positions, key) | identity_of(schedule))
    begin_key, tune_key, run_key = jax.random.split(key, 3)
    run = _begun(begin_key, positions, posterior, spmd_axis_name)
    stored, done = folder.state(), 0
    if stored is None:
        run = _tuned(tune_key, run, posterior, tuning_steps, spmd_axis_name)
        folder.write_state(_pack(run, 0))
        _tell(listener, run, 0, {})
    else:
        run, done = _unpack(stored, run), int(stored["chunks"])
    for index in range(done, steps // (thin * chunk)):
        run, draws = _advance(jax.random.fold_in(run_key, index), run, posterior, thin, chunk, spmd_axis_name)
        arrays = {name: np.asarray(x) for name, x in draws.items()}
        _check_failures(arrays, index, most_failures)
        if keep_noise:
            arrays["noise"] = np.asarray(_unwhitened(run.states.position, posterior, spmd_axis_name))
        folder.write(index, arrays, _pack(run, index + 1))
        _tell(listener, run, index + 1, arrays)
    return folder.load()


def _begun(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> _Run:
    """The chains before tuning, or SimulationError."""
    run = _begin(key, positions, posterior, axis)
    if not bool(jnp.all(jnp.isfinite(run.states.logdensity))):
        raise SimulationError("the log density is not finite where a chain begins; draw other positions")
    return run


def _check_failures(draws: Arrays, chunk: int, most: float) -> None:
    """SimulationError where a larger share of the steps of a chunk failed."""
    failed = 1 - float(np.mean(draws["nonans"]))
    if failed > most:
        raise SimulationError(
            f"{failed:.1%} of the steps of chunk {chunk} failed, more than {most:.1%}; "
            "tune for longer, or look at the priors, the halo and the steps of the simulation"
        )


def _tell(listener: Callable[[Progress], None] | None, run: _Run, chunks: int, draws: Arrays) -> None:
    if listener is not None:
        listener(Progress(chunks, float(run.tuning.step_size), float(run.tuning.L), draws))


def _identity(posterior: Posterior, positions: Position, key: Array) -> dict[str, str]:
    """What decides the bits of a chain, but for its schedule."""
    model = posterior.model
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    parts = {"config": model.config, "model": model.forward, "priors": model.items, "likelihood": model.likelihood}
    of_posterior = {"data": posterior.data, "preconditioner": posterior.preconditioner}
    return identity_of(parts | of_posterior | {"start": positions, "key": jax.random.key_data(key) if typed else key})


@eqx.filter_jit
def _begin(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> _Run:
    keys = jax.random.split(key, positions["noise"].shape[0])
    start = partial(mclmc.init, logdensity=posterior.logdensity)
    states = jax.vmap(start, spmd_axis_name=axis)(keys, positions)
    one = jnp.ones((), states.logdensity.dtype)
    tuning = Tuning(one, one, jax.tree.map(lambda _: one, positions))
    empty = jnp.zeros_like(positions["noise"][0])
    return _Run(states, tuning, Moments(jnp.zeros(()), empty, empty))


def _tuned(key: Array, run: _Run, posterior: Posterior, steps: int, axis: str | None) -> _Run:
    """All chains after tuning."""
    length = block_length(steps)

    def run_all(key: Array, states: IntegratorState, tuning: Tuning) -> tuple[IntegratorState, Block]:
        states, block = _blocks(key, states, _placed(tuning, run.tuning), posterior, length, axis)
        return _placed(states, run.states), block  # where they were: with another sharding it would compile again

    states, tuning = tune(key, run.states, run_all, steps=steps)
    return run._replace(states=states, tuning=_placed(tuning, run.tuning))


@eqx.filter_jit
def _blocks(
    key: Array, states: IntegratorState, tuning: Tuning, posterior: Posterior, steps: int, axis: str | None
) -> tuple[IntegratorState, Block]:
    """A block of steps of all chains."""
    one = partial(run_block, tuning=tuning, logdensity=posterior.logdensity, steps=steps)
    return jax.vmap(one, spmd_axis_name=axis)(jax.random.split(key, states.logdensity.shape[0]), states)


def _placed(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda x, y: jax.device_put(jnp.asarray(x, y.dtype), y.sharding), tree, like)


@eqx.filter_jit
def _advance(
    key: Array, run: _Run, posterior: Posterior, thin: int, chunk: int, axis: str | None
) -> tuple[_Run, dict[str, Array]]:
    """A chunk of draws of all chains, with arrays of shape (chains, draws) or (chains, steps)."""
    chains = run.states.logdensity.shape[0]
    step = partial(mclmc.step, logdensity=posterior.logdensity, **run.tuning._asdict())
    every = jax.vmap(step, spmd_axis_name=axis)

    def once(states: IntegratorState, key: Array) -> Any:
        states, info = every(jax.random.split(key, chains), states)
        return states, (info.energy_change, info.nonans)

    def draw(carry: tuple[IntegratorState, Moments], key: Array) -> Any:
        states, moments = carry
        states, (energy, nonans) = jax.lax.scan(once, states, jax.random.split(key, thin))
        noise = _unwhitened(states.position, posterior, axis)
        for i in range(chains):
            moments = _add(moments, noise[i])
        kept = {f"parameter/{name}": x for name, x in jax.vmap(posterior.parameters)(states.position).items()}
        return (states, moments), (kept | {"logdensity": states.logdensity}, (energy, nonans))

    (states, moments), (kept, each) = jax.lax.scan(draw, (run.states, run.moments), jax.random.split(key, chunk))
    arrays = {name: x.T for name, x in kept.items()}
    arrays["energy_change"], arrays["nonans"] = (x.reshape(-1, chains).T for x in each)
    return _Run(states, run.tuning, moments), arrays


@eqx.filter_jit
def _unwhitened(positions: Position, posterior: Posterior, axis: str | None) -> Array:
    """White noise of all chains."""
    return jax.vmap(lambda z: posterior.unwhiten(z)[0], spmd_axis_name=axis)(positions)


def _add(moments: Moments, x: Array) -> Moments:
    """The moments with one more draw (Welford 1962)."""
    draws = moments.draws + 1
    away = x - moments.mean
    mean = moments.mean + away / draws.astype(x.dtype)
    return Moments(draws, mean, moments.square + away * (x - mean))


def _pack(run: _Run, chunks: int) -> Arrays:
    leaves = {f"run/{i:03d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves((run.states, run.tuning)))}
    moments = {f"moments/{name}": np.asarray(x) for name, x in run.moments._asdict().items()}
    return leaves | moments | {"chunks": np.asarray(chunks)}


def _unpack(stored: Arrays, like: _Run) -> _Run:
    """What was packed, placed as what begins a run."""
    leaves, treedef = jax.tree.flatten((like.states, like.tuning))
    values = [stored[f"run/{i:03d}"] for i in range(len(leaves))]
    states, tuning = jax.tree.unflatten(treedef, values)
    moments = Moments(*(jnp.asarray(stored[f"moments/{name}"]) for name in Moments._fields))
    return _placed(_Run(states, tuning, moments), like)


def _check(posterior: Posterior, positions: Position, steps: int, thin: int, chunk: int, tuning_steps: int) -> None:
    if jax.process_count() > 1:
        raise ArgumentError("posterior", "", "needs a program of one process", show_value=False)
    shape, lattice = jnp.shape(positions["noise"]), posterior.model.config.particle_shape
    if shape[1:] != lattice:
        remedy = "use jax.vmap(posterior.initial)(keys)"
        raise ArgumentError("positions['noise'].shape", shape, f"must be (chains, *{lattice})", remedy)
    for name, value in (("thin", thin), ("chunk", chunk), ("steps", steps)):
        whole_number(value, name, least=1)
    if steps % (thin * chunk):
        raise ArgumentError("steps", steps, f"must be a multiple of thin * chunk = {thin * chunk}")
    whole_number(tuning_steps, "tuning_steps", least=40)
