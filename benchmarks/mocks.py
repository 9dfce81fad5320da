"""Posteriors of many mocks at once, each with chains and a tuning of its own: what the checks of inference run."""

from __future__ import annotations

import math
import pickle
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.cosmology.distance import scale_factor_at
from pmwd_dist.infer.constants import AFTER_UNSTABLE, ENERGY_VARIANCE
from pmwd_dist.infer.precondition import Adaptation, adapt, changes_of_curvature, mode_numbers
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.tuning.loop import at_extremes, largest_curvatures, longest_step, run_blocks
from pmwd_dist.infer.tuning.saved import kind_of
from pmwd_dist.infer.tuning.schedule import Schedule, block_length, is_stable

TRUTH = {"sigma8": 0.8159, "Omega_m": 0.3075, "b1": 0.8}
PLANCK15 = jax_cosmo.Planck15()


def galaxies(
    mesh: int,
    gravity: str,
    *,
    cell: float = 10.0,
    sigma: float = 0.5,
    steps: int = 3,
    sd: float = 0.1,
    devices: int = 1,
) -> infer.Model:
    """Galaxies in redshift space, with sigma8, Omega_m, b1 and the noise free.

    Args:
      mesh: number of cells and particles in one direction.
      gravity: "linear", "lpt" (of second order) or "nbody", at a = 0.5; or "cone", N-body on the light cone of an
        observer in a corner of the box.
      cell: side of a cell [Mpc/h].
      sigma: standard deviation of the Gaussian noise in a cell.
      steps: of the N-body simulation.
      sd: of the prior of sigma8; those of Omega_m and b1 are half and three times as wide.
      devices: over which fields are divided, in slabs.
    """
    slabs = pmd.Decomposition((devices, 1), jax.devices()[:devices])
    halo = min(8, mesh // (2 * devices)) if devices > 1 else 0  # 8 cells of 5 Mpc/h are ten times the rms displacement
    stop = 1.0 if gravity == "cone" else 0.5
    config = pmd.Config(
        cell * mesh, mesh, a_start=0.1, a_stop=stop, steps=steps, lpt_order=2, decomposition=slabs, halo=halo
    )
    b1 = "b1"
    if gravity == "linear":
        forward: Any = infer.LinearField(config, PLANCK15, bias=b1, line_of_sight="z")
    elif gravity == "cone":
        observable = infer.LagrangianGalaxies(b1=b1)
        forward = infer.Simulation(config, PLANCK15, observable=observable, observer=(0.0, 0.0, 0.0))
    else:
        observable = infer.LagrangianGalaxies(b1=b1, line_of_sight="z")
        kind: Any = gravity
        forward = infer.Simulation(config, PLANCK15, gravity=kind, observable=observable)
    priors = {
        "sigma8": infer.Normal(0.8, sd, low=0.3),
        "Omega_m": infer.Normal(0.3, sd / 2, low=0.1, high=1.0),
        b1: infer.Normal(1.5 if gravity == "linear" else 0.6, 3 * sd, low=-0.5),
    }
    return infer.Model(config, forward, priors, infer.Gaussian(sigma=sigma))


def survey(model: infer.Model, kind: str, *, nbar: float = 4.0) -> infer.Model:
    """The same galaxies in a survey: a quarter of the cells behind a mask, and noise with two free parameters.

    Args:
      model: galaxies.
      kind: "counts", with a selection that falls along the line of sight, and mean and dispersion free; or "density",
        of modes up to 0.2 h/Mpc, with the standard deviation of the noise and its change with the density free. On the
        light cone counts have an n(z), which ends a cell within the box, and a mask on the sky.
      nbar: mean number of galaxies in a cell where the selection is 1.
    """
    n = model.config.mesh_shape[0]
    x, _, z = np.indices(model.config.mesh_shape)
    if kind == "counts":
        options: dict[str, Any] = {"selection": np.exp(-z / n), "mask": x < 3 * n / 4}
        if model.config.a_stop == 1:
            options = {"selection": (selection := _seen(model.config)), "mask": selection > 0}
        likelihood: Any = infer.Poisson("nbar", dispersion="dispersion", **options)
        noise: Any = {"nbar": infer.LogNormal(nbar, 0.3), "dispersion": infer.LogNormal(0.2, 0.5)}
    else:
        likelihood = infer.Gaussian("sigma", slope="slope", mask=x < 3 * n / 4, k_max=0.2)
        noise = {"sigma": infer.LogNormal(0.5, 0.3), "slope": infer.Normal(0.5, 0.2)}
    return infer.Model(model.config, model.forward, model.priors | noise, likelihood)


def _seen(config: pmd.Config) -> np.ndarray:
    """Selection of a survey that an observer in a corner of the box sees, behind a third of the sky hidden."""
    table = pmd.growth_table(PLANCK15)
    far = 1 / float(scale_factor_at(config.box_size[0] - config.cell_size[0], table)) - 1
    mask = (np.arange(12 * 8**2) % 12 < 8) * 1.0  # gaps in right ascension
    seen = pmd.observe.Survey(([0.0, far / 2, far], [1.0, 0.8, 0.3]), mask=mask)
    return np.asarray(pmd.observe.survey_selection(seen, table, config, observer=(0.0, 0.0, 0.0)))


def _flat_sky(config: pmd.Config, a: float) -> tuple[Any, dict[str, Any]]:
    """Light cone out to a scale factor, in shells of half a box, and a field of view as wide as the box there."""
    far, side = float(pmd.comoving_distance(a, pmd.growth_table(PLANCK15))), config.box_size[0]
    shells = math.ceil(far / (side / 2))
    cone = pmd.observe.FlatSkyLightCone(config, np.linspace(0, far, shells + 1).tolist(), shell_assignment="linear")
    offsets = np.random.default_rng(0).uniform(0, side, (shells, 2))[np.arange(shells) // 2]
    return cone, {"field": math.degrees(side / far), "pixels": config.mesh_shape[0], "offsets": offsets}


def lensing(mesh: int, *, cell: float = 4.0, steps: int = 6) -> infer.Model:
    """Convergence maps of sources at z = 0.5 and 1, as wide as the box there, with sigma8, Omega_m and the noise free.

    Ten galaxies of each redshift in a square arcminute; rays and planes have as many pixels as the mesh has cells.

    Args:
      mesh: number of cells and particles in one direction.
      cell: side of a cell [Mpc/h].
      steps: of the simulation, from a = 0.2.
    """
    one = pmd.Decomposition((1, 1), jax.devices()[:1])
    config = pmd.Config(cell * mesh, mesh, a_start=0.2, steps=steps, lpt_order=2, decomposition=one, halo=0)
    cone, view = _flat_sky(config, 0.5)
    maps = infer.Convergence(config, PLANCK15, cone, (0.5, 1.0), **view)
    priors = {"sigma8": infer.Normal(0.8, 0.15, low=0.2), "Omega_m": infer.Normal(0.3, 0.05, low=0.1, high=0.9)}
    return infer.Model(config, maps, priors, infer.ShapeNoise(maps, 10.0))


def tomography(mesh: int, *, cell: float = 10.0, steps: int = 3) -> infer.Model:
    """Shear of sources in two bins up to z = 0.4, with cosmology, systematics and the noise free.

    Thirty galaxies of each bin in a square arcminute, with half as many on one side of the field, and a mask. Shifts of
    the redshifts, multiplicative biases, and amplitude and power of intrinsic alignments are free.

    Args:
      mesh: number of cells and particles in one direction, and of pixels of the maps.
      cell: side of a cell [Mpc/h].
      steps: of the simulation, from a = 0.5.
    """
    one = pmd.Decomposition((1, 1), jax.devices()[:1])
    config = pmd.Config(cell * mesh, mesh, a_start=0.5, steps=steps, lpt_order=2, decomposition=one, halo=0)
    number = np.sin(np.linspace(0, np.pi, 25)) ** 2
    bins = [(np.linspace(low, high, 25), number) for low, high in ((0.05, 0.25), (0.2, 0.4))]
    cone, view = _flat_sky(config, 1 / 1.4)
    maps = infer.Shear(config, PLANCK15, cone, bins, **view)
    priors = {"sigma8": infer.Normal(0.8, 0.15, low=0.2), "Omega_m": infer.Normal(0.3, 0.05, low=0.1, high=0.9)}
    priors |= {f"delta_z_{i}": infer.Normal(0.0, sd) for i, sd in enumerate((0.01, 0.02))}
    priors |= {f"m_{i}": infer.Normal(0.0, 0.03) for i in range(2)}
    priors |= {"A_IA": infer.Normal(0.5, 1.0), "eta_IA": infer.Normal(0.0, 1.0)}
    x, y = np.indices((mesh, mesh)) / mesh
    counts = np.round(30 * (1 - x / 2) * maps.pixel_area)
    return infer.Model(config, maps, priors, infer.ShapeNoise(maps, counts=counts, mask=y < 0.875))


class Mocks:
    """Mocks of a model, chains on each of them, and what the chains have drawn.

    Args:
      model: of the data.
      key: of jax.random.
      count: of the mocks.
      chains: on each.
      truth: parameters of all mocks; those not given are drawn from their priors.
    """

    def __init__(self, model: infer.Model, key: Any, count: int, *, chains: int = 1, truth: Any = None):
        some = np.indices(model.forward.layout[0])[0] % 2  # in whose place come those of the mocks
        self.posterior = model.condition(some)
        self.count, self.keys = count, jax.random.split(key, (2, count))
        self.states, self.truth, self.data, self.true_noise = _begin(
            self.keys[0], self.posterior, chains, dict(truth or {})
        )
        none = self.posterior.preconditioner.adaptation
        self.adaptation = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), none)
        self.first = self.states, self.adaptation

    def tune(
        self, method: Any, steps: int, energy_variance: float = ENERGY_VARIANCE, checkpoint: Path | None = None
    ) -> None:
        """Begin again, or where a checkpoint ends, and tune a sampler for each mock.

        The checkpoint is written on the way, as by `draw`.
        """
        self.states, self.adaptation = self.first
        self.length = block_length(steps)
        self.schedule = Schedule(_of(self.states.position, 0), steps, method, energy_variance)
        self.tunings, self.blocks = [self.schedule.begin()] * self.count, 0
        self.drawn, self.noise_sum = list[Any](), np.zeros(())
        self.checkpoint, self.written = checkpoint, time.perf_counter()
        kind = kind_of(self.posterior.model, str(method), energy_variance)
        self.origin = kind, steps, jax.random.key_data(self.keys).tobytes()
        if checkpoint is not None and checkpoint.exists():
            self._restore(pickle.loads(checkpoint.read_bytes()))
        while not self.schedule.done(self.tunings[0]):
            if self.schedule.next(self.tunings[0]).reevaluates:
                self.states = self._at(self.states.position, self.adaptation, 2 * 10**6)
            moved, blocks = self._run()
            self.tunings = [self.schedule.update(state, _of(blocks, i)) for i, state in enumerate(self.tunings)]
            kept = np.array([state.kept for state in self.tunings])
            self.states = _where(kept, moved, self.states)
            if self.schedule.last(self.tunings[0]).ends:
                self._advance()
            step = np.median(self.lengths()[:, 1])
            self._keep(f"{self.blocks} of {len(self.schedule.blocks)} blocks, step {step:.3g}, {np.sum(~kept)} undone")

    def draw(self, blocks: int, seconds: float = math.inf) -> dict[str, np.ndarray]:
        """Numbers after each block, (blocks, mocks, chains); energies of all steps; the mean noise.

        Ends after so many blocks, or the first one that is done after so many seconds. An unstable block is undone, has
        no energies, and halves the steps of its mock.
        """
        began = time.perf_counter()
        target = self.schedule.energy_variance * self.schedule.dimensions
        while len(self.drawn) < blocks and time.perf_counter() - began < seconds:
            moved, block = self._run()
            each = zip(block.energy_change, block.nonans, strict=True)
            exact = self.schedule.method != "mclmc"
            kept = np.array([exact or is_stable(*one, target, late=True) for one in each])
            self.states = _where(kept, moved, self.states)
            for i in np.flatnonzero(~kept):  # its own step, for good
                step = self.tunings[i].step
                self.tunings[i] = self.tunings[i]._replace(step=step._replace(value=AFTER_UNSTABLE * step.value))
            energy = np.where(kept[:, None, None], block.energy_change, np.nan)
            seen, noise = _look(self.states, self.data, self.adaptation, self.posterior)
            self.drawn.append((jax.tree.map(np.asarray, seen), energy))
            self.noise_sum = self.noise_sum + np.asarray(noise)
            self._keep(f"{len(self.drawn)} of {blocks} blocks drawn, {np.sum(~kept)} undone")
        rows, energies = zip(*self.drawn, strict=True)
        arrays = {name: np.stack([x[name] for x in rows]) for name in rows[0]}
        return arrays | {"energy": np.concatenate(energies, axis=-1), "noise mean": self.noise_sum / len(rows)}

    def _keep(self, line: str) -> None:
        """Print a line and write the checkpoint, 20 seconds after the last time."""
        if time.perf_counter() - self.written < 20:
            return
        self.written = time.perf_counter()
        print(f"{time.strftime('%X')} {line}", flush=True)
        if self.checkpoint is not None:
            arrays = self.states, self.adaptation, self.truth, self.data, self.true_noise
            host = self.tunings, self.blocks, self.drawn, self.noise_sum
            aside = self.checkpoint.with_suffix(".part")
            aside.write_bytes(pickle.dumps((self.origin, jax.tree.map(np.asarray, arrays), host)))
            aside.replace(self.checkpoint)

    def _restore(self, stored: Any) -> None:
        origin, arrays, (self.tunings, self.blocks, self.drawn, self.noise_sum) = stored
        if origin != self.origin:
            raise SystemExit(f"{self.checkpoint} is of other mocks or another tuning: delete it")
        arrays = jax.tree.map(jnp.asarray, arrays)
        self.states, self.adaptation, self.truth, self.data, self.true_noise = arrays
        print(f"goes on after {self.blocks} blocks of {self.checkpoint}", flush=True)

    def lengths(self) -> np.ndarray:
        """L and step size of each mock."""
        each = [self.schedule.tuning(state)[:2] for state in self.tunings]
        return np.array([[float(np.asarray(x)) for x in lengths] for lengths in each])

    def _advance(self) -> None:
        """Begin the next stage of all mocks, after an adaptation to what their own chains have shown."""
        if not self.schedule.last(self.tunings[0]).stage.adapts:
            self.tunings = [self.schedule.advance(state) for state in self.tunings]
            return
        old, positions = self.adaptation, self.states.position
        each = [at_extremes(_of(positions, i), state.observed.scaled) for i, state in enumerate(self.tunings)]
        each = [batches or [_of(positions, i)] * max(map(len, each)) for i, batches in enumerate(each)]
        extremes = [jax.tree.map(lambda *x: jnp.stack(x), *batch) for batch in zip(*each, strict=True)]
        self.adaptation = self._adapted(old)
        self.states = self._at(positions, old, 10**6)
        extremes = [self._at(x, old, 10**6).position for x in extremes]

        def slopes(flat: Any) -> Any:
            states = self._at(jax.tree.map(lambda x, y: x.reshape(y.shape), flat, positions), self.adaptation, 0)
            return _flat(states.logdensity_grad)

        now = self.states.position
        largest = largest_curvatures(slopes, _flat(now), [_flat(x) for x in extremes])
        by_mock = largest.reshape(1 + len(extremes), self.count, -1).swapaxes(0, 1)
        each = zip(self.tunings, map(longest_step, by_mock), strict=True)
        self.tunings = [self.schedule.advance(x, limit) for x, limit in each]

    def _adapted(self, old: Any) -> Any:
        """Adaptations of all mocks to what their own chains have shown."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(self.keys[1], 10**6 + self.blocks)
        changes: Any = [None] * self.count
        if self.schedule.last(self.tunings[0]).stage.parameters_move:
            changes = np.asarray(_changes(keys, self.states.position, (self.data, old), self.posterior))
        modes, host, new = np.asarray(mode_numbers(self.posterior)), jax.tree.map(np.asarray, old), list[Adaptation]()
        for i, state in enumerate(self.tunings):
            one, mean = _of(host, i), state.noise / max(state.blocks, 1)
            new.append(adapt(one, state.observed, mean, modes, changes[i]) if state.blocks else one)
        return jax.tree.map(lambda *x: jnp.asarray(np.stack([np.asarray(y) for y in x])), *new)

    def _at(self, positions: Any, old: Any, salt: int) -> Any:
        """States of all chains at positions of another adaptation, with the density of the next block."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(self.keys[1], salt + self.blocks)
        now = self.posterior.weighted(self.schedule.next(self.tunings[0]).weight)
        return _moved(keys, positions, self.data, old, self.adaptation, now)

    def _run(self) -> Any:
        self.blocks += 1
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(self.keys[1], self.blocks)
        given, state = (self.data, self.adaptation), self.tunings[0]
        tunings = jax.tree.map(lambda *x: np.stack(x), *map(self.schedule.tuning, self.tunings))
        block = self.schedule.next(state)
        now = self.posterior.weighted(block.weight)
        states, blocks = _blocks(keys, self.states, tunings, given, now, block.method, self.length)
        return states, jax.tree.map(np.asarray, blocks)


def _flat(positions: Any) -> Any:
    """All chains of all mocks along one axis."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), positions)


def _of(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


@jax.jit
def _where(fine: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(fine.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old)


def conditioned_on(posterior: infer.Posterior, data: Any) -> infer.Posterior:
    """The posterior of other data, whose programs are the same."""
    return eqx.tree_at(lambda p: p.data, posterior, data)


def _numbers(posterior: infer.Posterior, position: Any, logdensity: Any) -> tuple[dict[str, Any], Any]:
    noise, parameters = posterior.from_latent(position)
    return parameters | {"noise in a cell": noise[1, 2, 3], "log density": logdensity}, noise


@eqx.filter_jit
def _begin(keys: Any, posterior: infer.Posterior, chains: int, given: Any) -> Any:
    """States, numbers of the truth, data and white noise of each mock."""
    model = posterior.model

    def one(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        truth = model.draw(keys[0], **given)
        data = model.mock(keys[1], truth)
        own = conditioned_on(posterior, data)
        positions = jax.vmap(own.initial)(jax.random.split(keys[2], chains))
        at_truth = own.to_latent(truth["noise"], truth["parameters"])
        together = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), positions, at_truth)
        directions = jax.random.split(keys[3], chains + 1)
        states = jax.vmap(lambda k, z: mclmc.init(k, z, own.logdensity))(directions, together)
        numbers, noise = _numbers(own, at_truth, states.logdensity[-1])
        return jax.tree.map(lambda x: x[:-1], states), numbers, data, noise

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _moved(keys: Any, positions: Any, data: Any, old: Any, new: Any, posterior: infer.Posterior) -> Any:
    """All chains at the positions of other adaptations, with new directions."""

    def mock(key: Any, positions: Any, data: Any, old: Any, new: Any) -> Any:
        own = conditioned_on(posterior, data)
        before, after = own.adapted(old), own.adapted(new)
        keys = jax.random.split(key, positions["noise"].shape[0])
        return jax.vmap(lambda k, z: mclmc.init(k, before.moved(z, after), after.logdensity))(keys, positions)

    return jax.vmap(mock)(keys, positions, data, old, new)


@eqx.filter_jit
def _changes(keys: Any, positions: Any, given: Any, posterior: infer.Posterior) -> Any:
    """Changes of the curvature of each mock's noise with its parameters."""

    def one(key: Any, positions: Any, given: Any) -> Any:
        return changes_of_curvature(key, conditioned_on(posterior, given[0]).adapted(given[1]), positions)

    return jax.vmap(one)(keys, positions, given)


@eqx.filter_jit
def _blocks(keys: Any, states: Any, tunings: Any, given: Any, posterior: infer.Posterior, method: Any, n: int) -> Any:
    """A block of all chains of all mocks, whose data and adaptations are given."""

    def one(key: Any, states: Any, tuning: Any, given: Any) -> Any:
        own = conditioned_on(posterior, given[0]).adapted(given[1])
        return run_blocks(key, states, tuning, method, logdensity=own.logdensity, observe=own.observe, length=n)

    return jax.vmap(one)(keys, states, tunings, given)


@eqx.filter_jit
def _look(states: Any, data: Any, adapted: Any, posterior: infer.Posterior) -> Any:
    """Numbers of all positions, and the white noise of a mock, its mean over chains."""

    def mock(states: Any, data: Any, adapted: Any) -> Any:
        own = conditioned_on(posterior, data).adapted(adapted)
        numbers, noise = jax.vmap(lambda s: _numbers(own, s.position, s.logdensity))(states)
        return numbers, jnp.mean(noise, axis=0)

    return jax.vmap(mock)(states, data, adapted)
