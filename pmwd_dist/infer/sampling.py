"""Sample a posterior in chunks on disk: an interrupted run goes on from the last chunk, to the same bits.

MCLMC accepts every step, so its chains check their own steps after 1, 2, 4, 8 chunks and so on (`step_errors`). Where
steps are too long, all draws are discarded, and chains start over from the positions before the last chunk: with
shorter steps, or with a correction of the mean of parameters (`diagnostics.bias_slopes`). Another chunk is discarded
as burn-in. The sampled density never changes while draws are kept. Draws that `sample` has returned are never
discarded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._checks import check_flag
from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.program import filter_jit, jit
from pmwd_dist.infer import trees
from pmwd_dist.infer.bands import KINDS, by_wavenumber, statistics_of_bands
from pmwd_dist.infer.chain.chain import Chain, Moments, Progress, Restarts, Run, named, on_devices, placed, restored
from pmwd_dist.infer.chain.diagnostics import bias_slopes, step_errors
from pmwd_dist.infer.chain.folder import ChainFolder, chain_of, identity_of
from pmwd_dist.infer.chain.progress import displayed, is_shown
from pmwd_dist.infer.constants import (
    AFTER_UNSTABLE,
    ENERGY_VARIANCE,
    FEW_FAILURES,
    LARGEST_BIAS,
    LARGEST_REMAINDER,
    MOST_REPEATS,
    MOST_RESTARTS,
    UNSTABLE,
)
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers.mclmc import IntegratorState, density_shift
from pmwd_dist.infer.samplers.methods import Method, check_method, transition
from pmwd_dist.infer.tuning.loop import ChainTuning, TuningProgress, begin, check_share
from pmwd_dist.infer.tuning.saved import SavedTuning, kind_of, parts_of
from pmwd_dist.infer.tuning.schedule import SETTLING, STAGES, Schedule
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.distributed import check_shared, exchange, from_main, is_main, raise_on_all_processes, to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.status import SimulationError


@on_auto_axes
def sample(
    posterior: Posterior,
    positions: Position,
    *,
    key: Array,
    steps: int,
    output: str | Path,
    method: Method = "mclmc",
    energy_variance: float = ENERGY_VARIANCE,
    tuning_steps: int = 1000,
    tuning: SavedTuning | None = None,
    thin: int = 1,
    chunk: int = 100,
    keep_noise: bool = False,
    most_failures: float = 0.05,
    spmd_axis_name: str | None = None,
    listener: Callable[[Progress], None] | None = None,
    tuning_listener: Callable[[TuningProgress], None] | None = None,
    progress: bool | None = None,
) -> Chain:
    """Sample a posterior with a batch of chains that are tuned together, and keep all draws on disk.

    A second call with the same arguments goes on from the folder; `steps` may be larger.

    Args:
      posterior: posterior of a model, given data.
      positions: first positions, with a leading axis of chains, such as jax.vmap(posterior.initial)(keys).
      key: random key.
      steps: number of steps of each chain after tuning, a multiple of thin * chunk.
      method: "mclmc", which accepts all steps, or "hmc", which accepts or rejects trajectories.
      energy_variance: target variance of the energy error of a step of MCLMC, per dimension, from 1e-15 to 0.002.
      output: folder of the chain. A chain of another model there is an error; functions are compared by their names.
      tuning_steps: number of tuning steps before sampling; with a tuning, in which the chains settle.
      tuning: tuning of chains of the same model with other data (`load_tuning`), whose step, L and preconditioner these
        chains take. Functions are compared by their names.
      thin: number of steps per draw.
      chunk: number of draws between writes to disk.
      keep_noise: whether to keep the white noise of the last draw of each chunk.
      most_failures: largest share of failed simulations in the steps of a chunk or of the last stage of the tuning.
      spmd_axis_name: axis of the device mesh over which chains are divided, if any.
      listener: function called after tuning, after each chunk is on disk, and where chains start over; an exception
        ends the run. Of several processes, each calls it, and all of them have to raise it.
      tuning_listener: function called after each block of the tuning; an exception ends the run, with the state on
        disk. Of several processes, all have to raise it, as a `pmwd_dist.distributed.SharedError`.
      progress: whether to show the progress in a line of standard error; default: in a terminal and in a notebook.

    Raises:
      ValueError: an argument out of its range, a tuning or a folder with a chain of another model.
      ArrayFileError: a file of the chain in the folder is missing or damaged.
      SharedError: one of these, or a folder that is not shared, where there are several processes.
      SimulationError: the first positions, or too many steps, failed.

    Warns:
      UserWarning: steps of MCLMC that are still too long, with the range of parameters; failed steps; or chains that
        have not mixed.

    Examples:
      >>> starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(0), 4))
      >>> chain = infer.sample(posterior, starts, key=jax.random.key(1), steps=4000, output="runs/chain")
    """
    check_method(method)
    _check_positions(posterior, positions)
    _check_numbers(key, steps, thin, chunk, most_failures)
    check_flag(keep_noise, "keep_noise")
    schedule = Schedule(positions, tuning_steps, method, energy_variance, STAGES if tuning is None else SETTLING)
    options = {"method": method, "energy_variance": energy_variance, "tuning_steps": tuning_steps, "thin": thin}
    identity = identity_of(_parts(posterior, positions, key) | options | {"chunk": chunk, "keep_noise": keep_noise})
    if tuning is not None:
        if not isinstance(tuning, SavedTuning):
            raise ArgumentError("tuning", tuning, "is no tuning", "use infer.load_tuning(path)", show_value=False)
        tuning.check(kind_of(posterior.model, method, energy_variance, posterior.weight))
        identity |= identity_of({"tuning": tuning.arrays})
    with raise_on_all_processes():
        folder = ChainFolder(output, identity)
    check_shared(folder.path, "output")
    folder.run = exchange(folder.run)[0]  # process 0 alone knows the halo with which the chain began
    begun = from_main(is_main() and folder.has_files())
    with raise_on_all_processes():
        stored, earlier = folder.read(noise=False) if begun else ({}, [])
    wanted = steps // (thin * chunk)
    begin_key, tune_key, run_key = jax.random.split(key, 3)
    listeners: Any = listener or _ignore, tuning_listener or _ignore
    with displayed(len(earlier), wanted, *listeners) if is_shown(progress) else nullcontext(listeners) as (tell, tuned):
        run = begin(begin_key, on_devices(positions, posterior.model.config, spmd_axis_name), posterior, spmd_axis_name)
        _check_begun(run, posterior)
        how = posterior, method, thin, chunk, spmd_axis_name
        chains = _Chains(run_key, *how, folder, energy_variance, most_failures, keep_noise, tell)
        stages = ChainTuning(tune_key, run, posterior, schedule, folder, spmd_axis_name, tuned, tuning)
        run, restarts = chains.restored(stored, run) if "chunks" in stored else chains.tuned(stored, stages)
        chains.draw(run, restarts, earlier, wanted)
    with raise_on_all_processes():
        chain = folder.load()
    return _warned(chain, method, energy_variance)


def _parts(posterior: Posterior, positions: Position, key: Array) -> dict[str, Any]:
    """Arrays and functions that identify a chain."""
    typed, parts = jnp.issubdtype(key.dtype, jax.dtypes.prng_key), parts_of(posterior.model, posterior.weight)
    parts |= {"data": posterior.data, "preconditioner": posterior.preconditioner}
    return parts | {"start": positions, "key": jax.random.key_data(key) if typed else key}


@dataclass(frozen=True)
class _Chains:
    """Tuned chains of a posterior, and their folder."""

    key: Array
    posterior: Posterior
    method: Method
    thin: int
    chunk: int
    axis: str | None
    folder: ChainFolder
    energy_variance: float
    most_failures: float
    keep_noise: bool
    listener: Callable[[Progress], None]

    def restored(self, stored: Arrays, like: Run) -> tuple[Run, Restarts]:
        """The chains on disk."""
        with self.folder.reading_state():
            fields = restored(stored, like._asdict() | {"restarts": Restarts()})
        restarts = fields.pop("restarts")
        return Run(**fields), restarts

    def tuned(self, stored: Arrays, tuning: ChainTuning) -> tuple[Run, Restarts]:
        """The chains after their tuning, or its rest, on disk."""
        how = self.key, tuning.run, self.posterior, self.method, self.thin, self.chunk, self.axis
        beside = ThreadPoolExecutor(1)
        if jax.process_count() == 1:  # several processes compile the program of a chunk later, in one order
            beside.submit(cast("Any", _advance).lower(*how).compile)  # JAX's contexts are of a thread
        run, restarts = tuning.tune(stored, self.most_failures), Restarts()
        beside.shutdown()
        self.folder.write_state(_packed(run, 0, restarts))
        self.tell(run, 0, {}, restarts)
        return run, restarts

    def draw(self, run: Run, restarts: Restarts, chunks: list[Arrays], wanted: int) -> None:
        """Write chunks until there are as many as wanted; where chains start over, all of them anew."""
        while (index := len(chunks)) < wanted:
            if restarts.times and not chunks:  # a chunk of burn-in, which a resumed run repeats
                burnt, discarded, restarts = self._advanced(self._key(restarts, 0, 0), run, 0, restarts)
                run, restarts = burnt._replace(moments=run.moments), restarts.discarding([discarded])
            before, (run, arrays, restarts) = run, self._advanced(self._key(restarts, index), run, index, restarts)
            chunks.append(arrays)
            if (remedy := self._remedy(chunks, run, restarts)) is not None:
                restarts = restarts.discarding(chunks)._replace(times=restarts.times + 1)
                run, arrays = _with(before, *remedy), Arrays()
                chunks.clear()
                self.folder.begin_again(_packed(run, 0, restarts))
            else:
                restarts = restarts._replace(final=restarts.final or index + 1 == wanted)
                posterior = self.posterior.adapted(run.adaptation)
                noise = {"noise": to_host(_noise(run.states.position, posterior, self.axis))} if self.keep_noise else {}
                self.folder.write(index, arrays | noise, _packed(run, index + 1, restarts))
            self.tell(run, len(chunks), arrays, restarts)

    def tell(self, run: Run, chunks: int, draws: Arrays, restarts: Restarts) -> None:
        """Call the listener."""
        L, step_size = (float(np.asarray(x)) for x in run.tuning[:2])
        self.listener(Progress(chunks, step_size, L, draws, restarts.times))

    def _key(self, restarts: Restarts, index: int, number: int = 1) -> Array:
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(self.key, restarts.times), index))[number]

    def _advanced(self, key: Array, run: Run, index: int, restarts: Restarts) -> tuple[Run, Arrays, Restarts]:
        """The chains after a chunk, its draws on the host, and the record with draws of the chunk that were discarded.

        Chains diverge where the posterior is too narrow for their steps, and do not return. Their chunk is drawn again,
        with half the step. SimulationError if too many steps failed.
        """
        most = UNSTABLE * self.energy_variance * trees.size(run.states.position) / len(run.states.logdensity)
        repeat, now = 0, run
        while True:
            after, draws = _advance(key, now, self.posterior, self.method, self.thin, self.chunk, self.axis)
            arrays = to_host(draws)
            failed = 1 - float(np.mean(arrays["nonans"]))
            diverged = failed > self.most_failures or np.max(np.var(arrays["energy_change"], axis=1)) > most
            if repeat == MOST_REPEATS or self.method != "mclmc" or not from_main(bool(diverged)):
                break
            repeat, key = repeat + 1, jax.random.fold_in(key, repeat)
            now = _with(now, AFTER_UNSTABLE, dict.fromkeys(run.correction, 0.0))._replace(moments=run.moments)
            restarts = restarts.discarding([arrays])
        check_share(failed, self.most_failures, f"chunk {index}")
        of_bands = {name: arrays.pop(name) for name in KINDS}
        arrays |= by_wavenumber(of_bands, arrays.pop("modes"), self.posterior.model.config)
        return after._replace(tuning=run.tuning, correction=run.correction), arrays, restarts

    def _remedy(self, chunks: list[Arrays], run: Run, restarts: Restarts) -> tuple[float, dict[str, float]] | None:
        """Factor of the step size and slopes of a correction that the errors of all draws ask for. Collective.

        Draws that have not mixed show no bias. Then the later half is looked at, as the earlier one may be burn-in.
        None without errors, and between checks.
        """
        over = self.method != "mclmc" or restarts.times == MOST_RESTARTS or restarts.final
        if over or len(chunks) & (len(chunks) - 1):
            return None
        moments = to_host(run.moments)._asdict()
        corrected = any(np.any(x) for x in to_host(run.correction).values())
        most = LARGEST_REMAINDER if corrected else LARGEST_BIAS
        for first in (0, len(chunks) // 2):
            chain = chain_of(chunks[first:], moments)
            errors, slopes = step_errors(chain, self.energy_variance, most), dict.fromkeys(chain.parameters, 0.0)
            if errors.unstable or not errors.unmixed:
                break
        biased = bool(errors.biased) and not errors.unstable and not errors.unmixed
        if biased:
            slopes = bias_slopes(chain, self.posterior.model.priors)
        needed, factor, slopes = from_main((biased or bool(errors.unstable), errors.corrected_factor, slopes))
        return (factor, slopes) if needed else None


def _ignore(progress: Any) -> None:
    """No listener."""


def _with(run: Run, factor: float, slopes: dict[str, float]) -> Run:
    """The chains without draws, with steps times a factor and a correction with further slopes, which go as h^2."""
    tuning, old = to_host(run.tuning), to_host(run.correction)
    nothing = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), run.moments)
    correction = {name: (x + slopes[name]) * factor**2 for name, x in old.items()}
    new = tuning._replace(step_size=tuning.step_size * factor), nothing, correction
    tuning, moments, correction = placed(new, (run.tuning, run.moments, run.correction))
    return run._replace(tuning=tuning, moments=moments, correction=correction)


def _packed(run: Run, chunks: int, restarts: Restarts) -> Arrays:
    """The state after `chunks` chunks, for a file. Collective."""
    return named(run._asdict() | {"chunks": chunks, "restarts": restarts})


def _warned(chain: Chain, method: Method, energy_variance: float) -> Chain:
    """The chain, with a warning of steps that are too long or failed, and of chains that have not mixed."""
    errors = step_errors(chain, energy_variance)
    if method == "mclmc" and errors.reasons:
        remedy = "tune for longer, or use a smaller energy_variance"
        warnings.warn(f"steps of MCLMC are too long: {'; '.join(errors.reasons)}; {remedy}", stacklevel=4)
    if chain.failures > FEW_FAILURES * chain.energy_change.size:
        where = f"{chain.failures} of {chain.energy_change.size} steps failed, and the draws leave that region out"
        warnings.warn(f"{where}; look at the priors, the halo and the steps of the simulation", stacklevel=4)
    if errors.unmixed:
        remedy = "take more steps, or look at the traces"
        warnings.warn(f"chains have not mixed: {', '.join(errors.unmixed)}; {remedy}", stacklevel=4)
    return chain


def _check_positions(posterior: Any, positions: Any) -> None:
    """Raise ValueError unless these are positions of a batch of chains."""
    if not isinstance(posterior, Posterior):
        remedy = "use model.condition(data)"
        raise ArgumentError("posterior", posterior, "is no posterior", remedy, show_value=False)
    remedy = "use jax.vmap(posterior.initial)(keys)"
    lattice, names = posterior.model.config.particle_shape, list(posterior.model.priors)
    shapes, leaves = jax.tree.map(np.shape, positions), jax.tree.leaves(positions)
    chains = np.shape(leaves[0])[:1] if leaves else ()
    wanted = {"noise": chains + lattice, "parameters": dict.fromkeys(names, chains)}
    if chains in ((), (0,)) or shapes != wanted:
        got, needed = (dict(jax.tree.leaves_with_path(x, lambda x: isinstance(x, tuple))) for x in (shapes, wanted))
        wrong = [jax.tree_util.keystr(path) for path in got | needed if got.get(path) != needed.get(path)]
        constraint = f"must have noise of shape (chains, *{lattice}) and parameters {names} of shape (chains,)"
        constraint += "".join(f", unlike positions{path}" for path in wrong[:1])
        raise ArgumentError("positions", shapes, constraint, remedy)
    if not jnp.issubdtype(kind := jnp.result_type(positions["noise"]), jnp.floating):
        raise ArgumentError("positions['noise'].dtype", kind.name, "must be of floating-point numbers", remedy)


def _check_numbers(key: Any, steps: int, thin: int, chunk: int, most_failures: float) -> None:
    """Raise ValueError unless these are whole chunks, a key, and a share."""
    for name, value in (("thin", thin), ("chunk", chunk), ("steps", steps)):
        whole_number(value, name, least=1)
    if steps % (thin * chunk):
        raise ArgumentError("steps", steps, f"must be a multiple of thin * chunk = {thin * chunk}")
    if not hasattr(key, "dtype"):
        raise ArgumentError("key", key, "must be a key of jax.random", "for example jax.random.key(0)")
    if not most_failures <= 1:
        raise ArgumentError("most_failures", most_failures, "must be a share of the steps, 1 at most")


def _check_begun(run: Run, posterior: Posterior) -> None:
    """Raise SimulationError unless the log density and its gradient are finite where the chains begin."""
    states = run.states
    for what, tree in (("log density", states.logdensity), ("slope of the log density", states.logdensity_grad)):
        fine = to_host(_finite(tree))
        wrong = np.flatnonzero(~np.all(fine, axis=0))
        if wrong.size:
            where = f"{wrong.size} of {len(fine[0])} chains begin, as chain {wrong[0]} does"
            at, remedy = _at(posterior, states.position, int(wrong[0]))
            raise SimulationError(f"the {what} is not finite where {where}{at}; {remedy}")


@jit
def _finite(tree: Any) -> list[Array]:
    """Whether all numbers of each chain are finite, leaf by leaf."""
    return [jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(tree)]


def _at(posterior: Posterior, positions: Position, chain: int) -> tuple[str, str]:
    """Parameters at the first position of a chain, and the cells with a wrong prediction; and the remedy."""
    remedy = "begin elsewhere, as with another seed or narrower priors, or look at the simulation there"
    position = jax.tree.map(lambda x: x[chain], positions)
    numbers = to_host(posterior.parameters(position))
    field, fine = to_host(filter_jit(lambda p, z: p.model.predict(*p.from_latent(z)))(posterior, position))
    where = ", ".join(f"{name} = {float(x):.4g}" for name, x in numbers.items())
    where = f" with {where}" if where else ""
    if not (fine and np.isfinite(field).all()):
        remedy = posterior.model.failure(posterior.from_latent(position)[0], numbers) or remedy
    if not fine:
        return f"{where}, where the simulation fails", remedy
    counts = {"negative": int(np.sum(field < 0)), "not finite": int(np.sum(~np.isfinite(field)))}
    wrong = " and ".join(f"{what} in {count} of {field.size} cells" for what, count in counts.items() if count)
    return f"{where}, where the prediction is {wrong}" if wrong else where, remedy


@filter_jit
def _advance(
    key: Array, run: Run, posterior: Posterior, method: Method, thin: int, chunk: int, axis: str | None
) -> tuple[Run, dict[str, Array]]:
    """A chunk of all chains, with arrays of shape (chains, draws), (bands, chains, draws) or (chains, steps)."""
    posterior = posterior.adapted(run.adaptation)
    chains, config = run.states.logdensity.shape[0], posterior.model.config
    added = partial(_correction, run.correction, posterior)
    options: dict[str, Any] = {"logdensity": lambda z: posterior.logdensity(z) + added(z), "method": method}
    options |= {"tuning": run.tuning, "agree": config.decomposition.equal_copies}
    statistics, modes = statistics_of_bands(config)

    def shift(state: IntegratorState) -> Array:
        if method != "mclmc":
            return jnp.zeros_like(state.logdensity)
        shift = density_shift(state, jnp.asarray(run.tuning.step_size), run.tuning.inverse_mass_matrix)
        return shift + added(state.position)

    def once(states: IntegratorState, key: Array) -> Any:
        one = partial(transition, fraction=jax.random.uniform(jax.random.fold_in(key, chains)), **options)
        states, info = jax.vmap(one, spmd_axis_name=axis)(jax.random.split(key, chains), states)
        return states, info._asdict()

    def draw(carry: tuple[IntegratorState, Moments], key: Array) -> Any:
        states, moments = carry
        states, each = jax.lax.scan(once, states, jax.random.split(key, thin))
        noise = _noise(states.position, posterior, axis)
        for i in range(chains):
            moments = moments.add(noise[i])
        kept = {f"parameter/{name}": x for name, x in jax.vmap(posterior.parameters)(states.position).items()}
        kept |= {"logdensity": states.logdensity - jax.vmap(added)(states.position)}
        kept |= {"density_shift": jax.vmap(shift)(states)}
        kept |= jax.vmap(statistics, spmd_axis_name=axis)(noise)
        return (states, moments), (kept, each)

    (states, moments), (kept, each) = jax.lax.scan(draw, (run.states, run.moments), jax.random.split(key, chunk))
    arrays = {name: x.T for name, x in kept.items()}
    arrays |= {name: x.reshape(-1, chains).T for name, x in each.items()} | {"modes": modes}
    return run._replace(states=states, moments=moments), arrays


def _correction(slopes: dict[str, Array], posterior: Posterior, position: Position) -> Array:
    """The correction of the log density, linear in the whitened parameters of a position."""
    return jnp.asarray(sum(slopes[name] * u for name, u in posterior.whitened(position).items()))


@filter_jit
def _noise(positions: Position, posterior: Posterior, axis: str | None) -> Array:
    """White noise of all chains."""
    return jax.vmap(lambda z: posterior.from_latent(z)[0], spmd_axis_name=axis)(positions)
