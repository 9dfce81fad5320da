"""Linear theory to compare with, filters and angular power, against sums over modes and integrals in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid, quad

import pmwd_dist as pmd
from pmwd_dist.observe.angular_power import share_beyond_box

BOX = (40.0, 44.0, 50.0)  # no mode lies between two bins
CONE = pmd.observe.FlatSkyLightCone(pmd.Config(40.0, 4, decomposition=(1, 1)), [0.0, 40.0])


class EinsteinDeSitter:
    Omega_c, Omega_b, h, n_s, sigma8 = 0.95, 0.05, 0.7, 1.0, 0.8
    Omega_k, w0, wa = 0.0, -1.0, 0.0


def power(k):
    return 1e4 * k / (1 + (k / 0.1) ** 2) ** 1.3


def wavevectors(n: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[2 * np.pi * np.fft.fftfreq(n, L / n) for L in BOX], indexing="ij"))


@pytest.mark.parametrize("pdims", [(1, 1), (4, 1), (2, 2)])
def test_kaiser_multipoles_and_smoothing_are_sums_over_modes(pdims: tuple[int, int]):
    n, a, b = 8, 0.5, 1.7
    config = pmd.Config(box_size=BOX, mesh_shape=n, decomposition=pdims)
    noise = np.random.default_rng(0).normal(size=(n, n, n))

    @jax.jit
    def run(field, b):
        def kaiser(b):
            def bias(k):
                return b * jnp.exp(-(k**2))

            return pmd.observe.kaiser_multipoles(power, EinsteinDeSitter, config, bias=bias, a=a, line_of_sight="x")

        poles, slope = jax.jvp(lambda b: kaiser(b).power, (b,), (1.0,))
        return kaiser(b), slope, poles, pmd.observe.smoothed(field, config, 3.0)

    found, slope, _, smooth = run(noise, b)
    k = wavevectors(n)
    modulus = np.sqrt((k**2).sum(0))
    mu2 = k[0] ** 2 / np.where(modulus > 0, modulus, 1) ** 2
    bins = np.rint(modulus / (2 * np.pi / max(BOX))).astype(int)
    bias = b * np.exp(-(modulus**2))
    legendre = {0: 1.0, 2: 5 * (3 * mu2 - 1) / 2, 4: 9 * (35 * mu2**2 - 30 * mu2 + 3) / 8}
    shape = a**2 * power(modulus)  # D1 = a, f = 1
    for i in range(len(found.k)):
        inside = bins == i + 1
        assert found.modes[i] == inside.sum()
        for row, (order, polynomial) in enumerate(legendre.items()):
            expected = (polynomial * (bias + mu2) ** 2 * shape)[inside].mean()
            np.testing.assert_allclose(found.pole(order)[i], expected, rtol=3e-5, atol=3e-5 * found.power[0, i])
            expected = (polynomial * 2 * (bias + mu2) * bias / b * shape)[inside].mean()
            np.testing.assert_allclose(slope[row, i], expected, rtol=3e-5, atol=3e-5 * found.power[0, i])
    expected = np.fft.ifftn(np.fft.fftn(noise) * np.exp(-(modulus**2) * 9 / 2)).real
    np.testing.assert_allclose(smooth, expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"radius=-3.0 must be a finite number from 0"):
        pmd.observe.smoothed(noise, config, -3.0)


def test_angular_power_of_waves():
    n, side = 16, 4.0
    x = np.arange(n) / n
    field = 5 + 0.3 * np.cos(2 * np.pi * 3 * x)[:, None] + 0.1 * np.sin(2 * np.pi * (4 * x[:, None] + 3 * x[None, :]))
    found = pmd.observe.angular_power(jnp.asarray(field), side=side, bins=7)
    total = np.nansum(found.power * found.modes) / np.radians(side) ** 2
    assert total == pytest.approx(field.var(), rel=1e-12)
    at = np.argsort(np.nan_to_num(found.power))[-2:]
    lowest = 360 / side
    assert sorted(float(found.ell[i] / lowest) for i in at) == pytest.approx([3, 5], abs=0.5)
    twice = pmd.observe.angular_power(jnp.asarray(field), jnp.asarray(-2 * field), side=side, bins=7)
    np.testing.assert_allclose(twice.power, -2 * found.power, rtol=1e-12)
    with pytest.raises(ValueError, match=r"other.shape=\(8,\) must be that of the field"):
        pmd.observe.angular_power(jnp.asarray(field), jnp.ones(8), side=side)
    with pytest.raises(ValueError, match="side=4.0 is for flat skies; leave it out for a sphere"):
        pmd.observe.angular_power(jnp.ones(48), side=side)
    with pytest.raises(ValueError, match="side=100.0 must be a finite number from 0.001 to 90 degrees"):
        pmd.observe.angular_power(jnp.asarray(field), side=100.0)


def test_bins_without_modes_have_no_mean() -> None:
    """NaN, and not a data point at ell = 0 or k = 0: logarithmic bins of few rays, and shells between the modes."""
    found = pmd.observe.angular_power(jnp.asarray(np.random.default_rng(0).normal(size=(16, 16))), side=2.0, bins=20)
    empty = np.asarray(found.modes) == 0
    assert 0 < empty.sum() < 20
    np.testing.assert_array_equal(np.isnan(found.ell), empty)
    np.testing.assert_array_equal(np.isnan(found.power), empty)

    config = pmd.Config(2 * np.pi, 16, decomposition=(1, 1))
    field = np.random.default_rng(1).normal(size=(16,) * 3)
    edges = (0.9, 1.1, 1.2, 1.3, 1.5)  # modes at k = 1 and 2^(1/2)

    @jax.jit
    def run(field):
        found = pmd.observe.bispectrum(field, config, edges=edges, deconvolve=False)
        return jnp.nansum(found.bispectrum), found

    (_, found), slope = jax.value_and_grad(run, has_aux=True)(field)
    empty = np.asarray(found.triangles) == 0
    assert not empty[found.shells.index((0, 0, 3))]
    for values in (found.bispectrum, found.scatter, found.reduced):
        np.testing.assert_array_equal(np.isnan(values), empty)
    np.testing.assert_array_equal(np.isnan(found.k), np.isin(found.shells, (1, 2)))
    np.testing.assert_array_equal(np.isnan(found.power), np.isin(found.shells, (1, 2)))
    assert np.isfinite(slope).all()


def test_limber_power_is_the_integral():
    source, ell = 0.7, np.array([100.0, 1000.0])
    hubble = 2997.92458
    chi = 2 * hubble * (1 - np.sqrt(1 / (1 + source)))

    def integrand(x: float, ell: float) -> float:
        a = (1 - x / (2 * hubble)) ** 2
        weight = 1.5 / hubble**2 * x * (chi - x) / chi / a
        return (weight * a / x) ** 2 * power((ell + 0.5) / x)

    bins = jnp.asarray([*ell, np.nan])  # the last one is empty
    *found, empty = pmd.observe.limber_power(bins, power, EinsteinDeSitter, (0.0, 2000.0), source)
    expected = [quad(integrand, 1e-3, chi, (value,))[0] for value in ell]
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert np.isnan(empty)
    spread = pmd.observe.limber_power(
        ell, power, EinsteinDeSitter, (0.0, 2000.0), ([0.699, 0.7, 0.701], [0.0, 1.0, 0.0])
    )
    np.testing.assert_allclose(spread, expected, rtol=2e-3)

    longest, few = (3 / (4 * np.pi)) ** (1 / 3) * 2 * np.pi / 500, np.array([3.0, 6.0])
    cone = pmd.observe.SphericalLightCone(pmd.Config(500.0, 8, decomposition=(1, 1)), (0.0, chi), 1)
    ends = [[quad(integrand, low, chi, (value,))[0] for low in (1e-3, (value + 0.5) / longest)] for value in few]
    lost = share_beyond_box(few, power, EinsteinDeSitter, cone)
    np.testing.assert_allclose(lost, [part / whole for whole, part in ends], rtol=0.02)

    def crossed(x: float, ell: float) -> float:
        return integrand(x, ell) * (near - x) / near / ((chi - x) / chi)

    near = 2 * hubble * (1 - np.sqrt(1 / 1.3))
    pairs = pmd.observe.limber_power(ell, power, EinsteinDeSitter, (0.0, 2000.0), [0.3, source])
    np.testing.assert_allclose(pairs[1, 1], expected, rtol=1e-3)
    np.testing.assert_allclose(pairs[0, 1], [quad(crossed, 1e-3, near, (value,))[0] for value in ell], rtol=1e-3)
    np.testing.assert_array_equal(pairs[0, 1], pairs[1, 0])


def test_limber_power_of_galaxies_is_the_integral():
    """With a bias that depends on scale, and with magnification."""
    source, ell, hubble = 0.7, np.array([100.0, 1000.0]), 2997.92458
    chi = 2 * hubble * (1 - np.sqrt(1 / (1 + source)))
    z, number = np.linspace(0.2, 0.4, 2001), np.linspace(1.0, 3.0, 2001)
    ends, samples = 2 * hubble * (1 - np.sqrt(1 / (1 + z[[0, -1]]))), [(z, number, lambda k: 1.5 + k)]
    found = pmd.observe.limber_power(ell, power, EinsteinDeSitter, (0.0, 2000.0), source, galaxies=samples)

    def counted(x: float, ell: float, galaxies: int) -> float:
        a = (1 - x / (2 * hubble)) ** 2
        density = (1 + 10 * (1 / a - 1.2)) / 0.4 / hubble * a**-1.5
        bias, weight = 1.5 + (ell + 0.5) / x, 1.5 / hubble**2 * x * (chi - x) / chi / a
        return (bias * density) ** galaxies * weight ** (2 - galaxies) * (a / x) ** 2 * power((ell + 0.5) / x)

    for galaxies in (1, 2):
        expected = [quad(counted, *ends, (value, galaxies))[0] for value in ell]
        np.testing.assert_allclose(found[galaxies - 1, 1], expected, rtol=1e-3)
    np.testing.assert_array_equal(found[0, 1], found[1, 0])

    magnified = [(z, number, 1.5, 0.9)]
    found = pmd.observe.limber_power(ell, power, EinsteinDeSitter, (0.0, 2000.0), source, galaxies=magnified)
    x = np.append(np.linspace(1e-2, ends[0], 4001)[:-1], np.linspace(*ends, 8001))
    a = (1 - x / (2 * hubble)) ** 2
    density = np.where(x < ends[0], 0, (1 + 10 * (1 / a - 1.2)) / 0.4 / hubble * a**-1.5)
    behind = [cumulative_trapezoid(-y[::-1], x[::-1], initial=0)[::-1] for y in (density, density / x)]
    kernel = 1.5 / hubble**2 * x / a
    galaxies = 1.5 * density + (5 * 0.9 - 2) * kernel * (behind[0] - x * behind[1])
    for i, weight in enumerate((kernel * (chi - x) / chi, galaxies)):
        expected = np.trapezoid(galaxies * weight * (a / x) ** 2 * power((ell[:, None] + 0.5) / x), x)
        np.testing.assert_allclose(found[i, 1], expected, rtol=1e-3)


@pytest.mark.parametrize("width", [0.1, 2e-3])
def test_thin_bins_and_few_redshifts_of_n_z_are_resolved(width: float) -> None:
    """Galaxies, and the alignment of sources where they are, of an n(z) that is a triangle."""
    nodes, number, ell = np.array([0.5 - width, 0.5, 0.5 + width]), np.array([0.0, 1.0, 0.0]), np.array([300.0])
    z = np.linspace(*nodes[[0, -1]], 20_001)
    x, per_distance = 2 * 2997.92458 * (1 - (1 + z) ** -0.5), np.interp(z, nodes, number) / width * (1 + z) ** 1.5
    expected = np.trapezoid((per_distance / 2997.92458 / (1 + z) / x) ** 2 * power((ell[0] + 0.5) / x), x)
    given, samples = (ell, power, EinsteinDeSitter, (0.0, 3000.0)), [(nodes, number, 1.0)]
    found = pmd.observe.limber_power(*given, 1.0, galaxies=samples)
    np.testing.assert_allclose(found[1, 1], expected, rtol=2e-3)
    source = np.linspace(*nodes[[0, -1]], 41)  # lensing is by sums over these redshifts
    source = source, np.interp(source, nodes, number)
    aligned = [pmd.observe.limber_power(*given, source, alignment=(A, 0.0)) for A in (-1e3, 0.0, 1e3)]
    strength = np.trapezoid((per_distance / 2997.92458 / x) ** 2 * power((ell[0] + 0.5) / x), x) * (0.0134e3) ** 2
    np.testing.assert_allclose((aligned[0] + aligned[2]) / 2 - aligned[1], strength, rtol=2e-3)


def test_galaxies_on_planes_have_the_window_of_their_pixels():
    cone, ell, side = pmd.observe.FlatSkyLightCone(pmd.Config(500.0, 1024), (400.0, 800.0), pixels=1 << 15), 900.0, 0.2
    samples: Any = [([0.15, 0.2], [1.0, 1.0], 1.0)]
    given = np.array([ell]), power, EinsteinDeSitter, cone.edges, 0.7
    fine, coarse = (
        pmd.observe.limber_power(*given, galaxies=samples, cone=cone, pixel=pixel) for pixel in (None, side)
    )
    x, phi = (np.arange(50) + 0.5) / 50 - 0.5, (np.arange(50) + 0.5) * np.pi / 100
    waves = [np.cos(ell * np.radians(side) * f(phi) * x[:, None]).mean(0) for f in (np.cos, np.sin)]
    expected = [[1, np.mean(waves[0] * waves[1])], [np.mean(waves[0] * waves[1]), np.mean((waves[0] * waves[1]) ** 2)]]
    np.testing.assert_allclose((coarse / fine)[..., 0], expected, rtol=1e-3)


@pytest.mark.parametrize("sky", ["flat", "sphere"])
def test_matter_of_a_shell_has_one_weight_and_on_planes_one_distance(sky: str):
    """Pixels are so fine, and waves so well resolved, that these are the only windows."""
    config, edges, ell = pmd.Config(500.0, 1024), (400.0, 800.0, 1200.0), np.array([100.0, 500.0])
    cone: Any = pmd.observe.SphericalLightCone(config, edges, 8192)
    if sky == "flat":
        cone = pmd.observe.FlatSkyLightCone(config, edges, pixels=1 << 15)
    found = pmd.observe.limber_power(ell, power, EinsteinDeSitter, edges, 0.7, cone=cone)
    weights = np.asarray(pmd.observe.lensing_weights(edges, EinsteinDeSitter, 0.7))
    dimensions = 1 if sky == "flat" else 3
    expected = np.zeros(2)
    for weight, low, high in zip(weights, edges[:-1], edges[1:], strict=True):
        x = np.linspace(low, high, 2001)
        share = weight * dimensions * x ** (dimensions - 1) / (high**dimensions - low**dimensions)
        distance = np.full_like(x, (low + high) / 2) if sky == "flat" else x
        growth = (1 - x / (2 * 2997.92458)) ** 2
        values = (share * growth / distance) ** 2 * power((ell[:, None] + 0.5) / distance)
        expected += np.trapezoid(values, x)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if sky == "flat" else 3e-3)
    thin = pmd.observe.limber_power(ell, power, EinsteinDeSitter, edges, 0.7)
    assert np.abs(thin / expected - 1).max() > 0.02


COLUMNS = np.array([[0.1, 0.2], [1.0, 1.0]])  # of n(z)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ell": np.array([-1.0])}, "ell must be a finite number, 0 or more"),
        ({"source": -1.0}, r"source=\[-1.0\] must be redshifts from 0 to 1000"),
        ({"source": np.inf}, "must be redshifts from 0 to 1000"),
        ({"edges": (500.0, 100.0)}, r"edges=\[500.0, 100.0\] must ascend from 0 or more"),
        ({"edges": (True, 100.0)}, r"edges=\(True, 100.0\) must be two"),
        ({"edges": (0.0, np.nan)}, "edges=.* must be two or more finite numbers that ascend"),
        ({"cone": CONE}, r"edges=\[0.0, 2000.0\] must be those of the cone, \[0.0, 40.0\]"),
        ({"power": ([0.1], [1.0])}, "power must be a function; for example lambda k: linear_power"),
        ({"power": lambda k: np.nan * k}, "power returns P = nan at k = 2.*; P.k. must be finite, and not negative"),
        ({"power": lambda k: 1 - k}, r"power returns P = -\d.* at k = \d"),
        ({"power": lambda k: k[1:]}, r"power returns an array of shape \(199,\) for k of shape \(200,\)"),
        ({"source": (np.arange(50.0)[::-1], np.ones(50))}, r"source=\[49.0, 48.0(, [\d.]*){4}, \.\.\.\] must ascend"),
        (
            {"galaxies": (*COLUMNS, 1.0)},
            r"galaxies must be a list of \(z, n, bias\) or \(z, n, bias, s\); for example",
        ),
        ({"galaxies": [(COLUMNS[0] + 9, COLUMNS[1], 1.0)]}, "galaxies have a bin beyond the last edge, 2000 Mpc"),
        ({"galaxies": [(*COLUMNS, "x")]}, "bias.* must be a finite number"),
        ({"galaxies": [(*COLUMNS, 1e30)]}, r"bias=1e\+30 must be a finite number from -10000 to 10000"),
        ({"pixel": -1.0}, "pixel=-1.0 must be a finite number from 1e-06 to 90 degrees"),
        ({"galaxies": [(*COLUMNS, 1.0, np.nan)]}, "s=nan must be a finite number"),
        (
            {"galaxies": [(*COLUMNS, lambda k: k * np.inf)]},
            "galaxies have a bias that is not finite",
        ),
        ({"source": (0.1, 0.2, 0.3)}, r"source=\(3,\) must be one redshift; pass \(z, n\)"),
    ],
)
def test_bad_arguments_of_theory_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"ell": 100.0, "power": power, "edges": (0.0, 2000.0), "source": 0.7} | changes
    with pytest.raises(ValueError, match=message):
        pmd.observe.limber_power(cosmo=EinsteinDeSitter, **arguments)
