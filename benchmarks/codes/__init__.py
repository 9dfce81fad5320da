"""The codes that are compared: one module each, with a class `Code` that all share their form with.

A code is made for a mesh size `n` and has four steps, pure functions that the worker jits:
  initial(noise)   particles at a = 0.1 by 2LPT, in the code's own form
  evolve(state)    ten steps to a = 1
  density(state)   1 + delta on the mesh
  paint(x), force(x)   of particles `x = place(disp)`, displacements from the lattice [Mpc/h]
"""

from __future__ import annotations

import importlib
from typing import Any

# Name: (module, distributions it needs, one line on it).
CODES = {
    "ours": ("ours", (), "pmwd_dist with its native ops"),
    "ours-jax": ("ours_jax", (), "pmwd_dist with the JAX references of its ops"),
    "pure-jax": ("pure_jax", (), "the same scheme written in plain jax.numpy"),
    "jaxpm": ("jaxpm", ("jaxpm", "diffrax"), "JaxPM, leapfrog in a"),
    "pmpp": ("pmpp", ("pmpp",), "PM++, its own leapfrog and adjoint"),
}


def load(name: str, n: int) -> Any:
    """The code of this name for a mesh of n^3.

    Raises:
      ImportError: it is not installed.
    """
    module = importlib.import_module(f"benchmarks.codes.{CODES[name][0]}")
    return module.Code(n)
