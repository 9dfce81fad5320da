"""The state of a run, and its next step."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

from pmwd_dist.config import Config
from pmwd_dist.pm.particles import Particles
from pmwd_dist.pm.solvers import SolverState
from pmwd_dist.pm.status import Code, Status
from pmwd_dist.pm.stepping import host
from pmwd_dist.pm.stepping.host import Moved, Schedule
from pmwd_dist.run import light_cone
from pmwd_dist.run.settings.light_cone import LightCone


@dataclass
class Progress:
    """The state of a run after a number of steps.

    Args:
      config: the simulation, with the width of the halo that is in use.
      position: the particles at the end of the step, or with the drift of the next one.
      state: of the solver.
      schedule: all steps.
      step: number of steps.
      shells: of the light cone so far; None without one.
    """

    config: Config
    position: Particles | Moved
    state: SolverState
    schedule: Schedule
    step: int
    shells: Array | None = None

    def particles(self) -> Particles:
        """The particles at the end of the step: if they have moved on, that is taken back."""
        if isinstance(self.position, Moved):
            self.position = host.halt(self.position, self.config)
        return self.position

    def has_particles(self) -> bool:
        """Whether the particles still exist: an error within a step may leave none."""
        return not any(x.is_deleted() for x in jax.tree.leaves(self.position))

    def advance(self, cone: LightCone | None) -> Status:
        """Take the next step and return its status, on the host.

        If it fails, all is as it was before the step.
        """
        done = np.int32(self.step)
        moved = self.position
        if not isinstance(moved, Moved):
            self.position = moved = host.begin(moved, self.schedule, done, self.config)
        if cone is None or self.shells is None:
            moved, state = host.advance(moved, self.state, self.schedule, done, self.config)
        else:
            motion, inputs = (moved.drift, moved.max_displacement), (self.state, self.schedule, done)
            moved, state, self.shells = light_cone.advance_and_see(
                moved.particles, self.shells, motion, *inputs, cone=cone, config=self.config
            )
        status = jax.device_get(state.status)
        if status.code == Code.SUCCESSFUL:
            self.position, self.state, self.step = moved, state, self.step + 1
        else:
            self.position = moved.particles
        return status
