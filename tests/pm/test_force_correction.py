"""The trainable correction of the force: its shape and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import pmwd_dist as pmd

SPACING = 2.0
NYQUIST = np.pi / SPACING


def correction() -> pmd.ForceCorrection:
    return pmd.ForceCorrection(SPACING, np.random.default_rng(0).uniform(0, 1, (9, 5)))


def at(x: Any, a: float) -> Any:
    """f at wavenumbers over the Nyquist frequency."""
    return np.asarray(correction()(jnp.asarray(x) * NYQUIST, jnp.asarray(a))) - 1


def test_the_correction_is_the_spline_of_its_formula() -> None:
    x = np.array([0.05, 0.3, 0.99, 1.7])

    def spline(centres: Any, at: float) -> Any:
        from scipy.interpolate import BSpline

        h = centres[1] - centres[0]
        basis = [BSpline.basis_element(c + h * np.arange(-2, 3), extrapolate=False)(at) for c in centres]
        return np.nan_to_num(np.array(basis))

    expected = [spline(0.2 * np.arange(2, 11), xi) @ np.asarray(correction().coefficients) for xi in x]
    for a in (0.1, 0.7, 1.0):
        np.testing.assert_allclose(at(x, a), expected @ spline(0.5 * np.arange(-1, 4), a), atol=1e-12)
    np.testing.assert_array_equal(at(x, 1.5), at(x, 1.0))
    np.testing.assert_allclose(at([1e-3], 0.5) / at([5e-4], 0.5), 8, rtol=1e-6)  # as k^3
    assert (np.asarray(pmd.ForceCorrection(SPACING)(jnp.asarray(x), jnp.asarray(0.5))) == 1).all()


def test_a_file_holds_every_bit_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "force.json"
    correction().save(path, seeds=[1, 2], loss=0.1)
    again = pmd.ForceCorrection.load(path)
    assert again.spacing == SPACING
    np.testing.assert_array_equal(again.coefficients, correction().coefficients)
    content = json.loads(path.read_text())
    assert content["provenance"] == {"seeds": [1, 2], "loss": 0.1}
    for change in ({"spacing": -1}, {"spacing": "two"}, {"coefficients": [[1]]}, {"coefficients": [["x"] * 5] * 9}):
        path.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=r"is not a file of ForceCorrection.save"):
            pmd.ForceCorrection.load(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"is not a file of ForceCorrection.save"):
        pmd.ForceCorrection.load(path)
    with pytest.raises(ValueError, match=r"coefficients=\(2,\) must have the shape \(9, 5\)"):
        pmd.ForceCorrection(SPACING, [1.0, 2.0])
