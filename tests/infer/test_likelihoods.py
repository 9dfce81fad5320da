"""Likelihoods against SciPy, and what their arguments and data must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy import stats

import pmwd_dist as pmd
from pmwd_dist import infer

SHAPE = (4, 6, 5)
FRONT = (np.indices(SHAPE)[0] < 2).astype(float)


@pytest.fixture(scope="module")
def config() -> pmd.Config:
    return pmd.Config(box_size=(20.0, 30.0, 25.0), mesh_shape=SHAPE, decomposition=(1, 1))


@pytest.fixture(scope="module")
def field() -> np.ndarray:
    return 1 + 0.3 * np.random.default_rng(0).standard_normal(SHAPE)


def test_gaussian_agrees_with_scipy(config: pmd.Config, field: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    data, sigma, mask = field + rng.standard_normal(SHAPE), rng.uniform(0.5, 2, SHAPE), rng.random(SHAPE) < 0.7
    terms = stats.norm.logpdf(data, field, sigma) + 0.5 * np.log(2 * np.pi)
    ours = infer.Gaussian(sigma, mask=mask).logdensity(data, field, {}, config)
    np.testing.assert_allclose(ours, terms[mask].sum(), rtol=1e-12)
    free = infer.Gaussian("noise_sd").logdensity(data, field, {"noise_sd": 0.7}, config)
    np.testing.assert_allclose(free, (stats.norm.logpdf(data, field, 0.7) + 0.5 * np.log(2 * np.pi)).sum(), rtol=1e-12)


def test_the_example_of_an_own_likelihood_agrees_with_scipy(config: pmd.Config, field: np.ndarray) -> None:
    """Up to a constant, for two values of its parameter."""
    text = (Path(__file__).parents[2] / "sims/infer_own_likelihood.py").read_text()
    exec(compile(text.partition("pmd.enable_compilation_cache()")[0], "example", "exec"), names := dict[str, Any]())
    own, data = names["StudentT"](), field + np.random.default_rng(1).standard_normal(SHAPE)
    ours = [own.logdensity(data, field, {"width": width}, config) for width in (0.5, 2.0)]
    expected = [stats.t.logpdf(data, 4, field, width).sum() for width in (0.5, 2.0)]
    np.testing.assert_allclose(ours[1] - ours[0], expected[1] - expected[0], rtol=1e-12)
    assert own.names == own.positive == ("width",)


@pytest.mark.parametrize("pdims", [(1, 1), (1, 2)])  # the second pads the spectrum
def test_modes_up_to_k_max_are_compared(pdims: tuple[int, int], field: np.ndarray) -> None:
    config = pmd.Config(
        box_size=(20.0, 30.0, 25.0), mesh_shape=SHAPE, decomposition=pmd.Decomposition(pdims, jax.devices()[: pdims[1]])
    )
    data, sigma, k_max = field + np.random.default_rng(2).standard_normal(SHAPE), 0.7, 0.5
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, config.box_size)))
    kept = (k <= k_max) & (k > 0)
    modes = np.fft.fftn(data - field, norm="ortho")[kept]
    expected = -0.5 * np.sum(abs(modes) ** 2) / sigma**2 - kept.sum() * np.log(sigma)
    ours = jax.jit(lambda d, f: infer.Gaussian(sigma, k_max=k_max).logdensity(d, f, {}, config))(data, field)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize(("pdims", "kind"), [((1, 1), "field"), ((1, 1), "name"), ((1, 2), "field")])
def test_modes_up_to_k_max_are_compared_behind_a_mask(pdims: tuple[int, int], kind: str, field: np.ndarray) -> None:
    """Values with their normalisation, slopes and draws, against dense covariances on the observed cells."""
    decomposition = pmd.Decomposition(pdims, jax.devices()[: pdims[1]])
    config = pmd.Config((20.0, 30.0, 25.0), SHAPE, decomposition=decomposition)
    rng, k_max, excess, sd = np.random.default_rng(4), 0.5, 3.0, 0.7
    sigma, mask = rng.uniform(0.5, 2, SHAPE), rng.random(SHAPE) < 0.7
    likelihood = infer.Gaussian(sigma if kind == "field" else "sd", mask=mask, k_max=k_max, small_scale_noise=excess)
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, config.box_size)))
    cells, width = mask.ravel(), (sigma if kind == "field" else np.full(SHAPE, sd)).ravel()
    covariance = np.outer(width, width) * (np.eye(k.size) + excess**2 * problems.filter_matrix((k > k_max) | (k == 0)))
    prediction = problems.filter_matrix(k <= k_max)
    expected = stats.multivariate_normal(cov=covariance[np.ix_(cells, cells)])
    data = field + rng.standard_normal(SHAPE)

    def logdensity(field: Any, sd: Any) -> Any:
        return likelihood.logdensity(jnp.asarray(np.where(mask, data, np.nan)), field, {"sd": sd}, config)

    run = jax.jit(jax.value_and_grad(logdensity, (0, 1)))
    constant = expected.logpdf(np.zeros(cells.sum())) + np.log(width[cells]).sum()
    value, (slope, by_sd) = run(field, sd)
    residual = (data.ravel() - prediction @ field.ravel())[cells]
    np.testing.assert_allclose(value + constant, expected.logpdf(residual), rtol=1e-10)
    weighted = np.linalg.solve(covariance[np.ix_(cells, cells)], residual)
    np.testing.assert_allclose(np.ravel(slope), prediction[:, cells] @ weighted, atol=1e-10)
    of_width = (residual @ weighted - cells.sum()) / sd if kind == "name" else 0
    assert float(by_sd) == pytest.approx(of_width, rel=1e-10)
    if pdims == (1, 1):
        draws = jax.vmap(lambda key: likelihood.draw(key, jnp.asarray(field), {"sd": sd}, config))(
            jax.random.split(jax.random.key(0), 400)
        )
        away = (np.asarray(draws).reshape(400, -1) - prediction @ field.ravel())[:, cells]
        chi2 = np.sum(away * np.linalg.solve(covariance[np.ix_(cells, cells)], away.T).T, axis=1)
        assert abs(chi2.mean() - cells.sum()) < 3.5 * np.sqrt(2 * cells.sum() / 400)


def test_draws_and_residuals_have_the_dense_covariance(config: pmd.Config, field: np.ndarray) -> None:
    """Of a mask with k_max, a slope and a template; the noise of preconditioners is the one at delta = 0."""
    rng, k_max, numbers = np.random.default_rng(8), 0.5, {"A": 0.3}
    sigma, dust = rng.uniform(0.2, 0.4, SHAPE), rng.uniform(-1, 1, SHAPE)
    options: Any = {"mask": MASK, "k_max": k_max, "small_scale_noise": 3.0, "templates": {"A": dust}}
    likelihood = infer.Gaussian(sigma, slope=0.8, **options)
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, config.box_size)))
    compared = (k <= k_max) & (k > 0)
    mean = problems.filter_matrix(k <= k_max) @ field.ravel() * (1 + 0.3 * (dust * MASK).ravel())
    width = sigma.ravel() * np.sqrt(1 + 0.8 * (mean - 1))
    correlation = np.eye(k.size) + 9 * problems.filter_matrix(~compared)
    keys = jax.random.split(jax.random.key(0), 400)
    draws = jax.vmap(lambda key: likelihood.draw(key, jnp.asarray(field), numbers, config))(keys)
    chi = (np.asarray(draws).reshape(400, -1) - mean) / width
    chi2 = np.sum(chi * np.linalg.solve(correlation, chi.T).T, axis=1)
    assert abs(chi2.mean() - k.size) < 3.5 * np.sqrt(2 * k.size / 400)
    cells = MASK.ravel() == 1
    weighted = np.linalg.solve(correlation[np.ix_(cells, cells)], chi[0, cells])
    found = likelihood.residual(draws[0], jnp.asarray(field), numbers, config)
    np.testing.assert_allclose(found.ravel(), problems.filter_matrix(compared)[:, cells] @ weighted, atol=1e-10)
    variance = np.asarray(likelihood.noise_variance(numbers, config))
    expected = np.where(compared, 1 / np.mean(MASK / sigma**2), np.inf)[..., : variance.shape[2]]
    np.testing.assert_allclose(variance, expected, rtol=1e-12)


def test_poisson_agrees_with_scipy(config: pmd.Config, field: np.ndarray) -> None:
    rng = np.random.default_rng(3)
    selection, mask = rng.uniform(0.2, 1, SHAPE), rng.random(SHAPE) < 0.7
    likelihood = infer.Poisson(3.0, selection=selection, mask=mask)
    data = np.asarray(likelihood.draw(jax.random.key(0), jax.numpy.asarray(field), {}, config))
    likelihood.check(data, config)
    expected = stats.poisson.logpmf(data, 3 * selection * field)[mask].sum()
    np.testing.assert_allclose(likelihood.logdensity(data, field, {}, config), expected, rtol=1e-12)
    residual = 2 * (np.sqrt(data + 0.375) - np.sqrt(3 * selection * field + 0.375)) * mask
    np.testing.assert_allclose(likelihood.residual(data, jnp.asarray(field), {}, config), residual, atol=1e-12)
    # Where bias makes the prediction negative: a positive mean, and one slope at the joint.
    low = jax.numpy.asarray([-1.0, 0.0, 0.05 - 1e-9, 0.05 + 1e-9, 1.0])
    mean = np.asarray(infer.Poisson(1.0).mean(low, {}))
    assert (mean > 0).all() and (np.diff(mean) > 0).all()
    slope = np.asarray(jax.vmap(jax.grad(lambda x: infer.Poisson(1.0).mean(x, {})))(low))
    np.testing.assert_allclose(slope[2:], 1, rtol=1e-6)


def test_noise_that_follows_the_density_agrees_with_scipy(config: pmd.Config, field: np.ndarray) -> None:
    """Also with modes up to k_max, whose density is the filtered one."""
    data, sigma, slope = field + np.random.default_rng(1).standard_normal(SHAPE), 0.7, 0.8

    @eqx.filter_jit
    def run(likelihood: Any, numbers: Any) -> Any:
        return likelihood.logdensity(jnp.asarray(data), jnp.asarray(field), numbers, config)

    def reference(x: dict[str, float]) -> Any:
        width = x["sd"] * np.sqrt(1 + x["s"] * (field - 1))
        return stats.norm.logpdf(data, field, width).sum() + 60 * np.log(2 * np.pi)

    likelihood = infer.Gaussian("sd", slope="s")
    assert likelihood.names == ("sd", "s") and likelihood.positive == ("sd",)
    numbers = {"sd": sigma, "s": slope}
    value, slopes = jax.value_and_grad(lambda numbers: run(likelihood, numbers))(numbers)
    assert float(value) == pytest.approx(reference(numbers), rel=1e-12)
    assert {name: float(x) for name, x in slopes.items()} == pytest.approx(differences(reference, numbers), rel=1e-6)
    # Noise of no density, which a strong slope makes negative, stays positive, in single precision too.
    for strong, number in (
        (infer.Gaussian(sigma, slope="s"), 50.0),
        (infer.Gaussian(sigma, slope="s"), -40.0),
        (infer.Gaussian(1.0, noise_k2="s"), -20.0),
    ):
        found = jax.value_and_grad(lambda x, it=strong, s=number: it.logdensity(1 + 0 * x, x, {"s": s}, config))(
            jnp.asarray(field, jnp.float32)
        )
        assert all(np.isfinite(x).all() for x in found)
    assert infer.Gaussian(sigma, slope=0.0, noise_k2=0.0, mask=np.ones(SHAPE)).names == ()  # no change
    assert type(infer.Gaussian(sigma, slope=np.float32(2)).slope) is float
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, config.box_size)))
    long = np.fft.ifftn(np.where(k <= 0.5, np.fft.fftn(field), 0)).real
    width = (sigma * np.sqrt(1 + slope * (long - 1))).ravel()
    covariance = np.outer(width, width) * (np.eye(k.size) + 9 * problems.filter_matrix((k > 0.5) | (k == 0)))
    expected: Any = stats.multivariate_normal(cov=covariance)
    constant = expected.logpdf(np.zeros(k.size)) + np.log(width).sum()
    value = run(infer.Gaussian(sigma, slope=slope, k_max=0.5, small_scale_noise=3.0), {})
    assert float(value) + constant == pytest.approx(expected.logpdf((data - long).ravel()), rel=1e-10)


def test_counts_with_a_dispersion_agree_with_scipy(config: pmd.Config, field: np.ndarray) -> None:
    likelihood = infer.Poisson(30.0, selection=0.5, dispersion="alpha")
    assert likelihood.names == likelihood.positive == ("alpha",)
    mean = 15 * field
    keys = jax.random.split(jax.random.key(0), 300)
    draws = np.asarray(jax.vmap(lambda key: likelihood.draw(key, jnp.asarray(field), {"alpha": 0.3}, config))(keys))
    away = (draws - mean) / np.sqrt(mean + 0.3 * mean**2)
    assert abs(away.mean()) < 3.5 / np.sqrt(away.size)
    assert abs(np.mean(away**2) - 1) < 3.5 * np.std(away**2) / np.sqrt(away.size)
    residual = np.asarray(likelihood.residual(jnp.asarray(draws[0]), jnp.asarray(field), {"alpha": 0.3}, config))
    assert 0.6 < np.std(residual) < 1.2
    run = jax.jit(
        jax.value_and_grad(lambda alpha, data, field: likelihood.logdensity(data, field, {"alpha": alpha}, config))
    )
    for alpha in (1e-6, 0.01, 0.3, 4.0):

        def reference(alpha: float) -> Any:
            return stats.nbinom.logpmf(draws[0], 1 / alpha, 1 / (1 + alpha * mean)).sum()

        value, slope = run(alpha, jnp.asarray(draws[0]), jnp.asarray(field))
        assert float(value) == pytest.approx(reference(alpha), rel=1e-8)
        h = 1e-3 * alpha
        difference = (reference(alpha + h) - reference(alpha - h)) / (2 * h)
        limit = np.sum((draws[0] - mean) ** 2 - draws[0]) / 2  # near 0, where SciPy's logarithms cancel
        assert float(slope) == pytest.approx(limit if alpha == 1e-6 else difference, rel=1e-4)
        single, _ = run(*(jnp.asarray(x, jnp.float32) for x in (alpha, draws[0], field)))
        assert float(single) == pytest.approx(float(value), rel=2e-6)


@pytest.mark.parametrize("k_max", [None, 0.5])
def test_noise_that_grows_with_the_wavenumber_has_a_dense_covariance(
    k_max: float | None, config: pmd.Config, field: np.ndarray
) -> None:
    numbers, data = {"sd": 0.7, "c": 1.3}, field + np.random.default_rng(7).standard_normal(SHAPE)
    likelihood = infer.Gaussian("sd", noise_k2="c", k_max=k_max)
    assert likelihood.names == ("sd", "c")
    k2 = sum(k_**2 for k_ in problems.wavevectors(SHAPE, config.box_size))
    kept = (k2 > 0) & (k2 <= k_max**2) if k_max else np.ones(SHAPE, bool)
    modes = np.abs(np.fft.fftn(data - field, norm="ortho")[kept]) ** 2

    def reference(x: dict[str, float]) -> Any:
        variance = x["sd"] ** 2 * (1 + x["c"] * k2[kept])
        return -0.5 * np.sum(modes / variance + np.log(variance))

    run = jax.jit(jax.value_and_grad(lambda x: likelihood.logdensity(jnp.asarray(data), jnp.asarray(field), x, config)))
    value, slopes = run(numbers)
    assert float(value) == pytest.approx(reference(numbers), rel=1e-12)
    assert {name: float(x) for name, x in slopes.items()} == pytest.approx(differences(reference, numbers), rel=1e-6)
    variance = np.asarray(likelihood.noise_variance(numbers, config))
    expected = np.where(kept, 0.49 * (1 + 1.3 * k2), np.inf)[..., : variance.shape[2]]
    np.testing.assert_allclose(variance, expected, rtol=1e-12)
    if k_max is None:
        covariance = 0.49 * problems.filter_matrix(1 + 1.3 * k2)
        dense: Any = stats.multivariate_normal(np.ravel(field), covariance)
        assert float(value) - 60 * np.log(2 * np.pi) == pytest.approx(dense.logpdf(np.ravel(data)), rel=1e-10)
        keys = jax.random.split(jax.random.key(0), 400)
        draws = jax.vmap(lambda key: likelihood.draw(key, jnp.asarray(field), numbers, config))(keys)
        away = np.asarray(draws).reshape(400, -1) - np.ravel(field)
        chi2 = np.sum(away * np.linalg.solve(covariance, away.T).T, axis=1)
        assert abs(chi2.mean() - 120) < 3.5 * np.sqrt(240 / 400)
        residual = likelihood.residual(draws[0], jnp.asarray(field), numbers, config)
        assert float(jnp.sum(residual**2)) == pytest.approx(chi2[0], rel=1e-10)


def differences(function: Any, numbers: dict[str, float], step: float = 1e-6) -> dict[str, float]:
    """Derivatives with each number, by differences."""
    ends = {n: [function(numbers | {n: x + s}) for s in (step, -step)] for n, x in numbers.items()}
    return {name: (high - low) / (2 * step) for name, (high, low) in ends.items()}


@pytest.mark.parametrize("kind", ["gaussian", "poisson", "dispersed"])
def test_systematics_and_bins_agree_with_scipy(kind: str, config: pmd.Config, field: np.ndarray) -> None:
    """Values and slopes with each mean number and amplitude."""
    rng = np.random.default_rng(6)
    dust, stars, selection = *rng.uniform(-1, 1, (2, *SHAPE)), rng.uniform(0.3, 1, SHAPE)
    numbers, bins = {"dust": 0.3, "stars": -0.2}, np.indices(SHAPE)[0] // 2
    templates: Any = {"dust": dust, "stars": stars}
    counts: Any = {"selection": selection, "bins": np.where(MASK, bins, -7), "templates": templates, "mask": MASK}
    if kind == "gaussian":
        likelihood: Any = infer.Gaussian(0.4, templates=templates, mask=MASK)
    else:
        numbers = {"n_0": 8.0, "n_1": 3.0} | numbers | ({"alpha": 0.4} if kind == "dispersed" else {})
        likelihood = infer.Poisson("n", **counts, dispersion="alpha" if kind == "dispersed" else None)
    assert set(likelihood.names) == set(numbers)

    def mean(x: dict[str, float]) -> Any:
        modulated = field * (1 + x["dust"] * dust + x["stars"] * stars)
        return modulated if kind == "gaussian" else modulated * selection * np.where(bins, x["n_1"], x["n_0"])

    def reference(x: dict[str, float]) -> Any:
        if kind == "gaussian":
            return (stats.norm.logpdf(data, mean(x), 0.4) + 0.5 * np.log(2 * np.pi))[MASK == 1].sum()
        if kind == "poisson":
            return stats.poisson.logpmf(data, mean(x))[MASK == 1].sum()
        return stats.nbinom.logpmf(data, 1 / x["alpha"], 1 / (1 + x["alpha"] * mean(x)))[MASK == 1].sum()

    np.testing.assert_allclose(likelihood.mean(jnp.asarray(field), numbers)[MASK == 1], mean(numbers)[MASK == 1])
    data = np.asarray(likelihood.draw(jax.random.key(0), jnp.asarray(field), numbers, config))
    likelihood.check(data, config)
    run = jax.jit(jax.value_and_grad(lambda x: likelihood.logdensity(jnp.asarray(data), jnp.asarray(field), x, config)))
    value, slopes = run(numbers)
    np.testing.assert_allclose(value, reference(numbers), rtol=1e-8)
    np.testing.assert_allclose(
        [slopes[n] for n in numbers], [*differences(reference, numbers).values()], rtol=1e-5, atol=1e-5
    )
    # The mean prediction of no density has no contrast.
    ones = likelihood.mean(jnp.ones(SHAPE), numbers)
    np.testing.assert_allclose(likelihood.contrast(ones, numbers), 0, atol=1e-12)


@pytest.mark.parametrize("depth", [0.5, 1.0, 5.0, 1e3])
def test_galaxies_where_none_are_predicted_have_a_finite_density(depth: float, config: pmd.Config) -> None:
    """Of one predicted as negative, in single precision, whose mean underflows: the logarithm is linear."""
    data, field = np.ones(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    data[1, 2, 3], field[1, 2, 3] = 3, -depth

    def logdensity(field: Any) -> Any:
        return infer.Poisson(2.0).logdensity(jnp.asarray(data), field, {}, config)

    value, slope = jax.value_and_grad(logdensity)(jnp.asarray(field))
    assert value.dtype == np.float32
    of_cell = 3 * (np.log(2 * 0.05) - depth / 0.05 - 1) - np.log(6)
    np.testing.assert_allclose(value, of_cell + 119 * (np.log(2) - 2), rtol=1e-5)
    assert float(slope[1, 2, 3]) == pytest.approx(3 / 0.05, rel=1e-5)


def test_preconditioners_use_the_mean_noise(config: pmd.Config, field: np.ndarray) -> None:
    mask = np.zeros(SHAPE)
    mask[:2] = 1
    assert infer.Gaussian(0.5, mask=mask).noise_variance({}, config) == pytest.approx(0.5)
    assert infer.Poisson(4.0, mask=mask).noise_variance({}, config) == pytest.approx(0.5)
    contrast = np.asarray(infer.Poisson(4.0, mask=mask).contrast(8 * np.ones(SHAPE), {}))
    np.testing.assert_array_equal(contrast, mask)


def damaged(value: float) -> np.ndarray:
    data = np.ones(SHAPE)
    data[1, 2, 3] = value
    return data


@pytest.mark.parametrize(
    ("likelihood", "data", "message"),
    [
        (
            infer.Gaussian(1.0),
            damaged(np.nan),
            r"data holds 1 values that are no finite numbers, or too large, the first at \(1, 2, 3\)",
        ),
        (infer.Gaussian(1.0), damaged(1e30), r"1 values .* or too large, .*; mask those cells, or use other units or"),
        (infer.Gaussian(1.0), np.full(SHAPE, np.nan), "data of a failed simulation need a wider halo"),
        (infer.Gaussian(1e-14), np.ones(SHAPE), "holds 120 values that are no finite numbers, or too large"),
        (infer.Gaussian(1.0), np.ones((4, 4, 4)), r"data.shape=\(4, 4, 4\) must be mesh_shape=\(4, 6, 5\)"),
        (infer.Poisson(1.0), damaged(-1.0), "data=.*-1.0.* is no number of galaxies; use Gaussian"),
        (infer.Poisson(1.0), damaged(0.5), "data=.*0.5.* is no number of galaxies"),
        (infer.Poisson(1.0, selection=damaged(0.0)), 2 * np.ones(SHAPE), "holds galaxies where the selection is 0"),
        (infer.Gaussian(1.0, k_max=0.2), np.ones(SHAPE), "k_max=0.2 leaves no mode of a box of 30 Mpc/h; use more"),
        (infer.Gaussian(1.0, k_max=1.0), np.ones(SHAPE), "k_max=1.0 is beyond the Nyquist wavenumber, 0.6283 h/Mpc"),
        (infer.Gaussian(1.0, noise_k2=-1e6), np.ones(SHAPE), "noise_k2=-1000000.0 has noise of negative power at k = "),
        (infer.Poisson(np.ones((2, 2, 2))), np.ones(SHAPE), r"nbar.shape=\(2, 2, 2\) must be mesh_shape"),
        (infer.Gaussian(1.0, mask=np.ones((2, 2, 2))), np.ones(SHAPE), r"mask.shape=\(2, 2, 2\) must be mesh_shape"),
    ],
)
def test_wrong_data_are_refused(config: pmd.Config, likelihood: Any, data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.check(data, config)


MASK = np.where(np.arange(np.prod(SHAPE)).reshape(SHAPE) % 3 == 1, 0, 1)


def masked_likelihoods(hidden: float) -> dict[str, Any]:
    """Each kind, and its arguments with a value behind the mask."""
    where = np.where(MASK, 0.7, hidden)
    return {
        "gaussian": infer.Gaussian(where, mask=MASK),
        "free gaussian": infer.Gaussian("x", mask=MASK),
        "sloped gaussian": infer.Gaussian(where, slope="x", mask=MASK),
        "gaussian with a template": infer.Gaussian(0.7, templates={"x": where}, mask=MASK),
        "poisson with a template": infer.Poisson(0.7, templates={"x": where}, mask=MASK),
        "poisson": infer.Poisson(where, mask=MASK),
        "dispersed poisson": infer.Poisson(where, mask=MASK, dispersion="x"),
        "selected poisson": infer.Poisson("x", selection=where, mask=MASK),
    }


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -1e30, -1.6375e30, -1.7e308])  # with HEALPix's UNSEEN
@pytest.mark.parametrize("kind", masked_likelihoods(1.0))
def test_nothing_behind_a_mask_enters_arithmetic(
    kind: str, hidden: float, config: pmd.Config, field: np.ndarray
) -> None:
    """Of data, sigma, selection and prediction, in single precision: values and slopes are the same bits."""
    rng = np.random.default_rng(5)
    data = rng.poisson(2.0, SHAPE).astype(float)

    def evaluate(value: float) -> Any:
        likelihood = masked_likelihoods(value)[kind]
        there = np.where(MASK, data, value)
        likelihood.check(there, config)
        predicted = np.where(MASK, field, value)
        with np.errstate(over="ignore"):
            there, predicted = there.astype(np.float32), predicted.astype(np.float32)
        of = jax.value_and_grad(lambda f, x: likelihood.logdensity(jnp.asarray(there), f, {"x": x}, config), (0, 1))
        return of(jnp.asarray(predicted), jnp.float32(1.3)), likelihood.contrast(jnp.asarray(there), {"x": 1.3})

    (value, (slope, of_parameter)), contrast = evaluate(hidden)
    assert np.isfinite(value)
    assert np.asarray(slope)[MASK == 1].all()
    assert not np.asarray(slope)[MASK == 0].any()
    jax.tree.map(np.testing.assert_array_equal, ((value, (slope, of_parameter)), contrast), evaluate(1.0))


@pytest.mark.parametrize("hidden", [np.nan, -1e30, -1.7e308])
def test_a_posterior_is_independent_of_hidden_data(hidden: float, config: pmd.Config, field: np.ndarray) -> None:
    model = infer.Model(config, lambda noise, parameters: 1 + noise, {}, infer.Gaussian(1.0, mask=MASK))
    data = model.condition(np.where(MASK, field, hidden)).data
    np.testing.assert_array_equal(data, np.where(MASK, field, 1))


MASKED = np.ma.masked_array(np.ones(SHAPE), MASK == 0)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c: infer.Gaussian(MASKED), "sigma"),
        (lambda c: infer.Gaussian(1.0, mask=MASKED), "mask"),
        (lambda c: infer.Poisson(MASKED), "nbar"),
        (lambda c: infer.Poisson(1.0, selection=MASKED), "selection"),
        (lambda c: infer.Gaussian(1.0).check(MASKED, c), "data"),
        (lambda c: infer.Poisson(1.0).check([*MASKED], c), "data"),
        (lambda c: pmd.observe.expected_counts(np.ones(SHAPE), c, number_density=1.0, selection=MASKED), "selection"),
        (lambda c: pmd.observe.expected_counts(np.ones(SHAPE), c, number_density=1.0, mask=MASKED), "mask"),
        (lambda c: pmd.observe.weighted_overdensity(np.ones(SHAPE), MASKED, c), "weight"),
        (lambda c: pmd.power_spectrum(MASKED, c), "field"),
        (lambda c: pmd.observe.angular_power(np.ma.masked_less(np.arange(48.0), 5)), "field"),
    ],
)
def test_masked_arrays_of_numpy_are_refused(call: Any, name: str, config: pmd.Config) -> None:
    with pytest.raises(ValueError, match=f"^{name} is a masked array of NumPy, and its mask would be lost; pass x"):
        call(config)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"x": 1e6 * FRONT}, "template x: changes predictions by .* times; narrow its prior, or scale its field"),
        ({"x": 0 * FRONT}, "template x: is 0 wherever there are data; leave it out"),
        ({"x": FRONT, "y": -2 * FRONT}, "template y: is x up to a factor; leave one of them out"),
    ],
)
def test_templates_that_no_data_can_have_are_warned_of(templates: Any, message: str, config: pmd.Config) -> None:
    priors = {name: infer.Normal(0.0, 0.1) for name in templates}
    with pytest.warns(UserWarning, match=message):
        infer.Model(config, lambda noise, parameters: noise, priors, infer.Gaussian(1.0, templates=templates))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: infer.Gaussian(0.0), "sigma=0.0 must be positive and finite"),
        (lambda: infer.Gaussian(1e-30), "sigma=1e-30 must be positive and finite, from 1e-15 to 1e15"),
        (lambda: infer.Gaussian(1.0, mask=np.zeros(SHAPE)), "mask hides every cell"),
        (lambda: infer.Gaussian(1.0, mask=0.5 * np.ones(SHAPE)), "mask must hold only 0 and 1"),
        (lambda: infer.Poisson(1.0, bins=FRONT), "nbar=1.0 must be a name where there are bins"),
        (lambda: infer.Poisson("n", bins=2 * FRONT), "bins hold 0, 2 where there are data; number them 0, 1, 2"),
        (lambda: infer.Gaussian(1.0, templates=[FRONT]), "templates must map names of amplitudes to fields"),
        (lambda: infer.Gaussian(1.0, templates={"A": np.full(SHAPE, np.inf)}), "templates.'A'. must be finite, a"),
        (lambda: infer.Poisson(1.0, dispersion=0.0), "dispersion=0.0 must be positive; or pass the name"),
        (lambda: infer.Gaussian(1.0, noise_k2=1.0, mask=FRONT), "noise_k2=1.0 can't be used with a mask, a field of"),
        (lambda: infer.Gaussian(1.0, slope=np.nan), "slope=nan must be a finite number"),
        (lambda: infer.Gaussian(1.0, small_scale_noise=0.0), "small_scale_noise=0.0 must be a finite number from 0.1"),
        (lambda: infer.Gaussian(1.0, k_max=-1.0), "k_max=-1.0 must be positive"),
        (lambda: infer.Gaussian(1.0, k_max=True), "k_max=True must be positive and finite; leave it out"),
        (lambda: infer.Gaussian(1.0, k_max=np.inf), "k_max=inf must be positive and finite; leave it out"),
        (lambda: infer.Gaussian(1.0, slope=-50), "slope=-50 must be a finite number from -1 to 10; or pass the name"),
        (lambda: infer.Poisson(1.0, dispersion=1e30), "dispersion=1e.30 must be a finite number from 0 to 100; or"),
        (lambda: infer.Poisson(np.inf), "nbar=inf must be positive and finite"),
        (lambda: infer.Poisson(np.float32([1, 1e10]).repeat(4).reshape(2, 2, 2)), "nbar=10000000000.0 must be at most"),
        (lambda: infer.Gaussian(None), "sigma=None must be positive"),
        (lambda: infer.Gaussian(1.0, k_max="0.1"), "k_max='0.1' must be positive"),
        (lambda: infer.Poisson(1.0, selection=np.zeros(SHAPE)), "selection is 0 in every cell; it is"),
        (lambda: infer.Poisson(1.0, selection=FRONT, mask=1 - FRONT), "0 in every cell that the mask shows"),
        (
            lambda: infer.Gaussian(FRONT[:2] + 1, mask=FRONT),
            r"sigma.shape=.2, 6, 5. must be that of the mask",
        ),
        (
            lambda: infer.Poisson(1.0, selection=-np.ones(SHAPE)),
            "selection must be 0 or more and finite",
        ),
        (lambda: infer.Gaussian("sd", slope="sd"), "names='sd' stands for two parameters; rename one"),
        (lambda: infer.Gaussian(1.0, slope="h"), "slope='h' is the name of a parameter of the cosmology; rename it"),
        (lambda: infer.LagrangianGalaxies(b1="n_s"), "b1='n_s' is the name of a parameter of the cosmology"),
        (lambda: infer.LagrangianGalaxies(b1="b", bphi="b", smoothing=8.0), "names='b' stands for two parameters"),
        (lambda: infer.Poisson("n", bins=FRONT, dispersion="n_0"), "names='n_0' stands for two parameters"),
        (lambda: infer.Gaussian(1.0, templates={1: FRONT}), "templates must map names of amplitudes to fields"),
        (lambda: infer.Poisson("n", bins=FRONT[:2], selection=FRONT), r"bins.shape=\(2, 6, 5\) must be that of the"),
        (lambda: infer.Poisson("n", bins=0), r"bins.shape=\(\) must be that of the mesh"),
        (lambda: infer.Poisson(1.0, selection=7 * FRONT, mask=FRONT), "selection=7.0 must not exceed 1; pass shares"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
