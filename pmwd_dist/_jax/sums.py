"""Sums of what a function gives for some of many arguments, and their derivatives, for which the others cost nothing.

The derivative of a scan over all of them, with a switch in each turn, adds up cotangents of all operands in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist._jax.linear_map import linear_map
from pmwd_dist._jax.varying import vary, varying_names

Function = Callable[..., Sequence[Array]]


def sum_where(wanted: Array, function: Function, arguments: Array, *operands: Array) -> list[Array]:
    """Sums of the arrays that a function gives for each of the arguments that are wanted, one after the other.

    Args:
      wanted: (n,), without a batch axis and the same on all devices, which is not checked (see `batch_max`).
      function: of (argument, *operands), on which alone it depends.
      arguments: (n, ...), without a batch axis; not differentiated.
      operands: arrays of real numbers.
    """
    names = frozenset[str]().union(*map(varying_names, operands))

    def varying(*args: Array) -> list[Array]:
        return [vary(x, names) for x in function(*args)]

    return _sums(varying, names, wanted, arguments, *(vary(x, names) for x in operands))


def _sums(function: Function, names: frozenset[str], wanted: Array, arguments: Array, *operands: Array) -> list[Array]:
    results = jax.eval_shape(lambda *xs: list(function(*xs)), arguments[0], *operands)

    @jax.custom_jvp
    def run(wanted: Array, arguments: Array, *operands: Array) -> list[Array]:
        order = jnp.argsort(~wanted)

        def add(i: Array, sums: list[Array]) -> list[Array]:
            each = function(arguments[order[i]], *operands)
            return [total + x for total, x in zip(sums, each, strict=True)]

        zeros = [vary(jnp.zeros(x.shape, x.dtype), names) for x in results]
        return jax.lax.fori_loop(0, jnp.sum(wanted), add, zeros)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[list[Array], list[Array]]:
        out, count = run(*primals), len(primals) - 2
        residuals = [*primals, *out]
        like: Any = {"operands_like": range(2, 2 + count), "results_like": range(2 + count, len(residuals))}

        def tangent(argument: Array, *arrays: Array) -> Sequence[Array]:
            at, along = arrays[:count], arrays[count:]
            return jax.jvp(lambda *xs: list(function(argument, *xs)), at, along)[1]

        def cotangent(argument: Array, *arrays: Array) -> Sequence[Array]:
            at, cts = arrays[:count], list(arrays[count:])
            return jax.vjp(lambda *xs: list(function(argument, *xs)), *at)[1](cts)

        def of(each: Function) -> Function:
            """A function of (*residuals, *tangents or cotangents), the sum of one of these."""
            return lambda *args: _sums(each, names, *args[: 2 + count], *args[len(residuals) :])

        return out, linear_map(of(tangent), of(cotangent), residuals, list(tangents[2:]), **like)

    return run(wanted, arguments, *operands)
