"""Multipoles, cross spectra and the one-point distribution against numpy, with gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import problems
import pytest
from numpy.polynomial import legendre

import pmwd_dist as pmd

SHAPE, BOX = (8, 12, 7), (10.0, 13.0, 7.0)
OBLIQUE = (1.0, 2.0, -2.0)


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(**({"box_size": BOX, "mesh_shape": SHAPE, "decomposition": decomposition} | changes))


def fields() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, *SHAPE))


def weighted(values: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Means of values times a factor in the bins of `power_spectrum`, over the full transform."""
    k = np.sqrt(sum(x**2 for x in problems.wavevectors(SHAPE, BOX)))
    step = 2 * math.pi / max(BOX)
    bins = math.floor(min(math.pi * n / length for n, length in zip(SHAPE, BOX, strict=True)) / step + 1e-6)
    index = np.rint(k / step).astype(int)
    total = [(values * factor)[index == i].sum() / (index == i).sum() for i in range(1, bins + 1)]
    return np.array(total) * math.prod(BOX) / math.prod(SHAPE) ** 2


def mean_over_signs(k: Any, function: Any) -> np.ndarray:
    """A function of mu as the mean over both signs of each component at the Nyquist frequency, which has none."""
    modulus, total = np.sqrt(np.maximum(sum(x**2 for x in k), 1e-30)), 0
    for signs in itertools.product((1, -1), repeat=3):
        each = [
            np.where(np.isclose(np.abs(x), math.pi * s / side), sign * np.abs(x), x)
            for x, s, side, sign in zip(k, SHAPE, BOX, signs, strict=True)
        ]
        total = total + function(sum(x * n / 3 for x, n in zip(each, OBLIQUE, strict=True)) / modulus)
    return total / 8


def test_spectra_and_their_gradients_match_numpy(decomposition: pmd.Decomposition) -> None:
    config = configure(decomposition)
    first, second, direction = fields()

    @jax.jit
    def run(first: jax.Array, second: jax.Array) -> Any:
        def loss(first: jax.Array) -> Any:
            poles = pmd.observe.power_multipoles(first, config, line_of_sight=OBLIQUE, deconvolve=False)
            cross = pmd.observe.cross_power(first, second, config, deconvolve=False)
            return (poles.power @ np.arange(1.0, 6.0)).sum() + cross.power @ np.arange(2.0, 7.0), (poles, cross)

        return jax.value_and_grad(loss, has_aux=True)(first)

    (_, (poles, cross)), gradient = run(first, second)
    modes, others = np.fft.fftn(first), np.fft.fftn(second)
    k = problems.wavevectors(SHAPE, BOX)
    for row, order in zip(poles.power, (0, 2, 4), strict=True):
        factor = mean_over_signs(k, lambda mu, order=order: (2 * order + 1) * legendre.legval(mu, np.eye(5)[order]))
        np.testing.assert_allclose(row, weighted(np.abs(modes) ** 2, factor), rtol=0, atol=1e-12 * poles.power[0].max())
    np.testing.assert_allclose(cross.power, weighted((modes * others.conj()).real, np.ones(SHAPE)), atol=1e-12)
    np.testing.assert_allclose(cross.reference_power, weighted(np.abs(others) ** 2, np.ones(SHAPE)), rtol=1e-12)
    monopole = pmd.power_spectrum(first, config, deconvolve=False)
    again = pmd.observe.power_multipoles(first, config, poles=(0,), deconvolve=False)
    np.testing.assert_array_equal(again.pole(0), monopole.power)
    np.testing.assert_allclose(poles.pole(0), monopole.power, rtol=1e-15)
    np.testing.assert_array_equal(poles.modes, monopole.modes)
    # The loss is quadratic: a central difference is exact.
    difference = (run(first + direction, second)[0][0] - run(first - direction, second)[0][0]) / 2
    np.testing.assert_allclose(np.vdot(gradient, direction), difference, rtol=1e-11)


@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_multipoles_do_not_depend_on_the_orientation_of_the_mesh(pdims: tuple[int, int]) -> None:
    """A reflection of field and line of sight changes nothing, in no bin: the Nyquist frequency has no sign."""
    config, field = configure(pmd.Decomposition(pdims=pdims)), fields()[0]
    run = jax.jit(
        lambda field, n: pmd.observe.power_multipoles(field, config, line_of_sight=n, deconvolve=False).power,
        static_argnums=1,
    )
    expected = run(field, OBLIQUE)
    for axis in range(3):
        mirrored = np.roll(np.flip(field, axis), 1, axis)
        n = tuple(-x if i == axis else x for i, x in enumerate(OBLIQUE))
        np.testing.assert_allclose(run(mirrored, n), expected, rtol=0, atol=1e-12 * float(expected[0].max()))


def test_linear_theory_along_an_oblique_line_of_sight(single: pmd.Decomposition) -> None:
    """Of a field of this power at each mode, up to the Nyquist frequency, where the mean over both signs is taken."""
    config, cosmo, b = configure(single, a_stop=0.5), problems.cosmology(), 1.7
    k = problems.wavevectors(SHAPE, BOX)
    modulus = np.sqrt(sum(x**2 for x in k))
    f = float(pmd.growth_rate(0.5, cosmo))
    amplitude = np.exp(-modulus / 2) * float(pmd.growth(0.5, cosmo)) ** 2
    power = amplitude * mean_over_signs(k, lambda mu: (b + f * mu**2) ** 2)
    found = pmd.observe.kaiser_multipoles(lambda k: np.exp(-k / 2), cosmo, config, bias=b, line_of_sight=OBLIQUE, a=0.5)
    for row, order in zip(found.power, (0, 2, 4), strict=True):
        factor = mean_over_signs(k, lambda mu, order=order: (2 * order + 1) * legendre.legval(mu, np.eye(5)[order]))
        expected = weighted(power, factor) * math.prod(SHAPE) ** 2 / math.prod(BOX)
        np.testing.assert_allclose(row, expected, rtol=0, atol=3e-5 * expected.max())


def test_correlation_and_transfer_of_a_scaled_field(single: pmd.Decomposition) -> None:
    config, (field, noise, _) = configure(single), fields()
    scaled = pmd.observe.cross_power(3 * field, field, config)
    np.testing.assert_allclose(scaled.correlation, 1, rtol=1e-13)
    np.testing.assert_allclose(scaled.transfer, 3, rtol=1e-13)
    painted = pmd.observe.cross_power(field, field, config, deconvolve=(True, False))
    np.testing.assert_array_equal(painted.field_power, pmd.power_spectrum(field, config).power)
    np.testing.assert_array_equal(painted.reference_power, pmd.power_spectrum(field, config, deconvolve=False).power)
    mixed = pmd.observe.cross_power(field + noise, field, config, deconvolve=False)
    expected = mixed.power / np.sqrt(mixed.field_power * mixed.reference_power)
    np.testing.assert_array_equal(mixed.correlation, expected)
    assert (mixed.correlation < 0.95).all()


@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_one_point_distribution(pdims: tuple[int, int]) -> None:
    layout = pmd.Decomposition(pdims=pdims)
    config, (field, direction, _) = configure(layout), fields()
    nodes = np.array([-1.5, -1.0, -0.2, 0.3, 1.0, 2.0])
    pdf = pmd.observe.one_point_pdf(field, config, nodes)
    inside = (field >= nodes[0]) & (field <= nodes[-1])
    shares = np.stack([np.interp(field, nodes, row) * inside for row in np.eye(6)])
    np.testing.assert_allclose(pdf.cells, shares.sum((1, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(np.trapezoid(pdf.density, nodes), inside.mean(), rtol=1e-13)
    loss = lambda f: pmd.observe.one_point_pdf(f, config, nodes).density @ np.arange(6.0)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(field)
    slopes = np.diff(np.arange(6.0) / (pdf.cells / pdf.density)) / np.diff(nodes)
    expected = np.where(inside, slopes[np.clip(np.searchsorted(nodes, field) - 1, 0, 4)], 0)
    np.testing.assert_allclose(np.vdot(gradient, direction), np.vdot(expected, direction), rtol=1e-11)


@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_interlacing_cancels_aliases(pdims: tuple[int, int]) -> None:
    layout = pmd.Decomposition(pdims=pdims)
    n = 8
    config = pmd.Config(8.0, n, decomposition=layout, halo=5)
    disp = np.random.default_rng(4).uniform(-4, 4, (n, n, n, 3))
    particles = pmd.Particles(disp, disp)
    weights = None if pdims == (1, 1) else np.random.default_rng(5).uniform(0, 2, (n, n, n))
    found = np.asarray(pmd.observe.interlaced_density(particles, config, weights=weights))
    meshes = []
    for cells in (0.0, 0.5):
        painted = problems.paint(problems.cells(disp - cells, config), 1.0 if weights is None else weights, (n,) * 3)
        phase = [
            np.exp(-1j * k * cells) * (np.abs(k) < math.pi - 1e-9) for k in problems.wavevectors((n,) * 3, (8.0,) * 3)
        ]
        meshes.append(np.fft.ifftn(np.fft.fftn(painted) * phase[0] * phase[1] * phase[2]).real)
    np.testing.assert_allclose(found, sum(meshes) / 2, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, c: pmd.observe.power_multipoles(f, c, poles=(1,)), r"poles=\(1,\) must be orders 0, 2 and 4"),
        (lambda f, c: pmd.observe.power_multipoles(f, c, poles=0), "poles=0 must be orders 0, 2 and 4"),
        (lambda f, c: pmd.observe.kaiser_multipoles((f, f), problems.cosmology(), c), "power must be a function"),
        (
            lambda f, c: pmd.observe.kaiser_multipoles(np.ones_like, problems.cosmology(), c, bias="x"),
            "bias='x' must be a finite number",
        ),
        (lambda f, c: pmd.observe.smoothed(f, c, jax.numpy.float32(-1)), "radius=.* must be a finite number from 0"),
        (
            lambda f, c: pmd.observe.power_multipoles(f, c, cell_noise=-1.0),
            "cell_noise=-1.0 must be a finite number, 0 ",
        ),
        (lambda f, c: pmd.observe.power_multipoles(f, c, line_of_sight="w"), "line_of_sight='w' must be"),
        (lambda f, c: pmd.observe.power_multipoles(f, c, poles=(0,)).pole(2), r"order=2 is not one of poles=\(0,\)"),
        (lambda f, c: pmd.observe.cross_power(f[:, :, 1:], f[:, :, 1:], c), "field.shape"),
        (lambda f, c: pmd.observe.cross_power(f, f, c, deconvolve=(True, 2)), "deconvolve=2 must be"),
        (lambda f, c: pmd.observe.one_point_pdf(f, c, [1.0, 0.0]), r"values=\[1.0, 0.0\] must ascend"),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str, single: pmd.Decomposition) -> None:
    with pytest.raises(ValueError, match=message):
        call(fields()[0], configure(single))
