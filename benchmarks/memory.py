"""Peak memory of a run and of a gradient, stage by stage: as predicted, as XLA plans it, as the allocator counts it.

    python benchmarks/memory.py run:512 run:512:lpt=3 run:256:mesh=2 gradient:512 run:512:devices=2x1:halo=20

A case is what (run, forward or gradient), particles along a side, and any of mesh (cells per particle along a side),
devices, halo, lpt, box (side over particles along it [Mpc/h]) and steps. Each runs in a process of its own and prints
one line of JSON: for each stage bytes of one device, where the allocator's peak is that of all stages so far, and the
seconds of a step. With --plan nothing is run. Where there is no GPU, as many CPU devices are made as needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A case as the module describes it."""

    what: str
    n: int
    mesh: float = 1.0
    devices: str = "1x1"
    halo: str = "auto"
    lpt: int = 2
    box: float = 2.0
    steps: int = 10


class Program(NamedTuple):
    """A program of a stage: its name in the prediction, the function, and what it gives up of its arguments."""

    stage: str
    function: Callable[..., Any]
    donated: tuple[int, ...] = ()


def parse(text: str) -> Case:
    """The case of a text such as run:512:devices=2x1."""
    what, n, *rest = text.split(":")
    given = dict(item.split("=", 1) for item in rest)
    kinds = {"mesh": float, "devices": str, "halo": str, "lpt": int, "box": float, "steps": int}
    if what not in {"run", "forward", "gradient"} or not set(given) <= set(kinds):
        raise SystemExit(f"{text}: not a case; see the head of this file")
    return Case(what, int(n), **{name: kinds[name](value) for name, value in given.items()})


def config_of(case: Case) -> Any:
    """The configuration of a case, on the first devices."""
    import jax

    import pmwd_dist as pmd

    px, py = map(int, case.devices.split("x"))
    return pmd.Config(
        case.box * case.n,
        round(case.mesh * case.n),
        case.n,
        steps=case.steps,
        lpt_order=case.lpt,
        decomposition=pmd.Decomposition((px, py), jax.devices()[: px * py]),
        halo="auto" if case.halo == "auto" else int(case.halo),
    )


def programs(case: Case, config: Any) -> Iterator[Program]:
    """The programs of a case; each takes the results of the one before."""
    import jax
    import jax.numpy as jnp

    import pmwd_dist as pmd
    from pmwd_dist.pm.nbody import step_times
    from pmwd_dist.pm.particles import exact
    from pmwd_dist.pm.solvers import BullFrog
    from pmwd_dist.pm.status import successful
    from pmwd_dist.pm.stepping import host
    from pmwd_dist.run.bench import cosmology

    cosmo, solver = cosmology(), BullFrog()
    table = jax.tree.map(jax.device_get, pmd.growth_table(cosmo))

    def noise() -> Any:
        return pmd.white_noise(jax.random.key(1), config)

    def modes(noise: Any) -> Any:
        return pmd.linear_modes(noise, cosmo, config)

    def initial(modes: Any) -> Any:
        return pmd.lpt(modes, cosmo, config)

    def first() -> tuple[Any, host.Schedule]:
        return successful(), host.make_schedule(table, step_times(table, config), config, solver)

    status, schedule = jax.tree.map(jax.device_get, first())

    def begin(particles: Any) -> Any:
        return host.begin(exact(particles, config), status, schedule, 0, config)

    def step(moved: Any) -> Any:
        return host.advance(moved, schedule, 0, config)

    def forward(particles: Any) -> Any:
        return pmd.nbody(particles, cosmo, config).particles

    def loss(noise: Any) -> Any:
        return jnp.mean(pmd.density(forward(initial(modes(noise))), config) ** 2)

    yield Program("noise", noise)
    if case.what == "gradient":
        yield Program("gradient", jax.value_and_grad(loss))
        return
    yield Program("modes", modes)
    yield Program("lpt", initial)
    if case.what == "forward":
        yield Program("forward", forward)
        return
    yield Program("start", begin, (0,))
    yield Program("step", step, (0,))
    yield Program("density", lambda moved: pmd.cic_paint(moved.particles.disp, config))
    yield Program("power", lambda density: pmd.power_spectrum(density, config))


def timed(step: Callable[..., Any], state: tuple[Any, ...]) -> tuple[tuple[Any, ...], float]:
    """The particles after a few more steps, and the median of their times [s]."""
    import jax

    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        state = (jax.block_until_ready(step(*state)),)
        seconds.append(time.perf_counter() - began)
    return state, statistics.median(seconds)


def measure(case: Case, *, plan_only: bool) -> dict[str, Any]:
    """The record of a case."""
    import warnings

    import jax

    from pmwd_dist.run.memory import stages

    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    config = config_of(case)
    device = config.decomposition.mesh.devices.flat[0]
    predicted = stages(config, "cpu" if device.platform == "cpu" else "gpu")
    state: tuple[Any, ...] = ()
    rows = []
    for stage, function, donated in programs(case, config):
        compiled = jax.jit(function, donate_argnums=donated).lower(*state).compile()
        plan = compiled.memory_analysis()
        planned = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
        row = {"stage": stage, "planned": planned - plan.alias_size_in_bytes, "predicted": predicted.get(stage)}
        if plan_only:
            shapes = jax.eval_shape(function, *state)
            shardings = compiled.output_shardings
            state = (jax.tree.map(lambda x, s: x.update(sharding=s), shapes, shardings),)
        else:
            state = (jax.block_until_ready(compiled(*state)),)
            if stage == "step":
                state, row["seconds"] = timed(compiled, state)
            row["peak"] = max((d.memory_stats() or {}).get("peak_bytes_in_use", 0) for d in jax.local_devices())
        rows.append(row)
    about = {"device": device.device_kind, "backend": config.decomposition.backend.name, "jax": jax.__version__}
    return {"case": case._asdict(), **about, "stages": rows}


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--plan", action="store_true", help="compile only")
    parser.add_argument("--limit", type=float, default=240, help="seconds for each case")
    parser.add_argument("--here", action="store_true", help="run the only case in this process")
    options = parser.parse_args()
    for text in options.cases:
        case = parse(text)
        if options.here:
            print(json.dumps(measure(case, plan_only=options.plan)), flush=True)
            continue
        px, py = map(int, case.devices.split("x"))
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_NUM_CPU_DEVICES": str(px * py)}
        command = [sys.executable, __file__, text, "--here", *["--plan"] * options.plan]
        run = partial(subprocess.run, command, capture_output=True, text=True, timeout=options.limit, check=False)
        try:
            done = run(env={**os.environ, **own})
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            errors = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            lines, errors = [], f"took longer than {options.limit:g} s"
        print(lines[-1] if lines else json.dumps({"case": case._asdict(), "error": errors[:400]}), flush=True)


if __name__ == "__main__":
    main()
