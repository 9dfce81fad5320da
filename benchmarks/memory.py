"""Peak memory by stage of a run and of a gradient: planned by XLA, counted by the allocator.

    python benchmarks/memory.py run:512 run:512:lpt=1 run:256:mesh=2 gradient:512 run:512:devices=2x1:halo=20
    XLA_PYTHON_CLIENT_PREALLOCATE=true python benchmarks/memory.py run:1024

A case is what (run or gradient), particles along a side, and any of mesh (cells per particle along a side), devices,
halo, lpt, steps, and cone (sphere, flat or counts) for the gradient of a light cone. Each runs in a process of its own
and prints a line of JSON with bytes a particle of one device; the allocator's peaks are those of all stages so far. A
run is that of `pmwd-dist run`, without snapshots.
Where there is no GPU, as many CPU devices are made as needed, and there are no peaks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

SIDE = 2.0  # of the box over particles along it [Mpc/h]


class Case(NamedTuple):
    """A case as the module describes it."""

    what: str
    n: int
    mesh: float = 1.0
    devices: str = "1x1"
    halo: str = "auto"
    lpt: int = 2
    steps: int = 10
    cone: str = "none"


def parse(text: str) -> Case:
    """The case of a text such as run:512:devices=2x1."""
    what, n, *rest = text.split(":")
    given = dict(item.split("=", 1) for item in rest)
    kinds: dict[str, Any] = {"mesh": float, "devices": str, "halo": str, "lpt": int, "steps": int, "cone": str}
    if what not in {"run", "gradient"} or not set(given) <= set(kinds):
        raise SystemExit(f"{text}: not a case; see the head of this file")
    return Case(what, int(n), **{name: kinds[name](value) for name, value in given.items()})


def plan_of(case: Case, folder: Path) -> Any:
    """The plan of a run, in an empty folder."""
    from pmwd_dist.run.common.folder import prepare_folder
    from pmwd_dist.run.settings import SimulationSettings, read_as
    from pmwd_dist.run.simulation.job import SimulationJob

    file = folder / "run.toml"
    halo = case.halo if case.halo.isdigit() else f'"{case.halo}"'
    file.write_text(
        f"[box]\nsize = {SIDE * case.n}\nmesh = {round(case.mesh * case.n)}\nparticles = {case.n}\n"
        f"[time]\nsteps = {case.steps}\nlpt_order = {case.lpt}\n"
        f"[devices]\npdims = [{case.devices.replace('x', ', ')}]\nhalo = {halo}\n"
        f'[output]\nredshifts = [0]\nsnapshot = "none"\nslice_thickness = 0\n'
    )
    plan = SimulationJob.of(read_as(SimulationSettings, file), folder / "out")
    prepare_folder(plan)
    return plan


def run(plan: Any) -> dict[str, Any]:
    """Plans and peaks of the stages of a run [bytes], and the median time of a step [s]."""
    import statistics

    from pmwd_dist.run.common.job import execute

    found: list[Any] = []
    execute(plan, found.append)
    steps = [event for event in found if event.name == "step"]
    peaks = [event.fields["peak_memory"] for event in found if event.name in ("initial", "end")]
    peaks.insert(1, steps[-1].fields["peak_memory"])
    planned = list(plan.stages.values())
    return {"planned": planned, "peak": peaks, "seconds": statistics.median(event.fields["seconds"] for event in steps)}


def gradient(plan: Any, kind: str) -> dict[str, Any]:
    """Plan and peak of a gradient with respect to the white noise, and the time of the second call [bytes, s]."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np

    import pmwd_dist as pmd
    from pmwd_dist import infer
    from pmwd_dist.run.common.resources import peak_memory, planned

    config, cosmo = plan.simulation.config, plan.simulation.cosmo

    edges, cones = np.linspace(0, 0.5 * config.box_size[0], 6), pmd.observe
    options: Any = {"shell_assignment": "linear"}
    accumulate: Any = {
        "sphere": lambda: cones.SphericalLightCone(config, edges, config.mesh_shape[0] // 2, **options),
        "flat": lambda: cones.FlatSkyLightCone(config, edges, **options),
    }.get(kind, lambda: None)()

    model, centre = None, tuple(side / 2 for side in config.box_size)
    if kind == "counts":
        model = infer.Simulation(config, cosmo, observable=infer.LagrangianGalaxies(b1=1.0), observer=centre)

    def loss(noise: Any) -> Any:
        if model is not None:
            return jnp.mean(model(noise, {})[0] ** 2)
        particles = pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)
        solution = pmd.nbody(particles, cosmo, config, accumulate=accumulate)
        field = pmd.density(solution.particles, config) if accumulate is None else solution.accumulated
        return jnp.mean(field**2)

    noise = pmd.white_noise(jax.random.key(1), config)
    program = jax.jit(jax.value_and_grad(loss)).lower(noise).compile()
    jax.block_until_ready(program(noise))
    began = time.perf_counter()
    jax.block_until_ready(program(noise))
    return {"planned": [planned(program)], "peak": [peak_memory()], "seconds": time.perf_counter() - began}


def measure(case: Case) -> dict[str, Any]:
    """The record of a case, in bytes a particle."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(case, Path(folder))
        config = plan.simulation.config
        record = run(plan) if case.what == "run" else gradient(plan, case.cone)
    stages = ("initial", "step", "output") if case.what == "run" else ("gradient",)
    own = math.prod(config.particle_shape) / config.decomposition.size
    if jax.default_backend() == "cpu":
        del record["peak"]
    for name in {"planned", "peak"} & record.keys():
        record[name] = [round(x / own, 1) for x in record[name]]
    about = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    return {"case": case._asdict(), **about, "stages": stages, **record}


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--limit", type=float, default=240, help="seconds for each case")
    parser.add_argument("--here", action="store_true", help="run the only case in this process")
    options = parser.parse_args()
    for text in options.cases:
        case = parse(text)
        if options.here:
            print(json.dumps(measure(case)), flush=True)
            continue
        devices = math.prod(map(int, case.devices.split("x")))
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ
        own |= {"PYTHONPATH": path, "JAX_NUM_CPU_DEVICES": str(devices)}
        command = [sys.executable, __file__, text, "--here"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit, check=False, env=own)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            errors = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            lines, errors = [], f"took longer than {options.limit:g} s"
        print(lines[-1] if lines else json.dumps({"case": case._asdict(), "error": errors[:400]}), flush=True)


if __name__ == "__main__":
    main()
