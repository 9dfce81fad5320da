"""Make healpy_pixels.npz, pixels, weights and harmonics of healpy to compare ours with: pip install healpy."""

from __future__ import annotations

from pathlib import Path

import healpy
import numpy as np

rng = np.random.default_rng(0)
arrays = {}
for nside in (1, 2, 3, 8, 64):
    vectors = rng.standard_normal((120, 3))
    vectors[:40, :2] *= 0.2 / nside  # around the poles
    vectors[40:60, 2] = 0
    vectors[60:64, :2] = 0
    pixels, weights = healpy.get_interp_weights(nside, *healpy.vec2ang(vectors))
    arrays[f"vectors_{nside}"] = vectors
    arrays[f"nearest_{nside}"] = healpy.vec2pix(nside, *vectors.T)
    arrays[f"pixels_{nside}"] = pixels.T
    arrays[f"weights_{nside}"] = weights.T

nside, lmax = 4, 7
m = np.concatenate([np.full(lmax + 1 - i, i) for i in range(lmax + 1)])
ell = np.concatenate([np.arange(i, lmax + 1) for i in range(lmax + 1)])
modes = np.where(ell > 1, rng.standard_normal(len(ell)) + 1j * np.where(m > 0, rng.standard_normal(len(ell)), 0), 0)
arrays |= {"l": ell, "m": m, "modes": modes, "map": healpy.alm2map(modes, nside, lmax=lmax)}
arrays["spin2"] = np.stack(healpy.alm2map_spin([modes, 0 * modes], nside, 2, lmax))
values = rng.standard_normal(12 * nside**2)
arrays |= {"values": values, "analysed": healpy.map2alm(values, lmax=lmax, iter=3)}
np.savez_compressed(Path(__file__).parent / "healpy_pixels.npz", **arrays)
