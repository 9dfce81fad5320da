"""The codes that are compared: one module each, with a class `Code` that all share their form with.

A code is made for a mesh size `n` and has four steps, pure functions that the worker jits:
  initial(noise)   particles at a = 0.1 by 2LPT, in the code's own form
  evolve(state)    ten steps to a = 1
  density(state)   1 + delta on the mesh
  paint(x), force(x)   of particles `x = place(disp)`, displacements from the lattice [Mpc/h]
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A code of the comparison.

    Args:
      module: of this package.
      packages: that it needs.
      title: a line on it.
      tolerance: to which its P(k) at a = 1 must be ours on large scales, relative.
    """

    module: str
    packages: tuple[str, ...]
    title: str
    tolerance: float


# PM++ does not deconvolve its windows; ten steps of JaxPM, linear in a, lack large-scale power.
CODES = {
    "ours": Entry("ours", (), "pmwd_dist with its native ops", 0.0),
    "ours-jax": Entry("ours_jax", (), "pmwd_dist with the JAX references of its ops", 1e-3),
    "pure-jax": Entry("pure_jax", (), "the same scheme written in plain jax.numpy", 1e-3),
    "jaxpm": Entry("jaxpm", ("jaxpm", "diffrax"), "JaxPM, leapfrog in a", 0.2),
    "pmpp": Entry("pmpp", ("pmpp",), "PM++, its own leapfrog and adjoint", 0.02),
}


def load(name: str, n: int) -> Any:
    """The code of this name for a mesh of n^3.

    Raises:
      ImportError: it is not installed.
    """
    module = importlib.import_module(f"benchmarks.codes.{CODES[name].module}")
    return module.Code(n)
