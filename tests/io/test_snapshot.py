"""Snapshots: what is written is read back, by us and by others."""

from __future__ import annotations

import fcntl
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.cosmology.expansion import background, expansion
from pmwd_dist.cosmology.parameters import parameters
from pmwd_dist.io.snapshot import writer
from pmwd_dist.io.snapshot.header import named_cosmology, read_header
from pmwd_dist.io.snapshot.reader import load_snapshot
from pmwd_dist.io.snapshot.writer import save_snapshot
from pmwd_dist.run.common.data_files import read_array
from pmwd_dist.run.outputs import fields

BOX, N, A = 50.0, 8, 0.5
SHAPE = (N, N, 2 * N)


def make_config(decomposition: pmd.Decomposition | None = None, shape: tuple[int, int, int] = SHAPE) -> pmd.Config:
    return pmd.Config(BOX, 2 * N, shape, decomposition=decomposition)


def make_particles(config: pmd.Config) -> pmd.Particles:
    """Displacements of up to 10 Mpc/h, momenta of up to 1."""
    rng = np.random.default_rng(1)
    shape = (*config.particle_shape, 3)
    disp, vel = rng.uniform(-10, 10, shape), rng.uniform(-1, 1, shape)
    disp[0, 0, 0] = -1e-9  # just below zero: rounding puts it on the far side of the box
    return pmd.Particles(*jax.device_put((disp, vel), config.decomposition.sharding))


@pytest.mark.parametrize("decomposition", [(1, 1), (4, 1), (2, 2)], indirect=True)
@pytest.mark.parametrize(("kind", "precision"), [("gadget", 1e-5), ("swift", 1e-12)])
def test_round_trip_on_any_layout(tmp_path: Path, decomposition, cosmo, kind, precision):
    config = make_config(decomposition)
    particles = make_particles(config)
    path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A, format=kind)
    read, header = load_snapshot(path, config)
    assert header.a == pytest.approx(A)
    assert header.particle_shape == config.particle_shape
    assert header.mesh_shape == config.mesh_shape
    assert header.Omega_m == pytest.approx(cosmo.Omega_m)
    assert header.Omega_b == pytest.approx(cosmo.Omega_b)
    assert header.box_size == pytest.approx(config.box_size)
    assert (read.origin.a, read.origin.box_size) == (header.a, config.box_size)
    assert read.disp.sharding == config.decomposition.sharding
    assert read.disp.dtype == jnp.result_type(float)
    for loaded in (read, load_snapshot(path)[0]):  # also on all devices
        np.testing.assert_allclose(loaded.disp, particles.disp, atol=precision)
        np.testing.assert_allclose(loaded.vel, particles.vel, atol=2e-7)


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("kind", ["gadget", "swift"])
@pytest.mark.parametrize("x64", [False, True])
def test_positions_are_rounded_once(tmp_path: Path, single, cosmo, kind, precision, x64):
    """They are those of double precision, within one unit in the last place, and within the box."""
    with jax.enable_x64(x64):
        config = make_config(single)
        particles = make_particles(config)
        path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A, format=kind, precision=precision)
        disp, vel = (np.asarray(x).reshape(-1, 3) for x in (particles.disp, particles.vel))
    length, speed = (1e3, 100 / A / math.sqrt(A)) if kind == "gadget" else (1 / cosmo.h, 100 / A)
    with h5py.File(path) as file:
        ids, x, v = (file[f"PartType1/{name}"][:] for name in ("ParticleIDs", "Coordinates", "Velocities"))
    assert x.dtype == {"single": np.float32, "double": np.float64}[precision]
    np.testing.assert_array_equal(np.sort(ids), np.arange(math.prod(SHAPE)))
    expected = np.stack(np.unravel_index(ids, SHAPE), -1) * (BOX / np.asarray(SHAPE)) + disp[ids].astype(float)
    expected = ((expected - BOX * np.floor(expected / BOX)) * length).astype(x.dtype)
    expected[expected >= x.dtype.type(BOX * length)] = 0
    assert (np.abs(x - expected) <= np.spacing(expected)).all()
    np.testing.assert_allclose(v, vel[ids] * speed, rtol=2e-7)


def test_positions_of_particles_far_away_are_in_the_box():
    disp = np.asarray([3e38, -1e20, 1e17, -1e-30, np.nextafter(150, 0, dtype=np.float32)], np.float32)
    layout = writer.Layout((), 5, (50.0, 50.0, 50.0), (1, 1, 1))
    with jax.enable_x64(True):
        sites, length = [jnp.zeros(5, np.int32)] * 3, jnp.asarray(1e3)
        x = writer._positions(jnp.stack([disp] * 3, -1), sites, length, np.dtype("f4"), layout)
    assert (x >= 0).all() and (x < 5e4).all()


def test_ids_beyond_32_bits():
    types, first = (("Coordinates", "f4"), ("ParticleIDs", "u8")), np.asarray([2044, 2000, 8])
    layout = writer.Layout(types, 32, (1.0, 1.0, 1.0), (2048, 2048, 2048))
    block, scales = jnp.zeros((4, 2, 8, 3), np.float32), np.ones(3)
    with jax.enable_x64(True):
        words = writer._chunk(block, block, np.int64(32), first, scales, layout)
    found = np.asarray(words["ParticleIDs"])[:-1].view("u8")
    sites = np.stack(np.unravel_index(np.arange(32, 64), (4, 2, 8)), -1) + first
    np.testing.assert_array_equal(found, np.ravel_multi_index(tuple(sites.T), layout.lattice))
    assert found.min() > 2**32


@pytest.mark.parametrize("values", [0, 1, 2**32 - 1, 0xFFFF, 0xFFFF0000, 0xFFFE0001, "random"])
@pytest.mark.parametrize("rows", [1, 2, 1000, 1 << 18])
def test_checksums_are_those_of_hdf5(tmp_path: Path, values, rows):
    words = np.full(rows, 0 if values == "random" else values, np.uint32)
    if values == "random":
        words = np.random.default_rng(rows).integers(0, 2**32, rows, np.uint32)
    with h5py.File(tmp_path / "s.hdf5", "w") as file:
        data = file.create_dataset("x", data=words, chunks=(rows,), fletcher32=True)
        _, stored = data.id.read_direct_chunk((0,))
    with jax.enable_x64(True):
        assert int(writer._fletcher32(jnp.asarray(words))) == int.from_bytes(stored[-4:], "little")


def test_gadget_file_holds_what_readers_expect(tmp_path: Path, cosmo, single):
    config = make_config(single)
    particles = make_particles(config)
    path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A)
    with h5py.File(path) as file:
        header = file["Header"].attrs
        count = math.prod(SHAPE)
        for name in ("Time", "Redshift", "BoxSize", "NumFilesPerSnapshot", "Omega0", "OmegaLambda", "HubbleParam"):
            assert np.ndim(header[name]) == 0
        assert header["BoxSize"] == BOX * 1000
        assert list(header["NumPart_Total"]) == [0, count, 0, 0, 0, 0]
        assert header["NumPart_Total"].dtype == np.uint32
        density = count * header["MassTable"][1] / BOX**3
        assert density == pytest.approx(27.7536627 * float(cosmo.Omega_m), rel=1e-6)
        assert file["Parameters"].attrs["UnitLength_in_cm"] == pytest.approx(3.0857e21, rel=1e-4)


def test_misuse_fails(tmp_path: Path, cosmo, single):
    config = make_config(single)
    particles = make_particles(config)
    with pytest.raises(ValueError, match="'gadget' or 'swift'"):
        save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A, format="arepo")
    flat = pmd.Config((BOX, BOX, 2 * BOX), 2 * N, SHAPE, decomposition=single)
    with pytest.raises(ValueError, match="not a cube"):
        save_snapshot(tmp_path / "s.hdf5", particles, cosmo, flat, A)
    path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, flat, A, format="swift")
    assert read_header([path]).box_size == pytest.approx((BOX, BOX, 2 * BOX))
    with pytest.raises(ValueError, match="box_size"):
        load_snapshot(path, config)
    with pytest.raises(ValueError, match="particle_shape"):
        load_snapshot(path, pmd.Config((BOX, BOX, 2 * BOX), 2 * N, N, decomposition=single))


@pytest.mark.parametrize(("name", "value"), [("disp", np.nan), ("vel", np.inf), ("vel", 1e38)])
def test_particles_that_are_not_finite_are_not_written(tmp_path: Path, cosmo, single, name, value):
    config = make_config(single)
    particles = make_particles(config)
    changed = getattr(particles, name).at[1, 2, 3, 0].set(value)
    broken = pmd.Particles(**{"disp": particles.disp, "vel": particles.vel} | {name: changed})
    with pytest.raises(ValueError, match=rf"particles.{name} holds values that are not finite in the float32"):
        save_snapshot(tmp_path / "s.hdf5", broken, cosmo, config, A)
    assert not list(tmp_path.iterdir())


def test_particles_of_numpy_or_divided_in_two_ways_are_written(tmp_path: Path, cosmo):
    config = make_config(pmd.Decomposition((2, 2)))
    particles = make_particles(config)
    plain = pmd.Particles(*map(np.asarray, (particles.disp, particles.vel)))
    slabs = pmd.Decomposition((4, 1)).sharding
    mixed = pmd.Particles(particles.disp, jax.device_put(particles.vel, slabs))
    for given in (plain, mixed):
        path = save_snapshot(tmp_path / "s.hdf5", given, cosmo, config, A, format="swift")
        read, _ = load_snapshot(path, config)
        np.testing.assert_allclose(read.disp, particles.disp, atol=1e-12)
        np.testing.assert_allclose(read.vel, particles.vel, atol=2e-7)


KINDS = [(None, None), ("single", None), ("double", None), (None, "zstd")]  # precision and compression


@pytest.mark.parametrize(("precision", "compression"), KINDS)
@pytest.mark.parametrize("kind", ["gadget", "swift"])
def test_h5py_and_we_read_all_kinds(tmp_path: Path, cosmo, single, kind, precision, compression):
    config = make_config(single)
    particles, path = make_particles(config), tmp_path / "s.hdf5"
    save_snapshot(path, particles, cosmo, config, A, format=kind, precision=precision, compression=compression)
    with h5py.File(path) as file:
        read, _ = load_snapshot(path, config)  # also while h5py has it open, with locks
        np.testing.assert_allclose(read.disp, particles.disp, atol=1e-5)
        assert ("DMParticles" in file) == (kind == "swift")
        for data in file["PartType1"].values():
            assert data.fletcher32
            assert len(data[:]) == math.prod(SHAPE)
            filters = data.id.get_create_plist()
            assert filters.get_nfilters() == (3 if compression else 1)


def test_compression_without_hdf5plugin_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosmo, single):
    config = make_config(single)
    path = save_snapshot(tmp_path / "s.hdf5", make_particles(config), cosmo, config, A, compression="zstd")
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(ValueError, match="compression='zstd' needs hdf5plugin; install it"):
        save_snapshot(tmp_path / "t.hdf5", make_particles(config), cosmo, config, A, compression="zstd")
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code != 32015)
    with pytest.raises(ValueError, match=r"Coordinates compressed by a filter that needs hdf5plugin"):
        load_snapshot(path, config)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "compression"), KINDS)
@pytest.mark.parametrize("format", ["gadget", "swift"])
def test_pynbody_reads_it(tmp_path: Path, cosmo, single, format: str, precision, compression):
    pynbody = pytest.importorskip("pynbody")
    config = make_config(single)
    particles = make_particles(config)
    path = tmp_path / "s.hdf5"
    save_snapshot(path, particles, cosmo, config, A, format=format, precision=precision, compression=compression)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says which units it takes for granted
        loaded = pynbody.load(str(path))
        assert type(loaded).__name__ == {"gadget": "GadgetHDFSnap", "swift": "SwiftSnap"}[format]
        assert len(loaded.dm) == math.prod(SHAPE)
        assert loaded.properties["a"] == pytest.approx(A)
        assert loaded.properties["omegaM0"] == pytest.approx(float(cosmo.Omega_m))
        x = np.asarray(loaded.dm["pos"].in_units("Mpc a h**-1"))
        v = np.asarray(loaded.dm["vel"].in_units("km s**-1"))
        mass = float(loaded.dm["mass"].in_units("Msol h**-1").sum())
    with h5py.File(path) as file:
        order = np.argsort(file["PartType1/ParticleIDs"][:])
    np.testing.assert_allclose(v[order], 100 / A * np.asarray(particles.vel).reshape(-1, 3), rtol=1e-4, atol=1e-3)
    assert mass == pytest.approx(27.7536627e10 * float(cosmo.Omega_m) * BOX**3, rel=1e-3)
    assert ((x >= 0) & (x <= BOX)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "compression"), KINDS)
def test_yt_reads_it(tmp_path: Path, cosmo, single, precision, compression):
    yt = pytest.importorskip("yt")
    yt.set_log_level(50)
    config = make_config(single)
    path, particles = tmp_path / "s.hdf5", make_particles(config)
    save_snapshot(path, particles, cosmo, config, A, precision=precision, compression=compression)
    data = yt.load(str(path))
    assert data.current_redshift == pytest.approx(1.0)
    assert float(data.domain_width[0].to("Mpccm/h")) == pytest.approx(BOX)
    found = data.all_data()
    order = np.argsort(np.asarray(found["PartType1", "ParticleIDs"]))
    with h5py.File(path) as file:
        x, ids = (file[f"PartType1/{name}"][:] for name in ("Coordinates", "ParticleIDs"))
    read = np.asarray(found["PartType1", "Coordinates"].to("kpccm/h"))[order]
    np.testing.assert_allclose(read, x[np.argsort(ids)], rtol=1e-6, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "compression"), KINDS)
def test_swiftsimio_reads_it(tmp_path: Path, cosmo, single, precision, compression):
    swiftsimio = pytest.importorskip("swiftsimio")
    config = make_config(single)
    particles = make_particles(config)
    path = tmp_path / "s.hdf5"
    save_snapshot(path, particles, cosmo, config, A, format="swift", precision=precision, compression=compression)
    data = swiftsimio.load(str(path))
    assert data.metadata.boxsize.to_value("Mpc") == pytest.approx(BOX / float(cosmo.h))
    order = np.argsort(np.asarray(data.dark_matter.particle_ids))
    v = np.asarray(data.dark_matter.velocities.to_value("km/s"))[order]
    np.testing.assert_allclose(v, 100 / A * np.asarray(particles.vel).reshape(-1, 3), rtol=1e-5, atol=1e-4)
    assert data.dark_matter.coordinates.shape == (math.prod(SHAPE), 3)
    tabulated = pmd.with_dark_energy(cosmo, [0.5, 1.0], [-0.8, -0.9])
    save_snapshot(path, particles, tabulated, config, A, format="swift", precision=precision, compression=compression)
    assert np.isnan(swiftsimio.load(str(path)).metadata.cosmology.w0)


@pytest.mark.slow
@pytest.mark.parametrize("radiation", [None, {}, {"n_eff": 3.5}, {"m_nu": 0.06}, {"m_nu": 0.3}])
def test_swiftsimio_has_the_same_expansion(tmp_path: Path, cosmo, single, radiation):
    """Astropy approximates the density of neutrinos with mass, to a percent."""
    swiftsimio = pytest.importorskip("swiftsimio")
    own = parameters(cosmo if radiation is None else pmd.with_neutrinos(cosmo, **radiation))
    config = make_config(single, (2, 2, 2))
    path = save_snapshot(tmp_path / "s.hdf5", make_particles(config), own, config, A, format="swift")
    metadata = swiftsimio.load(str(path)).metadata
    assert metadata.code_info.startswith("pmwd-dist") and metadata.library_info and metadata.compiler_info
    found, raw = metadata.cosmology, metadata.cosmology_raw
    assert found.Tcmb0.value == (0 if radiation is None else 2.7255)
    assert found.Neff == pytest.approx(0 if radiation is None else float(own.n_eff))
    mass = (radiation or {}).get("m_nu", 0)
    assert found.m_nu is None if radiation is None else found.m_nu.value.tolist() == pytest.approx([mass / 3] * 3)
    for a in (1.0, A, 0.02):
        square = float(own.Omega_cb * expansion(background(own), jnp.log(a))[0]) / a**3
        assert found.efunc(1 / a - 1) == pytest.approx(math.sqrt(square), rel=1e-4 if mass else 1e-6)
    assert found.Odm0 + found.Ob0 == pytest.approx(float(own.Omega_cb))
    assert raw["H [internal units]"] == pytest.approx(found.H(1 / A - 1).value, rel=1e-4)
    age = found.age(1 / A - 1).to_value("Gyr")
    assert metadata.time.to_value("Gyr") == pytest.approx(age, rel=1e-4 if mass else 3e-6)
    assert raw["Universe age [internal units]"] == pytest.approx(float(metadata.time.value))
    density = found.critical_density(1 / A - 1).to_value("solMass / Mpc3")
    assert raw["Critical density [internal units]"] == pytest.approx(density / 1e10, rel=2e-4)
    total = sum(raw[f"Omega_{name}"] for name in ("m", "nu_0", "r", "k", "lambda"))
    assert total == pytest.approx(1, abs=1e-6)
    assert read_header([path]).Omega_m == pytest.approx(float(own.Omega_m))
    assert named_cosmology(path)["Omega_m"] == pytest.approx(float(own.Omega_m))


def test_files_of_the_writer_of_swiftsimio_are_read(tmp_path: Path, cosmo, single):
    """They have no redshift, six words of zeros for the numbers of more types, and a power of a for all."""
    config = make_config(single)
    particles = make_particles(config)
    path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A, format="swift")
    whole, _ = pmd.snapshot_density(path)
    with h5py.File(path, "a") as file:
        del file["Header"].attrs["Redshift"]
        for name in ("NumPart_ThisFile", "NumPart_Total", "MassTable"):
            file["Header"].attrs[name] = [*file["Header"].attrs[name], 0, 0]
        file["Header"].attrs["NumPart_Total_HighWord"] = np.zeros(6, int)
        for name in ("Masses", "Velocities"):
            file[f"PartType1/{name}"].attrs["a-scale exponent"] = 1.0
        del file["Cosmology"].attrs["Redshift"]
    assert read_header([path]).a == pytest.approx(A)
    np.testing.assert_array_equal(pmd.snapshot_density(path)[0], whole)
    np.testing.assert_allclose(load_snapshot(path, config)[0].vel, particles.vel, atol=2e-7)


def test_files_are_opened_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosmo, single):
    """Another holder of the lock stands for a file system where locks fail."""
    held = ExitStack()

    def create_locked(path: Path, _: int = 0) -> None:
        fcntl.flock(held.enter_context(path.open("wb")), fcntl.LOCK_EX)

    @contextmanager
    def write_locked(path: Path) -> Iterator[Path]:
        create_locked(path)
        yield path

    monkeypatch.setattr(writer, "reserve", create_locked)
    monkeypatch.setattr(fields, "atomic_write", write_locked)
    config = make_config(single)
    particles = make_particles(config)
    path = save_snapshot(tmp_path / "s.hdf5", particles, cosmo, config, A)
    np.testing.assert_allclose(load_snapshot(path, config)[0].vel, particles.vel, atol=2e-7)
    fields.write_fields(tmp_path / "f.hdf5", {"vel": (particles.vel, {})}, {})
    np.testing.assert_array_equal(read_array(f"{tmp_path}/f.hdf5:/vel"), particles.vel)
    with held:
        for locked in tmp_path.iterdir():
            with pytest.raises(BlockingIOError):
                h5py.File(locked, locking=True)


def test_what_is_for_the_host_says_so_under_jit(tmp_path: Path) -> None:
    config = pmd.Config(64.0, 4, decomposition=(1, 1))
    particles = pmd.Particles(*np.zeros((2, 4, 4, 4, 3)))
    status = pmd.Status(*map(jnp.asarray, (0, 0, 0.0, 0.0)))
    with pytest.raises(ValueError, match="save_snapshot is for the host.*outside jit"):
        jax.jit(lambda p: str(pmd.save_snapshot(tmp_path / "s.hdf5", p, problems.cosmology(), config, 1.0)))(particles)
    with pytest.raises(ValueError, match="raise_if_failed is for the host.*outside jit"):
        jax.jit(lambda status: status.raise_if_failed())(status)
