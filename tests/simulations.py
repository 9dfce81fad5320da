"""Tiny simulations that tests share, and the programs of which they read from the folder of compiled ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import problems

import pmwd_dist as pmd

COSMO = problems.cosmology()


def configure(layout: Any = (1, 1), **changes: Any) -> pmd.Config:
    settings: dict[str, Any] = {"box_size": 24.0, "mesh_shape": 8, "steps": 4, "halo": 4, "lpt_order": 1}
    return pmd.Config(**settings | changes, decomposition=layout)


def initial(config: pmd.Config, cosmo: Any = COSMO, dtype: Any = None) -> pmd.Particles:
    """Particles of LPT from random noise, which layouts and numbers of steps share."""
    alone = replace(config, decomposition=pmd.Decomposition((1, 1)), steps=1)
    noise = pmd.white_noise(jax.random.key(0), alone, dtype)
    particles = jax.device_get(pmd.lpt(pmd.linear_modes(noise, cosmo, alone), cosmo, alone))
    return jax.device_put(particles, config.decomposition.sharding)


def moved(particles: pmd.Particles, disp: Any) -> pmd.Particles:
    return pmd.Particles(particles.disp + disp, particles.vel)
