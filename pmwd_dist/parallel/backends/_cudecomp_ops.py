"""Primitives of cuDecomp on local blocks: transposes between pencils, and halos in place."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist._jax.ops import Target, define_linear, define_op, result_aval
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.division import Division, Shape3

Step = Literal["x_to_y", "y_to_z", "z_to_y", "y_to_x"]

# In the order of cuDecomp's enumeration, from 0.
_STEPS: tuple[str, ...] = get_args(Step)
_INVERSE = (3, 2, 1, 0)
_AXES = ((0, 1), (1, 2), (2, 1), (1, 0))  # whole along x, y, z (0, 1, 2) before and after a step


def transpose(block: Array, division: Division, comms: tuple[int, int], step: Step) -> Array:
    """Exchange the whole axis of the local blocks, as `all_to_all` does.

    "z_to_y" takes (nx / px, ny / py, nz) to (nx / px, ny, nz / py), and "y_to_x" this to (nx, ny / px, nz / py);
    "x_to_y" and "y_to_z" are their inverses. `comms` are cuDecomp's numbers of the communication backends of transposes
    and halos.
    """
    number, pdims = _STEPS.index(step), division.pdims
    if pdims[1 if "z" in step else 0] == 1:  # nothing is divided along the two axes
        return block
    x, y, z = (n * p for n, p in zip(block.shape, _shards(_AXES[number][0], pdims), strict=True))
    return _transpose_p.bind(block[None], shape=(x, y, z), pdims=pdims, comms=comms, step=number)[0]


def halo_pad(block: Array, halo: int, division: Division, comms: tuple[int, int]) -> Array:
    """Add halos, no wider than the block, to the local block of a grid that is open."""
    px, py = division.pdims
    padded = jnp.pad(block, _halo_widths(halo, division))
    shape = block.shape[0] * px, block.shape[1] * py, block.shape[2]
    return _halo_p.bind(padded[None], shape=shape, pdims=(px, py), comms=comms, halo=halo, division=division)[0]


def _shards(axis: int, pdims: tuple[int, int]) -> tuple[int, int, int]:
    """Number of blocks along each axis, for pencils that are whole along x, y or z (0, 1, 2)."""
    px, py = pdims
    return ((1, px, py), (px, 1, py), (px, py, 1))[axis]


def _halo_widths(halo: int, division: Division) -> list[tuple[int, int]]:
    return [(halo, halo) if parts > 1 else (0, 0) for parts in (*division.pdims, 1)]


def _grid(shape: Shape3, pdims: tuple[int, int], comms: tuple[int, int]) -> dict[str, Any]:
    return {"shape": np.array(shape), "pdims": np.array(pdims), "comms": np.array(comms)}


def _scratch(
    x: Any, *, shape: Shape3, pdims: tuple[int, int], comms: tuple[int, int], halo: int | None = None, **_: Any
) -> ShapedArray:
    return ShapedArray((native.cudecomp_ops().cudecomp_scratch(shape, pdims, comms, halo),), x.dtype)


def _transpose_aval(x: Any, *, shape: Shape3, pdims: tuple[int, int], step: int, **_: Any) -> Any:
    after = _shards(_AXES[step][1], pdims)
    return result_aval(x, (x.shape[0], *(n // p for n, p in zip(shape, after, strict=True))), x.dtype)


_transpose = Target(
    "jaxdecomp_ops_cudecomp_transpose",
    lambda *_, step, **grid: _grid(**grid) | {"step": np.array([step])},
    _scratch,
)
_transpose_p = define_op("cudecomp_transpose", _transpose_aval, None, cuda=_transpose)
define_linear(_transpose_p, lambda ct, _, *, step, **params: _transpose_p.bind(ct, step=_INVERSE[step], **params))

_halo = Target(
    "jaxdecomp_ops_cudecomp_halo",
    lambda *_, shape, pdims, comms, halo, **__: _grid(shape, pdims, comms) | {"halo": np.array([halo])},
    _scratch,
    in_place={0: 0},
)
_halo_p = define_op("cudecomp_halo", lambda x, **_: result_aval(x, x.shape, x.dtype), None, cuda=_halo)


def _halo_transpose(ct: Array, _: Any, *, halo: int, division: Division, **__: Any) -> Array:
    """Cotangents of the halos, which are overwritten, are zero; cells that were sent sum those of all copies."""
    widths = _halo_widths(halo, division)
    return jax.vmap(lambda block: jnp.pad(XLA().halo_reduce(block, halo, division), widths))(ct)


define_linear(_halo_p, _halo_transpose)
