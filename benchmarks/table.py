"""The records of a run as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.codes import CODES
from benchmarks.problem import FLOOR_BYTES, STEPS

# Unit, factor from seconds to it.
UNITS = {"forward": ("ms a step", 1e3 / STEPS), "gradient": ("s", 1.0), "paint": ("ms", 1e3), "force": ("ms", 1e3)}


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """Tables of a run, one a case and size."""
    machine, rows = records[0], records[1:]
    parts = [_header(machine)]
    for case, n in dict.fromkeys((row["case"], row["n"]) for row in rows):
        chosen = [row for row in rows if (row["case"], row["n"]) == (case, n)]
        parts.append(_table(case, n, chosen, machine["bandwidth"]))
    return "\n\n".join(parts) + "\n"


def _header(machine: dict[str, Any]) -> str:
    device = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"{machine['date']}, {device}, {machine['cores']} cores;",
        f"copy {machine['bandwidth'] / 1e9:.1f} GB/s read plus written;",
        f"load average before the run {machine['load_before']:.1f}; {versions}.",
    ]
    return "\n".join(lines)


def _table(case: str, n: int, rows: Sequence[dict[str, Any]], bandwidth: float) -> str:
    unit, factor = UNITS[case]
    ours = next((row.get("median_s") for row in rows if row["code"] == "ours"), None)
    lines = [
        f"**{case}, {n}³**",
        "",
        f"| code | {unit} | over ours | range | bytes a particle | compile, s | compared with ours |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join([CODES[row['code']].title, *_cells(row, factor, ours)])} |" for row in rows]
    if case == "forward" and ours:
        floor = FLOOR_BYTES * n**3 / bandwidth
        multiple = f"ours is {ours / STEPS / floor:.1f} times that"
        lines += ["", f"Floor of a step, {FLOOR_BYTES} bytes a particle: {floor * 1e3:.2f} ms; {multiple}."]
    return "\n".join(lines)


def _cells(row: dict[str, Any], factor: float, ours: float | None) -> list[str]:
    if "error" in row or "median_s" not in row:
        return [row.get("error", "no times"), "", "", "", "", ""]
    low, high = min(row["seconds"]) * factor, max(row["seconds"]) * factor
    agreement = row["agreement"]
    if "power" in agreement:
        compared = f"P/P {agreement['power']:.3f}, r {agreement['correlation']:.4f}"
        if row["agrees"] is False:
            compared += f", beyond its tolerance of {CODES[row['code']].tolerance:.1%}"
    else:
        compared = ", ".join(f"{key} {value:.4f}" for key, value in agreement.items())
    return [
        f"{row['median_s'] * factor:.3g}",
        f"{row['median_s'] / ours:.2f}" if ours else "",
        f"{low:.3g} to {high:.3g}",
        f"{row['peak_bytes'] / row['n'] ** 3:.0f}",
        f"{row['compile_s']:.1f}",
        compared,
    ]
