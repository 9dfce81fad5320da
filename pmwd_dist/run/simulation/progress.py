"""The state of a run: its initial conditions and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import colour, white_noise
from pmwd_dist.pm.particles import ExactParticles, exact
from pmwd_dist.pm.status import Code, Status
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.host import Moved, StepSchedule
from pmwd_dist.run.settings.light_cone import LightCone
from pmwd_dist.run.simulation import light_cone


@partial(jax.jit, static_argnames="config")
def initial_particles(key: Array, table: GrowthTable, power: Array, config: Config) -> ExactParticles:
    """Particles at `config.a_start`, from white noise, on the grids of the steps.

    One program: noise and modes are dropped as soon as they are used, and no field lies beside the particles twice.

    Args:
      key: key of jax.random.
      table: growth of the cosmology.
      power: ln P(k) at a = 1 [(Mpc/h)^3], see `modes.log_power`.
      config: the simulation.
    """
    modes = colour(white_noise(key, config), power, config)
    particles = exact(lpt(modes, table, config), config)
    return jax.tree.map(config.decomposition.constrain, particles)


@dataclass
class Progress:
    """The state of a run after a number of steps.

    Args:
      config: the simulation, with the width of the halo that is in use.
      position: particles at the end of the step, or with the drift of the next one.
      status: status so far.
      schedule: all steps.
      step: number of steps.
      shells: shells of the light cone so far; None without one.
    """

    config: Config
    position: ExactParticles | Moved
    status: Status
    schedule: StepSchedule
    step: int
    shells: Array | None = None

    def at_step_end(self) -> ExactParticles:
        """The particles at the end of the step: the drift of the next one is reversed."""
        if isinstance(self.position, Moved):
            self.position = host.halt(self.position, self.config)
        return self.position

    def has_particles(self) -> bool:
        """Whether the particles still exist: an error within a step may leave none."""
        return not any(x.is_deleted() for x in jax.tree.leaves(self.position))

    def advance(self, cone: LightCone | None) -> Status:
        """Take the next step and return its status, on the host.

        A failed step changes nothing. If only the last drift of the run fails, the particles are deleted.
        """
        done = np.int32(self.step)
        moved = self.position
        if not isinstance(moved, Moved):
            self.position = moved = host.begin(moved, self.status, self.schedule, done, self.config)
        if cone is None or self.shells is None:
            moved = host.advance(moved, self.schedule, done, self.config)
        else:
            motion: Any = moved._replace(particles=())  # type: ignore[arg-type]
            given = motion, self.schedule, done
            moved, self.shells = light_cone.advance_and_see(moved.particles, self.shells, *given, cone, self.config)
        self.position, status = moved, jax.device_get(moved.status)
        if status.code != Code.SUCCESSFUL:
            self.position = moved.particles
            return status
        if self.step == len(self.schedule.times) - 2:
            status = jax.device_get(host.status_at_end(moved, self.config))
            if status.code != Code.SUCCESSFUL:
                for x in jax.tree.leaves(moved.particles):
                    x.delete()  # not a state before the step: no checkpoint may hold them
                return status
        self.status, self.step = moved.status, self.step + 1
        return status
