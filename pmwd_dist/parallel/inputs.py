"""Checks of the arrays that users pass: decomposition, whole shape, precision."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.parallel.decomposition import Decomposition, Shape3


def decomposition_of(
    x: Any, decomposition: Decomposition | None, name: str, *, spectrum: bool = False
) -> tuple[Decomposition, Shape3]:
    """The decomposition of a field or spectrum, as given or as its sharding says, and its whole shape.

    Raises:
      ValueError: something else than a decomposition, an array of other than three axes, or one without cells.
    """
    if len(x.shape) != 3 or min(x.shape) < 1:
        raise ValueError(f"{name}.shape={tuple(x.shape)} must be three numbers of cells; of a batch, use jax.vmap")
    if decomposition is None:
        decomposition = Decomposition.of(x, spectrum=spectrum)
    elif not isinstance(decomposition, Decomposition):
        raise ValueError(f"decomposition={decomposition!r} must be a Decomposition, such as Decomposition((4, 1))")
    return decomposition, decomposition.whole(x.shape, spectrum=spectrum)


def cells(shape: Sequence[Any], name: str) -> Shape3:
    """Numbers of cells as Python's own integers.

    Raises:
      ValueError: something else than three positive whole numbers.
    """
    try:
        nx, ny, nz = map(index, shape)
    except (TypeError, ValueError):
        nx = ny = nz = 0
    if min(nx, ny, nz) < 1:
        raise ValueError(f"{name}={shape} must be three positive numbers of cells")
    return nx, ny, nz


def real(x: Any, name: str, remedy: str = "pass its real and its imaginary part one by one") -> Array:
    """Real values in single or double precision: integers in JAX's default, half precision in single.

    Raises:
      ValueError: complex values.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"{name}.dtype={x.dtype} must be real; {remedy}")
    return _as(x, _precision(x.dtype))


def complex_(x: Any) -> Array:
    """Complex values in single or double precision."""
    return _as(x, jnp.result_type(_precision(x.dtype), jnp.complex64))


def _precision(dtype: Any) -> Any:
    return jnp.result_type(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _as(x: Any, dtype: Any) -> Array:
    return x if x.dtype == dtype else jnp.asarray(x, dtype)
