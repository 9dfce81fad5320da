"""The table of `pmwd-dist check --grad`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pmwd_dist.run.simulation.gradients import TOLERANCE, Comparison


def table_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A line for each derivative, and one that says which are off."""
    yield ""
    yield "derivatives of mean((1 + delta)^2) at the end, in float64, against central differences:"
    yield f"  {'':8} {'gradient':>14} {'difference':>14} {'relative error':>15}"
    for c in comparisons:
        yield f"  {c.name:8} {c.gradient:14.6e} {c.difference:14.6e} {c.error:15.1e}"
    if off := [c.name for c in comparisons if not c.good]:
        yield f"{', '.join(off)}: off by more than {TOLERANCE:g}"
