"""The work that is timed: n^3 particles on a mesh of n^3, in a box of 2n Mpc/h."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import pmwd_dist as pmd

OMEGA_M, OMEGA_B, H, N_S, SIGMA8 = 0.3111, 0.04897, 0.6766, 0.9665, 0.8102
A_START, A_STOP, STEPS = 0.1, 1.0, 10
CELL = 2.0  # side of a mesh cell and of a lattice cell [Mpc/h]
SEED = 2024
CASES = ("forward", "gradient")

# Reads and writes that a step can't do without, with positions, momenta and meshes of 4 bytes: read positions 12, write
# the mesh 4, two transforms of three passes 48, read positions, momenta and mesh 28, write positions and momenta 24.
FLOOR_BYTES = 116


def cosmology() -> Any:
    """A new flat LCDM cosmology: jax_cosmo keeps traced tables on the object, so it must not be shared."""
    import jax_cosmo  # the peers need its class; scripts without peers run without it

    return jax_cosmo.Cosmology(
        Omega_c=OMEGA_M - OMEGA_B, Omega_b=OMEGA_B, h=H, n_s=N_S, sigma8=SIGMA8, Omega_k=0.0, w0=-1.0, wa=0.0
    )


@functools.cache
def config(n: int) -> pmd.Config:
    """A simulation of n^3 particles on a mesh of n^3 in a box of 2n Mpc/h, on one device."""
    decomposition = pmd.Decomposition((1, 1), jax.devices()[:1])
    return pmd.Config(
        CELL * n, n, a_start=A_START, a_stop=A_STOP, steps=STEPS, lpt_order=2, decomposition=decomposition
    )


def noise(n: int) -> Float[Array, "n n n"]:
    """The white noise, in single precision."""
    return pmd.white_noise(jax.random.key(SEED), config(n), jnp.float32)
