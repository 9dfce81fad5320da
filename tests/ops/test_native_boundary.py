"""Calls of the native targets that no caller of this package makes: errors or results, never a crash."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd
from pmwd_dist._jax import native

pytestmark = pytest.mark.skipif(not pmd.native_available(), reason="the native ops are not installed")


def call(name: str, out: tuple[int, ...], *operands: Any, **attributes: Any) -> np.ndarray:
    """Call a native target on arrays of float32."""
    assert native.native_available()
    geometry = {
        "spacing_num": np.ones(3, np.int64),
        "spacing_den": np.ones(3, np.int64),
        "origin": np.zeros(3, np.int64),
        "periodic": np.ones(3, np.int64),
        "scale": np.ones(3),
        "masks": np.zeros(3, np.int64),
    }
    result = jax.ShapeDtypeStruct(out, jnp.float32)
    return np.asarray(jax.ffi.ffi_call(f"jaxdecomp_ops_{name}", result)(*operands, **geometry | attributes))


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


@pytest.mark.parametrize("origin", [-(1 << 63), -(1 << 30), 1 << 30])
def test_origins_beyond_32_bits_are_errors(origin: int) -> None:
    disp, weight = zeros(1, 2, 2, 2, 3), zeros(1, 1, 1, 1, 1, 1)
    with pytest.raises(Exception, match=r"axis y: 2 sites 1/1 cells apart from cell .* exceed 2\^30 cells"):
        call("cic_paint", (1, 2, 2, 2, 1), disp, weight, origin=np.array([0, origin, 0]))


@pytest.mark.parametrize(("num", "den"), [(1 << 62, 1 << 62), (-1, 1), (1, 0), (1, -(1 << 63))])
def test_spacings_whose_products_overflow_are_errors(num: int, den: int) -> None:
    disp, weight = zeros(1, 4, 1, 1, 3), zeros(1, 1, 1, 1, 1, 1)
    spacing = {"spacing_num": np.array([num, 1, 1]), "spacing_den": np.array([den, 1, 1])}
    with pytest.raises(Exception, match=r"spacing of axis x: expected 0 <= num < 2\^30 and 0 < den < 2\^30"):
        call("cic_paint", (1, 4, 1, 1, 1), disp, weight, **spacing)


def test_arrays_without_elements() -> None:
    weight, no_fields = zeros(1, 1, 1, 1, 1, 1), zeros(1, 2, 2, 2, 0)
    assert not call("cic_paint", (1, 2, 2, 2, 1), zeros(1, 2, 2, 0, 3), weight).any()
    assert call("cic_paint", (1, 2, 2, 2, 0), zeros(1, 2, 1, 1, 3), zeros(1, 1, 1, 1, 1, 0)).size == 0
    assert call("cic_read", (0, 2, 1, 1, 1, 1), zeros(0, 2, 1, 1, 3), zeros(0, 2, 2, 2, 1)).size == 0
    over_fields = {"over_masks": np.array([0])}
    operands = zeros(1, 2, 1, 1, 3), no_fields, zeros(1, 2, 1, 1, 1, 0)
    assert not call("cic_read_sum", (1, 2, 1, 1, 1, 1), *operands, **over_fields).any()


def test_a_gradient_of_one_of_no_fields_is_an_error() -> None:
    weights = {"near": np.ones(3), "far": np.ones(3), "periodic": np.ones(3, np.int64)}
    result, fields = jax.ShapeDtypeStruct((1, 2, 2, 2, 3), jnp.float32), jnp.zeros((1, 0, 2, 2, 2), jnp.int32)
    gradient_at = jax.ffi.ffi_call("jaxdecomp_ops_gradient_at", result)
    with pytest.raises(Exception, match="expected at least one field of 4 axes"):
        np.asarray(gradient_at(fields, jnp.zeros(1, jnp.int32), **weights))
