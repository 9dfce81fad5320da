"""JaxPM from PyPI: positions as displacements in cells, one force a step by diffrax's LeapfrogMidpoint."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxpm.distributed import fft3d, ifft3d
from jaxpm.kernels import fftk
from jaxpm.painting import cic_paint_dx
from jaxpm.pm import lpt, make_diffrax_ode, pm_forces

import pmwd_dist as pmd
from benchmarks import problem


def _linear_power(k: Any) -> jax.Array:
    """P(k) at a = 1 [(Mpc/h)^3], as a function that jax.jit traces."""
    nodes = np.geomspace(1e-4, 1e2, 2048)
    table = jnp.log(pmd.linear_power(nodes, problem.cosmology(), "eisenstein-hu"))
    return jnp.exp(jnp.interp(jnp.log(jnp.maximum(k, nodes[0])), np.log(nodes), table)) * (k > 0)


class Code:
    """Displacement painting, which is JaxPM's faster way, and the checkpointed adjoint of diffrax."""

    def __init__(self, n: int):
        self.mesh_shape = (n, n, n)

    def initial(self, noise: Any) -> Any:
        """Particles at a = 0.1 by 2LPT."""
        modes = fft3d(noise)
        k = jnp.sqrt(sum(k_**2 for k_ in fftk(modes))) / problem.CELL
        amplitude = jnp.sqrt(_linear_power(k) / problem.CELL**3)
        disp, momentum, _ = lpt(problem.cosmology(), ifft3d(modes * amplitude), a=problem.A_START, order=2)
        return jnp.stack([disp, momentum])

    def evolve(self, state: Any) -> Any:
        """Ten steps to a = 1."""
        times = jnp.linspace(problem.A_START, problem.A_STOP, problem.STEPS + 1)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(make_diffrax_ode(self.mesh_shape, paint_absolute_pos=False)),
            diffrax.LeapfrogMidpoint(),
            t0=times[0],
            t1=times[-1],
            dt0=None,
            y0=state,
            args=problem.cosmology(),
            stepsize_controller=diffrax.StepTo(times),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=problem.STEPS,  # also the most checkpoints that the adjoint may want
        )
        return solution.ys[0]

    def density(self, state: Any) -> Any:
        """1 + delta on the mesh."""
        return cic_paint_dx(state[0])

    def place(self, disp: Any) -> Any:
        """Particles at displacements from the lattice [Mpc/h]."""
        return disp / problem.CELL

    def paint(self, x: Any) -> Any:
        """The mesh of placed particles."""
        return cic_paint_dx(x)

    def force(self, x: Any) -> Any:
        """The force at placed particles."""
        return pm_forces(x, mesh_shape=self.mesh_shape, paint_absolute_pos=False)
