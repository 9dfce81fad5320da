"""Halos: groups particle by particle against all pairs and SciPy's tree, on every division, and their properties."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

import pmwd_dist as pmd
from pmwd_dist.ops import friends

SHAPE, BOX = (16, 16, 16), (16.0, 16.0, 16.0)


def configure(decomposition: Any = None, **changes: Any) -> pmd.Config:
    options = {
        "box_size": BOX,
        "mesh_shape": SHAPE,
        "steps": 4,
        "lpt_order": 2,
        "halo": 8,
        "decomposition": decomposition,
    }
    return pmd.Config(**(options | changes))


@pytest.fixture(scope="module")
def clustered() -> pmd.Particles:
    """Particles of a run at a = 1."""
    config, cosmo = configure(pmd.Decomposition((1, 1))), problems.cosmology()
    modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config), cosmo, config)
    solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config)
    solution.raise_if_failed()
    return solution.particles


def at(points: np.ndarray, config: pmd.Config) -> pmd.Particles:
    """Particles at points, in the order of the lattice, with velocities."""
    sites = problems.lattice(config.particle_shape, config.box_size)
    points = points.reshape(*config.particle_shape, 3)
    disp, vel = (jax.device_put(x, config.decomposition.sharding) for x in (points - sites, np.sin(40 * points) / 100))
    return pmd.Particles(disp, vel)


def halos_of(particles: pmd.Particles, config: pmd.Config, **options: Any) -> pmd.observe.HaloCatalogue:
    return pmd.observe.friends_of_friends(particles, problems.cosmology(), config, **({"a": 1.0} | options))


def check_labels(points: np.ndarray, sides: np.ndarray, length: float) -> None:
    for dtype in (np.float32, np.float64):
        x = points.astype(dtype)
        np.testing.assert_array_equal(
            friends.group_labels(x, tuple(sides), length), problems.friends_by_pairs(x, sides, length)
        )


def test_groups_are_those_of_all_pairs(native: bool) -> None:
    there = friends.native.function("friends_of_friends") is not None
    if native and not there and os.environ.get("PMWD_REQUIRE_NATIVE") != "1":
        pytest.skip("the native ops are an older build")
    assert there == native
    rng = np.random.default_rng(0)
    check_labels(*problems.friends_on_borders(), 0.25)
    for sides, length in (((4.0, 5.0, 3.0), 0.3), ((1.0, 8.0, 1.1), 0.4), ((1.0, 1.0, 1.0), 0.11)):
        box = np.asarray(sides)
        check_labels(rng.uniform(size=(400, 3)) * box * (1 - 1e-6), box, length)
        check_labels(np.floor(rng.uniform(size=(400, 3)) * box * 8) / 8 % box, box, 0.125)
    check_labels(np.full((30, 3), 0.5), np.ones(3), 0.1)
    check_labels(np.zeros((1, 3)), np.ones(3), 0.1)


def test_groups_of_a_run_are_those_of_scipy(clustered: pmd.Particles, native: bool) -> None:
    points = np.asarray(clustered.positions(configure())).reshape(-1, 3)
    pairs = cKDTree(points, boxsize=BOX).query_pairs(0.2, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs)), pairs.T), (len(points),) * 2)
    count, component = connected_components(graph, directed=False)
    labels = friends.group_labels(points, BOX, 0.2)
    assert len(np.unique(labels)) == len(np.unique(np.stack([labels, component]), axis=1).T) == count
    assert (np.bincount(component) >= 20).sum() > 5


def test_moments_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, sides = np.random.default_rng(3), (1.0, 2.0, 4.0)
    number = rng.integers(1, 60, 80)
    points = rng.normal(0, 0.07, (number.sum(), 3)) + np.repeat(rng.uniform(0, 4, (80, 3)), number, axis=0)
    points, starts = np.mod(points, sides), np.cumsum(number) - number
    points[starts[1] : starts[2]] = points[starts[1]]  # which coincide
    velocities = rng.normal(size=points.shape).astype(np.float32)
    for dtype in (np.float32, np.float64):
        found = friends.group_moments(points.astype(dtype), velocities, starts, sides)
        with monkeypatch.context() as changed:
            changed.setattr("pmwd_dist.ops.friends.native.function", lambda name: None)
            reference = friends.group_moments(points.astype(dtype), velocities, starts, sides)
        np.testing.assert_allclose(found, reference, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(reference[1, ::2], 0, atol=1e-12)


def test_halos_on_every_division(clustered: pmd.Particles, decomposition: pmd.Decomposition) -> None:
    config = configure(decomposition)
    divided = jax.device_put((clustered.disp, clustered.vel), decomposition.sharding)
    halos = halos_of(pmd.Particles(*divided), config)
    points, velocities = (np.asarray(x).reshape(-1, 3) for x in (clustered.positions(configure()), clustered.vel))
    labels = problems.friends_by_pairs(points, np.asarray(BOX), 0.2)
    ids, number = np.unique(labels, return_counts=True)
    order = np.lexsort((ids, -number))[: (number >= 20).sum()]
    np.testing.assert_array_equal(halos.number, number[order])
    np.testing.assert_array_equal(halos.columns["halo_id"], ids[order])
    cosmo = problems.cosmology()
    mass = 2.77536627e11 * (cosmo.Omega_c + cosmo.Omega_b)
    np.testing.assert_allclose(halos.mass, halos.number * mass, rtol=1e-6)
    for i, label in enumerate(ids[order]):
        members, place = points[labels == label], halos.position[i]
        apart = (members - place + 8) % 16 - 8
        np.testing.assert_allclose(apart.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(halos.velocity[i], 100 * velocities[labels == label].mean(0), rtol=1e-5, atol=1e-3)
        # The core is where the members are dense.
        near = [np.sum(np.abs((members - x + 8) % 16 - 8).max(-1) < 0.2) for x in (halos.core[i], place)]
        assert near[0] >= near[1] - 2
    assert (halos.position >= 0).all() and (halos.position < BOX).all()
    alone = halos_of(clustered, configure(pmd.Decomposition((1, 1))))
    for name, values in alone.columns.items():
        np.testing.assert_array_equal(halos.columns[name], values)


def test_cores_are_where_particles_are_dense() -> None:
    """Of a dense blob with a long tail; and of particles that coincide but for one."""
    config, rng = (
        configure(pmd.Decomposition((1, 1)), box_size=(8.0, 8.0, 4.0), mesh_shape=(8, 8, 4)),
        np.random.default_rng(0),
    )
    points = problems.lattice((8, 8, 4), config.box_size).reshape(-1, 3)
    points[:60] = rng.normal((2.5, 2.5, 1.5), 0.02, (60, 3))
    points[60:100, :] = (2.5, 2.5, 1.5) + np.linspace(0.05, 2, 40)[:, None] * [1, 0, 0]
    (halos,) = [halos_of(at(points, config), config)]
    assert len(halos) == 1 and halos.number[0] >= 100
    assert np.linalg.norm(halos.core[0] - [2.5, 2.5, 1.5]) < 0.05
    assert halos.position[0, 0] > 2.8
    points[:100] = (2.5, 2.5, 1.5)
    points[0, 0] += 0.125
    np.testing.assert_allclose(halos_of(at(points, config), config).core[0], (2.5, 2.5, 1.5), atol=1e-6)


def test_groups_across_borders(decomposition: pmd.Decomposition) -> None:
    points, sides = problems.friends_on_borders()
    config = configure(decomposition, box_size=tuple(sides), mesh_shape=(8, 8, 4))
    halos = halos_of(at(points, config), config, linking_length=0.25)
    labels = problems.friends_by_pairs(points, sides, 0.25)
    ids, number = np.unique(labels, return_counts=True)
    assert sorted(halos.columns["halo_id"]) == list(ids[number >= 20])
    assert len(halos) == 5
    assert halos.about["linking_length"] == 0.25
    assert len(halos_of(at(points, config), config, linking_length=0.25, min_particles=300)) == 0


def test_bad_arguments(clustered: pmd.Particles) -> None:
    config = configure(pmd.Decomposition((1, 1)))
    refused: dict[str, dict[str, Any]] = {
        "a=None is not known for these particles": {"a": None},
        "a=3.0 must be a scale factor": {"a": 3.0},
        "linking_length=0.01 must be a finite number from 0.05 to 1": {"linking_length": 0.01},
        "min_particles=0 must be a whole number, 1 or more": {"min_particles": 0},
        "min_particles=2.5 must be a whole number": {"min_particles": 2.5},
    }
    particles = pmd.Particles(clustered.disp, clustered.vel)
    for message, changes in refused.items():
        with pytest.raises(ValueError, match=message):
            halos_of(particles, config, **changes)
    with pytest.raises(ValueError, match="particles are not finite"):
        halos_of(pmd.Particles(clustered.disp, clustered.vel * jnp.nan), config)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda p: halos_of(p, config).mass)(particles)
    halos, cosmo, observe = halos_of(particles, config, a=0.5), problems.cosmology(), pmd.observe
    other = problems.cosmology(Omega_c=0.6)
    cold = pmd.Particles(jnp.zeros_like(clustered.disp), clustered.vel)
    calls: dict[str, Callable[[], Any]] = {
        "halos are of a universe with Omega_c = .*, and cosmo has 0.6; pass their cosmology": lambda: (
            observe.overdensity_masses(halos, particles, other, config)
        ),
        "halos are of a universe with h = 0.68, and cosmo has 0.6; pass their cosmology": lambda: pmd.save_groups(
            "absent/groups.hdf5", halos, problems.cosmology(h=0.6), config
        ),
        "log_m1=1.*0 must be a finite number from 0 to 20; pass decimal logarithms": lambda: observe.HaloOccupation(
            log_m1=1e13
        ),
        "sigma_log_m=-0.3 must be a finite number from": lambda: observe.HaloOccupation(sigma_log_m=-0.3),
        "edges=13.0 must be positive masses .*, not their logarithms": lambda: observe.mass_function(
            halos, [11.0, 12.0, 13.0]
        ),
        "mass must be masses of 100000 Msun/h or more": lambda: observe.tinker_mass_function(
            [12.0], lambda k: k, cosmo, 1.0
        ),
        "catalogues must be a list of catalogues": lambda: observe.halo_light_cone(halos, cosmo, config),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.warns(UserWarning, match="have no dense core in 100 % of the halos of 50 particles or more: the"):
        assert not observe.overdensity_masses(halos, cold, cosmo, config).columns["halo_m200m"].any()


def test_overdensity_masses(clustered: pmd.Particles, decomposition: pmd.Decomposition) -> None:
    """Against the definitions, sphere by sphere."""
    config, cosmo = configure(decomposition), problems.cosmology()
    divided = pmd.Particles(*jax.device_put((clustered.disp, clustered.vel), decomposition.sharding))
    halos = pmd.observe.overdensity_masses(halos_of(divided, config, a=0.5), divided, cosmo, config)
    points, matter = np.asarray(clustered.positions(configure())).reshape(-1, 3), cosmo.Omega_c + cosmo.Omega_b
    critical = (matter * 8 + 1 - matter) / 8  # comoving, at a = 1/2 [critical density today]
    x = matter / critical - 1
    densities = {"200m": 200 * matter, "200c": 200 * critical}
    densities["vir"] = (18 * np.pi**2 + 82 * x - 39 * x**2) * critical
    for name, density in densities.items():
        for i, core in enumerate(halos.core):
            r = np.sort(np.linalg.norm((points - core + 8) % 16 - 8, axis=1))
            number = np.arange(1, len(r) + 1)
            below = (number > 10) & (number * matter < density * 4 / 3 * np.pi * r**3)
            first = np.argmax(below)
            farthest = 2 * np.cbrt(halos.number[i] / (800 / 3 * np.pi))
            expected = first if first > 10 and r[first] < farthest else 0
            assert halos.columns[f"halo_m{name}"][i] == pytest.approx(expected * halos.mass[i] / halos.number[i])
            radius = np.cbrt(3 * expected * matter / (4 * np.pi * density))
            assert halos.columns[f"halo_r{name}"][i] == pytest.approx(radius)
    assert (halos.columns["halo_m200m"] > 0).sum() > 5
    with pytest.raises(ValueError, match="particles.origin.a=1.0 is not a=0.5"):
        pmd.observe.overdensity_masses(halos, clustered, cosmo, config)
    seen = pmd.observe.redshift_space(clustered, cosmo, config, a=1.0)
    with pytest.raises(ValueError, match="are in redshift space already; pass those in real space"):
        pmd.observe.friends_of_friends(seen, cosmo, config)


def test_mass_functions(clustered: pmd.Particles) -> None:
    halos = halos_of(clustered, configure(pmd.Decomposition((1, 1))))
    edges = [1e12, 3e12, 1e13, 1e15]
    found, number = pmd.observe.mass_function(halos, edges), np.histogram(halos.mass, edges)[0]
    np.testing.assert_array_equal(found.number, number)
    np.testing.assert_allclose(found.density * 16**3 * np.diff(np.log(edges)), number)
    np.testing.assert_allclose(found.error * np.sqrt(number), found.density)
    np.testing.assert_allclose(found.mass[0], np.sqrt(3) * 1e12)
    assert pmd.observe.mass_function(halos).number.sum() == len(halos)
    assert pmd.observe.mass_function(halos_of(clustered, configure(), min_particles=4000)).number.sum() == 0
    with pytest.raises(ValueError, match="definition='200m' is not known for these halos; call overdensity_masses"):
        pmd.observe.mass_function(halos, definition="200m")
    with pytest.raises(ValueError, match="definition='300m' must be 'fof', 'vir', '200m' or '200c'"):
        pmd.observe.mass_function(halos, definition="300m")


def test_the_mass_function_of_tinker() -> None:
    """Against colossus 1.4."""
    cosmo, mass = problems.cosmology(), [1e12, 1e13, 1e14, 1e15]
    expected = {1.0: [4.209e-3, 5.321e-4, 4.736e-5, 7.232e-7], 0.5: [3.765e-3, 3.050e-4, 7.036e-6, 9.118e-10]}
    for a, values in expected.items():
        power = lambda k: pmd.linear_power(k, cosmo, "eisenstein-hu")  # noqa: E731
        found = pmd.observe.tinker_mass_function(mass, power, cosmo, a)
        np.testing.assert_allclose(found, values, rtol=1e-3 if a == 1 else 1e-2)
    with pytest.raises(ValueError, match="power must be finite, and 0 beyond the ends of a table"):
        pmd.observe.tinker_mass_function(mass, lambda k: jnp.where(k < 10, power(k), jnp.nan), cosmo, 1.0)
    with pytest.raises(ValueError, match="mass must be masses of 100000 Msun"):
        pmd.observe.tinker_mass_function([1e12, -1], power, cosmo, 1.0)


@pytest.mark.slow
def test_swiftsimio_reads_groups(clustered: pmd.Particles, tmp_path: Path) -> None:
    swiftsimio = pytest.importorskip("swiftsimio")
    config, cosmo = configure(pmd.Decomposition((1, 1))), problems.cosmology()
    halos = halos_of(pmd.Particles(clustered.disp, clustered.vel), config, a=0.5)
    pmd.save_groups(tmp_path / "groups.hdf5", halos, cosmo, config)
    found = swiftsimio.load(str(tmp_path / "groups.hdf5"))
    groups, h = found.fof_groups, float(cosmo.h)
    assert (found.metadata.num_group[0], found.metadata.z) == (len(halos), 1)
    np.testing.assert_array_equal(groups.sizes.value, halos.number)
    np.testing.assert_allclose(groups.masses.to_value("Msun"), halos.mass / h)
    np.testing.assert_allclose(groups.centres.to_comoving().to_value("Mpc"), halos.position / h)
    np.testing.assert_allclose(groups.cores.to_physical().to_value("Mpc"), halos.core / h / 2)
    np.testing.assert_allclose(groups.velocities.to_value("km/s"), halos.velocity, rtol=1e-5)
    with pytest.raises(ValueError, match="halos must be a HaloCatalogue; call friends_of_friends"):
        pmd.save_groups(tmp_path / "groups.hdf5", clustered, cosmo, config)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_yt_and_halotools_read_catalogues(clustered: pmd.Particles, tmp_path: Path) -> None:
    config, cosmo = configure(pmd.Decomposition((1, 1))), problems.cosmology()
    halos = pmd.observe.overdensity_masses(halos_of(clustered, config), clustered, cosmo, config)
    halos.save(tmp_path / "halos.hdf5")
    with h5py.File(tmp_path / "halos.hdf5") as file:
        data = {f"particle_position_{x}": file[f"halo_{x}"][()] for x in "xyz"}
        data["particle_mass"] = file["halo_mfof"][()], "Msun"
    yt = pytest.importorskip("yt")
    found = yt.load_particles(data, length_unit="Mpc", bbox=[[0, 16]] * 3).all_data()
    np.testing.assert_allclose(found["all", "particle_position"].to("Mpc"), halos.position, rtol=1e-6)
    np.testing.assert_allclose(found["all", "particle_mass"].to("Msun"), halos.mass, rtol=1e-5)
    manager = pytest.importorskip("halotools.sim_manager")
    table = manager.UserSuppliedHaloCatalog(**halos.for_halotools()).halo_table
    some = halos.columns["halo_mvir"] > 0
    assert 0 < len(table) == some.sum()
    np.testing.assert_array_equal(table["halo_x"], halos.core[some, 0])
