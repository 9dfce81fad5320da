"""The command `python -m benchmarks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import CASES, markdown, run
from benchmarks.codes import CODES
from benchmarks.plot import draw


def bench(
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Meshes n^3.")] = "64,128",
    cases: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(CASES)}.")] = ",".join(CASES[:2]),
    only: Annotated[str, typer.Option(metavar="A,B,…", help=f"Codes, of {', '.join(CODES)}.")] = ",".join(CODES),
    repeat: Annotated[int, typer.Option(min=1, help="Rounds after the warm-up.")] = 3,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines: the machine, then each code and case.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Figure of times and memory over the sizes.")
    ] = None,
    python: Annotated[list[str], typer.Option(metavar="CODE=PATH", help="Interpreter for a code.")] = [],
) -> None:
    """Time forward runs, gradients, painting and forces, side by side with the peers that are installed.

    Ends with 1 if P(k) of a code at a = 1 is not ours within its tolerance.
    """
    if wrong := [item for item in python if "=" not in item]:
        raise typer.BadParameter(f"--python {wrong[0]} must be CODE=PATH")
    try:
        records = run(
            [int(n) for n in sizes.split(",")],
            cases.split(","),
            only.split(","),
            repeat=repeat,
            python=dict(item.split("=", 1) for item in python),
            progress=lambda line: typer.echo(line, err=True),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if out is not None:
        out.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    if plot is not None:
        draw(plot, records)
    typer.echo(markdown(records))
    if any(record.get("agrees") is False for record in records):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench)
