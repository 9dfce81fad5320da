"""Transforms by transposes: each axis is transformed where it is whole, one transpose for slabs, two for pencils.

XLA transforms along the last axis, so a transpose leaves the axis that it makes whole last, in the pass that packs and
unpacks the data. The index order of the spectrum is restored at the end, by strides alone inside a larger program.
"""

from __future__ import annotations

import abc

import jax.numpy as jnp
from jaxtyping import Array

from pmwd_dist.ops.local_fft import irfft, rfft
from pmwd_dist.parallel.backends.base import Backend
from pmwd_dist.parallel.division import Division

X, Y = 0, 1  # the axes of a field that are divided


class TransposingBackend(Backend):
    """A backend with local transforms and transposes between them."""

    @abc.abstractmethod
    def gather_axis(self, block: Array, axis: int, split: int, division: Division) -> Array:
        """Make axis 0 (x) or 1 (y) of the block whole and last, splitting axis `split` over the same devices.

        The other axes keep their order: (x, y, z) with axis=1, split=2 becomes (x, z, y).
        """

    @abc.abstractmethod
    def split_axis(self, block: Array, axis: int, gather: int, division: Division) -> Array:
        """Invert `gather_axis`: split the last axis, which becomes axis 0 or 1, and make `gather` whole."""

    def transpose_z_to_y(self, block: Array, division: Division) -> Array:
        """From (x, y, z) whole along z to (x, z, y) whole along y."""
        return jnp.moveaxis(block, Y, -1) if division.pdims[1] == 1 else self.gather_axis(block, Y, 2, division)

    def transpose_y_to_z(self, block: Array, division: Division) -> Array:
        """From (x, z, y) whole along y to (x, y, z) whole along z."""
        return jnp.moveaxis(block, -1, Y) if division.pdims[1] == 1 else self.split_axis(block, Y, 2, division)

    def transpose_y_to_x(self, block: Array, y: int, division: Division) -> Array:
        """Make x, axis 0, whole and last, splitting y, axis 1 or 2."""
        return jnp.moveaxis(block, X, -1) if division.pdims[0] == 1 else self.gather_axis(block, X, y, division)

    def transpose_x_to_y(self, block: Array, y: int, division: Division) -> Array:
        """Invert `transpose_y_to_x`."""
        return jnp.moveaxis(block, -1, X) if division.pdims[0] == 1 else self.split_axis(block, X, y, division)

    def rfft(self, block: Array, division: Division) -> Array:
        """Transform a real field."""
        px, py = division.pdims
        if px == py == 1:
            return rfft(block, 3)
        if py == 1:
            return jnp.moveaxis(jnp.fft.fft(self.transpose_y_to_x(rfft(block, 2), 1, division)), 2, 0)
        spectrum = rfft(block, 1)
        padding = -spectrum.shape[2] % py
        return self._forward(jnp.pad(spectrum, ((0, 0), (0, 0), (0, padding))), division)

    def irfft(self, block: Array, nz: int, division: Division) -> Array:
        """Invert `rfft`."""
        px, py = division.pdims
        if px == py == 1:
            return irfft(block, nz, 3)
        if py == 1:
            return irfft(self.transpose_x_to_y(_ifft(jnp.moveaxis(block, 0, 2), division), 1, division), nz, 2)
        return irfft(self._backward(block, division)[:, :, : nz // 2 + 1], nz, 1)

    def fft(self, block: Array, division: Division) -> Array:
        """Transform a complex field."""
        return self._forward(jnp.fft.fft(block), division)

    def ifft(self, block: Array, division: Division) -> Array:
        """Invert `fft`."""
        return _ifft(self._backward(block, division), division)

    def _forward(self, block: Array, division: Division) -> Array:
        """From (x, y, kz) whole along kz to the spectrum's layout, with the transforms along y and x."""
        block = jnp.fft.fft(self.transpose_z_to_y(block, division))  # (x, kz, y)
        block = jnp.fft.fft(self.transpose_y_to_x(block, 2, division))  # (kz, y, x)
        return jnp.transpose(block, (2, 1, 0))

    def _backward(self, block: Array, division: Division) -> Array:
        block = _ifft(jnp.transpose(block, (2, 1, 0)), division)
        block = _ifft(self.transpose_x_to_y(block, 2, division), division)
        return self.transpose_y_to_z(block, division)


def _ifft(block: Array, division: Division) -> Array:
    """Inverse along the last axis; on GPUs by the forward transform, since XLA divides in a separate pass there."""
    if division.platform != "gpu":
        return jnp.fft.ifft(block)
    return jnp.conj(jnp.fft.fft(jnp.conj(block))) / block.shape[-1]
