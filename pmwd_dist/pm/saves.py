"""Times at which snapshots are saved, and the steps before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import diffrax
import jax
import numpy as np
from jax.core import Tracer

from pmwd_dist._errors import ArgumentError
from pmwd_dist._jax.arrays import as_array
from pmwd_dist.config import Config
from pmwd_dist.parallel.inputs import real
from pmwd_dist.pm.particles import Origin, Particles
from pmwd_dist.pm.time_steps import SLACK, knots_of, shares_of

_UNCHANGED = diffrax.SubSaveAt(t1=True).fn


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
        if not config.a_start - SLACK * config.a_stop <= a <= config.a_stop * (1 + SLACK):
            raise ValueError(f"saveat time a={a:g} lies outside a_start={config.a_start} .. a_stop={config.a_stop}")
    return tuple(times)


def planned_steps(
    subs: Sequence[diffrax.SubSaveAt], times: Sequence[float], controller: Any, config: Config
) -> tuple[tuple[int, ...], ...] | None:
    """Numbers of steps before each save, for each of the subs; None if they are not known before the run.

    `times` are all save times of the run. Without a controller the steps are the default ones.

    Raises:
      ValueError: a diffrax.StepTo that doesn't lead from a_start to a_stop.
    """
    if any(sub.steps for sub in subs) or not isinstance(controller, diffrax.StepTo | None):
        return None
    if controller is None:
        knots = knots_of(config, times)
        ends, after = np.asarray(knots), np.cumsum([0, *shares_of(knots, config.steps)])
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
    saved: list[int] = []
    if sub.ts is not None:
        if isinstance(ends, Tracer):
            return None
        wanted, ends = np.asarray(sub.ts, float), np.asarray(ends, float)
        saved = [int(np.abs(ends - a).argmin()) for a in wanted]
        if not np.allclose(ends[saved], wanted, rtol=0, atol=SLACK * ends[-1]):
            return None
    return tuple(int(after[i]) for i in [0] * sub.t0 + saved + [-1] * sub.t1)


def with_origins(saved: Sequence[Any], subs: Sequence[diffrax.SubSaveAt], config: Config) -> list[Any]:
    """Results of each of the subs; snapshots, which no function changed, know their box and scale factors."""
    return [_dated(x, sub, config) if sub.fn is _UNCHANGED else x for x, sub in zip(saved, subs, strict=True)]


def _dated(snapshots: Particles, sub: diffrax.SubSaveAt, config: Config) -> Particles:
    times = [] if sub.ts is None else np.asarray(sub.ts, float).tolist()
    times = [config.a_start] * sub.t0 + times + [config.a_stop] * sub.t1
    origin = Origin(box_size=config.box_size, times=() if sub.steps else tuple(times))
    return Particles(snapshots.disp, snapshots.vel, origin=origin)


def _check_step_ends(step_ends: Any, config: Config) -> None:
    """Raise ValueError unless given steps lead from a_start to a_stop; traced steps are not checked."""
    if isinstance(step_ends, Tracer):
        return
    ends, span = np.asarray(step_ends, float), (config.a_start, config.a_stop)
    if not (np.allclose(ends[[0, -1]], span, rtol=SLACK, atol=0) and (np.diff(ends) > 0).all()):
        constraint = f"must rise from a_start={span[0]} to a_stop={span[1]}"
        raise ArgumentError("stepsize_controller.ts", ends.tolist(), constraint)


def is_sub(x: Any) -> bool:
    """Whether a node of `diffrax.SaveAt.subs` is a leaf."""
    return isinstance(x, diffrax.SubSaveAt)
