"""Time single ops: the median of calls that follow each other, and the bytes of their operands and results."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_ROUND_SECONDS = 0.1  # of a round of calls, at least


def seconds(function: Callable[..., Any], operands: Sequence[Any], *, carried: int = 0, rounds: int = 5) -> float:
    """Median seconds of a call, of rounds of calls without a wait between them; NaN if memory does not suffice.

    Args:
      function: to compile.
      operands: its arguments.
      carried: how many of the first arguments are taken by the next call from the first results, in whose memory they
        are, as in a loop of steps.
      rounds: after the first call.
    """
    try:
        return _seconds(function, operands, carried, rounds)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return float("nan")


def _seconds(function: Callable[..., Any], operands: Sequence[Any], carried: int, rounds: int) -> float:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        compiled = jax.jit(function, donate_argnums=range(carried)).lower(*operands).compile()
    kept = list(operands[carried:])
    moved = [jax.tree.map(jnp.copy, x) for x in operands[:carried]]

    def round_of(calls: int) -> float:
        nonlocal moved
        jax.block_until_ready(moved)
        began, out = time.perf_counter(), None
        for _ in range(calls):
            out = compiled(*moved, *kept)
            moved = list(out[:carried]) if carried else []
        jax.block_until_ready(out)
        return (time.perf_counter() - began) / calls

    round_of(1)
    calls = max(1, min(100, round(_ROUND_SECONDS / round_of(1))))
    return statistics.median(round_of(calls) for _ in range(rounds))


def bytes_of(function: Callable[..., Any], operands: Sequence[Any]) -> int:
    """Bytes of the operands, read once, and of the results, written once."""
    leaves = jax.tree.leaves((list(operands), jax.eval_shape(function, *operands)))
    return sum(x.size * x.dtype.itemsize for x in leaves)
