"""The programs that `sample` runs on divided fields: they gather none, and give the draws of one device."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.infer import sampling
from pmwd_dist.infer.chain.chain import Run, on_devices
from pmwd_dist.infer.tuning import loop

pytestmark = pytest.mark.slow


def posterior_of(decomposition: pmd.Decomposition, cosmo: Any) -> infer.Posterior:
    """Galaxies in redshift space, with an adapted preconditioner."""
    config = pmd.Config(80.0, 8, a_start=0.25, a_stop=0.5, steps=1, decomposition=decomposition, halo=2)
    observable = infer.LagrangianGalaxies(b1="b1", line_of_sight="z")
    forward = infer.Simulation(config, cosmo, observable=observable)
    model = infer.Model(config, forward, {"b1": infer.Normal(1.5, 0.5)}, infer.Gaussian(0.5))
    return model.condition(1 + np.random.default_rng(0).standard_normal((8, 8, 8)))


def begun(posterior: infer.Posterior, axis: str | None) -> Run:
    """Two chains as `sample` begins them, with a short step."""
    positions = {"noise": jnp.zeros((2, 8, 8, 8)), "parameters": {"b1": jnp.zeros(2)}}
    positions = on_devices(positions, posterior.model.config, axis)
    run = loop.begin(jax.random.key(0), positions, posterior, axis)
    return run._replace(tuning=run.tuning._replace(step_size=0.1 * run.tuning.step_size))


@pytest.mark.parametrize("method", ["mclmc", "hmc"])
def test_divided_chains_are_the_same_and_gather_no_field(method: Any, cosmo: Any) -> None:
    """A chunk of draws of galaxies: by MCLMC on pencils, and by HMC on slabs with an axis of the chains."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    chains = method == "hmc"
    axis, decomposition = ("chains", {"mesh": mesh, "spec": P("x")}) if chains else (None, {"pdims": (2, 2)})
    posterior, single = (posterior_of(pmd.Decomposition(**x), cosmo) for x in (decomposition, {"pdims": (1, 1)}))
    run = begun(posterior, axis)
    shards = [x.addressable_shards[0].data.size for x in jax.tree.leaves((run.states, run.moments)) if x.ndim > 2]
    assert shards == [256] * 3 + [256 if chains else 128] * 2  # none is whole, which a second program would be for
    arguments = jax.random.key(0), run, posterior, method, 1, 2, axis
    program = sampling._advance.lower(*arguments).compile()
    text = program.compiled.as_text()
    assert "all-to-all" in text or "collective-permute" in text  # transforms
    gathered = re.findall(r"= [a-z]*\d*\[([\d,]*)\][^=]*? all-gather", text)
    assert all(np.prod([int(n) for n in shape.split(",") if n]) < 16 for shape in gathered)  # keys, not fields
    ours = program(*arguments)
    expected = sampling._advance(jax.random.key(0), begun(single, None), single, method, 1, 2, None)
    assert np.ptp(expected[1]["parameter/b1"]) > 0
    for x, y in zip(
        jax.tree.leaves((ours[0].states, ours[1])), jax.tree.leaves((expected[0].states, expected[1])), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_a_narrow_halo_is_named_where_chains_begin(cosmo: Any) -> None:
    noise, shape = 5 * np.random.default_rng(0).standard_normal((1, 8, 8, 8)), (8, 8, 8)

    def narrow(halo: int) -> infer.Posterior:
        config = pmd.Config(80.0, shape, lpt_order=1, decomposition=pmd.Decomposition((1, 2)), halo=halo)
        forward = infer.Simulation(config, cosmo, gravity="lpt")
        return infer.Model(config, forward, {}, infer.Gaussian(0.5)).condition(1 + noise[0])

    posterior = narrow(1)
    white = posterior.from_latent({"noise": jnp.asarray(noise[0]), "parameters": {}})[0]
    modes, table = posterior.model.forward.linear_modes(white, {})
    disp = pmd.lpt(modes, table, posterior.model.config, a=1.0).disp
    cells = f"{float(jnp.abs(disp).max()) / 10:.2f} cells"
    where, remedy = sampling._at(posterior, {"noise": jnp.asarray(noise), "parameters": {}}, 0)
    assert where == ", where the prediction is not finite in 512 of 512 cells"
    assert remedy.startswith(f"a displacement of {cells} exceeds the halo of 1 cells in step 1; set halo to 7 or more")
    message = narrow(8).model.failure(white, {})  # of redshift space
    assert message.startswith(f"the largest displacement is {cells}, and redshift distortions may exceed the halo of 8")
