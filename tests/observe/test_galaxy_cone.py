"""Galaxies on the light cone: their places on the sky, redshifts and numbers, against astropy, healpy and n(z)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.observe import Survey, galaxy_draws
from pmwd_dist.observe.healpix import nearest_pixel, pixel_centres
from pmwd_dist.observe.survey import sky

COSMO = problems.cosmology()
TABLE = pmd.growth_table(COSMO)
HEALPY = np.load(Path(__file__).parent / "healpy_pixels.npz")  # made by make_healpy_pixels.py
KEY = jax.random.key(3)
LIGHT = 299792.458  # km/s
NORTH = np.where(pixel_centres(4)[:, 2] > 0.01, np.where(pixel_centres(4)[:, 0] > 0, 0.8, 0.3), 0.0)


def configure(decomposition: Any = (1, 1), **changes: Any) -> pmd.Config:
    options: dict[str, Any] = {"box_size": 100.0, "mesh_shape": 8, "steps": 2, "a_start": 0.9, "halo": 4}
    return pmd.Config(**(options | {"decomposition": decomposition} | changes))


def at_rest(config: pmd.Config, momentum: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> pmd.Particles:
    """Particles on the lattice, which move with one momentum [Mpc/h]; nothing pulls them."""
    zero = jnp.zeros((*config.particle_shape, 3))
    return pmd.Particles(zero, zero + jnp.asarray(momentum).reshape(1, 1, 1, 3))


def clustered(config: pmd.Config) -> pmd.Particles:
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), COSMO, config)
    return pmd.lpt(modes, COSMO, config)


def directions(columns: Any) -> np.ndarray:
    """Unit vectors of RA and DEC."""
    ra, dec = np.radians(columns["RA"]), np.radians(columns["DEC"])
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], -1)


def redshift(distance: float) -> float:
    z = np.linspace(0, 0.3, 4001)
    return float(np.interp(distance, pmd.comoving_distance(1 / (1 + z), TABLE), z))


def on_axes(momentum: tuple[float, float, float], **options: Any) -> dict[str, np.ndarray]:
    """Galaxies at three particles, 25 Mpc/h from the observer along the axes."""
    config = configure(mesh_shape=4, steps=8)
    weights = np.zeros((4, 4, 4))
    weights[3, 2, 2] = weights[2, 3, 2] = weights[2, 2, 3] = 1
    survey = Survey(([redshift(15), redshift(40)], [1e-4, 1e-4]), **options)
    given: Any = {"key": KEY, "weights": weights}
    return pmd.observe.galaxy_light_cone(at_rest(config, momentum), COSMO, config, survey, **given).columns


def test_one_galaxy_on_each_axis_is_where_astropy_and_healpy_have_it() -> None:
    found = on_axes((0.0, 0.0, 0.0))
    assert all(values.dtype == np.float64 for values in found.values())
    x = np.unique(np.stack([found["RA"], found["DEC"]], -1), axis=0)
    coordinates = pytest.importorskip("astropy.coordinates")
    axes = coordinates.SkyCoord(*np.eye(3), representation_type="cartesian").spherical
    expected = np.stack([axes.lon.deg, axes.lat.deg], -1)
    np.testing.assert_allclose(x, expected[[0, 2, 1]], atol=1e-6)
    cosmology = pytest.importorskip("astropy.cosmology")
    flat = cosmology.FlatLambdaCDM(100 * COSMO.h, COSMO.Omega_c + COSMO.Omega_b, Tcmb0=0)
    np.testing.assert_allclose(flat.comoving_distance(found["Z_COSMO"]).value * COSMO.h, 25, rtol=1e-5)
    np.testing.assert_allclose(found["Z"], found["Z_COSMO"], rtol=1e-12)

    vectors, pixels = HEALPY["vectors_64"], HEALPY["nearest_64"]
    assert np.mean(np.asarray(nearest_pixel(64, directions(sky(vectors)))) == pixels) > 0.99  # some lie on edges
    np.testing.assert_allclose(nearest_pixel(4, pixel_centres(4)), np.arange(192))
    only = np.zeros(12)
    only[int(nearest_pixel(1, np.array([0.0, 1.0, 0.0])))] = 1
    np.testing.assert_allclose(on_axes((0.0, 0.0, 0.0), mask=only)["RA"], 90)


def test_redshifts_hold_peculiar_velocities() -> None:
    momentum = (2.0, -1.0, 0.5)
    found = on_axes(momentum)
    along = directions(found) @ np.asarray(momentum)
    assert len({*along.round(6)}) == 3
    speed = along * 100 * (1 + found["Z_COSMO"])
    np.testing.assert_allclose(found["Z"], (1 + found["Z_COSMO"]) * (1 + speed / LIGHT) - 1, rtol=2e-5)


def chi2(counts: np.ndarray, expected: np.ndarray) -> float:
    """Deviation of a sum of squares from its mean, in standard deviations."""
    return float((np.sum((counts - expected) ** 2 / expected) - len(counts)) / math.sqrt(2 * len(counts)))


def test_numbers_follow_n_of_z_and_mask() -> None:
    """Of galaxies at particles without clustering and of random points, near the border of the box, too."""
    config = configure(mesh_shape=16, box_size=(100.0, 120.0, 90.0))
    survey = Survey(([0.02, 0.05, 0.1], [0.0, 2e-3, 1e-3]), mask=NORTH, completeness=0.8)
    observer = (10.0, 50.0, 80.0)
    galaxies = pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, survey, key=KEY, observer=observer)
    randoms = pmd.observe.random_catalogue(survey, COSMO, key=KEY, number=3 * len(galaxies))
    edges = np.linspace(0.03, 0.1, 8)
    expected = survey.numbers_between(edges, TABLE)
    z = np.linspace(0.02, 0.1, 2000)
    x = np.asarray(pmd.comoving_distance(1 / (1 + z), TABLE))
    volume = np.trapezoid(0.8 * np.interp(z, *survey.n_z) * x**2, x) * 4 * math.pi * np.mean(NORTH)
    np.testing.assert_allclose(survey.number(COSMO), volume, rtol=1e-5)
    shares = []
    for found, number in ((galaxies, survey.number(TABLE)), (randoms, len(randoms))):
        columns = found.columns
        assert abs(len(found) - number) < 4 * math.sqrt(number)
        counts = np.histogram(columns["Z"], edges)[0]
        assert chi2(counts, expected * number / survey.number(TABLE)) < 4
        direction = directions(columns)
        pixels = np.bincount(np.asarray(nearest_pixel(4, direction)), minlength=192)
        assert (pixels[NORTH == 0] == 0).all()
        assert chi2(pixels[NORTH > 0], len(found) * NORTH[NORTH > 0] / NORTH.sum()) < 6
        np.testing.assert_allclose(columns["NZ"], survey.density(columns["Z"]), rtol=1e-6)
        distance = np.asarray(pmd.comoving_distance(1 / (1 + columns["Z"]), TABLE))
        place = (distance[:, None] * direction + np.asarray(observer)) / config.box_size % 1
        border = ((place < 0.0313) | (place > 0.9687)).any(axis=1)  # half a site
        shares.append((np.mean(border), math.sqrt(np.mean(border) / len(found))))
    (a, sd_a), (b, sd_b) = shares
    assert abs(a - b) < 4 * math.hypot(sd_a, sd_b)


@pytest.mark.parametrize("explicit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_catalogues_do_not_depend_on_the_division(explicit: bool, tmp_path: Path) -> None:
    """Over devices, also with Explicit axes; and a file of one is a table with units."""
    losses: Any = lambda columns: 0.5 + np.multiply(columns["Z"], 0, out=columns["Z"])  # noqa: E731
    survey = Survey(([0.0, 0.1], [2e-3, 2e-3]), redshift_error=1e-3, losses=losses)
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2)
    found = []
    for decomposition in ((1, 1), pmd.Decomposition(mesh=mesh, spec=jax.P("x", "y"))):
        config = configure(decomposition)
        moved = np.random.default_rng(0).normal(0, (2, 2, 2, 20, 20, 20), (8, 8, 8, 6)).astype(float)
        disp, vel = (jax.device_put(x, config.decomposition.sharding) for x in np.split(moved, 2, axis=-1))
        particles = pmd.Particles(disp, vel)

        def weights(a: float, config: Any = config) -> Any:
            x = jnp.arange(8.0).reshape(-1, 1, 1) * jnp.ones(config.particle_shape)
            return jax.device_put(x * a, config.decomposition.sharding)

        options: Any = {"key": KEY, "weights": weights}
        found.append(pmd.observe.galaxy_light_cone(particles, COSMO, config, survey, **options))
    for other in found[1:]:
        for name, values in found[0].columns.items():
            np.testing.assert_allclose(other.columns[name], values, rtol=0, atol=1e-7, err_msg=name)
    first = found[0].columns
    np.testing.assert_allclose(first["WEIGHT"], 2)
    complete = Survey(survey.n_z)  # the same galaxies without losses and errors
    everyone = pmd.observe.galaxy_light_cone(particles, COSMO, config, complete, **options)
    assert abs(len(found[0]) - len(everyone) / 2) < 2.5 * math.sqrt(len(everyone))
    whole = everyone.columns
    errors, velocities = (np.std((x["Z"] - x["Z_COSMO"]) / (1 + x["Z_COSMO"])) for x in (first, whole))
    assert errors == pytest.approx(math.hypot(1e-3, velocities), rel=0.03)
    found[0].save(path := tmp_path / "galaxies.hdf5")
    with h5py.File(path) as file:
        units = {name: data.attrs["unit"] for name, data in file.items()}
        assert units == {"RA": "deg", "DEC": "deg", "Z": "", "Z_COSMO": "", "WEIGHT": "", "NZ": "(h/Mpc)^3"}
        np.testing.assert_array_equal(file["DEC"][:], first["DEC"])
        assert file.attrs["observer [Mpc/h]"].tolist() == [50, 50, 50]


def test_numbers_at_particles_are_those_of_poisson() -> None:
    """Mean and variance in single precision, up to the largest mean; and a particle where the observer is."""
    u = jnp.asarray(np.random.default_rng(0).random(4000), jnp.float32)
    for mean in (0.1, 3.0, 50.0):
        found = np.asarray(galaxy_draws._poisson(jnp.full(4000, mean, jnp.float32), u))
        assert abs(found.mean() - mean) < 4 * math.sqrt(mean / 4000)
        assert abs(found.var() / mean - 1) < 4 * math.sqrt((2 + 1 / mean) / 4000)
    config = configure(mesh_shape=16)
    survey = Survey(([0.0, 0.01], [5e-3, 5e-3]))
    found = pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, survey, key=KEY, observer=(50.0, 50.0, 50.0))
    number = survey.number(TABLE)
    assert abs(len(found) - number) < 5 * math.sqrt(number) + 5e-3 * (100 / 16) ** 3
    plane = jnp.zeros((16, 16, 16)).at[0].set(1.0)
    dense = Survey(([0.0, 0.01], [5 / (100 / 16) ** 3] * 2))
    with pytest.raises(ValueError, match="has up to 80 galaxies at a particle, more than 50; use more particles, or"):
        pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, dense, key=KEY, weights=plane)


def test_weights_evolve_with_the_growth_factor() -> None:
    """A weight of D1^2 on odd planes, and of 1 on even ones."""
    config = configure(a_start=0.7)
    odd = np.arange(8).reshape(-1, 1, 1) % 2 * np.ones((8, 8, 8))
    survey = Survey(([0.05, 0.2], [2e-4, 2e-4]))
    options: Any = {"key": KEY, "observer": (0.0, 0.0, 0.0)}
    options["weights"] = lambda a: jnp.asarray(1 - odd + odd * float(TABLE.D1(a)) ** 2)
    found = pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, survey, **options).columns
    x = np.asarray(pmd.comoving_distance(1 / (1 + found["Z_COSMO"]), TABLE)) * directions(found)[:, 0]
    on_odd = np.rint(x / 12.5).astype(int) % 2 == 1
    edges = np.linspace(0.05, 0.2, 7)
    number, odds = (np.histogram(z, edges)[0] for z in (found["Z_COSMO"], found["Z_COSMO"][on_odd]))
    squared = np.asarray(TABLE.D1(1 / (1 + (edges[1:] + edges[:-1]) / 2))) ** 2
    share = squared / (1 + squared)
    assert np.abs((odds / number - share) / np.sqrt(share * (1 - share) / number)).max() < 4


def test_random_points_fill_distant_fields_evenly() -> None:
    survey = Survey(([0.1, 0.2], [1e-3, 1e-3]), mask=np.isin(np.arange(12), [0, 5]) * 1.0)
    points = directions(pmd.observe.random_catalogue(survey, COSMO, key=KEY, number=20000).columns)
    counts = np.bincount(np.asarray(nearest_pixel(4, points)), minlength=192)
    parts = counts[np.isin(nearest_pixel(1, pixel_centres(4)), [0, 5])]
    assert len(parts) == 32
    assert chi2(parts, np.full(32, 20000 / 32)) < 4
    small = np.isin(np.arange(12 * 256**2), [5, 12 * 256**2 - 9]) * 1.0
    found = pmd.observe.random_catalogue(Survey(survey.n_z, mask=small), COSMO, key=KEY, number=1000).columns
    assert abs(np.sum(found["DEC"] > 0) - 500) < 80


@pytest.mark.parametrize("Omega_k", [-0.2, pytest.param(0.3, marks=pytest.mark.slow)])
def test_numbers_in_a_curved_universe_are_those_of_astropy(Omega_k: float) -> None:
    cosmo = problems.cosmology(Omega_k=Omega_k)
    matter = cosmo.Omega_c + cosmo.Omega_b
    curved = pytest.importorskip("astropy.cosmology").LambdaCDM(100 * cosmo.h, matter, 1 - matter - Omega_k, Tcmb0=0)
    survey = Survey(([0.3, 0.9], [1e-6, 1e-6]))
    volume = (curved.comoving_volume(0.9) - curved.comoving_volume(0.3)).value * cosmo.h**3
    assert survey.number(cosmo) == pytest.approx(1e-6 * volume, rel=1e-4)
    config = configure(box_size=1000.0, a_start=0.5)
    found = pmd.observe.galaxy_light_cone(at_rest(config), cosmo, config, survey, key=KEY)
    assert abs(len(found) - 1e-6 * volume) < 4 * math.sqrt(1e-6 * volume)


@pytest.mark.slow
def test_angular_power_in_three_shells_is_that_of_matter() -> None:
    """Of the same run in maps of other code, among galaxies and with lensing: shot noise scatters."""
    config, edges, n = configure(mesh_shape=16), (0.0, 60.0, 120.0, 180.0, 240.0, 320.0), 3e-2
    particles = clustered(config)
    cone = pmd.observe.SphericalLightCone(config, edges, 8, assignment="nearest")
    mass = pmd.nbody(particles, COSMO, config, accumulate=cone).raise_if_failed().accumulated
    kappa = pmd.observe.convergence(mass, TABLE, cone, source=redshift(319.0))
    survey = Survey(([redshift(40), redshift(260)], [n, n]))
    found = pmd.observe.galaxy_light_cone(particles, COSMO, config, survey, key=KEY).columns
    bins = [redshift(x) for x in edges[1:5]]
    maps = pmd.observe.galaxy_maps(found | {"Z": found["Z_COSMO"]}, survey, TABLE, cone, bins)
    power = lambda *maps: np.asarray(pmd.observe.angular_power(*maps).power)[2:13]  # noqa: E731
    ell, modes, lensing = np.arange(2.0, 13.0), 2 * np.arange(2, 13) + 1, power(kappa)
    given = ell, lambda k: pmd.linear_power(k, COSMO), TABLE, edges, [redshift(319.0)]
    linear = np.asarray(pmd.observe.limber_power(*given, galaxies=[(*x, 1.0) for x in maps.n_z], cone=cone))
    for i, matter in enumerate(cone.overdensity(mass)[1:4]):
        noise, galaxies = maps.shot_noise[i], jnp.asarray(maps.overdensity[i])
        mean = n * 4 / 3 * math.pi * (edges[i + 2] ** 3 - edges[i + 1] ** 3) / 768
        assert noise == pytest.approx(4 * math.pi / 768 / mean, rel=0.02)
        own, cross = power(matter), power(matter, kappa)
        for change, scatter, most in (
            (power(galaxies) - noise - own, np.sqrt(2 / modes * (2 * own * noise + noise**2)), 0.05 * own),
            (power(galaxies, kappa) - cross, np.sqrt(noise * lensing / modes), 0.13 * cross),
        ):
            assert np.abs(change / scatter).max() < 4
            total, sd = np.average(change, weights=modes), np.sqrt(np.sum((modes * scatter) ** 2)) / np.sum(modes)
            assert abs(total) < 3 * sd < np.average(most, weights=modes)
        theory, scatter = linear[0, 1 + i], np.sqrt(((own + noise) * lensing + cross**2) / modes)
        difference = np.sum(modes * (power(galaxies, kappa) - theory))
        assert abs(difference) < 3 * np.sqrt(np.sum((modes * scatter) ** 2))


@pytest.mark.usefixtures("unchecked")
def test_bad_surveys_are_refused_before_any_work() -> None:
    z, n = [0.02, 0.1], [1e-3, 1e-3]
    unseen = np.where(NORTH > 0, 1, -1.6375e30)
    surveys: dict[str, dict[str, Any]] = {
        "n_z must have redshifts of 0 or more that ascend, and has 0.2, 0.1; sort them": {"n_z": ([0.2, 0.1], n)},
        "n_z must be a pair: redshifts, and number densities": {"n_z": [1.0, 2.0, 3.0]},
        r"n_z must hold as many redshifts as densities.* has the shapes \(2,\) and \(1,\)": {"n_z": (z, [1.0])},
        "n_z must have finite number densities of 0 or more": {"n_z": (z, [1e-3, -1e-3])},
        "n_z has no galaxies: all densities are 0": {"n_z": (z, [0.0, 0.0])},
        r"mask.shape=\(100,\) must be a HEALPix map of 12 nside\^2 pixels": {"mask": np.ones(100)},
        "mask holds 104 values that are not finite, or marks like UNSEEN of HEALPix; set them to 0": {"mask": unseen},
        "mask=3.2 must not exceed 1": {"mask": 4 * NORTH},
        "mask=-0.8 must not be negative": {"mask": -NORTH},
        "mask has no galaxies: it is 0 in every pixel": {"mask": 0 * NORTH},
        "completeness=0 must be a finite number from 1e-09 to 1": {"completeness": 0},
        "redshift_error=1 must be a finite number from 0 to 0.2": {"redshift_error": 1},
        "losses=3|losses must be a function": {"losses": 3},
    }
    for message, changes in surveys.items():
        with pytest.raises(ValueError, match=message):
            Survey(**({"n_z": (z, n)} | changes))
    config, survey = configure(), Survey((z, n))
    calls: dict[str, dict[str, Any]] = {
        "survey.n_z reaches from z = 0.02 to 3, beyond the simulation, z = 0 to 0.1111; use an earlier a_start": {
            "survey": Survey(([0.02, 3.0], n))
        },
        "survey.n_z expects .* galaxies, and must expect 1 to": {"survey": Survey((z, [1e-12, 1e-12]))},
        "survey.n_z has up to 1.95e.06 galaxies at a particle, more than 50; use more particles": {
            "survey": Survey(([0.02, 0.0201], [1e3, 1e3]))
        },
        "survey is a tuple and must be a Survey": {"survey": (z, n)},
        "key=3 must be a key": {"key": 3},
        r"observer=\[1.0, 2.0, 101.0\] must lie in the box": {"observer": (1.0, 2.0, 101.0)},
        "weights are negative for .* P.k. would be too low": {"weights": np.arange(512.0).reshape(8, 8, 8) - 100},
        r"weights.shape=\(2, 2, 2\) must be particle_shape": {"weights": np.ones((2, 2, 2))},
        "solver must be a drift-kick-drift solver": {"solver": __import__("diffrax").Tsit5()},
    }
    for message, changes in calls.items():
        given: Any = {"survey": survey, "key": KEY} | changes
        with pytest.raises(ValueError, match=message):
            pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, given.pop("survey"), **given)
    few: dict[str, Any] = {"number=0 must be": {"number": 0}, "number=.* from 1 to 1000000000": {"number": 10**10}}
    for message, options in (few | {"key=3 must": {"key": 3}}).items():
        with pytest.raises(ValueError, match=message):
            pmd.observe.random_catalogue(survey, COSMO, **({"key": KEY, "number": 5} | options))
    lossy = Survey((z, n), losses=lambda columns: 2 + columns["Z"])
    with pytest.raises(ValueError, match=r"losses\(columns\)=2.* must not exceed 1"):
        pmd.observe.galaxy_light_cone(at_rest(config), COSMO, config, lossy, key=KEY)
