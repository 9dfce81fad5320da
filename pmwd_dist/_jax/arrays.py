"""Arrays that users pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def as_array(x: Any, dtype: Any = float) -> jax.Array:
    """`jnp.asarray`, whose transfer from the host is explicit: `jax.transfer_guard` allows it."""
    if isinstance(x, bool | int | float | complex | np.generic | np.ndarray):
        return jax.device_put(np.asarray(x, jax.dtypes.canonicalize_dtype(dtype)))
    return jnp.asarray(x, dtype)


def on_host(function: Callable[[np.ndarray], Any], x: Any, least: int = 4096) -> np.ndarray:
    """A function of each number, on the host: `least` numbers or more share one compiled program of each size."""
    x = np.asarray(x, float)
    return np.asarray(function(np.resize(x, max(x.size, least))), float)[: x.size].reshape(x.shape)
