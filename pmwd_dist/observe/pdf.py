"""One-point distribution of a field."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from pmwd_dist._checks import check_ascending
from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import on_blocks
from pmwd_dist.parallel.explicit_axes import on_auto_axes
from pmwd_dist.pm import inputs


class OnePointPDF(eqx.Module):
    """One-point distribution of a field.

    Args:
      values: nodes, values of the field.
      density: probability density at the nodes, per unit of the field.
      cells: number of cells at each node; not an integer, since two nodes share a cell.
    """

    values: Float[Array, " nodes"]
    density: Float[Array, " nodes"]
    cells: Float[Array, " nodes"]


@on_auto_axes
def one_point_pdf(field: Real[Array, "nx ny nz"], config: Config, values: Any) -> OnePointPDF:
    """One-point probability density of a field on the mesh, such as 1 + delta or its logarithm, at ascending values.

    A cell is shared linearly by the two nodes around its value, so that the result is continuous and has derivatives;
    cells beyond the ends are not counted. The trapezoidal rule gives the fraction of cells within the ends. Windows are
    not deconvolved: the distribution has the resolution of the field.

    Args:
      field: field on the mesh, shape (nx, ny, nz).
      config: configuration of the simulation.
      values: nodes, two or more ascending values of the field.

    Raises:
      ValueError: the field is not on the mesh, or the values don't ascend.

    Examples:
      >>> found = observe.one_point_pdf(density, config, np.geomspace(0.1, 30, 40))
    """
    nodes = check_ascending(values, "values", -math.inf)
    return _one_point_pdf(inputs.mesh_field(field, config), config, nodes=nodes)


@on_blocks(["field"], "whole", static=["nodes"])
def _one_point_pdf(field: Array, config: Config, *, nodes: tuple[float, ...]) -> OnePointPDF:
    at, last = np.asarray(nodes), len(nodes) - 2

    def plane(field: Array) -> Array:
        # Sums of one plane first: a float32 sum over all cells would lose digits.
        x, values = field.ravel(), jnp.asarray(at, field.dtype)
        i = jnp.clip(jnp.searchsorted(values, x, side="right") - 1, 0, last)
        share = (x - values[i]) / (values[i + 1] - values[i])
        inside = jnp.where((x >= values[0]) & (x <= values[-1]), 1, 0).astype(x.dtype)
        empty = jnp.zeros(len(nodes), x.dtype)
        return empty.at[i].add(inside * (1 - share)).at[i + 1].add(inside * share)

    cells = jax.lax.psum(jnp.sum(jax.vmap(plane)(field), axis=0), config.decomposition.names)
    widths = np.concatenate([np.diff(at), [0]]) / 2 + np.concatenate([[0], np.diff(at)]) / 2
    density = cells / jnp.asarray(widths * np.prod(config.mesh_shape), cells.dtype)
    return OnePointPDF(jnp.asarray(at, cells.dtype), density, cells)
