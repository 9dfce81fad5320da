"""Chains with default settings against exact marginals: widths to 3 %, shifts below 0.05 standard deviations."""

from __future__ import annotations

import exact_marginals
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
def test_default_chains_have_the_exact_marginals(seed: int) -> None:
    """A warning of `sample` is an error here."""
    options = {"steps": 20000, "chunk": 1000, "tuning_steps": 1000}
    table = exact_marginals.compared(exact_marginals.case(seed), "adapted", seed=0, **options)
    for name in ("b1", "sigma8"):
        row = table[name]
        assert row["rhat"] < 1.01
        assert abs(row["shift"]) < 0.05 + 3 * row["shift error"] and row["shift error"] < 0.02
        assert abs(row["width"] - 1) < 0.03 + 3 * row["width error"] and row["width error"] < 0.02
