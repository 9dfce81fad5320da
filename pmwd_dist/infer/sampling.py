"""Sample a posterior in chunks on disk: an interrupted run goes on from the last chunk, to the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer import preconditioner_adaptation as adaptation
from pmwd_dist.infer.chain import scales
from pmwd_dist.infer.chain.chain import Chain, Moments, Progress, Run, on_devices, pack, unpack
from pmwd_dist.infer.chain.diagnostics import MOST_OUTLIERS, energy_errors
from pmwd_dist.infer.chain.folder import ChainFolder, identity_of
from pmwd_dist.infer.chain.progress import is_shown, with_bar
from pmwd_dist.infer.lensing import Convergence
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, check_method, correction, remaining_shift, transition
from pmwd_dist.infer.tuning.discretisation_bias import BiasCorrection, bias_samples
from pmwd_dist.infer.tuning.loop import ChainTuning, TuningProgress, begin, check_share
from pmwd_dist.infer.tuning.schedule import ENERGY_VARIANCE, SHORTEST, STEP_BIAS, Schedule
from pmwd_dist.io.arrays import Arrays
from pmwd_dist.parallel.distributed import raise_on_all_processes, to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.status import SimulationError

_ELSEWHERE = "begin elsewhere, as with another seed or narrower priors, or look at the simulation there"


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
    most_bias: float = STEP_BIAS,
    tuning_steps: int = 1000,
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
      method: "mclmc", which accepts all steps; "adjusted-mclmc" or "hmc", which accept or reject trajectories; or
        "nuts", whose trajectories end where they turn. It is tuned as "hmc" and needs blackjax.
      energy_variance: target variance of the energy error of a step of MCLMC, per dimension.
      most_bias: largest tolerated discretisation bias of a parameter with MCLMC, in posterior standard deviations. A
        correction is estimated in the tuning with up to twice this error, and again from all draws after 1, 2, 4, 8
        chunks and so on (`infer.tuning.discretisation_bias`).
      output: folder of the chain. A chain of another model there is an error; functions are compared by their names.
      tuning_steps: number of tuning steps before sampling.
      thin: number of steps per draw.
      chunk: number of draws between writes to disk.
      keep_noise: whether to keep the white noise of the last draw of each chunk.
      most_failures: largest share of failed simulations in the steps of a chunk or of the last stage of the tuning.
      spmd_axis_name: axis of the device mesh over which chains are divided, if any.
      listener: function called after tuning and after each chunk is on disk; an exception ends the run. Of several
        processes, each calls it, and all of them have to raise it.
      tuning_listener: function called after each block of the tuning; an exception ends the run, with the state on
        disk. Of several processes, all have to raise it, as a `pmwd_dist.distributed.SharedError`.
      progress: whether to show the progress on standard error, as a bar if tqdm is installed; default: in a terminal
        and in a notebook.

    Raises:
      ValueError: an argument out of its range, or a folder with a chain of another model.
      ArrayFileError: a file of the chain in the folder is missing or damaged.
      SharedError: one of these about the folder, where there are several processes.
      SimulationError: the first positions, or too many steps, failed.

    Warns:
      UserWarning: steps of MCLMC that are too long for the tails of the posterior; R-hat does not show them.

    Examples:
      >>> starts = jax.vmap(posterior.initial)(jax.random.split(jax.random.key(0), 4))
      >>> chain = infer.sample(posterior, starts, key=jax.random.key(1), steps=4000, output="runs/chain")
    """
    check_method(method)
    _check_positions(posterior, positions)
    _check_numbers(key, steps, thin, chunk, tuning_steps, most_failures)
    aims: dict[str, Any] = {"method": method, "energy_variance": energy_variance, "most_bias": most_bias}
    adapts = adaptation.start(posterior) is not None
    schedule = Schedule(positions, steps=tuning_steps, adapts=adapts, approaches=True, reestimates=True, **aims)
    how = aims | {"tuning_steps": tuning_steps, "thin": thin, "chunk": chunk, "keep_noise": keep_noise}
    identity = _identity(posterior, positions, key) | identity_of(how)
    with raise_on_all_processes():
        folder = ChainFolder(output, identity)
        folder.check()
    if is_shown(progress):
        listener, tuning_listener = with_bar(steps // (thin * chunk), listener, tuning_listener)
    begin_key, tune_key, run_key = jax.random.split(key, 3)
    positions = on_devices(positions, posterior.model.config, spmd_axis_name)
    run = begin(begin_key, positions, posterior, spmd_axis_name)
    _check_begun(run, posterior, positions)
    if not (resumed := _resumed(run, folder, most_bias)):
        ahead = _compile_ahead(run_key, run, posterior, method, thin, chunk, spmd_axis_name)
        chains = ChainTuning(tune_key, run, posterior, schedule, folder, tuning_steps, spmd_axis_name, tuning_listener)
        resumed = chains.tune(), 0, BiasCorrection(schedule.correction_error, most_bias)
        chains.failures.check(most_failures)
        folder.write_state(pack(resumed[0], 0) | resumed[2].pack())
        _tell(listener, resumed[0], 0, {})
        wait([ahead])
    run, done, bias = resumed
    for index in range(done, steps // (thin * chunk)):
        run, draws = _advance(jax.random.fold_in(run_key, index), run, posterior, method, thin, chunk, spmd_axis_name)
        arrays = _checked(draws, index, most_failures, posterior)
        if keep_noise:
            adapted = posterior.adapted(run.adaptation)
            arrays |= {"noise": to_host(_unwhitened(run.states.position, adapted, spmd_axis_name))}
        run, arrays = bias.update(run, arrays)
        folder.write(index, arrays, pack(run, index + 1) | bias.pack())
        _tell(listener, run, index + 1, arrays)
    with raise_on_all_processes():
        chain = folder.load()
    return _warned(chain, method)


def _warned(chain: Chain, method: Method) -> Chain:
    """The chain, with a warning if the steps of MCLMC are too long for the tails of the posterior."""
    dimensions = chain.noise_mean.size + len(chain.parameters)
    outliers = energy_errors(chain.energy_change, dimensions)["outliers"]
    if method == "mclmc" and outliers > MOST_OUTLIERS:
        share = f"{outliers:.2%} of the steps of MCLMC have far too large an energy error, and the draws may be biased"
        warnings.warn(f"{share}; use more tuning_steps or a smaller energy_variance", stacklevel=4)
    return chain


def _compile_ahead(*args: Any) -> Future[Any]:
    """Compile `_advance` in a thread while the chains are tuned; several processes compile it later, in one order."""
    compiled = Future[Any]()
    if jax.process_count() == 1:
        pool = ThreadPoolExecutor(1)
        program: Any = _advance
        compiled = pool.submit(lambda: program.lower(*args).compile())
        pool.shutdown(wait=False)
    else:
        compiled.set_result(None)
    return compiled


def _check_positions(posterior: Posterior, positions: Any) -> None:
    """Raise ValueError unless these are positions of a batch of chains, which a divided light cone can't have."""
    count = posterior.model.config.decomposition.size
    if isinstance(posterior.model.forward, Convergence) and count > 1:
        constraint = f"has a light cone that is divided over {count} devices, and chains are a batch of them"
        remedy = "use a config with decomposition=(1, 1)"
        raise ArgumentError("posterior", "", constraint, remedy, show_value=False)
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


def _check_numbers(key: Any, steps: int, thin: int, chunk: int, tuning_steps: int, most_failures: float) -> None:
    """Raise ValueError unless these are whole chunks, a key, enough steps to tune, and a share."""
    for name, value in (("thin", thin), ("chunk", chunk), ("steps", steps)):
        whole_number(value, name, least=1)
    if steps % (thin * chunk):
        raise ArgumentError("steps", steps, f"must be a multiple of thin * chunk = {thin * chunk}")
    if not hasattr(key, "dtype"):
        raise ArgumentError("key", key, "must be a key of jax.random", "for example jax.random.key(0)")
    whole_number(tuning_steps, "tuning_steps", least=SHORTEST)
    if not most_failures <= 1:
        raise ArgumentError("most_failures", most_failures, "must be a share of the steps, 1 at most")


def _check_begun(run: Run, posterior: Posterior, positions: Position) -> None:
    """Raise SimulationError unless the log density and its gradient are finite where the chains begin."""
    states = run.states
    for what, tree in (("log density", states.logdensity), ("slope of the log density", states.logdensity_grad)):
        fine = to_host([jnp.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(tree)])
        wrong = np.flatnonzero(~np.all(fine, axis=0))
        if wrong.size:
            where = f"{wrong.size} of {len(fine[0])} chains begin, as chain {wrong[0]} does"
            raise SimulationError(
                f"the {what} is not finite where {where}{_at(posterior, positions, int(wrong[0]))}; {_ELSEWHERE}"
            )


def _at(posterior: Posterior, positions: Position, chain: int) -> str:
    """Parameters at the first position of a chain, and the cells with a wrong prediction."""
    position = jax.tree.map(lambda x: x[chain], positions)
    numbers = to_host(posterior.parameters(position))
    field, fine = to_host(eqx.filter_jit(lambda p, z: p.model.predict(*p.unwhiten(z)))(posterior, position))
    there = ", ".join(f"{name} = {float(x):.4g}" for name, x in numbers.items())
    there = f" with {there}" if there else ""
    if not fine:
        return f"{there}, where the simulation fails"
    counts = {"negative": int(np.sum(field < 0)), "not finite": int(np.sum(~np.isfinite(field)))}
    odd = " and ".join(f"{what} in {count} of {field.size} cells" for what, count in counts.items() if count)
    return f"{there}, where the prediction is {odd}" if odd else there


def _resumed(run: Run, folder: ChainFolder, most_bias: float) -> tuple[Run, int, BiasCorrection] | None:
    """The chains after the chunks in the folder, and their number; None while they are tuned."""
    stored = folder.state()
    if stored is None or "schedule/count" in stored:
        return None
    with folder.reading_state():
        run, bias = unpack(stored, run), BiasCorrection.unpack(stored, most_bias)
        for samples in folder.bias_samples:
            bias.add(samples)
        return run, int(stored["chunks"]), bias


def _checked(draws: dict[str, Array], chunk: int, most: float, posterior: Posterior) -> Arrays:
    """The draws of a chunk on the host; SimulationError if too many of its steps failed."""
    arrays = to_host(draws)
    of_bands = {name: arrays.pop(name) for name in scales.KINDS}
    arrays |= scales.by_wavenumber(of_bands, arrays.pop("modes"), posterior.model.config)
    check_share(1 - float(np.mean(arrays["nonans"])), most, f"chunk {chunk}")
    return arrays


def _tell(listener: Callable[[Progress], None] | None, run: Run, chunks: int, draws: Arrays) -> None:
    if listener is not None:
        L, step_size = (float(np.asarray(x)) for x in run.tuning[:2])
        listener(Progress(chunks, step_size, L, draws))


def _identity(posterior: Posterior, positions: Position, key: Array) -> dict[str, str]:
    """Description of the posterior, the first positions and the key."""
    model = posterior.model
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    parts = {"config": model.config, "model": model.forward, "priors": model.items, "likelihood": model.likelihood}
    of_posterior = {"data": posterior.data, "preconditioner": posterior.preconditioner, "weight": posterior.weight}
    return identity_of(parts | of_posterior | {"start": positions, "key": jax.random.key_data(key) if typed else key})


@eqx.filter_jit
def _advance(
    key: Array, run: Run, posterior: Posterior, method: Method, thin: int, chunk: int, axis: str | None
) -> tuple[Run, dict[str, Array]]:
    """A chunk of all chains, with arrays of shape (chains, draws), (bands, chains, draws) or (chains, steps)."""
    posterior = posterior.adapted(run.adaptation)
    chains, config = run.states.logdensity.shape[0], posterior.model.config
    options: dict[str, Any] = {"logdensity": posterior.logdensity, "method": method, "tuning": run.tuning}
    options |= {"agree": config.decomposition.equal_copies}
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
            moments = moments.add(noise[i])
        kept = {f"parameter/{name}": x for name, x in jax.vmap(posterior.parameters)(states.position).items()}
        shift = jax.vmap(partial(remaining_shift, method=method, tuning=run.tuning))(states)
        logdensity = states.logdensity + jax.vmap(partial(correction, tuning=run.tuning))(states.position)
        kept |= {"logdensity": logdensity, "density_shift": shift} | bias_samples(states, method, run.tuning)
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
