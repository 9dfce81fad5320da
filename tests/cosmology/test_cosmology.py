"""Expansion, growth, distances and linear power against scipy, analytic universes and differences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import problems
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax_cosmo.transfer import Eisenstein_Hu
from scipy.integrate import quad

import pmwd_dist as pmd
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.distance import (
    HUBBLE_DISTANCE,
    comoving_distance,
    distances_at,
    scale_factor_at,
    transverse_distance,
)
from pmwd_dist.cosmology.growth import GrowthTable, growth_table, growth_table_to

UNIVERSES = {
    "flat": problems.cosmology(),
    "open": problems.cosmology(Omega_k=0.1),
    "closed": problems.cosmology(Omega_k=-0.1),
    "w0wa": problems.cosmology(w0=-0.8, wa=-0.4),
    "curved w0wa": problems.cosmology(Omega_k=0.05, w0=-1.1, wa=0.3),
}
A = np.array([0.005, 0.01, 0.1, 0.3333, 0.5, 0.777, 0.99, 1.0, 1.3, 2.0])


@pytest.mark.parametrize("name", UNIVERSES)
def test_growth_matches_scipy(name: str) -> None:
    cosmo = UNIVERSES[name]
    table, expected = pmd.growth_table(cosmo), problems.growth(cosmo, A)
    for quantity, values in expected.items():
        # Cubic interpolation over 0.02 in ln a, of D / a^n and its slope; the slope of third order changes fastest.
        rtol = 1e-7 if quantity == "dD3" else 3e-8
        np.testing.assert_allclose(getattr(table.at(A), quantity), values, rtol=rtol, err_msg=quantity)
    np.testing.assert_allclose(table.E(A), problems.expansion(cosmo, A), rtol=1e-14)
    np.testing.assert_allclose(pmd.growth(A, cosmo), expected["D1"], rtol=3e-8)
    np.testing.assert_allclose(pmd.growth_rate(A, cosmo), expected["dD1"] / expected["D1"], rtol=3e-8)
    momentum = A**2 * problems.expansion(cosmo, A) * expected["dD1"]
    np.testing.assert_allclose(table.momentum(A), momentum, rtol=3e-8)


def test_growth_in_an_einstein_de_sitter_universe() -> None:
    table = pmd.growth_table(problems.einstein_de_sitter())
    a = np.geomspace(1e-3, 2, 77)
    D3 = np.array([-1 / 3, 10 / 21])[:, None] * a**3
    expected = {"D1": a, "dD1": a, "D2": -3 / 7 * a**2, "dD2": -6 / 7 * a**2, "D3": D3, "dD3": 3 * D3}
    for quantity, values in expected.items():
        np.testing.assert_allclose(getattr(table.at(a), quantity), values, rtol=1e-13, err_msg=quantity)
    np.testing.assert_allclose(table.E(a), a**-1.5, rtol=1e-13)


def test_growth_is_exact_at_a_equal_one(cosmo: Any) -> None:
    assert abs(pmd.growth(1.0, cosmo) - 1) < 1e-14


def test_scale_factor_inverts_growth() -> None:
    for cosmo in UNIVERSES.values():
        table = pmd.growth_table(cosmo)
        np.testing.assert_allclose(table.scale_factor(table.D1(A)), A, rtol=1e-12)


def test_a_table_of_w_is_that_of_w0_and_wa() -> None:
    plain, a = UNIVERSES["curved w0wa"], np.geomspace(0.005, 1, 5)
    tables = pmd.growth_table(plain), pmd.growth_table(pmd.with_dark_energy(plain, a, -1.1 + 0.3 * (1 - a)))
    np.testing.assert_allclose(tables[1].E(A), tables[0].E(A), rtol=1e-14)
    for quantity, rtol in {"D1": 1e-6, "D2": 1e-6, "D3": 1e-6, "dD1": 1e-5}.items():
        expected, found = (getattr(table.at(A), quantity) for table in tables)
        np.testing.assert_allclose(found, expected, rtol=rtol, err_msg=quantity)
    expected, found = (pmd.comoving_distance(A[:-2], table) for table in tables)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("rest", [{}, pytest.param({"n_eff": 3.0, "m_nu": 0.3}, marks=pytest.mark.slow)])
def test_a_table_of_w_matches_scipy_and_differences(rest: dict[str, float]) -> None:
    a = np.linspace(0.1, 1, 12)
    cosmo = problems.cosmology(w_table=np.stack([a, -0.9 + 0.1 * np.sin(4 * a)], 1), **rest)
    table, expected, x = pmd.growth_table(cosmo), problems.growth(cosmo, A[2:]), jnp.asarray(cosmo.w_table)
    np.testing.assert_allclose(table.E(A), problems.expansion(cosmo, A), rtol=1e-8)
    for quantity in ("D1", "dD1") if rest else ("D1", "dD1", "D2", "dD2", "D3", "dD3"):
        # The collocation takes its nodes as smooth.
        np.testing.assert_allclose(getattr(table.at(A[2:]), quantity), expected[quantity], rtol=5e-5, err_msg=quantity)

    def observed(w: Any) -> Any:
        changed = pmd.growth_table(pmd.with_dark_energy(cosmo, a, w))
        seen = [pmd.growth(0.3, changed), pmd.linear_power(0.1, changed), pmd.comoving_distance(0.2, changed)]
        return (jnp.stack(seen),) * 2

    step = 1e-4 * jnp.eye(len(a))[6]
    derivative = jax.jit(jax.jacrev(observed, has_aux=True))
    (slopes, _), (_, above), (_, below) = (derivative(x[:, 1] + sign * step) for sign in (0, 1, -1))
    difference = (above - below) / 2e-4
    np.testing.assert_allclose(slopes[:, 6], difference, rtol=1e-6, atol=1e-9 * float(jnp.max(jnp.abs(slopes))))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("a", "w", "message"),
    [
        ([0.5], [-1.0], r"cosmo.w_table must hold two or more pairs"),
        ([], [], r"pass two equal"),
        (["a"], [-1.0], r"a must be a finite number"),
        ([0.5], ["y"], r"w must be a finite number"),
        ([0.5, 0.3], [-1.0, -1.0], r"a from 1e-06 to 1e\+06 that ascend"),
        ([0.5, 1e300], [-1.0, -1.0], r"a must be a finite number from 1e-06 to 1e\+06"),
        ([0.5, 1.0], [-1.0, np.nan], r"finite"),
        ([0.5, 1.0], -1.0, r"w has shape \(\), and a has \(2,\); pass two equal"),
    ],
)
def test_a_wrong_table_of_w_is_named(a: Any, w: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pmd.with_dark_energy(problems.cosmology(), a, w)


def test_growth_in_float32_keeps_its_digits() -> None:
    with jax.enable_x64(False):
        table = pmd.growth_table(problems.cosmology())
        D1, D2 = np.asarray(table.D1(A)), np.asarray(table.D2(A))
    assert D1.dtype == np.float32
    expected = problems.growth(problems.cosmology(), A)
    np.testing.assert_allclose(D1, expected["D1"], rtol=1e-6)
    np.testing.assert_allclose(D2, expected["D2"], rtol=1e-6)


def test_growth_and_its_gradient_have_no_loops() -> None:
    """Sequential steps are kernels that wait for each other: 40 ms for 500 of them in reverse mode on a GPU."""

    def observed(values: dict[str, Any]) -> jax.Array:
        table = pmd.growth_table(SimpleNamespace(**values))
        return table.scale_factor(0.3) + table.momentum(0.5) + jnp.sum(table.at(0.4).D3) + pmd.linear_power(0.1, table)

    lowered = jax.jit(jax.value_and_grad(observed)).lower(vars(problems.cosmology()))
    for loop in ("stablehlo.while", "custom_call"):
        assert loop not in lowered.as_text()


def test_a_universe_of_dark_energy_with_little_matter() -> None:
    """The series for the growth converges slowest there."""
    cosmo = problems.cosmology(Omega_c=0.0, Omega_b=0.02)
    expected = problems.growth(cosmo, A)
    table = pmd.growth_table(cosmo)
    np.testing.assert_allclose(table.D1(A), expected["D1"], rtol=1e-7)
    np.testing.assert_allclose(table.D2(A), expected["D2"], rtol=1e-6)


def numpy_sigma8(power: Any) -> float:
    k = np.geomspace(1e-5, 1e2, 200_000)
    x = 8 * k
    with np.errstate(all="ignore"):
        window = np.where(x < 1e-2, 1 - x**2 / 10, 3 * (np.sin(x) - x * np.cos(x)) / x**3)
    return float(np.sqrt(np.trapezoid(k**3 * np.asarray(power(k)) * window**2, np.log(k)) / (2 * np.pi**2)))


@pytest.mark.parametrize("sigma8", [0.6, 0.81])
def test_linear_power_has_the_sigma8_of_the_cosmology(sigma8: float) -> None:
    cosmo = problems.cosmology(sigma8=sigma8)
    assert abs(numpy_sigma8(lambda k: pmd.linear_power(k, cosmo)) / sigma8 - 1) < 1e-7


def test_linear_power_is_that_of_jax_cosmo() -> None:
    cosmo = jax_cosmo.Planck15()
    k = np.geomspace(1e-4, 20, 200)
    shape = np.asarray(k**cosmo.n_s * Eisenstein_Hu(cosmo, jnp.asarray(k)) ** 2)
    ratio = np.asarray(pmd.linear_power(k, cosmo, "eisenstein-hu")) / shape
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


PARAMETERS = ("Omega_c", "Omega_b", "h", "n_s", "sigma8", "Omega_k", "w0", "wa")


def test_derivatives_with_respect_to_parameters_match_differences() -> None:
    values = vars(problems.cosmology())

    def observables(p: dict[str, Any]) -> jax.Array:
        cosmo = SimpleNamespace(**p)
        table = pmd.growth_table(cosmo)
        growth = [table.D1(0.5), table.D2(0.5), table.dD1(0.5), table.dD2(0.5), table.E(0.5)]
        third = [jnp.abs(table.at(0.5).D3), jnp.abs(table.at(0.5).dD3)]
        return jnp.concatenate(
            [jnp.stack(growth), *third, jnp.log(pmd.linear_power(np.array([0.01, 0.1, 1.0]), cosmo))]
        )

    value = jax.jit(observables)
    # Weights of one sign: no cancellation between observables.
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 12)
    gradient = jax.jit(jax.grad(lambda p: observables(p) @ weights))(values)
    direction = dict.fromkeys(PARAMETERS, 1.0)
    tangent = jax.jit(lambda p: jax.jvp(observables, (p,), (direction,))[1])(values)
    np.testing.assert_allclose(sum(gradient.values()), tangent @ weights, rtol=1e-11)
    for name in PARAMETERS:
        step = 1e-4
        ahead, behind = (value(values | {name: values[name] + sign * step}) for sign in (1, -1))
        # Error of the difference: step^2 times a third derivative, up to 1e2 for the oscillations.
        np.testing.assert_allclose(gradient[name], (ahead - behind) @ weights / (2 * step), rtol=2e-5, err_msg=name)


def test_a_cosmology_survives_jit() -> None:
    """jax_cosmo caches tables on the object: a tracer left behind would fail at the second use."""
    cosmo = jax_cosmo.Planck15()
    before = pmd.growth(0.5, jax_cosmo.Planck15()), pmd.linear_power(0.1, jax_cosmo.Planck15())
    inside = jax.jit(lambda a, k: (pmd.growth(a, cosmo), pmd.linear_power(k, cosmo)))(0.5, 0.1)
    after = pmd.growth(0.5, cosmo), pmd.linear_power(0.1, cosmo)
    np.testing.assert_allclose(inside, before, rtol=1e-14)
    np.testing.assert_allclose(after, before, rtol=0)
    assert not cosmo._workspace


def test_only_the_attributes_are_needed(cosmo: Any) -> None:
    bare = SimpleNamespace(**{name: getattr(cosmo, name) for name in PARAMETERS})
    np.testing.assert_array_equal(pmd.growth(A, bare), pmd.growth(A, cosmo))
    np.testing.assert_array_equal(pmd.linear_power(A, bare), pmd.linear_power(A, cosmo))
    np.testing.assert_array_equal(pmd.linear_power(A, pmd.growth_table(cosmo)), pmd.linear_power(A, cosmo))
    del bare.w0, bare.h
    with pytest.raises(ValueError, match="cosmo=SimpleNamespace lacks h, w0; pass a jax_cosmo.Cosmology"):
        pmd.growth(0.5, bare)


def test_tables_to_the_second_order_hold_what_all_tables_hold() -> None:
    cosmo, a = problems.cosmology(), jnp.asarray([0.1, 0.7])
    whole, short = pmd.growth_table(cosmo), growth_table_to(2, cosmo)
    np.testing.assert_allclose(short.factors, whole.factors[..., :2], rtol=1e-6)
    assert growth_table_to(2, whole) is whole
    with pytest.raises(ValueError, match="ends at the second order"):
        growth_table_to(3, short)
    np.testing.assert_allclose(short.at(a).dD2, whole.dD2(a), rtol=1e-6)
    assert short.at(a).D3.size == 0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"gamma": 0.0}, "cosmo.gamma=0.0 must be None: .*; leave it out"),
        ({"M_nu": 0.06}, "cosmo.M_nu=0.06 must be 0: matter is cold"),
        ({"m_nu": [0.02, 0.02, 0.02]}, "cosmo.m_nu must be one finite number"),
        ({"Omega_r": jnp.asarray(9e-5)}, "cosmo.Omega_r=.* must be 0"),
        ({"h": 67.0}, "cosmo.h=67.0 must be a finite number from 0.1 to 3; it is the Hubble constant"),
    ],
)
def test_an_attribute_that_is_not_used_is_an_error(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pmd.growth(0.5, SimpleNamespace(**vars(problems.cosmology()) | extra))


def test_attributes_of_other_codes_that_agree_are_taken() -> None:
    """One that is traced would have a slope of zero."""
    extra = {"gamma": None, "m_nu": 0.0, "N_eff": 0, "Omega_nu": lambda a: a, "Omega_m": 0.3, "name": "Planck"}
    plain = vars(problems.cosmology())
    expected = pmd.growth(0.5, SimpleNamespace(**plain))
    np.testing.assert_array_equal(pmd.growth(0.5, SimpleNamespace(**plain | extra)), expected)
    with pytest.raises(ArgumentError, match="cosmo.M_nu=.* must be 0"):
        jax.grad(lambda m_nu: pmd.growth(0.5, SimpleNamespace(**plain, M_nu=m_nu)))(0.0)


@pytest.mark.parametrize("make", [jax_cosmo.Planck15, lambda: jax_cosmo.Planck15(Omega_k=0.02, w0=-0.9, wa=0.1)])
def test_cosmologies_of_jax_cosmo_work_as_they_come(make: Any) -> None:
    assert jax.jit(lambda cosmo: pmd.growth(0.5, cosmo))(make()) == pytest.approx(float(pmd.growth(0.5, make())))
    with pytest.raises(ArgumentError, match="cosmo.gamma=0.55 must be None"):
        pmd.linear_power(0.1, jax_cosmo.Planck15(gamma=0.55))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: pmd.growth(3.0, c), r"a=3\.0 must be a finite number from 0.0001 to 2; call growth\(a, cosmo\)"),
        (lambda c: pmd.growth_rate(np.array([0.5, 2.5]), c), "a must be a finite number from 0.0001 to 2"),
        (lambda c: pmd.growth(0, c), "a=0 must be"),
        (lambda c: pmd.growth(np.nan, c), "a=nan must be"),
        (lambda c: pmd.growth("x", c), "a='x' must be"),
        (
            lambda _: pmd.growth(0.1, problems.cosmology(Omega_c=1.1)),
            r"cosmo all but stops expanding at a = 1\.8.* Omega_m=1.15",
        ),
        (
            lambda _: pmd.comoving_distance(0.5, problems.cosmology(Omega_k=0.95)),
            "stops expanding at a = 1.9.* Omega_k=0.95",
        ),
        (lambda _: pmd.growth_table(problems.cosmology(Omega_c=0.01, Omega_k=-0.9)), "stops expanding at a = 0.0"),
        (lambda c: pmd.growth(jnp.float32(-1), c), "a=Array.* must be"),
        (lambda c: pmd.growth(c, 0.5), r"a is a SimpleNamespace and must be .*; call growth\(a, cosmo\)"),
        (lambda c: pmd.growth(pmd.growth_table(c), c), "a is a GrowthTable and must be"),
        (lambda c: pmd.comoving_distance(-1, c), "a=-1 must be a finite number from 0.000999 to 2"),
        (lambda c: pmd.comoving_distance([0.5, 1e-9], c), "a must be a finite number from 0.000999 to 2"),
        (lambda c: pmd.linear_power([0.1, -0.1], c), "k must be a finite number, 0 or more"),
        (lambda c: pmd.linear_power(1j, c), "k=1j must be a finite number, 0 or more"),
        (lambda c: pmd.linear_power(0.1, c, "camb"), "transfer='camb' must be 'boltzmann' or 'eisenstein-hu'"),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(problems.cosmology())


def test_growth_is_not_a_number_beyond_its_tables_where_values_are_traced() -> None:
    for function in (pmd.growth, pmd.growth_rate):
        assert np.isfinite(function(2.0, problems.cosmology()))
        values = jax.jit(lambda a, function=function: function(a, problems.cosmology()))(jnp.array([1.0, 3.0]))
        assert np.isnan(values).tolist() == [False, True]
    # Collocation is global: a universe that collapses after a = 1 has no growth at any time.
    heavy = jax.jit(lambda Omega_c: pmd.growth(0.1, problems.cosmology(Omega_c=Omega_c)))
    assert np.isnan(heavy(1.1))
    np.testing.assert_allclose(
        heavy(1.03), problems.growth(problems.cosmology(Omega_c=1.03), np.array([0.1]))["D1"], 1e-6
    )


# --- distances ---------------------------------------------------------------------------------------------------

AT = np.array([1e-3, 0.01, 0.1, 0.5, 0.9, 1.3])


@pytest.mark.parametrize("changes", [{}, {"Omega_k": 0.1, "w0": -0.8, "wa": 0.2}])
def test_distances_and_their_inverse(changes: dict[str, float]) -> None:
    cosmo = problems.cosmology(**changes)
    table = growth_table(cosmo)
    expected = [quad(lambda x: 1 / (x**2 * problems.expansion(cosmo, x)), a, 1, epsabs=0, epsrel=1e-12)[0] for a in AT]
    distance = comoving_distance(AT, table)
    np.testing.assert_allclose(distance, HUBBLE_DISTANCE * np.array(expected), rtol=1e-12)
    np.testing.assert_array_equal(comoving_distance(AT.tolist(), table), distance)
    np.testing.assert_allclose(scale_factor_at(distance[:5], table), AT[:5], rtol=1e-12)
    rate = -HUBBLE_DISTANCE / (AT**2 * problems.expansion(cosmo, AT))
    slopes = jax.vmap(jax.grad(lambda a: comoving_distance(a, table)))(AT)
    np.testing.assert_allclose(slopes, rate, rtol=1e-9)
    inverse = jax.vmap(jax.grad(lambda x: scale_factor_at(x, table)))(distance[2:5])
    np.testing.assert_allclose(inverse, 1 / rate[2:5], rtol=1e-9)
    single = comoving_distance(jnp.asarray(AT, jnp.float32), jax.tree.map(lambda x: x.astype(jnp.float32), table))
    np.testing.assert_allclose(single, distance, rtol=1e-6)


def test_distances_of_catalogues_take_few_evaluations_of_the_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is a sum over the momenta of neutrinos with mass."""
    table, evaluate, sizes = growth_table(pmd.with_neutrinos(problems.cosmology(), m_nu=0.3)), GrowthTable.E, [0]
    few, many = np.geomspace(1e-3, 2, 100), np.geomspace(1e-3, 2, 99 * 1000 + 1)
    monkeypatch.setattr(GrowthTable, "E", lambda table, a: sizes.append(np.size(a)) or evaluate(table, a))
    found = [distances_at(1 / many - 1, table)[::1000], comoving_distance(many, table)[::1000]]
    assert 0 < sum(sizes) < 60_000
    np.testing.assert_allclose(found, np.broadcast_to(comoving_distance(few, table), (2, 100)), rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(scale_factor_at(found[1][:50], table), few[:50], rtol=1e-9)
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        divided = jax.device_put(many[: 4096 * mesh.size], NamedSharding(mesh, PartitionSpec("x")))
        np.testing.assert_allclose(np.asarray(comoving_distance(divided, table))[:1001:1000], found[1][:2], rtol=1e-9)
    slopes = jax.grad(lambda a: jnp.sum(comoving_distance(a, table)))(jnp.asarray(many))
    np.testing.assert_allclose(slopes, -HUBBLE_DISTANCE / (many**2 * evaluate(table, many)), rtol=1e-6)


def test_transverse_distances_are_smooth_in_the_curvature() -> None:
    x, dH = 6000.0, HUBBLE_DISTANCE

    def across(curvature: float) -> jax.Array:
        return transverse_distance(x, problems.cosmology(Omega_k=curvature))

    np.testing.assert_allclose(across(0.1), dH / np.sqrt(0.1) * np.sinh(np.sqrt(0.1) * x / dH), rtol=1e-10)
    np.testing.assert_allclose(across(-0.1), dH / np.sqrt(0.1) * np.sin(np.sqrt(0.1) * x / dH), rtol=1e-10)
    np.testing.assert_allclose(jax.grad(across)(0.0), x * (x / dH) ** 2 / 6, rtol=1e-10)
