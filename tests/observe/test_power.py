"""Power spectra against mode-by-mode numpy, on one device, slabs and pencils, and against powerbox."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import powerbox
import problems
import pytest

import pmwd_dist as pmd


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(
        **({"box_size": (10.0, 13.0, 7.0), "mesh_shape": (8, 12, 7), "decomposition": decomposition} | changes)
    )


@pytest.mark.parametrize(
    ("decomposition", "nz", "deconvolve"),
    [((1, 1), 7, False), ((1, 1), 10, True), ((4, 1), 10, False), ((2, 2), 7, True)],
    ids=str,
    indirect=["decomposition"],
)
def test_spectrum_matches_numpy(decomposition: pmd.Decomposition, nz: int, deconvolve: bool) -> None:
    config = configure(decomposition, mesh_shape=(8, 12, nz))
    field = np.random.default_rng(0).standard_normal(config.mesh_shape)
    spectrum = pmd.power_spectrum(field, config, deconvolve=deconvolve)
    k, power, modes = problems.power_spectrum(field, config.box_size, deconvolve=deconvolve)
    np.testing.assert_allclose(spectrum.k, k, rtol=1e-13)
    np.testing.assert_allclose(spectrum.power, power, rtol=1e-12)
    np.testing.assert_array_equal(spectrum.modes, modes)
    assert spectrum.power.sharding.is_fully_replicated


def test_spectrum_matches_powerbox(single: pmd.Decomposition) -> None:
    n, length = 16, 40.0
    config = configure(single, box_size=length, mesh_shape=n)
    field = 1 + np.random.default_rng(1).standard_normal((n, n, n))
    spectrum = pmd.power_spectrum(field, config, deconvolve=False)
    step = 2 * math.pi / length
    edges = (np.arange(n // 2 + 1) + 0.5) * step
    other = powerbox.get_power(field, length, bins=edges, dimensionless=False)
    np.testing.assert_allclose(spectrum.power, other.power, rtol=1e-12)
    np.testing.assert_allclose(spectrum.k, other.bin_avg, rtol=1e-12)


def test_shot_noise_is_flat_up_to_the_nyquist_frequency(single: pmd.Decomposition) -> None:
    """The power of one particle, as a mean over its places in a cell, is the volume, at all k.

    It is quadratic in the place along each axis, so two nodes of Gauss and Legendre give the mean exactly.
    """
    config = configure(single, particle_shape=1)
    places = np.array(list(itertools.product((0.5 - 12**-0.5, 0.5 + 12**-0.5), repeat=3))) * config.cell_size
    densities = [pmd.cic_paint(place.reshape(1, 1, 1, 3), config, 8 * 12 * 7) for place in places]
    powers = [pmd.power_spectrum(density, config, deconvolve="shot-noise").power for density in densities]
    np.testing.assert_allclose(np.mean(powers, axis=0), math.prod(config.box_size), rtol=1e-12)
    usual = np.mean([pmd.power_spectrum(density, config).power[-1] for density in densities])
    assert usual > 1.1 * math.prod(config.box_size)


@pytest.mark.parametrize("decomposition", [(1, 1), (4, 1), (2, 2)], indirect=True)
def test_noise_of_counts_in_cells_is_subtracted_from_all_modes(decomposition: pmd.Decomposition) -> None:
    """A count in one cell has equal power in all modes: none is left."""
    config = configure(decomposition)
    counts, noise = np.zeros(config.mesh_shape), math.prod(config.box_size) / (8 * 12 * 7) ** 2
    counts[3, 5, 6] = 1
    for measure in pmd.power_spectrum, pmd.observe.power_multipoles:
        power = lambda x, measure=measure: measure(counts, config, cell_noise=x).power  # noqa: E731
        np.testing.assert_allclose(power(noise), 0, atol=1e-12 * noise)
        at, slope = jax.jvp(power, (noise / 2,), (noise,))
        np.testing.assert_allclose(at, -slope / 2, rtol=1e-12, atol=1e-12 * noise)
        assert np.max(at) > noise  # half of it without the window


def test_counts_drawn_in_cells_have_the_power_of_their_rate(single: pmd.Decomposition) -> None:
    config, n, rng = configure(single, box_size=64.0, mesh_shape=16), 0.02, np.random.default_rng(4)
    density = np.asarray(pmd.cic_paint(rng.uniform(-9, 9, (16, 16, 16, 3)), config))
    rate = np.asarray(pmd.observe.expected_counts(density, config, number_density=n))
    draws = rng.poisson(rate, (64, *rate.shape)) / (n * 4**3)
    power = np.stack([pmd.power_spectrum(x, config, cell_noise=1 / n).power for x in draws])
    error, expected = power.std(axis=0, ddof=1) / 8, pmd.power_spectrum(density, config).power
    np.testing.assert_array_less(np.abs(power.mean(axis=0) - expected), 4 * error)
    flat = np.mean([pmd.power_spectrum(x, config).power for x in draws], axis=0) - 1 / n
    assert (flat[5:] > expected[5:] + 8 * error[5:]).all()


@pytest.mark.parametrize("decomposition", [(1, 1), (2, 2)], indirect=True)
def test_spectrum_in_float32_keeps_its_digits(decomposition: pmd.Decomposition) -> None:
    config = configure(decomposition, box_size=32.0, mesh_shape=32)
    field = np.random.default_rng(2).standard_normal(config.mesh_shape)
    double, single = (pmd.power_spectrum(field.astype(t), config) for t in (np.float64, np.float32))
    assert single.power.dtype == np.float32
    np.testing.assert_allclose(single.power, double.power, rtol=2e-6)
    np.testing.assert_array_equal(single.modes, double.modes)


@pytest.mark.parametrize("decomposition", [(1, 1), (4, 1), (2, 2)], indirect=True)
def test_gradient_of_the_spectrum_is_exact(decomposition: pmd.Decomposition) -> None:
    """P is quadratic in the field: a central difference is exact."""
    config = configure(decomposition)
    field, direction = np.random.default_rng(3).standard_normal((2, *config.mesh_shape))
    loss = lambda f: pmd.power_spectrum(f, config).power @ np.arange(1.0, 6.0)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(field)
    difference = (loss(field + direction) - loss(field - direction)) / 2
    np.testing.assert_allclose(np.vdot(gradient, direction), difference, rtol=1e-11)
