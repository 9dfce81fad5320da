"""Data-dependent failures: a status inside jit, raised as an error on the host."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from pmwd_dist._jax.arrays import as_array
from pmwd_dist.parallel.inputs import check_on_host

UNLIMITED = float(np.finfo(np.float32).max)  # a displacement; finite, for jax_debug_infs


class SimulationError(RuntimeError):
    """A simulation failed for its data."""


class Code(IntEnum):
    """Kinds of failure."""

    SUCCESSFUL = 0
    BEYOND_HALO = 1
    NOT_FINITE = 2
    BEYOND_GRID = 3
    STEP_LIMIT = 4
    SOLVER = 5
    TOO_FAST = 6


class Status(eqx.Module):
    """The first failure of a simulation, or success (code 0).

    Args:
      code: a `Code`.
      step: number of steps completed, up to the failure.
      max_displacement: largest displacement so far [mesh cells].
      halo: largest displacement within the halo [mesh cells]; UNLIMITED on one device.
    """

    code: Array
    step: Array
    max_displacement: Array
    halo: Array

    def __repr__(self) -> str:
        if not self.readable:
            return super().__repr__()
        displacement = f"largest displacement {float(self.max_displacement):.2f} cells"
        return self.message() or f"ok, {int(self.step)} steps, {displacement}"

    @property
    def readable(self) -> bool:
        """Whether this is the status of one simulation, outside jit."""
        return all(eqx.is_array(x) and not isinstance(x, Tracer) and x.ndim == 0 for x in jax.tree.leaves(self))

    def raise_if_failed(self) -> None:
        """Raise SimulationError after a failure. On the host, outside jit."""
        check_on_host("raise_if_failed", self)
        message = self.message()
        if message:
            raise SimulationError(message)

    def message(self) -> str:
        """Error message in one line: failure, step and remedy; empty after success."""
        values = jax.device_get((self.code, self.step, self.max_displacement, self.halo))
        code, step, max_displacement, halo = map(float, values)
        at = f"in step {int(step) + 1}"
        if code == Code.SUCCESSFUL:
            return ""
        if code == Code.BEYOND_HALO:
            return (
                f"a displacement of {max_displacement:.2f} cells exceeds the halo of {halo:.0f} cells {at}; "
                f'set halo to {int(max_displacement) + 1} or more ("auto" reaches 100 Mpc/h or the whole mesh), '
                "or use one device"
            )
        if code == Code.NOT_FINITE:
            remedy = "check the initial conditions, the cosmology, and that a potential_factor is positive"
            return f"displacements or forces are not finite {at}; {remedy}"
        if code == Code.BEYOND_GRID:
            beyond = f"a displacement of {max_displacement:.1f} cells"
            return f"{beyond} exceeds the range of the particle grid {at}; use larger cells"
        if code == Code.TOO_FAST:
            return f"a momentum exceeds its range, 120 Mpc/h or more, {at} or before; use larger cells"
        if code == Code.STEP_LIMIT:
            return f"the solver reached its limit of steps {at}; raise max_steps or loosen the tolerances"
        return f"the solver stopped {at}; loosen its tolerances or use another solver"


def failure(max_displacement: Array, halo: Any, grid: Any, finite: Any = True) -> Array:
    """`Code` of the particles before a kick.

    Args:
      max_displacement: largest displacement of the particles [mesh cells].
      halo: largest displacement within the halo [mesh cells].
      grid: largest displacement on the grid of the particles [mesh cells].
      finite: whether the coefficients of the step are finite.
    """
    code = jnp.where(max_displacement > halo, Code.BEYOND_HALO, Code.SUCCESSFUL)
    code = jnp.where(max_displacement > grid, Code.BEYOND_GRID, code)
    return jnp.where(jnp.isfinite(max_displacement) & finite, code, Code.NOT_FINITE).astype(jnp.int32)


def successful(dtype: Any = None) -> Status:
    """Status before the first step."""
    dtype = jnp.result_type(float) if dtype is None else dtype
    return Status(as_array(0, jnp.int32), as_array(0, jnp.int32), as_array(0, dtype), as_array(UNLIMITED, dtype))
