"""Chains with default settings against exact marginals; `benchmarks/exact_marginals.py` has more posteriors."""

from __future__ import annotations

import pytest

from benchmarks import exact_marginals


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_default_chains_have_the_exact_marginals() -> None:
    """Widths to 3 %, shifts to 0.05 standard deviations, within errors. A warning of `sample` is an error here."""
    options = {"steps": 2500, "chunk": 500, "tuning_steps": 1000}
    table = exact_marginals.compared(exact_marginals.case(0), seed=0, **options)
    for name in ("b1", "sigma8"):
        row = table[name]
        assert row["rhat"] < 1.02
        assert abs(row["shift"]) < 0.05 + 3 * row["shift error"] < 0.2
        assert abs(row["width"] - 1) < 0.03 + 3 * row["width error"] < 0.12
