"""The N-body equations of motion as a diffrax term."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
from jaxtyping import Array

from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.gravity import acceleration
from pmwd_dist.pm.particles import Particles


class ParticleMesh(diffrax.AbstractTerm[Any, Any]):
    """Motion of particles under the gravity of the particle mesh, in the scale factor a as time.

      d disp / da = vel / (a^3 E),   d vel / da = -3/2 Omega_m / (a^2 E) grad phi,   laplacian phi = delta

    The state is `Particles`, `args` is the `growth_table` of the cosmology. Any diffrax solver takes it.
    """

    config: Config = eqx.field(static=True)

    def vf(self, t: Any, y: Particles, args: GrowthTable) -> Particles:
        """Derivatives of the particles with the scale factor."""
        force, _ = acceleration(y.disp, self.config)
        drift, kick = rates(args, t)
        return Particles((drift * y.vel).astype(y.disp.dtype), (kick * force).astype(y.vel.dtype))

    def contr(self, t0: Any, t1: Any, **kwargs: Any) -> Any:
        """The interval of the scale factor."""
        return t1 - t0

    def prod(self, vf: Particles, control: Any) -> Particles:
        """Derivatives times an interval."""
        return jax.tree.map(lambda v: (v * control).astype(v.dtype), vf)


def rates(table: GrowthTable, a: Any) -> tuple[Array, Array]:
    """d disp / da per momentum and d vel / da per acceleration."""
    E = table.E(a)
    return 1 / (a**3 * E), 1.5 * table.cosmo.Omega_m / (a**2 * E)
