"""Paint, read, the step of the particles and the transpose of the force on particles that lie in various ways.

    python -m benchmarks.loads --particles 512
    python -m benchmarks.loads --particles 512 --loads clustered,random --json loads.json

Loads, each of n^3 particles in single precision on one device:

  coherent   lattice order, mesh n^3; plane waves move the particles by 6 cells (rms along an axis), with a strain
             (rms of a diagonal element) of 0.55, as late in a run of 1 to 2 Mpc/h
  clustered  the same mesh, at z = 0 of a run with cells of 0.5 Mpc/h
  fine       a lattice twice as fine as the mesh: 8 particles a cell
  coarse     a mesh twice as fine as the lattice: 8 cells a particle
  random     mesh n^3, positions anywhere, so that neighbours in memory share no cell

Ops: paint with one weight for all, with one for each particle, and of three fields; read of three fields; force read,
kick and drifts in one pass; transpose of the force. The times are medians; "plain" is a paint as `.at[].add` in floats,
whose bits depend on the order of atomic additions on a GPU.

The floor is what must be moved over the bandwidth of a copy in the same run: particles once, and each mesh once where
particles that follow each other share cells. Of random ones each touches 4 rows of two cells; there 32-byte sectors are
counted, read for a read, read and written for a paint, as if no cache held any.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pmwd_dist as pmd
from benchmarks import measure
from benchmarks.op_timing import seconds
from benchmarks.problem import cosmology
from pmwd_dist.ops import cic, momenta
from pmwd_dist.ops.cic import Geometry
from pmwd_dist.ops.cic.reference import paint_reference
from pmwd_dist.ops.force_transpose import force_transpose
from pmwd_dist.ops.step import KickDrift, kick_drift

RMS, STRAIN = 6.0, 0.55  # displacement along an axis [cells], and rms of a diagonal element of its gradient
CLUSTERED_CELL = 0.5  # [Mpc/h]
WAVES = 24
LOADS: dict[str, tuple[int, int]] = {  # cells per lattice spacing
    "coherent": (1, 1),
    "clustered": (1, 1),
    "fine": (1, 2),
    "coarse": (2, 1),
    "random": (1, 1),
}
SECTOR = 32  # bytes


class Op(NamedTuple):
    """An op on a load.

    Args:
      function: of the operands.
      operands: its arguments.
      fields: on the mesh, for each of which the op reads or writes 4 bytes a cell.
      vectors: arrays of 4 bytes a particle that it reads or writes.
      adds: whether it adds to the mesh.
      painted: fields that it paints to take differences of them, where particles share no cells.
      carried: see `op_timing.seconds`.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    fields: int
    vectors: int
    adds: bool
    painted: int = 0
    carried: int = 0


def geometry_of(load: str, n: int) -> Geometry:
    """Lattice and mesh of a load, with displacements in cells."""
    num, den = LOADS[load]
    mesh = n * num // den
    return Geometry((mesh,) * 3, ((num, den),) * 3, (0,) * 3, (True,) * 3, (1.0,) * 3)


def displacements(load: str, n: int) -> jax.Array:
    """Displacements from the lattice [cells]."""
    num, den = LOADS[load]
    if load == "clustered":
        return _clustered(n)
    if load == "random":
        return _uniform(n, n * num / den)
    return waves_of(n, *wave_numbers(n * num / den))


@partial(jax.jit, static_argnums=(0, 1))
def _uniform(n: int, cells: float) -> jax.Array:
    return jax.random.uniform(jax.random.key(1), (n, n, n, 3), jnp.float32, -cells / 2, cells / 2)


def wave_numbers(cells: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Wave vectors in units of the fundamental mode, phases, and the amplitude that gives RMS."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(WAVES, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    # Of an isotropic wave: strain^2 / rms^2 = k^2 <n_x^4> / <n_x^2> = 3/5 k^2.
    size = STRAIN / RMS / math.sqrt(0.6) * cells / (2 * math.pi) * rng.uniform(0.6, 1.4, WAVES)
    waves = np.rint(direction * np.maximum(size, 1)[:, None])
    waves[~waves.any(axis=1)] = 1, 0, 0
    return waves, rng.uniform(0, 2 * math.pi, WAVES), np.array(RMS * math.sqrt(6 / WAVES))


@partial(jax.jit, static_argnums=0)
def waves_of(n: int, waves: Any, phases: Any, amplitude: Any) -> jax.Array:
    site = jnp.arange(n, dtype=jnp.float32) * (2 * math.pi / n)
    waves, phases, amplitude = (jnp.asarray(x, jnp.float32) for x in (waves, phases, amplitude))
    directions = waves / jnp.linalg.norm(waves, axis=1, keepdims=True)

    def add(i: Any, disp: jax.Array) -> jax.Array:
        x, y, z = jnp.meshgrid(*(waves[i, axis] * site for axis in range(3)), indexing="ij", sparse=True)
        wave = amplitude * jnp.sin(x + y + z + phases[i])
        return disp + jnp.stack([wave * directions[i, axis] for axis in range(3)], -1)

    return jax.lax.fori_loop(0, len(waves), add, jnp.zeros((n, n, n, 3), jnp.float32))


def _clustered(n: int) -> jax.Array:
    decomposition = pmd.Decomposition((1, 1), jax.devices()[:1])
    config, cosmo = pmd.Config(CLUSTERED_CELL * n, n, steps=10, lpt_order=2, decomposition=decomposition), cosmology()

    @jax.jit
    def run() -> Any:
        modes = pmd.linear_modes(pmd.white_noise(jax.random.key(0), config, jnp.float32), cosmo, config)
        solution = pmd.nbody(pmd.lpt(modes, cosmo, config), cosmo, config)
        return solution.particles.disp / CLUSTERED_CELL, solution.status

    disp, status = run()
    status.raise_if_failed()
    return disp


def ops(disp: jax.Array, geometry: Geometry) -> dict[str, Callable[[], Op]]:
    """The ops on a load; their operands are made when they are called."""
    sites = disp.shape[:3]

    def normal(*shape: int) -> jax.Array:
        return jax.jit(lambda: jax.random.normal(jax.random.key(2), shape, jnp.float32))()

    def paint(function: Callable[..., jax.Array], *shape: int) -> Op:
        weight = normal(*shape) if shape[0] > 1 else jnp.ones(shape, jnp.float32)
        fields, each = shape[-1], shape[-1] if shape[0] > 1 else 0
        return Op(function, (disp, weight), fields, 3 + each, adds=True)

    def step() -> Op:
        one, zero = jnp.ones((), jnp.float32), jnp.zeros((), jnp.float32)
        still = KickDrift(zero, one, one, zero, zero, one)  # the particles stay where they are, the work is the same
        vel = momenta.pack(jnp.zeros(disp.shape, jnp.int32), disp)

        def run(disp: Any, vel: Any, fields: Any) -> Any:
            return kick_drift(disp, vel, fields, still, geometry, resolution=2.0**-17)

        return Op(run, (disp, vel, normal(*geometry.mesh, 3)), 3, 12, adds=False, carried=2)

    def transpose() -> Op:
        function = partial(force_transpose, geometry=geometry, cell_size=(1.0, 1.0, 1.0))
        return Op(function, (disp, normal(*sites, 3)), 1, 6, adds=True, painted=3)

    def plain(disp: jax.Array, weight: jax.Array) -> jax.Array:
        return paint_reference(disp[None], weight[None], geometry=geometry, masks=(cic.VALUE,))[0]

    native, read = partial(cic.paint, geometry=geometry), partial(cic.read, geometry=geometry)
    return {
        "paint": lambda: paint(native, 1, 1, 1, 1, 1),
        "paint, plain": lambda: paint(plain, 1, 1, 1, 1, 1),
        "paint, weights": lambda: paint(native, *sites, 1, 1),
        "paint, weights, plain": lambda: paint(plain, *sites, 1, 1),
        "paint, three fields": lambda: paint(native, *sites, 1, 3),
        "paint, three fields, plain": lambda: paint(plain, *sites, 1, 3),
        "read, three fields": lambda: Op(read, (disp, normal(*geometry.mesh, 3)), 3, 6, adds=False),
        "force read, kick, drifts": step,
        "transpose of the force": transpose,
    }


def floor_bytes(op: Op, geometry: Geometry, particles: int, *, scattered: bool) -> float:
    """Bytes a particle that must be moved."""
    cells = math.prod(geometry.mesh) / particles
    if not scattered:
        return 4 * (op.vectors + op.fields * cells)
    row = 2 * 4 * (op.painted or op.fields)  # two cells along z, beside each other, from a multiple of 4 bytes on
    sectors = np.mean([(first + row - 1) // SECTOR + 1 for first in range(0, SECTOR, 4)])
    differences = 4 * (op.painted + op.fields) * cells if op.painted else 0
    return 4 * op.vectors + 4 * sectors * SECTOR * (2 if op.adds else 1) + differences


def measured(load: str, n: int, bandwidth: float, rounds: int) -> list[dict[str, Any]]:
    """The records of a load."""
    geometry = geometry_of(load, n)
    disp = jax.block_until_ready(displacements(load, n))
    about = {"load": load, "n": n, "mesh": geometry.mesh[0], "rms": float(jnp.sqrt(jnp.mean(disp**2)))}
    records = []
    for name, make in ops(disp, geometry).items():
        op = make()
        per_particle = floor_bytes(op, geometry, n**3, scattered=load == "random")
        took = seconds(op.function, op.operands, carried=op.carried, rounds=rounds)
        del op
        records.append(about | {"op": name, "seconds": took, "bytes": per_particle})
    plain = {record["op"].removesuffix(", plain"): record for record in records if record["op"].endswith("plain")}
    for record in records:
        record["floor_s"] = record["bytes"] * n**3 / bandwidth
        record["plain_s"] = plain[record["op"]]["seconds"] if record["op"] in plain else None
    return [record for record in records if not record["op"].endswith("plain")]


def row(record: dict[str, Any]) -> str:
    """A record as a row of the table."""
    took, floor, plain = record["seconds"], record["floor_s"], record["plain_s"]
    cells = [record["load"], record["op"], f"{1e3 * took:.3g}", f"{record['bytes']:.0f}", f"{1e3 * floor:.3g}"]
    cells += [f"{took / floor:.2f}", "" if plain is None else f"{1e3 * plain:.3g}"]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=128, help="along a side, even (128)")
    parser.add_argument("--loads", default=",".join(LOADS), help=f"of {', '.join(LOADS)}")
    parser.add_argument("--rounds", type=int, default=5, help="of calls, of which the median is taken (5)")
    parser.add_argument("--json", type=Path, help="file of the machine and all records")
    options = parser.parse_args(arguments)
    chosen = options.loads.split(",")
    if wrong := [load for load in chosen if load not in LOADS]:
        parser.error(f"--loads has {', '.join(wrong)}; known are {', '.join(LOADS)}")
    machine = measure.machine("jaxlib")
    records: list[dict[str, Any]] = []
    for load in chosen:
        records += measured(load, options.particles, machine["bandwidth"], options.rounds)
        if options.json:
            options.json.write_text(json.dumps([machine, *records]), encoding="utf-8")
    device = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
    print(f"{machine['date']}, {device}, copy {machine['bandwidth'] / 1e9:.0f} GB/s, {options.particles}^3 particles\n")
    print("| load | op | ms | bytes a particle | floor, ms | over its floor | plain, ms |\n|" + 7 * "---|")
    print("\n".join(map(row, records)), flush=True)


if __name__ == "__main__":
    main()
