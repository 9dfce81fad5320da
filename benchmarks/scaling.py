"""Strong and weak scaling over the devices of one process, or of one process each.

    python -m benchmarks.scaling --devices 1,2,4 --strong 512,1024 --weak 512 --json scaling.json --plot scaling.png
    mpirun -n 2 python -m benchmarks.scaling --devices 2 --strong 512 --weak '' --backend cudecomp:nccl_pl
    JAX_NUM_CPU_DEVICES=4 JAX_PLATFORMS=cpu python -m benchmarks.scaling --devices 1,2,4 --strong 32 --weak 16

Strong: a mesh of n^3 on all numbers of devices. Weak: n^3 particles a device, in a mesh of (n d, n, n) on d of them. As
many particles as cells, cells of 2 Mpc/h, ten steps from a = 0.1 to 1 in single precision. Cases: forward, the steps,
with donated particles [ms a step]; gradient, mean((1 + delta)^2) and its gradient by the white noise, initial
conditions included [s]. The speed-up is that over the fewest devices, and its efficiency 1 where d times as many
devices take a d-th of the time (strong), or the same time (weak). Bytes are those of a device by the compiler's plan,
over its particles. Ends with 1 if the variance of the density depends on the number of devices.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from matplotlib.figure import Figure

import pmwd_dist as pmd
from benchmarks import measure, problem
from pmwd_dist.parallel.fft import spectrum_shape

TOLERANCE = 1e-3  # of the variance of the density


class Case(NamedTuple):
    """A simulation on some devices.

    Args:
      kind: "strong" or "weak".
      n: cells along a side, or along a side of the part of a device.
      devices: how many.
      py: of them along y.
      halo: its width [cells], or "auto".
      what: "forward" or "gradient".
      backend: of the decomposition, with cuDecomp's way to transpose behind a colon.
    """

    kind: Literal["strong", "weak"]
    n: int
    devices: int
    py: int
    halo: int | Literal["auto"]
    what: str
    backend: str = "auto"

    @property
    def mesh(self) -> tuple[int, int, int]:
        """Cells along each axis."""
        return (self.n * self.devices if self.kind == "weak" else self.n, self.n, self.n)

    def config(self) -> pmd.Config:
        """The simulation."""
        name, _, comm = self.backend.partition(":")
        comms: Any = {"backend": name} | ({"transpose_comm": comm, "halo_comm": "nccl"} if comm else {})
        decomposition = pmd.Decomposition((self.devices // self.py, self.py), jax.devices()[: self.devices], **comms)
        times: dict[str, Any] = {"a_start": problem.A_START, "a_stop": problem.A_STOP, "steps": problem.STEPS}
        box = tuple(problem.CELL * n for n in self.mesh)
        return pmd.Config(box, self.mesh, **times, lpt_order=2, decomposition=decomposition, halo=self.halo)


def timed(case: Case, rounds: int) -> dict[str, Any]:
    """The record of a case."""
    record: dict[str, Any] = case._asdict() | {"mesh": case.mesh}
    try:
        config = case.config()
        shapes = [config.mesh_shape, spectrum_shape(config.mesh_shape, config.decomposition)]
        with config.decomposition.opened(shapes):
            return record | _timed(config, case.what, rounds)
    except ValueError as error:  # a mesh that does not divide
        return record | {"error": str(error)}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return record | {"error": "out of memory"}


def _timed(config: pmd.Config, what: str, rounds: int) -> dict[str, Any]:
    cosmo, sharding = problem.cosmology(), config.decomposition.sharding
    noise = jax.jit(lambda: pmd.white_noise(jax.random.key(problem.SEED), config, jnp.float32))

    def initial(noise: Any) -> Any:
        return pmd.lpt(pmd.linear_modes(noise, cosmo, config), cosmo, config)

    def forward(particles: Any) -> Any:
        solution = pmd.nbody(particles, cosmo, config)
        return solution.particles, solution.status

    def variance(particles: Any) -> Any:
        return jnp.mean((pmd.density(particles, config) - 1) ** 2)

    def loss(noise: Any) -> Any:
        particles, status = forward(initial(noise))
        squares = variance(particles)
        return 1 + squares, (squares, status)

    forth, start = what == "forward", jax.jit(initial)
    function: Callable[..., Any] = forward if forth else jax.value_and_grad(loss, has_aux=True)

    def load() -> tuple[Any]:
        return (start(noise()) if forth else noise(),)

    shapes = jax.tree.map(lambda x: x.update(sharding=sharding), jax.eval_shape(load))
    cost, call, out = measure.warm_up(function, shapes, load, donated=forth)
    seen, status = (jax.jit(variance)(out[0]), out[1]) if forth else out[0][1]
    del out
    if message := status.message():
        return {"error": message}
    seconds = [second for _ in range(rounds) for second in measure.round_of(call, _agreed(cost.first_s))]
    of_a_device = math.prod(config.mesh_shape) / config.decomposition.size
    return {
        "pdims": config.decomposition.pdims,
        "backend": config.decomposition.backend.name,
        "seconds": statistics.median(seconds),
        "range": (min(seconds), max(seconds)),
        "compile_s": cost.compile_s,
        "bytes": None if cost.planned_bytes is None else cost.planned_bytes / of_a_device,
        "variance": float(seen),
    }


def _agreed(seconds: float) -> float:
    """Seconds of the main process: all run as many rounds."""
    return seconds if jax.process_count() == 1 else float(broadcast_one_to_all(np.float32(seconds)))


def compared(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with speed-up, efficiency and agreement, against that of the fewest devices of the same work."""
    first: dict[Any, dict[str, Any]] = {}
    out = []
    for record in sorted(records, key=lambda record: record["devices"]):
        base = (
            first.setdefault((record["kind"], record["n"], record["what"]), record) if "error" not in record else None
        )
        if base is not None:
            more = record["devices"] / base["devices"]
            speed_up = base["seconds"] / record["seconds"] * (more if record["kind"] == "weak" else 1)
            same = record["kind"] == "weak" or abs(record["variance"] / base["variance"] - 1) < TOLERANCE
            out.append(record | {"speed_up": speed_up, "efficiency": speed_up / more, "agrees": same})
        else:
            out.append(record)
    return sorted(out, key=lambda record: (record["what"], record["kind"], record["n"], record["devices"]))


def row(record: dict[str, Any]) -> str:
    """A record as a row of the table."""
    about = [record["what"], record["kind"], " x ".join(map(str, record["mesh"])), str(record["devices"])]
    if "error" in record:
        return f"| {' | '.join([*about, record['error']])} |" + 6 * " |"
    factor = 1e3 / problem.STEPS if record["what"] == "forward" else 1.0
    low, high = (factor * second for second in record["range"])
    cells = [f"{list(record['pdims'])}, {record['backend']}", f"{factor * record['seconds']:.3g}"]
    cells += [f"{low:.3g} to {high:.3g}", f"{record['speed_up']:.2f}", f"{record['efficiency']:.2f}"]
    cells += ["" if record["bytes"] is None else f"{record['bytes']:.0f}", f"{record['compile_s']:.1f}"]
    return f"| {' | '.join(about + cells)} |" + ("" if record["agrees"] else " the density differs")


def draw(path: Path, machine: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """Draw times and efficiencies over the number of devices, a row of panels for each case."""
    good = [record for record in records if "error" not in record]
    names = sorted({record["what"] for record in good})
    figure = Figure(figsize=(9, 3.2 * max(1, len(names))), layout="constrained")
    panels = figure.subplots(max(1, len(names)), 2, squeeze=False)
    for what, (times, shares) in zip(names, panels, strict=False):
        factor, unit = (1e3 / problem.STEPS, "ms a step") if what == "forward" else (1.0, "s")
        for kind, n in sorted({(r["kind"], r["n"]) for r in good if r["what"] == what}):
            own = [r for r in good if (r["what"], r["kind"], r["n"]) == (what, kind, n)]
            devices, style = [r["devices"] for r in own], "o-" if kind == "strong" else "s--"
            label = f"{n}³" if kind == "strong" else f"{n}³ a device"
            (line,) = times.loglog(devices, [factor * r["seconds"] for r in own], style, label=label)
            first = factor * own[0]["seconds"]
            ideal = [first * (devices[0] / d if kind == "strong" else 1) for d in devices]
            times.loglog(devices, ideal, ":", color=line.get_color())
            shares.semilogx(devices, [r["efficiency"] for r in own], style, color=line.get_color(), label=label)
        ticks = sorted({r["devices"] for r in good})
        for panel, text in ((times, unit), (shares, "efficiency")):
            panel.set(xlabel="devices", ylabel=text, title=what)
            panel.set_xticks(ticks, [str(d) for d in ticks], minor=False)
            panel.minorticks_off()
        shares.set_ylim(0, None)
        times.legend(fontsize="small")
    figure.suptitle(f"{machine['device']}, {machine['date']}; dotted: ideal", fontsize="medium")
    figure.savefig(path, dpi=150)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All cases of the command line, the most devices first: what takes most memory a device comes last."""
    halo = "auto" if options.halo == "auto" else int(options.halo)
    for what in options.cases.split(","):
        for kind, sizes in (("strong", options.strong), ("weak", options.weak)):
            for n in [int(n) for n in sizes.split(",") if n]:
                for count in sorted(map(int, options.devices.split(",")), reverse=True):
                    py = options.py if count % options.py == 0 else 1
                    yield Case(kind, n, count, py, halo, what, options.backend)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="1,2", help="numbers of devices (1,2)")
    parser.add_argument("--strong", default="128", help="cells along a side (128); '' for none")
    parser.add_argument("--weak", default="64", help="cells along a side of the part of a device (64); '' for none")
    parser.add_argument("--cases", default="forward", help="of forward, gradient (forward)")
    parser.add_argument("--py", type=int, default=1, help="devices along y: more than one makes pencils (1)")
    parser.add_argument("--halo", default="auto", help="cells, or auto (auto)")
    parser.add_argument("--backend", default="auto", help="auto, peer, xla, cudecomp:nccl_pl, cudecomp:nvshmem (auto)")
    parser.add_argument("--rounds", type=int, default=3, help="after the warm-up (3)")
    parser.add_argument("--json", type=Path, help="file of the machine and all records")
    parser.add_argument("--plot", type=Path, help="figure of times and efficiencies")
    options = parser.parse_args(arguments)
    pmd.distributed.initialize()
    if wrong := [what for what in options.cases.split(",") if what not in problem.CASES]:
        parser.error(f"--cases has {', '.join(wrong)}; known are {', '.join(problem.CASES)}")
    if max(map(int, options.devices.split(","))) > jax.device_count():
        parser.error(f"--devices {options.devices}: there are {jax.device_count()}; on CPUs set JAX_NUM_CPU_DEVICES")
    machine, records = measure.machine("jaxlib"), list[dict[str, Any]]()
    for case in cases(options):
        records.append(timed(case, options.rounds))
        if options.json and pmd.distributed.is_main():
            options.json.write_text(json.dumps([machine, *compared(records)]), encoding="utf-8")
    records = compared(records)
    if not pmd.distributed.is_main():
        return
    if options.plot:
        draw(options.plot, machine, records)
    device = machine["cpu"] if machine["backend"] == "cpu" else machine["device"]
    names = "case | scaling | mesh | devices | pdims, backend | ms a step or s | range | speed-up | efficiency"
    print(f"{machine['date']}, {device}, copy {machine['bandwidth'] / 1e9:.0f} GB/s on one\n")
    print(f"| {names} | bytes a particle | compile, s |\n|" + 11 * "---|")
    print("\n".join(map(row, records)), flush=True)
    if not all(record.get("agrees", True) for record in records):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
