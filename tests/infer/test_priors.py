"""Priors: quantiles, densities and inverses against SciPy, far into the tails."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pmwd_dist import infer
from pmwd_dist.cosmology.sampled import COSMOLOGY
from pmwd_dist.cosmology.sampled_parameters import BIASES, PARAMETERS
from pmwd_dist.infer.priors import unwhiten, whiten
from pmwd_dist.observe.bias import LagrangianBias

CASES: dict[str, tuple[Any, Any]] = {
    "normal": (infer.Normal(0.3, 0.05), stats.norm(0.3, 0.05)),
    "truncated": (infer.Normal(0.8, 0.15, low=0.1), stats.truncnorm((0.1 - 0.8) / 0.15, np.inf, 0.8, 0.15)),
    "bounded": (infer.Normal(1.0, 2.0, low=0.5, high=1.5), stats.truncnorm(-0.25, 0.25, 1.0, 2.0)),
    "above": (infer.Normal(0.0, 1.0, low=4.7), stats.truncnorm(4.7, np.inf)),
    "below": (infer.Normal(1.0, 2.0, low=-8.4, high=-8.0), stats.truncnorm(-4.7, -4.5, 1.0, 2.0)),
    "uniform": (infer.Uniform(-1.0, 3.0), stats.uniform(-1.0, 4.0)),
    "log-normal": (infer.LogNormal(2.0, 0.4), stats.lognorm(0.4, scale=2.0)),
}


@partial(jax.jit, static_argnums=0)
def everything(prior: Any, u: Any) -> Any:
    value, slope = jax.vmap(jax.value_and_grad(prior.forward))(u)
    return value, prior.inverse(value), slope


@pytest.mark.parametrize("name", CASES)
def test_parameters_have_the_quantiles_and_the_density_of_scipy(name: str) -> None:
    prior, reference = CASES[name]
    u = np.linspace(-5, 5, 21)
    value, inverse, slope = map(np.asarray, everything(prior, jnp.asarray(u)))
    # Quantiles from the nearer end: those of SciPy lose digits at the other.
    expected = np.where(u < 0, reference.ppf(stats.norm.cdf(u)), reference.isf(stats.norm.sf(u)))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(inverse, u, atol=1e-6)
    # A change of variables: p(value) d value / du is the standard normal density.
    np.testing.assert_allclose(np.log(slope) + reference.logpdf(value), stats.norm.logpdf(u), rtol=1e-6)


def test_single_precision_holds_five_standard_deviations() -> None:
    with jax.enable_x64(False):
        u = jnp.linspace(-5, 5, 21)
        for name, first in (("truncated", 0), ("above", 2)):
            value, inverse, slope = everything(CASES[name][0], u)
            assert value.dtype == jnp.float32
            np.testing.assert_allclose(inverse[first:], u[first:], atol=0.03)
            assert np.isfinite(slope).all() and (slope > 0).all()


def test_a_prior_excludes_values_outside_its_bounds() -> None:
    for prior, value in ((infer.Normal(0.8, 0.15, low=0.1), 0.09), (infer.Uniform(0.0, 1.0), 1.1)):
        assert not np.isfinite(prior.inverse(value))
    assert not np.isfinite(infer.LogNormal(1.0, 1.0).inverse(-1.0))
    priors = {"b1": infer.Uniform(0.5, 4.0)}
    with pytest.raises(ValueError, match=r"b1=5.0 is excluded by its prior Uniform\(low=0.5, high=4.0\)"):
        whiten({"b1": 5.0}, priors)
    with pytest.raises(ValueError, match="b2=1.0 has no prior; use one of b1"):
        whiten({"b2": 1.0}, priors)
    for wrong in ("x", [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"^b1.* must be (a|one) finite number$"):
            whiten({"b1": wrong}, priors)
    np.testing.assert_allclose(unwhiten(whiten({"b1": 2.0}, priors), priors)["b1"], 2.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: infer.Normal(0.0, -1.0), "sd=-1.0 must be positive"),
        (lambda: infer.Normal(np.nan, 1.0), "mean=nan must be a finite number"),
        (lambda: infer.Normal(0.0, 1.0, low=2.0, high=1.0), "low=2.0 must be less than high=1.0"),
        (lambda: infer.Normal(0.0, 1.0, low=9.0), "low=9.0 leaves less than 1e-6 of Normal"),
        (lambda: infer.Normal("0.3", 1.0), "mean='0.3' must be a finite number"),  # type: ignore[arg-type]
        (lambda: infer.Normal(True, 1.0), "mean=True must be a finite number"),
        (lambda: infer.Normal(0.3, 1.0, low=None), "low=None must be a number"),  # type: ignore[arg-type]
        (lambda: infer.Uniform(1.0, 1.0), "low=1.0 must be less than high=1.0"),
        (lambda: infer.LogNormal(-1.0, 1.0), "median=-1.0 must be positive"),
    ],
)
def test_wrong_priors_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_the_table_of_parameters_has_those_of_the_models() -> None:
    assert tuple(field.name for field in fields(LagrangianBias)) == BIASES
    assert {name for name, x in PARAMETERS.items() if x.enters == "cosmology"} == set(COSMOLOGY) - {"w_table"}
