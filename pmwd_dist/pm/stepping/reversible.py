"""All steps with exact derivatives: the forward pass under a derivative rule, whose transpose is the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from pmwd_dist._jax.derivatives import hoist, linear_map
from pmwd_dist.config import Config
from pmwd_dist.cosmology.growth import GrowthTable
from pmwd_dist.pm.particles import ExactParticles, Particles, exact
from pmwd_dist.pm.solvers import Coefficients
from pmwd_dist.pm.status import Status
from pmwd_dist.pm.stepping.backward import evolve_vjp
from pmwd_dist.pm.stepping.forward import Accumulate, Epoch, Inputs, Outcome, Save, evolve
from pmwd_dist.pm.stepping.potential_cache import Stored, stored_potentials
from pmwd_dist.pm.stepping.step import all_steps, unit_after


def evolve_and_save(
    particles: Particles,
    schedule: tuple[GrowthTable, Array, Coefficients],
    config: Config,
    stored: Stored,
    functions: Sequence[Callable[..., Any]],
    plan: Sequence[Sequence[int]],
    accumulate: Accumulate | None = None,
    *,
    meter: Any = None,
) -> tuple[Particles, Any, Status, list[Any], list[Array]]:
    """Evolve particles, with reversible derivatives.

    The schedule holds growth table, scale factors at which steps begin and end, and coefficients of the steps.
    Functions of (scale factor, particles, growth table) are saved after the numbers of steps in `plan`. `accumulate` is
    a function of (epoch before, epoch after, growth table).

    Returns:
      Particles at the end, the sum, the status, saved values, and the scale factors of the saves, infinite after a
      failure.
    """
    table, times, coefficients = schedule
    # Functions may hold arrays that are differentiated.
    saves, captured = [], []
    for function, steps in zip(functions, plan, strict=True):
        pure, values = hoist(function, times[0], particles, table)
        saves.append(Save(tuple(sorted(set(steps))), partial(_call_hoisted, pure, len(captured))))
        captured.append(values)
    if accumulate is not None:
        epoch = Epoch(times[0], particles)
        pure, values = hoist(accumulate, epoch, epoch, table)
        accumulate = partial(_call_hoisted, pure, len(captured))
        captured.append(values)
    inputs = Inputs(exact(particles, config), coefficients, times, (table, captured))
    dtype, sums = particles.disp.dtype, accumulate is not None
    number = stored_potentials(stored, len(times) - 1, config, dtype, sums=sums)
    out = evolve_reversibly(inputs, tuple(saves), config, accumulate=accumulate, stored=number, meter=meter)
    final = out.particles.with_unit(unit_after(out.status.step, all_steps(coefficients, config)))
    saved, saved_at = [], []
    for save, steps, values in zip(saves, plan, out.saved, strict=True):
        order = np.asarray([save.steps.index(step) for step in steps])
        each_once = len(steps) == len(save.steps)
        saved.append(values if each_once else jax.tree.map(lambda x, order=order: x[order], values))
        reached = np.asarray(steps, np.int32) <= out.status.step
        saved_at.append(jnp.where(reached, times[np.asarray(steps)], jnp.inf))
    return final, out.accumulated, out.status, saved, saved_at


def _call_hoisted(pure: Callable[..., Any], index: int, *args: Any) -> Any:
    """Call a function of `hoist`; the last argument has the growth table, and the arrays of all functions."""
    table, captured = args[-1]
    return pure(captured[index], *args[:-1], table)


def evolve_reversibly(
    inputs: Inputs,
    saves: tuple[Save, ...],
    config: Config,
    *,
    accumulate: Accumulate | None = None,
    stored: int = 0,
    meter: Any = None,
) -> Outcome:
    """`evolve`, whose reverse derivative computes every earlier state from the last one.

    All modes of differentiation work. Reverse over reverse stores all states of the backward pass. Potentials are
    stored only if a derivative is taken. Derivatives don't show their progress.
    """
    forward = partial(evolve, saves=saves, config=config, accumulate=accumulate)
    backward = partial(evolve_vjp, saves=saves, config=config, accumulate=accumulate)

    def storing(number: int) -> Callable[[Inputs], Outcome]:
        @jax.custom_jvp
        def run(inputs: Inputs) -> Outcome:
            return forward(inputs, stored=number, meter=meter)

        @partial(run.defjvp, symbolic_zeros=True)
        def rule(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Outcome, Outcome]:
            out = (run if number == stored else storing(stored))(*primals)
            tangent = _tangent(*primals, out, jax.tree.leaves(tangents), forward, backward)
            if number == stored:
                return out, tangent
            return out._replace(potentials=()), tangent._replace(potentials=())

        return run

    return storing(0)(inputs)


def _tangent(
    inputs: Inputs,
    outcome: Outcome,
    tangents: Sequence[Any],
    forward: Callable[[Inputs], Outcome],
    backward: Callable[..., tuple[ExactParticles, Inputs]],
) -> Outcome:
    """Tangent of the outcome: a linear map with the transpose `evolve_vjp`."""
    primals, treedef = jax.tree.flatten(inputs)
    results, results_treedef = jax.tree.flatten(outcome)
    first, end = len(primals), len(primals) + len(results)  # in the arguments of the map and of its transpose
    factor = treedef.unflatten(range(first)).coefficients.factor  # the index, or None
    input_ids = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero) and _is_inexact(primals[i])]
    # The status and integers, such as potentials, have no derivatives.
    count = len(jax.tree.leaves((outcome.particles, outcome.saved, outcome.accumulated)))
    result_ids = [i for i in range(count) if _is_inexact(results[i])]

    def apply(*args: Any) -> Sequence[Any]:
        def function(*changed: Any) -> Sequence[Any]:
            values = dict(enumerate(args[:first])) | dict(zip(input_ids, changed, strict=True))
            out = jax.tree.leaves(forward(treedef.unflatten(values.values())))
            return [out[i] for i in result_ids]

        return jax.jvp(function, tuple(args[i] for i in input_ids), tuple(args[end:]))[1]

    def transpose(*args: Any) -> Sequence[Any]:
        cotangents = dict(zip(result_ids, args[end:], strict=True))
        by_result = results_treedef.unflatten([cotangents.get(i) for i in range(end - first)])
        inputs, outcome = treedef.unflatten(args[:first]), results_treedef.unflatten(args[first:end])
        _, by_input = backward(inputs, outcome, by_result, by_factor=factor in input_ids)
        return [jax.tree.leaves(by_input)[i] for i in input_ids]

    out = linear_map(
        apply,
        transpose,
        [*primals, *results],
        [tangents[i] for i in input_ids],
        operands_like=input_ids,
        results_like=[first + i for i in result_ids],
    )
    by_id = dict(zip(result_ids, out, strict=True))
    none = [jnp.zeros_like(x) if _is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0) for x in results]
    return results_treedef.unflatten([by_id.get(i, x) for i, x in enumerate(none)])


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))
