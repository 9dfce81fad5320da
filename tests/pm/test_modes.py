"""Linear modes: power, derivatives and tables."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology import linear_power as linear
from pmwd_dist.pm.modes import power_nodes

SHAPE, BOX = (8, 12, 10), (80.0, 120.0, 50.0)


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(**({"box_size": BOX, "mesh_shape": SHAPE, "decomposition": decomposition} | changes))


def numpy_modes(noise: np.ndarray, power: Any) -> np.ndarray:
    """delta(k) = noise(k) sqrt(P(k) N / V)."""
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, BOX)))
    amplitude = np.sqrt(np.where(k > 0, power(np.where(k > 0, k, 1)), 0) * noise.size / math.prod(BOX))
    return (np.fft.fftn(noise) * amplitude)[..., : SHAPE[2] // 2 + 1]


def test_linear_modes_have_the_power_asked_for(decomposition: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(decomposition)
    noise = np.random.default_rng(0).standard_normal(SHAPE)
    modes = pmd.linear_modes(noise, cosmo, config)
    expected = numpy_modes(noise, lambda k: np.asarray(pmd.linear_power(k, cosmo)))
    # Interpolation of P(k) in the package's own table: 1e-5 as documented.
    np.testing.assert_allclose(modes[..., : expected.shape[2]], expected, rtol=1e-5, atol=1e-12)
    assert np.abs(modes[..., expected.shape[2] :]).sum() == 0  # the padding along kz
    assert modes[0, 0, 0] == 0
    assert problems.has_sharding(modes, decomposition.spectrum_sharding)


def test_without_amplitude_there_are_no_modes(single: pmd.Decomposition) -> None:
    modes = pmd.linear_modes(np.ones(SHAPE), problems.cosmology(sigma8=0.0), configure(single))
    np.testing.assert_allclose(modes, 0, atol=1e-100)


def test_a_function_or_a_table_of_power_is_used(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single)
    noise = np.random.default_rng(1).standard_normal(SHAPE)
    default = pmd.linear_modes(noise, cosmo, config)
    function = pmd.linear_modes(noise, cosmo, config, linear_power=lambda k: pmd.linear_power(k, cosmo))
    np.testing.assert_allclose(function, default, rtol=1e-12)
    k = np.geomspace(1e-3, 10, 2000)
    table = pmd.linear_modes(noise, cosmo, config, linear_power=(k, np.asarray(pmd.linear_power(k, cosmo))))
    # A cubic through 500 nodes a decade, with the baryon oscillations.
    np.testing.assert_allclose(table, default, rtol=1e-5, atol=1e-12)
    law = pmd.linear_modes(noise, cosmo, config, linear_power=lambda k: 100 * k**-2)
    np.testing.assert_allclose(
        law, numpy_modes(noise, lambda k: 100 * k**-2), rtol=1e-11, atol=1e-12
    )  # straight in log-log


WAYS = {"Omega_c": 0.02, "Omega_b": 0.003, "h": 0.05, "n_s": -0.04, "sigma8": 0.1, "w0": 0.2, "Omega_k": 0.01}
FIELDS = np.random.default_rng(4).standard_normal((3, *SHAPE))  # noise, direction and weights


def derivatives_by_cosmology(pdims: tuple[int, int], through_function: bool) -> Any:
    """Of a function of the modes by the noise and parameters: forward and reverse, and on one device both."""
    config, weights = configure(pmd.Decomposition(pdims=pdims)), np.fft.rfftn(FIELDS[2])

    def loss(inputs: Any) -> Any:
        noise, parameters = inputs
        cosmo = problems.cosmology(**parameters)
        power = (lambda k: pmd.linear_power(k, cosmo)) if through_function else None
        modes = pmd.linear_modes(noise, cosmo, config, linear_power=power)[..., : weights.shape[2]]
        return jnp.sum((modes * weights).real + (modes * weights).imag ** 2)

    def all_of(inputs: Any, tangents: Any) -> Any:
        along = jax.jvp(loss, (inputs,), (tangents,))[1]
        if pdims != (1, 1):
            return along, jax.grad(loss)(inputs)
        return along, *jax.jvp(jax.grad(loss), (inputs,), (tangents,))

    start = vars(problems.cosmology())
    return jax.jit(all_of)((FIELDS[0], {name: jnp.asarray(start[name]) for name in WAYS}), (FIELDS[1], WAYS))


@pytest.fixture(scope="module")
def through_power() -> Any:
    """With a function for P(k), whose look-up is differentiated by JAX."""
    return derivatives_by_cosmology((1, 1), True)


@pytest.mark.slow
@pytest.mark.parametrize("pdims", [(1, 1), (4, 1), (2, 2)])
def test_derivatives_by_a_cosmology_are_those_through_its_power(pdims: tuple[int, int], through_power: Any) -> None:
    ours = derivatives_by_cosmology(pdims, False)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(through_power[: len(ours)]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9 * np.abs(y).max())
    along, (by_noise, by_parameters) = ours[:2]
    dot = np.sum(by_noise * FIELDS[1]) + sum(by_parameters[name] * WAYS[name] for name in WAYS)
    np.testing.assert_allclose(dot, along, rtol=1e-11)
    assert by_parameters["w0"] == by_parameters["Omega_k"] == 0
    assert all(by_parameters[name] != 0 for name in {*linear.SHAPE_PARAMETERS} & WAYS.keys())


def test_power_table_is_differentiable(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single)
    noise = np.random.default_rng(2).standard_normal(SHAPE)
    k = np.geomspace(1e-3, 10, 50)

    def variance(scale: Any) -> Any:
        modes = pmd.linear_modes(noise, cosmo, config, linear_power=(k, scale * k**-2.0))
        return (abs(modes) ** 2).sum()

    value, slope = jax.jit(jax.value_and_grad(variance))(100.0)
    np.testing.assert_allclose(slope, value / 100, rtol=1e-12)


def test_bad_tables_are_refused(single: pmd.Decomposition, cosmo: Any) -> None:
    config = configure(single)
    noise = np.zeros(SHAPE)
    nodes = power_nodes(config)
    k = np.geomspace(nodes[0], nodes[-1], 20)
    power = k**-2
    pmd.linear_modes(noise, cosmo, config, linear_power=(k, power))  # just long enough

    def changed(array: np.ndarray, index: int, value: float) -> np.ndarray:
        return np.where(np.arange(len(array)) == index, value, array)

    for table, message in (
        ((k[::-1], power), r"is not sorted: k\[1\]=.*; k must be positive and rise"),
        ((changed(k, 7, k[6]), power), r"is not sorted: k\[7\]=.*each k once"),
        ((k[1:], power[1:]), "covers k=.*but the box needs"),
        ((k[:-1], power[:-1]), "covers k=.*but the box needs"),
        ((k, changed(power, 3, np.nan)), r"holds P = nan at k = .*must be positive"),
        ((changed(k, 3, np.inf), power), "k must be positive and rise"),
        ((k, changed(power, 3, 0.0)), "positive"),
        ((k[[0, -1]], power[[0, -1]]), r"goes from k = .* to .* in one row, .*: k may change by a factor of 2 in the"),
        (
            (k, changed(power, 5, 1e12 * power[5])),
            "goes from P = .* to .* in one row, .*: P may change by a factor of 1000",
        ),
        ((k, power[1:]), "two equal 1-D arrays"),
        ((k[:1], power[:1]), "two equal 1-D arrays"),
    ):
        with pytest.raises(ValueError, match=message):
            pmd.linear_modes(noise, cosmo, config, linear_power=table)
