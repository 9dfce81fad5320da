"""Time the stages of a step and of a gradient, each op alone, against a copy in the same run.

    python -m benchmarks.stages --particles 512
    python -m benchmarks.stages --particles 128 --a 0.5 --json stages.json

n^3 particles of a run to the scale factor `--a` in a box of 2n Mpc/h, a mesh of n^3, single precision, one device.
Operands are read once and results are written once; a transform forward and one back take three passes each. What else
an op moves, as the sums of a paint, counts as its own. Ops that take the memory of their operands do so here. "Share of
a copy" is the bandwidth of these bytes over that of a copy of 512 MB. Rows in italics consist of others.

A gradient whose potentials are kept takes a step backwards by: gradient of a kept potential; drifts and kick undone;
transpose of the force; transforms. One whose potentials are not takes a paint, transforms and gradient more, and undoes
kick and drifts in two passes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pmwd_dist as pmd
from benchmarks import measure, problem
from benchmarks.op_timing import bytes_of, seconds
from pmwd_dist.ops import cic, momenta, stencil
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.step import KickDrift, UndoDrift, UndoKick, kick_drift, undo_drift, undo_drift_and_kick, undo_kick
from pmwd_dist.pm.gravity import solve
from pmwd_dist.pm.paint import block_geometry
from pmwd_dist.pm.particles import ExactParticles, resolution
from pmwd_dist.pm.status import successful
from pmwd_dist.pm.stepping.step import MidStep, Step, take_step

TRANSFORM_BYTES = 24  # a cell: three passes that read and write


class Stage(NamedTuple):
    """A stage.

    Args:
      part: of what.
      name: of the op.
      function: of the operands.
      operands: its arguments.
      carried: see `op_timing.seconds`.
      cell_bytes: bytes a cell, if they are not those of operands and results.
      whole: whether it consists of others.
    """

    part: str
    name: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]
    carried: int = 0
    cell_bytes: int | None = None
    whole: bool = False


def configure(n: int, a: float) -> pmd.Config:
    """The run whose particles are taken."""
    decomposition = pmd.Decomposition((1, 1), jax.devices()[:1])
    settings: dict[str, Any] = {"a_start": problem.A_START, "a_stop": a, "steps": problem.STEPS}
    return pmd.Config(problem.CELL * n, n, **settings, lpt_order=2, decomposition=decomposition)


def start(noise: jax.Array, config: pmd.Config) -> pmd.Particles:
    """Particles at the start."""
    cosmo = problem.cosmology()
    return pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)


def displacements(noise: jax.Array, config: pmd.Config) -> jax.Array:
    """Displacements at the end of the run [Mpc/h]."""

    def run(noise: jax.Array) -> Any:
        solution = pmd.nbody(start(noise, config), problem.cosmology(), config)
        return solution.particles.disp, solution.status

    disp, status = jax.jit(run)(noise)
    status.raise_if_failed()
    return disp


def of_a_start(noise: jax.Array, config: pmd.Config) -> Iterator[Stage]:
    """Initial conditions, and their gradient."""

    def loss(noise: jax.Array) -> jax.Array:
        particles = start(noise, config)
        return jnp.sum(particles.disp**2) + jnp.sum(particles.vel**2)

    yield Stage("start", "white noise to particles by 2LPT", lambda noise: start(noise, config), (noise,), whole=True)
    yield Stage("start", "the same with its gradient", jax.value_and_grad(loss), (noise,), whole=True)


def of_a_step(disp: jax.Array, config: pmd.Config) -> Iterator[Stage]:
    """A step forwards."""
    geometry, q, decomposition = block_geometry(config, 0), resolution(config, disp.dtype), config.decomposition
    spec, shape = decomposition.spec, config.mesh_shape
    mesh = jax.jit(lambda disp: pmd.cic_paint(disp, config))(disp)
    still = KickDrift(*(jnp.asarray(x, disp.dtype) for x in (0, 1, 1, 0, 0, 1)))  # particles stay, the work is the same
    vel = momenta.pack(jnp.zeros(disp.shape, jnp.int32), disp)

    def paint(disp: Any) -> Any:
        return cic.paint(disp, jnp.ones((1, 1, 1, 1, 1), disp.dtype), geometry)

    def move(disp: Any, vel: Any, fields: Any) -> Any:
        return kick_drift(disp, vel, fields, still, geometry, resolution=q)

    def whole_step(particles: Any) -> Any:
        zero, one = jnp.zeros((), disp.dtype), jnp.ones((), disp.dtype)
        mid = MidStep(particles, zero, one, zero, successful(disp.dtype))
        mid, _ = take_step(mid, Step(zero, zero, zero, one, one), zero, config)
        return mid.particles, mid.max_displacement

    filtered = decomposition.shard_map(lambda mesh: solve(mesh, config)[0], spec, spec)
    yield Stage("step", "paint", paint, (disp,))
    both = 2 * TRANSFORM_BYTES
    yield Stage("step", "transforms and Green's function", filtered, (mesh,), cell_bytes=both)
    there, back = (lambda x: pmd.prfft3d(x, decomposition)), (lambda x: pmd.pirfft3d(x, shape, decomposition))
    yield Stage("step", "transform alone, to modes", there, (mesh,), cell_bytes=TRANSFORM_BYTES)
    yield Stage("step", "transform alone, back", back, (jax.jit(there)(mesh),), cell_bytes=TRANSFORM_BYTES)
    gradient, periodic = stencil.gradient, (True, True, True)
    yield Stage("step", "gradient of the potential", lambda x: gradient(x, config.cell_size, periodic), (mesh,))
    fields = jax.jit(lambda x: gradient(x, config.cell_size, periodic))(mesh)
    yield Stage("step", "force read, kick, drifts", move, (disp, vel, fields), carried=2)
    yield Stage("step", "all of it", whole_step, (ExactParticles(disp, vel),), carried=1, whole=True)


def of_a_step_backwards(disp: jax.Array, config: pmd.Config) -> Iterator[Stage]:
    """A step backwards, with cotangents."""
    geometry, q = block_geometry(config, 0), resolution(config, disp.dtype)
    field = jax.jit(lambda disp: pmd.cic_paint(disp, config))(disp)
    fields = jax.jit(lambda x: stencil.gradient(x, config.cell_size, (True, True, True)))(field)
    vel = momenta.pack(jnp.zeros(disp.shape, jnp.int32), disp)
    ct_disp = jax.jit(lambda: jax.random.normal(jax.random.key(1), disp.shape, disp.dtype))()
    kick = UndoKick(*(jnp.asarray(x, disp.dtype) for x in (0, 1, 1, 0, 0, 1)))
    drift = UndoDrift(*(jnp.asarray(x, disp.dtype) for x in (0, 1, 1, 0, 0, 1)))

    def undo(disp: Any, vel: Any, ct_disp: Any, ct_vel: Any, field: Any, fields: Any) -> Any:
        return undo_drift_and_kick((disp, vel, ct_disp, ct_vel), field, fields, drift, kick, geometry, resolution=q)

    def kick_alone(vel: Any, ct_disp: Any, ct_vel: Any, disp: Any, fields: Any) -> Any:
        return undo_kick(disp, vel, ct_disp, ct_vel, fields, kick, geometry)

    def drift_alone(disp: Any, ct_disp: Any, ct_vel: Any, vel: Any, field: Any) -> Any:
        return undo_drift(disp, vel, ct_disp, ct_vel, field, drift, geometry, resolution=q)

    def recall(bits: Any, place: Any) -> Any:
        return stencil.gradient_at(bits, place, config.cell_size)

    whole = jax.lax.bitcast_convert_type(field, jnp.int32)[None]
    part = "step backwards"
    yield Stage(part, "gradient of a kept potential", recall, (whole, jnp.zeros((), jnp.int32)))
    del whole
    state = disp, vel, ct_disp, ct_disp
    yield Stage(part, "drifts and the kick before them undone", undo, (*state, field, fields), carried=4)
    transpose: Any = lambda disp, weight: force_transpose(disp, weight, geometry, config.cell_size)  # noqa: E731
    yield Stage(part, "transpose of the force", transpose, (disp, ct_disp))
    yield Stage(part, "kick undone, alone", kick_alone, (vel, ct_disp, ct_disp, disp, fields), carried=3)
    yield Stage(part, "drifts undone, alone", drift_alone, (disp, ct_disp, ct_disp, vel, field), carried=3)


def measured(n: int, a: float, bandwidth: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Records of all stages."""
    config, noise = configure(n, a), problem.noise(n)
    disp = displacements(noise, config)
    for stages in (of_a_step(disp, config), of_a_step_backwards(disp, config), of_a_start(noise, config)):
        for stage in stages:
            took = seconds(stage.function, stage.operands, carried=stage.carried, rounds=rounds)
            moved = bytes_of(stage.function, stage.operands) / n**3
            moved = moved if stage.cell_bytes is None else stage.cell_bytes
            share = None if stage.whole else moved * n**3 / took / bandwidth
            about = {"part": stage.part, "stage": stage.name, "whole": stage.whole, "n": n, "a": a}
            yield about | {"seconds": took, "bytes": moved, "share": share}


def row(record: dict[str, Any]) -> str:
    """A record as a row of the table."""
    name = f"*{record['stage']}*" if record["whole"] else record["stage"]
    cells = [record["part"], name, f"{1e3 * record['seconds']:.3g}"]
    share = ["", ""] if record["whole"] else [f"{record['bytes']:.0f}", f"{record['share']:.2f}"]
    return f"| {' | '.join(cells + share)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side (128)")
    parser.add_argument("--a", type=float, default=1.0, help="scale factor of the particles (1)")
    parser.add_argument("--rounds", type=int, default=5, help="of calls, of which the median is taken (5)")
    parser.add_argument("--json", type=Path, help="file of the machine and all records")
    options = parser.parse_args(arguments)
    if not options.a > problem.A_START:
        parser.error(f"--a: the run starts at {problem.A_START}; take more than that, for example 0.11")
    machine = measure.machine("jaxlib")
    records = list(measured(options.particles, options.a, machine["bandwidth"], options.rounds))
    if options.json:
        options.json.write_text(json.dumps([machine, *records]), encoding="utf-8")
    device = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
    size = f"{options.particles}^3 particles at a = {options.a:g}"
    print(f"{machine['date']}, {device}, copy {machine['bandwidth'] / 1e9:.0f} GB/s, {size}\n")
    print("| part | stage | ms | bytes a particle | share of a copy |\n|" + 5 * "---|")
    print("\n".join(map(row, records)), flush=True)


if __name__ == "__main__":
    main()
