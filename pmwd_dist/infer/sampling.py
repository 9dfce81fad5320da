"""Sample a posterior in chunks that go to disk: a run that is stopped goes on where it was, to the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pmwd_dist.infer import adaptation, adapting, scales
from pmwd_dist.infer.arguments import check_lengths, check_options, check_start
from pmwd_dist.infer.chains import Chain, ChainFolder, identity_of, open_folder
from pmwd_dist.infer.failures import TuningFailures, check_share
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.blocks import Block, run_blocks
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, Tuning, check_method, density_shift, tilt, transition
from pmwd_dist.infer.samplers.stiffness import largest_curvature
from pmwd_dist.infer.samplers.tuning import ENERGY_VARIANCE, STEP_BIAS, Search, block_length, tune
from pmwd_dist.infer.state import (
    Moments,
    Progress,
    Run,
    TuningProgress,
    add,
    leaves_of,
    pack,
    placed,
    restored,
    tuning_progress,
    unpack,
)
from pmwd_dist.infer.storage import Arrays
from pmwd_dist.pm.status import SimulationError

_ELSEWHERE = "begin elsewhere, as with another seed or narrower priors, or look at the simulation there"
_CHECKPOINT_SECONDS = 10.0  # between writes while a run is tuned


def sample(
    posterior: Posterior,
    positions: Position,
    *,
    key: Array,
    steps: int,
    output: str | Path,
    method: Method = "mclmc",
    energy_variance: float = ENERGY_VARIANCE,
    most_bias: float = STEP_BIAS,
    tuning_steps: int = 1000,
    thin: int = 1,
    chunk: int = 100,
    keep_noise: bool = False,
    most_failures: float = 0.05,
    spmd_axis_name: str | None = None,
    listener: Callable[[Progress], None] | None = None,
    tuning_listener: Callable[[TuningProgress], None] | None = None,
) -> Chain:
    """Sample a posterior, chain by chain in a batch, and keep all on disk.

    All chains tune together what they share. Called again with the same arguments, it goes on; steps may be raised.

    Args:
      posterior: of a model, given data.
      positions: where the chains begin, with a leading axis of chains, such as jax.vmap(posterior.initial)(keys).
      key: of jax.random.
      steps: of each chain, after tuning: a multiple of thin * chunk.
      method: "mclmc", biased as its energy error, or "adjusted-mclmc" or "hmc", whose trajectories are accepted or not.
      energy_variance: of a step of MCLMC per dimension, at which its tuning aims.
      most_bias: shift of a parameter by finite steps of MCLMC that a tilt of the log density against it may leave, in
        standard deviations, as far as the tuning shows.
      output: folder. The chain of another model there is not continued; plain functions are known by their names.
      tuning_steps: before.
      thin: steps between draws that are kept.
      chunk: draws between writes to disk.
      keep_noise: whether to keep the white noise of the last draw of each chunk.
      most_failures: share of the steps that may end in failed simulations, of a chunk or of the tuning's last stage.
      spmd_axis_name: axis of the device mesh over which chains are divided, if any.
      listener: called after tuning and each chunk, which is on disk then; what it raises ends the run.
      tuning_listener: called after each block of the tuning; what it raises ends the run, with the state on disk.

    Raises:
      ValueError: an argument out of its range, or a folder with a chain of another model.
      ChainFileError: a file of the chain that it would go on with is missing or damaged.
      SimulationError: the start, or too many steps, failed.
    """
    check_method(method)
    check_start(posterior, positions)
    check_lengths(steps, thin, chunk)
    check_options(key, tuning_steps, most_failures)
    search = _search(posterior, positions, tuning_steps, method, energy_variance, most_bias)
    how: dict[str, Any] = {"tuning_steps": tuning_steps, "thin": thin, "chunk": chunk, "keep_noise": keep_noise}
    how |= {"method": method, "energy_variance": energy_variance, "most_bias": most_bias}
    folder = open_folder(output, _identity(posterior, positions, key) | identity_of(how))
    begin_key, tune_key, run_key = jax.random.split(key, 3)
    run, done = _resumed(_begun(begin_key, positions, posterior, spmd_axis_name), folder)
    if done is None:
        args = tune_key, run, posterior, search, folder, tuning_steps, spmd_axis_name
        run, failures = _tuned(*args, listener=tuning_listener)
        failures.check(most_failures)
        folder.write_state(pack(run, 0))
        done = 0
        _tell(listener, run, 0, {})
    for index in range(done, steps // (thin * chunk)):
        run, draws = _advance(jax.random.fold_in(run_key, index), run, posterior, method, thin, chunk, spmd_axis_name)
        arrays = _checked(draws, index, most_failures, posterior)
        arrays |= _white_noise(run, posterior, spmd_axis_name) if keep_noise else {}
        folder.write(index, arrays, pack(run, index + 1))
        _tell(listener, run, index + 1, arrays)
    return folder.load()


def _search(
    posterior: Posterior,
    positions: Position,
    steps: int,
    method: Method,
    energy_variance: float,
    most_bias: float,
) -> Search:
    targets = {"energy_variance": energy_variance, "most_bias": most_bias}
    return Search(positions, steps=steps, method=method, adapts=adaptation.start(posterior) is not None, **targets)


def _white_noise(run: Run, posterior: Posterior, axis: str | None) -> Arrays:
    return {"noise": np.asarray(_unwhitened(run.states.position, posterior.adapted(run.adaptation), axis))}


def _begun(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> Run:
    """The chains before tuning, or SimulationError."""
    run = _begin(key, positions, posterior, axis)
    for what, tree in (
        ("log density", run.states.logdensity),
        ("slope of the log density", run.states.logdensity_grad),
    ):
        fine = [np.asarray(jnp.isfinite(x).all(axis=tuple(range(1, x.ndim)))) for x in jax.tree.leaves(tree)]
        wrong = np.flatnonzero(~np.all(fine, axis=0))
        if wrong.size:
            where = f"{wrong.size} of {len(fine[0])} chains begin, as chain {wrong[0]} does"
            raise SimulationError(
                f"the {what} is not finite where {where}{_at(posterior, positions, wrong[0])}; {_ELSEWHERE}"
            )
    return run


def _at(posterior: Posterior, positions: Position, chain: int) -> str:
    """Parameters where a chain begins."""
    numbers = posterior.parameters(jax.tree.map(lambda x: x[chain], positions))
    return " with " * bool(numbers) + ", ".join(f"{name} = {float(x):.4g}" for name, x in numbers.items())


def _resumed(run: Run, folder: ChainFolder) -> tuple[Run, int | None]:
    """The chains after the chunks that the folder has, and the number of these; None while they are to be tuned."""
    stored = folder.state()
    if stored is None or "search/count" in stored:
        return run, None
    with folder.reading_state():
        return unpack(stored, run), int(stored["chunks"])


def _checked(draws: dict[str, Array], chunk: int, most: float, posterior: Posterior) -> Arrays:
    """The draws, on the host; SimulationError where a larger share of the steps of a chunk failed."""
    arrays = {name: np.asarray(x) for name, x in draws.items()}
    of_bands = {name: arrays.pop(name) for name in scales.KINDS}
    arrays |= scales.by_wavenumber(of_bands, arrays.pop("modes"), posterior.model.config)
    check_share(1 - float(np.mean(arrays["nonans"])), most, f"chunk {chunk}")
    return arrays


def _tell(listener: Callable[[Progress], None] | None, run: Run, chunks: int, draws: Arrays) -> None:
    if listener is not None:
        L, step_size = (float(np.asarray(x)) for x in run.tuning[:2])
        listener(Progress(chunks, step_size, L, draws))


def _identity(posterior: Posterior, positions: Position, key: Array) -> dict[str, str]:
    """What decides the bits of a chain, but for its schedule."""
    model = posterior.model
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    parts = {"config": model.config, "model": model.forward, "priors": model.items, "likelihood": model.likelihood}
    of_posterior = {"data": posterior.data, "preconditioner": posterior.preconditioner}
    return identity_of(parts | of_posterior | {"start": positions, "key": jax.random.key_data(key) if typed else key})


@eqx.filter_jit
def _begin(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> Run:
    keys = jax.random.split(key, positions["noise"].shape[0])
    start = partial(mclmc.init, logdensity=posterior.logdensity)
    states = jax.vmap(start, spmd_axis_name=axis)(keys, positions)
    # Divided as steps return them: XLA would keep whole fields of what depends on no other field.
    field = posterior.model.config.decomposition.sharding
    fields = NamedSharding(field.mesh, PartitionSpec(axis, *field.spec))
    momentum = jax.lax.with_sharding_constraint(states.momentum["noise"], fields)
    states = states._replace(momentum=states.momentum | {"noise": momentum})
    one = jnp.ones((), states.logdensity.dtype)
    each = jax.tree.map(lambda _: one, positions)
    tuning = Tuning(one, one, each, each)
    empty = jax.lax.with_sharding_constraint(jnp.zeros_like(positions["noise"][0]), field)
    return Run(states, tuning, Moments(jnp.zeros(()), empty, empty), adaptation.start(posterior))


def _tuned(
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
        states = _begin(turn, placed(positions, states.position), posterior.adapted(new), axis).states
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


@eqx.filter_jit
def _advance(
    key: Array, run: Run, posterior: Posterior, method: Method, thin: int, chunk: int, axis: str | None
) -> tuple[Run, dict[str, Array]]:
    """A chunk of all chains, with arrays of shape (chains, draws), (bands, chains, draws) or (chains, steps)."""
    posterior = posterior.adapted(run.adaptation)
    chains, config = run.states.logdensity.shape[0], posterior.model.config
    options: dict[str, Any] = {"logdensity": posterior.logdensity, "method": method, "tuning": run.tuning}
    seen = scales.scales_of(config)

    def once(states: IntegratorState, key: Array) -> Any:
        one = partial(transition, fraction=jax.random.uniform(jax.random.fold_in(key, chains)), **options)
        states, info = jax.vmap(one, spmd_axis_name=axis)(jax.random.split(key, chains), states)
        return states, info._asdict()

    def draw(carry: tuple[IntegratorState, Moments], key: Array) -> Any:
        states, moments = carry
        states, each = jax.lax.scan(once, states, jax.random.split(key, thin))
        noise = _unwhitened(states.position, posterior, axis)
        for i in range(chains):
            moments = add(moments, noise[i])
        kept = {f"parameter/{name}": x for name, x in jax.vmap(posterior.parameters)(states.position).items()}
        shift = jax.vmap(partial(density_shift, method=method, tuning=run.tuning))(states)
        logdensity = states.logdensity + jax.vmap(partial(tilt, tuning=run.tuning))(states.position)
        kept |= {"logdensity": logdensity, "density_shift": shift}
        kept |= jax.vmap(lambda x: scales.band_statistics(x, seen, config), spmd_axis_name=axis)(noise)
        return (states, moments), (kept, each)

    (states, moments), (kept, each) = jax.lax.scan(draw, (run.states, run.moments), jax.random.split(key, chunk))
    arrays = {name: x.T for name, x in kept.items()}
    arrays |= {name: x.reshape(-1, chains).T for name, x in each.items()} | {"modes": seen.modes}
    return Run(states, run.tuning, moments, run.adaptation), arrays


@eqx.filter_jit
def _unwhitened(positions: Position, posterior: Posterior, axis: str | None) -> Array:
    """White noise of all chains."""
    return jax.vmap(lambda z: posterior.unwhiten(z)[0], spmd_axis_name=axis)(positions)
