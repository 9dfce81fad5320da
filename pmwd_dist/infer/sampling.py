"""Sample a posterior in chunks that go to disk: a run that is stopped goes on where it was, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer import adaptation, scales
from pmwd_dist.infer.arguments import check_lengths, check_options, check_start
from pmwd_dist.infer.chain_tuning import ChainTuning
from pmwd_dist.infer.chains import Chain, ChainFolder, identity_of, open_folder
from pmwd_dist.infer.failures import check_share
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, check_method, density_shift, tilt, transition
from pmwd_dist.infer.samplers.search import ENERGY_VARIANCE, STEP_BIAS, Search
from pmwd_dist.infer.starting import begun
from pmwd_dist.infer.state import (
    Moments,
    Progress,
    Run,
    TuningProgress,
    add,
    pack,
    unpack,
)
from pmwd_dist.infer.tilt_estimate import TiltEstimate, tilt_samples
from pmwd_dist.io.arrays import Arrays


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
      method: "mclmc", which accepts all steps; "adjusted-mclmc" or "hmc", whose trajectories are accepted or not; or
        "nuts", whose trajectories end where they turn, and which is tuned as "hmc" and needs blackjax.
      energy_variance: of a step of MCLMC per dimension, at which its tuning aims.
      most_bias: shift of a parameter by finite steps of MCLMC that a tilt of the log density against it may leave, in
        standard deviations. The standard error of the tilt by the tuning may be twice that; the tilt is estimated anew
        after one, two, four, eight chunks and so on, so that half of it is left in the mean over 16 times as many draws
        as the last 0.28 of the tuning has (`infer.tilt_estimate`).
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
      ArrayFileError: a file of the chain that it would go on with is missing or damaged.
      SimulationError: the start, or too many steps, failed.
    """
    check_method(method)
    check_start(posterior, positions)
    check_lengths(steps, thin, chunk)
    check_options(key, tuning_steps, most_failures)
    search = _search(posterior, positions, tuning_steps, method, energy_variance, most_bias)
    how: dict[str, Any] = {"tuning_steps": tuning_steps, "thin": thin, "chunk": chunk, "keep_noise": keep_noise}
    how |= {"method": method, "energy_variance": energy_variance, "most_bias": most_bias}
    # Not so of earlier versions:
    how |= {"tuned": "with a tilt, after an approach", "step": "velocity Verlet"}
    how |= {"tilt": "estimated anew"} if method == "mclmc" and positions.get("parameters") else {}
    folder = open_folder(output, _identity(posterior, positions, key) | identity_of(how))
    begin_key, tune_key, run_key = jax.random.split(key, 3)
    run = begun(begin_key, positions, posterior, spmd_axis_name)
    if not (resumed := _resumed(run, folder, most_bias)):
        chains = ChainTuning(tune_key, run, posterior, search, folder, tuning_steps, spmd_axis_name, tuning_listener)
        resumed = chains.tune(), 0, TiltEstimate(search.tilt_error, most_bias)
        chains.failures.check(most_failures)
        folder.write_state(pack(resumed[0], 0) | resumed[2].pack())
        _tell(listener, resumed[0], 0, {})
    run, done, estimate = resumed
    for index in range(done, steps // (thin * chunk)):
        run, draws = _advance(jax.random.fold_in(run_key, index), run, posterior, method, thin, chunk, spmd_axis_name)
        arrays = _checked(draws, index, most_failures, posterior)
        arrays |= _white_noise(run, posterior, spmd_axis_name) if keep_noise else {}
        run, arrays = estimate.update(run, arrays)
        folder.write(index, arrays, pack(run, index + 1) | estimate.pack())
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
    how: dict[str, Any] = {"energy_variance": energy_variance, "most_bias": most_bias}
    how |= {"approaches": True, "reestimates": True}
    return Search(positions, steps=steps, method=method, adapts=adaptation.start(posterior) is not None, **how)


def _white_noise(run: Run, posterior: Posterior, axis: str | None) -> Arrays:
    return {"noise": np.asarray(_unwhitened(run.states.position, posterior.adapted(run.adaptation), axis))}


def _resumed(run: Run, folder: ChainFolder, most_bias: float) -> tuple[Run, int, TiltEstimate] | None:
    """The chains after the chunks that the folder has, and the number of these; None while they are to be tuned."""
    stored = folder.state()
    if stored is None or "search/count" in stored:
        return None
    with folder.reading_state():
        run, estimate = unpack(stored, run), TiltEstimate.unpack(stored, most_bias)
        for samples in folder.shifts:
            estimate.add(samples)
        return run, int(stored["chunks"]), estimate


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
        kept |= {"logdensity": logdensity, "density_shift": shift} | tilt_samples(states, method, run.tuning)
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
