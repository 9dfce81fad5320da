"""An inference as a resumable job: from a plan to a folder with chains, pictures and a verdict."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pmwd_dist import infer
from pmwd_dist._errors import ArgumentError
from pmwd_dist.infer.chains import chain_files, load_chain
from pmwd_dist.infer.storage import Arrays, ChainFileError, Shapes, read_arrays, reading, write_arrays
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.run import events, manifest
from pmwd_dist.run.clock import Clock
from pmwd_dist.run.events import Listener, Status
from pmwd_dist.run.folder import Log
from pmwd_dist.run.inference import InferencePlan, truth_of
from pmwd_dist.run.judging import judge
from pmwd_dist.run.resources import peak_memory
from pmwd_dist.run.settings.duration import duration_text
from pmwd_dist.run.signals import Interrupted, StopRequest, stop_requests
from pmwd_dist.run.starting import StartError, hold_folder

DATA, START = "data.h5", "start.h5"
_REMAKE = "remove it, and the same is made again"


def execute_inference(
    plan: InferencePlan,
    listener: Listener,
    *,
    resume: bool = False,
    began: float | None = None,
    time_limit: float | None = None,
) -> None:
    """Sample the posterior of a plan, from the beginning or from the last chunk on disk.

    Data and starts are written before the chains, and each chunk with the state after it: a run that is stopped at any
    time goes on to the same bits. What it loses is a chunk, or of the tuning ten seconds and a block.

    Args:
      plan: with a prepared folder.
      listener: called with every event.
      resume: go on.
      began: time.perf_counter() at the start of the program, from which its time counts; default: now.
      time_limit: seconds after which the run is over; it stops after the chunk after which another one may end later.

    Raises:
      StartError: the folder is in use or of another run, or a file of it is damaged.
      SimulationError: the start, or too many steps, failed.
      Interrupted: a signal asked the run to stop, or its time is over.
      OSError: a file can't be written.
    """
    began = time.perf_counter() if began is None else began
    clock = Clock(0, began, time_limit)
    with stop_requests() as stop, hold_folder(plan):  # of a finished one, more steps may be asked
        log = Log(plan.folder, listener)
        log(events.Started(plan, resume))
        status: Status = "failed"
        try:
            data = _data(plan, log)
            posterior = condition_on(plan, data, log)
            _sample(plan, posterior, _starts(plan, posterior, log), _Watch(plan, log, stop, clock))
            log(judge(plan, posterior, load_chain(plan.folder), data))
            status = "finished"
        except ChainFileError as error:
            raise StartError(str(error)) from error
        except (Interrupted, KeyboardInterrupt, SystemExit):
            status = "interrupted"
            raise
        finally:
            log(events.Ended(status, time.perf_counter() - began, peak_memory()))


def _data(plan: InferencePlan, log: Log) -> Arrays:
    """Data of the file that is named, or of the mock, with its truth."""
    if plan.settings.data.file != "mock":
        return {"data": plan.data["data.file"]}
    truth = {f"parameters/{name}": () for name in plan.model.priors}
    shapes = truth | {"noise": plan.simulation.config.particle_shape}
    data = _kept(plan, DATA, lambda: _mock(plan), shapes, "mock drawn", log)
    with reading(plan.folder / DATA, _REMAKE):
        plan.model.likelihood.check(data["data"], plan.simulation.config)
    return data


def condition_on(plan: InferencePlan, data: Arrays, log: Log) -> infer.Posterior:
    """The posterior, with a warning of a mock that shows nothing; data of a file were looked at before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = plan.model.condition(data["data"], precondition=plan.precondition)
    for warning in caught:
        if plan.settings.data.file == "mock":
            log(events.Warned(str(warning.message)))
    return posterior


def _starts(plan: InferencePlan, posterior: infer.Posterior, log: Log) -> Any:
    """Positions where the chains begin."""
    chains = plan.settings.sampler.chains
    shapes: Shapes = {f"parameters/{name}": (chains,) for name in plan.model.priors}
    shapes = {**shapes, "noise": (chains, *plan.simulation.config.particle_shape)}
    what = f"starts: {plan.settings.start.begin}"
    return _position(plan, _kept(plan, START, lambda: _start(plan, posterior), shapes, what, log))


def _kept(plan: InferencePlan, name: str, make: Callable[[], Arrays], shapes: Shapes, what: str, log: Log) -> Arrays:
    """Arrays of a file of the run, which is made if it is not there: those that go on are the same to the bit."""
    path = plan.folder / name
    if not path.exists():
        began = time.perf_counter()
        arrays = make()
        manifest.claim(plan.folder, [name])
        write_arrays(path, arrays)
        log(events.StageDone(what, time.perf_counter() - began))
    return read_arrays(path, shapes, remedy=_REMAKE)


def _key(plan: InferencePlan, purpose: int) -> Array:
    return jax.random.fold_in(jax.random.key(plan.settings.noise.seed), purpose)


def _mock(plan: InferencePlan) -> Arrays:
    """Data drawn from the model, and the truth."""
    truth = plan.model.draw(_key(plan, 0), **truth_of(plan))
    data = np.asarray(plan.model.mock(_key(plan, 1), truth))
    if not np.isfinite(data).all():
        raise SimulationError("the simulation of the mock failed; use a wider devices.halo, or more time.steps")
    numbers = {f"parameters/{name}": np.asarray(x) for name, x in plan.model.parameters(truth).items()}
    return {"data": data, "noise": np.asarray(truth["noise"])} | numbers


def _start(plan: InferencePlan, posterior: infer.Posterior) -> Arrays:
    """Where the chains begin."""
    start, keys = plan.settings.start, jax.random.split(_key(plan, 2), plan.settings.sampler.chains)

    def prior(key: Array) -> Any:
        drawn = plan.model.draw_around(key, {})
        return posterior.whiten(drawn["noise"], drawn["parameters"])

    positions = jax.vmap(prior if start.begin == "prior" else posterior.initial)(keys)
    if start.begin == "map":
        each = [jax.tree.map(lambda x, i=i: x[i], positions) for i in range(len(keys))]
        options: dict[str, Any] = {"steps": start.map_steps, "free": start.map_free, "anneal": start.map_anneal}
        best = [infer.maximise(posterior, z, **options).position for z in each]
        positions = jax.tree.map(lambda *x: jnp.stack(x), *best)
    numbers = {f"parameters/{name}": np.asarray(x) for name, x in positions["parameters"].items()}
    return {"noise": np.asarray(positions["noise"])} | numbers


def _position(plan: InferencePlan, arrays: Arrays) -> Any:
    """Positions, placed as steps return them."""
    decomposition = plan.simulation.config.decomposition
    spread = NamedSharding(decomposition.mesh, P(None, *decomposition.spec)) if decomposition.size > 1 else None

    def number(x: np.ndarray) -> Array:
        return jax.device_put(jnp.asarray(x), None if spread is None else decomposition.replicated)

    names = [name for name in arrays if name.startswith("parameters/")]
    numbers = {name.removeprefix("parameters/"): number(arrays[name]) for name in names}
    return {"noise": jax.device_put(jnp.asarray(arrays["noise"]), spread), "parameters": numbers}


class _Watch:
    """Logs each chunk, and ends the run after one where it is asked to."""

    def __init__(self, plan: InferencePlan, log: Log, stop: StopRequest, clock: Clock):
        self._plan, self._log, self._stop, self._clock = plan, log, stop, clock
        self._before = time.perf_counter()
        self._draws: list[Arrays] = _earlier(plan.folder)

    def __call__(self, progress: infer.Progress) -> None:
        now, sampler = time.perf_counter(), self._plan.settings.sampler
        seconds, self._before = now - self._before, now
        if progress.draws:
            self._log(self._event(progress, seconds))
        else:
            numbers = f"step size {progress.step_size:.3g}, L {progress.L:.3g}"
            self._log(events.StageDone(f"tuned in {sampler.tune} steps: {numbers}", seconds))
        if progress.chunks < self._plan.chunks:
            self._raise_if_stopped(progress.chunks)

    def _event(self, progress: infer.Progress, seconds: float) -> events.ChunkSampled:
        sampler, draws = self._plan.settings.sampler, progress.draws
        steps = sampler.thin * sampler.chunk
        self._draws.append({name: x for name, x in draws.items() if name.startswith("parameter/")})
        sizes = {
            name.removeprefix("parameter/"): infer.ess_bulk(np.concatenate([d[name] for d in self._draws], axis=1))
            for name in self._draws[-1]
        }
        slowest = min(sizes, key=lambda name: sizes[name], default="")
        return events.ChunkSampled(
            step=progress.chunks * steps,
            steps=sampler.steps,
            seconds=seconds,
            gradients_per_second=int(np.sum(draws["gradients"])) / seconds,
            energy_variance=infer.energy_errors(draws["energy_change"], self._plan.dimensions)["variance"],
            failures=int(np.sum(~draws["nonans"].astype(bool))),
            slowest=slowest,
            ess=sizes.get(slowest, 0.0),
            seconds_left=seconds * (self._plan.chunks - progress.chunks),
        )

    def _raise_if_stopped(self, chunks: int) -> None:
        done, again = f"after chunk {chunks} of {self._plan.chunks}", f"pmwd-dist resume {self._plan.folder}"
        if number := self._stop.received():
            raise Interrupted(f"interrupted {done}; go on with `{again}`", number)
        if self._clock.time_is_over():
            limit = duration_text(self._clock.limit or 0)
            raise Interrupted(f"stopped {done}, by the time limit; go on with `{again} --time-limit {limit}`", 0)


def _earlier(folder: Path) -> list[Arrays]:
    """Parameters of the draws that are on disk."""
    try:
        return [{f"parameter/{name}": x for name, x in load_chain(folder).parameters.items()}]
    except ArgumentError:  # there are none
        return []


def _sample(plan: InferencePlan, posterior: infer.Posterior, positions: Any, watch: _Watch) -> None:
    manifest.claim(plan.folder, chain_files(plan.chunks))
    try:
        _run_chains(plan, posterior, positions, watch)
    except ArgumentError as error:
        if error.argument != "output":
            raise
        # Settings are the same, or the run would not have started: another version of this program computes other bits.
        raise StartError(f"{error}; or go on with the version that began") from error


def _run_chains(plan: InferencePlan, posterior: infer.Posterior, positions: Any, watch: _Watch) -> None:
    sampler = plan.settings.sampler
    infer.sample(
        posterior,
        positions,
        key=_key(plan, 3),
        steps=sampler.steps,
        output=plan.folder,
        method=sampler.method,
        energy_variance=sampler.energy_variance,
        tuning_steps=sampler.tune,
        thin=sampler.thin,
        chunk=sampler.chunk,
        keep_noise=True,
        most_failures=plan.settings.checks.failed_simulations,
        listener=watch,
    )
