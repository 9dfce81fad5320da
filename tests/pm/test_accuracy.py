"""What ten steps are worth, against eighty, at the resolution of a real run."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pmwd_dist as pmd

pytestmark = pytest.mark.slow


def test_ten_bullfrog_steps_are_right_to_a_percent(cosmo: object, single: pmd.Decomposition) -> None:
    """64^3 particles in 128 Mpc/h, 2LPT at a = 0.1: P(k) to 1 % and 1 - r to 1e-3, up to k = 1 h/Mpc."""
    with jax.enable_x64(False):
        runs = []
        for steps in (10, 80):  # whose own error is a sixtieth of that of ten
            config = pmd.Config(box_size=128.0, mesh_shape=64, steps=steps, decomposition=single)
            noise = pmd.white_noise(jax.random.key(0), config)
            particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
            solution = pmd.nbody(particles, cosmo, config).raise_if_failed()
            runs.append(np.asarray(pmd.density(solution.particles, config), float))
    auto = []
    for field in (*runs, runs[0] + runs[1]):
        spectrum = pmd.power_spectrum(field, config, deconvolve=False)
        auto.append(np.asarray(spectrum.power)[np.asarray(spectrum.k) <= 1])
    assert len(auto[0]) == 20
    few, many, total = auto
    cross = (total - few - many) / 2
    assert np.abs(few / many - 1).max() < 0.01
    assert (1 - cross / np.sqrt(few * many)).max() < 1e-3
