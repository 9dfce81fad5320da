"""pmwd_dist as a user calls it."""

from __future__ import annotations

from typing import Any

import pmwd_dist as pmd
from benchmarks import problem
from pmwd_dist.pm.gravity import acceleration


class Code:
    """pmwd_dist with the defaults of its functions."""

    def __init__(self, n: int):
        if type(self) is Code and not pmd.native_available():
            raise ImportError("jaxdecomp-ops is not installed: pmwd_dist would run its JAX references")
        self.config = problem.config(n)
        self.cosmo = problem.cosmology()

    def initial(self, noise: Any) -> Any:
        """Particles at a = 0.1 by 2LPT."""
        modes = pmd.linear_modes(noise, self.cosmo, self.config, linear_power="eisenstein-hu")  # as the other codes
        return pmd.lpt(modes, self.cosmo, self.config)

    def evolve(self, state: Any) -> Any:
        """Ten steps to a = 1."""
        return pmd.nbody(state, self.cosmo, self.config).particles

    def density(self, state: Any) -> Any:
        """1 + delta on the mesh."""
        return pmd.density(state, self.config)

    def place(self, disp: Any) -> Any:
        """Particles at displacements from the lattice [Mpc/h]."""
        return disp

    def paint(self, x: Any) -> Any:
        """The mesh of placed particles."""
        return pmd.cic_paint(x, self.config)

    def force(self, x: Any) -> Any:
        """The force at placed particles."""
        return acceleration(x, self.config)[0]
