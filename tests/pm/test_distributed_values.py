"""The whole pipeline gives the same universe on every layout."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import problems
import pytest

import pmwd_dist as pmd


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    settings = {
        "box_size": (24.0, 36.0, 20.0),
        "mesh_shape": (8, 12, 10),
        "steps": 2,
        "halo": 6,
        "decomposition": decomposition,
    }
    return pmd.Config(**(settings | changes))


def universe(config: pmd.Config, cosmo: Any, seed: int = 1) -> dict[str, Any]:
    noise = pmd.white_noise(jax.random.key(seed), config)
    start = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
    end = pmd.nbody(start, cosmo, config).raise_if_failed().particles
    density = pmd.density(end, config)
    return {
        "start": start.disp,
        "disp": end.disp,
        "vel": end.vel,
        "density": density,
        "spectrum": pmd.power_spectrum(density, config).power,
    }


def test_every_layout_gives_the_same_universe(
    parallel: pmd.Decomposition, single: pmd.Decomposition, cosmo: Any
) -> None:
    """Mesh and lattice differ, one axis is odd, and a block is thinner than its halo."""
    changes = {"mesh_shape": (12, 12, 5), "particle_shape": (8, 12, 10)}
    ours = universe(configure(parallel, **changes), cosmo)
    reference = universe(configure(single, **changes), cosmo)
    assert np.abs(reference["disp"]).max() > 2
    for name in reference:
        expected = np.asarray(reference[name])
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-11 * np.abs(expected).max(), err_msg=name)
    for name in ("start", "disp", "vel", "density"):
        assert problems.has_sharding(ours[name], parallel.sharding), name
    assert ours["spectrum"].sharding.is_fully_replicated


@pytest.mark.slow
def test_float32_and_an_automatic_halo_agree_to_single_precision(single: pmd.Decomposition, cosmo: Any) -> None:
    # Four universes in one norm: in a single one of so few cells, one particle near a cell's face can decide.
    divided, whole = configure(pmd.Decomposition(pdims=(2, 2)), halo="auto"), configure(single)
    with jax.enable_x64(False):
        ours, reference = (
            np.stack([universe(config, cosmo, seed)["density"] for seed in range(4)]) for config in (divided, whole)
        )
    assert ours.dtype == np.float32
    assert np.linalg.norm(ours - reference) < 1e-5 * np.linalg.norm(reference)
