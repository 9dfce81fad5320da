"""Training of a correction of the force: P(k) and r(k) of finer simulations with the same phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.observe.power import power_spectrum
from pmwd_dist.parallel.distributed import to_host
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.parallel.inputs import whole_number
from pmwd_dist.pm.force_correction import ForceCorrection
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import linear_modes
from pmwd_dist.pm.noise import white_noise
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.status import Status


class ForceReference(eqx.Module):
    """A finer simulation, and the start of a simulation with the same phases.

    Args:
      config: simulation whose force is corrected.
      scale_factors: scale factors of the densities.
      particles: particles of the simulation at a_start.
      table: growth table of the cosmology.
      densities: densities of the finer simulation, on a mesh of two cells a particle along each axis.
      level: ratio of the wanted P(k) to P(k) of the finer simulation, at the scale factors and in the bins of
        `force_error`, or a number. For example from an emulator; change it by `equinox.tree_at`.
    """

    config: Config = eqx.field(static=True)
    scale_factors: tuple[float, ...] = eqx.field(static=True)
    particles: Particles
    table: GrowthTable
    densities: Float[Array, "times nx ny nz"]
    level: Array


class ForceError(eqx.Module):
    """Differences from a finer simulation, up to the Nyquist frequency of the particles.

    Args:
      k: wavenumbers of the bins [h/Mpc].
      power: P(k) of the simulation [(Mpc/h)^3].
      power_ratio: P(k) over the wanted one.
      decorrelation: 1 - r(k).
      status: status of the simulation.
    """

    k: Float[Array, " bins"]
    power: Float[Array, "times bins"]
    power_ratio: Float[Array, "times bins"]
    decorrelation: Float[Array, "times bins"]
    status: Status


@on_auto_axes
def force_reference(
    key: Array,
    cosmo: Cosmology,
    config: Config,
    fine: Config,
    scale_factors: Sequence[float] = (0.5, 1.0),
    *,
    fixed: bool = False,
    paired: bool = False,
) -> ForceReference:
    """Run a finer simulation, for `train_force`.

    Args:
      key: key of nested white noise.
      cosmo: cosmology.
      config: simulation whose force is corrected.
      fine: simulation of the same box with more particles, a finer mesh and more steps.
      scale_factors: scale factors at which both are compared, ascending.
      fixed: option of the noise, as in `white_noise`.
      paired: option of the noise, as in `white_noise`.

    Raises:
      SimulationError: the finer simulation fails.
    """
    table, times = growth_table(cosmo), tuple(float(a) for a in scale_factors)

    def start(config: Config) -> Particles:
        noise = white_noise(key, config, nested=True, fixed=fixed, paired=paired)
        return lpt(linear_modes(noise, cosmo, config), table, config)

    solution = _run(start(fine), table, fine, _measured(fine, config), times).raise_if_failed()
    return ForceReference(config, times, start(config), table, solution.snapshots, jnp.ones(()))


@eqx.filter_jit
def force_error(correction: ForceCorrection | None, reference: ForceReference) -> ForceError:
    """P(k) and r(k) of a simulation with a correction, or without one, against its reference."""
    config, times = reference.config, reference.scale_factors
    measured = _measured(config, config)
    solution = _run(reference.particles, reference.table, config, measured, times, correction)
    nyquist = math.pi * min(n / side for n, side in zip(config.particle_shape, config.box_size, strict=True))
    keep = math.floor(nyquist * max(config.box_size) / (2 * math.pi) + 1e-6)

    def compared(field: Array, wanted: Array) -> tuple[Array, Array, Array, Array]:
        spectra = [power_spectrum(x, measured) for x in (field, wanted, field - wanted)]
        p1, p2, difference = (spectrum.power[:keep] for spectrum in spectra)
        # 1 - r from the difference: the cross power would lose its digits in single precision.
        lost = (difference - (jnp.sqrt(p1) - jnp.sqrt(p2)) ** 2) / (2 * jnp.sqrt(p1 * p2))
        return spectra[0].k[:keep], p1, p1 / p2, lost

    found = [compared(solution.snapshots[i], reference.densities[i]) for i in range(len(times))]
    k, power, ratio, lost = (jnp.stack(x) for x in zip(*found, strict=True))
    return ForceError(k[0], power, ratio / reference.level, lost, solution.status)


@on_auto_axes
def train_force(
    correction: ForceCorrection,
    references: Sequence[ForceReference],
    *,
    steps: int = 100,
    learning_rate: float = 0.02,
    decorrelation: float = 1.0,
) -> tuple[ForceCorrection, np.ndarray]:
    """Train a correction by Adam, to the P(k) of finer simulations at the highest correlation with them.

    The loss is the mean over ln k, scale factors and references of (ln P / P_wanted)^2 + w (1 - r).

    Args:
      correction: correction to begin with.
      references: references from `force_reference`, of several seeds and cosmologies.
      steps: number of steps; each has the gradient of one reference, in turn.
      learning_rate: learning rate at the beginning; it falls to zero as a cosine.
      decorrelation: weight w of the decorrelation.

    Returns:
      The correction, and the loss before each step.

    Raises:
      ImportError: optax is not installed.
      SimulationError: a simulation fails.

    Examples:
      >>> references = [observe.force_reference(jax.random.key(i), cosmo, config, fine) for i in range(4)]
      >>> correction, history = observe.train_force(pmd.ForceCorrection(spacing=2.0), references)
    """
    import optax

    optimiser: Any = optax.adam(optax.cosine_decay_schedule(learning_rate, whole_number(steps, "steps", least=1)))

    @eqx.filter_jit
    def step(correction: ForceCorrection, state: Any, reference: ForceReference) -> Any:
        def loss(correction: ForceCorrection) -> tuple[Array, Status]:
            found = force_error(correction, reference)
            each = jnp.log(found.power_ratio) ** 2 + decorrelation * found.decorrelation
            return jnp.mean(each @ (1 / found.k)) / jnp.sum(1 / found.k), found.status

        (value, status), slope = jax.value_and_grad(loss, has_aux=True)(correction)
        update, state = optimiser.update(slope, state, correction)
        return eqx.apply_updates(correction, update), state, value, status

    state, history = optimiser.init(correction), list[float]()
    for i in range(steps):
        correction, state, value, status = step(correction, state, references[i % len(references)])
        status.raise_if_failed()
        history.append(float(to_host(value)))
    return correction, np.asarray(history)


def _measured(config: Config, like: Config) -> Config:
    """A simulation with a mesh of two cells a particle of another one, along each axis."""
    x, y, z = like.particle_shape
    return replace(config, mesh_shape=(2 * x, 2 * y, 2 * z), halo="auto")  # a fixed halo is in cells


def _run(
    particles: Particles,
    table: GrowthTable,
    config: Config,
    measured: Config,
    scale_factors: tuple[float, ...],
    correction: ForceCorrection | None = None,
) -> Any:
    """The solution of a simulation whose snapshots are densities on the mesh of `measured`."""
    import diffrax

    from pmwd_dist.pm.nbody import nbody  # which imports diffrax

    with jax.ensure_compile_time_eval():
        times = jnp.asarray(scale_factors, float)
    saveat = diffrax.SaveAt(ts=times, fn=lambda _, particles, *__: density(particles, measured))
    return nbody(particles, table, config, saveat=saveat, potential_factor=correction)
