"""The records of a run as a figure: time and memory of each code over the size of the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.codes import CODES
from benchmarks.problem import FLOOR_BYTES
from benchmarks.table import UNITS


def draw(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Draw a row of two panels for each case: times with the floor of a step, and bytes a particle."""
    machine, rows = records[0], [row for row in records[1:] if "median_s" in row]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(9, 3.2 * max(1, len(cases))), layout="constrained")
    panels = figure.subplots(max(1, len(cases)), 2, squeeze=False)
    for case, (times, memory) in zip(cases, panels, strict=True):
        unit, factor = UNITS[case]
        for name in CODES:
            own = sorted((row for row in rows if (row["case"], row["code"]) == (case, name)), key=lambda row: row["n"])
            if own:
                n = [row["n"] for row in own]
                times.loglog(n, [row["median_s"] * factor for row in own], "o-", label=name)
                memory.loglog(n, [row["peak_bytes"] / row["n"] ** 3 for row in own], "o-", label=name)
        sizes = sorted({row["n"] for row in rows if row["case"] == case})
        if case == "forward":
            floor = [1e3 * FLOOR_BYTES * n**3 / machine["bandwidth"] for n in sizes]
            times.loglog(sizes, floor, "k:", label=f"{FLOOR_BYTES} bytes a particle by copies")
        for panel, label in ((times, unit), (memory, "bytes a particle")):
            panel.set(xlabel="cells along a side", ylabel=label, title=case)
            panel.set_xticks(sizes, [str(n) for n in sizes], minor=False)
            panel.minorticks_off()
        times.legend(fontsize="small")
    device = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
    figure.suptitle(f"{device}, {machine['date']}", fontsize="medium")
    figure.savefig(path, dpi=150)
