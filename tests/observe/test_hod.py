"""Galaxies in halos: numbers, profiles and velocities against their definitions, and against halotools."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import kstest

import pmwd_dist as pmd
from pmwd_dist import observe
from pmwd_dist.observe.hod import _nfw

SIDE = 100.0
MODEL = observe.HaloOccupation(log_m_min=12.3, sigma_log_m=0.4, log_m0=12.5, log_m1=13.4, alpha=0.9)


@pytest.fixture(scope="module")
def halos() -> observe.HaloCatalogue:
    rng = np.random.default_rng(7)
    mass = np.append(10 ** rng.uniform(11.5, 15, 2999), 0)
    columns: dict[str, Any] = {"halo_id": np.arange(3000), "halo_mvir": mass, "halo_rvir": np.cbrt(mass / 1e14)}
    for name, low, high in (("halo_{}", 0, SIDE), ("halo_core_{}", 0, SIDE), ("halo_v{}", -300, 300)):
        columns |= {name.format(axis): rng.uniform(low, high, 3000) for axis in "xyz"}
    about = {"a": 0.5, "z": 1.0, "box_size [Mpc/h]": (SIDE,) * 3, "particle_mass [Msun/h]": 1e10}
    return observe.HaloCatalogue(columns, dict.fromkeys(columns, ""), about)


def galaxies_in(halos: observe.HaloCatalogue, seed: int = 1, **options: Any) -> observe.Catalogue:
    return observe.halo_galaxies(halos, MODEL, problems.cosmology(), key=jax.random.key(seed), **options)


def test_mean_numbers_and_their_derivatives(halos: observe.HaloCatalogue) -> None:
    mass = halos.columns["halo_mvir"]
    with np.errstate(divide="ignore"):
        expected = (1 + erf((np.log10(mass) - 12.3) / 0.4)) / 2
    np.testing.assert_allclose(MODEL.centrals(mass), expected, atol=1e-12)
    expected = (np.maximum(mass - 10**12.5, 0) / 10**13.4) ** 0.9
    np.testing.assert_allclose(MODEL.satellites(mass), expected, rtol=1e-9)

    @jax.jit
    def total(model: observe.HaloOccupation) -> jax.Array:
        return jnp.sum(model.centrals(mass) + model.satellites(mass))

    model = jax.tree.map(jnp.asarray, MODEL)
    found = jax.grad(total)(model)
    for name in ("log_m_min", "sigma_log_m", "log_m0", "log_m1", "alpha"):
        ends = [
            total(eqx.tree_at(lambda m, name=name: getattr(m, name), model, getattr(model, name) + step))
            for step in (-1e-5, 1e-5)
        ]
        np.testing.assert_allclose(getattr(found, name), (ends[1] - ends[0]) / 2e-5, rtol=1e-4)


def test_mock_galaxies(halos: observe.HaloCatalogue) -> None:
    mass, found = halos.columns["halo_mvir"], galaxies_in(halos, concentration=5.0)
    host, central = found.columns["halo_id"], found.columns["central"].astype(bool)
    for numbers, mean in ((host[central], MODEL.centrals(mass)), (host[~central], MODEL.satellites(mass))):
        assert abs(len(numbers) - mean.sum()) < 4 * np.sqrt(mean.sum())
    assert len(np.unique(host[central])) == central.sum()
    np.testing.assert_array_equal(found.columns["Position"][central], halos.core[host[central]])
    np.testing.assert_array_equal(found.columns["Velocity"][central], halos.velocity[host[central]])
    apart = found.columns["Position"] - halos.core[host]
    apart = (apart - SIDE * np.rint(apart / SIDE))[~central]
    radius = np.linalg.norm(apart, axis=1) / halos.columns["halo_rvir"][host[~central]]
    norm = np.log(6) - 5 / 6
    assert kstest(radius, lambda r: (np.log1p(5 * r) - 5 * r / (1 + 5 * r)) / norm).pvalue > 0.01
    assert kstest(apart[:, 2] / np.linalg.norm(apart, axis=1), "uniform", args=(-1, 2)).pvalue > 0.01
    velocity = (found.columns["Velocity"] - halos.velocity[host])[~central]
    circular = np.sqrt(4.30092e-9 * mass[host[~central]] / (0.5 * halos.columns["halo_rvir"][host[~central]]))
    scaled = velocity / circular[:, None] / _dispersion(5.0, radius)[:, None]
    np.testing.assert_allclose(scaled.std(0), 1, atol=4 / np.sqrt(2 * len(radius)))
    H = 100 * float(pmd.growth_table(problems.cosmology()).E(0.5))
    moved = found.columns["Position"] + found.columns["Velocity"] * [0, 0, 1] / (0.5 * H)
    np.testing.assert_allclose(found.columns["RedshiftSpacePosition"], moved % SIDE, atol=1e-9)
    # The concentration of Duffy et al. (2008) at z = 1.
    default, given = (
        galaxies_in(halos, concentration=x) for x in (None, 7.85 * (mass.clip(1e8) / 2e12) ** -0.081 * 0.5**0.71)
    )
    np.testing.assert_allclose(default.columns["Position"], given.columns["Position"])


def _dispersion(c: float, r: np.ndarray) -> np.ndarray:
    """Solution of the Jeans equation at radii, by quadrature [(GM/R)^(1/2)]."""
    nodes = np.geomspace(1e-3, 1, 40)
    mass = lambda x: np.log1p(x) - x / (1 + x)  # noqa: E731
    beyond = [quad(lambda t: mass(np.exp(t)) / (np.exp(t) * (1 + np.exp(t))) ** 2, np.log(c * x), 12)[0] for x in nodes]
    values = c / mass(c) * c * nodes * (1 + c * nodes) ** 2 * beyond
    return np.sqrt(np.interp(np.log(r), np.log(nodes), values))


def test_dispersions_solve_the_jeans_equation() -> None:
    offset, dispersion = _nfw(np.full(200, 8.0), np.random.default_rng(1))
    np.testing.assert_allclose(dispersion, _dispersion(8.0, np.linalg.norm(offset, axis=1)), rtol=0.01)


def test_a_catalogue_is_shown_in_a_line(halos: observe.HaloCatalogue) -> None:
    assert repr(halos).startswith("HaloCatalogue of 3000 objects: halo_id, halo_mvir, halo_rvir, halo_x")


def test_bad_arguments(halos: observe.HaloCatalogue) -> None:
    refused: dict[str, dict[str, Any]] = {
        "halos have no M200m; call overdensity_masses": {"definition": "200m"},
        "definition='fof' must be": {"definition": "fof"},
        "concentration must be a finite number from 0.1": {"concentration": np.array([1.0, 0.0])},
        r"concentration.shape=\(2,\) must be \(\) or \(3000,\)": {"concentration": [5.0, 4.0]},
        "line_of_sight='w' must be": {"line_of_sight": "w"},
    }
    for message, options in refused.items():
        with pytest.raises(ValueError, match=message):
            galaxies_in(halos, **options)
    many = observe.HaloOccupation(log_m_min=12.0, log_m0=0.0, log_m1=0.0, alpha=0.399)  # 9e5 in the largest halo
    halos = observe.HaloCatalogue({name: np.repeat(x, 2, axis=0) for name, x in halos.columns.items()}, {}, halos.about)
    with pytest.raises(ValueError, match=r"at most 1e\+06 satellites in a halo, and 1e\+09 in all"):
        observe.halo_galaxies(halos, many, problems.cosmology(), key=jax.random.key(0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mocks_have_the_power_of_halotools(halos: observe.HaloCatalogue) -> None:
    manager, models = (pytest.importorskip(f"halotools.{name}") for name in ("sim_manager", "empirical_models"))
    cosmo, config = problems.cosmology(), pmd.Config(SIDE, 32, decomposition=(1, 1))
    matter = cosmo.Omega_c + cosmo.Omega_b
    density = 2.77536627e11 * (18 * np.pi**2 + 82 * (matter - 1) - 39 * (matter - 1) ** 2)
    radius = np.cbrt(3 * halos.columns["halo_mvir"] / (4 * np.pi * density))
    halos = observe.HaloCatalogue(
        halos.columns | {"halo_rvir": radius}, halos.units, halos.about | {"a": 1.0, "z": 0.0}
    )
    arguments = halos.for_halotools()
    arguments["halo_nfw_conc"] = 7.85 * (arguments["halo_mvir"] / 2e12) ** -0.081
    FlatLambdaCDM = pytest.importorskip("astropy.cosmology").FlatLambdaCDM
    theirs = models.PrebuiltHodModelFactory("zheng07", threshold=-19, redshift=0.0, cosmology=FlatLambdaCDM(68, matter))
    theirs.param_dict.update(logMmin=12.3, sigma_logM=0.4, logM0=12.5, logM1=13.4, alpha=0.9)

    def power(x: np.ndarray) -> np.ndarray:
        counts = observe.counts_from_catalogue(x, config)
        poles = observe.power_multipoles(counts / counts.mean(), config, poles=(0, 2)).power
        return np.append(np.asarray(poles)[:, 1:12].ravel(), len(x))

    catalogue = manager.UserSuppliedHaloCatalog(**arguments)
    mocks: list[list[np.ndarray]] = [[], []]
    for seed in range(16):
        mocks[0].append(power(galaxies_in(halos, seed).columns["RedshiftSpacePosition"]))
        if seed == 0:
            theirs.populate_mock(catalogue, seed=seed, Num_ptcl_requirement=0)
        else:
            theirs.mock.populate(seed=seed)
        table = theirs.mock.galaxy_table
        x = np.stack([table[axis] for axis in "xyz"], -1).astype(float)
        x[:, 2] += table["vz"] / 100
        mocks[1].append(power(x % SIDE))
    (ours, spread), (expected, other) = ((np.mean(x, 0), np.std(x, 0)) for x in mocks)
    assert (np.abs(ours - expected) < 4 * np.sqrt((spread**2 + other**2) / 15)).all()
