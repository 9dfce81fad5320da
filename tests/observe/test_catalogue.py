"""Catalogues of galaxies: positions, velocities and numbers, against NumPy and time derivatives, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd

SHAPE, BOX = (8, 8, 4), (16.0, 24.0, 8.0)


def configure(decomposition: Any = None, **changes: Any) -> pmd.Config:
    return pmd.Config(**({"box_size": BOX, "mesh_shape": SHAPE, "halo": 4, "decomposition": decomposition} | changes))


def simulate(config: pmd.Config, a: float = 0.5) -> pmd.Particles:
    cosmo = problems.cosmology()
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
    return pmd.lpt(modes, cosmo, config, a=a)


def catalogue(config: pmd.Config, particles: pmd.Particles, density: float, **options: Any) -> pmd.observe.Catalogue:
    options = {"key": jax.random.key(1), "number_density": density, "a": 0.5} | options
    return pmd.observe.galaxy_catalogue(particles, problems.cosmology(), config, **options)


def test_positions_and_velocities_of_particles(decomposition: pmd.Decomposition) -> None:
    config = configure(decomposition)
    particles = simulate(config)
    sites = np.stack(
        np.meshgrid(*[np.arange(n) * (length / n) for n, length in zip(SHAPE, BOX, strict=True)], indexing="ij"), -1
    )
    positions = np.asarray(particles.positions(config))
    np.testing.assert_allclose(positions, (sites + np.asarray(particles.disp)) % BOX, atol=1e-12)
    assert particles.positions(config).sharding.is_equivalent_to(particles.disp.sharding, 4)
    below_zero = pmd.Particles(jnp.full((*SHAPE, 3), -1e-20), particles.vel)
    assert float(below_zero.positions(config).min()) == 0
    assert (below_zero.positions(config) < jnp.asarray(BOX).reshape(1, 1, 1, 3)).all()
    # u = a dx/dt = a^2 H dx/da
    step, cosmo = 1e-4, pmd.growth_table(problems.cosmology())
    rate = (simulate(config, 0.5 + step).disp - simulate(config, 0.5 - step).disp) / (2 * step)
    expected = 0.5**2 * 100 * float(cosmo.E(0.5)) * np.asarray(rate)
    np.testing.assert_allclose(particles.velocities(), expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(particles.velocities(0.5), particles.velocities())
    with pytest.raises(ValueError, match="is not the scale factor of the particles, 0.5"):
        particles.velocities(1.0)
    with pytest.raises(ValueError, match="pass their scale factor"):
        below_zero.velocities()
    with pytest.raises(ValueError, match="a=nan must be a finite number"):
        below_zero.velocities(np.nan)
    with pytest.raises(ValueError, match="is not the box of the config"):
        particles.positions(configure(decomposition, box_size=99.0))
    assert jnp.isnan(pmd.Particles(particles.disp * jnp.nan, particles.vel).positions(config)).all()


def test_numbers_follow_the_weights_on_every_division() -> None:
    config = configure(pmd.Decomposition((1, 1)))
    particles = simulate(config)
    weights = np.random.default_rng(0).uniform(0.2, 2, SHAPE)
    density = 200 * 256 / np.prod(BOX)  # 200 galaxies a particle
    found = catalogue(config, particles, density, weights=weights)
    positions, rows = np.asarray(particles.positions(config)).reshape(-1, 3), found.columns["Position"]
    assert len(found) == len(rows)
    each, counts = np.unique(rows, axis=0, return_counts=True)
    order = np.lexsort(positions.T[::-1])
    np.testing.assert_array_equal(each, positions[order])
    expected = 200 * (weights / weights.mean()).ravel()[order]
    chi2 = np.sum((counts - expected) ** 2 / expected)
    assert abs(chi2 - 256) < 5 * np.sqrt(2 * 256)

    # Redshift space, in velocities that the catalogue has: s = x + (1 + z) u / H.
    H = 100 * float(pmd.growth_table(problems.cosmology()).E(0.5))
    moved = rows + found.columns["Velocity"] * [0, 0, 1] * (2 / H)
    apart = (found.columns["RedshiftSpacePosition"] - moved + np.divide(BOX, 2)) % BOX - np.divide(BOX, 2)
    np.testing.assert_allclose(apart, 0, atol=1e-10)

    divided = configure(pmd.Decomposition((2, 2)))
    for same in (simulate(divided), particles):  # also divided otherwise than the config says
        again = catalogue(divided, same, density, weights=weights)
        for name, values in found.columns.items():
            np.testing.assert_allclose(again.columns[name], values, atol=1e-10)


def test_a_catalogue_is_a_table_with_units(tmp_path: Path) -> None:
    config = configure()
    found = catalogue(config, simulate(config), 0.05)
    found.save(path := tmp_path / "galaxies.hdf5")
    with h5py.File(path) as file:
        units = {name: data.attrs["unit"] for name, data in file.items()}
        columns = {name: data[()] for name, data in file.items()}
        about = dict(file.attrs)
    assert units == {"Position": "Mpc/h", "RedshiftSpacePosition": "Mpc/h", "Velocity": "km/s"}
    for name, values in found.columns.items():
        np.testing.assert_array_equal(columns[name], values)
    assert (about["a"], about["z"], json.loads(about["config"])["mesh_shape"]) == (0.5, 1.0, list(SHAPE))
    assert json.loads(about["cosmology"])["sigma8"] == pytest.approx(float(problems.cosmology().sigma8))
    tables = pytest.importorskip("astropy.table")
    table = tables.QTable(columns, units={"Velocity": "km/s"})
    assert len(table) == len(found)
    np.testing.assert_allclose(table["Velocity"].to("m/s").value, 1000 * found.columns["Velocity"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The following parameter default values are unchanged")
def test_an_estimator_of_surveys_finds_the_multipoles_of_the_box() -> None:
    """Triumvirate, with randoms and distant lines of sight: the modes are the same, randoms scatter."""
    triumvirate = pytest.importorskip("triumvirate.twopt")
    objects, tools = (pytest.importorskip(f"triumvirate.{name}") for name in ("catalogue", "dataobjs"))
    config = configure(pmd.Decomposition((1, 1)), box_size=320.0, mesh_shape=16)
    x = catalogue(config, simulate(config, 1.0), 3e-3, a=1.0).columns["RedshiftSpacePosition"]
    field = pmd.observe.counts_from_catalogue(x, config, window="cloud-in-cell") / (3e-3 * 20**3) - 1
    ours = pmd.observe.power_multipoles(field, config, poles=(0, 2), deconvolve="shot-noise")
    randoms = np.random.default_rng(0).uniform(0, 320, (10 * len(x), 3))
    edge = 2 * np.pi / 320
    mesh = {"boxsize": [320.0] * 3, "ngrid": [16] * 3, "alignment": "centre", "assignment": "cic", "interlace": False}
    given = [objects.ParticleCatalogue(*points.T, nz=len(x) / 320**3) for points in (x, randoms)]
    far = {"los_data": np.eye(3)[[2] * len(x)], "los_rand": np.eye(3)[[2] * len(randoms)]}
    bins = tools.Binning("k", "lin", 0.5 * edge, 5.5 * edge, 5)
    for degree in (0, 2):
        theirs = triumvirate.compute_powspec(*given, **far, degree=degree, binning=bins, sampling_params=mesh)
        power = (theirs["pk_raw"] - theirs["pk_shot"]).real
        expected = np.asarray(ours.pole(degree))[:5] - (degree == 0) * 320**3 / len(x)
        scatter = (2 * degree + 1) ** 0.5 * (ours.pole(0)[:5] / np.sqrt(ours.modes[:5]))
        np.testing.assert_array_equal(theirs["nmodes"], ours.modes[:5])
        assert np.abs((power - expected) / scatter).max() < 0.4


@pytest.mark.usefixtures("unchecked")
def test_negative_weights_and_bad_arguments() -> None:
    config = configure()
    particles = simulate(config)

    def weights(share: float) -> np.ndarray:
        values = np.ones(SHAPE)
        values[0, 0, 0] = -share * (255 / (1 + share))
        return values

    with pytest.warns(UserWarning, match=r"negative for 0.39 % of the particles, which hold 1 % of the galaxies"):
        few = catalogue(config, particles, 1.0, weights=weights(0.01))
    assert abs(len(few) - np.prod(BOX)) < 5 * np.sqrt(np.prod(BOX))
    site = np.asarray(particles.positions(config))[0, 0, 0]
    assert not (few.columns["Position"] == site).all(axis=1).any()
    refused: dict[str, dict[str, Any]] = {
        r"hold 3 % of the galaxies: P\(k\) would be too low; use a larger smoothing": {"weights": weights(0.03)},
        "weights must be finite, with a sum above 0": {"weights": np.full(SHAPE, np.nan)},
        r"weights.shape=\(2, 2, 2\) must be particle_shape": {"weights": np.ones((2, 2, 2))},
        "weights must be finite, with a sum above 0.*": {
            "weights": np.where(np.arange(4) == 1, np.inf, np.ones(SHAPE))
        },
        "number_density=-1 must be a finite number from 0": {"density": -1},
        "number_density=1000000.0 must be a finite number from 0 to 3": {"density": 1e6},
        "key=3 must be a key": {"key": 3},
        r"particles.origin.a=0.5 is not a=1": {"a": 1.0},
    }
    for message, changes in refused.items():
        with pytest.raises(ValueError, match=message):
            catalogue(config, particles, **({"density": 1.0} | changes))
    with pytest.raises(ValueError, match="particles are not finite"):
        catalogue(config, pmd.Particles(particles.disp, particles.vel * jnp.nan), 1.0)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda p: catalogue(config, p, 1.0).columns)(particles)
