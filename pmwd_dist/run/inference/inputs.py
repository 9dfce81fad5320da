"""Inputs of the chains: data, or a mock, and starting positions, each saved in a file of the run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from pmwd_dist import infer
from pmwd_dist._jax.profile import part
from pmwd_dist._jax.program import jit
from pmwd_dist.infer.chain.chain import on_devices
from pmwd_dist.infer.likelihoods import shown
from pmwd_dist.io.arrays import Arrays, Shapes, fingerprint, read_arrays, reading, write_arrays
from pmwd_dist.observe.counts import MAX_CUT, lost_power
from pmwd_dist.parallel.distributed import from_main, is_main, on_main, to_devices, to_host
from pmwd_dist.pm.noise import GAUSSIAN, noise_of
from pmwd_dist.pm.status import SimulationError
from pmwd_dist.run.common import manifest
from pmwd_dist.run.common.fingerprint import identity
from pmwd_dist.run.common.folder import MINUTE, Log, start_errors
from pmwd_dist.run.inference.plan import DATA, START, TUNING, InferencePlan, truth_of

_REMAKE = "remove it, and the same is made again"


@part("data")
def data_of(plan: InferencePlan, log: Log) -> Arrays:
    """Data of a file, or of the mock with its truth."""
    if plan.settings.data.file != "mock":
        return {"data": plan.data["data.file"]}
    truth = {f"parameters/{name}": () for name in plan.model.priors}
    shapes = truth | {"noise": plan.simulation.config.particle_shape}
    data = _kept(plan, DATA, lambda: draw_mock(plan, log.warn), shapes, "mock", log)
    likelihood = to_host(plan.model.likelihood)
    with start_errors(), reading(plan.folder / DATA, _REMAKE):
        likelihood.check(data["data"], plan.simulation.config)
    return data


@part("starts")
def starts_of(plan: InferencePlan, posterior: infer.Posterior, log: Log) -> Any:
    """Starting positions of the chains."""
    chains, start = plan.settings.sampler.chains, plan.settings.start
    shapes: Shapes = {f"parameters/{name}": (chains,) for name in plan.model.priors}
    shapes = {**shapes, "noise": (chains, *plan.simulation.config.particle_shape)}
    what = f"starts: {start.begin}" + (" over the noise" if start.begin == "map" else "")
    arrays = _kept(plan, START, lambda: _start(plan, posterior), shapes, what, log)
    numbers = {name: arrays[f"parameters/{name}"] for name in plan.model.priors}
    positions = {"noise": arrays["noise"], "parameters": numbers}
    return on_devices(positions, plan.simulation.config, plan.chain_axis)


def tuning_of(plan: InferencePlan) -> infer.SavedTuning | None:
    """The tuning of other chains, which becomes a file of the run, since those may go on. Collective."""
    source, path = plan.settings.sampler.tuning_from, plan.folder / TUNING
    if source is None:
        return None
    if not from_main(is_main() and path.exists()):  # NFS keeps names that others found absent
        with start_errors():
            on_main(manifest.claim, plan.folder, [TUNING])
            infer.load_tuning(source).save(path)
    with start_errors():
        return infer.load_tuning(path)


def _kept(plan: InferencePlan, name: str, make: Callable[[], Arrays], shapes: Shapes, what: str, log: Log) -> Arrays:
    """Arrays of a file of the run, which is made if it does not exist: a resumed run has the same bits. Collective."""
    path, about = plan.folder / name, {"run": fingerprint(identity(plan)), "file": name}
    if not from_main(is_main() and path.exists()):  # NFS keeps names that others found absent
        log.begin(what)
        began = time.perf_counter()
        with log.naming(what, MINUTE):
            arrays = make()
        on_main(manifest.claim, plan.folder, [name])
        on_main(write_arrays, path, arrays, about)
        log.stage(what, time.perf_counter() - began)
    with start_errors():
        return read_arrays(path, about, shapes, remedy=_REMAKE)


def draw_mock(plan: InferencePlan, warn: Callable[[str], None] = warnings.warn) -> Arrays:
    """Data drawn from the model, and the truth; a warning where the cut of negative densities changes counts."""
    truth, simulation = plan.model.draw(plan.simulation.key(0), **truth_of(plan)), plan.simulation
    if simulation.field is not None or simulation.kind != GAUSSIAN:  # the universe of a simulation with this [noise]
        truth |= {"noise": noise_of(simulation.noise, simulation.config, simulation.kind)}
    data, field = to_host(plan.model.mock_and_field(plan.simulation.key(1), truth))
    if not np.isfinite(data).all():
        problem = plan.model.failure(truth["noise"], plan.model.parameters(truth))
        remedy = problem or "use a wider devices.halo, or more time.steps"
        raise SimulationError(f"the simulation of the mock failed; {remedy}")
    if isinstance(likelihood := plan.model.likelihood, infer.Poisson):
        cells, lost, _ = map(float, lost_power(field[shown(to_host(likelihood.mask), field.shape)], np.ones(())))
        if lost > MAX_CUT:
            share = f"in {100 * cells:.2g} % of the cells, where at most 2 % of nbar is expected"
            share += f": P(k) of the counts is about {100 * lost:.2g} % too low"
            warn(f"mock: 1 + delta_g is negative {share}; use a larger model.smoothing, or a b1 nearer to 0")
    numbers = {f"parameters/{name}": x for name, x in plan.model.parameters(truth).items()}
    return {"data": data, **to_host({"noise": truth["noise"]} | numbers)}


def _start(plan: InferencePlan, posterior: infer.Posterior) -> Arrays:
    """Arrays of the starting positions."""
    start, keys = plan.settings.start, jax.random.split(plan.simulation.key(2), plan.settings.sampler.chains)

    def prior(key: Array) -> Any:
        drawn = plan.model.draw_around(key, {})
        return posterior.to_latent(drawn["noise"], drawn["parameters"])

    def one(data: Array) -> Any:
        return (prior if start.begin == "prior" else posterior.initial)(jax.random.wrap_key_data(data))

    sharding = NamedSharding(plan.simulation.config.decomposition.mesh, PartitionSpec(plan.chain_axis))
    placed = to_devices(jax.random.key_data(keys), sharding)
    positions = jax.vmap(one, spmd_axis_name=plan.chain_axis)(placed)
    if start.begin == "map":
        row, stack = jit(lambda tree, i: jax.tree.map(lambda x: x[i], tree)), jit(jnp.stack)
        each = [row(positions, i) for i in range(len(keys))]
        best = [infer.maximise(posterior, z, steps=start.map_steps).position for z in each]
        positions = jax.tree.map(lambda *x: stack(x), *best)
    return to_host({"noise": positions["noise"]} | {f"parameters/{n}": x for n, x in positions["parameters"].items()})
