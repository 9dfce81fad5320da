"""Posteriors: the analytic one of a linear, Gaussian model; layouts, gradients, failures."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.sampled import parameters_at
from pmwd_dist.infer import (
    Gaussian,
    LagrangianGalaxies,
    Likelihood,
    LinearField,
    LogNormal,
    Model,
    Normal,
    Posterior,
    Simulation,
    Uniform,
)

SHAPE, BOX, BIAS, SIGMA = (8, 6, 4), (80.0, 60.0, 40.0), 1.7, 0.6


def configure(pdims: tuple[int, int] = (1, 1), **changes: Any) -> pmd.Config:
    devices = jax.devices()[: math.prod(pdims)]
    settings = {"box_size": BOX, "mesh_shape": SHAPE, "a_stop": 0.5, "decomposition": pmd.Decomposition(pdims, devices)}
    return pmd.Config(**(settings | changes))


@pytest.fixture(scope="module", params=[None, 0.25], ids=["all modes", "long modes"])
def linear(request: pytest.FixtureRequest, cosmo: Any) -> Posterior:
    """No parameters, the noise alone; of data that are compared in all modes, or up to a k_max."""
    config, likelihood = configure(), Gaussian(SIGMA, k_max=request.param)
    model = Model(config, LinearField(config, cosmo, bias=BIAS), {}, likelihood)
    data = 1 + np.random.default_rng(0).standard_normal(SHAPE)  # any data have a posterior
    return model.condition(data)


def wiener(posterior: Posterior, cosmo: Any) -> tuple[np.ndarray, np.ndarray]:
    """Posterior variance of each mode of the noise and posterior mean, by NumPy over the full transform."""
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, BOX)))
    growth = float(pmd.growth(0.5, cosmo))
    power = np.where(k > 0, np.asarray(pmd.linear_power(np.where(k > 0, k, 1), cosmo)), 0)
    response = BIAS * growth * np.sqrt(power * math.prod(SHAPE) / math.prod(BOX))
    response = np.where(k <= (posterior.model.likelihood.k_max or np.inf), response, 0)  # of what is compared
    variance = 1 / (1 + response**2 / SIGMA**2)
    mean = np.fft.ifftn(variance * response / SIGMA**2 * np.fft.fftn(np.asarray(posterior.data) - 1)).real
    return variance, mean


def test_a_linear_gaussian_posterior_agrees_with_wiener(linear: Posterior, cosmo: Any) -> None:
    variance, mean = wiener(linear, cosmo)
    assert variance.min() < 0.05 and variance.max() > 0.8  # modes that data fix, and modes that they do not
    away = np.random.default_rng(1).standard_normal(SHAPE)
    expected = mean + np.fft.ifftn(np.sqrt(variance) * np.fft.fftn(away)).real
    (_, slope), noise = evaluate(linear, {"noise": away, "parameters": {}})
    np.testing.assert_allclose(noise, expected, atol=1e-4)  # P(k) is interpolated
    # In the whitened position the posterior is exactly a unit Gaussian.
    np.testing.assert_allclose(slope["noise"], -away, atol=1e-4)


def test_a_posterior_of_long_modes_behind_a_mask_agrees_with_dense_matrices(cosmo: Any) -> None:
    config, rng, excess, k_max = configure(), np.random.default_rng(3), 4.0, 0.25
    sigma, mask = rng.uniform(0.3, 1.0, SHAPE), rng.random(SHAPE) < 0.6
    likelihood = Gaussian(sigma, mask=mask, k_max=k_max, small_scale_noise=excess)
    model = Model(config, LinearField(config, cosmo, bias=BIAS, line_of_sight="z"), {}, likelihood)
    posterior, count = model.condition(1 + rng.standard_normal(SHAPE)), math.prod(SHAPE)
    units = np.eye(count).reshape(-1, *SHAPE)
    response = np.asarray(jax.vmap(lambda x: model.forward(x, {}) - 1)(jnp.asarray(units))).reshape(count, -1).T
    k = np.sqrt(sum(k_**2 for k_ in problems.wavevectors(SHAPE, BOX)))
    cells, width = mask.ravel(), sigma.ravel()
    noise = np.outer(width, width) * (np.eye(count) + excess**2 * problems.filter_matrix((k > k_max) | (k == 0)))
    seen = (problems.filter_matrix(k <= k_max) @ response)[cells]
    weighted = np.linalg.solve(noise[np.ix_(cells, cells)], seen)
    precision = np.eye(count) + seen.T @ weighted
    assert np.linalg.eigvalsh(precision)[-1] > 5
    mean = np.linalg.solve(precision, weighted.T @ (np.ravel(posterior.data)[cells] - 1))
    here, there = ({"noise": x, "parameters": {}} for x in rng.standard_normal((2, *SHAPE)))
    (value, slope), found = evaluate(posterior, here)
    (other, _), elsewhere = evaluate(posterior, there)
    away, far = (np.ravel(x) - mean for x in (found, elsewhere))
    expected = (far @ precision @ far - away @ precision @ away) / 2
    assert float(value - other) == pytest.approx(expected, rel=1e-9)
    # Positions are a linear map of the noise.
    moved = evaluate(posterior, {"noise": here["noise"] + there["noise"], "parameters": {}})[1]
    along = -(precision @ away) @ np.ravel(moved - found)
    assert float(np.vdot(slope["noise"], there["noise"])) == pytest.approx(along, rel=1e-9)


def test_starts_are_draws_of_the_linear_posterior(linear: Posterior, cosmo: Any) -> None:
    variance, mean = wiener(linear, cosmo)

    def draw(key: Any) -> Any:
        return linear.from_latent(linear.initial(key))[0]

    noise = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(3), 400)))
    error = np.fft.fftn(noise - mean, axes=(1, 2, 3), norm="ortho")
    ratio = np.mean(abs(error) ** 2, 0) / variance
    assert abs(ratio - 1).max() < 5 * math.sqrt(2 / 400)  # five standard errors
    assert abs(ratio.mean() - 1) < 5 * math.sqrt(2 / 400 / math.prod(SHAPE))
    away = np.fft.fftn(noise.mean(0) - mean, norm="ortho")
    assert abs(away / np.sqrt(variance / 400)).max() < 5


@eqx.filter_jit
def evaluate(posterior: Posterior, position: Any) -> tuple[Any, Any]:
    """Log density and its gradient, and the white noise."""
    return jax.value_and_grad(posterior.logdensity)(position), posterior.from_latent(position)[0]


def test_the_weight_is_the_power_of_the_likelihood(linear: Posterior) -> None:
    """Of the likelihood alone: without it the density is the prior."""
    here, there = ({"noise": x, "parameters": {}} for x in np.random.default_rng(2).standard_normal((2, *SHAPE)))
    none, some, one = (evaluate(linear.weighted(weight), here) for weight in (0.0, 0.3, 1.0))
    (other, _), elsewhere = evaluate(linear.weighted(0.0), there)
    prior = 0.5 * np.sum(np.square(elsewhere)) - 0.5 * np.sum(np.square(none[1]))
    np.testing.assert_allclose(none[0][0] - other, prior, rtol=1e-9)
    for x, y, z in zip(*map(jax.tree.leaves, (none[0], some[0], one[0])), strict=True):
        np.testing.assert_allclose(y, 0.7 * x + 0.3 * z, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"weight=-0.1 must be a finite number, 0 or more; use 1"):
        linear.weighted(-0.1)


def test_gradients_agree_with_differences(cosmo: Any) -> None:
    """Two steps of N-body, galaxies with a Lagrangian bias in redshift space, counted by the nearest cell."""
    config = configure(mesh_shape=8, box_size=80.0, steps=2)
    galaxies = LagrangianGalaxies(b1="b1", line_of_sight="z", window="nearest")
    model = Model(config, Simulation(config, cosmo, observable=galaxies), {"b1": BOTH["b1"]}, Gaussian(SIGMA))
    position, rng, step = model.draw(jax.random.key(0), b1=0.8), np.random.default_rng(5), 1e-6
    posterior = model.condition(1 + rng.standard_normal((8, 8, 8)))
    direction = {"noise": rng.standard_normal((8, 8, 8)), "parameters": {"b1": np.asarray(0.5)}}
    (_, slope), _ = evaluate(posterior, position)
    ends = [jax.tree.map(lambda x, d, h=h: x + h * d, position, direction) for h in (step, -step)]
    high, low = (float(evaluate(posterior, end)[0][0]) for end in ends)
    along = zip(jax.tree.leaves(slope), jax.tree.leaves(direction), strict=True)
    assert (high - low) / (2 * step) == pytest.approx(sum(float(np.sum(a * b)) for a, b in along), rel=1e-5)
    # Long waves are those of linear theory: bias, redshift distortion and growth of the response.
    long = model.forward.response({"b1": 0.8})[:2, 0, 1] / Simulation(config, cosmo).response({})[:2, 0, 1]
    f = float(pmd.growth_rate(0.5, cosmo))
    np.testing.assert_allclose(long, [1.8 + f, 1.8 + f / 2], rtol=1e-6)
    cic = Simulation(config, cosmo, observable=LagrangianGalaxies(b1="b1", line_of_sight="z"))
    noise = pmd.white_noise(jax.random.key(1), config)
    density, other = jax.jit(lambda x: (model.forward(x, {"b1": 0.8})[0], cic(x, {"b1": 0.8})[0]))(noise)
    np.testing.assert_allclose(density, pmd.observe.with_window(other, config, "nearest"), atol=1e-10)


def test_galaxies_respond_to_the_potential_of_the_modes(cosmo: Any) -> None:
    config, galaxies, numbers = configure(), LagrangianGalaxies(bphi=50.0), {"f_nl": 500.0, "Omega_m": 0.3}
    simulation = Simulation(config, cosmo, gravity="lpt", observable=galaxies, linear_power="eisenstein-hu")
    noise = jnp.asarray(np.random.default_rng(0).standard_normal(SHAPE))
    field, (modes, table) = simulation(noise, numbers)[0], simulation.linear_modes(noise, numbers)
    arguments = pmd.lpt(modes, table, config, a=config.a_stop), modes, numbers, table, config
    expected = replace(galaxies, linear_power="eisenstein-hu")(*arguments)
    np.testing.assert_allclose(field, expected, rtol=1e-6)
    assert np.abs(galaxies(*arguments) - expected).max() > 1e-3  # of the default P(k)


@pytest.mark.parametrize("power", [None, "eisenstein-hu"])
def test_a_forward_model_with_another_cosmology_takes_its_power(cosmo: Any, power: str | None) -> None:
    config, noise = configure(), jnp.asarray(np.random.default_rng(0).standard_normal(SHAPE))
    other, forward = jax_cosmo.Planck15(sigma8=0.4), LinearField(config, cosmo, linear_power=power)
    expected = LinearField(config, other, linear_power=power)(noise, {})[0]
    np.testing.assert_allclose(replace(forward, cosmo=other)(noise, {})[0], expected, rtol=1e-12)


def table_of(cosmo: Any, factor: float, low: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    k = np.geomspace(low, 50, 2000)
    return k, factor * np.asarray(pmd.linear_power(k, cosmo))


@pytest.mark.parametrize("kind", ["linear", "lpt"])
def test_sigma8_scales_a_table_that_is_normalised(kind: str, cosmo: Any) -> None:
    """A table of Eisenstein & Hu in any unit: fields and slopes are those without a table."""
    config, options = configure(), {"linear_power": table_of(cosmo, 7.0), "normalise": True}
    make: Any = partial(Simulation, gravity="lpt") if kind == "lpt" else LinearField
    noise, weight = np.random.default_rng(0).standard_normal((2, *SHAPE))

    def evaluate(forward: Any, sigma8: float) -> Any:
        def total(sigma8: Any) -> Any:
            out = forward(noise, {"sigma8": sigma8})
            field = out[0] if isinstance(out, tuple) else out
            return jnp.vdot(weight, field), field

        (_, field), slope = jax.value_and_grad(total, has_aux=True)(sigma8)
        return field, slope

    for found, expected in zip(
        evaluate(make(config, cosmo, **options), 0.7), evaluate(make(config, cosmo), 0.7), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    fixed, same = make(config, cosmo, **options)(noise, {}), make(config, cosmo)(noise, {})
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), fixed, same)


@pytest.mark.filterwarnings("ignore:data are 1 everywhere")
def test_a_failed_simulation_has_no_density() -> None:
    config = configure()
    position = {"noise": 0.1 * jnp.ones(SHAPE), "parameters": {}}
    for forward, expected in (
        (lambda noise, _: 1 + noise, -0.5 * 192 * 0.01 * (1 + 1 / SIGMA**2) - 192 * math.log(SIGMA)),
        (lambda noise, _: (1 + noise, jnp.asarray(0)), -0.5 * 192 * 0.01 * (1 + 1 / SIGMA**2) - 192 * math.log(SIGMA)),
        (lambda noise, _: (1 + noise, jnp.asarray(2)), -np.inf),  # a status
        (lambda noise, _: 1 + noise * jnp.nan, -np.inf),
    ):
        posterior = Model(config, forward, {}, Gaussian(SIGMA)).condition(np.ones(SHAPE))
        np.testing.assert_allclose(posterior.logdensity(position), expected, rtol=1e-12)


class Bare(Likelihood):
    """A likelihood without the methods for preconditioning."""

    def logdensity(self, data: Any, field: Any, parameters: Any, config: pmd.Config) -> Any:
        return -0.5 * jnp.sum((data - field) ** 2)

    def draw(self, key: Any, field: Any, parameters: Any, config: pmd.Config) -> Any:
        return field

    def check(self, data: Any, config: pmd.Config) -> None:
        """All data can be."""


def test_positions_are_the_noise_without_linear_theory(cosmo: Any) -> None:
    """Of the forward model or the likelihood, or on the lattice; until `sample` adapts them."""
    config, finer = configure(), configure(particle_shape=(4, 3, 2))
    linear, simulation = LinearField(config, cosmo), Simulation(finer, cosmo, gravity="lpt")

    def away(config: pmd.Config, forward: Any, likelihood: Any) -> float:
        posterior = Model(config, forward, {}, likelihood).condition(np.arange(192.0).reshape(SHAPE) / 100)
        position = posterior.model.draw(jax.random.key(0))
        return float(np.abs(posterior.from_latent(position)[0] - position["noise"]).max())

    assert away(config, linear, Gaussian(0.01)) > 1
    assert away(config, lambda noise, _: noise, Gaussian(1.0)) < 1e-12
    assert away(config, linear, Bare()) < 1e-12
    assert away(finer, simulation, Gaussian(1.0)) < 1e-12


BOTH = {"b1": Uniform(0.1, 4.0), "bias": Uniform(0.1, 4.0)}
NUMBERS = np.arange(192.0).reshape(SHAPE) / 100


def model_of(priors: Any, forward: Any = lambda noise, _: noise, likelihood: Any = Gaussian(1.0)) -> Model:  # noqa: B008
    return Model(configure(), forward, priors, likelihood)


def fields_of(cosmo: Any, **options: Any) -> Any:
    return LinearField(configure(), cosmo, **options)


def simulation_of(cosmo: Any, **options: Any) -> Any:
    return Simulation(configure(), cosmo, **options)


def falling(cosmo: Any) -> Any:
    return [x[::-1] for x in table_of(cosmo, 1.0)]


def tabulated(cosmo: Any, numbers: Any, low: float = 1e-5, **options: Any) -> Any:
    forward = fields_of(cosmo, **({"linear_power": table_of(cosmo, 1.0, low)} | options))
    return forward(jnp.zeros(SHAPE), jax.tree.map(jnp.asarray, numbers))


GALAXIES = LagrangianGalaxies
REFUSED: list[tuple[Any, str]] = [
    (lambda c: model_of({}, fields_of(c, bias="b1")), r"priors=\[\] lacks 'b1'; add a prior of b1"),
    (lambda c: model_of({}, simulation_of(c, observable=GALAXIES(b1="x"))), "lacks 'x'"),
    (lambda _: model_of({}, likelihood=Gaussian("sd")), "lacks 'sd'"),
    (lambda c: model_of({}, fields_of(c), Gaussian("wa")), "likelihood='wa' is the name of a parameter of the forward"),
    (lambda _: model_of(dict.fromkeys(("Omega_m", "Omega_c"), Uniform(0.1, 0.5))), "both Omega_m and Omega_c"),
    (
        lambda _: model_of(BOTH, lambda noise, p: 1 + noise * p["b1"]).condition(NUMBERS),
        r"priors=.* holds bias, which neither .* uses; leave it out, or look at how",
    ),
    (lambda c: model_of({"sd": BOTH["b1"]}, fields_of(c)).condition(NUMBERS), "holds sd, which neither"),
    (lambda _: model_of(BOTH, likelihood=3.0), "likelihood=3.0 is no likelihood; use infer.Gaussian .* or a sub"),
    (
        lambda c: Model(configure(steps=7), fields_of(c), {}, Gaussian(1.0)),
        "forward is of another simulation; make it with the config of the model",
    ),
    (
        lambda c: LinearField(configure(particle_shape=(4, 3, 2)), c),
        r"particle_shape=\(4, 3, 2\) must be mesh_shape=.* for a linear field",
    ),
    (lambda c: simulation_of(c, gravity="linear"), 'gravity=.* must be "nbody" or "lpt"'),
    (lambda c: fields_of(c, bias="sigma8"), "bias='sigma8' is the name of a parameter of the cosmology; rename it"),
    (lambda c: fields_of(c, bias=1e30), r"bias=1e\+30 must be a finite number from -10000 to 10000; or pass the name"),
    (lambda c: simulation_of(c, bias=jnp.asarray(jnp.nan)), r"bias=Array\(nan.* must be a finite .* to 10000; or pass"),
    (lambda c: simulation_of(c, bias="b", observable=GALAXIES()), "bias='b' has no effect beside an obs.*; leave one"),
    (lambda c: simulation_of(c, observable=3), "observable=3 must be a function; use Lagrangian"),
    (lambda c: simulation_of(c, solver="euler"), "solver='euler' must be a solver"),
    (lambda c: simulation_of(c, potential_factor=3), r"potential_factor=3 must be a function of"),
    (lambda c: fields_of(c, linear_power=3), "linear_power must be a table .k, P., a function, or a name"),
    (lambda c: fields_of(c, linear_power=falling(c)), r"not sorted: k\[1\]=49.*; k must be positive and rise"),
    (lambda _: GALAXIES(b1=np.nan), "b1=nan must be a finite number"),
    (lambda _: GALAXIES(smoothing=jnp.asarray(-1.0)), "smoothing=Array.* must be a finite number"),
    (lambda _: GALAXIES(b2="b2"), "smoothing=None must be given: the operator of b2 diverges"),
    (lambda _: GALAXIES(window="ngp"), "window='ngp' must be 'nearest', 'cloud-in-cell' or"),
    (lambda _: GALAXIES(line_of_sight="w"), "line_of_sight='w' must be 'x', 'y', 'z' or three"),
    (lambda c: GALAXIES(bphi=1.0, linear_power=falling(c)), "linear_power is not sorted"),
    (lambda _: model_of(BOTH).draw(3), "key=3 must be a key; for example jax.random.key"),
    (lambda _: Likelihood(), "abstract"),  # type: ignore[abstract]
    # Parameters without an effect on a table.
    (lambda c: tabulated(c, {"sigma8": 0.8}), "is fixed, and sigma8 would not .*; use normalise=True, or leave"),
    (lambda c: tabulated(c, {"sigma8": 0.8, "n_s": 1.0}, normalise=True), "is fixed, and n_s would not .* it; leave"),
    (lambda c: tabulated(c, {}, normalise=True, linear_power=None), "normalise=True needs .* as a table; leave it out"),
    (lambda c: tabulated(c, {}, normalise=True, linear_power=lambda k: 1 / k), "normalise=True needs linear_power as"),
    (lambda c: tabulated(c, {}, 0.06, normalise=True), "linear_power covers k=0.06..50 h/Mpc, but sigma8 needs"),
    # Priors.
    (lambda _: model_of({"h": 3.0}), r"priors\['h'\]=3.0 is no prior; use infer.Normal"),
    (lambda _: model_of({"h": Normal(0.7, 1e-300)}), r"\['h'\]=Normal.* has 0.7, 0.7, 0.7 as its median and two dev"),
    (lambda _: model_of({"b1": LogNormal(1.0, 1e3)}), "has .*inf as its median"),
    (lambda _: model_of({"h": Uniform(-2.0, -1.0)}), "has a median that is not positive; bound it from below"),
    (lambda _: model_of({"sigma8": Uniform(-5.0, 6.0)}), "allows -5, and sigma8 is not negative; bound it .* with low"),
    (lambda _: model_of({"w0": Uniform(-50.0, 3.0)}), "allows -48.8, within two .*, and w0 is an eq.*; use bounds"),
    (lambda _: model_of({"m_nu": Uniform(0.0, 99.0)}), "allows 96.7, .* use bounds from 0 to 10"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
@pytest.mark.usefixtures("unchecked")
def test_wrong_models_are_refused(make: Any, message: str, cosmo: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(cosmo)


class Own(Gaussian):
    """A user's likelihood with a wrong method."""

    wrong: tuple[str, Any] = eqx.field(static=True)

    def __init__(self, name: str, method: Any):
        super().__init__(1.0)
        self.wrong = name, method

    def logdensity(self, data: Any, field: Any, parameters: Any, config: Any) -> Any:
        return self._result("logdensity", field, super().logdensity(data, field, parameters, config))

    def draw(self, key: Any, field: Any, parameters: Any, config: Any) -> Any:
        return self._result("draw", field, field)

    def contrast(self, data: Any, parameters: Any) -> Any:
        return self._result("contrast", data, data - 1)

    def _result(self, name: str, field: Any, right: Any) -> Any:
        return self.wrong[1](field) if name == self.wrong[0] else right


WRONG: list[tuple[str, Any, str]] = [
    ("forward", lambda *_: None, r"returns None, and must return a field of shape \(8, 6, 4\)"),
    ("forward", lambda noise, _: noise[:, :, 0], r"returns an array of shape \(8, 6\), and must return a field"),
    ("forward", lambda noise, _: 1j * noise, r"returns a complex array of shape \(8, 6, 4\), and must return a field"),
    ("forward", lambda noise, _: (noise, None, None), "returns a tuple, and must return a field"),
    ("forward", lambda *_: (None, None), "returns None, and must return a field of"),
    ("likelihood.logdensity", lambda _: None, r"returns None, and must return a number of shape \(\)"),
    ("likelihood.logdensity", jnp.square, r"returns an array of shape \(8, 6, 4\), and must return a number"),
    ("likelihood.draw", jnp.sum, r"returns an array of shape \(\), and must return data of shape \(8, 6, 4\)"),
    ("likelihood.contrast", jnp.mean, r"returns an array of shape \(\), and must return a field"),
]


@pytest.mark.parametrize(("name", "function", "message"), WRONG)
def test_wrong_shapes_from_user_functions_are_refused(name: str, function: Any, message: str, cosmo: Any) -> None:
    forward = function if name == "forward" else fields_of(cosmo)
    model = model_of({}, forward, Own(name.removeprefix("likelihood."), function))
    position = model.draw(jax.random.key(0))

    def use() -> None:
        eqx.filter_jit(model.condition(NUMBERS).logdensity)(position)
        model.mock(jax.random.key(1), position)

    with pytest.raises(ValueError, match=f"^{name} {message}"):
        use()


CONTRAST = np.random.default_rng(0).standard_normal(SHAPE)
CONTRAST -= CONTRAST.mean()
FRONT = (np.indices(SHAPE)[0] == 0).astype(float)


UNLIKELY: list[tuple[Any, str]] = [
    (
        lambda c: model_of({"Omega_m": Uniform(0.2, 0.9)}, fields_of(c)),
        "priors.'Omega_m'.: at 0.8841, within two deviations of its median, Omega_m h.2 = 0.4.* compared with CAMB",
    ),
    (
        lambda c: model_of({"w0": Normal(-0.7, 0.2)}, fields_of(c)),
        "'w0'.: at -0.3, .* P.k. was not compared with CAMB at wavenumbers of the box, from 0.078 h/Mpc on",
    ),
    (lambda c: model_of({"sigma8": Normal(0.8, 0.5)}, fields_of(c)), "'sigma8'.: 0 is within two dev.*; bound it"),
    (lambda c: model_of({"wa": Uniform(0.1, 1.4)}, fields_of(c)), r"at 1.37, .*, w0 \+ wa = 0.37 must be less than 0"),
    (
        lambda c: model_of({}, fields_of(c), Gaussian(1.0, mask=FRONT)).condition(np.where(FRONT, 3.0, NUMBERS)),
        "data are 3 everywhere: nothing is known of phases",
    ),
    (lambda c: model_of({}, fields_of(c)).condition(CONTRAST), "data have a mean of about 0, as of a contrast"),
    (lambda c: model_of({}, fields_of(c)).condition(9 * NUMBERS), "data have a mean of 8.6; densities are in units"),
    (
        lambda c: model_of({}, fields_of(c), pmd.infer.Poisson(5e-4, selection=0.5)).condition(np.round(NUMBERS)),
        "data have a mean of 0.953 galaxies in a cell, and nbar and the selection expect 0.00025",
    ),
]


@pytest.mark.parametrize(("make", "message"), UNLIKELY)
def test_unlikely_models_raise_a_warning(make: Any, message: str, cosmo: Any) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        make(cosmo)
    assert caught[0].filename == __file__ or "data" not in message


def test_a_prior_of_n_eff_holds_beside_one_of_masses(cosmo: Any) -> None:
    found = parameters_at({"n_eff": 2.6, "m_nu": 0.1}, pmd.growth_table(cosmo).cosmo)
    assert float(found.n_eff) == pytest.approx(2.6)


def test_a_linear_field_does_not_depend_on_the_orientation_of_the_lattice() -> None:
    """Seen along an oblique line of sight; components at the Nyquist frequency have no sign."""
    config, noise = (
        pmd.Config(40.0, (4, 6, 8), decomposition=(1, 1)),
        np.random.default_rng(3).standard_normal((4, 6, 8)),
    )

    def field(noise: Any, n: tuple[float, ...]) -> np.ndarray:
        return np.asarray(LinearField(config, problems.cosmology(), line_of_sight=n)(noise, {}))

    expected = field(noise, (1.0, 2.0, -2.0))
    mirrored = field(np.roll(noise[::-1], 1, 0), (-1.0, 2.0, -2.0))
    np.testing.assert_allclose(mirrored, np.roll(expected[::-1], 1, 0), rtol=0, atol=1e-12)


def test_starts_are_closer_to_the_medians_than_the_prior(cosmo: Any) -> None:
    config = configure(mesh_shape=8)
    model = Model(config, LinearField(config, cosmo, bias="b1"), {"b1": BOTH["b1"]}, Gaussian(SIGMA))
    posterior = model.condition(1 + np.random.default_rng(0).standard_normal((8, 8, 8)))
    u = np.asarray(
        jax.vmap(lambda key: posterior.whitened(posterior.initial(key))["b1"])(jax.random.split(jax.random.key(4), 400))
    )
    assert abs(u.std() - 0.5) < 5 * 0.5 / math.sqrt(800) and abs(u.mean()) < 5 * 0.5 / math.sqrt(400)
