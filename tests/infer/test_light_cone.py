"""Density of galaxies on the light cone as a forward model: against catalogues, differences and other divisions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import pmwd_dist as pmd
from pmwd_dist import infer
from pmwd_dist.observe.density_cone import DensityCone, redshift_series

COSMO = problems.cosmology()
TABLE = pmd.growth_table(COSMO)
OBSERVER = (60.0, 20.0, 100.0)
GALAXIES = infer.LagrangianGalaxies(b1="b1", b2=0.1, smoothing=30.0)
OPTIONS: Any = {"observable": GALAXIES, "observer": OBSERVER, "linear_power": "eisenstein-hu"}


def configure(decomposition: Any = (1, 1), **changes: Any) -> pmd.Config:
    options: dict[str, Any] = {
        "box_size": 160.0,
        "mesh_shape": 8,
        "steps": 2,
        "a_start": 0.9,
        "lpt_order": 1,
        "halo": 4,
    }
    return pmd.Config(**(options | {"decomposition": decomposition} | changes))


def test_particles_on_a_lattice_have_the_mean_density_in_any_fiducial_cosmology() -> None:
    """The Jacobian makes up for what other distances do to the density."""
    config, logs = configure(particle_shape=16), jnp.asarray([-0.05, 0.12])
    zero = jnp.zeros((16, 16, 16, 3))
    means = []
    for Omega_c in (0.26, 0.6):
        fiducial = redshift_series(pmd.growth_table(problems.cosmology(Omega_c=Omega_c)), logs)
        cone = DensityCone(config, OBSERVER, (), jnp.ones(1), logs, redshift_series(TABLE, logs), fiducial)
        solution = pmd.nbody(pmd.Particles(zero, zero), TABLE, config, accumulate=cone)
        field = np.asarray(solution.raise_if_failed().accumulated)
        x = problems.lattice((8, 8, 8), (160.0,) * 3) - OBSERVER
        inner = (np.linalg.norm(x, axis=-1) > 45) & (np.abs(x + OBSERVER - 75) < 65).all(axis=-1)
        means.append((np.mean(field[inner]), np.std(field[inner])))
    (same, scatter), (other, _) = means
    np.testing.assert_allclose((same, scatter), (1, 0), atol=1e-9)
    assert abs(other - 1) < 0.01


@pytest.fixture(scope="module")
def forward() -> infer.Simulation:
    return infer.Simulation(configure(), COSMO, **OPTIONS)


def test_counts_of_a_catalogue_are_the_density_of_the_model(forward: infer.Simulation) -> None:
    """Drawn by other code at the same crossings: shot noise remains. Fiducial distances are 4 % smaller."""
    config, fiducial = forward.config, problems.cosmology(Omega_c=0.9)
    noise = pmd.white_noise(jax.random.key(0), config)
    elsewhere = infer.Simulation(config, fiducial, **OPTIONS)
    field, status = jax.jit(lambda *x: elsewhere(*x))(noise, {"b1": 0.8, "Omega_m": jnp.asarray(0.31)})
    status.raise_if_failed()
    modes = pmd.linear_modes(noise, COSMO, config, linear_power="eisenstein-hu")

    def weights(a: float) -> jax.Array:
        bias = pmd.observe.LagrangianBias(b1=0.8, b2=0.1)
        return pmd.observe.bias_weights(modes, bias, TABLE, config, smoothing=30.0, a=a)

    survey = pmd.observe.Survey(([0.008, 0.08], [5e-3, 5e-3]))
    options: Any = {"key": jax.random.key(1), "weights": weights, "observer": OBSERVER}
    galaxies = pmd.observe.galaxy_light_cone(pmd.lpt(modes, COSMO, config), COSMO, config, survey, **options)
    x = pmd.observe.comoving_positions(galaxies.columns, fiducial, observer=OBSERVER)
    x = x[((x > 0) & (x < 140)).all(axis=1)]
    counts = np.asarray(pmd.observe.counts_from_catalogue(x, config, window="cloud-in-cell"))[1:7, 1:7, 1:7]
    r = np.linalg.norm(problems.lattice((8, 8, 8), (160.0,) * 3) - OBSERVER, axis=-1)[1:7, 1:7, 1:7]
    near, grid = r > 60, np.linspace(0, 0.12, 1201)
    assumed, true = (np.asarray(pmd.comoving_distance(1 / (1 + grid), cosmo)) for cosmo in (fiducial, COSMO))
    volume = np.interp(r, assumed, np.gradient(true**3, grid) / np.maximum(np.gradient(assumed**3, grid), 1e-9))
    expected = np.asarray(field)[1:7, 1:7, 1:7] * 5e-3 * 20**3 * volume  # of true volume in the one of a cell
    chi = ((counts - expected) / np.sqrt(expected * 8 / 27))[near]  # the variance of a cloud: (2/3)^3
    assert abs(np.mean(chi)) < 0.5
    assert 0.6 < np.std(chi) < 1.5
    assert np.corrcoef(counts[near], expected[near])[0, 1] > 0.95

    selection = np.asarray(pmd.observe.survey_selection(survey, COSMO, config, observer=OBSERVER))
    distance = np.linalg.norm(problems.lattice((8, 8, 8), (160.0,) * 3) - OBSERVER, axis=-1)
    np.testing.assert_array_equal(selection, (distance > 24) * 1.0)  # z = 0.008


def directional(forward: infer.Simulation) -> Any:
    """A number of the field, and its derivatives by noise and parameters."""
    weight = np.random.default_rng(1).standard_normal((8, 8, 8))

    @jax.jit
    def run(noise: jax.Array, parameters: dict[str, Any]) -> Any:
        def number(noise: jax.Array, parameters: dict[str, Any]) -> Any:
            field = forward(noise, parameters)[0]
            return jnp.sum(weight * field), field

        return jax.value_and_grad(number, (0, 1), has_aux=True)(noise, parameters)

    return run


@pytest.mark.slow
def test_gradients_are_those_of_differences_and_of_chains_on_groups_of_devices(forward: infer.Simulation) -> None:
    """By noise, cosmology (with Alcock-Paczynski) and bias, of chains at different places."""
    run, noise = directional(forward), pmd.white_noise(jax.random.key(0), forward.config)
    at = {"Omega_m": jnp.asarray(0.32), "sigma8": jnp.asarray(0.8), "b1": jnp.asarray(0.8)}
    (value, field), (by_noise, by_parameters) = run(noise, at)
    along = problems.smooth_field(np.random.default_rng(2), (8, 8, 8))
    size = 1e-5
    ends = [run(noise + sign * size * along, at)[0][0] for sign in (1, -1)]
    np.testing.assert_allclose(np.sum(np.asarray(by_noise) * along), (ends[0] - ends[1]) / (2 * size), rtol=1e-4)
    for name, slope in by_parameters.items():
        ends = [run(noise, at | {name: at[name] + sign * size})[0][0] for sign in (1, -1)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * size), rtol=1e-4, err_msg=name)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    divided = infer.Simulation(configure(pmd.Decomposition(mesh=mesh, spec=P("x"))), COSMO, **OPTIONS)
    second = jnp.asarray(along), jax.tree.map(lambda x: 1.1 * x, at)
    both = jax.tree.map(lambda *x: jnp.stack(x), (noise, at), second)
    chains = jax.jit(jax.vmap(directional(divided), spmd_axis_name="chains"))(*both)
    expected = jax.tree.map(lambda *x: np.stack(x), ((value, field), (by_noise, by_parameters)), run(*second))
    for ours, alone in zip(jax.tree.leaves(chains), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-9 * np.abs(alone).max())


def test_what_has_no_light_cone_is_refused() -> None:
    made: dict[str, Any] = {
        r"observer=\[1.0, 2.0, 161.0\] must lie in the box": {"observer": (1.0, 2.0, 161.0)},
        "needs an N-body simulation without bias": {"gravity": "lpt"},
        "observable must be LagrangianGalaxies without line_of_sight": {
            "observable": infer.LagrangianGalaxies(line_of_sight="z")
        },
        "a_stop=0.95 must be 1": {"config": configure(a_stop=0.95)},
        "a_start=0.98 begins the light cone 60.* Mpc/h away, and the box reaches": {"config": configure(a_start=0.98)},
    }
    for message, changes in made.items():
        options = {"config": configure(), "observer": OBSERVER} | changes
        with pytest.raises(ValueError, match=message):
            infer.Simulation(options.pop("config"), COSMO, **options)
    survey = pmd.observe.Survey(([1.0, 2.0], [1e-3, 1e-3]))
    with pytest.raises(ValueError, match="sees no cell of the mesh, whose farthest one with particles is at z = 0.0"):
        pmd.observe.survey_selection(survey, COSMO, configure())
    columns = dict.fromkeys(("RA", "DEC", "Z"), np.zeros(1))
    refused: dict[str, dict[str, Any]] = {
        "columns=.* lacks Z; pass catalogue.columns": {"RA": np.zeros(1), "DEC": np.zeros(1)},
        r"have RA, DEC and Z of the shapes \(2,\), \(1,\) and \(1,\)": columns | {"RA": np.zeros(2)},
        r"columns\['DEC'\] must be a finite number from -90 to 90 deg": columns | {"DEC": np.full(1, 200.0)},
        r"columns\['Z'\] must be a finite number, 0 or more; leave galaxies out": columns | {"Z": np.full(1, -0.01)},
    }
    for message, given in refused.items():
        with pytest.raises(ValueError, match=message):
            pmd.observe.comoving_positions(given, COSMO)
    with pytest.raises(ValueError, match="observer must be a finite number"):
        pmd.observe.comoving_positions(columns, COSMO, observer=(np.nan, 0, 0))


def stitched(config: pmd.Config, snapshots: pmd.Particles, times: np.ndarray) -> np.ndarray:
    """Density of the particles of the snapshots nearest in time to light at their distance, in redshift space."""
    box, n = config.box_size[0], config.mesh_shape[0]
    chi = np.asarray(pmd.comoving_distance(times, TABLE))
    ends = np.concatenate([[np.inf], (chi[1:] + chi[:-1]) / 2, [0.0]])
    grid = np.linspace(0, 0.4, 4001)
    distances = np.asarray(pmd.comoving_distance(1 / (1 + grid), TABLE))
    places = []
    for i, a in enumerate(times):
        x = (problems.lattice((n, n, n), (box,) * 3) + np.asarray(snapshots.disp[i])).reshape(-1, 3)
        u = np.asarray(snapshots.vel[i]).reshape(-1, 3) * 100 / a / 299792.458
        for image in np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), -1).reshape(-1, 3):
            y = x + image * box - np.asarray(CORNER)
            r = np.linalg.norm(y, axis=1)
            here = (r < ends[i]) & (r >= ends[i + 1])
            z = (1 + np.interp(r, distances, grid)) * (1 + np.sum(u * y, axis=1) / np.maximum(r, 1)) - 1
            places.append((y * (np.interp(z, grid, distances) / np.maximum(r, 1))[:, None] + CORNER)[here])
    s = np.concatenate(places)
    s = s[((s >= 0) & (s < box - config.cell_size[0])).all(axis=1)]  # counts are periodic
    return np.asarray(pmd.observe.counts_from_catalogue(s, config, window="cloud-in-cell"))


CORNER = (5.0, 5.0, 5.0)


@pytest.mark.slow
def test_the_light_cone_is_that_of_stitched_snapshots() -> None:
    """Mean densities in shells, and monopole and quadrupole of the power about the diagonal."""
    config = configure(box_size=320.0, mesh_shape=32, steps=10, a_start=0.75)
    forward = infer.Simulation(config, COSMO, observer=CORNER, linear_power="eisenstein-hu")
    noise = pmd.white_noise(jax.random.key(0), config)
    times = np.linspace(0.8, 1.0, 13)

    @jax.jit
    def both(noise: jax.Array) -> Any:
        particles = pmd.lpt(pmd.linear_modes(noise, COSMO, config, linear_power="eisenstein-hu"), TABLE, config)
        return forward(noise, {})[0], pmd.nbody(particles, TABLE, config, saveat=times.tolist()).snapshots

    field, snapshots = both(noise)
    fields = np.stack([np.asarray(field), stitched(config, snapshots, times)])
    x = problems.lattice((32, 32, 32), (320.0,) * 3) - CORNER
    r = np.linalg.norm(x, axis=-1)
    inner = (r > 60) & (r < 290) & (x > 20).all(axis=-1) & (x < 280).all(axis=-1)
    for low in range(60, 290, 46):
        shell = inner & (r >= low) & (r < low + 46)
        one, other = fields[:, shell].mean(axis=1)
        assert abs(one / other - 1) < 0.01
    modes = np.fft.rfftn(np.where(inner, fields - 1, 0), axes=(1, 2, 3))
    k = np.meshgrid(*[np.fft.fftfreq(32)] * 2, np.fft.rfftfreq(32), indexing="ij")
    size = np.sqrt(sum(c**2 for c in k))
    legendre = 1.5 * sum(k) ** 2 / 3 / np.where(size > 0, size, 1) ** 2 - 0.5
    for low, high in ((0.03, 0.1), (0.1, 0.2), (0.2, 0.3)):
        band = (size > low) & (size <= high)
        power = np.abs(modes[:, band]) ** 2
        (one, other), (two, second) = power.mean(axis=1), 5 * (power * legendre[band]).mean(axis=1)
        assert abs(one / other - 1) < 0.01
        assert abs(two - second) < 0.01 * other
