"""Distributed transforms against numpy, their transposes against jax's own, layouts, norms, precisions and filters."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import pmwd_dist as pmd
from pmwd_dist.parallel.fft import spectrum_shape

# 6, 4 and 3 values of kz: padded over four and two devices, or not; odd nz and a thin axis among them.
SHAPES = ((4, 8, 10), (8, 12, 7), (8, 4, 5))


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    return request.param


def padded(
    spectrum: np.ndarray, shape: tuple[int, int, int], decomposition: pmd.Decomposition, fill: float = 0.0
) -> np.ndarray:
    extra = spectrum_shape(shape, decomposition)[2] - spectrum.shape[2]
    return np.pad(spectrum, ((0, 0), (0, 0), (0, extra)), constant_values=fill)


def close(actual: jax.Array, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14 * np.abs(expected).max())


def test_real_transforms_and_their_transposes(shape: tuple[int, int, int], decomposition: pmd.Decomposition) -> None:
    rng = np.random.default_rng(0)
    field = rng.standard_normal(shape)
    nk = shape[2] // 2 + 1
    modes = np.fft.rfftn(field)
    # Any spectrum, not only that of a real field: what the inverse ignores must be ignored by its transpose too.
    other = rng.standard_normal((2, *shape[:2], nk))
    other = other[0] + 1j * other[1]
    dressed = padded(other, shape, decomposition, fill=7.0)  # the padding must not matter

    @jax.jit
    def run(field: jax.Array, other: jax.Array) -> dict[str, jax.Array]:
        forward = lambda x: pmd.prfft3d(x, decomposition)  # noqa: E731
        inverse = lambda x: pmd.pirfft3d(x, shape, decomposition)  # noqa: E731
        spectrum, tangent = jax.jvp(forward, (field,), (2 * field,))
        return {
            "forward": spectrum,
            "tangent": tangent,
            "inverse": inverse(other),
            "round trip": inverse(spectrum),
            "forward transpose": jax.linear_transpose(forward, field)(other)[0],
            "inverse transpose": jax.linear_transpose(inverse, other)(field)[0],
        }

    out = run(field, dressed)
    close(out["forward"], padded(modes, shape, decomposition))
    close(out["tangent"], padded(2 * modes, shape, decomposition))
    close(out["inverse"], np.fft.irfftn(other, shape, axes=(0, 1, 2)))
    close(out["round trip"], field)
    transpose = jax.linear_transpose(lambda x: jnp.fft.rfftn(x), jnp.asarray(field))
    close(out["forward transpose"], transpose(jnp.asarray(other))[0])
    transpose = jax.linear_transpose(lambda x: jnp.fft.irfftn(x, shape), jnp.asarray(other))
    close(out["inverse transpose"], padded(np.asarray(transpose(jnp.asarray(field))[0]), shape, decomposition))
    # <F x, y> = <x, F^T y>, without complex conjugation: a transpose, not an adjoint.
    left, right = np.sum(np.asarray(out["forward"])[..., :nk] * other).real, np.vdot(out["forward transpose"], field)
    assert abs(left - right) < 1e-14 * np.linalg.norm(modes) * np.linalg.norm(other)
    assert out["forward"].shape == spectrum_shape(shape, decomposition)
    assert pmd.get_fft_output_sharding(decomposition) == decomposition.spectrum_sharding
    assert all(
        problems.has_sharding(out[name], decomposition.spectrum_sharding) for name in ("forward", "inverse transpose")
    )
    assert all(problems.has_sharding(out[name], decomposition.sharding) for name in ("inverse", "forward transpose"))


def test_complex_transforms_match_numpy(decomposition: pmd.Decomposition) -> None:
    shape = (8, 4, 12)
    rng = np.random.default_rng(1)
    field = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    modes = np.fft.fftn(field)
    run = jax.jit(lambda x, y: (pmd.pfft3d(x, decomposition), pmd.pifft3d(y, decomposition)))
    forward, inverse = run(field, modes)
    close(forward, modes)
    close(inverse, field)
    assert problems.has_sharding(forward, decomposition.spectrum_sharding)
    assert problems.has_sharding(inverse, decomposition.sharding)
    # The matrix of a Fourier transform is symmetric: it is its own transpose.
    transpose = jax.jit(lambda ct: jax.linear_transpose(lambda x: pmd.pfft3d(x, decomposition), field)(ct)[0])
    close(transpose(field), modes)


def test_wavevectors_match_the_spectrum(shape: tuple[int, int, int], decomposition: pmd.Decomposition) -> None:
    kx, ky, kz = jax.jit(lambda: pmd.fftfreq3d(shape, decomposition))()
    full = spectrum_shape(shape, decomposition)
    assert (kx.size, ky.size, kz.size) == full
    assert kx.shape[1:] == (1, 1) and ky.shape[::2] == (1, 1) and kz.shape[:2] == (1, 1)
    nk = shape[2] // 2 + 1
    np.testing.assert_allclose(kx.ravel(), 2 * math.pi * np.fft.fftfreq(shape[0]), rtol=1e-15)
    np.testing.assert_allclose(ky.ravel(), 2 * math.pi * np.fft.fftfreq(shape[1]), rtol=1e-15)
    np.testing.assert_allclose(kz.ravel()[:nk], 2 * math.pi * np.fft.rfftfreq(shape[2]), rtol=1e-15)
    np.testing.assert_array_equal(kz.ravel()[nk:], kz.ravel()[nk - 1])
    spec = decomposition.spectrum_spec
    assert problems.has_sharding(ky, jax.NamedSharding(decomposition.mesh, jax.P(None, spec[1], None)))
    assert problems.has_sharding(kz, jax.NamedSharding(decomposition.mesh, jax.P(None, None, spec[2])))


def test_large_inverses_are_taken_in_pieces(decomposition: pmd.Decomposition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 2^31 values XLA forgets the norm on GPUs; here the same path at a size that fits a test."""
    monkeypatch.setattr("pmwd_dist.ops.local_fft._LARGEST_INVERSE", 25)
    monkeypatch.setattr("pmwd_dist._jax.native.native_available", lambda: False)  # CPUs, too, transform by XLA
    calls, irfftn = [], jnp.fft.irfftn

    def counted(x: jax.Array, **settings: Any) -> jax.Array:
        out = irfftn(x, **settings)
        calls.append(out.size)
        return out

    monkeypatch.setattr(jnp.fft, "irfftn", counted)
    shape = (8, 4, 6)
    field = np.random.default_rng(3).standard_normal(shape)
    inverse = jax.jit(lambda x: pmd.pirfft3d(x, shape, decomposition))
    close(inverse(padded(np.fft.rfftn(field), shape, decomposition)), field)
    assert len(calls) > 1
    assert max(calls) < 25


# --- outside of jit -----------------------------------------------------------------------------------------------

EAGER = (4, 4, 6)  # 4 values of kz: no padding on 1, 2 or 4 devices


def draw() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(EAGER)


def test_the_layout_of_an_array_is_enough(parallel: pmd.Decomposition) -> None:
    decomposition = parallel
    x = jax.device_put(draw(), decomposition.sharding)
    spectrum = pmd.prfft3d(x)
    assert spectrum.sharding.is_equivalent_to(decomposition.spectrum_sharding, 3)
    assert pmd.get_fft_output_sharding(x).is_equivalent_to(spectrum.sharding, 3)
    back = pmd.pirfft3d(spectrum, EAGER)
    np.testing.assert_allclose(back, x, atol=1e-13)
    assert pmd.get_fft_output_sharding(spectrum, inverse=True).is_equivalent_to(back.sharding, 3)
    z = x[..., :4].astype(complex)
    np.testing.assert_allclose(pmd.pifft3d(pmd.pfft3d(z)), z, atol=1e-13)
    there_and_back = jax.jit(lambda x: pmd.halo_reduce(pmd.halo_pad(x, 1, decomposition), 1, decomposition))(x)
    np.testing.assert_array_equal(pmd.halo_reduce(pmd.halo_pad(x, 1), 1), there_and_back)


@pytest.mark.parametrize(("norm", "dtype"), [("backward", np.float32), ("ortho", np.float64), ("forward", np.float64)])
def test_norms_and_precisions_of_numpy(norm: Any, dtype: Any) -> None:
    decomposition = pmd.Decomposition((2, 2))
    x = draw().astype(dtype)
    close = partial(np.testing.assert_allclose, rtol=0, atol=200 * np.finfo(dtype).eps)
    spectrum = pmd.prfft3d(x, decomposition, norm=norm)
    assert spectrum.dtype == np.result_type(dtype, np.complex64)
    expected = np.fft.rfftn(draw(), norm=norm)
    close(spectrum / np.abs(expected).max(), expected / np.abs(expected).max())
    close(pmd.pirfft3d(spectrum, EAGER, decomposition, norm=norm), x)
    z = (x + 1j * x[::-1])[..., :4]
    expected = np.fft.fftn(z, norm=norm)
    close(pmd.pfft3d(z, decomposition, norm=norm) / np.abs(expected).max(), expected / np.abs(expected).max())
    close(pmd.pifft3d(pmd.pfft3d(z, decomposition, norm=norm), decomposition, norm=norm), z)
