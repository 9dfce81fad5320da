"""PM++ from PyPI, with its own integrator, uniform in a, and its hand-written adjoint."""

from __future__ import annotations

from typing import Any

import jax
from pmpp import Configuration
from pmpp.cic.scatter import scatter
from pmpp.cosmology.boltzmann import boltzmann
from pmpp.cosmology.models import Cosmology
from pmpp.initial_conditions.lpt import lpt
from pmpp.initial_conditions.modes import linear_modes
from pmpp.nbody import Particles, gravity, nbody

from benchmarks import problem


class Code:
    """Particles and meshes in single precision, growth in double, as is its default.

    No gradient in the cosmology: the case doesn't ask for it.
    """

    def __init__(self, n: int):
        self.conf = Configuration(
            ptcl_spacing=problem.CELL,
            ptcl_grid_shape=(n, n, n),
            nbody_cosmo_grad=False,
            a_start=problem.A_START,
            a_stop=problem.A_STOP,
            # A little more than the step, so that rounding doesn't make it one step more.
            a_nbody_maxstep=(problem.A_STOP - problem.A_START) / (problem.STEPS - 0.1),
        )
        assert self.conf.a_nbody_num == problem.STEPS
        parameters = (problem.N_S, problem.OMEGA_M, problem.OMEGA_B, problem.H)
        self.cosmo = boltzmann(Cosmology.from_sigma8(self.conf, problem.SIGMA8, *parameters), self.conf)

    def initial(self, noise: Any) -> Any:
        """Particles at a = 0.1 by 2LPT."""
        return lpt(linear_modes(noise, self.cosmo, self.conf), self.cosmo, self.conf)

    def evolve(self, state: Any) -> Any:
        """Ten steps to a = 1."""
        return nbody(state, self.cosmo, self.conf)

    def density(self, state: Any) -> Any:
        """1 + delta on the mesh."""
        return scatter(state, self.conf)

    def place(self, disp: Any) -> Any:
        """Particles at displacements from the lattice [Mpc/h]."""
        return Particles.gen_grid(self.conf).replace(disp=disp.reshape(-1, 3))

    def paint(self, x: Any) -> Any:
        """The mesh of placed particles."""
        return scatter(x, self.conf)

    def force(self, x: Any) -> jax.Array:
        """The force at placed particles."""
        return gravity(problem.A_STOP, x, self.cosmo, self.conf)
