"""P(k) of a run of `sims/quickstart.toml`, 128^3 particles, against the stored one: `stored_power.py DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

STORED, TOLERANCE = Path(__file__).with_name("power_128.csv"), 1e-4  # other processors round otherwise


def main(folder: str) -> int:
    """Print the largest relative difference; 1 if it is over the tolerance."""
    k, expected = np.loadtxt(STORED, delimiter=",", skiprows=1).T
    found = np.loadtxt(Path(folder) / "power_z0.000.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found[:, 0], k, rtol=1e-5)
    worst = float(np.abs(found[:, 1] / expected - 1).max())
    print(f"P(k) differs by {worst:.1e} at most, tolerance {TOLERANCE:g}")
    return int(not worst < TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
