"""Real transforms of a block on one device, with transposes that stay real.

JAX transposes a real transform through a full complex one, with twice the work and memory. The transpose of R2C is a
C2R with weights on the planes of kz, and the other way round.

XLA's transforms on CPUs run on one thread inside a larger program, so they are native ops there.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pmwd_dist._jax import native
from pmwd_dist._jax.arithmetic import scaled
from pmwd_dist._jax.ops import Target, add_batch_axis, define_linear, define_op, drop_batch_axis, result_aval


def rfft(block: Array, rank: int) -> Array:
    """Transform a real block, shape (nx, ny, nz), along the last `rank` axes."""
    return drop_batch_axis(_rfft_p.bind(add_batch_axis(block), rank=rank))


def irfft(block: Array, nz: int, rank: int) -> Array:
    """Invert `rfft`; nz is the extent of the real block."""
    return drop_batch_axis(_irfft_p.bind(add_batch_axis(block), nz=nz, rank=rank))


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(4 - rank, 4))


def _rfft_aval(x: Any, **_: Any) -> Any:
    return result_aval(x, (*x.shape[:3], x.shape[3] // 2 + 1), np.result_type(x.dtype, np.complex64))


def _irfft_aval(x: Any, *, nz: int, **_: Any) -> Any:
    return result_aval(x, (*x.shape[:3], nz), np.zeros((), x.dtype).real.dtype)


def _attributes(block: Any, rank: int) -> dict[str, Any] | None:
    """Attributes of the native ops, which do not transform empty blocks."""
    return {"rank": np.array([rank])} if native.native_available() and 0 not in block else None


_rfft_p = define_op(
    "rfft",
    _rfft_aval,
    lambda x, *, rank: jnp.fft.rfftn(x, axes=_axes(rank)),
    cpu=Target("jaxdecomp_ops_rfft", lambda x, _, rank: _attributes(x.shape, rank)),
)


# With this many values or more, XLA on GPUs omits the division by their number.
_LARGEST_INVERSE = 2**31


def _irfft_reference(x: Array, *, nz: int, rank: int) -> Array:
    count = math.prod(x.shape[:3]) * nz
    if count < _LARGEST_INVERSE:
        return jnp.fft.irfftn(x, s=(*x.shape[4 - rank : 3], nz), axes=_axes(rank))
    if rank == 3:  # x first, so that the loop can run over it
        inverse = jnp.conj(jnp.fft.fft(jnp.conj(x), axis=1)) / x.shape[1]
        return _irfft_reference(inverse, nz=nz, rank=2)
    axis = 0 if x.shape[0] > x.shape[1] else 1
    pieces = jnp.array_split(x, min(x.shape[axis], -(-count // (_LARGEST_INVERSE - 1))), axis=axis)
    return jnp.concatenate([_irfft_reference(piece, nz=nz, rank=rank) for piece in pieces], axis=axis)


def _irfft_attributes(x: Any, _: Any, *, nz: int, rank: int) -> dict[str, Any] | None:
    return _attributes((*x.shape[:3], nz), rank) if x.shape[3] == nz // 2 + 1 else None


# The op overwrites the spectrum, and XLA copies a spectrum that is needed afterwards.
_irfft_on_cpu = Target("jaxdecomp_ops_irfft", _irfft_attributes, scratch=lambda x, **_: x, lends=lambda *_, **__: True)
_irfft_p = define_op("irfft", _irfft_aval, _irfft_reference, cpu=_irfft_on_cpu)


def multiplicity(nz: int, dtype: Any) -> np.ndarray:
    """Number of modes, 1 or 2, that a value at each kz represents, with its conjugate."""
    weight = np.full(nz // 2 + 1, 2, dtype)
    weight[0] = 1
    if nz % 2 == 0:
        weight[-1] = 1
    return weight


def _rfft_transpose(ct: Array, x: Any, *, rank: int) -> Array:
    nz = x.shape[3]
    weight = math.prod(x.shape[4 - rank :]) / multiplicity(nz, x.dtype)[None, None, None]
    return _irfft_p.bind(scaled(jnp.conj(ct), weight), nz=nz, rank=rank)


def _irfft_transpose(ct: Array, _: Any, *, nz: int, rank: int) -> Array:
    weight = multiplicity(nz, ct.dtype)[None, None, None] / math.prod(ct.shape[4 - rank :])
    return scaled(jnp.conj(_rfft_p.bind(ct, rank=rank)), weight)


define_linear(_rfft_p, _rfft_transpose)
define_linear(_irfft_p, _irfft_transpose)
