"""Samplers on fields divided over devices: no field is gathered, and chains are a batch beside space."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer.samplers import mclmc


def posterior_of(decomposition: pmd.Decomposition, cosmo: Any) -> tuple[infer.Posterior, Any]:
    config = pmd.Config(box_size=80.0, mesh_shape=8, decomposition=decomposition)
    forward = infer.LinearField(config, cosmo, bias="b1")
    model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5)}, infer.Gaussian(0.5))
    data = 1 + np.random.default_rng(0).standard_normal((8, 8, 8))
    posterior = model.condition(data)
    return posterior, model.draw(jax.random.key(0), b1=1.2)


def advance(key: Any, position: Any, posterior: infer.Posterior) -> Any:
    """Three steps of MCLMC, with a mass of its own for the parameter."""
    options = {"L": 20.0, "step_size": 3.0, "inverse_mass_matrix": {"noise": 1.0, "parameters": {"b1": 0.1}}}

    def once(state: Any, key: Any) -> Any:
        return mclmc.step(key, state, posterior.logdensity, **options)

    state = mclmc.init(key, position, posterior.logdensity)
    return jax.lax.scan(once, state, jax.random.split(key, 3))[0].position


def two_chains(position: Any) -> Any:
    return jax.random.split(jax.random.key(8), 2), jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), position)


@pytest.fixture(scope="module")
def expected(single: pmd.Decomposition, cosmo: Any) -> list[Any]:
    """Ends of two chains, one by one on one device."""
    posterior, position = posterior_of(single, cosmo)
    keys, positions = two_chains(position)
    run = eqx.filter_jit(advance)
    return [run(keys[i], jax.tree.map(lambda x, i=i: x[i], positions), posterior) for i in range(2)]


def close(ours: Any, theirs: Any) -> None:
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-9)


def test_chains_are_a_batch_axis_of_divided_fields(expected: list[Any], cosmo: Any) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    posterior, position = posterior_of(pmd.Decomposition(mesh=mesh, spec=P("x")), cosmo)
    keys, positions = two_chains(position)
    spread = jax.tree.map(lambda x: NamedSharding(mesh, P("chains", "x") if x.ndim > 1 else P("chains")), positions)

    @eqx.filter_jit
    def batch(keys: Any, positions: Any, posterior: Any) -> Any:
        return jax.vmap(lambda key, z: advance(key, z, posterior), spmd_axis_name="chains")(keys, positions)

    arguments = keys, jax.device_put(positions, spread), posterior
    program = batch.lower(*arguments).compile()
    both = program(*arguments)
    assert both["noise"].sharding.is_equivalent_to(spread["noise"], 4)
    gathered = re.findall(r"= [a-z]*\d*\[([\d,]*)\][^=]*? all-gather", program.compiled.as_text())
    assert all(np.prod([int(n) for n in shape.split(",") if n]) < 16 for shape in gathered)  # keys, not fields
    for i in range(2):
        close(jax.tree.map(lambda x, i=i: x[i], both), expected[i])
