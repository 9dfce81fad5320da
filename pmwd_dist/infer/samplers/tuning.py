"""Tune samplers: a run of them whose blocks a search learns from (`search`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array

from pmwd_dist.infer.samplers.blocks import Block
from pmwd_dist.infer.samplers.isokinetic import IntegratorState
from pmwd_dist.infer.samplers.methods import Method, Tuning, tilted
from pmwd_dist.infer.samplers.search import Search

Run = Callable[[Array, IntegratorState, Tuning, Method], tuple[IntegratorState, Block]]


def tune(
    key: Array,
    states: IntegratorState,
    run: Run,
    renew: Callable[[IntegratorState, Search], IntegratorState],
    search: Search,
    listener: Callable[[Search, IntegratorState], None] | None = None,
    adapt: Callable[[IntegratorState, Search], tuple[IntegratorState, float]] | None = None,
) -> tuple[IntegratorState, Tuning]:
    """Run a batch of chains, and find the parameters that they share.

    Args:
      key: of jax.random.
      states: from `mclmc.init`, with a leading axis of chains.
      run: function (key, states, tuning, method) -> (states, blocks), such as `run_blocks`, jitted.
      renew: function (states, search) -> states at the same positions, evaluated anew, of the density with the weight
        of the likelihood that is due.
      search: where it begins, or goes on.
      listener: called after each block.
      adapt: function (states, search) -> (states, longest step per root of the dimensions), which adapts positions to
        what blocks have shown when it is due.

    Returns:
      The last states, of the density with the tilt, and the parameters.
    """
    while not search.done:
        if search.renews:
            states = renew(states, search)
        moved, block = run(jax.random.fold_in(key, search.count), states, search.tuning(), search.method)
        if search.take(jax.tree.map(np.asarray, block)):
            states = moved
        if search.due and adapt is not None:
            states, longest = adapt(states, search)
            search.adapted(longest)
        if listener is not None:
            listener(search, states)
    tuning = search.tuning()
    return jax.vmap(lambda state: tilted(state, tuning))(states), tuning
