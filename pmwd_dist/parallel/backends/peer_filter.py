"""Filter of a real mesh in Fourier space on NVIDIA GPUs, with one pass over the spectrum along x instead of three.

cuFFT transforms along y and z; one kernel transforms along x, multiplies and transforms back. Between GPUs, the planes
are sent to it as they are transformed, and it writes to the memory of all GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array, Float

from pmwd_dist._jax import native
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist._jax.ops import (
    Target,
    add_batch_axis,
    define_derivatives,
    define_op,
    drop_batch_axis,
    result_aval,
    unify_varying,
)
from pmwd_dist.ops.kernels import cuda_unavailable_reason
from pmwd_dist.parallel.backends.peer_group import group_attributes
from pmwd_dist.parallel.backends.xla import XLA
from pmwd_dist.parallel.division import Division


def unavailable_reason(block: Any, shards: int) -> str | None:
    """Reason why `filtered` has no kernel for one of so many blocks, or None."""
    dtype, length = np.dtype(block.dtype).name, block.shape[0] * shards
    if dtype not in ("float32", "float64"):
        return f"values are of {dtype}, not floats of 32 or 64 bits"
    reason = cuda_unavailable_reason()
    if reason is None and not native.filters(length, dtype == "float64"):
        return (
            f"the length {length} along x is too short, too long for the shared memory of the GPUs, or has a factor "
            "other than 2, 3, 5 and 7"
        )
    return reason


def filtered(
    block: Float[Array, "x ny nz"], response: Callable[[], Array], division: Division
) -> Float[Array, "x ny nz"]:
    """See `Backend.filtered`."""
    (planes, ny, nz), shards = block.shape, division.size
    nx = planes * shards
    whole = jnp.broadcast_to(response(), (nx, ny // shards, nz // 2 + 1))
    octant = whole[: nx // 2 + 1, : ny // 2 + 1].astype(block.dtype) / float(nx * ny * nz)
    roots = np.exp(-2j * math.pi / nx * np.arange(nx)).astype(np.result_type(block.dtype, np.complex64))
    operands = unify_varying(block, octant, jnp.asarray(roots))
    return drop_batch_axis(_filtered_p.bind(*map(add_batch_axis, operands), division=division))


def _aval(mesh: Any, *_: Any, **__: Any) -> Any:
    return result_aval(mesh, mesh.shape, mesh.dtype)


def _reference(mesh: Array, octant: Array, roots: Array, *, division: Division) -> Array:
    """The filter is given at frequencies that are not negative, divided by the number of cells.

    On several devices it is given at all ky of the block.
    """
    nx, ny, nz = roots.shape[1], *mesh.shape[2:]
    x, y = (np.minimum(np.arange(n), n - np.arange(n)) for n in (nx, ny))
    y = y if division.size == 1 else np.arange(octant.shape[2])

    # Each operand by itself: a batch may be divided over devices, and its shared filter is not.
    whole = jax.vmap(lambda octant: octant[x][:, y])(octant) * float(nx * ny * nz)
    modes = scaled(jax.vmap(lambda block: XLA().rfft(block, division))(mesh), whole)
    return jax.vmap(lambda modes: XLA().irfft(modes, nz, division))(modes)


def _attributes(mesh: Any, devices: Any, *, division: Division) -> dict[str, Any] | None:
    batch, planes, ny, nz = mesh.shape
    if batch > 1 and planes * ny * nz % 2:
        return None  # cuFFT needs real values aligned like complex ones, as those of a second mesh are not here
    return {"parts": np.array([1])} if division.size == 1 else group_attributes(devices, division.names, division.size)


def _scratch(mesh: Any, _: Any, roots: Any, *, division: Division) -> ShapedArray:
    """The spectrum of one mesh, and planes from other GPUs; between processes both are in mailboxes."""
    _, planes, ny, nz = mesh.shape
    spectra = 1 if division.size == 1 else 2 * division.shared_process
    return ShapedArray((spectra * planes * ny * (nz // 2 + 1),), roots.dtype)


_filtered_p = define_op(
    "peer_filtered",
    _aval,
    _reference,
    cuda=Target("jaxdecomp_ops_peer_filtered", _attributes, _scratch, in_place={0: 0}),
)


def _octant_transpose(ct: Array, mesh: Array, octant: Any, roots: Array, **params: Any) -> Array:
    """The cotangent of the filter: products of modes, summed over the signs of a frequency."""
    return jax.linear_transpose(lambda octant: _reference(mesh, octant, roots, **params), octant.aval)(ct)[0]


# The op is linear in mesh and filter, and symmetric in the mesh, since the filter is even.
define_derivatives(
    _filtered_p,
    (
        lambda t, _, octant, roots, **params: _filtered_p.bind(t, octant, roots, **params),
        lambda t, mesh, _, roots, **params: _filtered_p.bind(mesh, t, roots, **params),
        None,
    ),
    {0: lambda ct, _, octant, roots, **params: _filtered_p.bind(ct, octant, roots, **params), 1: _octant_transpose},
)
