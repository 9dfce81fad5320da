"""What users pass: numbers of every type, shapes and arguments that can't be, batches of nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import pmwd_dist as pmd
from pmwd_dist.ops import local_fft
from pmwd_dist.parallel import autotune as tuner
from pmwd_dist.parallel.decomposition import Decomposition

SHAPE = (8, 8, 6)


# Most of these inputs are not those of the annotations.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(params=[(1, 1), (2, 2)], ids=str)
def decomposition(request: pytest.FixtureRequest) -> Decomposition:
    return Decomposition(request.param)


def numbers(dtype: Any) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 9, SHAPE).astype(dtype)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint8", "int64", "float16", "bfloat16"])
def test_numbers_of_every_type_are_transformed(decomposition: Decomposition, dtype: str) -> None:
    x = numbers(jnp.dtype(dtype))
    single = dtype in ("float16", "bfloat16")
    spectrum = pmd.prfft3d(x, decomposition)
    assert spectrum.dtype == (np.complex64 if single else np.complex128)
    expected = np.fft.rfftn(x.astype(float))
    atol = (1e-5 if single else 1e-12) * np.abs(expected).max()
    np.testing.assert_allclose(spectrum[..., : expected.shape[2]], expected, rtol=0, atol=atol)
    assert pmd.pfft3d(numbers(jnp.dtype(dtype)).repeat(2, 2)[:, :, :8], decomposition).dtype == spectrum.dtype


def test_real_spectra_have_real_gradients(decomposition: Decomposition) -> None:
    x = np.random.default_rng(1).standard_normal(SHAPE)

    def correlation(x: Any, there: Any, back: Any) -> jax.Array:
        return jnp.sum(back(jnp.abs(there(x)) ** 2) ** 2)

    ours = partial(
        correlation,
        there=partial(pmd.prfft3d, decomposition=decomposition),
        back=lambda s: pmd.pirfft3d(s, SHAPE, decomposition),
    )
    plain = partial(correlation, there=jnp.fft.rfftn, back=lambda s: jnp.fft.irfftn(s, s=SHAPE))
    gradient = jax.jit(jax.grad(ours))(x)
    assert gradient.dtype == np.float64
    np.testing.assert_allclose(gradient, jax.grad(plain)(x), rtol=1e-11, atol=1e-11)


def test_batches_of_nothing(decomposition: Decomposition) -> None:
    config = pmd.Config(box_size=8.0, mesh_shape=8, decomposition=decomposition, halo=1)
    none = np.zeros((0, *SHAPE))
    spectra = jax.jit(jax.vmap(partial(pmd.prfft3d, decomposition=decomposition)))(none)
    assert spectra.shape == (0, *pmd.prfft3d(none.sum(0), decomposition).shape)
    assert jax.jit(jax.vmap(lambda s: pmd.pirfft3d(s, SHAPE, decomposition)))(spectra).shape == none.shape
    assert jax.jit(jax.vmap(lambda d: pmd.cic_paint(d, config)))(np.zeros((0, 8, 8, 8, 3))).shape == (0, 8, 8, 8)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_paint_and_read_are_in_the_precision_of_the_displacements(decomposition: Decomposition, dtype: str) -> None:
    config = pmd.Config(box_size=8.0, mesh_shape=8, decomposition=decomposition, halo=1)
    field = np.random.default_rng(2).standard_normal((8, 8, 8)).astype(np.float32)
    disp = np.zeros((8, 8, 8, 3), dtype)
    expected = {"float16": "float32", "int32": "float64"}.get(dtype, dtype)
    read = pmd.cic_read(field, disp, config)
    assert read.dtype == expected
    np.testing.assert_array_equal(read, field)
    painted = pmd.cic_paint(disp, config, field)
    assert painted.dtype == expected
    np.testing.assert_allclose(painted, field, rtol=0, atol=1e-6)


PENCILS, COLUMNS = Decomposition((2, 2)), Decomposition((1, 4))
ROWS = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
ALONG_Z = jax.NamedSharding(PENCILS.mesh, jax.P(None, None, "x"))


def zeros(*shape: int, dtype: Any = float) -> np.ndarray:
    return np.zeros(shape, dtype)


# Of slabs over four devices; some inputs are read only after others.
MISUSE: list[tuple[Any, str]] = [
    (lambda own: pmd.prfft3d(zeros(4, *SHAPE), own), r"field.shape=\(4, 8, 8, 6\) must be three .* use jax.vmap"),
    (lambda own: pmd.prfft3d(zeros(0, 8, 8), own), r"field.shape=\(0, 8, 8\)"),
    (lambda own: pmd.prfft3d(zeros(*SHAPE, dtype=complex), own), "field.dtype=complex128 must be real; use pfft3d"),
    (lambda own: pmd.prfft3d(zeros(6, 8, 8), own), r"field.shape\[0\]=6 is not divisible by 4 .* use 4 or 8"),
    (lambda own: pmd.prfft3d(zeros(*SHAPE), own, norm="unitary"), "norm='unitary' is not known"),
    (lambda own: pmd.prfft3d(zeros(*SHAPE), (4, 1, 1)), r"pdims=\(4, 1, 1\) must be two positive"),
    (lambda own: pmd.prfft3d(zeros(*SHAPE), own.mesh), "must be a Decomposition"),
    (lambda own: pmd.prfft3d(zeros(*SHAPE)), r"numpy doesn't say.*pass decomposition="),
    (lambda own: jax.jit(pmd.prfft3d)(jnp.zeros(SHAPE)), "pass decomposition="),
    (lambda own: pmd.prfft3d(jax.device_put(zeros(4, 4, 4), ALONG_Z)), "not one of slabs or pencils"),
    (lambda own: pmd.pirfft3d(zeros(*SHAPE), (8, 8), own), r"shape=\(8, 8\) must be three positive"),
    (lambda own: pmd.pirfft3d(zeros(8, 6, 5), (8, 6, 8), own), r"shape\[1\]=6 is not divisible by 4 .* use 4 or 8"),
    (lambda own: pmd.pirfft3d(zeros(8, 8, 5), (8, 8, 8), COLUMNS), r"spectrum.shape=.* must be \(8, 8, 8\)"),
    (lambda own: pmd.pfft3d(zeros(8, 8, 6), COLUMNS), r"shape\[2\]=6 is not divisible by 4"),
    (lambda own: pmd.pifft3d(zeros(8, 8, 6), COLUMNS), r"shape\[2\]=6 is not divisible by 4"),
    (lambda own: pmd.fftfreq3d((6, 8, 8), own), r"shape\[0\]=6 is not divisible by 4"),
    (lambda own: pmd.fftfreq3d((4, 4, 6), COLUMNS, real=False), r"shape\[2\]=6 is not divisible by 4"),
    (lambda own: pmd.halo_pad(zeros(8, 8), 1, own), r"field.shape=\(8, 8\)"),
    (lambda own: pmd.halo_pad(zeros(10, 8, 4), 1, own), r"field.shape\[0\]=10 is not divisible by 4 .* use 8 or 12"),
    (lambda own: pmd.halo_pad(zeros(8, 7, 4), 1, PENCILS), r"field.shape\[1\]=7 is not divisible by 2 .* use 6 or 8"),
    (lambda own: pmd.halo_pad(zeros(8, 8, 4), -1, own), "halo=-1 must be a whole number, 0 or more"),
    (lambda own: pmd.halo_pad(zeros(8, 8, 4), "1", own), "halo='1' must be a whole number, 0 or more"),
    (lambda own: pmd.halo_pad(zeros(8, 8, 4), [[1], [1, 2]], own), "halo=.* must be a whole number, 0 or more"),
    (lambda own: pmd.halo_reduce(zeros(8, 8, 4), -1, own), "halo=-1 must be a whole number, 0 or more"),
    (lambda own: pmd.halo_reduce(zeros(24, 8, 4), 3, own), r"padded.shape\[0\]=24 must be 4 blocks of more than 6"),
    (lambda own: pmd.halo_reduce(zeros(24, 25, 4), 3, PENCILS), r"padded.shape\[1\]=25 must be 2 blocks"),
    (lambda own: own.check((8, 6, 5), "shape"), r"shape\[1\]=6 is not divisible by 4"),  # divided by x's devices in k
    (lambda own: Decomposition(4), "pdims=4 must be two"),
    (lambda own: Decomposition((8, 1)), r"pdims=\(8, 1\) needs 8 devices, but there are 4; use pdims=\(4, 1\)"),
    (lambda own: Decomposition((0, 4)), r"pdims=\(0, 4\) must be two positive"),
    (lambda own: Decomposition((2, 1), jax.devices()), r"pdims=\(2, 1\) needs 2 devices, but there are 4"),
    (lambda own: Decomposition(devices=[]), r"devices=\[\] is empty"),
    (lambda own: Decomposition(backend="smoke"), "backend='smoke' is not known"),
    (lambda own: Decomposition(backend="xla", transpose_comm="nccl"), "is not an option of backend='xla'"),
    (lambda own: Decomposition(spec=jax.P("x")), r"needs the mesh="),
    (lambda own: Decomposition((4, 1), mesh=own.mesh, spec=jax.P("x")), "leave pdims= and devices= out"),
    (lambda own: Decomposition(mesh=own.mesh, spec=jax.P("x", "z")), "names 'z', which is not an axis of the mesh"),
    (lambda own: Decomposition(mesh=own.mesh, spec=jax.P(None, None, "x")), "must leave the third axis of"),
    (lambda own: Decomposition(mesh=ROWS, spec=jax.P(None, ("columns", "rows"))), "order of the mesh"),
    (lambda own: pmd.autotune(8), "must be three positive numbers"),
    (lambda own: pmd.autotune((7, 7, 7)), r"shape=\(7, 7, 7\) can't be divided over 4 devices; use multiples of 4"),
    (lambda own: pmd.autotune((8, 8, 8), halo=2.5), "halo=2.5 must be a whole number"),
    (lambda own: pmd.autotune((8, 8, 8), n_devices=5), "n_devices=5 must be 1 to 4"),
    (lambda own: pmd.autotune((8, 8, 8), dtype="complex64"), "dtype=complex64 must be float32 or float64"),
    (lambda own: pmd.autotune((8, 8, 8), dtype="foo"), "dtype=foo must be float32 or float64"),
    (lambda own: pmd.autotune((8, 8, 8), measure_again="no"), "measure_again='no' must be True or False"),
    (lambda own: pmd.fftfreq3d((8, 8, 8), own, real=0), "real=0 must be True or False"),
    (lambda own: pmd.get_fft_output_sharding(own, inverse="no"), "inverse='no' must be True or False"),
]


@pytest.mark.parametrize(("call", "message"), MISUSE)
def test_errors_name_argument_value_and_remedy(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Decomposition((4, 1)))


def test_some_manual_axes_of_a_decomposition_raise() -> None:
    decomposition = Decomposition((2, 2))
    half = jax.shard_map(
        lambda block: pmd.halo_pad(block, 1, decomposition),
        mesh=decomposition.mesh,
        in_specs=jax.P("x"),
        out_specs=jax.P("x"),
        axis_names={"x"},
    )
    with pytest.raises(ValueError, match="only x is Manual here; make all of them Manual in one shard_map, or none"):
        jax.jit(half)(np.zeros(SHAPE))


@pytest.mark.parametrize("spectrum", [False, True])
def test_the_box_of_wavevectors_may_have_one_side(spectrum: bool) -> None:
    decomposition = Decomposition((4, 1))
    one, three = (pmd.fftfreq3d(SHAPE, decomposition, box, real=spectrum) for box in (100.0, (100.0,) * 3))
    jax.tree.map(np.testing.assert_array_equal, one, three)


def test_wavevectors_may_be_differentiated_by_the_box() -> None:
    decomposition = Decomposition((4, 1))
    k = lambda side: pmd.fftfreq3d(SHAPE, decomposition, (side, 1.0, 1.0))[0][1, 0, 0]  # noqa: E731
    np.testing.assert_allclose(jax.grad(k)(2.0), -2 * np.pi / 4, rtol=1e-12)


def test_shapes_of_numpys_integers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    decomposition = pmd.autotune(tuple(np.array(SHAPE)), repeats=1, halo=np.int64(1), say=None)
    assert len(tuner._records()) == 1
    assert Decomposition(np.array([2, 2])) == Decomposition((2, 2))  # type: ignore[arg-type]
    spectrum = pmd.prfft3d(np.zeros(SHAPE), decomposition)
    assert pmd.pirfft3d(spectrum, tuple(jnp.array(SHAPE)), decomposition).shape == SHAPE


def test_operations_without_jit() -> None:
    x = np.random.default_rng(3).standard_normal(SHAPE)
    with jax.disable_jit():
        spectrum = local_fft.rfft(jnp.asarray(x), 3)
        back = pmd.pirfft3d(spectrum, SHAPE, Decomposition((1, 1)))
    np.testing.assert_allclose(spectrum, np.fft.rfftn(x), atol=1e-12)
    np.testing.assert_allclose(back, x, atol=1e-12)


@pytest.mark.parametrize("derivative", ["value", "gradient"])
def test_paint_inside_a_shard_map_over_chains(derivative: str) -> None:
    """JAX 0.10 can't follow what varies over which axes through two shard_maps: check_vma=False does without."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("chains", "x"))
    decomposition, alone = Decomposition(mesh=mesh, spec=jax.P("x")), Decomposition((1, 1))
    disp = np.random.default_rng(4).uniform(-0.9, 0.9, (2, 8, 8, 8, 3))
    scale = np.where(np.arange(8) < 4, 1.0, 1000.0)[:, None, None]  # the largest weights of a device differ

    def function(disp: Any, decomposition: Decomposition) -> jax.Array:
        config = pmd.Config(box_size=8.0, mesh_shape=8, decomposition=decomposition)
        energy = lambda d: jnp.sum(pmd.cic_paint(d, config, scale * d[..., 0]) ** 2)  # noqa: E731
        return energy(disp) if derivative == "value" else jax.grad(energy)(disp)

    mapped = jax.shard_map(
        jax.vmap(partial(function, decomposition=decomposition)),
        mesh=mesh,
        in_specs=jax.P("chains"),
        out_specs=jax.P("chains"),
        axis_names={"chains"},
        check_vma=False,
    )
    expected = jnp.stack([function(d, alone) for d in disp])
    np.testing.assert_allclose(jax.jit(mapped)(disp), expected, rtol=0, atol=1e-11 * np.abs(expected).max())
