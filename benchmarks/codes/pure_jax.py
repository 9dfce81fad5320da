"""The force step as one would write it first in jax.numpy: eight `.at[].add`, eight gathers, `jnp.roll`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks import problem


class Code:
    """Paint and force only; the physics is that of pmwd_dist."""

    def __init__(self, n: int):
        self.n = n

    def place(self, disp: Any) -> Any:
        """Particles at displacements from the lattice [Mpc/h]."""
        return disp

    def paint(self, x: Any) -> Any:
        """The mesh of placed particles."""
        mesh = jnp.zeros((self.n,) * 3, x.dtype)
        for index, weight in self._corners(x):
            mesh = mesh.at[index].add(weight)
        return mesh

    def force(self, x: Any) -> Any:
        """The force at placed particles."""
        modes = jnp.fft.rfftn(self.paint(x)) * self._kernel(x.dtype)
        potential = jnp.fft.irfftn(modes, s=(self.n,) * 3)
        fields = [self._difference(potential, axis) for axis in range(3)]
        out = [jnp.zeros((), x.dtype)] * 3
        for index, weight in self._corners(x):
            out = [total + weight * field[index] for total, field in zip(out, fields, strict=True)]
        return jnp.stack(out, -1)

    def _corners(self, x: Any) -> Any:
        u = x / problem.CELL
        lower = jnp.floor(u)
        t = u - lower
        lattice = jnp.stack(jnp.meshgrid(*[jnp.arange(self.n)] * 3, indexing="ij"), -1)
        cell = lattice + lower.astype(jnp.int32)
        for corner in itertools.product((0, 1), repeat=3):
            index = tuple((cell[..., i] + corner[i]) % self.n for i in range(3))
            weight = math.prod(t[..., i] if corner[i] else 1 - t[..., i] for i in range(3))
            yield index, weight

    def _kernel(self, dtype: Any) -> Any:
        """1 / k^2 over the two cloud-in-cell windows, per unit of cell; as numpy, so that it is not a cost."""
        n = self.n
        full = 2 * np.pi * np.fft.fftfreq(n)
        half = 2 * np.pi * np.arange(n // 2 + 1) / n
        k = full[:, None, None], full[None, :, None], half[None, None, :]
        k2 = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
        window = [np.sinc(k_ / (2 * np.pi)) ** -4 for k_ in k]
        k2[0, 0, 0] = np.inf
        return jnp.asarray(window[0] * window[1] * window[2] / k2 * problem.CELL, dtype)

    @staticmethod
    def _difference(field: Any, axis: int) -> Any:
        def shifted(cells: int) -> Any:
            return jnp.roll(field, -cells, axis)

        return (shifted(1) - shifted(-1)) * (2 / 3) - (shifted(2) - shifted(-2)) / 12
