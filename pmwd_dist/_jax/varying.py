"""Types of arrays inside shard_map: over which manual mesh axes they vary. Depends on the version of JAX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.core import ShapedArray


def varying_names(x: Any) -> frozenset[str]:
    """The manual mesh axes over which an array varies."""
    return frozenset((x if isinstance(x, ShapedArray) else jax.typeof(x)).mat.varying)


def vary(x: jax.Array, names: Iterable[str]) -> jax.Array:
    """Mark an array as varying over these manual mesh axes."""
    missing = tuple(sorted(frozenset(names) - varying_names(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def unify_varying(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Mark all arrays as varying over the manual mesh axes over which any of them varies.

    A primitive of our own inside shard_map must do by hand what jax.numpy does for its operands.
    """
    union = frozenset[str]().union(*map(varying_names, arrays))
    return tuple(vary(x, union) for x in arrays)


def result_aval(operand: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Abstract value of a result that varies over the same manual axes as the operand."""
    spec = jax.P(*(None,) * len(shape))
    sharding = operand.sharding.update(spec=spec)
    return ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=operand.manual_axis_type)
