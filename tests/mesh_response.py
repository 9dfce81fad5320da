"""What the Green's function of the mesh makes up for, by sums over aliases one by one, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

ALIASES = 20_000  # on either side: the rest is 1e-13


def mesh_response(k: list[np.ndarray], config: Any) -> np.ndarray:
    """Force of a plane wave over the true one, where it is compensated; 1 where there is none."""
    response, k2 = _response(k, config), sum(k_**2 for k_ in k)
    return np.where((k2 > 0) & (response > 0), response, 1)


def _response(k: list[np.ndarray], config: Any) -> np.ndarray:
    shape = np.broadcast_shapes(*(k_.shape for k_ in k))
    axes = list(zip(k, config.cell_size, config.mesh_shape, config.particle_shape, strict=True))
    if not config.compensated:
        along = [k_**2 * (differences(k_ * h) if 2 * m == 3 * n else 1.0) for k_, h, m, n in axes]
        k2 = sum(k_**2 for k_ in k)
        return sum(along) / np.where(k2 > 0, k2, 1)
    mixed = [2 * m == 3 * n for *_, m, n in axes]
    k = [k_ if f else np.clip(k_, -np.pi / 2 / h, np.pi / 2 / h) for (k_, h, *_), f in zip(axes, mixed, strict=True)]
    deposits = [
        (k_, np.ones_like(k_)) if f else aliases(k_, h, max(1, n // m))
        for k_, (_, h, m, n), f in zip(k, axes, mixed, strict=True)
    ]
    deposit, gradient, k2 = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for i in range(3):
        others = [total for j, (_, total) in enumerate(deposits) if j != i]
        deposit = deposit + k[i] * deposits[i][0] * others[0] * others[1]
        gradient = gradient + k[i] ** 2 * differences(k[i] * axes[i][1])
        k2 = k2 + k[i] ** 2
    return deposit * gradient / np.where(k2 > 0, k2, 1) ** 2


def aliases(k: np.ndarray, cell: float, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of W^2 times the wavenumber, and of W^2, over W^2 of k, for harmonics of a lattice of sites per cell."""
    x = k.ravel()[:, None] * cell / (2 * np.pi)  # waves per cell
    order = x + sites * np.arange(-ALIASES, ALIASES + 1)
    weight = (np.sinc(order) / np.sinc(x)) ** 4
    return (weight * order).sum(1).reshape(k.shape) * 2 * np.pi / cell, weight.sum(1).reshape(k.shape)


def differences(x: np.ndarray) -> np.ndarray:
    """Fourth-order central difference of a plane wave over its derivative, x its phase over a cell; 0 beyond 0.7 pi."""
    y = np.where(x == 0, 1.0, x)
    return np.where(x == 0, 1.0, np.where(np.abs(y) < 0.7 * np.pi, (8 * np.sin(y) - np.sin(2 * y)) / (6 * y), 0))
