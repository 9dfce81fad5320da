"""Transforms called outside of jit: layouts told by the arrays, norms and precisions, filters."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd

SHAPE = (4, 4, 6)  # 4 values of kz: no padding on 1, 2 or 4 devices


def draw() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE)


def test_the_layout_of_an_array_is_enough(parallel: pmd.Decomposition) -> None:
    decomposition = parallel
    x = jax.device_put(draw(), decomposition.sharding)
    spectrum = pmd.prfft3d(x)
    assert spectrum.sharding.is_equivalent_to(decomposition.spectrum_sharding, 3)
    assert pmd.get_fft_output_sharding(x).is_equivalent_to(spectrum.sharding, 3)
    back = pmd.pirfft3d(spectrum, SHAPE)
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
    close(pmd.pirfft3d(spectrum, SHAPE, decomposition, norm=norm), x)
    z = (x + 1j * x[::-1])[..., :4]
    expected = np.fft.fftn(z, norm=norm)
    close(pmd.pfft3d(z, decomposition, norm=norm) / np.abs(expected).max(), expected / np.abs(expected).max())
    close(pmd.pifft3d(pmd.pfft3d(z, decomposition, norm=norm), decomposition, norm=norm), z)


def test_a_filter_is_one_line(parallel: pmd.Decomposition) -> None:
    decomposition = parallel
    for real in (True, False):
        x = draw()[..., : None if real else 4]
        k = jax.jit(lambda shape=x.shape, real=real: pmd.fftfreq3d(shape, decomposition, real=real))()
        smooth = jnp.exp(-(k[0] ** 2 + k[1] ** 2 + k[2] ** 2))
        if real:
            out = pmd.pirfft3d(pmd.prfft3d(x, decomposition) * smooth, x.shape, decomposition)
        else:
            out = pmd.pifft3d(pmd.pfft3d(x.astype(complex), decomposition) * smooth, decomposition).real
        numbers = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n) for n in x.shape), indexing="ij")
        expected = np.fft.ifftn(np.fft.fftn(x) * np.exp(-sum(n**2 for n in numbers))).real
        np.testing.assert_allclose(out, expected, atol=1e-13)
