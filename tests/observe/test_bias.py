"""Bias operators against numpy, their gradients, the power on large scales, and counts of galaxies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist._checks import check_shares
from pmwd_dist.observe.counts import lost_power

SHAPE, BOX = (8, 8, 6), (24.0, 32.0, 24.0)
BIAS = {"b1": 0.7, "b2": -0.4, "bs2": 0.3, "bnabla2": 2.5, "b3": 0.2, "bdeltas2": -0.6, "bs3": 0.9}
RADIUS = 3.0


def configure(decomposition: pmd.Decomposition, **changes: Any) -> pmd.Config:
    return pmd.Config(
        **({"box_size": BOX, "mesh_shape": SHAPE, "lpt_order": 2, "decomposition": decomposition} | changes)
    )


def reference(delta: np.ndarray) -> np.ndarray:
    """Weights from a linear field at the time of the tracers."""
    k = problems.wavevectors(SHAPE, BOX)
    k2 = sum(x**2 for x in k)
    modes = np.fft.fftn(delta) * np.exp(-k2 * RADIUS**2 / 2)
    smooth = np.fft.ifftn(modes).real
    odd = problems.without_nyquist(k, SHAPE)
    s = np.empty((3, 3, *SHAPE))
    for i in range(3):
        for j in range(3):
            product = k[i] ** 2 if i == j else odd[i] * odd[j]
            s[i, j] = np.fft.ifftn(modes * product * problems.inverse_laplacian(k)).real - (i == j) / 3 * smooth
    tide, cube = np.einsum("ij...,ij...", s, s), np.einsum("ij...,jk...,ki...", s, s, s)
    square, laplacian = np.mean(smooth**2), np.fft.ifftn(-k2 * modes).real
    third = smooth**3 - 3 * square * smooth, smooth * tide - tide.mean() * smooth, cube
    fields = [smooth, smooth**2 - square, tide - tide.mean(), laplacian, *(x - x.mean() for x in third)]
    return 1 + sum(b * field for b, field in zip(BIAS.values(), fields, strict=True))


def test_weights_and_their_gradients_match_numpy(decomposition: pmd.Decomposition) -> None:
    config, table, a = configure(decomposition), pmd.growth_table(problems.cosmology()), 0.7
    delta, direction, weight = np.random.default_rng(0).standard_normal((3, *SHAPE))
    delta, direction = delta - delta.mean(), direction - direction.mean()
    changes = {"b1": 0.5, "b2": -1.0, "bs2": 2.0, "bnabla2": 1.5, "b3": 0.4, "bdeltas2": 1.2, "bs3": -0.8}

    @jax.jit
    def run(delta: jax.Array, bias: dict[str, jax.Array]) -> Any:
        def loss(delta: jax.Array, bias: dict[str, jax.Array]) -> Any:
            modes = pmd.prfft3d(delta, decomposition)
            parameters = pmd.observe.LagrangianBias(**bias)
            weights = pmd.observe.bias_weights(modes, parameters, table, config, smoothing=RADIUS, a=a)
            return (weights * weight).sum(), weights

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(delta, bias)

    (_, weights), (by_delta, by_bias) = run(delta, BIAS)
    np.testing.assert_allclose(weights, reference(float(table.D1(a)) * delta), rtol=0, atol=1e-12)
    assert problems.has_sharding(weights, decomposition.sharding)
    assert abs(np.mean(weights) - 1) < 1e-13

    def value(step: float) -> float:
        moved = {name: BIAS[name] + step * changes[name] for name in BIAS}
        return float(run(delta + step * direction, moved)[0][0])

    # The loss is of fourth order in both together: two steps give the derivative exactly.
    slope = np.vdot(by_delta, direction) + sum(by_bias[name] * changes[name] for name in BIAS)
    difference = (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / 12
    np.testing.assert_allclose(slope, difference, rtol=1e-10)


def test_large_scales_have_one_plus_b1(single: pmd.Decomposition) -> None:
    """delta_g(k) = (1 + b1) delta(k) for a small field, with unsmoothed b1 and in single precision too."""
    n, a, b1 = 16, 0.7, 1.3
    config, cosmo = pmd.Config(16.0, n, lpt_order=1, decomposition=single), problems.cosmology()
    modes = pmd.prfft3d(1e-3 * problems.smooth_field(np.random.default_rng(2), (n,) * 3), single)
    particles = pmd.lpt(modes, cosmo, config, a=a)
    shifted = pmd.Particles(particles.disp + 0.5, particles.vel)  # half a cell: where cloud-in-cell is smooth
    weights = pmd.observe.bias_weights(modes, pmd.observe.LagrangianBias(b1=b1), cosmo, config, a=a)
    matter, tracers = pmd.density(shifted, config), pmd.observe.tracer_density(shifted, weights, config)
    powers = [pmd.power_spectrum(field, config).power[0] for field in (matter, tracers)]
    np.testing.assert_allclose(powers[1] / powers[0], (1 + b1) ** 2, rtol=0.02)
    eulerian = pmd.observe.eulerian_bias(matter, 1 + b1, config)
    np.testing.assert_allclose(pmd.power_spectrum(eulerian, config).power[0], (1 + b1) ** 2 * powers[0], rtol=1e-12)
    float32 = pmd.observe.bias_weights(
        modes.astype(np.complex64), pmd.observe.LagrangianBias(b1=b1), cosmo, config, a=a
    )
    assert float32.dtype == np.float32
    np.testing.assert_allclose(float32, weights, atol=1e-6)


def test_counts_follow_selection_and_mask(single: pmd.Decomposition) -> None:
    config = configure(single)
    density = np.random.default_rng(1).uniform(-0.1, 3, SHAPE)
    selection = np.linspace(0, 1, SHAPE[2]) * np.ones(SHAPE)
    mask = np.random.default_rng(2).integers(0, 2, SHAPE).astype(bool)
    counts = jax.jit(
        lambda n: pmd.observe.expected_counts(density, config, number_density=n, selection=selection, mask=mask)
    )
    rate = 0.01 * np.prod(config.cell_size) * density * selection * mask
    expected = np.maximum(rate, 0) * rate.sum() / np.maximum(rate, 0).sum()  # a cut keeps the number of galaxies
    assert rate.min() < 0
    np.testing.assert_allclose(counts(0.01), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.jacfwd(counts)(0.01), expected / 0.01, rtol=1e-13)
    with pytest.warns(UserWarning, match=r"1 \+ delta_g is negative in 23 % of the cells.*use a larger smoothing"):
        halved = pmd.observe.expected_counts(np.where(density < 0.7, -density, density), config, number_density=0.01)
    assert float(halved.min()) == 0


@pytest.mark.parametrize("bias", [1.5, -0.25])
def test_the_power_that_is_lost_with_negative_densities(bias: float, single: pmd.Decomposition) -> None:
    """Also where few cells hold few galaxies, the peaks of tracers of negative bias."""
    config, k = pmd.Config(256.0, 32, decomposition=single), 32 * np.fft.fftfreq(32)
    k = np.sqrt(k[:, None, None] ** 2 + k[:, None] ** 2 + k[:17] ** 2)
    noise = np.random.default_rng(5).standard_normal((32, 32, 32))
    x = np.fft.irfftn(np.fft.rfftn(noise) * (1 + k) ** -0.7 * np.exp(-((k / 8) ** 2)))
    matter = np.exp(0.8 * x / x.std())
    density = 1 + bias * (matter / matter.mean() - 1)
    with pytest.warns(UserWarning, match=r"counts comes out about \d+ % low") as warned:
        counts = pmd.observe.expected_counts(density, config, number_density=0.01)
    whole, cut = (pmd.power_spectrum(f / f.mean(), config).power[:4].mean() for f in (density, counts))
    lost = 1 - float(cut / whole)
    assert lost > 0.08
    assert 0.5 < lost / float(lost_power(jnp.asarray(density), jnp.asarray(0.01))[1]) < 1.6
    assert f"{100 * float(lost_power(jnp.asarray(density), jnp.ones(()))[1]):.2g} % low" in str(warned[0].message)


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -1e30])
def test_nothing_behind_a_mask_enters_counts(hidden: float, single: pmd.Decomposition) -> None:
    config, rng = configure(single), np.random.default_rng(4)
    density, selection = rng.uniform(0, 3, SHAPE), rng.uniform(0, 1, SHAPE)
    mask = rng.integers(0, 2, SHAPE).astype(bool)

    def survey(value: float) -> Any:
        there, share = (np.where(mask, x, value) for x in (density, selection))
        options: Any = {"number_density": 0.01, "selection": share, "mask": mask}

        def total(there: Any) -> Any:
            counts = pmd.observe.expected_counts(there, config, **options)
            contrast = pmd.observe.weighted_overdensity(there, np.where(mask, selection, 0), config)
            return (counts + contrast**2).sum(), (counts, contrast)

        return jax.value_and_grad(total, has_aux=True)(there)

    assert all(np.isfinite(x).all() for x in jax.tree.leaves(survey(hidden)))
    jax.tree.map(np.testing.assert_array_equal, survey(hidden), survey(1.0))


def test_power_of_a_survey_is_that_of_the_galaxies(single: pmd.Decomposition) -> None:
    """That of white noise is, in the mean, as all modes have the same power: the convolution with W changes nothing."""
    config = pmd.Config(16.0, 16, lpt_order=2, decomposition=single)
    rng = np.random.default_rng(3)
    weight = rng.uniform(0, 1, (16, 16, 16)) * (np.arange(16) < 9)
    run = jax.jit(
        lambda n: pmd.power_spectrum(pmd.observe.weighted_overdensity(n, weight, config), config, deconvolve=False)
    )
    density = 1 + 0.3 * rng.standard_normal((12, 16, 16, 16))
    found = [run(2 * n) for n in density]  # in any unit
    modes = np.asarray(found[0].modes)
    mean = np.mean([f.power for f in found], axis=0) @ modes / modes.sum()
    scatter = np.sqrt(2 / modes.sum() / len(found) * np.mean(weight**4) / np.mean(weight**2) ** 2)
    assert scatter < 0.02
    assert abs(mean / 0.09 - 1) < 3.5 * scatter
    field = np.asarray(pmd.observe.weighted_overdensity(density[0], weight, config))
    assert abs(field.sum()) < 1e-10
    inside = density[0] / np.average(density[0], weights=weight) - 1
    np.testing.assert_allclose(field, weight * inside / np.sqrt(np.mean(weight**2)), rtol=1e-12)


@pytest.mark.parametrize("unit", [1.0, 0.8])  # of the mean
def test_counts_that_hold_the_selection_are_told(unit: float, single: pmd.Decomposition) -> None:
    config = replace(configure(single), box_size=(512.0, 512.0, 512.0))
    selection = np.linspace(0.2, 1, SHAPE[2]) * np.ones(SHAPE)
    counts = unit / 1.2 * np.random.default_rng(6).poisson(2 * selection)
    with pytest.warns(UserWarning, match=r"is 22 % above its mean, .* \(21 %\), .*; divide counts by the"):
        pmd.observe.weighted_overdensity(counts, selection, config)
    pmd.observe.weighted_overdensity(counts / selection, selection, config)  # no word


def weights(config: pmd.Config, bias: Any, **options: Any) -> Any:
    modes = pmd.prfft3d(jnp.zeros(SHAPE), config.decomposition)
    return pmd.observe.bias_weights(modes, bias, problems.cosmology(), config, **options)


B2 = pmd.observe.LagrangianBias(b2=1.0)
ONES = np.ones(SHAPE)
CONTRAST = 1e-8 + np.where(np.arange(ONES.size).reshape(SHAPE) % 2, 1.0, -1.0)


def counts(config: pmd.Config, **options: Any) -> Any:
    return pmd.observe.expected_counts(ONES, config, **({"number_density": 1.0} | options))


def test_filters_that_leave_no_wave_are_a_warning(pytestconfig: pytest.Config) -> None:
    config = pmd.Config(8.0, SHAPE, decomposition=(1, 1))
    for name, filtered in {
        "smoothing": lambda radius: weights(config, B2, smoothing=radius),
        "radius": lambda radius: pmd.observe.smoothed(ONES, config, radius),
    }.items():
        filtered(4.0)
        with pytest.warns(UserWarning, match=f"^{name} = 5: this filter leaves no wave of a box of 8 Mpc/h$") as caught:
            filtered(5.0)
        if not pytestconfig.option.all:  # whose checks of types are frames between
            assert caught[0].filename == __file__


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: weights(c, B2), "smoothing=None must be given: the operator of b2 diverges"),
        (lambda c: weights(c, B2, smoothing=-1.0), "smoothing=-1.0 must be a finite number from 1e-06 to"),
        (lambda c: weights(c, B2, smoothing=1e300), r"smoothing=1e\+300 must be a finite number .* leave it out"),
        (lambda _: pmd.observe.LagrangianBias(b1=np.nan), "b1=nan must be a finite number"),
        (lambda _: pmd.observe.LagrangianBias(bs2=1e30), r"bs2=1e\+30 must be a finite number from -10000 to 10000"),
        (lambda _: pmd.observe.LagrangianBias(b1="1"), "b1='1' must be"),
        (lambda _: pmd.observe.LagrangianBias(b1=True), "b1 is a bool and must be a finite number"),
        (lambda c: pmd.observe.eulerian_bias(ONES, np.nan, c), "b1=nan must be a finite number"),
        (lambda c: pmd.observe.weighted_overdensity(ONES, 0 * ONES, c), "weight=0 must not be 0 in every cell"),
        (lambda c: pmd.observe.weighted_overdensity(ONES, 7 * ONES, c), "weight=7.0 must not exceed 1; .* its maximum"),
        (lambda c: pmd.observe.weighted_overdensity(0 * ONES, ONES, c), "density must be finite, with a mean above 0"),
        (lambda c: pmd.observe.weighted_overdensity(-ONES, ONES, c), r"density=-1.0 .* pass 1 \+ delta, not delta"),
        (
            lambda c: pmd.observe.weighted_overdensity(CONTRAST, ONES, c),
            r"mean of 1e-08, far below its rms",
        ),
        (lambda c: pmd.observe.expected_counts(-ONES, c, number_density=1.0), "density must be finite, with a mean"),
        (lambda c: pmd.observe.expected_counts(np.inf * ONES, c, number_density=1.0), "density must be finite, with"),
        (lambda c: pmd.observe.expected_counts(np.nan * ONES, c, number_density=1.0), "density must be finite, with"),
        (lambda c: counts(c, selection=-ONES), "selection=-1.0 must not be negative; pass shares from 0 to 1"),
        (lambda c: counts(c, selection=1.1), "selection=1.1.* must not exceed 1"),
        (lambda c: counts(c, number_density=np.nan), "number_density=nan must be a finite number from 0 to"),
        (lambda c: counts(c, number_density=1e30), r"number_density=1e\+30 must be .* from 0 to .* \(h/Mpc\)"),
        (lambda c: pmd.observe.eulerian_bias(ONES, 1e30, c), r"b1=1e\+30 must be a finite number from -10000 to 10000"),
        (lambda c: counts(c, mask=np.full(SHAPE, np.nan)), r"mask holds \d+ values of NaN; pass shares"),
        # Minima of larger arrays leave NaN out.
        (lambda _: check_shares(jnp.full(4096, jnp.nan), "mask"), "mask holds 4096 values of NaN"),
        (lambda c: counts(c, mask=np.ones((2, 2, 2))), r"mask.shape=\(2, 2, 2\) must be mesh_shape"),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str, single: pmd.Decomposition) -> None:
    with pytest.raises(ValueError, match=message):
        call(configure(single))


def test_contrasts_of_surveys_in_their_own_structure_are_told(single: pmd.Decomposition) -> None:
    """Structure of a small survey moves the mean of a contrast; counts and densities with negative values are right."""
    config, delta = configure(single), np.random.default_rng(3).gamma(2.0, 0.6, SHAPE) - 1
    assert 0.2 < delta.mean() < 0.4
    with pytest.warns(UserWarning, match=r"mean is 0\.\d+ and its minimum -0.94, as of a contrast; pass 1 \+ delta"):
        pmd.observe.weighted_overdensity(delta, ONES, config)
    pmd.observe.weighted_overdensity(1 + delta, ONES, config)
    pmd.observe.weighted_overdensity(1 + 2 * delta, ONES, config)


@pytest.mark.parametrize("interlaced", [False, True])
def test_contrasts_of_a_mean_over_the_box_are_told(single: pmd.Decomposition, interlaced: bool) -> None:
    """Interlaced counts and biased matter have negative values, too, but no mean of 0."""
    config, seen = configure(single), 1.0 * (np.indices(SHAPE)[0] < SHAPE[0] // 2)
    places = np.random.default_rng(4).random((200, 3)) * config.box_size * (0.5, 1, 1)
    found = np.asarray(pmd.observe.counts_from_catalogue(places, config, interlaced=interlaced))
    with pytest.warns(
        UserWarning, match=r"its mean is \S+, 0 in the whole box, and its minimum -\d.*, as of a contrast"
    ):
        pmd.observe.weighted_overdensity(found / found.mean() - 1, seen, config)
    pmd.observe.weighted_overdensity(found / found.mean(), seen, config)
    matter = np.random.default_rng(4).poisson(1.0, SHAPE) * 1.0
    biased = pmd.observe.eulerian_bias(matter / matter.mean(), 2.0, config)
    pmd.observe.weighted_overdensity(biased, seen, config)
