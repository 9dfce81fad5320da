"""Checks of numbers that users pass, which raise ArgumentError; traced values are not checked."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from pmwd_dist._errors import ArgumentError


def check_number(
    value: Any,
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    unit: str = "",
    remedy: str = "",
    several: bool = False,
    constant: bool = False,
) -> None:
    """Raise ArgumentError unless a value is a finite number in a range, or several such numbers where they may be.

    Arrays on a device are checked only as constants of a program, since that waits for them.

    Args:
      value: number; list or array of numbers.
      name: name of the argument.
      low: least value of the range.
      high: largest value of the range.
      unit: unit of the range, such as "Mpc/h".
      remedy: advice, as in ArgumentError.
      several: whether the value may be a list or an array.
      constant: whether the value becomes a constant of a program.
    """
    leaves = jax.tree.leaves(value)
    if not constant and any(isinstance(x, jax.Array) for x in leaves):
        return
    try:
        values = np.asarray(None if any(isinstance(x, bool) for x in leaves) else value)
    except ValueError:  # lists of several lengths
        values = np.asarray(None)
    counts = several or values.ndim == 0
    if counts and values.dtype.kind in "iuf" and bool(np.all(np.isfinite(values) & (values >= low) & (values <= high))):
        return
    ends = f" from {low:g} to {high:g}" if math.isfinite(high) else f", {low:g} or more" if math.isfinite(low) else ""
    constraint = f"must be {'a' if counts else 'one'} finite number{ends}" + (f" {unit}" if unit and ends else "")
    raise ArgumentError(name, value, constraint, remedy, show_value=values.ndim == 0)


def check_ascending(values: Any, name: str, least: float = 0.0) -> None:
    """Raise ArgumentError unless a list holds finite numbers that ascend, from a least one on."""
    if isinstance(values, Tracer):
        return
    x = np.asarray(values, float)
    if not np.isfinite(x).all() or (x < least).any() or (np.diff(x) <= 0).any():
        raise ArgumentError(name, x.tolist(), f"must be finite and ascend from {least:g} or more", "sort them")


def check_shares(values: Any, name: str) -> None:
    """Raise ArgumentError unless all values are shares from 0 to 1, to the rounding of single precision."""
    if isinstance(values, Tracer):
        return
    with jax.ensure_compile_time_eval():
        low, high = float(values.min()), float(values.max())
    if not low >= 0:
        raise ArgumentError(name, low, "must not be negative", "pass shares from 0 to 1")
    if not high <= 1 + 1e-6:
        raise ArgumentError(name, high, "must not exceed 1", "pass shares from 0 to 1: divide it by its maximum")


def check_flag(value: Any, name: str) -> None:
    """Raise ArgumentError unless a value is true or false."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, value, "must be True or False")
