"""Run the benchmark from a source tree."""

import typer

from pmwd_dist.cli.bench import bench

typer.run(bench)
