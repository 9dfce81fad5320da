"""Radiation and neutrinos against CAMB, scipy and differences."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist._errors import ArgumentError
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s
from pmwd_dist.cosmology.transfer import expected_error

CAMB = np.load(Path(__file__).parent / "camb_neutrinos.npz")  # of benchmarks/neutrinos.py
UNIVERSES = np.load(Path(__file__).parent / "camb_universes.npz")  # of benchmarks/neutrinos.py
A = np.array([0.1, 0.3, 0.777, 1.0, 2.0])


def universe(m_nu: Any, h: Any = 0.6774) -> Any:
    """The cosmology of the numbers of CAMB, in which neutrinos are a part of Omega_m = 0.3075."""
    cosmo = problems.cosmology(Omega_c=0.0, Omega_b=0.0486, h=h, n_s=0.9667, sigma8=1.0)
    Omega_nu = pmd.with_neutrinos(cosmo, m_nu=m_nu).Omega_nu
    return pmd.with_neutrinos(SimpleNamespace(**vars(cosmo) | {"Omega_c": 0.3075 - 0.0486 - Omega_nu}), m_nu=m_nu)


@pytest.mark.parametrize("number", range(3))
def test_expansion_and_growth_are_camb_s(number: int) -> None:
    """Growth below the free streaming, at the largest k."""
    table = pmd.growth_table(universe(CAMB["m_nu"][number]))
    np.testing.assert_allclose(table.E(CAMB["a"]), CAMB["E"][number], rtol=1e-5)
    np.testing.assert_allclose(table.D1(1 / (1 + CAMB["z"])), CAMB["growth"][number][:, -1], rtol=2e-4)


@pytest.mark.parametrize("m_nu", [None, 0.3, 3.0])
def test_growth_with_radiation_matches_scipy(m_nu: float | None) -> None:
    cosmo = problems.cosmology(n_eff=2.5, **({} if m_nu is None else {"m_nu": m_nu}))
    table, expected = pmd.growth_table(cosmo), problems.growth(cosmo, A)
    np.testing.assert_allclose(table.E(A), problems.expansion(cosmo, A), rtol=1e-7)
    for quantity in ("D1", "dD1"):
        np.testing.assert_allclose(getattr(table.at(A), quantity), expected[quantity], rtol=1e-7, err_msg=quantity)
    for quantity in ("D2", "dD2", "D3", "dD3"):
        # D2 keeps some a_eq D1 of its start in the radiation era, which the equation leaves open.
        np.testing.assert_allclose(getattr(table.at(A), quantity), expected[quantity], rtol=3e-3, err_msg=quantity)


def test_derivatives_with_respect_to_neutrinos_match_differences() -> None:
    def observed(x: Any) -> jax.Array:
        m_nu, n_eff, h = x
        table = pmd.growth_table(SimpleNamespace(**vars(problems.cosmology()) | {"h": h}, m_nu=m_nu, n_eff=n_eff))
        return jnp.stack([table.D1(0.1), table.dD1(0.5), table.D2(0.3), table.E(0.1), table.since_matter_era])

    x, value = jnp.array([0.2, 3.1, 0.7]), jax.jit(observed)
    slopes = jax.jit(jax.jacrev(observed))(x)
    for i, step in enumerate((1e-3, 1e-3, 1e-4)):
        change = step * jnp.eye(3)[i]
        np.testing.assert_allclose(slopes[:, i], (value(x + change) - value(x - change)) / (2 * step), rtol=1e-4)


def test_neutrinos_are_a_part_of_a_cosmology_of_any_kind() -> None:
    """jax_cosmo's own classes drop other attributes where they are flattened."""
    planck = jax_cosmo.Planck15()
    cosmo = pmd.with_neutrinos(planck, m_nu=0.2)
    plain = {
        name: getattr(planck, name) for name in ("Omega_c", "Omega_b", "h", "n_s", "sigma8", "Omega_k", "w0", "wa")
    }
    own = SimpleNamespace(**plain, m_nu=0.2, Omega_m=0.31, Omega_nu=0.0048)
    assert pmd.growth(0.1, own) == jax.jit(lambda cosmo: pmd.growth(0.1, cosmo))(cosmo) == pmd.growth(0.1, cosmo)
    assert cosmo.Omega_nu == pytest.approx(0.2 / 93.14 / planck.h**2, rel=2e-3)
    total = cosmo.Omega_m + cosmo.Omega_de + sum(cosmo.radiation) - cosmo.radiation[1]
    assert total == pytest.approx(1, abs=1e-6)
    massless = pmd.with_neutrinos(planck)
    np.testing.assert_allclose(
        pmd.growth_table(pmd.with_neutrinos(planck, m_nu=jnp.array(1e-6))).factors,
        pmd.growth_table(massless).factors,
        rtol=1e-6,
    )
    with pytest.raises(ArgumentError, match=r"cosmo\.n_eff=0 must be a finite number from 0.001"):
        pmd.with_neutrinos(planck, n_eff=0)
    with pytest.raises(ArgumentError, match=r"cosmo\.m_nu must be one finite number"):
        pmd.with_neutrinos(planck, m_nu=np.full(3, 0.02))


@pytest.mark.filterwarnings("ignore:n_eff = .* with m_nu")
@pytest.mark.parametrize("number", range(len(UNIVERSES["universes"])))
def test_power_and_amplitude_of_radiation_and_masses_are_camb_s(number: int) -> None:
    """From 3e-4 to 9 h/Mpc, with n_eff of 2.5 to 4 and masses up to 0.6 eV, to the errors that `check` prints."""
    omega_m, omega_b, h, n_s, m_nu, n_eff = map(float, UNIVERSES["universes"][number])
    cosmo = problems.cosmology(Omega_c=omega_m - omega_b, Omega_b=omega_b, h=h, n_s=n_s, sigma8=1.0)
    Omega_nu = pmd.with_neutrinos(cosmo, m_nu=m_nu, n_eff=n_eff).Omega_nu
    cosmo.Omega_c -= Omega_nu
    table = pmd.growth_table(pmd.with_neutrinos(cosmo, m_nu=m_nu, n_eff=n_eff))
    k, power = UNIVERSES["k"], UNIVERSES["power"][number]
    for least in (3e-4, 0.03):
        seen, error = k >= least * (1 - 1e-6), expected_error("boltzmann", table.cosmo, (least, 9.0))
        assert error is not None
        np.testing.assert_allclose(pmd.linear_power(k[seen], table), power[seen], rtol=error / 100)
    limit = 5e-3 if omega_m * h**2 < 0.055 else 4e-3 if m_nu > 0.3 else 2e-3
    assert abs(sigma8_of_A_s(UNIVERSES["A_s"], table) / UNIVERSES["sigma8"][number] - 1) < limit


@pytest.mark.parametrize("number", [1, 2])
def test_growth_of_cold_matter_and_its_power_are_camb_s(number: int) -> None:
    """The growth at each k, the ratio of neutrinos to cold matter, and P(k) of cold matter for sigma8 = 1."""
    cosmo = universe(CAMB["m_nu"][number])
    table, k = pmd.growth_table(cosmo), CAMB["k"]
    response: Any = table.response
    for z, growth, ratio in zip(CAMB["z"], CAMB["growth"][number], CAMB["response"][number], strict=True):
        a = 1 / (1 + z)
        ours = table.D1(a) * response.cold(k, a) / response.cold(k, 1.0)
        np.testing.assert_allclose(ours, growth, rtol=7e-4)
        contrast = (response.force(k, a) - 1) * table.cosmo.Omega_cb / (table.cosmo.Omega_nu)
        np.testing.assert_allclose(contrast, ratio, atol=0.025)
    power = pmd.linear_power(k, table, "boltzmann")
    np.testing.assert_allclose(power, CAMB["power"][number], rtol=2e-3)
    assert abs(sigma8_of_A_s(2.1e-9, table) / CAMB["sigma8"][number] - 1) < 1e-3
