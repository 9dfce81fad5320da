"""Checks of the arrays that users pass: numbers, precision, decomposition and whole shape. They raise ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.parallel.decomposition import Decomposition, Shape3, as_decomposition


def check_on_host(function: str, values: Any) -> None:
    """Raise ValueError if arrays of a host function are traced, by jit or for a derivative."""
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(values)):
        raise ValueError(f"{function} is for the host, and its arrays are traced: call it on results, outside jit")


def numbers(x: Any, name: str) -> Any:
    """An array in a type that JAX has, from lists, other byte orders and extended precision too."""
    check_unmasked(x, name)
    if not isinstance(x, jax.Array | np.ndarray) or isinstance(x, np.ma.MaskedArray):
        try:
            x = np.asarray(x)
        except (TypeError, ValueError):
            x = np.asarray(None)
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):
        raise ArgumentError(f"{name}.dtype", str(x.dtype), "must be a type of numbers", "pass an array of numbers")
    if not isinstance(x, np.ndarray):
        return x
    widest = {"f": np.float64, "c": np.complex128}.get(x.dtype.kind)
    known = widest if widest and x.dtype.itemsize > np.dtype(widest).itemsize else x.dtype.newbyteorder("=")
    return x.astype(known, copy=False)


def check_unmasked(x: Any, name: str) -> None:
    """Raise ValueError if values of an array, or of arrays in a list, are masked by NumPy: JAX would lose the mask."""
    if any(map(np.ma.is_masked, x if isinstance(x, list | tuple) else (x,))):
        constraint = "is a masked array of NumPy, and its mask would be lost"
        remedy = "pass x.filled(0), and ~np.ma.getmaskarray(x) where there is an argument for a mask"
        raise ArgumentError(name, x, constraint, remedy, show_value=False)


def decomposition_of(
    x: Any, decomposition: Decomposition | None, name: str, *, spectrum: bool = False
) -> tuple[Decomposition, Shape3]:
    """The decomposition of a field or spectrum, by default from its sharding, and its whole shape."""
    x = numbers(x, name)
    if len(x.shape) != 3 or min(x.shape) < 1:
        raise ValueError(f"{name}.shape={tuple(x.shape)} must be three numbers of cells; of a batch, use jax.vmap")
    decomposition = Decomposition.of(x, spectrum=spectrum) if decomposition is None else as_decomposition(decomposition)
    return decomposition, decomposition.whole(x.shape, spectrum=spectrum)


def cells(shape: Sequence[Any], name: str) -> Shape3:
    """Numbers of cells as Python integers."""
    try:
        nx, ny, nz = map(index, shape)
    except (TypeError, ValueError):
        nx = ny = nz = 0
    if min(nx, ny, nz) < 1:
        raise ValueError(f"{name}={shape} must be three positive numbers of cells")
    return nx, ny, nz


def real(x: Any, name: str, remedy: str = "pass its real and its imaginary part one by one") -> Array:
    """Real values in single or double precision: integers in JAX's default, half precision in single."""
    x = numbers(x, name)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"{name}.dtype={x.dtype} must be real; {remedy}")
    return _as(x, _precision(x.dtype))


def complex_(x: Any, name: str) -> Array:
    """Complex values in single or double precision."""
    x = numbers(x, name)
    return _as(x, np.promote_types(_precision(x.dtype), np.complex64))


def whole_number(value: Any, name: str, *, least: int = 0, most: int | None = None) -> int:
    """A whole number, such as a number of cells, as a Python integer."""
    number = least - 1
    with suppress(TypeError, ValueError, OverflowError):
        if np.ndim(value) == 0 and not isinstance(value, bool | np.bool_):
            number = int(value)
    if number < least or number != value or (most is not None and number > most):
        ends = f", {least} or more" if most is None else f" from {least} to {most}"
        raise ArgumentError(name, value, f"must be a whole number{ends}")
    return number


def _precision(dtype: Any) -> Any:
    dtype = jax.dtypes.canonicalize_dtype(dtype)  # JAX would warn about double precision where it is disabled
    return np.promote_types(dtype, np.float32) if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _as(x: Any, dtype: Any) -> Array:
    return x if x.dtype == dtype and x.ndim else as_array(x, dtype)
