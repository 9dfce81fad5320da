"""The transfer function "boltzmann" and amplitudes A_s against CAMB; P(k) as a function of the cosmology."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.linear_power import sigma8_of_A_s
from pmwd_dist.cosmology.transfer import expected_error

CAMB = np.load(Path(__file__).parent / "camb.npz")  # of benchmarks/transfer_table.py
NAMES = ("Omega_m", "Omega_b", "h", "n_s")


def cosmology(omega_m: Any, omega_b: Any, h: Any, n_s: Any, sigma8: Any = 1.0) -> Any:
    flat = {"Omega_k": 0.0, "w0": -1.0, "wa": 0.0}
    return SimpleNamespace(Omega_c=omega_m - omega_b, Omega_b=omega_b, h=h, n_s=n_s, sigma8=sigma8, **flat)


@pytest.mark.filterwarnings("ignore:.* within 0.5 %")
@pytest.mark.parametrize("number", range(len(CAMB["cosmologies"])))
def test_power_is_camb_s(number: int) -> None:
    power = pmd.linear_power(CAMB["k"], cosmology(*CAMB["cosmologies"][number]), "boltzmann")
    np.testing.assert_allclose(power, CAMB["power"][number], rtol=1e-3)


@pytest.mark.parametrize("number", range(4))
def test_derivatives_of_the_power_are_camb_s(number: int) -> None:
    values, (up, down) = CAMB["cosmologies"][0], (2 * number + 1, 2 * number + 2)
    step = CAMB["cosmologies"][up][number] - CAMB["cosmologies"][down][number]
    expected = np.log(CAMB["power"][up] / CAMB["power"][down]) / step

    def log_power(x: Any) -> jax.Array:
        changed = jnp.asarray(values).at[number].set(x)
        return jnp.log(pmd.linear_power(CAMB["k"], cosmology(*changed), "boltzmann"))

    slope = jax.jacfwd(log_power)(values[number])
    np.testing.assert_allclose(slope, expected, atol=1e-2 * np.abs(expected).max())


def test_sigma8_of_an_amplitude_is_camb_s() -> None:
    for values, expected in zip(CAMB["cosmologies"], CAMB["sigma8"], strict=True):
        sigma8 = sigma8_of_A_s(CAMB["A_s"], cosmology(*values))
        assert abs(sigma8 / expected - 1) < 3e-3


@pytest.mark.filterwarnings("ignore")  # of these codes
@pytest.mark.parametrize("code", ["camb", "cosmopower_jax"])
def test_power_is_that_of_the_recipes_of_the_docs(code: str) -> None:
    pytest.importorskip(code)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "power.md").read_text(encoding="utf-8")
    (recipe,) = (block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if code in block)
    names: dict[str, Any] = {"np": np, "jnp": jnp}
    exec(recipe, names)
    values = 0.3075, 0.0486, 0.6774, 0.9667
    cosmo = cosmology(*values, sigma8=sigma8_of_A_s(2.1e-9, cosmology(*values)))
    if code == "camb":
        power = np.exp(np.interp(np.log(CAMB["k"]), np.log(names["k"]), np.log(names["P"])))
    else:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            power = names["emulated"](CAMB["k"], cosmo)
    np.testing.assert_allclose(pmd.linear_power(CAMB["k"], cosmo), power, rtol=5e-3)


@pytest.mark.filterwarnings("ignore:.*was not compared with CAMB")
def test_beyond_its_table_the_correction_is_constant() -> None:
    """Eisenstein & Hu's power continues it, in k and in the densities."""
    for changes in ({"Omega_c": 0.9}, {"Omega_c": 0.06}, {"h": 0.3}, {}):
        cosmo = problems.cosmology(**changes)
        ends = np.array([1e-5, 2e-5, 200.0, 400.0])
        ours, fit = (np.log(np.asarray(pmd.linear_power(ends, cosmo, name))) for name in ("boltzmann", "eisenstein-hu"))
        np.testing.assert_allclose((ours - fit)[::2], (ours - fit)[1::2], atol=2e-4)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "boltzmann",
            {"Omega_c": 0.0114, "Omega_b": 0.0486},
            r"Omega_b / Omega_m of 0.005 to 0.5, and here it is 0.81;",
        ),
        ("boltzmann", {"Omega_b": 0.0}, r"linear_power='boltzmann' is .* Omega_b / Omega_m .* pass a table \(k, P\)"),
        ("eisenstein-hu", {"Omega_b": 0.0}, r"linear_power='eisenstein-hu' is a transfer function for Omega_b"),
        ("boltzmann", {"h": 0.11}, r"Omega_m h\^2 of 0.02 to 1.5, and here it is 0.00"),
        ("boltzmann", {"n_eff": 6.0}, "n_eff of 2 to 5, and here it is 6"),
    ],
)
def test_cosmologies_far_from_the_tables_are_refused(name: str, changes: dict[str, float], message: str) -> None:
    cosmo = problems.cosmology(**changes)
    with pytest.raises(ValueError, match=message):
        pmd.linear_power(0.1, cosmo, name)
    with pytest.raises(ValueError, match=message):
        pmd.linear_modes(np.zeros((8, 8, 8)), cosmo, pmd.Config(80.0, 8, decomposition=(1, 1)), linear_power=name)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("boltzmann", {"Omega_c": 0.95}, r"Omega_m h\^2 = 0.462 is outside of 0.05 to 0.35, .* not compared with CAMB"),
        ("boltzmann", {"n_eff": 4.5}, "n_eff = 4.5 is outside of 2.5 to 4"),
        ("boltzmann", {"Omega_c": 0.2, "Omega_b": 0.1}, "Omega_b / Omega_m = 0.333 is outside of 0.04 to 0.32, the"),
        ("boltzmann", {"n_eff": 3.9, "m_nu": 0.3}, r"n_eff = 3.9 with m_nu: P\(k\) .* its default by up to 6 %$"),
        ("eisenstein-hu", {"n_eff": 4.0}, 'n_eff = 4 is outside of 2.9 to 3.1, the range of linear_power = "eisenst'),
    ],
)
def test_cosmologies_of_less_accuracy_raise_a_warning(
    name: str, changes: Any, message: str, pytestconfig: pytest.Config
) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        pmd.linear_power(0.1, problems.cosmology(**changes), name)
    assert len(caught) == 1
    if not pytestconfig.option.all:  # whose checks of types are frames between
        assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "changes", "k", "error"),
    [
        ("boltzmann", {}, (1e-3, 5.0), 0.3),
        ("boltzmann", {"n_eff": 4.0}, (1e-3, 5.0), 0.3),
        ("boltzmann", {"h": 0.6}, (1e-3, 5.0), 0.8),
        ("boltzmann", {}, (1e-3, 20.0), 1.5),
        ("boltzmann", {}, (1e-3, 60.0), 12.0),
        ("boltzmann", {}, (1e-3, 300.0), None),
        ("boltzmann", {"h": 0.415}, (1e-3, 5.0), 0.8),
        ("boltzmann", {"m_nu": 0.3}, (1e-3, 5.0), 1.0),
        ("boltzmann", {"m_nu": 0.6}, (1e-3, 5.0), 4.0),
        ("boltzmann", {"m_nu": 0.6, "n_eff": 3.9, "h": 0.5}, (1e-3, 5.0), 10.0),
        ("boltzmann", {"m_nu": 0.6}, (0.05, 5.0), 0.8),
        ("boltzmann", {"m_nu": 0.6, "n_eff": 3.9, "h": 0.5}, (0.05, 5.0), 1.2),
        ("boltzmann", {"w0": -0.8}, (1e-3, 5.0), None),
        ("boltzmann", {"wa": -0.5}, (0.01, 5.0), 0.5),
        ("boltzmann", {"w0": -0.8}, (0.05, 5.0), 0.3),
        ("boltzmann", {"w0": -0.3}, (0.05, 5.0), None),
        ("boltzmann", {"w0": -0.3}, (0.15, 5.0), 0.3),
        ("boltzmann", {"w0": -0.2}, (0.15, 5.0), None),
        ("boltzmann", {"w0": -0.6, "wa": 0.5}, (0.15, 5.0), None),
        ("boltzmann", {"Omega_k": 0.05}, (1e-3, 5.0), None),
        ("boltzmann", {"Omega_k": 0.5}, (0.01, 5.0), 0.5),
        ("boltzmann", {"Omega_k": 0.05}, (0.01, 5.0), 0.3),
        ("boltzmann", {"m_nu": 0.9}, (0.05, 5.0), None),
        ("boltzmann", {}, (1e-4, 5.0), None),
        ("boltzmann", {"Omega_c": 0.9}, (0.05, 5.0), None),
        ("eisenstein-hu", {}, (0.02, 5.0), 6.0),
        ("eisenstein-hu", {"n_eff": 4.0}, (0.02, 5.0), None),
    ],
)
def test_the_error_is_of_the_wavenumbers_and_the_cosmology(name: str, changes: Any, k: Any, error: Any) -> None:
    assert expected_error(name, problems.cosmology(**changes), k) == error


class Tilted:
    """P(k) of a cosmology with a factor of its own."""

    def __init__(self, amplitude: Any):
        self.amplitude = amplitude

    def __call__(self, k: jax.Array, cosmo: Any) -> jax.Array:
        return self.amplitude * pmd.linear_power(k, cosmo, "boltzmann")


@pytest.mark.parametrize("pdims", [pytest.param((1, 1), marks=pytest.mark.slow), (4, 1), (2, 2)])
def test_a_function_of_the_cosmology_is_differentiated_with_the_rest(pdims: tuple[int, int]) -> None:
    config = pmd.Config(80.0, 8, decomposition=pdims)
    noise = np.random.default_rng(0).standard_normal((8, 8, 8))

    def total(n_s: Any, amplitude: Any, power: Any) -> jax.Array:
        modes = pmd.linear_modes(noise, problems.cosmology(n_s=n_s), config, linear_power=power(amplitude))
        return jnp.sum(modes.real**2 + modes.imag**2)

    ours, expected = (jax.grad(total, (0, 1))(0.96, 1.0, f) for f in (Tilted, lambda _: "boltzmann"))
    np.testing.assert_allclose(ours[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1], total(0.96, 1.0, Tilted), rtol=1e-9)
