"""Begin the chains of a run: states of their positions, or what is wrong with these."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from pmwd_dist.infer import adaptation
from pmwd_dist.infer.model import Position, Posterior
from pmwd_dist.infer.samplers import mclmc
from pmwd_dist.infer.samplers.methods import Tuning
from pmwd_dist.infer.state import Moments, Run
from pmwd_dist.pm.status import SimulationError

_ELSEWHERE = "begin elsewhere, as with another seed or narrower priors, or look at the simulation there"


def begun(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> Run:
    """The chains before tuning, or SimulationError."""
    run = begin(key, positions, posterior, axis)
    for what, tree in (
        ("log density", run.states.logdensity),
        ("slope of the log density", run.states.logdensity_grad),
    ):
        fine = [np.asarray(jnp.isfinite(x).all(axis=tuple(range(1, x.ndim)))) for x in jax.tree.leaves(tree)]
        wrong = np.flatnonzero(~np.all(fine, axis=0))
        if wrong.size:
            where = f"{wrong.size} of {len(fine[0])} chains begin, as chain {wrong[0]} does"
            raise SimulationError(
                f"the {what} is not finite where {where}{_at(posterior, positions, int(wrong[0]))}; {_ELSEWHERE}"
            )
    return run


def _at(posterior: Posterior, positions: Position, chain: int) -> str:
    """Parameters where a chain begins, and what is odd about the field that is predicted there."""
    position = jax.tree.map(lambda x: x[chain], positions)
    numbers = posterior.parameters(position)
    field, fine = eqx.filter_jit(lambda p, z: p.model.predict(*p.unwhiten(z)))(posterior, position)
    there = " with " * bool(numbers) + ", ".join(f"{name} = {float(x):.4g}" for name, x in numbers.items())
    if not fine:
        return f"{there}, where the simulation fails"
    counts = {"negative": int(jnp.sum(field < 0)), "not finite": int(jnp.sum(~jnp.isfinite(field)))}
    odd = " and ".join(f"{what} in {count} of {field.size} cells" for what, count in counts.items() if count)
    return f"{there}, where the prediction is {odd}" if odd else there


@eqx.filter_jit
def begin(key: Array, positions: Position, posterior: Posterior, axis: str | None) -> Run:
    """The chains at their positions, before any tuning."""
    keys = jax.random.split(key, positions["noise"].shape[0])
    start = partial(mclmc.init, logdensity=posterior.logdensity)
    states = jax.vmap(start, spmd_axis_name=axis)(keys, positions)
    # Divided as steps return them: XLA would keep whole fields of what depends on no other field.
    field = posterior.model.config.decomposition.sharding
    fields = NamedSharding(field.mesh, PartitionSpec(axis, *field.spec))
    momentum = jax.lax.with_sharding_constraint(states.momentum["noise"], fields)
    states = states._replace(momentum=states.momentum | {"noise": momentum})
    one = jnp.ones((), states.logdensity.dtype)
    each = jax.tree.map(lambda _: one, positions)
    tuning = Tuning(one, one, each, each)
    empty = jax.lax.with_sharding_constraint(jnp.zeros_like(positions["noise"][0]), field)
    return Run(states, tuning, Moments(jnp.zeros(()), empty, empty), adaptation.start(posterior))
