"""Spherical harmonics and shear of HEALPix maps against healpy's, on one device and on pencils."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import harmonics, lensing
from pmwd_dist.observe.angular_power import resolved_share
from pmwd_dist.observe.healpix import interpolation, pixel_centres, rings_of

HEALPY = np.load(Path(__file__).parent / "healpy_pixels.npz")
NSIDE, LMAX = 4, 7


def packed(modes: np.ndarray) -> np.ndarray:
    out = np.zeros((2, LMAX + 1, LMAX + 1))
    out[:, HEALPY["l"], HEALPY["m"]] = modes.real, modes.imag
    return out


@pytest.mark.parametrize("pdims", [(1, 1), (2, 2)])
def test_values_and_transposes(pdims: tuple[int, int], capfd: pytest.CaptureFixture[str]):
    decomposition = pmd.Decomposition(pdims=pdims)
    rng = np.random.default_rng(1)
    directions = rng.normal(size=12 * NSIDE**2), rng.normal(size=(2, 12 * NSIDE**2))

    @jax.jit
    def run(values, modes):
        analyse = partial(harmonics.analyse, nside=NSIDE, lmax=LMAX, decomposition=decomposition)
        spin2 = partial(harmonics.synthesise_spin2, nside=NSIDE, decomposition=decomposition)
        analysed, tangent = jax.jvp(analyse, (values,), (directions[0],))
        back = jax.vjp(spin2, modes)[1](directions[1])[0]
        other = jax.linear_transpose(analyse, values)(analysed)[0]
        return harmonics.synthesise(modes, NSIDE, decomposition), spin2(modes), analysed, tangent, back, other

    modes = packed(HEALPY["modes"])
    made, spin2, analysed, tangent, back, other = run(HEALPY["values"], jnp.asarray(modes))
    assert capfd.readouterr().err == ""  # XLA of jaxlib 0.12 prints a line for each transform that it can't divide
    np.testing.assert_allclose(made, HEALPY["map"], atol=1e-12)
    np.testing.assert_allclose(spin2, -HEALPY["spin2"], atol=1e-12)  # healpy's a_lm of spin 2 have another sign
    np.testing.assert_allclose(analysed, packed(HEALPY["analysed"]), atol=1e-12)
    assert float(np.sum(back * modes)) == pytest.approx(float(np.sum(spin2 * directions[1])), rel=1e-12)
    assert float(np.sum(other * directions[0])) == pytest.approx(float(np.sum(analysed * tangent)), rel=1e-12)


def test_shear_of_a_light_cone_is_tangential_about_an_overdensity():
    """Around the north pole, the shear is tangential: along phi, with the mean within less the convergence there."""
    cone = pmd.observe.SphericalLightCone(pmd.Config(64.0, 8, decomposition=(1, 1)), [100.0, 200.0], nside=8)
    theta = harmonics.rings_of(8)[3][np.repeat(np.arange(31), harmonics.rings_of(8)[1])]
    bump = np.exp((np.cos(theta) - 1) / 0.2**2)
    one, two = lensing._spherical_shear(jnp.asarray(bump), cone)
    rings = np.unique(theta)
    assert np.abs(two).max() < 1e-3 * np.abs(one).max()
    x = np.linspace(0, np.pi, 20001)
    width = 0.2**2
    full = np.exp((np.cos(x) - 1) / width)
    mean = np.concatenate([[full[0]], np.cumsum(full[1:] * np.sin(x[1:]) * x[1]) / (1 - np.cos(x[1:]))])
    for ring in rings[2:8]:
        value = np.asarray(one)[theta == ring].mean()
        small = ring / np.tan(ring / 2) / 2  # flat sky within the bump
        expected = -(np.interp(ring, x, mean) - np.interp(ring, x, full))
        assert value == pytest.approx(expected, rel=0.12 + abs(small - 1), abs=0.02 * np.abs(one).max())


def test_e_and_b_modes_are_told_apart():
    """Harmonics of the sphere up to l = nside, and a plane wave; B modes are E modes turned by 45 degrees."""
    nside, rng = 8, np.random.default_rng(3)
    e, b = np.tril(rng.normal(size=(2, 2, nside + 1, nside + 1)))
    for modes in (e, b):
        modes[1, :, 0] = modes[:, :2] = 0
    shear = jax.jit(lambda a: harmonics.synthesise_spin2(harmonics.shear_modes(a), nside))
    one, two = (np.asarray(shear(jnp.asarray(x))) for x in (e, b))
    found = pmd.observe.kaiser_squires(jnp.asarray(one + np.stack([-two[1], two[0]])))
    expected = [harmonics.synthesise(jnp.asarray(x), nside) for x in (e, b)]
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())

    x = 2 * np.pi * np.arange(8) / 8
    kappa = np.cos(2 * x[:, None] + x[None, :] + 0.4)
    gamma = jnp.asarray([kappa * 3 / 5, kappa * 4 / 5])  # (kx^2 - ky^2) / k^2 and 2 kx ky / k^2
    np.testing.assert_allclose(pmd.observe.kaiser_squires(gamma), [kappa, 0 * kappa], atol=1e-12)
    np.testing.assert_array_equal(pmd.observe.kaiser_squires(np.ones((2, 8, 8), int)), np.zeros((2, 8, 8)))
    turned = jnp.stack([-gamma[1], gamma[0]])
    np.testing.assert_allclose(pmd.observe.kaiser_squires(turned), [0 * kappa, kappa], atol=1e-12)


def test_power_of_a_map():
    modes = packed(HEALPY["modes"])
    found = jax.jit(pmd.observe.angular_power)(jnp.asarray(HEALPY["map"]))
    weight = np.where(np.arange(LMAX + 1) > 0, 2, 1)
    expected = (modes**2 * weight).sum((0, 2)) / (2 * np.arange(LMAX + 1) + 1)
    np.testing.assert_allclose(found.power, expected, atol=1e-3 * expected.max())
    other = pmd.observe.angular_power(jnp.asarray(HEALPY["map"]), jnp.asarray(-3 * HEALPY["map"]))
    np.testing.assert_allclose(other.power, -3 * found.power, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="12 nside"):
        pmd.observe.angular_power(jnp.ones(13))
    waves = packed(HEALPY["modes"])[:, :4, :4]  # nside need not be a power of 2
    odd = jax.jit(lambda modes: pmd.observe.angular_power(harmonics.synthesise(modes, 3)).power)(waves)
    np.testing.assert_allclose(odd[:4], harmonics.power_of_modes(waves), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("mark", [-1.6375e30, -1e30, np.nan, np.inf])
def test_maps_with_missing_pixels_are_refused(mark: float) -> None:
    for field, side in ((np.ones(48), None), (np.ones((8, 8)), 1.0)):
        field.flat[5] = mark
        with pytest.raises(ValueError, match=r"field holds 1 values that are .* UNSEEN of HEALPix; set them to 0"):
            pmd.observe.angular_power(jnp.asarray(field), side=side)


def test_masses_with_missing_pixels_are_refused(single: pmd.Decomposition) -> None:
    cone = pmd.observe.SphericalLightCone(pmd.Config(100.0, 8, decomposition=single), (0.0, 50.0), 1)
    mass = np.full((1, 12), -1.6375e30)
    with pytest.raises(ValueError, match="mass holds 12 values that are marks like UNSEEN of HEALPix; set them"):
        pmd.observe.convergence(mass, problems.cosmology(), cone, source=0.5)


@pytest.mark.parametrize("flat", [False, True])
def test_overdensities_are_no_masses(single: pmd.Decomposition, flat: bool) -> None:
    config = pmd.Config(100.0, 8, decomposition=single)
    sphere = pmd.observe.SphericalLightCone(config, (0.0, 50.0), 1)
    cone = pmd.observe.FlatSkyLightCone(config, (0.0, 50.0)) if flat else sphere
    view: Any = {"field": 1.0, "pixels": 4} if flat else {}
    contrast = np.resize([-0.9, 0.2, 0.8], (1, 8, 8) if flat else (1, 12))
    for function in (pmd.observe.convergence, pmd.observe.shear):
        function(1 + contrast, problems.cosmology(), cone, source=0.016, **view)
        with pytest.raises(ValueError, match=r"mass holds values from -0.9 on, .*; pass the masses that"):
            function(contrast, problems.cosmology(), cone, source=0.016, **view)


def test_theory_of_a_map_has_the_window_of_its_pixels(single: pmd.Decomposition) -> None:
    """Points at the centres of finer pixels, with random harmonics as masses, are painted as a light cone does."""
    fine, nside, lmax = 32, 8, 12
    first, count, shift, theta = rings_of(fine)
    ring = np.repeat(np.arange(len(count)), count)
    phi = 2 * np.pi * (np.arange(12 * fine**2) - first[ring] + shift[ring] / 2) / count[ring]
    vector = np.stack([np.sin(theta[ring]) * f(phi) for f in (np.cos, np.sin)] + [np.cos(theta[ring])], -1)
    pixels, weights = interpolation(nside, jnp.asarray(vector))
    on_ring = abs(vector[:, 2] - 1 / 12) < 1e-9  # where roundings decide between two rings
    heights = (np.asarray(pixel_centres(nside))[..., 2][pixels[on_ring]] * weights[on_ring]).sum(-1)
    np.testing.assert_allclose(heights, 1 / 12, atol=1e-9)
    weight, products = np.where(np.arange(lmax + 1) > 0, 2, 1), np.zeros((2, lmax + 1))
    for seed in range(4):
        modes = np.tril(np.random.default_rng(seed).normal(size=(2, lmax + 1, lmax + 1)))
        modes[1, :, 0] = 0
        masses = harmonics.synthesise(jnp.asarray(modes), fine)[:, None] * weights * (nside / fine) ** 2
        painted = jnp.zeros(12 * nside**2).at[pixels].add(masses)
        analysed = np.asarray(harmonics.analyse(painted, nside, lmax))
        products += [(x * modes * weight).sum((0, 2)) for x in (analysed, modes)]
    found = products[0] / products[1]

    cone = pmd.observe.SphericalLightCone(pmd.Config(100.0, 8, decomposition=single), [0.0, 100.0], nside)
    fundamental, nyquist = 2 * np.pi / 100, np.pi * 8 / 100
    ell, k = np.arange(2.0, lmax + 1), fundamental * np.array([0.6, 0.7, 3.9, 4.8, 7.0])
    window = resolved_share(ell, np.tile(k, (len(ell), 1)), cone)
    ratio = window[:, 1] / found[2:] ** 2  # of few modes of a map whose pixels are not all alike
    np.testing.assert_allclose(ratio[: nside - 1], 1, rtol=0.03)
    assert ratio.mean() == pytest.approx(1, abs=0.01)
    assert window[-1, 1] < 0.6
    # Of directions at 1.2 times the Nyquist frequency, six caps of 1/12 lie beyond the lattice.
    shares = window / window[:, 1:2]
    np.testing.assert_allclose(shares[0], [0, 1, 1, 1 - 3 * (1 - nyquist / k[3]), 0], atol=0.05)
