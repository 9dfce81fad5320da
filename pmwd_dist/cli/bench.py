"""The report of `pmwd-dist bench`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from pmwd_dist._files import atomic_write
from pmwd_dist._memory import size
from pmwd_dist.config import Config
from pmwd_dist.parallel.decomposition import Decomposition
from pmwd_dist.run.common.measure import machine
from pmwd_dist.run.common.resources import room
from pmwd_dist.run.simulation.bench import FLOOR_BYTES, STEPS, Timing, bench
from pmwd_dist.run.simulation.planning import memory


def bench_lines(sizes: Sequence[int], output: Path | None) -> Iterator[str]:
    """Lines of the benchmark as it proceeds; its records are written to the output at the end, as JSON.

    Raises:
      ValueError: a size that is no mesh, or several processes.
      OSError: the output can't be written.
    """
    if jax.process_count() > 1:
        raise ValueError("bench times one device: start it in one process, without mpirun or srun")
    for n in sizes:
        config, there = Config(float(n), n, decomposition=Decomposition((1, 1))), room()
        need = there.needed(memory(config, 0)["gradient"], config)
        if need > there.total:
            lack = f"a gradient needs about {size(need)} of memory and {there.where} has {size(there.total)}"
            raise ValueError(f"--sizes {n}: {lack}; use a smaller mesh")
    host, timings = machine(), list[Timing]()
    name = host["cpu"] if host["backend"] == "cpu" else host["device"]
    yield f"{name}, copy {host['bandwidth'] / 1e9:.1f} GB/s read plus written"
    for timing in bench(sizes):
        forward = next((t.median for t in timings if (t.case, t.n) == ("forward", timing.n)), None)
        yield _line(timing, host["bandwidth"], forward)
        timings.append(timing)
    if output is not None:
        records = [dataclasses.asdict(timing) | {"median_s": timing.median} for timing in timings]
        with atomic_write(output) as aside:
            aside.write_text(json.dumps({"machine": host, "timings": records}, indent=1) + "\n")


def _line(timing: Timing, bandwidth: float, forward: float | None) -> str:
    if timing.case == "forward":
        step, floor = timing.median / STEPS, FLOOR_BYTES * timing.n**3 / bandwidth
        time = f"{step * 1e3:8.3g} ms a step, {step / floor:.1f} times the floor of {floor * 1e3:.3g} ms"
    else:
        time = f"{timing.median:8.3g} s in all" + (f", {timing.median / forward:.1f} times forward" if forward else "")
    cost = timing.cost
    return (
        f"{timing.n}^3 {timing.case:8} {time}; {timing.bytes_per_particle:.0f} bytes a particle; "
        f"compilation {cost.compile_s:.1f} s, first call {cost.first_s:.2f} s"
    )
