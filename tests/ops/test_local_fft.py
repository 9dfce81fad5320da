"""Real transforms of a block: values against NumPy, transposes, batches, odd lengths, in JAX and natively."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmwd_dist.ops.local_fft import irfft, rfft

SPECTRUM = np.fft.rfftn(np.random.default_rng(3).standard_normal((4, 6, 8)))
SHAPES = ((4, 6, 10), (3, 5, 7), (1, 2, 18), (2, 1, 3))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_and_transposes_are_those_of_numpy(rank: int, native: bool) -> None:
    rng, axes = np.random.default_rng(0), tuple(range(3 - rank, 3))

    def all_of(x: Any, ct: Any, s: Any, real_ct: Any) -> Any:
        nz = x.shape[2]
        forward, pull = jax.vjp(lambda x: rfft(x, rank), x)
        back, pull_back = jax.vjp(lambda s: irfft(s, nz, rank), s)
        return forward, pull(ct)[0], back, pull_back(real_ct)[0]

    for shape in SHAPES:
        x, real_ct = rng.standard_normal((2, *shape))
        half = (*shape[:2], shape[2] // 2 + 1)
        ct, s = rng.standard_normal((2, *half)) + 1j * rng.standard_normal((2, *half))
        # Modes that are their own conjugates have imaginary parts here, which do not count in the last axis alone.
        text = jax.jit(all_of).lower(x, ct, s, real_ct).as_text()
        assert ("jaxdecomp_ops_rfft" in text) == ("jaxdecomp_ops_irfft" in text) == native
        forward, pulled, back, pulled_back = jax.jit(all_of)(x, ct, s, real_ct)
        sides = [shape[axis] for axis in axes]
        np.testing.assert_allclose(forward, np.fft.rfftn(x, axes=axes), atol=1e-13)
        np.testing.assert_allclose(back, np.fft.irfftn(s, sides, axes=axes), atol=1e-14)
        # JAX's cotangents of complex arrays are conjugates.
        np.testing.assert_allclose(np.sum(pulled * x), np.sum(ct * forward).real, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(np.sum(pulled_back * s).real, np.sum(real_ct * back), rtol=1e-12, atol=1e-12)


def test_a_spectrum_that_is_needed_again_is_not_overwritten(native: bool) -> None:
    """Constants, arguments, operands of loops and of branches, though the native inverse takes their memory."""
    del native
    s = np.fft.rfftn(np.random.default_rng(2).standard_normal((4, 6, 8)))
    field = np.fft.irfftn(s, (4, 6, 8), axes=(0, 1, 2))

    @jax.jit
    def several(s: Any, positive: Any) -> Any:
        constant = irfft(jnp.asarray(SPECTRUM), 8, 3)
        total = jax.lax.fori_loop(0, 3, lambda i, sums: sums + irfft(s, 8, 3), jnp.zeros((4, 6, 8)))
        branch = jax.lax.cond(positive, lambda s: irfft(s, 8, 3), lambda s: -irfft(s, 8, 3), s)
        return constant, total, branch, s

    for _ in range(2):
        constant, total, branch, same = several(s, True)
        np.testing.assert_allclose(constant, np.fft.irfftn(SPECTRUM, (4, 6, 8), axes=(0, 1, 2)), atol=1e-14)
        np.testing.assert_allclose(total, 3 * field, atol=1e-14)
        np.testing.assert_allclose(branch, field, atol=1e-14)
        np.testing.assert_array_equal(same, s)


def test_batches_in_single_precision_are_transformed_one_by_one(native: bool) -> None:
    del native
    x = np.random.default_rng(1).standard_normal((3, 4, 6, 8)).astype(np.float32)

    @jax.jit
    def there_and_back(x: Any) -> Any:
        modes = jax.vmap(lambda x: rfft(x, 3))(x)
        twice = jax.vmap(lambda s: irfft(s, 8, 3))(modes)  # the modes are needed after it
        return modes, twice, jnp.sum(jnp.abs(modes) ** 2)

    modes, twice, power = there_and_back(x)
    expected = np.fft.rfftn(x.astype(float), axes=(1, 2, 3))
    assert modes.dtype == np.complex64
    np.testing.assert_allclose(modes, expected, atol=2e-5)
    np.testing.assert_allclose(twice, x, atol=1e-6)
    np.testing.assert_allclose(power, np.sum(np.abs(expected) ** 2), rtol=1e-6)
