"""Maps of galaxies in the pixels of lensing maps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import Survey, galaxy_maps
from pmwd_dist.observe.angular_power import all_powers
from pmwd_dist.observe.healpix import pixel_centres
from pmwd_dist.observe.survey import sky as columns_of
from pmwd_dist.pm.stepping.forward import Epoch

COSMO = problems.cosmology()
TABLE = pmd.growth_table(COSMO)
KEY = jax.random.key(3)
EDGES, CENTRE = (0.0, 30.0, 70.0), (50.0, 50.0, 50.0)
CONFIG = pmd.Config(100.0, 8, steps=2, a_start=0.9, halo=4, decomposition=(1, 1))
FLAT = pmd.observe.FlatSkyLightCone(CONFIG, EDGES, pixels=32, observer=10.0, line_of_sight="y")
VIEW: dict[str, Any] = {"field": 40.0, "pixels": 10}
DISTANCES = np.array([20.0, 35.0, 65.0, 69.0, 69.9])
Z = np.interp(DISTANCES, pmd.comoving_distance(1 / (1 + np.linspace(0, 0.1, 2001)), TABLE), np.linspace(0, 0.1, 2001))
SURVEY = Survey(([Z[0], Z[3]], [5e-3, 5e-3]))


@pytest.mark.parametrize("sky", ["flat", "sphere"])
def test_a_clump_is_in_the_same_pixel_as_its_convergence(sky: str) -> None:
    cone: Any = FLAT
    place, observer, pixel, view = (12.0, 55.0, 94.0), (0.0, 10.0, 0.0), (8, 3), VIEW
    if sky == "sphere":
        cone = pmd.observe.SphericalLightCone(CONFIG, EDGES, 4)
        place, observer, pixel, view = np.asarray(CENTRE) + 50 * pixel_centres(4)[17], CENTRE, (17,), {}
    sites = problems.lattice((8, 8, 8), (100.0,) * 3)
    away = (np.asarray(place) - sites + 50) % 100 - 50
    move = np.where(np.linalg.norm(away, axis=-1, keepdims=True) < 25, away, 0)
    ends = (Epoch(jnp.asarray(a), pmd.Particles(jnp.asarray(move), jnp.zeros_like(move))) for a in (0.9, 1.0))
    kappa = np.asarray(pmd.observe.convergence(jax.jit(cone)(*ends, TABLE), TABLE, cone, source=Z[4], **view))
    seen = (sites + move - np.asarray(observer) + 50).reshape(-1, 3) % 100 - 50  # galaxies at the particles
    galaxies = columns_of(seen) | {"Z": np.interp(np.linalg.norm(seen, axis=1), DISTANCES, Z)}
    maps = galaxy_maps(galaxies, SURVEY, TABLE, cone, Z[1:3], **view)
    for values in (kappa, maps.overdensity[0]):
        assert values.max() > 7 * values.std()
        assert np.unravel_index(values.argmax(), values.shape) == pixel


@pytest.mark.parametrize("sky", ["flat", "sphere"])
def test_random_points_have_the_share_that_is_seen_and_their_shot_noise(sky: str) -> None:
    """With weights, of a mask that is finer than the pixels; on a flat sky with planes that spheres cut."""
    cone: Any = pmd.observe.FlatSkyLightCone(CONFIG, np.linspace(0, 70, 29))
    mask = np.where(pixel_centres(16)[:, 2] > 0.8, 0.5 + 0.5 * (pixel_centres(16)[:, 0] > 0), 0)
    if sky == "sphere":
        cone, mask = pmd.observe.SphericalLightCone(CONFIG, EDGES, 4), np.where(np.arange(3072) % 3, 0.5, 0.1)
    survey = Survey(([Z[0], Z[2] * (1 + 1e-10), Z[3]], [5e-3] * 3), mask=mask)
    columns = pmd.observe.random_catalogue(survey, TABLE, key=KEY, number=150_000).columns
    columns["WEIGHT"] = np.where(np.arange(150_000) % 2, 2.0, 0.5)
    maps = galaxy_maps(columns, survey, TABLE, cone, Z[[0, 2, 3]], **(VIEW if sky == "flat" else {}))
    assert maps.seen.max() == 1
    assert maps.overdensity.shape == (2, *maps.seen.shape)
    for delta, noise in zip(maps.overdensity, maps.shot_noise, strict=True):
        assert abs(delta.sum()) < 1e-9
        pixel_area = (np.radians(40) ** 2 if sky == "flat" else 4 * np.pi) / delta.size
        chi2 = np.mean(delta**2 / maps.seen) * np.mean(maps.seen) * pixel_area / noise
        assert abs(chi2 - 1) < 3.5 * np.sqrt(2 / delta.size)
    shares, numbers = np.histogram(columns["Z"], Z[[0, 2, 3]])[0] / 150_000, [np.trapezoid(n, z) for z, n in maps.n_z]
    np.testing.assert_allclose(shares, numbers / np.sum(numbers), atol=0.005)
    assert all((np.diff(np.float32(z)) > 0).all() for z, _ in maps.n_z)


@pytest.mark.slow
def test_angular_power_on_a_flat_sky_is_that_of_linear_theory() -> None:
    """Of lensing and two bins of galaxies, in a box as long as the light cone; sigma8 is small for linear growth."""
    cosmo, side, n, runs = problems.cosmology(sigma8=0.4), 20.0, 64, 3
    config = pmd.Config((1000.0, 375.0, 375.0), (128, 48, 48), steps=2, a_start=0.7, decomposition=(1, 1))
    cone = pmd.observe.FlatSkyLightCone(config, np.linspace(400, 1000, 7), pixels=96, line_of_sight="x")
    z = np.linspace(0, 0.5, 4001)
    redshifts = partial(np.interp, xp=pmd.comoving_distance(1 / (1 + z), TABLE), fp=z)
    bins, source = redshifts([500.0, 700.0, 900.0]), float(redshifts(999.0))
    mask = np.where(pixel_centres(16)[:, 0] > np.cos(np.radians(0.75 * side + 4)), 1.0, 0.0)
    survey = Survey((redshifts([460.0, 940.0]), [5e-3, 5e-3]), mask=mask)

    @jax.jit
    def start(key: jax.Array) -> Any:
        return pmd.lpt(pmd.linear_modes(pmd.white_noise(key, config, fixed=True), cosmo, config), cosmo, config)

    def measured(key: jax.Array) -> tuple[Any, Any]:
        particles = start(key)
        mass = pmd.nbody(particles, TABLE, config, accumulate=cone).raise_if_failed().accumulated
        with pytest.warns(UserWarning, match="leave out"):
            kappa = pmd.observe.convergence(mass, TABLE, cone, source=source, field=side, pixels=n)
        found = pmd.observe.galaxy_light_cone(particles, TABLE, config, survey, key=key, observer=(0, 0, 0)).columns
        maps = galaxy_maps(found | {"Z": found["Z_COSMO"]}, survey, TABLE, cone, bins, field=side, pixels=n)
        return all_powers(jnp.stack([kappa, *maps.overdensity]), side), maps

    every = [measured(jax.random.key(i)) for i in range(runs)]
    (spectra, maps), noise = every[0], [0.0, *np.mean([maps.shot_noise for _, maps in every], axis=0)]
    seen = np.asarray(spectra[0, 0].ell) < 130  # and those without modes are NaN
    ell, modes = (np.asarray(x)[seen] for x in (spectra[0, 0].ell, spectra[0, 0].modes))
    given = ell, lambda k: pmd.linear_power(k, cosmo), TABLE, cone.edges, [source]
    galaxies = [(*n_z, 1.0) for n_z in maps.n_z]
    linear = np.asarray(pmd.observe.limber_power(*given, galaxies=galaxies, cone=cone, pixel=side / n))
    for i, j in spectra:
        mean = np.mean([found[i, j].power for found, _ in every], axis=0)[seen] - (noise[i] if i == j else 0)
        unit = np.sqrt(linear[i, i] * linear[j, j])  # C_l of these are 1, 0.69, 0.44 and, of two bins of galaxies, 0
        variance = ((linear[i, i] + noise[i]) * (linear[j, j] + noise[j]) + linear[i, j] ** 2) / unit**2
        sd = np.sqrt(np.sum(modes * variance)) / np.sum(modes) / np.sqrt(runs)
        assert abs(np.average((mean - linear[i, j]) / unit, weights=modes)) < 3 * sd < 0.25


@pytest.mark.usefixtures("unchecked")
def test_bad_maps_of_galaxies_are_refused() -> None:
    columns = {"RA": np.array([0.0]), "DEC": np.array([0.0]), "Z": Z[1:2]}
    rotated = pmd.observe.SphericalLightCone(CONFIG, EDGES, 4, seed=0)
    for changes, message in (
        ({"bins": [0.02, 0.01]}, r"bins=\[0.02, 0.01\] must ascend from 0 or more; sort them"),
        ({"bins": [0.001, 0.002, 0.01]}, r"bins=.* must each hold redshifts of the survey, 0.00668\d* to 0.023"),
        ({"bins": [0.01, 0.03]}, r"reach from 29.\d+ to 89.\d+ Mpc/h, beyond the shells, 0 to 70 Mpc/h"),
        ({"bins": Z[1:3]}, r"bins from 0.011\d* to 0.02\d* have no galaxies in the maps; use wider bins, or"),
        ({"field": None}, "field=None must be a finite number from 0.001 to 90 degrees"),
        ({"pixels": 0}, "pixels=0 must be "),
        ({"cone": rotated}, "cone rotates the box, and galaxies do not; use no seed"),
        ({"columns": {"RA": columns["RA"]}}, r"columns=\['RA'\] lacks DEC, Z; pass catalogue.columns"),
        ({"columns": columns | {"WEIGHT": np.array([np.nan])}}, r"columns\['WEIGHT'\] must be a finite number, 0 or"),
        ({"columns": columns | {"WEIGHT": np.ones(2)}}, r"columns\['WEIGHT'\].shape=\(2,\) must be \(1,\)"),
        ({"columns": columns | {"Z": [np.nan], "Z_COSMO": [0.01]}}, r"columns\['Z'\] must be a finite number"),
        ({"cone": pmd.observe.SphericalLightCone(CONFIG, EDGES, 4)}, "field=40.0 is for flat skies; leave field and"),
        ({"survey": Survey(SURVEY.n_z, mask=[0.0] * 11 + [1.0])}, "survey.mask is 0 in the whole field of view"),
        ({"survey": None}, "survey is a NoneType and must be a Survey"),
    ):
        arguments: dict[str, Any] = {"columns": columns, "survey": SURVEY, "cosmo": TABLE, "cone": FLAT, **VIEW}
        with pytest.raises(ValueError, match=message):
            galaxy_maps(**({"bins": Z[1:3]} | arguments | changes))
