"""Scale factors of the steps, and the steps after which snapshots are saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable, growth_table_to
from pmwd_dist.cosmology.parameters import Cosmology
from pmwd_dist.parallel.inputs import real

_SLACK = 1e-6  # relative: diffrax.SaveAt has times in single precision


def step_times(cosmo: Cosmology | GrowthTable, config: Config, *, save: Sequence[float] = ()) -> Float[Array, " times"]:
    """Scale factors at which steps begin and end, from a_start to a_stop.

    Steps end at all save times, and are uniform in the growth factor between them. `config.steps` are distributed over
    these intervals by their lengths in a, at least one each, independently of the cosmology.
    """
    knots = _knots(config, save)
    return _times(growth_table_to(config.lpt_order, cosmo), tuple(knots), tuple(_shares(knots, config.steps)))


@partial(jax.jit, static_argnames=("knots", "shares"))
def _times(table: GrowthTable, knots: tuple[float, ...], shares: tuple[int, ...]) -> Array:
    """The knots, exactly, and times between them, uniform in the growth factor; shares: steps from knot to knot."""
    ends = jnp.asarray(knots, table.factors.dtype)
    D = table.D1(ends)
    parts = [D[i] + (D[i + 1] - D[i]) * jnp.arange(1, count, dtype=D.dtype) / count for i, count in enumerate(shares)]
    inner = table.scale_factor(jnp.concatenate(parts))
    after = np.cumsum([0, *shares])  # steps before each knot
    order = np.argsort(np.append(after, np.delete(np.arange(after[-1]), after[:-1])))
    return jnp.concatenate([ends, inner]).at[order].get(unique_indices=True, mode="promise_in_bounds")


def as_saveat(saveat: Any) -> diffrax.SaveAt | None:
    """A diffrax.SaveAt, from one or from scale factors.

    Raises:
      ValueError: neither of them, or scale factors that don't rise.
    """
    if isinstance(saveat, diffrax.SaveAt) and saveat.dense:
        raise ArgumentError("saveat", "SaveAt(dense=True)", "has no dense output", "name the scale factors to save at")
    if saveat is None or isinstance(saveat, diffrax.SaveAt):
        return saveat
    with jax.ensure_compile_time_eval():  # concrete inside jit, for `save_times`
        times = np.atleast_1d(real(saveat, "saveat"))
    if times.ndim != 1 or not len(times):
        raise ArgumentError("saveat", saveat, "must be one scale factor or more", "for example [0.5, 1.0]")
    if (np.diff(times) <= 0).any():
        raise ArgumentError("saveat", saveat, "must rise", "sort its scale factors")
    with jax.ensure_compile_time_eval():
        return diffrax.SaveAt(ts=as_array(times))


def save_times(subs: Sequence[diffrax.SubSaveAt], config: Config) -> tuple[float, ...]:
    """All save times.

    Raises:
      ValueError: times outside the time span, that don't rise, or that are traced: inside a sharded program a failed
        check would hang.
    """
    for sub in subs:
        if isinstance(sub.ts, Tracer):
            raise ArgumentError("saveat", "SaveAt", "was made inside jit", "pass a list of scale factors instead")
        if sub.ts is not None and (np.diff(np.asarray(sub.ts)) < 0).any():
            raise ArgumentError("saveat", np.asarray(sub.ts).tolist(), "must rise", "sort its scale factors")
    times = [float(a) for sub in subs if sub.ts is not None for a in np.asarray(sub.ts, float)]
    for a in times:
        if not config.a_start - _SLACK * config.a_stop <= a <= config.a_stop * (1 + _SLACK):
            raise ValueError(f"saveat time a={a:g} lies outside a_start={config.a_start} .. a_stop={config.a_stop}")
    return tuple(times)


def planned_steps(
    subs: Sequence[diffrax.SubSaveAt], times: Sequence[float], controller: Any, config: Config
) -> tuple[tuple[int, ...], ...] | None:
    """Numbers of steps before each save, for each of the subs; None if they are not known before the run.

    Args:
      subs: the saves of a diffrax.SaveAt.
      times: all save times of the run.
      controller: a step size controller of diffrax, or None for the default steps.
      config: the simulation.

    Raises:
      ValueError: a diffrax.StepTo that doesn't lead from a_start to a_stop.
    """
    if any(sub.steps for sub in subs) or not isinstance(controller, diffrax.StepTo | None):
        return None
    if controller is None:
        knots = _knots(config, times)
        ends, after = np.asarray(knots), np.cumsum([0, *_shares(knots, config.steps)])
    else:
        _check_step_ends(controller.ts, config)
        ends, after = controller.ts, np.arange(len(controller.ts))
    plans = [_plan(sub, ends, after) for sub in subs]
    return None if None in plans else tuple(plan for plan in plans if plan is not None)


def _plan(sub: diffrax.SubSaveAt, ends: Any, after: np.ndarray) -> tuple[int, ...] | None:
    """Numbers of steps before each save, in the order of diffrax: at the start, at its times, at the end.

    Args:
      sub: the saves.
      ends: scale factors at which some steps end, and the start.
      after: number of steps before each of them.

    Returns:
      The numbers; None if a save time is none of the ends.
    """
    own: list[int] = []
    if sub.ts is not None:
        if isinstance(ends, Tracer):
            return None
        wanted, ends = np.asarray(sub.ts, float), np.asarray(ends, float)
        own = [int(np.abs(ends - a).argmin()) for a in wanted]
        if not np.allclose(ends[own], wanted, rtol=0, atol=_SLACK * ends[-1]):
            return None
    return tuple(int(after[i]) for i in [0] * sub.t0 + own + [-1] * sub.t1)


def _check_step_ends(step_ends: Any, config: Config) -> None:
    """Raise ValueError unless given steps lead from a_start to a_stop; traced steps are not checked."""
    if isinstance(step_ends, Tracer):
        return
    ends, span = np.asarray(step_ends, float), (config.a_start, config.a_stop)
    if not (np.allclose(ends[[0, -1]], span, rtol=_SLACK, atol=0) and (np.diff(ends) > 0).all()):
        raise ArgumentError(
            "stepsize_controller.ts", ends.tolist(), f"must rise from a_start={span[0]} to a_stop={span[1]}"
        )


def _knots(config: Config, save: Sequence[float]) -> list[float]:
    """Ends of the time span, and the save times between them."""
    inner = {float(a) for a in save if config.a_start * (1 + _SLACK) < a < config.a_stop * (1 - _SLACK)}
    return [config.a_start, *sorted(inner), config.a_stop]


def _shares(knots: Sequence[float], steps: int) -> list[int]:
    """Number of steps of each interval, at least one: the longest steps in a, which is close to growth, are split."""
    lengths = np.diff(knots)
    counts = np.ones(len(lengths), int)
    for _ in range(steps - len(lengths)):
        counts[np.argmax(lengths / counts)] += 1
    return [int(n) for n in counts]


def is_sub(x: Any) -> bool:
    """Whether a node of `diffrax.SaveAt.subs` is a leaf."""
    return isinstance(x, diffrax.SubSaveAt)
