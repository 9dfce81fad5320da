"""Time a forward step and a gradient of our own on this machine."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax_cosmo
from jaxtyping import Array, Float

from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.pm.lpt import lpt
from pmwd_dist.pm.modes import linear_modes
from pmwd_dist.pm.nbody import nbody
from pmwd_dist.pm.noise import white_noise
from pmwd_dist.pm.paint import density
from pmwd_dist.pm.particles import Particles
from pmwd_dist.run.common.measure import Cost, round_of, warm_up

OMEGA_M, OMEGA_B, H, N_S, SIGMA8 = 0.3111, 0.04897, 0.6766, 0.9665, 0.8102
A_START, A_STOP, STEPS = 0.1, 1.0, 10
CELL = 2.0  # side of a mesh cell and of a lattice cell [Mpc/h]
SEED = 2024

# Reads and writes that a step can't do without, with positions, momenta and meshes of 4 bytes: read positions 12, write
# the mesh 4, two transforms of three passes 48, read positions, momenta and mesh 28, write positions and momenta 24.
FLOOR_BYTES = 116

Case = Literal["forward", "gradient"]
CASES: tuple[Case, ...] = ("forward", "gradient")


@dataclass(frozen=True)
class Timing:
    """Times of one case and size.

    Args:
      case: "forward", ten steps from particles to particles, in their memory; or "gradient", mean((1 + delta)^2) at
        a = 1 and its gradient with respect to the white noise, initial conditions included.
      n: cells along a side, and particles.
      seconds: wall-clock time of each call after the first.
      cost: time of the compilation and the first call, and memory.
    """

    case: Case
    n: int
    seconds: tuple[float, ...]
    cost: Cost

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds)

    @property
    def bytes_per_particle(self) -> float:
        """Peak memory a particle, or the plan of the compiler."""
        return (self.cost.peak_bytes or self.cost.planned_bytes or 0) / self.n**3


def cosmology() -> jax_cosmo.Cosmology:
    """A new flat LCDM cosmology: jax_cosmo keeps traced tables on the object, so it must not be shared."""
    return jax_cosmo.Cosmology(
        Omega_c=OMEGA_M - OMEGA_B, Omega_b=OMEGA_B, h=H, n_s=N_S, sigma8=SIGMA8, Omega_k=0.0, w0=-1.0, wa=0.0
    )


@functools.cache
def config(n: int) -> Config:
    """A simulation of n^3 particles on a mesh of n^3 in a box of 2n Mpc/h, on one device."""
    decomposition = Decomposition((1, 1), jax.devices()[:1])
    return Config(CELL * n, n, a_start=A_START, a_stop=A_STOP, steps=STEPS, decomposition=decomposition)


def noise(n: int) -> Float[Array, "n n n"]:
    """The white noise, in single precision."""
    return white_noise(jax.random.key(SEED), config(n), jnp.float32)


def bench(sizes: Sequence[int], cases: Sequence[Case] = CASES, *, rounds: int = 3) -> Iterator[Timing]:
    """Time these cases at meshes of n^3, in single precision on one device."""
    problems = [config(n) for n in sizes]
    for problem in problems:
        for case in cases:
            yield _time(case, problem, rounds)


def _time(case: Case, problem: Config, rounds: int) -> Timing:
    n, cosmo = problem.mesh_shape[0], cosmology()

    def initial(noise: Array) -> Particles:
        return lpt(linear_modes(noise, cosmo, problem), cosmo, problem)

    def forward(particles: Particles) -> Particles:
        return nbody(particles, cosmo, problem).particles

    def loss(noise: Array) -> Array:
        return jnp.mean(density(forward(initial(noise)), problem) ** 2)

    forth = case == "forward"
    argument = jax.device_get(jax.jit(initial)(noise(n)) if forth else noise(n))
    function: Callable[..., Any] = forward if forth else jax.value_and_grad(loss)
    example = jax.eval_shape(lambda: (argument,))
    cost, call, _ = warm_up(function, example, lambda: (jax.tree.map(jnp.array, argument),), donated=forth)
    seconds = [second for _ in range(rounds) for second in round_of(call, cost.first_s)]
    return Timing(case, n, tuple(seconds), cost)
