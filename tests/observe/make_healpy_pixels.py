"""Make healpy_pixels.npz, the pixels and weights of healpy with which ours are compared: pip install healpy."""

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
np.savez_compressed(Path(__file__).parent / "healpy_pixels.npz", **arrays)
